//! The store as a storage engine: what consensus calls.

use super::{Ingest, Replay, Shared, Store, View, apply, install};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_gc::Pressure;
use stele_index::Checkpoint;
use stele_storage::{
    EngineStats, LogStore, LostValue, Maintained, Pair, Progress, RangeSize, RegionEntries, Repair,
    Snapshots, Space, StateMachine,
};
use stele_types::{
    Cause, CommittedEntry, Error, KeyRange, LogBatch, LogIndex, Mark, Record, RegionId, Result,
    Term,
};

impl LogStore for Store {
    fn append(&self, batch: &LogBatch) -> Result<()> {
        // Invariant: an append that waits for a device shows its age from here on, whatever it waits
        // for: its own write, free space, or a lock of a thread that writes.
        let _under_way = self.shared.timer.append();
        let checked = self.check(batch)?;
        self.check_space(batch, checked.entry_bytes)?;
        let ended = self.end_incarnations(&checked.ending);
        let appended = ended.and_then(|()| self.shared.append(batch));
        if appended.is_err() {
            self.shared.apply.lock().restore_ending();
        }
        appended
    }

    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        self.shared.log.entries(region, from, to, bytes_max)
    }

    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.shared.log.term(region, index)
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        let log = self.shared.log.region(region)?;
        let applied = self.shared.apply.lock().applied(region);
        Some(Progress {
            truncated: log.truncated,
            // Entries before the start of the log need no log.
            checkpointed: self.shared.checkpointed(region).max(log.truncated.0),
            applied: applied.unwrap_or(log.truncated.0),
            persisted: (log.last, log.last_term),
            hard_state: log.hard_state,
            destroyed: log.destroyed,
        })
    }

    fn admit(&self, bytes: u64) -> Result<()> {
        self.admit_bytes(bytes)
    }

    fn admit_append(&self, bytes: u64) -> bool {
        self.has_room(bytes)
    }

    fn space(&self) -> Space {
        self.read_space()
    }

    fn take_truncation_request(&self) -> bool {
        self.shared.space.take_truncation_request()
    }
}

impl Store {
    fn apply_runs(&self, runs: &[(RegionId, &[CommittedEntry])]) -> Result<()> {
        let bytes = self.shared.apply.lock().apply(&self.shared, runs)?;
        self.shared.user_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.gc.note_user_bytes(bytes);
        Ok(())
    }
}

impl StateMachine for Store {
    type View = View;

    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        self.apply_runs(&[(region, entries)])
    }

    fn apply_all(&self, runs: &[RegionEntries]) -> Result<()> {
        let runs: Vec<_> = runs.iter().map(|run| (run.region, &run.entries[..])).collect();
        self.apply_runs(&runs)
    }

    fn view(&self) -> Result<View> {
        Ok(View::of_users(&self.shared, &self.gc))
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        self.stop_on_failed_sync(install::drop_ranges(self, ranges))
    }

    fn range_size(&self, range: &KeyRange) -> Result<RangeSize> {
        let found = self.shared.index.view().estimate(range)?;
        Ok(RangeSize { bytes: found.bytes as u64, keys: found.keys as u64 })
    }

    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.shared.index.view().middle(range)
    }

    fn checkpoint(&self) -> Result<()> {
        self.flush()
    }

    fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        self.stop_on_failed_sync(self.maintain_slice(bytes_max))
    }

    fn pressure(&self) -> f64 {
        // bug engine.pressure_untold: return 0.0;
        match self.gc.pressure() {
            Pressure::Assist(per_byte) => per_byte,
            Pressure::None => 0.0,
        }
    }

    fn idle(&self) {
        // Best effort: it only helps to distinguish damage from a torn write later.
        drop(self.shared.log.confirm());
    }

    fn stats(&self) -> EngineStats {
        let shared = &self.shared;
        let meter = shared.vfs.meter().snapshot();
        let gc = self.gc.stats();
        EngineStats {
            user_bytes: shared.user_bytes.load(Ordering::Relaxed),
            // The probe of a new store is not caused by its data.
            written_bytes: Cause::ALL
                .iter()
                .filter(|&&cause| cause != Cause::Probe)
                .map(|&cause| (cause.name(), meter.bytes(cause)))
                .collect(),
            disk_bytes: super::place::disk_bytes(shared).unwrap_or(gc.disk_bytes),
            live_bytes_estimate: gc.live_bytes + inline_bytes(shared),
            memory_bytes: shared.index.memory_bytes()
                + shared.log.stats().memory_bytes
                + shared.values.bytes(),
            index_memory_bytes: shared.index.index_memory_bytes(),
            index_cold_reads: shared.index.cold_reads().0,
            device_bytes: shared.vfs.total_bytes(&shared.dir).unwrap_or_default(),
            device_free_bytes: shared.writable_bytes().unwrap_or_default(),
        }
    }
}

