//! Number of nodes that may fail before a region can no longer be written. Pure.

use std::collections::BTreeMap;
use stele_types::{PeerRole, Region, StoreId};

/// Returns how many nodes may fail at once in the present state, for any choice of nodes; `None` if
/// a region has no majority. `node_of` maps each running store to its node.
pub(super) fn nodes_that_may_fail<'a>(
    regions: impl IntoIterator<Item = &'a Region>,
    node_of: &BTreeMap<StoreId, usize>,
) -> Option<u64> {
    let mut least: Option<u64> = None;
    for region in regions {
        let of_region = both_configurations(region)
            .map(|stores| tolerated(&stores, node_of))
            .into_iter()
            .try_fold(u64::MAX, |least, failures| failures.map(|failures| least.min(failures)))?;
        least = Some(least.map_or(of_region, |least| least.min(of_region)));
    }
    Some(least.unwrap_or(0))
}

/// Returns the voters of the old and the new configuration: a joint change needs a majority of
/// each.
fn both_configurations(region: &Region) -> [Vec<StoreId>; 2] {
    let voting = |roles: [PeerRole; 2]| {
        let voters = region.peers.iter().filter(|peer| roles.contains(&peer.role));
        voters.map(|peer| peer.store).collect()
    };
    [
        voting([PeerRole::Voter, PeerRole::DemotingVoter]),
        voting([PeerRole::Voter, PeerRole::IncomingVoter]),
    ]
}

fn tolerated(voters: &[StoreId], node_of: &BTreeMap<StoreId, usize>) -> Option<u64> {
    let quorum = voters.len() / 2 + 1;
    let mut on_node: BTreeMap<usize, usize> = BTreeMap::new();
    for store in voters {
        if let Some(node) = node_of.get(store) {
            *on_node.entry(*node).or_default() += 1;
        }
    }
    // In the worst case the nodes with the most replicas fail first.
    let mut counts: Vec<usize> = on_node.into_values().collect();
    counts.sort_unstable();
    let mut left: usize = counts.iter().sum();
    if left < quorum {
        return None;
    }
    let mut failures = 0;
    while let Some(most) = counts.pop() {
        if left - most < quorum {
            break;
        }
        left -= most;
        failures += 1;
    }
    Some(failures)
}

/// Formats `tolerates 1 node failure`; after a loss `tolerates 0 more node failures`.
pub(super) fn describe(failures: Option<u64>, after_loss: bool) -> String {
    let more = if after_loss { "more " } else { "" };
    match failures {
        None => "no majority: writes wait until a node is restarted".to_owned(),
        Some(1) => format!("tolerates 1 {more}node failure"),
        Some(count) => format!("tolerates {count} {more}node failures"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{Peer, PeerId};

    fn region(peers: &[(u64, PeerRole)]) -> Region {
        let peer = |&(store, role): &(u64, PeerRole)| Peer {
            id: PeerId(store),
            store: StoreId(store),
            role,
        };
        Region { peers: peers.iter().map(peer).collect(), ..Region::default() }
    }

    fn voters(stores: &[u64]) -> Region {
        region(&stores.iter().map(|store| (*store, PeerRole::Voter)).collect::<Vec<_>>())
    }

    /// Maps stores to their nodes.
    fn on(stores: &[(u64, usize)]) -> BTreeMap<StoreId, usize> {
        stores.iter().map(|(store, node)| (StoreId(*store), *node)).collect()
    }

    #[test]
    fn a_majority_must_be_left_wherever_replicas_are() {
        let three = on(&[(1, 1), (2, 2), (3, 3)]);
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &three), Some(1));
        assert_eq!(nodes_that_may_fail(&[voters(&[1])], &three), Some(0));
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &on(&[(1, 1), (2, 2)])), Some(0));
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &on(&[(1, 1)])), None);
        let five = on(&[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3, 4, 5])], &five), Some(2));
        assert_eq!(nodes_that_may_fail(&[], &five), Some(0));
    }

    #[test]
    fn two_replicas_on_one_node_fail_together() {
        let shared = on(&[(1, 1), (2, 1), (3, 2)]);
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &shared), Some(0));
    }

    #[test]
    fn the_weakest_region_and_both_configurations_count() {
        let three = on(&[(1, 1), (2, 2), (3, 3), (4, 4)]);
        let weak = [voters(&[1, 2, 3]), voters(&[1, 2])];
        assert_eq!(nodes_that_may_fail(&weak, &three), Some(0));
        use PeerRole::{DemotingVoter, IncomingVoter, Voter};
        let joint = region(&[(1, Voter), (2, Voter), (3, DemotingVoter), (4, IncomingVoter)]);
        assert_eq!(nodes_that_may_fail([&joint], &three), Some(1));
        assert_eq!(nodes_that_may_fail([&joint], &on(&[(1, 1), (3, 3)])), None);
    }
}
