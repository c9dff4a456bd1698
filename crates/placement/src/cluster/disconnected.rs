//! How long stores have been silent, across leaders of the placement group.
//!
//! Moments of heartbeats live in memory. Only when a store falls silent the moment is written down,
//! once, and removed when it is heard of again: two small writes for each outage, none otherwise. A
//! new leader counts on from there, so that a change of leaders does not begin the wait before lost
//! replicas are rebuilt anew. Moments are unix seconds: clocks of nodes that differ make a store
//! count as down earlier or later by as much.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange};
use crate::store::{Heard, Liveness, Store, StoreState};
use stele_types::mutant;

impl Cluster {
    /// Stores that fell silent, or are heard of again, since that was last written down. Called now
    /// and then.
    pub fn plan_disconnections(&self, now: Millis, unix_seconds: u64) -> Vec<PairChange> {
        self.stores
            .values()
            .filter_map(|store| self.plan_silence(store, now, unix_seconds))
            .collect()
    }

    fn plan_silence(&self, store: &Store, now: Millis, unix_seconds: u64) -> Option<PairChange> {
        let is_written = self.silences.contains_key(&store.id);
        if store.state == StoreState::Tombstone {
            return is_written.then(|| pairs::silence(store.id, None));
        }
        let silent_s = match store.heard {
            Heard::At(moment) => now.seconds_since(moment),
            Heard::NotSince { loaded, .. } => now.seconds_since(loaded),
        };
        let is_live = store.liveness(&self.config, now) == Liveness::Live;
        match (is_live, is_written) {
            (true, true) => Some(pairs::silence(store.id, None)),
            (false, false) if silent_s >= self.config.silent_after_seconds => {
                let since_s = unix_seconds.saturating_sub(silent_s);
                Some(pairs::silence(store.id, Some(since_s)))
            }
            _ => None,
        }
    }

    /// At the beginning of a leader's term: what was written down by then is part of the silence.
    pub(super) fn count_silences_on(&mut self) {
        if mutant::active("placement.restart_down_timers") {
            return;
        }
        for (id, since_s) in &self.silences {
            if let Some(store) = self.stores.get_mut(id) {
                let silent_s = self.loaded_s.saturating_sub(*since_s);
                store.heard = Heard::NotSince { loaded: self.loaded, silent_s };
            }
        }
    }
}