/// Estimates the bytes of pairs with values that the runs hold themselves: their share of the entries.
fn inline_bytes(shared: &Shared) -> u64 {
    // bug engine.inline_values_uncounted: return 0;
    let version = shared.index.version();
    let of_run = |run: &std::sync::Arc<stele_index::Run>| {
        let meta = run.meta();
        let share = u128::from(meta.bytes) * u128::from(meta.inline);
        (share / u128::from(meta.entries.max(1))) as u64
    };
    version.runs().map(of_run).sum()
}

impl Snapshots for Store {
    type Ingest = Ingest;

    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<Ingest> {
        Ingest::new(&self.shared, &self.lock, ranges)
    }

    fn receive(&self, ingest: &mut Ingest, pairs: Vec<Pair>) -> Result<()> {
        self.admit_bytes(pairs.iter().map(|p| (p.key.len() + p.value.len()) as u64).sum())?;
        ingest.receive(pairs)
    }

    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: Ingest) -> Result<()> {
        self.stop_on_failed_sync(install::install(self, region, at, ingest))
    }
}

impl Repair for Store {
    fn has_lost(&self) -> bool {
        let Shared { lost_values, lost_blocks, .. } = &*self.shared;
        lost_values.has_replicas() && lost_values.has_lost() || lost_blocks.has_lost()
    }

    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        self.shared.lost_values.lost_values(count_max)
    }

    fn lost_ranges(&self) -> Vec<KeyRange> {
        self.shared.lost_blocks.lost_ranges()
    }

    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        self.write_block_repair(range, pairs)
    }

    fn repair_value(&self, key: &Bytes, value: Bytes) {
        self.shared.lost_values.repair_value(key, value);
    }
}

#[derive(Default)]
struct Checked<'a> {
    entry_bytes: u64,
    /// Marks that end an incarnation of their region, in order.
    ending: Vec<(RegionId, &'a Mark)>,
}

impl Store {
    /// Returns what an append needs of a batch, from one walk over it. Fails with `Invalid` if it truncates
    /// entries above the checkpoint of their region.
    ///
    /// Invariant: truncated ≤ checkpointed, because a crash loses effects that neither the log nor
    /// a run holds. Nothing of the batch is written before this check.
    /// Test: `the_store_keeps_every_law_of_a_storage_engine`.
    fn check<'a>(&self, batch: &'a LogBatch) -> Result<Checked<'a>> {
        let shared = &self.shared;
        let mut checked = Checked::default();
        let mut started: BTreeMap<RegionId, LogIndex> = BTreeMap::new();
        for record in &batch.records {
            match record {
                Record::Entry(entry) => checked.entry_bytes += entry.payload.len() as u64,
                Record::Mark(region, mark @ Mark::Start(index, _)) => {
                    started.insert(*region, *index);
                    checked.ending.push((*region, mark));
                }
                Record::Mark(region, mark @ Mark::Destroy) => checked.ending.push((*region, mark)),
                Record::Mark(region, Mark::TruncatePrefix(index, _)) => {
                    let truncated = |log: stele_log::RegionLog| log.truncated.0;
                    let known = || {
                        let truncated = shared.log.region(*region).map(truncated);
                        shared.checkpointed(*region).max(truncated.unwrap_or_default())
                    };
                    let upto = started.get(region).copied().unwrap_or_else(known);
                    // bug engine.truncate_past_checkpoint: never
                    if *index > upto {
                        return Err(Error::invalid(format!(
                            "region {region} cannot be truncated to {index}: only entries up to \
                             {upto} are checkpointed; make a checkpoint first"
                        )));
                    }
                }
                Record::Mark(..) | Record::HardState(..) => {}
            }
        }
        Ok(checked)
    }
}

