//! Applying entries: puts key and locator into the memtable. Value bytes do not move.

use super::Shared;
use std::collections::BTreeMap;
use stele_index::Checkpoint;
use stele_log::Log;
use stele_types::{
    Appended, Command, CommittedEntry, Error, LogBatch, LogIndex, Lsn, Mark, Op, Record, RegionId,
    Result, Seq, Term, ValueRef,
};

/// Position of the state machine. One lock protects it, for the bookkeeping of appends and for
/// applying.
#[derive(Debug, Default)]
pub(crate) struct ApplyState {
    seq: Seq,
    applied: BTreeMap<RegionId, (LogIndex, Term)>,
    /// Durable entries that are not applied yet, with their locations. Invariant: a checkpoint
    /// never passes them.
    waiting: BTreeMap<RegionId, BTreeMap<LogIndex, Lsn>>,
    /// The log's end when the last checkpoint was taken.
    frozen_at: Lsn,
    log_bytes_since_freeze: u64,
}

impl ApplyState {
    /// Starts from a checkpoint.
    pub fn resume(checkpoint: &Checkpoint) -> Self {
        Self {
            applied: checkpoint.applied.clone(),
            frozen_at: checkpoint.replay_from,
            ..Self::default()
        }
    }

    /// Returns the index up to which `region` is applied; `None` if nothing was.
    pub fn applied(&self, region: RegionId) -> Option<LogIndex> {
        self.applied.get(&region).map(|(index, _)| *index)
    }

    /// Removes a region from the next checkpoint.
    pub fn remove_region(&mut self, region: RegionId) -> Option<(RegionId, (LogIndex, Term))> {
        self.applied.remove(&region).map(|at| (region, at))
    }

    /// Reverts [`ApplyState::remove_region`].
    pub fn restore_regions(&mut self, forgotten: Vec<(RegionId, (LogIndex, Term))>) {
        self.applied.extend(forgotten);
    }

    /// Records the locations of a durable batch's entries until they are applied.
    pub fn note_appended(&mut self, batch: &LogBatch, appended: &Appended) {
        let mut payloads = appended.payloads.iter();
        for record in &batch.records {
            match record {
                Record::Entry(entry) => {
                    let waiting = self.waiting.entry(entry.region).or_default();
                    // An entry replaces all earlier ones at its index and after it.
                    waiting.split_off(&entry.index);
                    if let Some(&at) = payloads.next() {
                        waiting.insert(entry.index, at);
                        self.log_bytes_since_freeze += entry.payload.len() as u64;
                    }
                }
                Record::Mark(region, Mark::TruncateSuffix(from)) => {
                    if let Some(waiting) = self.waiting.get_mut(region) {
                        waiting.split_off(from);
                    }
                }
                Record::Mark(region, Mark::Start(index, term)) => {
                    self.waiting.remove(region);
                    self.applied.insert(*region, (*index, *term));
                }
                Record::Mark(region, Mark::Destroy) => {
                    self.waiting.remove(region);
                    self.applied.remove(region);
                }
                Record::HardState(..) | Record::Mark(_, Mark::TruncatePrefix(..)) => {}
            }
        }
    }

    /// Records a durable entry, found at open, that is not committed yet.
    pub fn note_waiting(&mut self, region: RegionId, index: LogIndex, at: Lsn) {
        self.waiting.entry(region).or_default().insert(index, at);
    }

    /// Counts a region as applied up to this entry, after which its log starts.
    pub fn start_after(&mut self, region: RegionId, at: (LogIndex, Term)) {
        let applied = self.applied.entry(region).or_insert(at);
        if applied.0 < at.0 {
            *applied = at;
        }
    }

    /// Counts replayed bytes, so that a long replay is not repeated at the next crash.
    pub fn note_replayed(&mut self, bytes: u64) {
        self.log_bytes_since_freeze += bytes;
    }

    /// Creates a checkpoint of what is applied; its replay starts at `replay_from`.
    pub fn checkpoint_at(&self, replay_from: Lsn) -> Checkpoint {
        Checkpoint { replay_from, applied: self.applied.clone() }
    }

