//! The store's own threads: one commits the submissions of asynchronous callers, one does
//! maintenance, two read: for completion queues, and ahead of long scans. Without them
//! (`Options::background` off) the callers' own calls do the work.
//!
//! Invariant: a thread that panics stops the store, so that later writes fail instead of waiting for
//! its work.

use super::commit::CommitPipeline;
use super::read_queue::{READERS, ReadQueue, Reader};
use crate::store::Store;
use parking_lot::Condvar;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stele_storage::StateMachine;
use stele_types::error::caught;
use stele_types::lock::{Mutex, rank};
use stele_types::{Clock, Error, Result};

/// Bytes of one slice of maintenance; the thread checks for a stop between slices.
const SLICE_BYTES: u64 = 1 << 20;
/// Time that maintenance sleeps when there was nothing to do.
const IDLE_SLEEP: Duration = Duration::from_millis(5);
/// Number of idle rounds after which the log's last batch is confirmed.
const CONFIRM_AFTER_ROUNDS: u32 = 200;

#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<SignalState, { rank::SIGNAL }>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    raised: bool,
    stop: bool,
}

impl Signal {
    pub(super) fn raise(&self) {
        self.state.lock().raised = true;
        self.changed.notify_one();
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Sleeps until raised, stopped or `at_most` has passed; returns false when stopped.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if !state.raised && !state.stop {
            match at_most {
                Some(limit) => {
                    self.changed.wait_for(state.for_wait(), limit);
                }
                None => self.changed.wait(state.for_wait()),
            }
        }
        state.raised = false;
        !state.stop
    }

    fn stopped(&self) -> bool {
        self.state.lock().stop
    }
}

/// Threads of one store; dropping this stops and joins them.
#[derive(Debug)]
pub(super) struct Workers {
    commit: Arc<Signal>,
    maintain: Arc<Signal>,
    reads: Arc<ReadQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(super) fn start(
        store: &Arc<Store>,
        pipeline: &Arc<CommitPipeline>,
        reader: &Reader,
        unattended: Arc<Signal>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let mut workers = Self {
            commit: unattended,
            maintain: Arc::default(),
            reads: Arc::default(),
            threads: Vec::new(),
        };
        let (signal, committing) = (workers.commit.clone(), pipeline.clone());
        workers.spawn(store, "stele-commit", move || commit_loop(&signal, &committing))?;
        let (signal, maintained) = (workers.maintain.clone(), store.clone());
        let watch = PlaceWatch::new(clock);
        let run = move || maintain_loop(&signal, &maintained, watch);
        workers.spawn(store, "stele-maintain", run)?;
        for _ in 0..READERS {
            let (queue, reader) = (workers.reads.clone(), reader.clone());
            workers.spawn(store, "stele-read", move || queue.serve(&reader))?;
        }
        Ok(workers)
    }

    fn spawn(
        &mut self,
        store: &Arc<Store>,
        name: &'static str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let store = store.clone();
        let run = move || {
            // The failure is in the errors of later calls.
            let _ = stop_on_panic(&store, name, run);
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        let failed = |source| Error::Io { op: "start of a thread", path: name.into(), source };
        self.threads.push(thread.map_err(failed)?);
        Ok(())
    }

    pub(super) fn reads(&self) -> &Arc<ReadQueue> {
        &self.reads
    }

    pub(super) fn commit_soon(&self) {
        self.commit.raise();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.commit.stop();
        self.maintain.stop();
        self.reads.stop();
        for thread in self.threads.drain(..) {
            // No thread ends by a panic.
            let _ = thread.join();
        }
    }
}

/// Runs a part of the store's work. A panic stops the store and is returned.
pub(super) fn stop_on_panic<T>(store: &Store, name: &str, work: impl FnOnce() -> T) -> Result<T> {
    // bug engine.worker_panic_unseen: `store.log().stop(panicked)` is `panicked`
    caught(name, work).map_err(|panicked| store.log().stop(panicked))
}

/// Runs `work` on each item, on a thread of its own, with the item's number. Returns the results in
/// the order of the items; a panic is the result of its item.
pub(crate) fn each_on_a_thread<T: Send, R: Send>(
    name: &'static str,
    items: Vec<T>,
    work: impl Fn(usize, T) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let work = &work;
    std::thread::scope(|scope| {
        let run =
            |(number, item)| scope.spawn(move || caught(name, || work(number, item)).flatten());
        let threads: Vec<_> = items.into_iter().enumerate().map(run).collect();
        let lost = |_| Err(Error::Panicked(format!("{name} panicked")));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    })
}

fn commit_loop(signal: &Signal, pipeline: &CommitPipeline) {
    while signal.wait(None) {
        while pipeline.lead_once() {}
    }
    while pipeline.lead_once() {}
}

fn maintain_loop(signal: &Signal, store: &Store, mut watch: PlaceWatch) {
    let mut idle_rounds = 0;
    loop {
        watch.step(store);
        // The statistics keep a failure, and a poisoned store reports it to its writers.
        let done = store.maintain(SLICE_BYTES).unwrap_or_default();
        // Without bytes another caller is working: an immediate retry would only take its processor.
        let more = done.more && done.bytes > 0;
        idle_rounds = if more { 0 } else { idle_rounds + 1 };
        if idle_rounds == CONFIRM_AFTER_ROUNDS {
            // Best effort: it only helps to distinguish damage from a torn write later.
            let _ = store.log().confirm();
        }
        if more || done.scrubbed_bytes > 0 {
            if signal.stopped() {
                return;
            }
        } else if !signal.wait(Some(IDLE_SLEEP)) {
            return;
        }
    }
}

/// Nanoseconds between two checks.
const CHECK_NANOS: u64 = 5_000_000_000;

/// Checks of a store's own thread that its directory is still where it was opened. The stores of a
/// node are checked at its heartbeats instead.
#[derive(Debug)]
pub(super) struct PlaceWatch {
    clock: Arc<dyn Clock>,
    checked_nanos: u64,
    is_displaced: bool,
    has_stopped: bool,
}

impl PlaceWatch {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let checked_nanos = clock.monotonic_nanos();
        Self { clock, checked_nanos, is_displaced: false, has_stopped: false }
    }

