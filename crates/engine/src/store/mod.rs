//! One store: log, index and garbage collection in one directory, which nothing else shares.
//!
//! Invariants kept here: applied ≤ persisted; checkpointed ≤ applied; truncated ≤ checkpointed; a
//! segment is removed only when nothing refers to it and a durable checkpoint covers it.

mod apply;
mod incarnations;
mod install;
mod lost_blocks;
mod lost_values;
mod open;
mod rebuild;
mod recovering;
mod repair_writes;
mod scrub;
mod slice;
mod space;
mod value_cache;
mod verify;
mod view;

pub use install::Ingest;
pub use open::{Opened, Replay};
pub use recovering::RecoveringStore;
pub use verify::{VerifyEvent, VerifyReport};
pub use view::View;

pub(crate) use slice::{Extent, ReadSlice, SLICE_PAIRS_MAX, Slice};

use crate::options::Options;
use apply::ApplyState;
use bytes::Bytes;
use lost_blocks::LostBlocks;
use lost_values::LostValues;
pub use lost_values::RepairStats;
use scrub::Scrub;
pub use scrub::ScrubStats;
use space::Space;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_gc::{Gc, GcHooks, GcStats, Stage};
use stele_index::Index;
use stele_log::{Log, LogStats};
use stele_storage::{EngineStats, LostValue, Maintained, Pair, Progress, RangeSize, StorageEngine};
use stele_types::lock::{Mutex, rank};
use stele_types::{
    Appended, Cause, CommittedEntry, Error, FileId, KeyRange, Locator, LogBatch, LogIndex, Record,
    RegionId, Result, StoreId, Term, mutant,
};
use stele_vfs::{DirLock, Vfs};
use value_cache::ValueCache;

/// One store. [`StorageEngine`] states which calls are allowed from where.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    gc: Arc<Gc>,
    scrub: Scrub,
    /// Lock on the directory, held while the store is open or pairs are received.
    lock: Arc<dyn DirLock>,
}

/// State shared by foreground and background work.
#[derive(Debug)]
pub(crate) struct Shared {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    pub id: StoreId,
    pub options: Options,
    pub replay: Replay,
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    pub values: ValueCache,
    pub apply: Mutex<ApplyState, { rank::APPLY }>,
    pub user_bytes: AtomicU64,
    pub space: Space,
    pub lost_values: LostValues,
    pub lost_blocks: LostBlocks,
}

impl GcHooks for Shared {
    fn freeze(&self) -> Result<bool> {
        self.apply.lock().freeze(self)
    }

    fn truncate(&self) -> Result<bool> {
        // With consensus, only consensus knows which entries followers still need.
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
        // Held throughout: unapplied entries must not get another location.
        let _applying = self.apply.lock();
        let checkpoint = self.index.checkpoint();
        let checkpointed = |region: RegionId| match mutant::active("engine.reappend_unsettled") {
            true => LogIndex(u64::MAX),
            false => checkpoint.applied.get(&region).map(|(index, _)| *index).unwrap_or_default(),
        };
        self.log.reappend_tails(below, bytes_max, &checkpointed)
    }

    fn note_unreadable(&self, key: &[u8], at: &Locator, error: &Error) {
        // A job on some of the tiers also reads values that a newer tier has replaced.
        if matches!(lost_values::is_at(self, key, at), Ok(true)) {
            self.lost_values.note(key, at, error);
        }
    }
}

impl Shared {
    /// Appends a batch. Holds the lock across the sync: a freeze in between would take a checkpoint
    /// past entries that are not recorded yet.
    fn append(&self, batch: &LogBatch) -> Result<Appended> {
        let mut state = self.apply.lock();
        let appended = self.log.append(batch)?;
        state.note_appended(batch, &appended);
        Ok(appended)
    }

    /// Returns the value at a location; may wait for the device.
    pub fn value(&self, at: &Locator) -> Result<Bytes> {
        if let Some(value) = self.values.get(at) {
            return Ok(value);
        }
        let value = self.log.get(at)?;
        self.values.insert(at, &value);
        Ok(value)
    }

    /// Returns the value at a location if that needs no read of the device.
    fn cached_value(&self, at: &Locator) -> Result<Option<Bytes>> {
        if let Some(value) = self.values.get(at) {
            return Ok(Some(value));
        }
        let value = self.log.get_cached(at)?;
        if let Some(value) = &value {
            self.values.insert(at, value);
        }
        Ok(value)
    }

    /// Fails for a store without replicas. What an installation or a drop of ranges removes, only
    /// the index records. A rebuild from values, which such a store may need, would restore it.
    fn check_has_replicas(&self) -> Result<()> {
        match self.replay {
            Replay::Committed => Ok(()),
            Replay::All => Err(Error::invalid("a store without replicas moves no ranges")),
        }
    }

