//! The latest entries of a log, in memory.

use super::convert::payload_of;
use bytes::Bytes;
use raft::eraftpb::Entry;
use std::collections::VecDeque;

/// Bytes of an entry beside its payload.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

/// Contiguous entries up to the last one of the log.
#[derive(Default)]
pub(crate) struct Tail {
    entries: VecDeque<Entry>,
    bytes: u64,
}

fn bytes_of(entry: &Entry) -> u64 {
    payload_of(entry).len() as u64 + ENTRY_OVERHEAD_BYTES
}

impl Tail {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first entry's index; 0 for none.
    pub fn first(&self) -> u64 {
        self.entries.front().map_or(0, |entry| entry.index)
    }

    /// Returns the last entry's index and term.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.entries.back().map(|entry| (entry.index, entry.term))
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Appends entries. The first may replace an existing one and all after it.
    pub fn extend(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        while self.entries.back().is_some_and(|entry| entry.index >= first.index) {
            self.drop_back();
        }
        for entry in entries {
            self.bytes += bytes_of(entry);
            self.entries.push_back(entry.clone());
        }
    }

    /// Returns an entry's term.
    pub fn term(&self, index: u64) -> Option<u64> {
        let place = index.checked_sub(self.first())?;
        self.entries.get(place as usize).map(|entry| entry.term)
    }

    /// Returns entries `low` to `high`, exclusive: at least one, then at most `bytes_max` bytes.
    pub fn range(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Entry> {
        let skip = low.saturating_sub(self.first()) as usize;
        let count = high.saturating_sub(low) as usize;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let first = bytes == 0;
            bytes += bytes_of(entry);
            first || bytes <= bytes_max
        };
        self.entries.iter().skip(skip).take(count).take_while(fits).cloned().collect()
    }

    pub fn newest_first(&self, above: u64) -> impl Iterator<Item = &Bytes> {
        let newest = self.entries.iter().rev();
        newest.take_while(move |entry| entry.index > above).map(payload_of)
    }

    /// Drops entries up to `applied`, which are durable, while the tail takes more than `bytes_max`. Returns
    /// the index and term of the last one dropped.
    pub fn shrink(&mut self, bytes_max: u64, applied: u64) -> Option<(u64, u64)> {
        let mut gone = None;
        while self.bytes > bytes_max
            && let Some(entry) = self.entries.front()
            && entry.index <= applied
        {
            gone = self.drop_front();
        }
        gone
    }

    /// Drops entries up to and including `index`.
    pub fn drop_through(&mut self, index: u64) {
        while self.entries.front().is_some_and(|entry| entry.index <= index) {
            self.drop_front();
        }
    }

    fn drop_front(&mut self) -> Option<(u64, u64)> {
        let entry = self.entries.pop_front()?;
        self.bytes -= bytes_of(&entry);
        Some((entry.index, entry.term))
    }

    fn drop_back(&mut self) {
        if let Some(entry) = self.entries.pop_back() {
            self.bytes -= bytes_of(&entry);
        }
    }
}
