//! The log of one region.

use super::RegionLog;
use crate::format::{CarriedRegion, EntryItem};
use std::collections::VecDeque;
use stele_types::{FileId, HardState, LogIndex, Lsn, Mark, RegionId, Term};

/// Top bit of `Place::bytes`: the entry is a command. Payloads are below 2 GiB.
const IS_COMMAND: u32 = 1 << 31;

/// Position of an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub term: Term,
    pub at: Lsn,
    bytes: u32,
    pub crc: u32,
}

impl Place {
    pub(crate) fn new(term: Term, at: Lsn, bytes: u32, crc: u32, is_command: bool) -> Self {
        Self { term, at, bytes: bytes | if is_command { IS_COMMAND } else { 0 }, crc }
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.bytes & !IS_COMMAND
    }

    pub(crate) fn is_command(&self) -> bool {
        self.bytes & IS_COMMAND != 0
    }
}

/// Invariant: positions ascend with the index; an entry appended again brings all later entries
/// along.
#[derive(Debug, Default)]
pub(crate) struct Region {
    pub hard_state: HardState,
    pub destroyed: bool,
    pub truncated: (LogIndex, Term),
    /// Index and term before `places[0]`. Above `truncated` only during recovery that began after
    /// entries which it has not yet found to be truncated or appended again.
    base: (LogIndex, Term),
    places: VecDeque<Place>,
    payload_bytes: u64,
    reset: Lsn,
}

impl Region {
    pub(crate) fn carried(from: &CarriedRegion) -> Self {
        Self {
            hard_state: from.hard_state,
            destroyed: from.destroyed,
            truncated: from.truncated,
            base: from.last,
            reset: from.reset,
            ..Self::default()
        }
    }

    pub(crate) fn carry(&self, region: RegionId) -> CarriedRegion {
        CarriedRegion {
            region,
            destroyed: self.destroyed,
            hard_state: self.hard_state,
            truncated: self.truncated,
            last: self.last(),
            reset: self.reset,
        }
    }

    pub(crate) fn log(&self) -> RegionLog {
        let (last, last_term) = self.last();
        RegionLog {
            first: self.truncated.0.next(),
            last,
            last_term,
            truncated: self.truncated,
            hard_state: self.hard_state,
            destroyed: self.destroyed,
        }
    }

    pub(crate) fn last(&self) -> (LogIndex, Term) {
        match self.places.back() {
            Some(place) => (LogIndex(self.base.0.0 + self.places.len() as u64), place.term),
            None => self.base,
        }
    }

    pub(crate) fn place(&self, index: LogIndex) -> Option<&Place> {
        let at = index.0.checked_sub(self.base.0.0)?.checked_sub(1)?;
        self.places.get(usize::try_from(at).ok()?)
    }

    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        self.place(index).map(|place| place.term)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(crate) fn first_file(&self) -> Option<FileId> {
        self.places.front().map(|place| place.at.file)
    }

    /// Returns the position of the first entry above `index`. No later entry lies before it.
    pub(crate) fn first_above(&self, index: LogIndex) -> Option<Lsn> {
        let skipped = index.0.saturating_sub(self.base.0.0);
        self.places.get(usize::try_from(skipped).ok()?).map(|place| place.at)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.places.capacity() * size_of::<Place>()
    }

    /// Returns the entries above the truncated index that recovery did not find.
    pub(crate) fn gap(&self) -> Option<(LogIndex, LogIndex)> {
        (self.base.0 > self.truncated.0).then(|| (self.truncated.0.next(), self.base.0))
    }

    pub(crate) fn push(&mut self, entry: &EntryItem<'_>) -> Result<(), String> {
        let (index, last) = (entry.index, self.last().0);
        // No entry has the largest index, because no index follows it.
        if index <= self.truncated.0 || index > last.next() || index.0 == u64::MAX {
            return Err(format!(
                "entry {index} of region {} does not continue its log, which is ({}, {last}]",
                entry.region, self.truncated.0
            ));
        }
        self.cut_from(index);
        let place = Place::new(entry.term, entry.at, entry.bytes, entry.crc, entry.is_command);
        self.places.push_back(place);
        self.payload_bytes += u64::from(entry.bytes);
        Ok(())
    }

