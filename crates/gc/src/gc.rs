//! Interface of garbage collection: one bounded slice of work for each call.

use crate::drop_time::TimeSource;
use crate::heat::{Heat, Scanned};
use crate::options::GcOptions;
use crate::stats::{ASSIST_WAITS, Load};
use crate::stats::{Forced, GcStats, Pressure, StepDone};
use crate::work::Work;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_index::Index;
use stele_log::{Log, StopOnPanic};
use stele_types::lock::{Mutex, MutexGuard, RwLock, rank};
use stele_types::{Clock, ClusterTime, Error, FileId, KeyRange, Locator, Result};

/// Number of frozen memtables from which writers assist.
const FROZEN_MAX: usize = 2;
/// Upper bound of the work for each byte written.
const ASSIST_MAX: f64 = 8.0;
/// Work for each byte written when writers start to assist.
const ASSIST_MIN: f64 = 0.25;

/// Operations that the owner of the store provides to garbage collection.
pub trait GcHooks: Send + Sync {
    /// Freezes the active memtable together with the checkpoint its flush will establish, under the
    /// lock that applying takes. Returns whether there was anything to freeze.
    fn freeze(&self) -> Result<bool>;

    /// Appends truncations up to the durable checkpoint for regions that have no followers to
    /// serve. Returns whether there was anything to truncate.
    fn truncate(&self) -> Result<bool> {
        Ok(false)
    }

    /// Re-appends entries of idle regions that lie below `below`, at most `bytes_max` bytes, where a
    /// checkpoint covers all of them. Returns the bytes appended.
    fn reappend(&self, below: FileId, bytes_max: u64) -> Result<u64> {
        let _ = (below, bytes_max);
        Ok(0)
    }

    /// Returns the bytes that jobs may write now, the reserve included; `None` if nothing limits them.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Makes room for `bytes` that a job writes next out of the reserve, as far as the device lacks
    /// it.
    fn open_reserve(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Reports that the value of `key` at this place could not be read when it was due to move. It
    /// stays in place.
    fn note_unreadable(&self, key: &[u8], at: &Locator, error: &Error);
}

pub(crate) struct Shared {
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    pub clock: Arc<dyn Clock>,
    options: RwLock<Arc<GcOptions>, { rank::GC_OPTIONS }>,
    pub hooks: Arc<dyn GcHooks>,
    pub time_source: TimeSource,
    pub cluster_time: Mutex<ClusterTime, { rank::GC_CLUSTER_TIME }>,
    /// User bytes since the store was created.
    pub user_bytes: AtomicU64,
    pub heat: Mutex<Heat, { rank::GC_HEAT }>,
    load: Mutex<Load, { rank::GC_LOAD }>,
    stats: Mutex<GcStats, { rank::GC_STATS }>,
    /// The device is nearly full: freeing space takes precedence over the budget.
    pub short_of_space: AtomicBool,
    /// See [`Gc::job_bytes`].
    pub job_bytes: AtomicU64,
}

impl Shared {
    /// Returns the cluster's time in Unix seconds; 0 if it is unknown.
    pub(crate) fn cluster_time_s(&self) -> u64 {
        let time = *self.cluster_time.lock();
        time.now_s(self.clock.monotonic_nanos())
    }

    pub(crate) fn options(&self) -> Arc<GcOptions> {
        self.options.read().clone()
    }
}

/// Garbage collection of one store. All methods may be called from any thread; one step runs at a
/// time. It has no thread and no clock of its own.
pub struct Gc {
    shared: Shared,
    work: Mutex<Work, { rank::GC_WORK }>,
}

impl Gc {
    /// Restores `resumed`, the state that an earlier instance saved in the manifest (empty for a
    /// new store). Fails with [`stele_types::Error::Invalid`] when an option is out of bounds.
    pub fn new(
        log: Arc<Log>,
        index: Arc<Index>,
        clock: Arc<dyn Clock>,
        options: GcOptions,
        hooks: Arc<dyn GcHooks>,
        time_source: TimeSource,
        resumed: &[u8],
    ) -> Result<Self> {
        options.validate()?;
        let shared = Shared {
            log,
            index,
            clock,
            options: RwLock::new(Arc::new(options)),
            hooks,
            time_source,
            cluster_time: Mutex::default(),
            user_bytes: AtomicU64::new(0),
            heat: Mutex::default(),
            load: Mutex::default(),
            stats: Mutex::default(),
            short_of_space: AtomicBool::new(false),
            job_bytes: AtomicU64::new(0),
        };
        let work = Work::resume(&shared, resumed);
        let gc = Self { shared, work: Mutex::new(work) };
        gc.publish(&mut gc.work.lock());
        Ok(gc)
    }

    /// Replaces the settings except `sort_phase`, which belongs to the store. The running job ends as it
    /// was chosen. Fails with [`stele_types::Error::Invalid`] when an option is out of bounds, and
    /// changes nothing.
    pub fn set_options(&self, options: GcOptions) -> Result<()> {
        options.validate()?;
        let mut current = self.shared.options.write();
        *current = Arc::new(GcOptions { sort_phase: current.sort_phase, ..options });
        Ok(())
    }

