//! A region's log as Raft sees it: the engine's durable entries, with a cache of the newest entries
//! of the whole store, and in memory those that are not applied, durable or not.

mod convert;

pub(crate) use convert::{committed, entry, from_raft, payload_of, to_raft};

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState as RaftHardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_storage::{Progress, StorageEngine, effect_bytes};
use stele_types::{Error, HardState, LogIndex, RegionId, Result, Term};

/// Log of one region.
///
/// Invariants: the tail's entries are contiguous and end at the log's last entry; an entry in the
/// tail is read from there, so an entry that a conflict replaced is never read from the engine.
pub(crate) struct RegionLog<E: StorageEngine> {
    engine: Arc<E>,
    region: RegionId,
    truncated: (u64, u64),
    /// Index and term of the last entry if the tail is empty.
    stored_last: (u64, u64),
    tail: Tail,
    sizes: Sizes,
    initial: RaftState,
    applied: u64,
    conf: ConfState,
    /// Error of a failed read. Raft panics if a read that cannot wait fails, so it gets no entries
    /// instead, and the poll returns this error.
    failure: RefCell<Option<Error>>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Start {
    pub truncated: (LogIndex, Term),
    pub last: (LogIndex, Term),
    pub applied: LogIndex,
    pub hard_state: HardState,
}

impl Start {
    /// Returns the state found at open. A crash between an installed snapshot and its hard state
    /// leaves a hard state older than the log: what is applied or truncated is committed, in a term
    /// that was seen. A commit index beyond the end of a torn log is lowered to that end.
    pub(crate) fn of(progress: &Progress) -> Self {
        let (last, last_term) = progress.persisted;
        let found = progress.hard_state;
        let commit = found.commit.max(progress.applied).max(progress.truncated.0).min(last);
        let mut hard_state = HardState { commit, ..found };
        if last_term > found.term {
            hard_state = HardState { term: last_term, vote: 0, commit };
        }
        Self {
            truncated: progress.truncated,
            last: progress.persisted,
            applied: progress.applied.max(progress.truncated.0).min(commit),
            hard_state,
        }
    }

    pub(crate) fn after(index: LogIndex, term: Term) -> Self {
        Self {
            truncated: (index, term),
            last: (index, term),
            applied: index,
            hard_state: HardState { term, vote: 0, commit: index },
        }
    }
}

impl<E: StorageEngine> RegionLog<E> {
    pub(crate) fn new(
        engine: Arc<E>,
        region: RegionId,
        start: &Start,
        conf: ConfState,
        tails: Tails,
    ) -> Self {
        let mut hard_state = RaftHardState::default();
        hard_state.term = start.hard_state.term.0;
        hard_state.vote = start.hard_state.vote;
        hard_state.commit = start.hard_state.commit.0;
        Self {
            engine,
            region,
            truncated: (start.truncated.0.0, start.truncated.1.0),
            stored_last: (start.last.0.0, start.last.1.0),
            tail: Tail::new(tails),
            sizes: Sizes::default(),
            initial: RaftState::new(hard_state, conf.clone()),
            applied: start.applied.0,
            conf,
            failure: RefCell::new(None),
        }
    }

    /// Appends a ready's entries. From the first one on they replace existing ones.
    pub(crate) fn extend(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        if self.tail.is_empty() || first.index < self.tail.first() {
            let before = first.index.saturating_sub(1);
            let term = self.term_of(before).unwrap_or_default();
            self.tail.clear();
            self.stored_last = (before, term);
        }
        self.tail.extend(entries);
        for entry in entries {
            self.sizes.add(entry.index, payload_of(entry).len() as u64);
        }
    }

    /// Returns the approximate bytes of the entries above `index`, counted since this log was
    /// opened.
    pub(crate) fn bytes_above(&self, index: u64) -> u64 {
        self.sizes.bytes_above(index)
    }

    /// Returns the first index above which the entries take at most about `bytes`.
    pub(crate) fn index_with_bytes_above(&self, bytes: u64) -> u64 {
        self.sizes.index_with_bytes_above(bytes)
    }

    pub(crate) fn last(&self) -> (u64, u64) {
        self.tail.last().unwrap_or(self.stored_last)
    }

