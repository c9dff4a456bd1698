//! Reads the committed entries of a region in order: from Raft's log what is in it, and from sealed
//! segments what Raft has dropped.

use crate::format::{EntryItem, Item};
use crate::region::Place;
use crate::segment::{damaged_payloads, scan};
use crate::shared::Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_types::{CommittedEntry, Error, FileId, Locator, LogIndex, Lsn, Mark, RegionId, Result};

/// Committed entries of which the places are kept between two reads: 40 bytes each.
const PLACES_MAX: usize = 1 << 14;

/// Result of one read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum History {
    /// Consecutive committed entries, at least one.
    Entries(Vec<CommittedEntry>),
    /// No further entry is known to be committed.
    UpToDate,
    /// The next entry is no longer in this store: its segment is gone, or this replica began with a
    /// snapshot after it.
    TooOld,
}

/// Reader of one region's log in one store.
///
/// Invariant: it returns each committed entry once, in the order of the indexes, and no other. Segments
/// hold entries that were replaced before they were committed, and entries that were appended again.
/// Tests: `a_reader_returns_what_was_committed_whatever_was_replaced`,
/// `a_reader_returns_an_entry_once_that_lies_twice`.
#[derive(Debug)]
pub struct HistoryReader {
    shared: Arc<Shared>,
    region: RegionId,
    next: LogIndex,
    /// Places of the next committed entries.
    found: VecDeque<Place>,
    /// Segment where they were found.
    at: Option<FileId>,
}

impl HistoryReader {
    pub(crate) fn new(shared: Arc<Shared>, region: RegionId, next: LogIndex) -> Self {
        Self { shared, region, next, found: VecDeque::new(), at: None }
    }

    /// Returns the index of the next entry.
    pub fn next_index(&self) -> LogIndex {
        self.next
    }

    /// Returns the next entries: one, then more up to `bytes_max` of payloads. `committed`: index up to
    /// which the caller knows the entries of Raft's log to be committed.
    ///
    /// Fails with `Corrupt` where a payload is damaged: another replica has it.
    pub fn read(&mut self, committed: LogIndex, bytes_max: usize) -> Result<History> {
        loop {
            if !self.found.is_empty() {
                match self.read_found(bytes_max) {
                    // Its segment left the window meanwhile.
                    Err(Error::Missing { .. }) => return Ok(History::TooOld),
                    read => return read.map(History::Entries),
                }
            }
            let Some(log) = self.shared.state.read().regions.get(self.region).map(|r| r.log())
            else {
                return Ok(History::TooOld);
            };
            // What a region that left had and did not truncate is in segments alone.
            if self.next > log.truncated.0 && !log.destroyed {
                let end = committed.min(log.last).next();
                if self.next >= end {
                    return Ok(History::UpToDate);
                }
                match self.shared.entries(self.region, self.next, end, bytes_max) {
                    Ok(entries) if !entries.is_empty() => {
                        self.next = entries.last().map_or(self.next, |last| last.index.next());
                        return Ok(History::Entries(entries));
                    }
                    // Raft dropped it meanwhile.
                    Ok(_) | Err(Error::Invalid(_)) => continue,
                    Err(error) => return Err(error),
                }
            }
            if !self.find(log.truncated.0)? {
                return Ok(History::TooOld);
            }
        }
    }

    fn read_found(&mut self, bytes_max: usize) -> Result<Vec<CommittedEntry>> {
        let mut bytes = 0;
        let fits = |place: &&Place| {
            bytes += place.bytes() as usize;
            bytes <= bytes_max
        };
        let count = self.found.iter().take_while(fits).count().max(1);
        let places: Vec<Place> = self.found.iter().take(count).copied().collect();
        let locators: Vec<Locator> = places.iter().map(locator).collect();
        let payloads = self.shared.get_many(&locators)?;
        let mut entries = Vec::with_capacity(count);
        for (place, payload) in places.iter().zip(payloads) {
            let (term, is_command) = (place.term, place.is_command());
            entries.push(CommittedEntry { term, index: self.next, is_command, payload });
            self.next = self.next.next();
        }
        self.found.drain(..count);
        Ok(entries)
    }

