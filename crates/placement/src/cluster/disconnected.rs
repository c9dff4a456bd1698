//! Time without heartbeats, across changes of the placement leader.
//!
//! Heartbeat times are kept in memory. When a store becomes disconnected, the time of its last
//! heartbeat is persisted once; when heartbeats resume, the record is deleted: two small writes for
//! each outage, none otherwise. A new leader counts on from the record, so a change of leaders does
//! not restart the wait before lost replicas are rebuilt. Times are Unix seconds: if the clocks of
//! two nodes differ, a store counts as down earlier or later by that difference.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange};
use crate::store::{LastHeartbeat, Liveness, Store, StoreState};
use stele_types::mutant;

impl Cluster {
    /// Plans the records of stores that became disconnected, or connected again, since the last
    /// call. Called periodically.
    pub fn plan_disconnections(&self, now: Millis, unix_seconds: u64) -> Vec<PairChange> {
        self.stores
            .values()
            .filter_map(|store| self.plan_disconnection(store, now, unix_seconds))
            .collect()
    }

    fn plan_disconnection(
        &self,
        store: &Store,
        now: Millis,
        unix_seconds: u64,
    ) -> Option<PairChange> {
        let is_written = self.disconnected_since.contains_key(&store.id);
        if store.state == StoreState::Tombstone {
            return is_written.then(|| pairs::silence(store.id, None));
        }
        let disconnected_s = match store.last_heartbeat {
            LastHeartbeat::At(moment) => now.seconds_since(moment),
            LastHeartbeat::NotSince { loaded, .. } => now.seconds_since(loaded),
        };
        let is_live = store.liveness(&self.config, now) == Liveness::Live;
        match (is_live, is_written) {
            (true, true) => Some(pairs::silence(store.id, None)),
            (false, false) if disconnected_s >= self.config.silent_after_seconds => {
                let since_s = unix_seconds.saturating_sub(disconnected_s);
                Some(pairs::silence(store.id, Some(since_s)))
            }
            _ => None,
        }
    }

    /// Adds persisted times without heartbeats to the stores' state at the start of a leader's
    /// term.
    pub(super) fn restore_disconnections(&mut self) {
        if mutant::active("placement.restart_down_timers") {
            return;
        }
        for (id, since_s) in &self.disconnected_since {
            if let Some(store) = self.stores.get_mut(id) {
                let disconnected_s = self.loaded_s.saturating_sub(*since_s);
                store.last_heartbeat =
                    LastHeartbeat::NotSince { loaded: self.loaded, disconnected_s };
            }
        }
    }
}