impl Store {
    /// Ends the incarnations of the regions that these marks of a batch end. In this order, what a
    /// region applied is made durable without its log, its entries are truncated, and the
    /// checkpoint drops it. Its pairs thus stay (another region may have taken them over), none of
    /// its entries is applied again over newer pairs, and what it had applied does not count for
    /// its next incarnation. After a crash in between, it continues with an empty log.
    ///
    /// Invariant: a destroyed region is in no checkpoint. Opening relies on it. Therefore an ending region
    /// applies nothing until the batch is appended.
    /// Test: `every_crash_while_ranges_move_leaves_one_side_of_the_step`.
    pub(super) fn end_incarnations(&self, ending: &[(RegionId, &Mark)]) -> Result<()> {
        ending.iter().try_for_each(|(region, mark)| self.end_incarnation(*region, mark))
    }

    fn end_incarnation(&self, region: RegionId, mark: &Mark) -> Result<()> {
        let shared = &self.shared;
        let log = shared.log.region(region).filter(|log| !log.destroyed);
        let Some(log) = log else { return Ok(()) };
        let applied = shared.apply.lock().begin_ending(region).unwrap_or(log.truncated.0);
        if matches!(mark, Mark::Start(index, _) if *index == applied && log.last == applied) {
            return Ok(());
        }
        let durable = shared.checkpointed(region).max(log.truncated.0);
        // bug engine.life_not_flushed: never
        if applied > durable {
            self.flush()?;
        }
        // With `Replay::All` no keys move between regions: applying an entry again has the same
        // effect, and an applied index below the truncation indicates damage.
        let truncation = apply::truncation(&shared.log, region, applied)
            .filter(|_| shared.replay == Replay::Committed && applied > log.truncated.0);
        // bug engine.life_not_truncated: let truncation = None;
        if let Some(mark) = truncation {
            // The flush above has just made durable what this truncates.
            shared.append(&LogBatch { records: vec![mark] })?;
        }
        let mut state = shared.apply.lock();
        state.remove_region(region);
        // bug engine.earlier_life_counts: skip
        shared.index.forget_region(region)?;
        Ok(())
    }
}

/// Repeats start marks that a crash prevented. An installed range was current in the index, but the
/// log did not record yet that the region starts after it. The manifest has an applied entry that
/// the log lacks, from which the mark is written again.
pub(super) fn repeat_start_marks(shared: &Arc<Shared>, checkpoint: &Checkpoint) -> Result<()> {
    let mut records = Vec::new();
    for (&region, &(index, term)) in &checkpoint.applied {
        let is_known = shared.log.region(region).is_some_and(|log| {
            let has_entry = shared.log.term(region, index) == Some(term);
            // bug engine.start_term_ignored: let has_entry = has_entry || index <= log.last;
            !log.destroyed && (index <= log.truncated.0 || has_entry)
        });
        if !is_known {
            records.push(Record::Mark(region, Mark::Start(index, term)));
        }
    }
    // bug engine.start_not_repeated: never
    if !records.is_empty() {
        shared.log.append(&LogBatch { records })?;
    }
    Ok(())
}
