//! Slots, results and memory of a completion queue.

use super::{Answer, Completed, Notify, QueueOptions, QueueStats, of_shard};
use parking_lot::Condvar;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_types::lock::{Mutex, rank};
use stele_types::{Error, Result};

pub(super) struct QueueSlots {
    pub options: QueueOptions,
    state: Mutex<State, { rank::COMPLETION_QUEUE }>,
    /// Signals that as many results are there as a collecting thread waits for.
    completed: Condvar,
    /// Signals that slots are free.
    room: Condvar,
    notify: Option<Arc<dyn Notify>>,
}

struct State {
    completed: VecDeque<Completed>,
    in_flight: usize,
    memory_bytes: u64,
    memory_bytes_peak: u64,
    accepted: u64,
    /// Number of results at which waiting threads are woken; `usize::MAX` if none waits.
    wake_at: usize,
}

impl State {
    fn slots_taken(&self) -> usize {
        // Invariant: a result keeps its slot until it is collected. Otherwise results that are not
        // collected would take memory without bound.
        // bug engine.slot_freed_at_completion: `self.completed.len()` is `0`
        self.in_flight + self.completed.len()
    }
}

impl std::fmt::Debug for QueueSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueueSlots").field("options", &self.options).finish_non_exhaustive()
    }
}

impl QueueSlots {
    pub(super) fn new(options: QueueOptions, notify: Option<Arc<dyn Notify>>) -> Arc<Self> {
        let state = State {
            completed: VecDeque::with_capacity(options.depth),
            in_flight: 0,
            memory_bytes: 0,
            memory_bytes_peak: 0,
            accepted: 0,
            wake_at: usize::MAX,
        };
        let (completed, room) = (Condvar::new(), Condvar::new());
        Arc::new(Self { options, state: Mutex::new(state), completed, room, notify })
    }

    /// Takes a slot for a call that holds at most `reserved_bytes`. If all are taken, waits or fails
    /// with [`Error::Busy`].
    pub(super) fn take_slot(
        self: &Arc<Self>,
        tag: u64,
        reserved_bytes: usize,
        shard: Option<Arc<Path>>,
        waits: bool,
    ) -> Result<Ticket> {
        let mut state = self.state.lock();
        while state.slots_taken() >= self.options.depth {
            if !waits {
                let depth = self.options.depth;
                return Err(Error::Busy(format!("all {depth} slots of the queue are taken")));
            }
            self.room.wait(state.for_wait());
        }
        state.in_flight += 1;
        state.accepted += 1;
        state.memory_bytes += reserved_bytes as u64;
        state.memory_bytes_peak = state.memory_bytes_peak.max(state.memory_bytes);
        drop(state);
        Ok(Ticket { queue: self.clone(), tag, reserved_bytes, shard, is_open: true })
    }

    pub(super) fn collect(&self, into: &mut Vec<Completed>) -> usize {
        let mut state = self.state.lock();
        let bytes: u64 = state.completed.iter().map(|done| value_bytes(&done.result)).sum();
        state.memory_bytes -= bytes;
        let collected = state.completed.len();
        into.extend(state.completed.drain(..));
        drop(state);
        if collected > 0 {
            self.room.notify_all();
        }
        collected
    }

    pub(super) fn wait(&self, at_least: usize, timeout: Duration) {
        let mut state = self.state.lock();
        let wanted = at_least.min(state.in_flight + state.completed.len());
        if state.completed.len() >= wanted {
            return;
        }
        state.wake_at = state.wake_at.min(wanted);
        self.completed.wait_for(state.for_wait(), timeout);
    }

    pub(super) fn stats(&self) -> QueueStats {
        let state = self.state.lock();
        QueueStats {
            in_flight: state.in_flight,
            completed: state.completed.len(),
            memory_bytes: state.memory_bytes,
            memory_bytes_peak: state.memory_bytes_peak,
            accepted: state.accepted,
        }
    }

    fn complete(&self, reserved_bytes: usize, done: Completed) {
        let mut state = self.state.lock();
        state.memory_bytes -= reserved_bytes as u64;
        state.memory_bytes += value_bytes(&done.result);
        state.in_flight -= 1;
        let was_empty = state.completed.is_empty();
        state.completed.push_back(done);
        let wakes = state.completed.len() >= state.wake_at;
        if wakes {
            state.wake_at = usize::MAX;
        }
        drop(state);
        if wakes {
            self.completed.notify_all();
        }
        // The event loop collects all results after each notice, so that one for the first is
        // enough.
        if let Some(notify) = self.notify.as_ref().filter(|_| was_empty) {
            notify.notify();
        }
    }

    fn withdraw(&self, reserved_bytes: usize) {
        let mut state = self.state.lock();
        state.memory_bytes -= reserved_bytes as u64;
        state.in_flight -= 1;
        state.accepted -= 1;
        drop(state);
        self.room.notify_all();
    }
}

fn value_bytes(result: &Result<Answer>) -> u64 {
    match result {
        Ok(Answer::Value(Some(value))) => value.len() as u64,
        _ => 0,
    }
}

/// Slot of a call in flight.
///
/// Invariant: a ticket puts exactly one result into its queue, also if it is dropped: by a panic, or
/// with a store that is closed.
/// Test: `a_store_that_stops_completes_each_accepted_call_once`.
#[derive(Debug)]
pub(in crate::db) struct Ticket {
    queue: Arc<QueueSlots>,
    tag: u64,
    reserved_bytes: usize,
    /// Directory of the shard that answers; `None` outside a set.
    shard: Option<Arc<Path>>,
    is_open: bool,
}

impl Ticket {
    pub(crate) fn complete(mut self, result: Result<Answer>) {
        self.finish(result);
    }

    pub(crate) fn withdraw(mut self) {
        self.is_open = false;
        self.queue.withdraw(self.reserved_bytes);
    }

    /// Fails for a value that is longer than the queue's bound, before it is read.
    pub(crate) fn check_value_bytes(&self, bytes: usize) -> Result<()> {
        let most = self.queue.options.value_bytes_max;
        // bug engine.queue_bound_exceeded: always
        if bytes <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the value has {bytes} bytes and the queue takes at most {most}; \
             create the queue with a larger `value_bytes_max`"
        )))
    }

    fn finish(&mut self, result: Result<Answer>) {
        if std::mem::replace(&mut self.is_open, false) {
            let result = result.map_err(|error| of_shard(self.shard.as_deref(), error));
            self.queue.complete(self.reserved_bytes, Completed { tag: self.tag, result });
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // bug engine.dropped_call_not_completed: skip
        self.finish(Err(Error::Busy(
            "the store was closed, or panicked, before it answered this call".into(),
        )));
    }
}
