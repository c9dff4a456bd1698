//! One store: log, index and garbage collection in one directory, which nothing else shares.
//!
//! Invariants kept here: applied ≤ persisted; checkpointed ≤ applied; truncated ≤ checkpointed; a
//! segment is removed only when nothing refers to it and a durable checkpoint covers it.

mod apply;
mod engine;
mod get_many;
mod install;
mod level;
mod losses;
mod old_values;
mod open;
mod place;
mod rebuild;
mod recovering;
mod repair_writes;
mod reserve;
mod scans;
mod scrub;
mod slice;
mod space;
mod speed;
mod value_cache;
mod verify;
mod view;

pub use install::Ingest;
pub use open::{Opened, Replay};
pub use recovering::RecoveringStore;
pub use reserve::NAME as RESERVE_FILE;
pub use verify::{VerifyEvent, VerifyReport};
pub use view::View;

pub(crate) use open::{lock, lock_alone};
pub(crate) use place::count as count_disk_bytes;
pub(crate) use slice::{Extent, ReadSlice, SLICE_PAIRS_MAX, Slice};

use crate::options::Options;
use apply::ApplyState;
use bytes::Bytes;
use level::RecordedLevel;
pub use losses::RepairStats;
use losses::{LostBlocks, LostValues};
use old_values::OldValues;
pub use old_values::{OldValue, OldValuesReader};
use place::{DiskBytes, Place};
use scans::{ContinuedScans, ScansInMemory};
use scrub::Scrub;
pub use scrub::ScrubStats;
use space::SpaceState;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stele_gc::{Gc, GcHooks, GcOptions, GcStats, Stage};
use stele_index::Index;
use stele_log::{HistoryReader, Log, LogStats, PinState, Pinned};
use stele_storage::Maintained;
use stele_types::lock::{Mutex, rank};
use stele_types::{
    Error, FileId, KeyRange, Locator, LogBatch, LogIndex, Record, RegionId, Result, StoreId,
};
use stele_vfs::{DeviceTimer, DirLock, Vfs};
use value_cache::ValueCache;

/// One store. [`StorageEngine`](stele_storage::StorageEngine) states which calls are allowed from where.
#[derive(Debug)]
pub struct Store {
    shared: Arc<Shared>,
    gc: Arc<Gc>,
    scrub: Scrub,
    /// Lock on the directory, held while the store is open or pairs are received.
    lock: Arc<dyn DirLock>,
    place: Place,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub vfs: Arc<dyn Vfs>,
    pub dir: PathBuf,
    pub id: StoreId,
    pub options: Options,
    pub timer: DeviceTimer,
    pub replay: Replay,
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    pub values: ValueCache,
    pub scans_in_memory: ScansInMemory,
    pub continued: ContinuedScans,
    pub apply: Mutex<ApplyState, { rank::APPLY }>,
    pub user_bytes: AtomicU64,
    pub disk_bytes: DiskBytes,
    pub level: RecordedLevel,
    pub space: SpaceState,
    pub lost_values: LostValues,
    pub lost_blocks: LostBlocks,
    pub old_values: OldValues,
}

impl GcHooks for Shared {
    fn freeze(&self) -> Result<bool> {
        self.apply.lock().freeze(self)
    }

    fn truncate(&self) -> Result<bool> {
        // With consensus, only consensus knows which entries followers still need.
        if self.replay == Replay::Committed {
            self.space.request_truncation();
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
        // Invariant: unapplied entries keep their position. The log moves only regions of which all
        // entries are checkpointed, thus applied, and appends nothing from this choice to the
        // publication. The checkpoint is read after the log's end is fixed: an older one could be
        // that of a region's earlier incarnation.
        // bug engine.reappend_unsettled: `self.checkpointed(region)` is `LogIndex(u64::MAX)`
        let checkpointed = |region: RegionId| self.checkpointed(region);
        self.log.reappend_tails(below, bytes_max, &checkpointed)
    }

    fn room_bytes(&self) -> Option<u64> {
        self.job_room_bytes().ok()
    }

    fn open_reserve(&self, bytes: u64) {
        // Without it the write may still succeed, or fails with `NoSpace`.
        let _ = self.open_reserve_for_job(bytes);
    }

    fn note_unreadable(&self, key: &[u8], at: &Locator, error: &Error) {
        // A job on some of the tiers also reads values that a newer tier has replaced.
        if matches!(losses::is_at(self, key, at), Ok(true)) {
            self.lost_values.note(key, at, error);
        }
    }
}

impl Shared {
    /// Appends a batch. The state machine is not locked during write and sync.
    fn append(&self, batch: &LogBatch) -> Result<()> {
        // bug engine.append_holds_state: { let _held = self.apply.lock(); self.append_to_log(batch)?; }
        // bug engine.append_holds_state: skip
        self.append_to_log(batch)?;
        self.apply.lock().note_marks(batch);
        Ok(())
    }

