//! Speed classes of all stores, across changes of the placement leader.
//!
//! The classes are kept in memory and persisted when they change. A change needs windows of two
//! seconds at least, so that writes are few.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange};
use crate::speed::record::SpeedRecord;
use crate::speed::{SpeedClass, SpeedState, Window};
use crate::store::{StoreReport, StoreState};
use std::collections::BTreeMap;
use stele_types::StoreId;

#[derive(Clone, Debug, Default)]
pub(super) struct Speeds {
    states: BTreeMap<StoreId, SpeedState>,
    persisted: BTreeMap<StoreId, SpeedRecord>,
    medians: [SpeedClass; 2],
}

impl Speeds {
    pub(super) fn fold(&mut self, store: StoreId, record: Option<SpeedRecord>) {
        match record {
            Some(record) => self.persisted.insert(store, record),
            None => self.persisted.remove(&store),
        };
    }

    pub(super) fn forget(&mut self, store: StoreId) {
        if self.states.remove(&store).is_some() {
            self.note_medians();
        }
    }

    fn note_medians(&mut self) {
        self.medians = [|state: &SpeedState| state.class, |state: &SpeedState| state.data_class]
            .map(|class| {
                let mut all: Vec<SpeedClass> = self.states.values().map(class).collect();
                all.sort_unstable();
                let middle = all.len().saturating_sub(1) / 2;
                all.get(middle).copied().unwrap_or_default()
            });
    }
}

impl Cluster {
    /// Returns the classes of a store; `None` while its speed is unknown.
    pub fn speed(&self, store: StoreId) -> Option<&SpeedState> {
        self.speeds.states.get(&store)
    }

    /// Returns the class by which leaders are placed. A store of unknown speed has the median class
    /// of the others, and thus neither attracts nor repels.
    pub fn class_of(&self, store: StoreId) -> SpeedClass {
        let [class, _] = self.speeds.medians;
        self.speed(store).map_or(class, |speed| speed.class)
    }

    /// Returns the class by which data is placed: it follows [`Cluster::class_of`] when that has
    /// lasted.
    pub fn data_class_of(&self, store: StoreId) -> SpeedClass {
        let [_, data_class] = self.speeds.medians;
        self.speed(store).map_or(data_class, |speed| speed.data_class)
    }

    /// Records the speed in a member's report. Returns whether a class changed.
    pub(super) fn note_speed(&mut self, report: &StoreReport, now: Millis) -> bool {
        let config = &self.config;
        let known = self.speeds.states.get_mut(&report.id);
        let held = known.as_ref().map(|state| state.class);
        let Some(window) = Window::of(report, config.speed_op_bytes, held) else { return false };
        let data_after_millis = config.slow_data_after_seconds.saturating_mul(1000);
        let is_changed = match known {
            Some(state) => {
                let before = (state.class, state.data_class);
                state.note(window, data_after_millis, now);
                before != (state.class, state.data_class)
            }
            None => {
                let mut state = SpeedState::new(window.class, window.is_measured);
                state.note(window, data_after_millis, now);
                self.speeds.states.insert(report.id, state);
                true
            }
        };
        if is_changed {
            self.speeds.note_medians();
        }
        is_changed
    }

    pub(crate) fn take_measurements(&mut self, stores: &[StoreId], now: Millis) -> Vec<StoreId> {
        let mut due = Vec::new();
        for store in stores {
            let state = self.speeds.states.get_mut(store);
            due.extend(state.is_some_and(|state| state.take_measurement(now)).then_some(*store));
        }
        due
    }

    /// Plans the records of classes that changed since the last call. Called periodically.
    pub fn plan_speeds(&self, now: Millis, unix_seconds: u64) -> Vec<PairChange> {
        let is_member = |store: StoreId| {
            self.store(store).is_some_and(|store| store.state != StoreState::Tombstone)
        };
        let gone = self.speeds.persisted.keys().filter(|store| !is_member(**store));
        let gone = gone.map(|store| pairs::speed(*store, None));
        let changed = self.speeds.states.iter().filter_map(|(store, state)| {
            let new = SpeedRecord::of(state, now, unix_seconds);
            let known = self.speeds.persisted.get(store);
            let is_written = known.is_some_and(|known| known.is_like(&new));
            (!is_written && is_member(*store)).then(|| pairs::speed(*store, Some(&new)))
        });
        gone.chain(changed).collect()
    }

    /// Takes over the persisted classes at the start of a leader's term.
    /// Invariant: a change of leaders forgets no class. Otherwise a slow store would get leaders
    /// back, and the wait of its data would start again.
    /// Test: `classes_are_written_when_they_change_and_the_next_leader_knows_them_at_once`.
    pub(super) fn restore_speeds(&mut self) {
        // bug placement.class_lost_with_leader: return;
        for (store, record) in &self.speeds.persisted {
            if self.stores.get(store).is_some_and(|store| store.state != StoreState::Tombstone) {
                self.speeds.states.insert(*store, record.state(self.loaded, self.loaded_s));
            }
        }
        self.speeds.note_medians();
    }
}

#[cfg(test)]
mod tests;
