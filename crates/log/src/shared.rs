//! State shared by appends, reads and maintenance. Part of it are the files open for reading: few,
//! and shared by all stores of the process. A file stays valid while a reader holds it.
//!
//! Invariant: after a failed write or sync nothing is appended. The durable state is unknown, and a second sync
//! that succeeds would prove nothing.
//! Test: `fault_17_a_failed_sync_stops_the_log_for_good`.

use crate::catalog::Catalog;
use crate::dir::{Dir, Name};
use crate::history::Pins;
use crate::read::EntryCache;
use crate::read_pool::ReadPool;
use crate::read_share::{LongReads, ScatteredReads};
use crate::region::Regions;
use crate::{FileKind, LogOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use stele_types::lock::{Mutex, RwLock, rank};
use stele_types::{Error, FileId, Lsn, Result};
use stele_vfs::{Handles, VfsFile};

#[derive(Debug)]
pub(crate) struct Shared {
    pub dir: Dir,
    pub options: LogOptions,
    /// Locked only briefly: readers never wait for a write or sync.
    pub state: RwLock<State, { rank::LOG_STATE }>,
    pub catalog: RwLock<Catalog, { rank::LOG_CATALOG }>,
    pub handles: Handles,
    pub cache: EntryCache,
    pub read_pool: ReadPool,
    pub long_reads: LongReads,
    pub scattered_reads: ScatteredReads,
    pub poison: Poison,
    /// Whether other replicas may hold a copy of what is unreadable here. If so, no index is
    /// rebuilt from values.
    pub has_replicas: bool,
    pub counters: Counters,
    pub pins: Pins,
    pub free: Mutex<Vec<FileId>, { rank::LOG_FREE }>,
    pub next_file: AtomicU32,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub regions: Regions,
    pub head: Lsn,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub batches: AtomicU64,
    pub syncs: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub rolls: AtomicU64,
    pub recycled: AtomicU64,
    pub zeroed: AtomicU64,
    pub batched_reads: AtomicU64,
    pub direct_retries: AtomicU64,
    pub buffer_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn allocate_file(&self) -> FileId {
        FileId(self.next_file.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name of a value file. Fails with `Missing` for an unknown file.
    pub(crate) fn value_name(&self, file: FileId) -> Result<Name> {
        match self.catalog.read().get(file).map(|meta| meta.kind) {
            Some(FileKind::Segment { .. }) => Ok(Name::Segment(file)),
            Some(FileKind::Sorted) => Ok(Name::Sorted(file)),
            Some(FileKind::Tombstones) | None => {
                let path = self.dir.path.join(format!("{:08x}", file.0));
                Err(Error::Missing { path, detail: "no value file has this number".to_string() })
            }
        }
    }

    /// Returns the end of a segment's frames: known for sealed ones, the head for the active one.
    pub(crate) fn end_of(&self, segment: FileId) -> Option<u32> {
        let head = self.state.read().head;
        if head.file == segment {
            return Some(head.offset);
        }
        self.catalog.read().get(segment).and_then(|meta| meta.end)
    }

    /// Returns the first segment that is needed: by an entry, or by the chain that recovery follows
    /// to the head.
    pub(crate) fn wanted_from(&self) -> FileId {
        let state = self.state.read();
        state.regions.first_wanted().unwrap_or(state.head.file).min(state.head.file)
    }
}

impl Shared {
    /// Returns a handle through the page cache if the file is open.
    pub(crate) fn open_handle(&self, file: FileId) -> Option<Arc<dyn VfsFile>> {
        self.handles.get(u64::from(file.0), false)
    }

    /// Returns a handle through the page cache.
    pub(crate) fn handle(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.handle_of(name, false)
    }

    /// Returns a handle past the page cache if the options say so and the file system supports it.
    pub(crate) fn handle_direct(&self, name: Name) -> Result<Arc<dyn VfsFile>> {
        self.handle_of(name, true)
    }

    /// Invariant: no handle of a removed file is kept, which would hold its space on the device. A
    /// removal takes the file out of the catalog before it forgets the handles.
    fn handle_of(&self, name: Name, is_direct: bool) -> Result<Arc<dyn VfsFile>> {
        let number = u64::from(name.file().0);
        if let Some(file) = self.handles.get(number, is_direct) {
            return Ok(file);
        }
        let file = match is_direct {
            true => self.dir.open_direct(name)?,
            false => self.dir.open_read(name)?,
        };
        let catalog = self.catalog.read();
        let is_known = catalog.get(name.file()).is_some();
        // bug log.handle_of_removed_file: `is_known` is `true`
        match is_known {
            true => Ok(self.handles.insert(number, is_direct, file)),
            false => Ok(file),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Poison {
    set: AtomicBool,
    reason: Mutex<String, { rank::LOG_POISON }>,
}

impl Poison {
    pub(crate) fn check(&self) -> Result<()> {
        // bug log.retry_after_failed_sync: always
        if !self.is_set() {
            return Ok(());
        }
        Err(Error::Poisoned(self.reason.lock().clone()))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    /// Stops the log because of `error`, unless the device is merely full. Returns the error.
    pub(crate) fn unless_full(&self, error: Error) -> Error {
        if matches!(error, Error::NoSpace(_)) {
            return error;
        }
        self.set(error)
    }

    /// Returns a guard that stops the log if a panic drops it. Declare it after the lock that it
    /// belongs to: it is then dropped before the lock is free.
    pub(crate) fn on_panic(&self, interrupted: &'static str) -> StopOnPanic<'_> {
        StopOnPanic { poison: self, interrupted }
    }

    /// Stops the log because of `error`. Returns the error.
    pub(crate) fn set(&self, error: Error) -> Error {
        if !self.set.load(Ordering::Acquire) {
            *self.reason.lock() = error.to_string();
            self.set.store(true, Ordering::Release);
        }
        error
    }
}

/// Stops the log if a panic drops it.
///
/// Invariant: no other thread uses what a panic left half changed. The log has stopped before the
/// lock on it is free.
/// Test: `a_lock_that_a_panic_frees_protects_nothing_that_is_used_again`.
#[derive(Debug)]
pub struct StopOnPanic<'a> {
    poison: &'a Poison,
    interrupted: &'static str,
}

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        // bug log.panic_stops_nothing: never
        if std::thread::panicking() {
            let interrupted = self.interrupted;
            self.poison.set(Error::Panicked(format!("a panic interrupted {interrupted}")));
        }
    }
}