    /// Executes one bounded slice of the running or the next job: about `bytes_max` bytes read and
    /// written, at least one entry. If another caller works, returns at once, or waits for that one
    /// slice when flushes or garbage collection lag behind. A full device is not an error: the job
    /// is aborted, its outputs are removed and the step reports [`crate::Stage::Idle`].
    pub fn step(&self, bytes_max: u64) -> Result<StepDone> {
        let Some(mut work) = self.lock_for_step() else {
            return Ok(StepDone { stage: self.shared.stats.lock().stage, bytes: 0 });
        };
        let _stop = self.begin()?;
        let done = work.step(&self.shared, bytes_max);
        if work.is_mid_job() {
            self.shared.stats.lock().stage = work.stage;
        } else {
            self.publish(&mut work);
        }
        done
    }

    /// Runs a job to completion, in as many slices as it needs. Returns every error.
    pub fn force(&self, job: Forced) -> Result<()> {
        let mut work = self.work.lock();
        let _stop = self.begin()?;
        let done = work.force(&self.shared, job);
        self.publish(&mut work);
        done
    }

    /// Counts `bytes` of keys and values that users wrote, or that were replayed at open: the saved
    /// state is as of the last flush.
    pub fn note_user_bytes(&self, bytes: u64) {
        self.shared.user_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records the cluster's time in Unix seconds, as received now; 0 is not a time. With
    /// [`TimeSource::Cluster`], no expired pair is dropped before the first call after a start.
    pub fn note_cluster_time(&self, unix_s: u64) {
        if unix_s > 0 {
            let time = ClusterTime::new(unix_s, self.shared.clock.monotonic_nanos());
            *self.shared.cluster_time.lock() = time;
        }
    }

    /// Returns the cluster's time in Unix seconds; 0 if it is unknown.
    pub fn cluster_time_s(&self) -> u64 {
        self.shared.cluster_time_s()
    }

    /// Records that these values, which could not be read, have readable copies. Their files may be
    /// victims again, and the values count as unsorted again.
    pub fn note_repaired<'a>(&self, repaired: impl Iterator<Item = (&'a [u8], &'a Locator)>) {
        let mut work = self.work.lock();
        for (key, at) in repaired {
            if let Some(left) = work.unreadable.get_mut(&at.file) {
                left.remove(key.len(), at);
            }
        }
        work.files.forget();
    }

    /// Sets whether the device is nearly full. While it is, everything that frees space is done at
    /// once, regardless of the budget and the target.
    pub fn set_short_of_space(&self, short: bool) {
        self.shared.short_of_space.store(short, Ordering::Relaxed);
    }

    /// Returns the bytes that one job may have to write before it frees any: a merge of all runs, with
    /// the live values of the largest file that has dead ones. As of the last observation.
    pub fn job_bytes(&self) -> u64 {
        self.shared.job_bytes.load(Ordering::Relaxed)
    }

    /// Records a user's scan of `range`.
    pub fn note_scan(&self, range: &KeyRange, scanned: Scanned) {
        if scanned.values > 1 {
            self.shared.heat.lock().note(range, scanned);
        }
    }

    /// Returns how much work writers must do themselves now.
    pub fn pressure(&self) -> Pressure {
        let mut assist = self.assist_ratio();
        let frozen = self.shared.index.frozen_count();
        if frozen >= FROZEN_MAX {
            let doublings = (frozen - FROZEN_MAX).min(8) as i32;
            assist = assist.max(ASSIST_MIN * 2f64.powi(doublings));
        }
        if assist > 0.0 { Pressure::Assist(assist.min(ASSIST_MAX)) } else { Pressure::None }
    }

    /// Returns statistics; while a step runs, those from before it.
    pub fn stats(&self) -> GcStats {
        if let Some(mut work) = self.work.try_lock() {
            self.publish(&mut work);
        }
        self.shared.stats.lock().clone()
    }

    /// Begins work under its lock. A panic stops the store before the lock is free, because the work
    /// may be half changed. Fails if the store has stopped.
    fn begin(&self) -> Result<StopOnPanic<'_>> {
        let log = &self.shared.log;
        log.check_poison()?;
        Ok(log.stop_on_panic("garbage collection"))
    }

    fn lock_for_step(&self) -> Option<MutexGuard<'_, Work, { rank::GC_WORK }>> {
        if self.shared.index.frozen_count() > FROZEN_MAX || self.assist_ratio() >= ASSIST_WAITS {
            return Some(self.work.lock());
        }
        self.work.try_lock()
    }

    fn publish(&self, work: &mut Work) {
        let (stats, load) = work.stats(&self.shared);
        *self.shared.load.lock() = load;
        *self.shared.stats.lock() = stats;
    }

    /// Returns the work that writers must do for each byte, without the flush debt; 0 while nothing
    /// can be done.
    fn assist_ratio(&self) -> f64 {
        if self.shared.stats.lock().stage == crate::Stage::Idle {
            return 0.0;
        }
        let user_bytes = self.shared.user_bytes.load(Ordering::Relaxed);
        let load = *self.shared.load.lock();
        load.assist(user_bytes, &self.shared.options())
    }
}

impl fmt::Debug for Gc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gc").field("options", &self.shared.options()).finish_non_exhaustive()
    }
}
