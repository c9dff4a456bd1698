//! Stores that are nearly full: they must lose data before they refuse writes.

use super::Cluster;
use crate::Millis;
use crate::operator::tracker::Operators;
use crate::store::{Store, StoreState};
use std::collections::BTreeMap;
use stele_types::StoreId;

/// Fill, in percent, from which a store counts as nearly full.
const NEARLY_FULL_PERCENT: u128 = 95;
/// Fill, in percent, below which it no longer does.
const NO_LONGER_FULL_PERCENT: u128 = 92;

impl Store {
    /// Returns the bytes that the store must keep and those that it may hold. A node of an earlier
    /// version reports neither: then all used space counts, with garbage.
    pub fn fill(&self) -> (u64, u64) {
        let report = &self.report;
        match report.usable_bytes {
            0 => (report.used_bytes, self.capacity_bytes),
            usable_bytes => (report.live_bytes, usable_bytes),
        }
    }
}

impl Cluster {
    /// Whether the store is nearly full, as of the last round.
    pub fn is_nearly_full(&self, store: StoreId) -> bool {
        self.nearly_full.contains(&store)
    }

    /// Brings what depends on time up to date. Called at the start of each round.
    pub fn begin_round(&mut self, operators: &Operators, now: Millis) {
        self.note_lost(now);
        let coming = self.bytes_coming(operators);
        self.note_fills(&coming);
    }

    /// Returns the bytes on the way to each store: the whole size of each region until the store has
    /// a replica. From then on the store's own bytes grow: bytes that count twice would make a small
    /// store nearly full for the time of the copy, and the region would leave again.
    pub(crate) fn bytes_coming(&self, operators: &Operators) -> BTreeMap<StoreId, u64> {
        let mut out = BTreeMap::new();
        for operator in operators.running() {
            let Some(info) = self.regions.get(operator.region) else { continue };
            let counts = |store: &StoreId| {
                // bug placement.coming_bytes_ignored: `info.region.peer_on(*store).is_none()` is `false`
                info.region.peer_on(*store).is_none()
            };
            for store in operator.receivers().filter(counts) {
                let bytes: &mut u64 = out.entry(store).or_default();
                *bytes = bytes.saturating_add(info.size_bytes);
            }
        }
        out
    }

    /// Records which stores are nearly full. `coming`: bytes on the way to each store.
    ///
    /// Invariant: between the two bounds a store stays what it was. Otherwise data would return as
    /// soon as it has left.
    fn note_fills(&mut self, coming: &BTreeMap<StoreId, u64>) {
        for store in self.stores.values() {
            let was_nearly_full = self.nearly_full.contains(&store.id);
            let (held, usable_bytes) = store.fill();
            let held = u128::from(held) + u128::from(coming.get(&store.id).copied().unwrap_or(0));
            let percent = match was_nearly_full {
                // bug placement.nearly_full_at_one_bound: `NO_LONGER_FULL_PERCENT` is `NEARLY_FULL_PERCENT`
                true => NO_LONGER_FULL_PERCENT,
                false => NEARLY_FULL_PERCENT,
            };
            let is_nearly_full = usable_bytes > 0
                && store.state != StoreState::Tombstone
                && held * 100 >= u128::from(usable_bytes) * percent;
            match is_nearly_full {
                true => self.nearly_full.insert(store.id),
                false => self.nearly_full.remove(&store.id),
            };
        }
    }
}

#[cfg(test)]
mod tests;
