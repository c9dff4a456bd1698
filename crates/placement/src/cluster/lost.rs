//! Stores that are declared lost while no placement group runs: with the recovery of its region.

use super::Cluster;
use crate::pairs::{self, PairChange};
use crate::store::{Store, StoreState};
use std::collections::BTreeSet;
use stele_types::StoreId;

impl Cluster {
    /// Plans the tombstones of stores that are lost permanently. Nothing that a running placement group
    /// would check is checked: the caller states that these stores never run again. The next version of
    /// the list of members is above `version`, the greatest one that a node may know.
    ///
    /// Invariant: a lost store of which the log that is left has no record gets a tombstone, too: its
    /// number is not given to another store.
    pub fn plan_lost(&self, lost: &BTreeSet<StoreId>, version: u64) -> Vec<PairChange> {
        let tombstone = |id: &StoreId| {
            let store = self.stores.get(id).cloned();
            let store = store.unwrap_or_else(|| Store { id: *id, ..Store::default() });
            let is_new = store.state != StoreState::Tombstone;
            is_new.then(|| pairs::store(&Store { state: StoreState::Tombstone, ..store }))
        };
        let mut changes: Vec<PairChange> = lost.iter().filter_map(tombstone).collect();
        if !changes.is_empty() {
            changes.push(pairs::members(self.members_version.max(version) + 1));
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Millis;
    use stele_types::ClusterId;

    fn cluster(stores: &[(u64, StoreState)], version: u64) -> Cluster {
        let record = |(id, state): &(u64, StoreState)| {
            let address = format!("host-{id}:1");
            pairs::store(&Store { id: StoreId(*id), state: *state, address, ..Store::default() })
        };
        let mut pairs: Vec<PairChange> = stores.iter().map(record).collect();
        pairs.extend([pairs::cluster(ClusterId(7)), pairs::members(version)]);
        let pairs = pairs.into_iter().filter_map(|change| Some((change.key, change.value?)));
        Cluster::load(pairs, Millis(0), 0).unwrap().unwrap()
    }

    fn states(cluster: &Cluster) -> Vec<(u64, StoreState)> {
        cluster.stores().map(|store| (store.id.0, store.state)).collect()
    }

    #[test]
    fn lost_stores_become_tombstones_also_those_that_the_log_does_not_name() {
        use StoreState::{Removing, Tombstone, Up};
        let mut cluster = cluster(&[(1, Up), (2, Removing), (3, Up)], 5);
        let lost = BTreeSet::from([2, 3, 9].map(StoreId));
        let changes = cluster.plan_lost(&lost, 0);
        cluster.apply(&changes).unwrap();
        let expected = [(1, Up), (2, Tombstone), (3, Tombstone), (9, Tombstone)];
        assert_eq!(states(&cluster), expected);
        assert_eq!(cluster.store(StoreId(3)).unwrap().address, "host-3:1");
        assert_eq!(cluster.members_version(), 6);
        assert_eq!(cluster.plan_lost(&lost, 99), [], "they are tombstones already");
        // The number of a store that joined after the log that is left is not given again.
        let (ids, _) = cluster.plan_join("new:1", &[crate::NewStore::default()]).unwrap();
        assert_eq!(ids, [StoreId(10)]);
    }

    #[test]
    fn the_list_of_members_gets_a_version_above_all_that_nodes_know() {
        let mut cluster = cluster(&[(1, StoreState::Up), (2, StoreState::Up)], 5);
        let changes = cluster.plan_lost(&BTreeSet::from([StoreId(2)]), 12);
        cluster.apply(&changes).unwrap();
        assert_eq!(cluster.members_version(), 13);
    }
}
