//! Time without heartbeats, across changes of the placement leader.
//!
//! Heartbeat times are kept in memory. While a store is disconnected, the seconds without a
//! heartbeat are persisted, once a minute until it is down; when heartbeats resume, the record is
//! deleted. A new leader counts on from the record, so a change of leaders does not restart the
//! wait before lost replicas are rebuilt.
//!
//! Invariant: only monotonic clocks decide when a store counts as down. A leader with a wall clock that
//! jumped, or that differs from its predecessor's, counts no store as down earlier. The time since the last
//! record, and the time without a leader, are not counted.
//! Test: `the_time_without_heartbeats_does_not_follow_the_wall_clock_of_a_placement_leader`.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange};
use crate::store::{LastHeartbeat, Liveness, Store, StoreState};

/// Time after which the record of a disconnected store is written again.
const RECORD_INTERVAL_S: u64 = 60;

impl Cluster {
    /// Plans the records of stores that are disconnected, or connected again. Called periodically.
    pub fn plan_disconnections(&self, now: Millis) -> Vec<PairChange> {
        let former = self.former_silences.iter().map(|store| pairs::no_former_silence(*store));
        let stores = self.stores.values();
        former.chain(stores.filter_map(|store| self.plan_disconnection(store, now))).collect()
    }

    fn plan_disconnection(&self, store: &Store, now: Millis) -> Option<PairChange> {
        let written_s = self.disconnected_s.get(&store.id).copied();
        if store.state == StoreState::Tombstone {
            return written_s.map(|_| pairs::disconnected(store.id, None));
        }
        let disconnected_s = match store.last_heartbeat {
            LastHeartbeat::At(moment) => now.seconds_since(moment),
            LastHeartbeat::NotSince { loaded, disconnected_s } => {
                now.seconds_since(loaded).saturating_add(disconnected_s)
            }
        };
        if store.liveness(&self.config, now) == Liveness::Live {
            return written_s.map(|_| pairs::disconnected(store.id, None));
        }
        let is_due = match written_s {
            None => disconnected_s >= self.config.silent_after_seconds,
            Some(written_s) => {
                written_s < self.config.down_after_seconds
                    && disconnected_s >= written_s.saturating_add(RECORD_INTERVAL_S)
            }
        };
        is_due.then(|| pairs::disconnected(store.id, Some(disconnected_s)))
    }

    /// Adds persisted times without heartbeats to the stores' state at the start of a leader's
    /// term.
    pub(super) fn restore_disconnections(&mut self) {
        // bug placement.restart_down_timers: return;
        for (id, seconds) in &self.disconnected_s {
            // bug placement.silence_by_wall_clock: `*seconds` is `self.loaded_s.saturating_sub(*seconds)`
            if let Some(store) = self.stores.get_mut(id) {
                store.last_heartbeat =
                    LastHeartbeat::NotSince { loaded: self.loaded, disconnected_s: *seconds };
            }
        }
    }
}
