//! Journal of the store, region 0: pairs that must change together with a region's records. Its
//! entries are committed once durable: there is one replica, and the commit index is in the same
//! batch.

use crate::pipeline::GroupCommit;
use bytes::Bytes;
use std::collections::VecDeque;
use stele_storage::StorageEngine;
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, HardState, LogBatch, LogIndex, Record, RegionId,
    Result, Term,
};

pub(crate) const JOURNAL: RegionId = RegionId(0);
const TERM: Term = Term(1);

#[derive(Default)]
pub(crate) struct Journal {
    last: LogIndex,
    /// Appended entries that are not applied.
    waiting: VecDeque<EntryRecord>,
}

impl Journal {
    pub(crate) fn open<E: StorageEngine>(engine: &E) -> Result<Self> {
        let Some(progress) = engine.progress(JOURNAL) else { return Ok(Self::default()) };
        let (last, _) = progress.persisted;
        let from = progress.applied.next();
        if from <= last {
            let entries = engine.entries(JOURNAL, from, last.next(), usize::MAX)?;
            engine.apply(JOURNAL, &entries)?;
        }
        Ok(Self { last, waiting: VecDeque::new() })
    }

    /// Adds pairs to the batch being filled. They are applied when it is durable.
    pub(crate) fn put(
        &mut self,
        batches: &mut GroupCommit,
        pairs: &[(Bytes, Bytes)],
    ) -> Result<()> {
        for record in self.records(pairs)? {
            batches.push(record);
        }
        Ok(())
    }

    fn records(&mut self, pairs: &[(Bytes, Bytes)]) -> Result<[Record; 2]> {
        let mut command = CommandBuilder::new();
        for (key, value) in pairs {
            command.put(key, value, 0)?;
        }
        self.last = self.last.next();
        let entry = EntryRecord {
            region: JOURNAL,
            term: TERM,
            index: self.last,
            is_command: true,
            payload: command.build().bytes().clone(),
        };
        self.waiting.push_back(entry.clone());
        let hard_state = HardState { term: TERM, vote: 0, commit: self.last };
        Ok([Record::Entry(entry), Record::HardState(JOURNAL, hard_state)])
    }

    /// Applies the oldest waiting entry, which is durable.
    pub(crate) fn apply_durable<E: StorageEngine>(&mut self, engine: &E) -> Result<()> {
        let Some(entry) = self.waiting.pop_front() else { return Ok(()) };
        let EntryRecord { term, index, is_command, payload, .. } = entry;
        engine.apply(JOURNAL, &[CommittedEntry { term, index, is_command, payload }])
    }
}

/// Writes pairs through the journal at once, with `more` records in the same batch. For a store
/// without a running core.
pub(crate) fn write_now<E: StorageEngine>(
    engine: &E,
    pairs: &[(Bytes, Bytes)],
    more: Vec<Record>,
) -> Result<()> {
    let mut journal = Journal::open(engine)?;
    let mut records = journal.records(pairs)?.to_vec();
    records.extend(more);
    engine.append(&LogBatch { records })?;
    journal.apply_durable(engine)
}
