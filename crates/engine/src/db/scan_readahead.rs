//! Readahead of long scans: threads read the next slices of values while the caller uses the last
//! one. A scan never waits for its turn: it reads itself what no thread has started.

use crate::store::{ReadSlice, Slice, View};
use parking_lot::Condvar;
use std::sync::Arc;
use stele_types::Result;
use stele_types::error::caught;
use stele_types::lock::{Mutex, rank};

/// Limit for the reads of a slice that is read ahead: they would continue if a caller stops early.
const READS_MAX: usize = 256;
/// Size below which a slice is read faster than another thread wakes up.
const VALUE_BYTES_MIN: u64 = 128 << 10;

/// A slice and its result.
#[derive(Debug)]
pub(super) struct Job {
    state: Mutex<State, { rank::READAHEAD_SLICE }>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    /// Not started. The view pins the slice's files.
    Waiting(Arc<View>, Slice),
    Reading,
    Read(Result<ReadSlice>),
    /// The result was taken, or is no longer needed.
    Taken,
}

/// A slice that another thread may have read.
#[derive(Debug)]
pub(super) struct ScanReadahead {
    job: Arc<Job>,
    long: bool,
}

impl Job {
    /// Reads the slice unless it was read already or is no longer needed.
    pub(super) fn run(&self) {
        let mut state = self.state.lock();
        let State::Waiting(view, slice) = std::mem::replace(&mut *state, State::Reading) else {
            *state = State::Taken;
            return;
        };
        drop(state);
        // Invariant: a slice that is being read becomes `Read`, also by a panic: its iterator waits
        // for it. The read changes nothing else.
        let read = || view.read(slice);
        // bug engine.readahead_panic_lost: `caught("a read of a scan", read)` is `Ok(read())`
        let read = caught("a read of a scan", read).flatten();
        let mut state = self.state.lock();
        if matches!(*state, State::Reading) {
            *state = State::Read(read);
        }
        drop(state);
        self.done.notify_one();
    }
}

impl ScanReadahead {
    /// Wraps a slice of `view`, which pins the files it needs.
    pub(super) fn new(view: &Arc<View>, slice: Slice) -> Self {
        let long = slice.value_bytes() >= VALUE_BYTES_MIN && slice.reads() <= READS_MAX;
        let state = Mutex::new(State::Waiting(view.clone(), slice));
        Self { job: Arc::new(Job { state, done: Condvar::new() }), long }
    }

    /// Returns the work for a thread, if the slice is long enough for one.
    pub(super) fn long_job(&self) -> Option<Arc<Job>> {
        self.long.then(|| self.job.clone())
    }

    pub(super) fn take(self) -> Result<ReadSlice> {
        let mut state = self.job.state.lock();
        while matches!(*state, State::Reading) {
            self.job.done.wait(state.for_wait());
        }
        let taken = std::mem::replace(&mut *state, State::Taken);
        drop(state);
        match taken {
            State::Waiting(view, slice) => view.read(slice),
            State::Read(read) => read,
            State::Reading | State::Taken => Ok(ReadSlice::default()),
        }
    }
}

impl Drop for ScanReadahead {
    fn drop(&mut self) {
        *self.job.state.lock() = State::Taken;
    }
}
