//! One store: log, index and garbage collection in one directory, which nothing else shares.
//!
//! Laws kept here: applied ≤ persisted; checkpointed ≤ applied; truncated ≤ checkpointed; a
//! segment goes only when nothing refers to it and a durable checkpoint covers it.

mod apply;
mod install;
mod open;
mod rebuild;
mod verify;
mod view;

pub use open::{Opened, Replay};
pub use verify::{VerifyEvent, VerifyReport};
pub use view::View;

pub(crate) use view::{Reference, SLICE_BYTES_MAX, SLICE_PAIRS_MAX};

use crate::options::Options;
use apply::ApplyState;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_gc::{Gc, GcHooks, GcStats, Stage};
use stele_index::Index;
use stele_log::{Log, LogStats};
use stele_storage::{EngineStats, Maintained, Pair, Progress, StorageEngine};
use stele_types::{
    Appended, Cause, CommittedEntry, Error, FileId, KeyRange, LogBatch, LogIndex, Mark, Record,
    RegionId, Result, StoreId, Term,
};
use stele_vfs::{DirLock, Vfs};

/// One store. See [`StorageEngine`] for what may be called from where.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    gc: Gc,
    /// Held for as long as the store is open: one process per directory.
    _lock: Box<dyn DirLock>,
}

/// What foreground and background work both need.
#[derive(Debug)]
pub(crate) struct Shared {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    pub id: StoreId,
    pub options: Options,
    pub replay: Replay,
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    pub apply: Mutex<ApplyState>,
    pub user_bytes: AtomicU64,
}

impl GcHooks for Shared {
    fn freeze(&self) -> Result<bool> {
        self.apply.lock().freeze(self)
    }

    fn truncate(&self) -> Result<bool> {
        // Where consensus decides, only it knows which entries followers still need.
        if self.replay == Replay::Committed {
            return Ok(false);
        }
        let mut records = Vec::new();
        for region in self.log.regions() {
            records.extend(self.truncation_due(region));
        }
        if records.is_empty() {
            return Ok(false);
        }
        self.append(&LogBatch { records })?;
        Ok(true)
    }

    fn reappend(&self, below: FileId, bytes_max: u64) -> Result<u64> {
        // Held throughout: what waits to be applied must not get another place.
        let state = self.apply.lock();
        if state.is_waiting() {
            return Ok(0);
        }
        self.log.reappend_tails(below, bytes_max)
    }
}

impl Shared {
    /// The lock is held across the sync: a freeze in between would take a checkpoint past entries
    /// that nobody knows of yet.
    fn append(&self, batch: &LogBatch) -> Result<Appended> {
        let mut state = self.apply.lock();
        let appended = self.log.append(batch)?;
        state.note_appended(batch, &appended);
        Ok(appended)
    }

    /// Index up to which `region` needs no log after a crash.
    fn checkpointed(&self, region: RegionId) -> LogIndex {
        let applied = self.index.checkpoint().applied.get(&region).map(|(index, _)| *index);
        applied.unwrap_or_default()
    }

    fn truncation_due(&self, region: RegionId) -> Option<Record> {
        let checkpointed = self.checkpointed(region);
        let log = self.log.region(region).filter(|log| !log.destroyed)?;
        if checkpointed <= log.truncated.0 {
            return None;
        }
        apply::truncation(&self.log, region, checkpointed)
    }
}

impl Store {
    /// The store's identity.
    pub fn id(&self) -> StoreId {
        self.shared.id
    }

    /// Makes everything applied so far independent of the log's tail: memtables become runs.
    pub fn flush(&self) -> Result<()> {
        self.gc.force(stele_gc::Forced::Flush)
    }

    /// Merges, sorts and collects until nothing is left to gain.
    pub fn compact(&self) -> Result<()> {
        self.gc.force(stele_gc::Forced::SortAll)?;
        self.gc.force(stele_gc::Forced::Collect)
    }

    /// Garbage collection, for callers that force a job or look at its figures.
    pub fn gc(&self) -> &Gc {
        &self.gc
    }

    /// The log, for callers that read positions or figures.
    pub fn log(&self) -> &Arc<Log> {
        &self.shared.log
    }

