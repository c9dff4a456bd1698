//! The store's own threads: one commits what asynchronous callers submitted, one maintains, two read
//! ahead of long scans. Without them (`Options::background` off) the callers' own calls do both.

use super::commit::CommitQueue;
use super::scan_readahead::ReadaheadQueue;
use crate::store::Store;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use stele_storage::StorageEngine;
use stele_types::{Error, Result};

/// One slice of maintenance; between slices the thread looks whether to stop.
const SLICE_BYTES: u64 = 1 << 20;
/// How long maintenance sleeps when there was nothing to do.
const IDLE_SLEEP: Duration = Duration::from_millis(5);
/// Idle rounds after which the log's last batch is confirmed.
const CONFIRM_AFTER_ROUNDS: u32 = 200;

/// Two reads at once keep a device busy: 2.3 GB/s where one after the other gave 0.9 (a virtio disk,
/// reads of 1 MiB).
const READERS: usize = 2;

/// Wakes a thread that waits for work.
#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    raised: bool,
    stop: bool,
}

impl Signal {
    pub fn raise(&self) {
        self.state.lock().raised = true;
        self.changed.notify_one();
    }

    fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Sleeps until raised, stopped or `at_most` passed; false when stopped.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if !state.raised && !state.stop {
            match at_most {
                Some(limit) => {
                    self.changed.wait_for(&mut state, limit);
                }
                None => self.changed.wait(&mut state),
            }
        }
        state.raised = false;
        !state.stop
    }

    fn stopped(&self) -> bool {
        self.state.lock().stop
    }
}

/// The threads of one store; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Workers {
    commit: Arc<Signal>,
    maintain: Arc<Signal>,
    ahead: Arc<ReadaheadQueue>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub fn start(
        store: &Arc<Store>,
        queue: &Arc<CommitQueue>,
        unattended: Arc<Signal>,
    ) -> Result<Self> {
        let mut workers = Self {
            commit: unattended,
            maintain: Arc::default(),
            ahead: Arc::default(),
            threads: Vec::new(),
        };
        let (signal, committing) = (workers.commit.clone(), queue.clone());
        workers.spawn("stele-commit", move || commit_loop(&signal, &committing))?;
        let (signal, maintained) = (workers.maintain.clone(), store.clone());
        workers.spawn("stele-maintain", move || maintain_loop(&signal, &maintained))?;
        for _ in 0..READERS {
            let queue = workers.ahead.clone();
            workers.spawn("stele-read", move || queue.serve())?;
        }
        Ok(workers)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(run);
        let failed = |source| Error::Io { op: "start of a thread", path: name.into(), source };
        self.threads.push(thread.map_err(failed)?);
        Ok(())
    }

    /// Where iterators have slices read ahead.
    pub fn ahead(&self) -> Arc<ReadaheadQueue> {
        self.ahead.clone()
    }

    /// Has the committing thread look at the queue.
    pub fn commit_soon(&self) {
        self.commit.raise();
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.commit.stop();
        self.maintain.stop();
        self.ahead.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it; there is nothing left to clean.
            let _ = thread.join();
        }
    }
}

fn commit_loop(signal: &Signal, queue: &Arc<CommitQueue>) {
    while signal.wait(None) {
        while queue.lead_once() {}
    }
    while queue.lead_once() {}
}

fn maintain_loop(signal: &Signal, store: &Store) {
    let mut idle_rounds = 0;
    loop {
        let more = match store.maintain(SLICE_BYTES) {
            // Without bytes another caller is at work: looking again at once would only take its
            // processor.
            Ok(done) => done.more && done.bytes > 0,
            // The failure is kept in the statistics, and a poisoned store tells its writers.
            Err(_) => false,
        };
        idle_rounds = if more { 0 } else { idle_rounds + 1 };
        if idle_rounds == CONFIRM_AFTER_ROUNDS {
            // Best effort: it only helps to tell damage from a torn write later.
            let _ = store.log().confirm();
        }
        if more {
            if signal.stopped() {
                return;
            }
        } else if !signal.wait(Some(IDLE_SLEEP)) {
            return;
        }
    }
}
