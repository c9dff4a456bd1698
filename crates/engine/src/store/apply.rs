//! Applying entries: puts key and locator into the memtable. Value bytes do not move.

use super::Shared;
use std::collections::BTreeMap;
use stele_index::{Checkpoint, KeyWrite, ValueSlice};
use stele_log::Log;
use stele_types::{
    Command, CommittedEntry, Error, LogBatch, LogIndex, Lsn, Mark, Op, Record, RegionId, Result,
    Seq, Term,
};

/// Puts and deletes of an apply that wait in a list until the index writes them together.
const WRITES_MAX: usize = 128;

/// Position of the state machine. One lock protects it while entries are applied and while a
/// checkpoint is taken. No append holds it.
#[derive(Debug, Default)]
pub(crate) struct ApplyState {
    seq: Seq,
    applied: BTreeMap<RegionId, (LogIndex, Term)>,
    /// Regions of which the batch being appended ends an incarnation, with the applied entry that
    /// was removed.
    ending: BTreeMap<RegionId, Option<(LogIndex, Term)>>,
    /// The log's end when the last checkpoint was taken.
    frozen_at: Lsn,
    /// Bytes of payloads that the log had appended when the last checkpoint was taken.
    frozen_log_bytes: u64,
    /// Bytes replayed at open since the last checkpoint.
    replayed_bytes: u64,
}

impl ApplyState {
    pub(crate) fn resume(checkpoint: &Checkpoint) -> Self {
        Self {
            applied: checkpoint.applied.clone(),
            frozen_at: checkpoint.replay_from,
            ..Self::default()
        }
    }

    /// Returns the index up to which `region` is applied; `None` if nothing was.
    pub(crate) fn applied(&self, region: RegionId) -> Option<LogIndex> {
        self.applied.get(&region).map(|(index, _)| *index)
    }

    /// Begins to end the incarnation of a region: it applies nothing until the batch that ends it
    /// is appended. Returns its applied index.
    pub(crate) fn begin_ending(&mut self, region: RegionId) -> Option<LogIndex> {
        self.ending.entry(region).or_default();
        self.applied(region)
    }

    pub(crate) fn remove_region(&mut self, region: RegionId) {
        let removed = self.applied.remove(&region);
        let ending = self.ending.entry(region).or_default();
        *ending = ending.or(removed);
    }

    /// Reverts [`ApplyState::begin_ending`] and [`ApplyState::remove_region`]: the batch was not
    /// appended.
    pub(crate) fn restore_ending(&mut self) {
        for (region, removed) in std::mem::take(&mut self.ending) {
            if let Some(removed) = removed {
                self.applied.insert(region, removed);
            }
        }
    }

    /// Records the marks of a batch that the log has published.
    ///
    /// Invariant: a checkpoint taken between the publication and this call is correct after a crash.
    /// It lacks the regions of which the batch ends an incarnation: [`ApplyState::remove_region`]
    /// came before, and an ending region applies nothing. So a destroyed region is in no checkpoint.
    /// For a region that the checkpoint lacks, opening takes the truncated entry of its log as
    /// applied: before the mark that is the entry applied last, up to which the log was truncated,
    /// and after a start it is the entry of the mark. Entries above it are replayed: the checkpoint
    /// counts all of them as unapplied. A start at the applied end of a log changes nothing here.
    pub(crate) fn note_marks(&mut self, batch: &LogBatch) {
        for record in &batch.records {
            match record {
                Record::Mark(region, Mark::Start(index, term)) => {
                    self.applied.insert(*region, (*index, *term));
                    self.ending.remove(region);
                }
                Record::Mark(region, Mark::Destroy) => {
                    self.applied.remove(region);
                    self.ending.remove(region);
                }
                _ => {}
            }
        }
    }

    /// Counts a region as applied up to this entry, after which its log starts.
    pub(crate) fn start_after(&mut self, region: RegionId, at: (LogIndex, Term)) {
        let applied = self.applied.entry(region).or_insert(at);
        if applied.0 < at.0 {
            *applied = at;
        }
    }

    /// Counts replayed bytes, so that a long replay is not repeated at the next crash.
    pub(crate) fn note_replayed(&mut self, bytes: u64) {
        self.replayed_bytes += bytes;
    }

    /// Creates a checkpoint of what is applied; its replay starts at `replay_from`.
    pub(crate) fn checkpoint_at(&self, replay_from: Lsn) -> Checkpoint {
        Checkpoint { replay_from, applied: self.applied.clone() }
    }

    /// Applies the next entries of some regions, each region once; returns the bytes of their keys and
    /// values. Applies none of them when one is malformed. The memtable may exceed its bound by the entries
    /// of one call.
    pub(crate) fn apply(
        &mut self,
        shared: &Shared,
        runs: &[(RegionId, &[CommittedEntry])],
    ) -> Result<u64> {
        let mut parsed = Vec::with_capacity(runs.iter().map(|(_, entries)| entries.len()).sum());
        for (region, entries) in runs {
            self.check_next(*region, entries)?;
            // Invariant: applied ≤ persisted on this store, because the index must not refer to bytes that
            // are not durable. The log knows only positions of durable entries. An unapplied entry keeps
            // its position until it is applied: [`Shared::reappend`] moves only checkpointed ones.
            // Test: `the_store_keeps_every_law_of_a_storage_engine`.
            let found = shared.log.positions(*region, entries);
            // bug engine.apply_unpersisted: let found = found.or(Ok(vec![shared.log.head(); entries.len()]));
            for (entry, at) in entries.iter().zip(found?) {
                if entry.is_command {
                    parsed.push((Command::parse(entry.payload.clone())?, at));
                }
            }
        }
        shared.old_values.note(shared, runs);
        let mut user_bytes = 0;
        let mut writes = Vec::with_capacity(WRITES_MAX.min(parsed.len()));
        for (command, at) in &parsed {
            for op in command.ops() {
                user_bytes += self.apply_op(shared, &op, *at, &mut writes);
            }
        }
        write_pending(shared, &mut writes);
        for (region, entries) in runs {
            if let Some(last) = entries.last() {
                self.finish_entry(*region, last.index, last.term);
            }
        }
        shared.index.publish(self.seq);
        self.freeze_when_due(shared)?;
        Ok(user_bytes)
    }

