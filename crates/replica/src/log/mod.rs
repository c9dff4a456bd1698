//! A region's log as Raft sees it: the engine's durable entries, and in memory those that are not
//! applied, durable or not.

mod convert;
mod tail;

use bytes::Bytes;
pub(crate) use convert::{committed, entry, from_raft, payload_of, to_raft};
use raft::eraftpb::{ConfState, Entry, HardState as RaftHardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_storage::{Progress, StorageEngine};
use stele_types::{Error, HardState, LogIndex, RegionId, Result, Term};
use tail::Tail;
pub(crate) use tail::{Tails, entry_bytes};

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
    /// Applied index and members, as of a snapshot taken now.
    applied: u64,
    conf: ConfState,
    /// Error of a failed read. Raft panics if a read that cannot wait fails, so it gets no entries
    /// instead, and the poll returns this error.
    failure: RefCell<Option<Error>>,
}

/// State from which a region's Raft node continues.
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

    /// Returns the state of an empty log that starts after an entry.
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
            self.tail.clear();
            let before = first.index.saturating_sub(1);
            let term = self.engine_term(before).unwrap_or_default();
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

    /// Returns the last entry's index and term.
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

    /// Returns whether entries are in memory.
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

    /// Truncates the log up to and including this entry.
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
        (index > self.truncated.0 && index <= self.last().0).then(|| self.engine_term(index))?
    }

    /// Removes and returns the error of a failed read by Raft.
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

/// Marks of the bytes written up to an index.
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
}
