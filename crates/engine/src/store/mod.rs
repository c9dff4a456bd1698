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

pub use open::Opened;
pub use verify::{VerifyEvent, VerifyReport};
pub use view::View;

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
    Appended, Cause, Clock, CommittedEntry, Error, KeyRange, LogBatch, LogIndex, RegionId, Result,
    StoreId, Term,
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
    pub clock: Arc<dyn Clock>,
    pub dir: PathBuf,
    pub id: StoreId,
    pub options: Options,
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    pub apply: Mutex<ApplyState>,
    pub user_bytes: AtomicU64,
}

impl GcHooks for Shared {
    fn freeze(&self) -> Result<bool> {
        self.apply.lock().freeze(self)
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

    /// Confirms the log's last batch and ends cleanly. Dropping a store without it is a crash, and
    /// loses nothing either.
    pub fn close(&self) -> Result<()> {
        self.shared.log.close()
    }

    /// Writes are refused while the device has less free space than garbage collection may need;
    /// a batch that only deletes passes, as deletes are what frees space.
    fn check_space(&self, batch: &LogBatch) -> Result<()> {
        let reserved = self.shared.options.reserved_bytes;
        if reserved == 0 || only_frees(batch) {
            return Ok(());
        }
        let mut state = self.shared.apply.lock();
        if state.room_bytes < batch_bytes(batch) {
            let free = self.shared.vfs.free_bytes(&self.shared.dir)?;
            state.room_bytes = free.saturating_sub(reserved);
        }
        if state.room_bytes < batch_bytes(batch) {
            return Err(Error::NoSpace(self.shared.dir.clone()));
        }
        state.room_bytes -= batch_bytes(batch);
        Ok(())
    }
}

impl StorageEngine for Store {
    type View = View;

    fn append(&self, batch: &LogBatch) -> Result<Appended> {
        self.check_space(batch)?;
        let appended = self.shared.log.append(batch)?;
        self.shared.apply.lock().note_appended(batch, &appended);
        Ok(appended)
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
        let log = self.shared.log.region(region);
        let state = self.shared.apply.lock();
        let applied = state.applied(region);
        let checkpointed = state.checkpointed(&self.shared, region);
        let log = match (log, applied) {
            (Some(log), _) => log,
            (None, _) => return None,
        };
        Some(Progress {
            truncated: log.truncated,
            checkpointed,
            applied: applied.unwrap_or(log.truncated.0),
            persisted: (log.last, log.last_term),
            hard_state: log.hard_state,
            destroyed: log.destroyed,
        })
    }

    fn truncate(&self, region: RegionId, index: LogIndex) -> Result<LogIndex> {
        let upto = {
            let state = self.shared.apply.lock();
            index.min(state.checkpointed(&self.shared, region))
        };
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
        if done.stage == Stage::Idle {
            self.shared.log.confirm()?;
        }
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
    use stele_types::Record;
    batch.records.iter().map(|r| if let Record::Entry(e) = r { e.payload.len() as u64 } else { 0 }).sum()
}

fn only_frees(batch: &LogBatch) -> bool {
    use stele_types::{Command, Op, Record};
    batch.records.iter().all(|record| match record {
        Record::Entry(entry) if entry.is_command => Command::parse(entry.payload.clone())
            .is_ok_and(|command| command.ops().all(|op| !matches!(op, Op::Put { .. }))),
        _ => true,
    })
}
