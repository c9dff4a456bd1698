//! Engine that applies behind a queue, on a thread of its own: what the BUC-Raft paper's systems do, of
//! which apply is slow.
//!
//! A plain command is visible to views as soon as it waits: its effects lie over the inner engine's view
//! ([`stele_storage::Overlay`]). What needs an exact inner state waits until nothing waits any more: administrative
//! entries, snapshots that are installed, ranges that are dropped or repaired, starts and ends of regions.

mod engine;
mod queue;

pub use queue::Applied;

use parking_lot::{Condvar, Mutex};
use queue::{Queue, Run};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stele_storage::{Overlaid, Progress, StorageEngine};
use stele_types::{Clock, CommittedEntry, Error, LogIndex, RegionId, Result};

/// Payload bytes that wait at most; a store's limit of entries in memory that are not applied.
const WAITING_BYTES_MAX: u64 = 256 << 20;
const THREAD: &str = "baseline-apply";

/// Engine with a queue before it, or without one.
pub struct Queued<E: StorageEngine> {
    shared: Arc<Shared<E>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<E> {
    inner: E,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    /// A run arrived, or the engine is dropped.
    arrived: Condvar,
    /// A run was applied, or applying failed.
    applied: Condvar,
}

impl<E: StorageEngine + 'static> Queued<E> {
    /// Puts a queue before `inner`. Fails if no thread can be started.
    pub fn new(inner: E, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut queued = Self::direct(inner, clock);
        let shared = queued.shared.clone();
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        let thread = thread.spawn(move || shared.run());
        queued.thread = Some(thread.map_err(|error| Error::io("start a thread", THREAD, error))?);
        Ok(queued)
    }
}

impl<E: StorageEngine> Queued<E> {
    /// Applies to `inner` at once.
    pub fn direct(inner: E, clock: Arc<dyn Clock>) -> Self {
        let (queue, arrived, applied) = Default::default();
        let shared = Arc::new(Shared { inner, clock, queue, arrived, applied });
        Self { shared, thread: None }
    }

    /// Returns the engine behind the queue.
    pub fn inner(&self) -> &E {
        &self.shared.inner
    }

    /// Returns what the queue has applied.
    pub fn times(&self) -> Applied {
        self.shared.queue.lock().times()
    }

    /// Waits until the inner engine has applied an entry. Returns `false` if it has not after `limit`.
    /// Fails when applying failed.
    pub fn wait_applied(&self, region: RegionId, index: LogIndex, limit: Duration) -> Result<bool> {
        let mut queue = self.shared.queue.lock();
        loop {
            queue.check()?;
            let progress = self.shared.inner.progress(region);
            if progress.is_some_and(|progress| progress.applied >= index) {
                return Ok(true);
            }
            if self.shared.applied.wait_for(&mut queue, limit).timed_out() {
                return Ok(false);
            }
        }
    }

    /// Waits until nothing waits. Fails when applying failed.
    fn drain(&self) -> Result<()> {
        let mut queue = self.shared.queue.lock();
        while !queue.is_empty() {
            queue.check()?;
            self.shared.applied.wait(&mut queue);
        }
        queue.check()
    }

    fn enqueue(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let run = Run::new(region, entries.to_vec(), self.shared.clock.monotonic_nanos());
        let mut queue = self.shared.queue.lock();
        while !queue.has_room(&run, WAITING_BYTES_MAX) {
            queue.check()?;
            self.shared.applied.wait(&mut queue);
        }
        queue.check_next(&run, self.shared.inner.progress(region))?;
        queue.push(run)?;
        self.shared.arrived.notify_one();
        Ok(())
    }

    fn progress_with_waiting(&self, region: RegionId) -> Option<Progress> {
        let queue = self.shared.queue.lock();
        let mut progress = self.shared.inner.progress(region)?;
        progress.applied = progress.applied.max(queue.last_of(region).unwrap_or_default());
        Some(progress)
    }

    /// Returns a view of all that was queued. Invariant: it is taken under the lock, so that it holds
    /// all that the overlay has dropped, and nothing that the overlay lacks.
    fn overlaid(&self) -> Result<Overlaid<E::View>> {
        let queue = self.shared.queue.lock();
        Ok(Overlaid::new(self.shared.inner.view()?, queue.effects()))
    }
}

impl<E: StorageEngine> Shared<E> {
    /// Applies what waits until the engine is dropped or applying fails.
    fn run(&self) {
        loop {
            let mut queue = self.queue.lock();
            let run = loop {
                match queue.take() {
                    _ if queue.is_stopped() => return,
                    Some(run) => break run,
                    None => self.arrived.wait(&mut queue),
                }
            };
            drop(queue);
            let began_nanos = self.clock.monotonic_nanos();
            let result = self.inner.apply(run.region, &run.entries);
            let times = (began_nanos, self.clock.monotonic_nanos());
            let mut queue = self.queue.lock();
            let is_failed = result.is_err();
            queue.note_applied(run, times, result);
            self.applied.notify_all();
            if is_failed {
                return;
            }
        }
    }
}

impl<E: StorageEngine> Drop for Queued<E> {
    /// Ends the thread without what waits, as a crash does: it is in the log.
    fn drop(&mut self) {
        self.shared.queue.lock().stop();
        self.shared.arrived.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