    pub(crate) fn mark(&mut self, mark: &Mark, at: Lsn) -> Result<(), String> {
        match *mark {
            Mark::Start(index, term) => {
                self.clear(at);
                // The vote and commit index from before the destruction do not apply to the new
                // replica.
                // bug log.hard_state_kept: never
                if self.destroyed {
                    self.hard_state = HardState::default();
                }
                (self.truncated, self.base) = ((index, term), (index, term));
                self.destroyed = false;
            }
            Mark::Destroy => {
                self.clear(at);
                self.base = self.truncated;
                self.destroyed = true;
            }
            Mark::TruncatePrefix(index, term) => self.truncate_prefix(index, term)?,
            Mark::TruncateSuffix(from) if from <= self.truncated.0 => {
                return Err(format!("entries from {from} on are already truncated"));
            }
            Mark::TruncateSuffix(from) => self.cut_from(from),
        }
        Ok(())
    }

    fn truncate_prefix(&mut self, index: LogIndex, term: Term) -> Result<(), String> {
        if index <= self.truncated.0 {
            return Ok(());
        }
        if index > self.last().0 {
            return Err(format!(
                "entries up to {index} cannot be truncated: the last entry is {}",
                self.last().0
            ));
        }
        self.truncated = (index, term);
        if index >= self.base.0 {
            let dropped = (index.0 - self.base.0.0) as usize;
            let bytes: u64 = self.places.drain(..dropped).map(|p| u64::from(p.bytes())).sum();
            self.payload_bytes -= bytes;
            self.base = (index, term);
            self.shrink_places();
        }
        Ok(())
    }

    fn cut_from(&mut self, index: LogIndex) {
        if index > self.last().0 {
            return;
        }
        let keep = index.0.saturating_sub(self.base.0.0).saturating_sub(1) as usize;
        let bytes: u64 = self.places.drain(keep..).map(|p| u64::from(p.bytes())).sum();
        self.payload_bytes -= bytes;
        if index <= self.base.0 {
            let before = LogIndex(index.0.saturating_sub(1));
            let known = before == self.truncated.0;
            self.base = (before, if known { self.truncated.1 } else { Term(0) });
        }
    }

    fn clear(&mut self, at: Lsn) {
        self.places = VecDeque::new();
        self.payload_bytes = 0;
        self.reset = at;
    }

    fn shrink_places(&mut self) {
        const SLACK: usize = 64;
        if self.places.capacity() > 4 * self.places.len() + SLACK {
            self.places.shrink_to(2 * self.places.len());
        }
    }

    pub(crate) fn reset(&self) -> Lsn {
        self.reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Content;

    fn entry(index: u64) -> EntryItem<'static> {
        EntryItem {
            region: RegionId(1),
            term: Term(1),
            index: LogIndex(index),
            is_command: false,
            at: Lsn::new(FileId(1), 512),
            bytes: 0,
            crc: 0,
            content: Content::Payload(b""),
        }
    }

    #[test]
    fn a_log_that_claims_the_last_index_of_all_takes_no_more() {
        let last = (LogIndex(u64::MAX), Term(9));
        let carried = CarriedRegion { region: RegionId(1), last, ..CarriedRegion::default() };
        let mut region = Region::carried(&carried);
        assert!(region.push(&entry(u64::MAX)).is_err());
        assert_eq!(region.last(), last);
        assert_eq!(region.log().first, LogIndex(1));
        region.mark(&Mark::TruncateSuffix(LogIndex(u64::MAX)), Lsn::default()).unwrap();
        region.push(&entry(u64::MAX - 1)).unwrap();
        assert_eq!(region.last().0, LogIndex(u64::MAX - 1));
    }
}
