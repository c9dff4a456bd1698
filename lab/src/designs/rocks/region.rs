//! Log and progress of one region, in memory and as stored with the entries.

use super::numbers::{Numbers, encode};
use std::path::Path;
use stele_storage::Progress;
use stele_types::{EntryRecord, Error, HardState, LogIndex, Mark, RegionId, Result, Term};

/// Content of a region's log, without the entries' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    pub truncated: (LogIndex, Term),
    pub last: LogIndex,
    /// Number of the region's log on this store; state of an earlier incarnation is void.
    pub incarnation: u64,
    pub hard_state: HardState,
    pub destroyed: bool,
    /// First index and term of each run of entries with the same term, ascending.
    runs: Vec<(LogIndex, Term)>,
    /// Applied index; not stored here.
    pub applied: LogIndex,
    /// Checkpointed index: no log is needed up to it; not stored here.
    pub checkpointed: LogIndex,
}

impl Region {
    pub(super) fn progress(&self) -> Progress {
        let last_term = self.term(self.last).unwrap_or_default();
        Progress {
            truncated: self.truncated,
            checkpointed: self.checkpointed,
            applied: self.applied,
            persisted: (self.last, last_term),
            hard_state: self.hard_state,
            destroyed: self.destroyed,
        }
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        if self.destroyed || index < self.truncated.0 || index > self.last {
            return None;
        }
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        let after = self.runs.partition_point(|(first, _)| *first <= index);
        self.runs.get(after.checked_sub(1)?).map(|(_, term)| *term)
    }

    /// Appends an entry. One at or below the last index replaces all entries from there on.
    pub(super) fn push(&mut self, record: &EntryRecord) -> Result<()> {
        let EntryRecord { region, index, term, .. } = *record;
        self.check_present(region)?;
        self.check_open(region, index)?;
        if index > self.last.next() {
            let last = self.last;
            return Err(Error::invalid(format!("region {region}: entry {index} after {last}")));
        }
        self.cut(index);
        if self.runs.last().is_none_or(|(_, known)| *known != term) {
            self.runs.push((index, term));
        }
        self.last = index;
        Ok(())
    }

    pub(super) fn mark(&mut self, region: RegionId, mark: &Mark) -> Result<()> {
        match *mark {
            Mark::Start(index, term) => self.start((index, term)),
            Mark::TruncatePrefix(index, term) => {
                self.check_present(region)?;
                let other = self.term(index).is_some_and(|known| known != term);
                if index > self.checkpointed || other {
                    return Err(Error::invalid(format!(
                        "region {region}: prefix {index} is not checkpointed"
                    )));
                }
                self.truncate(index);
            }
            Mark::TruncateSuffix(index) => {
                self.check_present(region)?;
                self.check_open(region, index)?;
                self.cut(index);
            }
            Mark::Destroy => {
                self.cut(self.truncated.0.next());
                self.destroyed = true;
            }
        }
        Ok(())
    }

    pub(super) fn start(&mut self, at: (LogIndex, Term)) {
        let hard_state = if self.destroyed { HardState::default() } else { self.hard_state };
        let incarnation = self.incarnation + 1;
        let (last, applied, checkpointed) = (at.0, at.0, at.0);
        *self = Self {
            truncated: at,
            last,
            incarnation,
            hard_state,
            applied,
            checkpointed,
            ..Self::default()
        };
    }

    /// Drops entries up to `index`, at most up to the checkpointed index.
    pub(super) fn truncate(&mut self, index: LogIndex) {
        let index = index.min(self.checkpointed);
        let Some(term) = self.term(index).filter(|_| index > self.truncated.0) else { return };
        self.truncated = (index, term);
        let after = self.runs.partition_point(|(first, _)| *first <= index.next());
        self.runs.drain(..after.saturating_sub(1));
        if index == self.last {
            self.runs.clear();
        }
    }

    fn cut(&mut self, from: LogIndex) {
        if from <= self.last {
            self.runs.retain(|(first, _)| *first < from);
            self.last = LogIndex(from.0.saturating_sub(1));
        }
    }

