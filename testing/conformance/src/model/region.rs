//! One region's log and progress in the model.

use std::collections::BTreeMap;
use stele_storage::Progress;
use stele_types::{
    CommittedEntry, EntryRecord, Error, HardState, LogIndex, Mark, RegionId, Result, Term,
};

/// Reference semantics of a region's log: the effect of each record, and which are refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Region {
    pub(super) truncated: (LogIndex, Term),
    pub(super) checkpointed: LogIndex,
    pub(super) applied: LogIndex,
    pub(super) hard_state: HardState,
    pub(super) destroyed: bool,
    /// Each entry with its place in the order of appends over all regions.
    entries: BTreeMap<LogIndex, (u64, CommittedEntry)>,
}

impl Region {
    pub(super) fn progress(&self) -> Progress {
        Progress {
            truncated: self.truncated,
            checkpointed: self.checkpointed,
            applied: self.applied,
            persisted: self.persisted(),
            hard_state: self.hard_state,
            destroyed: self.destroyed,
        }
    }

    pub(super) fn persisted(&self) -> (LogIndex, Term) {
        self.entries
            .last_key_value()
            .map_or(self.truncated, |(&index, (_, entry))| (index, entry.term))
    }

    pub(super) fn term(&self, index: LogIndex) -> Option<Term> {
        if index == self.truncated.0 && !self.destroyed {
            return Some(self.truncated.1);
        }
        self.entry(index).map(|entry| entry.term)
    }

    pub(super) fn entry(&self, index: LogIndex) -> Option<&CommittedEntry> {
        self.entries.get(&index).map(|(_, entry)| entry)
    }

    /// Returns entries not applied yet, up to and including `last`, with their place in the log.
    pub(super) fn unapplied_upto(
        &self,
        last: LogIndex,
    ) -> impl Iterator<Item = &(u64, CommittedEntry)> {
        let applied = self.applied;
        self.entries.values().filter(move |(_, it)| it.index > applied && it.index <= last)
    }

    /// Appends one entry. If its index is at most the last one, it replaces the suffix from there.
    pub(super) fn push(&mut self, record: &EntryRecord, at: u64) -> Result<()> {
        let (region, index) = (record.region, record.index);
        self.check_not_destroyed(region)?;
        self.check_not_applied(region, index)?;
        let last = self.persisted().0;
        if index > last.next() {
            return Err(Error::invalid(format!("region {region}: entry {index} after {last}")));
        }
        self.entries.split_off(&index);
        let EntryRecord { term, is_command, ref payload, .. } = *record;
        let entry = CommittedEntry { term, index, is_command, payload: payload.clone() };
        self.entries.insert(index, (at, entry));
        Ok(())
    }

    pub(super) fn mark(&mut self, region: RegionId, mark: &Mark) -> Result<()> {
        match *mark {
            // A region that returns to this store starts a new incarnation: nothing of its earlier
            // log is readable.
            Mark::Start(index, term) => self.start(index, term),
            Mark::TruncatePrefix(index, term) => {
                self.check_not_destroyed(region)?;
                if index > self.checkpointed || self.term(index).is_some_and(|t| t != term) {
                    return Err(Error::invalid(format!(
                        "region {region}: prefix {index} is not checkpointed"
                    )));
                }
                self.truncate(index);
            }
            Mark::TruncateSuffix(index) => {
                self.check_not_destroyed(region)?;
                self.check_not_applied(region, index)?;
                self.entries.split_off(&index);
            }
            Mark::Destroy => {
                self.entries.clear();
                self.destroyed = true;
            }
        }
        Ok(())
    }

    pub(super) fn start(&mut self, index: LogIndex, term: Term) {
        let hard_state = if self.destroyed { HardState::default() } else { self.hard_state };
        *self = Self {
            truncated: (index, term),
            checkpointed: index,
            applied: index,
            hard_state,
            ..Self::default()
        };
    }

    /// Truncates up to `index`. Invariant: truncated ≤ checkpointed.
    pub(super) fn truncate(&mut self, index: LogIndex) {
        let index = index.min(self.checkpointed);
        if let Some(term) = self.entry(index).map(|entry| entry.term) {
            self.truncated = (index, term);
            self.entries = self.entries.split_off(&index.next());
        }
    }

    pub(super) fn check_not_destroyed(&self, region: RegionId) -> Result<()> {
        if !self.destroyed {
            return Ok(());
        }
        Err(Error::invalid(format!("region {region} was destroyed on this store")))
    }

    /// Fails for an applied entry: it is committed, so nothing may replace or truncate it.
    fn check_not_applied(&self, region: RegionId, index: LogIndex) -> Result<()> {
        if index > self.applied {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "region {region}: entry {index} is final; {} are applied",
            self.applied
        )))
    }
}