    /// Finds the places of the next committed entries in segments. `truncated`: entries up to there are
    /// known to be committed. Returns `false` if the next entry is not there.
    fn find(&mut self, truncated: LogIndex) -> Result<bool> {
        let segments = self.shared.catalog.read().segments();
        let mut walk = Walk::new(self.region, self.next);
        let from = self.at.unwrap_or_default();
        for file in segments.into_iter().filter(|file| *file >= from) {
            if walk.places.is_empty() && !self.may_hold_next(file)? {
                continue;
            }
            let end = self.shared.end_of(file);
            let mut take = |item: &Item<'_>| {
                walk.take(item);
                Ok(())
            };
            let any = &mut damaged_payloads::any;
            match scan::of_segment(&self.shared.dir, file, end, any, &mut take) {
                // It left the window meanwhile.
                Err(_) if self.shared.catalog.read().get(file).is_none() => return Ok(false),
                read => read?,
            }
            if walk.has_committed() {
                break;
            }
        }
        // All of the log was read: what is left of replaced entries was replaced in turn.
        if !walk.has_committed() {
            walk.committed = truncated;
        }
        self.found = walk.into_committed();
        if let Some(last) = self.found.back() {
            self.at = Some(last.at.file);
        }
        Ok(!self.found.is_empty())
    }

    fn may_hold_next(&self, file: FileId) -> Result<bool> {
        let ends = self.shared.ends_of(file)?;
        Ok(ends.is_none_or(|ends| ends.get(&self.region).is_some_and(|end| *end >= self.next)))
    }
}

fn locator(place: &Place) -> Locator {
    let Lsn { file, offset } = place.at;
    Locator { file, offset, length: place.bytes(), crc: place.crc }
}

/// A walk over segments in order, for the entries of a region from an index on.
#[derive(Debug)]
struct Walk {
    region: RegionId,
    first: LogIndex,
    /// Of consecutive entries from `first` on.
    places: VecDeque<Place>,
    /// Last index that the records so far tell to be committed.
    ///
    /// Invariant: an entry is returned only after a later record tells that it is committed. Until then a
    /// later entry may replace it.
    /// Test: `a_reader_returns_what_was_committed_whatever_was_replaced`.
    committed: LogIndex,
}

impl Walk {
    fn new(region: RegionId, first: LogIndex) -> Self {
        Self { region, first, places: VecDeque::new(), committed: LogIndex(0) }
    }

    fn next(&self) -> LogIndex {
        LogIndex(self.first.0 + self.places.len() as u64)
    }

    /// Returns whether as many committed entries are known as are kept: none of them is replaced later.
    fn is_full(&self) -> bool {
        self.places.len() >= PLACES_MAX && self.committed.next() >= self.next()
    }

    fn has_committed(&self) -> bool {
        !self.places.is_empty() && self.committed >= self.first
    }

    fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Entry(entry) if entry.region == self.region => self.take_entry(entry),
            Item::HardState(region, state) if *region == self.region => {
                // bug log.history_uncommitted: let state = &stele_types::HardState { commit: LogIndex(u64::MAX - 1), ..*state };
                self.committed = self.committed.max(state.commit);
            }
            Item::Mark(region, mark, _) if *region == self.region => self.take_mark(mark),
            _ => {}
        }
    }

    fn take_entry(&mut self, entry: &EntryItem<'_>) {
        if entry.index < self.first || self.is_full() {
            return;
        }
        self.cut_from(entry.index);
        // After a gap nothing continues: the missing entries are not in later segments.
        if entry.index == self.next() {
            let (at, bytes, crc) = (entry.at, entry.bytes, entry.crc);
            self.places.push_back(Place::new(entry.term, at, bytes, crc, entry.is_command));
        }
    }

    fn take_mark(&mut self, mark: &Mark) {
        match *mark {
            Mark::TruncatePrefix(index, _) => self.committed = self.committed.max(index),
            Mark::TruncateSuffix(from) if !self.is_full() => self.cut_from(from),
            Mark::TruncateSuffix(_) => {}
            // The replica begins again: what it had before and did not commit is nowhere else.
            Mark::Start(..) | Mark::Destroy => self.cut_from(self.committed.next()),
        }
    }

    fn cut_from(&mut self, index: LogIndex) {
        let kept = index.0.saturating_sub(self.first.0);
        self.places.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
    }

    fn into_committed(mut self) -> VecDeque<Place> {
        self.cut_from(self.committed.next());
        self.places
    }
}