    pub(super) fn check_present(&self, region: RegionId) -> Result<()> {
        if !self.destroyed {
            return Ok(());
        }
        Err(Error::invalid(format!("region {region} was destroyed on this store")))
    }

    /// Fails for an applied entry: it is committed, so it must not be replaced.
    fn check_open(&self, region: RegionId, index: LogIndex) -> Result<()> {
        if index > self.applied {
            return Ok(());
        }
        let applied = self.applied;
        Err(Error::invalid(format!(
            "region {region}: entry {index} is final; {applied} are applied"
        )))
    }

    /// Takes over what was applied and checkpointed while this state was written. A later incarnation
    /// keeps its own.
    pub(super) fn keep_progress(&mut self, now: &Self) {
        if now.incarnation == self.incarnation {
            self.applied = self.applied.max(now.applied);
            self.checkpointed = self.checkpointed.max(now.checkpointed);
        }
    }

    /// ```text
    /// state := truncated:u64 term:u64 last:u64 incarnation:u64 term:u64 vote:u64 commit:u64 destroyed:u64
    ///          (first:u64 term:u64)*                                     (all big-endian)
    /// ```
    pub(super) fn encode(&self) -> Vec<u8> {
        let HardState { term, vote, commit } = self.hard_state;
        let (index, index_term) = self.truncated;
        let destroyed = u64::from(self.destroyed);
        let head = [
            index.0,
            index_term.0,
            self.last.0,
            self.incarnation,
            term.0,
            vote,
            commit.0,
            destroyed,
        ];
        let runs = self.runs.iter().flat_map(|(first, term)| [first.0, term.0]);
        encode(&head.into_iter().chain(runs).collect::<Vec<u64>>())
    }

    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let mut numbers = Numbers::new(bytes, path);
        let mut next = || numbers.u64();
        let truncated = (LogIndex(next()?), Term(next()?));
        let (last, incarnation) = (LogIndex(next()?), next()?);
        let hard_state =
            HardState { term: Term(next()?), vote: next()?, commit: LogIndex(next()?) };
        let destroyed = next()? != 0;
        let mut runs = Vec::new();
        while !numbers.remaining().is_empty() {
            runs.push((LogIndex(numbers.u64()?), Term(numbers.u64()?)));
        }
        let (applied, checkpointed) = (truncated.0, truncated.0);
        Ok(Self {
            truncated,
            last,
            incarnation,
            hard_state,
            destroyed,
            runs,
            applied,
            checkpointed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn entry(index: u64, term: u64) -> EntryRecord {
        let (region, is_command, payload) = (RegionId(1), false, Bytes::new());
        EntryRecord { region, term: Term(term), index: LogIndex(index), is_command, payload }
    }

    fn terms(region: &Region) -> Vec<Option<u64>> {
        (0..8).map(|index| region.term(LogIndex(index)).map(|term| term.0)).collect()
    }

    #[test]
    fn terms_follow_replacement_truncation_and_the_stored_form() {
        let mut region = Region::default();
        for (index, term) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (4, 3), (5, 3), (6, 4)] {
            region.push(&entry(index, term)).unwrap();
        }
        let all = [0, 1, 1, 2, 3, 3, 4].map(Some);
        assert_eq!(terms(&region)[..7], all);
        assert_eq!(terms(&region)[7], None);
        region.applied = LogIndex(4);
        region.checkpointed = LogIndex(4);
        region.truncate(LogIndex(9));
        assert_eq!(terms(&region)[3..7], [None, Some(3), Some(3), Some(4)]);
        assert!(region.push(&entry(4, 9)).is_err(), "an applied entry is final");
        let stored = Region::decode(&region.encode(), Path::new("state")).unwrap();
        assert_eq!(stored, region);
        region.applied = LogIndex(6);
        region.checkpointed = LogIndex(6);
        region.truncate(LogIndex(6));
        assert_eq!(region.term(LogIndex(6)), Some(Term(4)));
        region.push(&entry(7, 4)).unwrap();
        assert_eq!(region.term(LogIndex(7)), Some(Term(4)));
    }
}
