//! The latest entries of a log, in memory.

use super::convert::payload_of;
use bytes::Bytes;
use raft::eraftpb::Entry;
use std::collections::VecDeque;
use stele_types::Lsn;

/// Bytes of an entry beside its payload.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

/// Contiguous entries up to the last one of the log.
#[derive(Default)]
pub(crate) struct Tail {
    entries: VecDeque<Slot>,
    bytes: u64,
}

struct Slot {
    entry: Entry,
    /// Location of its payload once durable.
    at: Option<Lsn>,
}

impl Slot {
    fn bytes(&self) -> u64 {
        payload_of(&self.entry).len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

impl Tail {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first entry's index; 0 for none.
    pub fn first(&self) -> u64 {
        self.entries.front().map_or(0, |slot| slot.entry.index)
    }

    /// Returns the last entry's index and term.
    pub fn last(&self) -> Option<(u64, u64)> {
        self.entries.back().map(|slot| (slot.entry.index, slot.entry.term))
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Appends entries. The first may replace an existing one and all after it.
    pub fn extend(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        while self.entries.back().is_some_and(|slot| slot.entry.index >= first.index) {
            self.drop_back();
        }
        for entry in entries {
            let slot = Slot { entry: entry.clone(), at: None };
            self.bytes += slot.bytes();
            self.entries.push_back(slot);
        }
    }

    /// Returns an entry's term, and its location once durable.
    pub fn place(&self, index: u64) -> Option<(u64, Option<Lsn>)> {
        self.slot(index).map(|slot| (slot.entry.term, slot.at))
    }

    pub fn note_placed(&mut self, index: u64, term: u64, at: Lsn) {
        let first = self.first();
        let slot = index.checked_sub(first).and_then(|i| self.entries.get_mut(i as usize));
        if let Some(slot) = slot
            && slot.entry.term == term
        {
            slot.at = Some(at);
        }
    }

    /// Returns entries `low` to `high`, exclusive: at least one, then at most `bytes_max` bytes.
    pub fn range(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Entry> {
        let skip = low.saturating_sub(self.first()) as usize;
        let count = high.saturating_sub(low) as usize;
        let mut bytes = 0;
        let fits = |slot: &&Slot| {
            let first = bytes == 0;
            bytes += slot.bytes();
            first || bytes <= bytes_max
        };
        let chosen = self.entries.iter().skip(skip).take(count).take_while(fits);
        chosen.map(|slot| slot.entry.clone()).collect()
    }

    pub fn newest_first(&self, above: u64) -> impl Iterator<Item = &Bytes> {
        let newest = self.entries.iter().rev();
        newest.take_while(move |slot| slot.entry.index > above).map(|slot| payload_of(&slot.entry))
    }

    /// Drops durable entries up to `applied` while the tail takes more than `bytes_max`. Returns
    /// the index and term of the last one dropped.
    pub fn shrink(&mut self, bytes_max: u64, applied: u64) -> Option<(u64, u64)> {
        let mut gone = None;
        while self.bytes > bytes_max
            && let Some(slot) = self.entries.front()
            && slot.at.is_some()
            && slot.entry.index <= applied
        {
            gone = self.drop_front();
        }
        gone
    }

    /// Drops entries up to and including `index`.
    pub fn drop_through(&mut self, index: u64) {
        while self.entries.front().is_some_and(|slot| slot.entry.index <= index) {
            self.drop_front();
        }
    }

    fn slot(&self, index: u64) -> Option<&Slot> {
        self.entries.get(index.checked_sub(self.first())? as usize)
    }

    fn drop_front(&mut self) -> Option<(u64, u64)> {
        let slot = self.entries.pop_front()?;
        self.bytes -= slot.bytes();
        Some((slot.entry.index, slot.entry.term))
    }

    fn drop_back(&mut self) {
        if let Some(slot) = self.entries.pop_back() {
            self.bytes -= slot.bytes();
        }
    }
}