    /// Checks the place if that is due. Invariant: a store of which the directory was moved away,
    /// deleted or replaced at two checks in a row stops, so that it acknowledges nothing that would be
    /// lost with it. A directory that is moved and moved back at once stops no store.
    pub(super) fn step(&mut self, store: &Store) {
        let now = self.clock.monotonic_nanos();
        let is_due = now.saturating_sub(self.checked_nanos) >= CHECK_NANOS;
        // bug engine.embedded_place_unwatched: always
        if self.has_stopped || !is_due {
            return;
        }
        self.checked_nanos = now;
        // A device that does not answer shows elsewhere.
        let displaced = store.check_place().err().filter(|e| matches!(e, Error::WrongStore { .. }));
        let was_displaced = std::mem::replace(&mut self.is_displaced, displaced.is_some());
        if let Some(error) = displaced.filter(|_| was_displaced) {
            store.stop(error);
            self.has_stopped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::store::Replay;
    use std::path::Path;
    use stele_simulated_disk::{SimOptions, SimVfs};
    use stele_types::ManualClock;

    #[test]
    fn a_worker_that_panics_stops_the_store_with_its_message() {
        let vfs = Arc::new(SimVfs::new(SimOptions::default()));
        let (clock, dir) = (Arc::new(ManualClock::at(1)), Path::new("/store"));
        let opened = Store::open(vfs, clock.clone(), dir, Options::default(), Replay::All);
        let store = Arc::new(opened.unwrap().0);
        let pipeline = CommitPipeline::new(store.clone(), 1 << 20, Arc::default());
        let reader = Reader::new(store.clone(), clock.clone());
        let workers = Workers::start(&store, &pipeline, &reader, Arc::default(), clock);
        let mut workers = workers.unwrap();
        workers.spawn(&store, "stele-test", || panic!("a bug of a worker")).unwrap();
        drop(workers);
        let error = store.log().check_poison().unwrap_err();
        assert!(matches!(error, Error::Poisoned(_)), "{error}");
        assert!(error.to_string().contains("stele-test panicked: a bug of a worker"), "{error}");
    }

    #[test]
    fn a_store_that_is_displaced_at_two_checks_in_a_row_stops() {
        const DIR: &str = "/store";
        let (disk, clock) = (SimVfs::default(), Arc::new(ManualClock::at(1)));
        let vfs = Arc::new(disk.clone());
        let opened =
            Store::open(vfs, clock.clone(), Path::new(DIR), Options::default(), Replay::All);
        let (store, mut watch) = (opened.unwrap().0, PlaceWatch::new(clock.clone()));
        let mut is_stopped_after = |seconds| {
            clock.advance_seconds(seconds);
            watch.step(&store);
            store.log().check_poison().is_err()
        };
        assert!(!is_stopped_after(5));
        disk.move_dir(DIR, "/away");
        assert!(!is_stopped_after(5), "the first check");
        assert!(!is_stopped_after(1), "no check is due");
        disk.move_dir("/away", DIR);
        assert!(!is_stopped_after(5), "it is back");
        disk.move_dir(DIR, "/away");
        assert!(!is_stopped_after(5));
        assert!(is_stopped_after(5));
        let error = store.log().check_poison().unwrap_err().to_string();
        assert!(error.contains("moved away or deleted"), "{error}");
    }
}
