//! The cluster's time.
//!
//! Invariant: no clock of a single node, also not the placement leader's, decides which pairs have expired.
//! Test: `the_clusters_time_is_that_of_the_middle_clock_and_unknown_without_a_majority`.

use super::Cluster;
use crate::store::StoreState;
use std::collections::BTreeMap;

impl Cluster {
    /// Returns the cluster's time in Unix seconds: the median of the clocks that its nodes last
    /// reported, the lower of two. 0 until more than half of the nodes have reported to this
    /// leader. So clocks that are ahead move it only if they are half of the nodes' or more.
    pub fn unix_s(&self) -> u64 {
        let mut clocks: BTreeMap<&str, u64> = BTreeMap::new();
        for store in self.stores.values().filter(|store| store.state != StoreState::Tombstone) {
            let clock = clocks.entry(&store.address).or_default();
            *clock = store.node.unix_s.max(*clock);
        }
        let mut times: Vec<u64> = clocks.into_values().collect();
        times.sort_unstable();
        let at = times.len().saturating_sub(1) / 2;
        // bug placement.time_of_the_latest_clock: let at = times.len().saturating_sub(1);
        times.get(at).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use crate::Millis;
    use crate::cluster::Cluster;
    use crate::cluster::stores::NewStore;
    use crate::cluster::tests::{commit, founded};
    use crate::store::{NodeReport, StoreReport};
    use stele_types::StoreId;

    const DAY_S: u64 = 24 * 60 * 60;

    fn hear(cluster: &mut Cluster, address: &str, stores: &[StoreId], unix_s: u64) {
        let node = NodeReport { address: address.into(), unix_s, ..NodeReport::default() };
        let report = |id: &StoreId| StoreReport { id: *id, ..StoreReport::default() };
        let reports: Vec<_> = stores.iter().map(report).collect();
        cluster.record_heartbeat(&node, &reports, Millis(5));
    }

    #[test]
    fn the_clusters_time_is_that_of_the_middle_clock_and_unknown_without_a_majority() {
        let (mut pairs, mut cluster) = founded();
        let own = [StoreId(1), StoreId(2)];
        assert_eq!(cluster.unix_s(), 0);
        hear(&mut cluster, "n1:1", &own, 1_000);
        assert_eq!(cluster.unix_s(), 1_000, "one node");
        let mut join = |cluster: &mut Cluster, address: &str| {
            let (ids, changes) = cluster.plan_join(address, &[NewStore::default()]).unwrap();
            commit(&mut pairs, cluster, changes);
            ids
        };
        let second = join(&mut cluster, "n2:1");
        assert_eq!(cluster.unix_s(), 0, "one of two");
        hear(&mut cluster, "n2:1", &second, DAY_S);
        assert_eq!(cluster.unix_s(), 1_000, "the lower of two");
        let third = join(&mut cluster, "n3:1");
        assert_eq!(cluster.unix_s(), 1_000, "two of three");
        hear(&mut cluster, "n3:1", &third, 1_010);
        assert_eq!(cluster.unix_s(), 1_010);
        // Another clock is ahead.
        hear(&mut cluster, "n2:1", &second, 1_020);
        hear(&mut cluster, "n1:1", &own, DAY_S);
        assert_eq!(cluster.unix_s(), 1_020);
        // A node of an earlier version reports no clock.
        hear(&mut cluster, "n2:1", &second, 0);
        assert_eq!(cluster.unix_s(), 1_010);
    }
}