    /// Applies the next entries of `region`; returns the bytes of their keys and values.
    pub fn apply(
        &mut self,
        shared: &Shared,
        region: RegionId,
        entries: &[CommittedEntry],
    ) -> Result<u64> {
        let mut user_bytes = 0;
        for entry in entries {
            self.check_order(region, entry)?;
            if entry.is_command {
                let command = Command::parse(entry.payload.clone())?;
                for op in command.ops() {
                    user_bytes += self.apply_op(shared, &op, entry.at);
                }
            }
            self.finish_entry(region, entry.index, entry.term);
        }
        shared.index.publish(self.seq);
        self.freeze_when_due(shared)?;
        Ok(user_bytes)
    }

    /// Marks an entry applied: its operations are in the memtable.
    pub fn finish_entry(&mut self, region: RegionId, index: LogIndex, term: Term) {
        self.applied.insert(region, (index, term));
        if let Some(waiting) = self.waiting.get_mut(&region) {
            waiting.remove(&index);
        }
    }

    /// Starts a new memtable when the active one is full, or when the log to replay is long.
    pub fn freeze_when_due(&mut self, shared: &Shared) -> Result<()> {
        let full = shared.index.memtable_bytes() >= shared.options.memtable_bytes_max;
        let long = self.log_bytes_since_freeze >= shared.options.checkpoint_log_bytes_max;
        if full || long {
            self.freeze(shared)?;
        }
        Ok(())
    }

    /// Freezes the active memtable together with the checkpoint its flush will establish:
    /// everything applied so far, and a replay that starts at the oldest unapplied entry. Returns
    /// whether there was anything to freeze.
    pub fn freeze(&mut self, shared: &Shared) -> Result<bool> {
        let head = shared.log.head();
        if shared.index.memtable_is_empty() && head == self.frozen_at {
            return Ok(false);
        }
        let waiting = self.waiting.values().flat_map(|entries| entries.values().next());
        let mut replay_from = waiting.copied().min().map_or(head, |oldest| oldest.min(head));
        if stele_types::mutant::active("engine.checkpoint_past_waiting") {
            replay_from = head;
        }
        shared.index.freeze(self.checkpoint_at(replay_from));
        self.frozen_at = head;
        self.log_bytes_since_freeze = 0;
        Ok(true)
    }

    /// Returns the next sequence number.
    pub fn next_seq(&mut self) -> Seq {
        self.seq = self.seq.next();
        self.seq
    }

    /// Makes all puts so far visible.
    pub fn publish(&self, shared: &Shared) {
        shared.index.publish(self.seq);
    }

    fn check_order(&self, region: RegionId, entry: &CommittedEntry) -> Result<()> {
        let next = self.applied.get(&region).map_or(LogIndex(1), |(index, _)| index.next());
        if entry.index != next {
            let index = entry.index;
            return Err(Error::invalid(format!(
                "region {region}: entry {index} is not the next to apply, {next} is"
            )));
        }
        // Invariant: applied ≤ persisted on this store; the index must not refer to bytes that are
        // not.
        let persisted = self.waiting.get(&region).and_then(|w| w.get(&entry.index));
        if persisted != Some(&entry.at) && !stele_types::mutant::active("engine.apply_unpersisted")
        {
            let index = entry.index;
            return Err(Error::invalid(format!(
                "region {region}: entry {index} is not persisted at {} on this store",
                entry.at
            )));
        }
        Ok(())
    }

    fn apply_op(&mut self, shared: &Shared, op: &Op<'_>, payload: Lsn) -> u64 {
        let seq = self.next_seq();
        match op {
            Op::Put { key, value, expires_at_s, .. } => {
                let stored = match op.locator(payload) {
                    Some(at) if value.len() > shared.options.inline_value_bytes_max => {
                        ValueRef::At(at)
                    }
                    _ => ValueRef::Inline(bytes::Bytes::copy_from_slice(value)),
                };
                shared.index.put(seq, key, stored, *expires_at_s);
                (key.len() + value.len()) as u64
            }
            Op::Delete { key } => {
                shared.index.delete(seq, key);
                key.len() as u64
            }
            Op::DeleteRange { start, end } => {
                shared.index.delete_range(seq, start, end);
                (start.len() + end.len()) as u64
            }
        }
    }
}

/// Returns the record that truncates a region's log up to `index`, if that entry's term is known.
pub(crate) fn truncation(log: &Log, region: RegionId, index: LogIndex) -> Option<Record> {
    let term = log.term(region, index)?;
    Some(Record::Mark(region, Mark::TruncatePrefix(index, term)))
}