    /// Returns the index up to which `region` needs no log after a crash.
    fn checkpointed(&self, region: RegionId) -> LogIndex {
        self.index.checkpointed(region).map(|(index, _)| index).unwrap_or_default()
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
    /// Returns the store's identity.
    pub fn id(&self) -> StoreId {
        self.shared.id
    }

    /// Flushes memtables to runs: everything applied so far no longer depends on the log's tail.
    pub fn flush(&self) -> Result<()> {
        self.stop_on_failed_sync(self.gc.force(stele_gc::Forced::Flush))
    }

    /// Merges, sorts and collects garbage until nothing is left to gain.
    pub fn compact(&self) -> Result<()> {
        let sorted = self.gc.force(stele_gc::Forced::SortAll);
        let done = sorted.and_then(|()| self.gc.force(stele_gc::Forced::Collect));
        self.stop_on_failed_sync(done)
    }

    /// Stops the store after a failed sync of any file, because the durable state is unknown. If
    /// only the manifest refused further edits, memory and log would grow without limit.
    fn stop_on_failed_sync<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| {
            let stops = error.is_failed_sync() || self.shared.index.poisoned();
            if stops && !mutant::active("engine.failed_sync_outlived") {
                return self.shared.log.stop(error);
            }
            error
        })
    }

    fn maintain_slice(&self, bytes_max: u64) -> Result<Maintained> {
        self.shared.log.check_poison()?;
        let repaired_bytes = self.write_value_repairs()?;
        let done = self.gc.step(bytes_max)?;
        self.scrub.step(&self.shared, bytes_max);
        self.rewrite_damaged()?;
        let bytes = repaired_bytes + done.bytes;
        Ok(Maintained { bytes, more: done.stage != Stage::Idle || repaired_bytes > 0 })
    }

    /// Returns garbage collection, for callers that force a job or read its statistics.
    pub fn gc(&self) -> &Gc {
        &self.gc
    }

    /// Returns the log, for callers that read positions or statistics.
    pub fn log(&self) -> &Arc<Log> {
        &self.shared.log
    }

    /// Returns the index, for callers that read views or statistics.
    pub fn index(&self) -> &Arc<Index> {
        &self.shared.index
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns statistics of garbage collection.
    pub fn gc_stats(&self) -> GcStats {
        self.gc.stats()
    }

    /// Returns hits and misses of the value cache.
    pub fn value_cache_hits(&self) -> (u64, u64) {
        self.shared.values.counts()
    }

    /// Returns statistics of value repair.
    pub fn repair_stats(&self) -> RepairStats {
        self.shared.lost_values.stats()
    }

    /// Returns statistics of the scrub.
    pub fn scrub_stats(&self) -> ScrubStats {
        self.scrub.stats()
    }

    /// Returns statistics of the log.
    pub fn log_stats(&self) -> LogStats {
        self.shared.log.stats()
    }

    /// Returns the record that truncates a region's log up to its checkpoint, if there is anything
    /// to truncate. It is added to the next batch, so that truncation costs no write of its own.
    pub(crate) fn truncation_due(&self, region: RegionId) -> Option<Record> {
        self.shared.truncation_due(region)
    }

    /// Confirms the log's last batch and closes the store cleanly. Dropping a store without it
    /// counts as a crash and loses nothing either.
    pub fn close(&self) -> Result<()> {
        self.shared.log.close()
    }
}

impl StorageEngine for Store {
    type View = View;
    type Ingest = Ingest;

    fn append(&self, batch: &LogBatch) -> Result<Appended> {
        self.check_space(batch)?;
        let ended = self.end_incarnations(batch)?;
        let appended = self.shared.append(batch);
        if appended.is_err() {
            self.shared.apply.lock().restore_regions(ended);
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
        Ok(View::of_users(&self.shared, &self.gc))
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

    fn admit(&self, bytes: u64) -> Result<()> {
        self.admit_bytes(bytes)
    }

    fn checkpoint(&self) -> Result<()> {
        self.flush()
    }

    fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        self.stop_on_failed_sync(self.maintain_slice(bytes_max))
    }

    fn has_lost(&self) -> bool {
        self.shared.lost_values.has_lost() || self.shared.lost_blocks.has_lost()
    }

    fn lost_ranges(&self) -> Vec<KeyRange> {
        self.shared.lost_blocks.lost_ranges()
    }

    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        self.write_block_repair(range, pairs)
    }

    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        self.shared.lost_values.lost_values(count_max)
    }

    fn repair_value(&self, key: &Bytes, value: Bytes) {
        self.shared.lost_values.repair_value(key, value);
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
            memory_bytes: shared.index.memory_bytes()
                + shared.log.stats().memory_bytes
                + shared.values.bytes(),
            device_bytes: shared.vfs.total_bytes(&shared.dir).unwrap_or_default(),
            device_free_bytes: shared.vfs.free_bytes(&shared.dir).unwrap_or_default(),
        }
    }
}

/// Returns the device bytes that the directory's files take, as `du` counts them.
pub(crate) fn disk_bytes(shared: &Shared) -> Result<u64> {
    let mut total = 0;
    for dir in [shared.dir.clone(), shared.dir.join("log"), shared.dir.join("index")] {
        for entry in shared.vfs.list(&dir)? {
            total += entry.allocated_bytes;
        }
    }
    Ok(total)
}
