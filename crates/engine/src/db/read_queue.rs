//! Work of the reading threads: reads of completion queues, many at a time, and slices that are
//! read ahead of long scans.
//!
//! Reads of completion queues: a thread looks up many keys, sorts the values by location and reads
//! them with many reads in flight at the device.
//!
//! Readahead of long scans: threads read the next slices of values while the caller uses the last
//! one. A scan never waits for its turn: it reads itself what no thread has started.

use super::completion_queue::{Answer, Ticket};
use super::is_live;
use crate::store::{ReadSlice, Slice, Store, View};
use bytes::Bytes;
use parking_lot::Condvar;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_types::error::caught;
use stele_types::lock::{Mutex, rank};
use stele_types::{Clock, Locator, Result, ValueRef};

/// Two concurrent reads keep a device busy: 2.3 GB/s where sequential ones gave 0.9 (a virtio disk,
/// reads of 1 MiB).
pub(super) const READERS: usize = 2;
const BATCH_READS_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct ReadQueue {
    waiting: Mutex<Waiting, { rank::READ_QUEUE }>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    reads: VecDeque<QueuedRead>,
    /// Number of reads that threads have taken and not answered.
    taken: usize,
    slices: VecDeque<Arc<Job>>,
    stopped: bool,
}

impl Waiting {
    /// Takes a thread's share of the waiting reads, so that all threads have reads in flight and
    /// the device is not idle between two batches.
    fn take_reads(&mut self) -> Vec<QueuedRead> {
        let share = (self.reads.len() + self.taken).div_ceil(READERS);
        let batch = share.min(BATCH_READS_MAX).min(self.reads.len());
        self.taken += batch;
        self.reads.drain(..batch).collect()
    }
}

enum Work {
    Reads(Vec<QueuedRead>),
    Slice(Arc<Job>),
}

impl ReadQueue {
    pub(super) fn submit(&self, read: QueuedRead) {
        let mut waiting = self.waiting.lock();
        if waiting.stopped {
            // Completes the call with an error, outside the lock.
            drop(waiting);
            drop(read);
            return;
        }
        waiting.reads.push_back(read);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Submits a slice to a thread if it is long enough; otherwise its iterator reads it.
    pub(super) fn submit_slice(&self, readahead: &ScanReadahead) {
        let Some(job) = readahead.long_job() else { return };
        let mut waiting = self.waiting.lock();
        if !waiting.stopped {
            waiting.slices.push_back(job);
            self.changed.notify_one();
        }
    }

    pub(super) fn serve(&self, reader: &Reader) {
        while let Some(work) = self.next() {
            match work {
                Work::Slice(job) => job.run(),
                Work::Reads(reads) => {
                    let taken = reads.len();
                    reader.answer(reads);
                    self.waiting.lock().taken -= taken;
                }
            }
        }
    }

    /// Returns the next work. Reads come first: an iterator reads itself what no thread has started.
    fn next(&self) -> Option<Work> {
        let mut waiting = self.waiting.lock();
        loop {
            if waiting.stopped {
                return None;
            }
            if !waiting.reads.is_empty() {
                return Some(Work::Reads(waiting.take_reads()));
            }
            if let Some(job) = waiting.slices.pop_front() {
                return Some(Work::Slice(job));
            }
            self.changed.wait(waiting.for_wait());
        }
    }

    /// Ends [`ReadQueue::serve`]. Iterators continue without it; waiting reads are completed with an
    /// error.
    pub(super) fn stop(&self) {
        let mut waiting = self.waiting.lock();
        waiting.stopped = true;
        waiting.slices.clear();
        let reads = std::mem::take(&mut waiting.reads);
        drop(waiting);
        self.changed.notify_all();
        drop(reads);
    }
}

#[derive(Debug)]
pub(super) struct QueuedRead {
    pub ticket: Ticket,
    pub key: Bytes,
    pub wanted: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Value,
    Existence,
}

enum LookedUp {
    Answered(Answer),
    /// The value must be read.
    At(Locator),
}

#[derive(Clone, Debug)]
pub(super) struct Reader {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
}

impl Reader {
    pub(super) fn new(store: Arc<Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Completes all of `reads`. A panic completes the rest with an error: it drops their tickets,
    /// and a read changes nothing else.
    pub(super) fn answer(&self, reads: Vec<QueuedRead>) {
        // The panic hook has reported it.
        let _ = caught("a read of a completion queue", || self.look_up_and_read(reads));
    }

    fn look_up_and_read(&self, reads: Vec<QueuedRead>) {
        let shared = self.store.shared();
        // The view is of a moment after the submission of all of them, and pins the value files.
        let view = View::new(shared);
        let (mut tickets, mut places) = (Vec::new(), Vec::new());
        for QueuedRead { ticket, key, wanted } in reads {
            match self.look_up(&view, &ticket, &key, wanted) {
                Ok(LookedUp::Answered(answer)) => ticket.complete(Ok(answer)),
                Ok(LookedUp::At(at)) => {
                    tickets.push(Some(ticket));
                    places.push(at);
                }
                Err(error) => ticket.complete(Err(error)),
            }
        }
        shared.log.read_each(&places, |at, value| {
            let (Some(ticket), Some(place)) =
                (tickets.get_mut(at).and_then(Option::take), places.get(at))
            else {
                return;
            };
            if let Ok(value) = &value {
                shared.values.insert(place, value);
            }
            ticket.complete(value.map(|value| Answer::Value(Some(value))));
        });
    }

    fn look_up(
        &self,
        view: &View,
        ticket: &Ticket,
        key: &[u8],
        wanted: Wanted,
    ) -> Result<LookedUp> {
        let found = view.reference(key)?;
        let found = found.filter(|(_, expires_at_s)| is_live(&*self.clock, *expires_at_s));
        let answer = match (wanted, found) {
            (Wanted::Existence, found) => Answer::Exists(found.is_some()),
            (Wanted::Value, None) => Answer::Value(None),
            (Wanted::Value, Some((ValueRef::Inline(value), _))) => {
                ticket.check_value_bytes(value.len())?;
                Answer::Value(Some(value))
            }
            (Wanted::Value, Some((ValueRef::At(at), _))) => {
                ticket.check_value_bytes(at.length as usize)?;
                match self.store.shared().values.get(&at) {
                    Some(value) => Answer::Value(Some(value)),
                    None => return Ok(LookedUp::At(at)),
                }
            }
        };
        Ok(LookedUp::Answered(answer))
    }
}

/// Limit for the reads of a slice that is read ahead: they would continue if a caller stops early.
const READS_MAX: usize = 256;
/// Size below which a slice is read faster than another thread wakes up.
const VALUE_BYTES_MIN: u64 = 128 << 10;

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