    /// Returns the index and term of the entry before the first one.
    pub(crate) fn truncated(&self) -> (u64, u64) {
        self.truncated
    }

    pub(crate) fn newest_first(&self, above: u64) -> impl Iterator<Item = &Bytes> {
        self.tail.newest_first(above)
    }

    /// Returns the entries in memory from `index` on; none if an earlier one of them is not in memory.
    pub(crate) fn tail_from(&self, index: LogIndex) -> impl Iterator<Item = (LogIndex, &Bytes)> {
        self.tail.iter_from(index.0).map(|(index, payload)| (LogIndex(index), payload))
    }

    /// Returns the bytes of the entries in memory, with their effects for readers.
    pub(crate) fn tail_bytes(&self) -> u64 {
        self.tail.bytes()
    }

    pub(crate) fn has_tail(&self) -> bool {
        !self.tail.is_empty()
    }

    /// Records the applied index, and the members if they changed. Drops applied entries, which are
    /// durable, from memory.
    pub(crate) fn note_applied(&mut self, index: u64, conf: Option<ConfState>) {
        self.applied = index;
        if let Some(last) = self.tail.drop_through(index)
            && self.tail.is_empty()
        {
            self.stored_last = last;
        }
        if let Some(conf) = conf {
            self.conf = conf;
        }
    }

    pub(crate) fn truncate(&mut self, index: u64, term: u64) {
        self.truncated = (index, term);
        self.tail.drop_through(index);
        self.sizes.drop_through(index);
        if self.tail.is_empty() && self.stored_last.0 < index {
            self.stored_last = (index, term);
        }
    }

    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        if let Some(term) = self.tail.term(index) {
            return Some(term);
        }
        if index <= self.truncated.0 || index > self.last().0 {
            return None;
        }
        // Mostly the entry before the next one.
        if index == self.stored_last.0 { Some(self.stored_last.1) } else { self.engine_term(index) }
    }

    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.failure.borrow_mut().take()
    }

    fn engine_term(&self, index: u64) -> Option<u64> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        self.engine.term(self.region, LogIndex(index)).map(|term| term.0)
    }

    fn stored(&self, low: u64, high: u64, bytes_max: usize) -> Result<Vec<Entry>> {
        let found = self.engine.entries(self.region, LogIndex(low), LogIndex(high), bytes_max)?;
        Ok(found
            .into_iter()
            .map(|found| entry(found.term.0, found.index.0, found.payload))
            .collect())
    }
}

impl<E: StorageEngine> Storage for RegionLog<E> {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.truncated.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        if !self.tail.is_empty() && low >= self.tail.first() {
            return Ok(self.tail.range(low, high, bytes_max));
        }
        let stored_high = if self.tail.is_empty() { high } else { high.min(self.tail.first()) };
        match self.stored(low, stored_high, usize::try_from(bytes_max).unwrap_or(usize::MAX)) {
            Ok(entries) => Ok(entries),
            // Entries for a follower, which gets a snapshot instead. Only here Raft accepts an
            // error.
            // bug replica.stop_on_damaged_entry: never
            Err(failure) if failure.is_damage() && context.can_async() => {
                Err(raft::Error::Store(StorageError::Compacted))
            }
            Err(failure) => {
                self.failure.borrow_mut().get_or_insert(failure);
                Ok(Vec::new())
            }
        }
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.truncated.0 {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.term_of(index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last().0)
    }

    /// Returns only a snapshot's metadata: its pairs are streamed from a view that is taken when
    /// the message is sent.
    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        let unavailable = || raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        let term = self.term_of(self.applied).ok_or_else(unavailable)?;
        if self.applied < request_index || self.applied == 0 {
            return Err(unavailable());
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        metadata.index = self.applied;
        metadata.term = term;
        metadata.set_conf_state(self.conf.clone());
        Ok(snapshot)
    }
}

// Approximate bytes of a log above an index: what a lagging follower pins.

/// Least bytes between two marks.
const MARK_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Sizes {
    /// (index, bytes written up to and including it), ascending.
    marks: VecDeque<(u64, u64)>,
    written: u64,
}