    /// Marks an entry applied: its operations are in the memtable.
    pub(crate) fn finish_entry(&mut self, region: RegionId, index: LogIndex, term: Term) {
        self.applied.insert(region, (index, term));
    }

    /// Starts a new memtable when the active one is full, or when the log to replay is long.
    pub(crate) fn freeze_when_due(&mut self, shared: &Shared) -> Result<()> {
        let full = shared.index.memtable_bytes() >= shared.options.memtable_bytes_max;
        let log_bytes = shared.log.payload_bytes() - self.frozen_log_bytes + self.replayed_bytes;
        let long = log_bytes >= shared.options.checkpoint_log_bytes_max;
        if full || long {
            self.freeze(shared)?;
        }
        Ok(())
    }

    /// Freezes the active memtable together with the checkpoint its flush will establish:
    /// everything applied so far, and a replay that starts at the oldest unapplied entry. Returns
    /// whether there was anything to freeze.
    ///
    /// Invariant: a checkpoint passes no unapplied entry. Nothing is applied meanwhile, and the log
    /// shows all entries and its head as of one moment; entries that it publishes later lie at this
    /// head or after it.
    /// Test: `a_checkpoint_never_passes_an_entry_that_waits_to_be_applied`.
    pub(crate) fn freeze(&mut self, shared: &Shared) -> Result<bool> {
        let applied = |region| self.applied(region).unwrap_or_default();
        let (replay_from, head) = shared.log.replay_from(&applied);
        if shared.index.memtable_is_empty() && head == self.frozen_at {
            return Ok(false);
        }
        // bug engine.checkpoint_past_waiting: let replay_from = head;
        shared.index.freeze(self.checkpoint_at(replay_from));
        self.frozen_at = head;
        (self.frozen_log_bytes, self.replayed_bytes) = (shared.log.payload_bytes(), 0);
        Ok(true)
    }

    pub(crate) fn next_seq(&mut self) -> Seq {
        self.seq = self.seq.next();
        self.seq
    }

    pub(crate) fn publish(&self, shared: &Shared) {
        shared.index.publish(self.seq);
    }

    fn check_next(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let is_ending = self.ending.contains_key(&region);
        // bug engine.apply_while_leaving: never
        if is_ending {
            return Err(Error::invalid(format!("region {region} is leaving this store")));
        }
        let mut next = self.applied.get(&region).map_or(LogIndex(1), |(index, _)| index.next());
        for entry in entries {
            if entry.index != next {
                let index = entry.index;
                return Err(Error::invalid(format!(
                    "region {region}: entry {index} is not the next to apply, {next} is"
                )));
            }
            next = next.next();
        }
        Ok(())
    }

    /// Adds an operation to the writes, or carries it out. Returns the bytes of its key and value.
    fn apply_op<'a>(
        &mut self,
        shared: &Shared,
        op: &Op<'a>,
        payload: Lsn,
        writes: &mut Vec<KeyWrite<'a>>,
    ) -> u64 {
        let seq = self.next_seq();
        let (write, bytes) = match *op {
            Op::Put { key, value, expires_at_s, .. } => {
                let stored = match op.locator(payload) {
                    Some(at) if value.len() > shared.options.inline_value_bytes_max => {
                        ValueSlice::At(at)
                    }
                    _ => ValueSlice::Inline(value),
                };
                let write = KeyWrite { seq, key, value: Some(stored), expires_at_s };
                (write, key.len() + value.len())
            }
            Op::Delete { key } => (KeyWrite { seq, key, value: None, expires_at_s: 0 }, key.len()),
            Op::DeleteRange { start, end } => {
                // Invariant: a range delete hides the writes before it and none after it.
                // Test: `a_range_delete_between_puts_of_one_apply_hides_those_before_it`.
                // bug engine.range_delete_before_writes: skip
                write_pending(shared, writes);
                shared.index.delete_range(seq, start, end);
                return (start.len() + end.len()) as u64;
            }
        };
        writes.push(write);
        if writes.len() >= WRITES_MAX {
            write_pending(shared, writes);
        }
        bytes as u64
    }
}

/// Passes the writes to the index, in their order.
fn write_pending(shared: &Shared, writes: &mut Vec<KeyWrite<'_>>) {
    shared.index.write(writes);
    writes.clear();
}

/// Returns the record that truncates a region's log up to `index`, if that entry's term is known.
pub(crate) fn truncation(log: &Log, region: RegionId, index: LogIndex) -> Option<Record> {
    let term = log.term(region, index)?;
    Some(Record::Mark(region, Mark::TruncatePrefix(index, term)))
}
