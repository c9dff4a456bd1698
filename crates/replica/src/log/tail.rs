//! The entries of a log that are not applied, in memory. The engine holds all earlier ones, with a
//! cache of the newest entries of the whole store.

use super::convert::payload_of;
use bytes::Bytes;
use raft::eraftpb::Entry;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_storage::effect_bytes;

/// Bytes of an entry beside its payload and the effects of its operations, here and in a window.
const ENTRY_OVERHEAD_BYTES: u64 = 256;
/// Bytes of an entry in a message beside its payload.
const MESSAGE_ENTRY_BYTES: u64 = 96;

/// Bytes of the tails of all regions of a store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tails(Arc<AtomicU64>);

impl Tails {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Contiguous entries up to the last one of the log.
pub(crate) struct Tail {
    /// Entries, with the bytes that count for each.
    entries: VecDeque<(Entry, u64)>,
    bytes: u64,
    /// Invariant: contains the bytes of the entries, until the tail is dropped.
    tails: Tails,
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the bytes of memory that an entry may need until it is applied: its payload, and its
/// operations as effects that readers see.
///
/// Invariant: operations and keys count. Those of small operations need many times the payload.
pub(crate) fn entry_bytes(payload: &Bytes) -> u64 {
    let effects = effect_bytes(payload);
    // bug replica.operations_uncounted: let effects = 0;
    payload.len() as u64 + effects + ENTRY_OVERHEAD_BYTES
}

impl Tail {
    pub(super) fn new(tails: Tails) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, tails }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first entry's index; 0 for none.
    pub(super) fn first(&self) -> u64 {
        self.entries.front().map_or(0, |(entry, _)| entry.index)
    }

    /// Returns the last entry's index and term.
    pub(super) fn last(&self) -> Option<(u64, u64)> {
        self.entries.back().map(|(entry, _)| (entry.index, entry.term))
    }

    pub(super) fn clear(&mut self) {
        while self.drop_front().is_some() {}
    }

    /// Appends entries. The first may replace an existing one and all after it.
    pub(super) fn extend(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        while self.entries.back().is_some_and(|(entry, _)| entry.index >= first.index) {
            self.drop_back();
        }
        for entry in entries {
            let bytes = entry_bytes(payload_of(entry));
            self.bytes += bytes;
            self.tails.0.fetch_add(bytes, Ordering::Relaxed);
            self.entries.push_back((entry.clone(), bytes));
        }
    }

    pub(super) fn term(&self, index: u64) -> Option<u64> {
        let place = index.checked_sub(self.first())?;
        self.entries.get(place as usize).map(|(entry, _)| entry.term)
    }

    /// Returns entries `low` to `high`, exclusive: at least one, then at most `bytes_max` bytes.
    pub(super) fn range(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Entry> {
        let skip = low.saturating_sub(self.first()) as usize;
        let count = high.saturating_sub(low) as usize;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let first = bytes == 0;
            bytes += payload_of(entry).len() as u64 + MESSAGE_ENTRY_BYTES;
            first || bytes <= bytes_max
        };
        let entries = self.entries.iter().map(|(entry, _)| entry);
        entries.skip(skip).take(count).take_while(fits).cloned().collect()
    }

    /// Returns the indexes and payloads from `index` on; none if the tail starts later.
    pub(super) fn iter_from(&self, index: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let skip = index.checked_sub(self.first()).map_or(self.entries.len(), |skip| skip as usize);
        self.entries.iter().skip(skip).map(|(entry, _)| (entry.index, payload_of(entry)))
    }

    pub(super) fn newest_first(&self, above: u64) -> impl Iterator<Item = &Bytes> {
        let newest = self.entries.iter().rev().map(|(entry, _)| entry);
        newest.take_while(move |entry| entry.index > above).map(payload_of)
    }

    /// Drops entries up to and including `index`. Returns the index and term of the last one
    /// dropped.
    pub(super) fn drop_through(&mut self, index: u64) -> Option<(u64, u64)> {
        let mut last = None;
        while self.entries.front().is_some_and(|(entry, _)| entry.index <= index) {
            last = self.drop_front();
        }
        last
    }

    fn drop_front(&mut self) -> Option<(u64, u64)> {
        let (entry, bytes) = self.entries.pop_front()?;
        self.note_dropped(bytes);
        Some((entry.index, entry.term))
    }

    fn drop_back(&mut self) {
        if let Some((_, bytes)) = self.entries.pop_back() {
            self.note_dropped(bytes);
        }
    }

    fn note_dropped(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.tails.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64, bytes: usize) -> Entry {
        Entry { index, term, data: vec![0; bytes].into(), ..Entry::default() }
    }

    #[test]
    fn the_tails_of_a_store_are_counted_together_until_they_are_dropped() {
        let tails = Tails::default();
        let (mut one, mut other) = (Tail::new(tails.clone()), Tail::new(tails.clone()));
        one.extend(&[entry(4, 1, 100), entry(5, 1, 100), entry(6, 1, 100)]);
        other.extend(&[entry(1, 1, 1000)]);
        assert_eq!(tails.bytes(), 1300 + 4 * ENTRY_OVERHEAD_BYTES);
        // A conflict replaces two entries.
        one.extend(&[entry(5, 2, 10)]);
        assert_eq!(tails.bytes(), 1110 + 3 * ENTRY_OVERHEAD_BYTES);
        assert_eq!(one.drop_through(4), Some((4, 1)));
        assert_eq!((one.first(), one.term(5), one.drop_through(4)), (5, Some(2), None));
        drop(other);
        assert_eq!(tails.bytes(), 10 + ENTRY_OVERHEAD_BYTES);
        one.clear();
        assert_eq!((tails.bytes(), one.is_empty()), (0, true));
    }
}
