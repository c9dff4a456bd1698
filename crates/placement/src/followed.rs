//! Regions of which the logs are read somewhere in the cluster, each with the first entry that a reader needs, as
//! the nodes reported it. Every store with entries of a region keeps them for the readers at all nodes: a
//! reader goes on at another store when its own fails.
//!
//! Nothing of this is persisted: a node states in each report all that its readers need.

use crate::Millis;
use std::collections::{BTreeMap, HashMap};
use stele_types::{LogIndex, RegionId};

/// Age at which a report no longer counts. A node reports every second; a reader comes back at another node by
/// then if its own is gone.
const REPORT_MILLIS: u64 = 10_000;
/// Nodes of which reports are remembered.
const NODES_MAX: usize = 4096;

/// First entry of each region that a reader needs.
pub type FollowedFrom = BTreeMap<RegionId, LogIndex>;

/// What the readers at each node need.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    nodes: HashMap<String, (Millis, FollowedFrom)>,
}

impl Followed {
    /// Takes what the readers at a node need; it replaces what the node reported before.
    pub(crate) fn report(&mut self, node: &str, needed: &FollowedFrom, now: Millis) {
        if needed.is_empty() {
            self.nodes.remove(node);
            return;
        }
        if self.nodes.len() < NODES_MAX || self.nodes.contains_key(node) {
            self.nodes.insert(node.to_owned(), (now, needed.clone()));
        }
    }

    /// Returns the first entry of each region that a reader at any node needs.
    ///
    /// Invariant: stores keep what the slowest reader at all nodes needs.
    /// Test: `each_store_keeps_what_the_slowest_reader_of_all_nodes_needs`.
    pub(crate) fn needed(&mut self, now: Millis) -> FollowedFrom {
        self.nodes.retain(|_, (reported, _)| now.since(*reported) < REPORT_MILLIS);
        let mut all = FollowedFrom::new();
        for (region, next) in self.nodes.values().flat_map(|(_, needed)| needed) {
            let first = all.entry(*region).or_insert(*next);
            // bug placement.followed_by_the_fastest: `(*first).min(*next)` is `(*first).max(*next)`
            *first = (*first).min(*next);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(of: &[(u64, u64)]) -> FollowedFrom {
        of.iter().map(|(region, next)| (RegionId(*region), LogIndex(*next))).collect()
    }

    #[test]
    fn each_store_keeps_what_the_slowest_reader_of_all_nodes_needs() {
        let mut followed = Followed::default();
        followed.report("n1", &needs(&[(2, 70), (3, 9)]), Millis(0));
        followed.report("n2", &needs(&[(2, 50), (4, 6)]), Millis(0));
        followed.report("n3", &needs(&[(2, 60)]), Millis(0));
        assert_eq!(followed.needed(Millis(1)), needs(&[(2, 50), (3, 9), (4, 6)]));
        followed.report("n2", &needs(&[(2, 65)]), Millis(1000));
        assert_eq!(followed.needed(Millis(1000)), needs(&[(2, 60), (3, 9)]));
        followed.report("n3", &needs(&[]), Millis(1000));
        assert_eq!(followed.needed(Millis(1000)), needs(&[(2, 65), (3, 9)]));
    }

    #[test]
    fn what_a_node_needed_that_is_silent_is_no_longer_needed() {
        let mut followed = Followed::default();
        followed.report("n1", &needs(&[(2, 70)]), Millis(0));
        followed.report("n2", &needs(&[(2, 90)]), Millis(5000));
        assert_eq!(followed.needed(Millis(REPORT_MILLIS - 1)), needs(&[(2, 70)]));
        assert_eq!(followed.needed(Millis(REPORT_MILLIS)), needs(&[(2, 90)]));
        assert_eq!(followed.needed(Millis(5000 + REPORT_MILLIS)), needs(&[]));
    }
}