    /// Appends a batch. One that only frees space, or that other replicas may have committed, is
    /// written out of the reserve where the device is full: other users of it may have filled it since
    /// it was read.
    fn append_to_log(&self, batch: &LogBatch) -> Result<()> {
        match self.log.append(batch) {
            Err(Error::NoSpace(_))
                if self.replay == Replay::Committed || space::only_frees(batch) =>
            {
                self.open_reserve(batch.payload_bytes())?;
                self.log.append(batch).map(|_| ())
            }
            appended => appended.map(|_| ()),
        }
    }

    /// Returns the value at a location; may wait for the device.
    pub(crate) fn value(&self, at: &Locator) -> Result<Bytes> {
        if let Some(value) = self.values.get(at) {
            return Ok(value);
        }
        let value = self.log.get(at)?;
        self.values.insert(at, &value);
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

    /// Records the cluster's time in Unix seconds, as received now. A store with replicas drops no
    /// expired pair before the first call after it was opened.
    pub fn note_cluster_time(&self, unix_s: u64) {
        self.gc.note_cluster_time(unix_s);
    }

    /// Returns the cluster's time in Unix seconds; 0 if it is unknown.
    pub fn cluster_time_s(&self) -> u64 {
        self.gc.cluster_time_s()
    }

    /// Flushes memtables to runs: everything applied so far no longer depends on the log's tail.
    pub fn flush(&self) -> Result<()> {
        let done = self.gc.force(stele_gc::Forced::Flush);
        // As far as it fits; the next maintenance tries again.
        let _ = self.shared.refill_reserve();
        self.stop_on_failed_sync(done)
    }

    /// Replaces the settings of garbage collection. Fails with `Invalid` when one is out of bounds, and
    /// changes nothing.
    pub fn set_gc_options(&self, options: GcOptions) -> Result<()> {
        let shared = &self.shared;
        let device_bytes = shared.vfs.total_bytes(&shared.dir)?;
        let sized = Options { gc: options, ..Options::default() }.within_device(device_bytes).gc;
        self.gc.set_options(open::of_device(&*shared.vfs, &shared.dir, sized)?)
    }

    /// Merges, sorts and collects garbage until nothing is left to gain: only sorted files of live
    /// values, runs and an empty segment remain, as far as no region's log and no view needs others.
    pub fn compact(&self) -> Result<()> {
        let done = self.gc.force(stele_gc::Forced::Compact);
        // As far as it fits; the next maintenance tries again.
        let _ = self.shared.refill_reserve();
        self.stop_on_failed_sync(done)
    }

    /// Invariant: a failed sync of any file stops the log, because the durable state is unknown. If
    /// only the manifest refused further edits, memory and log would grow without limit.
    /// Test: `fault_17_a_failed_sync_of_the_maintenance_stops_the_store_for_good`.
    fn stop_on_failed_sync<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| {
            let stops = error.is_failed_sync() || self.shared.index.poisoned();
            // bug engine.failed_sync_outlived: never
            if stops {
                return self.shared.log.stop(error);
            }
            error
        })
    }

    fn maintain_slice(&self, bytes_max: u64) -> Result<Maintained> {
        self.shared.log.check_poison()?;
        self.prepare_collection()?;
        let repaired_bytes = self.write_value_repairs()?;
        let done = match self.gc.step(bytes_max) {
            // Invariant: a job that meets damage at every step does not keep the scrub from finding it.
            // bug engine.failed_job_ends_slice: never
            Err(error) if error.is_damage() => {
                self.shared.lost_blocks.note_failed_job(&error);
                Err(error)
            }
            done => Ok(done?),
        };
        let scrubbed_bytes = self.scrub.step(&self.shared, bytes_max);
        self.rewrite_damaged()?;
        let done = done?;
        if done.stage == Stage::Idle {
            // As far as it fits; the next idle slice tries again.
            let _ = self.shared.refill_reserve();
        }
        let bytes = repaired_bytes + done.bytes;
        let more = done.stage != Stage::Idle || repaired_bytes > 0;
        Ok(Maintained { bytes, more, stage: done.stage.name(), scrubbed_bytes })
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

    /// Returns a reader of the region's committed entries from `next` on.
    pub fn history(&self, region: RegionId, next: LogIndex) -> HistoryReader {
        self.shared.log.history(region, next)
    }

    /// Returns a reader of what the keys of these ranges have before each later write of the region. While it
    /// lives, an apply looks each of them up.
    pub fn old_values(&self, region: RegionId, ranges: Vec<KeyRange>) -> OldValuesReader {
        OldValuesReader::new(&self.shared, region, ranges)
    }

    /// Returns whether the log may hold entries of a region, also of one without a replica here.
    pub fn has_history(&self, region: RegionId) -> bool {
        self.shared.log.region(region).is_some()
    }

    /// States what readers of regions' logs need: the entries of each region above an index. Their segments
    /// stay, within [`Options::history_bytes_max`]. Reads sidecars; fails as that does.
    pub fn pin_history(&self, needed: &Pinned) -> Result<PinState> {
        self.shared.log.pin(needed)
    }

    /// Returns the segments that stay for readers of regions' logs.
    pub fn pinned_history(&self) -> PinState {
        self.shared.log.pinned()
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