    /// The index, for callers that read views or figures.
    pub fn index(&self) -> &Arc<Index> {
        &self.shared.index
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Figures of garbage collection.
    pub fn gc_stats(&self) -> GcStats {
        self.gc.stats()
    }

    /// Figures of the log.
    pub fn log_stats(&self) -> LogStats {
        self.shared.log.stats()
    }

    /// The record that drops the part of a region's log which a checkpoint covers, if there is one.
    /// It rides in the next batch: truncation costs no write of its own.
    pub(crate) fn truncation_due(&self, region: RegionId) -> Option<Record> {
        self.shared.truncation_due(region)
    }

    /// Confirms the log's last batch and ends cleanly. Dropping a store without it is a crash, and
    /// loses nothing either.
    pub fn close(&self) -> Result<()> {
        self.shared.log.close()
    }

    /// A region that leaves, or starts anew, first leaves the durable checkpoint: else what its
    /// earlier life had applied would count for the next one after a crash. If a crash comes before
    /// the mark, its entries are applied again, to the same effect. Returns what to restore if the
    /// mark can't be written.
    fn forget_ended_lives(&self, batch: &LogBatch) -> Result<Vec<(RegionId, (LogIndex, Term))>> {
        let mut forgotten = Vec::new();
        for record in &batch.records {
            let Record::Mark(region, mark) = record else { continue };
            let known = self.shared.checkpointed(*region);
            let ends = match mark {
                Mark::Destroy => known > LogIndex(0),
                Mark::Start(index, _) => known > LogIndex(0) && known != *index,
                _ => false,
            };
            if ends {
                forgotten.extend(self.shared.apply.lock().forget(*region));
            }
        }
        if !forgotten.is_empty() && !stele_types::mutant::active("engine.earlier_life_counts") {
            self.flush()?;
        }
        Ok(forgotten)
    }

    /// Writes are refused while the device has less free space than garbage collection may need;
    /// a batch that only deletes passes, as deletes are what frees space.
    fn check_space(&self, batch: &LogBatch) -> Result<()> {
        let reserved = self.shared.options.reserved_bytes;
        if reserved == 0 {
            return Ok(());
        }
        let bytes = batch_bytes(batch);
        let mut state = self.shared.apply.lock();
        if state.room_bytes < bytes {
            let free = self.shared.vfs.free_bytes(&self.shared.dir)?;
            self.gc.set_short_of_space(free < reserved.saturating_mul(2));
            let room = free.saturating_sub(reserved);
            if room < bytes && !only_frees(batch) {
                return Err(Error::NoSpace(self.shared.dir.clone()));
            }
            // Asked again soon: sidecars, runs and collection take space too.
            state.room_bytes = room.min(reserved / 2).max(bytes);
        }
        state.room_bytes -= bytes;
        Ok(())
    }
}

impl StorageEngine for Store {
    type View = View;

    fn append(&self, batch: &LogBatch) -> Result<Appended> {
        self.check_space(batch)?;
        let ended = self.forget_ended_lives(batch)?;
        let appended = self.shared.append(batch);
        if appended.is_err() {
            self.shared.apply.lock().remember(ended);
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

    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let bytes = self.shared.apply.lock().apply(&self.shared, region, entries)?;
        self.shared.user_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.gc.note_user_bytes(bytes);
        Ok(())
    }

    fn view(&self) -> Result<View> {
        Ok(View::new(&self.shared))
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        let log = self.shared.log.region(region)?;
        let applied = self.shared.apply.lock().applied(region);
        Some(Progress {
            truncated: log.truncated,
            // What the log begins after needs no log.
            checkpointed: self.shared.checkpointed(region).max(log.truncated.0),
            applied: applied.unwrap_or(log.truncated.0),
            persisted: (log.last, log.last_term),
            hard_state: log.hard_state,
            destroyed: log.destroyed,
        })
    }

    fn truncate(&self, region: RegionId, index: LogIndex) -> Result<LogIndex> {
        let mut upto = index.min(self.shared.checkpointed(region));
        if stele_types::mutant::active("engine.truncate_past_checkpoint") {
            upto = index;
        }
        let Some(log) = self.shared.log.region(region) else {
            return Err(Error::invalid(format!("region {region} is not on this store")));
        };
        if upto <= log.truncated.0 {
            return Ok(log.truncated.0);
        }
        if let Some(mark) = apply::truncation(&self.shared.log, region, upto) {
            self.append(&LogBatch { records: vec![mark] })?;
        }
        Ok(upto)
    }

    fn export(
        &self,
        range: &KeyRange,
        sink: &mut dyn FnMut(Vec<Pair>) -> Result<()>,
    ) -> Result<()> {
        install::export(&self.shared, range, sink)
    }

    fn install(
        &self,
        region: RegionId,
        range: &KeyRange,
        at: (LogIndex, Term),
        pairs: &mut dyn Iterator<Item = Result<Pair>>,
    ) -> Result<()> {
        install::install(self, region, range, at, pairs)
    }

    fn drop_range(&self, range: &KeyRange) -> Result<()> {
        install::drop_range(self, range)
    }

    fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        let done = self.gc.step(bytes_max)?;
        Ok(Maintained { bytes: done.bytes, more: done.stage != Stage::Idle })
    }

    fn stats(&self) -> EngineStats {
        let shared = &self.shared;
        let meter = shared.vfs.meter().snapshot();
        let gc = self.gc.stats();
        EngineStats {
            user_bytes: shared.user_bytes.load(Ordering::Relaxed),
            written_bytes: Cause::ALL.iter().map(|&c| (c.name(), meter.bytes(c))).collect(),
            disk_bytes: disk_bytes(shared).unwrap_or(gc.disk_bytes),
            live_bytes: gc.live_bytes,
            memory_bytes: shared.index.memory_bytes() + shared.log.stats().memory_bytes,
        }
    }
}

/// Bytes of the device that the directory's files take, as `du` counts them.
pub(crate) fn disk_bytes(shared: &Shared) -> Result<u64> {
    let mut total = 0;
    for dir in [shared.dir.clone(), shared.dir.join("log"), shared.dir.join("index")] {
        for entry in shared.vfs.list(&dir)? {
            total += entry.allocated_bytes;
        }
    }
    Ok(total)
}

fn batch_bytes(batch: &LogBatch) -> u64 {
    batch
        .records
        .iter()
        .map(|r| if let Record::Entry(e) = r { e.payload.len() as u64 } else { 0 })
        .sum()
}

fn only_frees(batch: &LogBatch) -> bool {
    use stele_types::{Command, Op};
    batch.records.iter().all(|record| match record {
        Record::Entry(entry) if entry.is_command => Command::parse(entry.payload.clone())
            .is_ok_and(|command| command.ops().all(|op| !matches!(op, Op::Put { .. }))),
        _ => true,
    })
}
