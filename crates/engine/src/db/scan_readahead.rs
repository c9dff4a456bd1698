//! Reading ahead of long scans: threads read the next slices of values while the caller uses the
//! last one. A scan never waits for its turn: what no thread has begun, it reads itself.

use crate::store::{ReadSlice, Slice, View};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use stele_types::Result;

/// A slice of more reads is not read ahead: a caller that stops early would leave them running.
const READS_MAX: usize = 256;
/// Shorter slices are read sooner than another thread wakes up.
const VALUE_BYTES_MIN: u64 = 128 << 10;

/// Slices that wait for a thread; a few of each iterator.
#[derive(Debug, Default)]
pub(super) struct ReadaheadQueue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Arc<Job>>,
    stopped: bool,
}

#[derive(Debug)]
struct Job {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    /// With the view that keeps the slice's files while they are read.
    Waiting(Arc<View>, Slice),
    Reading,
    Read(Result<ReadSlice>),
    /// Nobody wants it any more.
    Taken,
}

/// A slice that may be read by now.
#[derive(Debug)]
pub(super) struct ScanReadahead {
    job: Arc<Job>,
    long: bool,
}

impl ReadaheadQueue {
    /// Has the slice read by a thread if that is worth it, else it is read when taken.
    pub fn submit(&self, ahead: &ScanReadahead) {
        let mut waiting = self.waiting.lock();
        if ahead.long && !waiting.stopped {
            waiting.jobs.push_back(ahead.job.clone());
            self.changed.notify_one();
        }
    }

    /// Reads what is submitted until stopped.
    pub fn serve(&self) {
        while let Some(job) = self.next() {
            job.run();
        }
    }

    fn next(&self) -> Option<Arc<Job>> {
        let mut waiting = self.waiting.lock();
        while !waiting.stopped && waiting.jobs.is_empty() {
            self.changed.wait(&mut waiting);
        }
        waiting.jobs.pop_front()
    }

    /// Ends [`ReadaheadQueue::serve`]. Iterators go on by themselves.
    pub fn stop(&self) {
        let mut waiting = self.waiting.lock();
        waiting.stopped = true;
        waiting.jobs.clear();
        self.changed.notify_all();
    }
}

impl Job {
    /// Reads the slice unless somebody else did or nobody wants it.
    fn run(&self) {
        let mut state = self.state.lock();
        let State::Waiting(view, slice) = std::mem::replace(&mut *state, State::Reading) else {
            *state = State::Taken;
            return;
        };
        drop(state);
        let read = view.read(slice);
        let mut state = self.state.lock();
        if matches!(*state, State::Reading) {
            *state = State::Read(read);
        }
        drop(state);
        self.done.notify_one();
    }
}

impl ScanReadahead {
    /// A slice of `view`, which keeps the files it needs.
    pub fn new(view: &Arc<View>, slice: Slice) -> Self {
        let long = slice.value_bytes() >= VALUE_BYTES_MIN && slice.reads() <= READS_MAX;
        let state = Mutex::new(State::Waiting(view.clone(), slice));
        Self { job: Arc::new(Job { state, done: Condvar::new() }), long }
    }

    /// The slice, read.
    pub fn take(self) -> Result<ReadSlice> {
        let mut state = self.job.state.lock();
        while matches!(*state, State::Reading) {
            self.job.done.wait(&mut state);
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