impl Sizes {
    /// Adds an entry. One at an index that exists replaces that entry and all after it.
    pub(crate) fn add(&mut self, index: u64, bytes: u64) {
        while self.marks.back().is_some_and(|(marked, _)| *marked >= index) {
            self.marks.pop_back();
        }
        self.written += bytes;
        let marked = self.marks.back().map_or(0, |(_, bytes)| *bytes);
        if self.marks.is_empty() || self.written - marked >= MARK_BYTES {
            self.marks.push_back((index, self.written));
        }
    }

    pub(crate) fn bytes_above(&self, index: u64) -> u64 {
        let at = self.marks.partition_point(|(marked, _)| *marked <= index);
        let below = at.checked_sub(1).and_then(|at| self.marks.get(at)).map(|(_, bytes)| *bytes);
        let first = || self.marks.front().map_or(self.written, |(_, bytes)| *bytes);
        self.written - below.unwrap_or_else(first)
    }

    pub(crate) fn index_with_bytes_above(&self, bytes: u64) -> u64 {
        let fits = |mark: &&(u64, u64)| self.written - mark.1 <= bytes;
        match self.marks.iter().find(fits) {
            Some((index, _)) if self.marks.front().is_none_or(|first| first.0 != *index) => *index,
            _ => 0,
        }
    }

    pub(crate) fn drop_through(&mut self, index: u64) {
        while self.marks.get(1).is_some_and(|(marked, _)| *marked <= index) {
            self.marks.pop_front();
        }
    }
}

/// Bytes of an entry beside its payload and the effects of its operations, here and in a window.
const ENTRY_OVERHEAD_BYTES: u64 = 256;
/// Bytes of an entry in a message beside its payload.
const MESSAGE_ENTRY_BYTES: u64 = 96;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tails(Arc<AtomicU64>);

impl Tails {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

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
    fn new(tails: Tails) -> Self {
        Self { entries: VecDeque::new(), bytes: 0, tails }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the first entry's index; 0 for none.
    fn first(&self) -> u64 {
        self.entries.front().map_or(0, |(entry, _)| entry.index)
    }

    fn last(&self) -> Option<(u64, u64)> {
        self.entries.back().map(|(entry, _)| (entry.index, entry.term))
    }

    fn clear(&mut self) {
        while self.drop_front().is_some() {}
    }

    /// Appends entries. The first may replace an existing one and all after it.
    fn extend(&mut self, entries: &[Entry]) {
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

    fn term(&self, index: u64) -> Option<u64> {
        let place = index.checked_sub(self.first())?;
        self.entries.get(place as usize).map(|(entry, _)| entry.term)
    }

    /// Returns entries `low` to `high`, exclusive: at least one, then at most `bytes_max` bytes.
    fn range(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Entry> {
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
    fn iter_from(&self, index: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let skip = index.checked_sub(self.first()).map_or(self.entries.len(), |skip| skip as usize);
        self.entries.iter().skip(skip).map(|(entry, _)| (entry.index, payload_of(entry)))
    }

    fn newest_first(&self, above: u64) -> impl Iterator<Item = &Bytes> {
        let newest = self.entries.iter().rev().map(|(entry, _)| entry);
        newest.take_while(move |entry| entry.index > above).map(payload_of)
    }

    /// Drops entries up to and including `index`. Returns the index and term of the last one
    /// dropped.
    fn drop_through(&mut self, index: u64) -> Option<(u64, u64)> {
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

    #[test]
    fn what_lies_above_an_index_is_known_to_a_mark() {
        let mut sizes = Sizes::default();
        (1..=100).for_each(|index| sizes.add(index, 256 << 10));
        let above = sizes.bytes_above(60);
        assert!((39 << 18..=44 << 18).contains(&above), "{above}");
        let index = sizes.index_with_bytes_above(10 << 20);
        assert!((60..=64).contains(&index), "{index}");
        assert_eq!(sizes.index_with_bytes_above(1 << 40), 0);
        sizes.drop_through(60);
        assert_eq!(sizes.bytes_above(60), above);
        // A conflict replaces the end of the log.
        sizes.add(90, 256 << 10);
        assert!(sizes.bytes_above(60) >= above);
    }

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
