//! Stores of which the directory was moved away, deleted or replaced while they ran.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_types::StoreId;

/// Last states of stores in which they were displaced.
#[derive(Debug)]
pub(super) struct Displaced<T>(Mutex<BTreeMap<StoreId, Arc<T>>>);

impl<T> Default for Displaced<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Displaced<T> {
    /// Takes the state of a store for a heartbeat. Returns whether the store must stop: it was displaced
    /// in two states in a row. A state that is shown again, because the device does not answer, counts
    /// once.
    pub(super) fn note(&self, store: StoreId, state: &Arc<T>, is_displaced: bool) -> bool {
        let mut seen = self.0.lock();
        if !is_displaced {
            seen.remove(&store);
            return false;
        }
        let before = seen.insert(store, state.clone());
        // bug server.displaced_at_once: `before.is_some_and(|before| !Arc::ptr_eq(&before, state))` is `true`
        before.is_some_and(|before| !Arc::ptr_eq(&before, state))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_stops_when_it_was_displaced_at_two_heartbeats_in_a_row() {
        let displaced = Displaced::default();
        let (one, two) = (StoreId(1), StoreId(2));
        let state = || Arc::new(());
        let first = state();
        assert!(!displaced.note(one, &first, true));
        assert!(!displaced.note(one, &first, true), "the same state is no second one");
        assert!(!displaced.note(two, &state(), true), "another store");
        assert!(!displaced.note(one, &state(), false), "it is back");
        assert!(!displaced.note(one, &state(), true));
        assert!(displaced.note(one, &state(), true));
    }
}
