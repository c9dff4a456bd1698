//! Group commit: one write and one sync for all operations that wait.
//!
//! The steps of a group, in order:
//!
//! 1. **Join.** [`CommitPipeline::submit`] adds the operations of a call to the open group. It waits
//!    while the queue is full, so that its memory is bounded.
//! 2. **Lead.** A member that waits for its group becomes the leader if there is none, and takes the
//!    oldest group off the queue. Before that it yields to writers that were completed just now.
//!    Calls that arrive later form the next group.
//! 3. **Append.** The leader decides the group's modifications, adds their results, encodes the group
//!    as one command and appends it: one write, one sync.
//! 4. **Apply.** The leader applies the entry, which makes it visible.
//! 5. **Call back.** The leader runs the callbacks of the group.
//! 6. **Resign.** The leader ends its leadership and wakes a member of the next group. If no member
//!    of that group waits, the commit thread leads it.
//! 7. **Complete.** The leader gives the result to all members: waiting calls return.
//!
//! Invariant: a group is applied only after its sync, and groups are applied in log order. One
//! leader at a time keeps both.
//!
//! Invariant: every group gets exactly one result. If step 3 or 4 panics, the store stops: what they
//! changed in memory may differ from the log. The leader still does steps 5 to 7, with the panic as
//! the result, and every later group fails because the store has stopped. A group that is dropped
//! without a leader fails, too.
//! Test: `a_leader_that_panics_fails_its_group_and_all_later_calls_and_no_call_waits`.
//!
//! Invariant: callbacks run in the order of commits: a leader runs those of its group before it
//! resigns.
//! Test: `the_callbacks_of_a_group_run_before_another_thread_may_lead_the_next`.
//!
//! Invariant: a callback that panics ends its own call only.

use super::modify::{PendingModification, decide_all};
use super::workers::Signal;
use crate::store::Store;
use parking_lot::Condvar;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_gc::Pressure;
use stele_storage::{LogStore, StateMachine};
use stele_types::error::caught;
use stele_types::lock::{Mutex, rank};
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, Error, LogBatch, LogIndex, Record, RegionId,
    Result, Term,
};

pub(crate) const EMBEDDED_REGION: RegionId = RegionId(1);
/// An embedded store has no elections.
const EMBEDDED_TERM: Term = Term(1);
/// Size above which a group takes no further member.
const GROUP_BYTES_MAX: usize = 4 << 20;
/// Times that a leader yields before it takes a group smaller than the last one.
const YIELDS_MAX: usize = 2;

/// Steps 3 and 4, as the store does them.
pub(crate) trait CommitSteps: Send + Sync {
    fn decide(
        &self,
        group: &mut CommandBuilder,
        modifications: Vec<PendingModification>,
    ) -> Result<()>;

    fn append(&self, group: CommandBuilder) -> Result<CommittedEntry>;

    fn apply(&self, entry: CommittedEntry) -> Result<()>;

    /// Refuses all further groups because of `error`, which it returns.
    fn stop(&self, error: Error) -> Error;
}

/// The pipeline. Each caller runs it in its own thread.
pub(crate) struct CommitPipeline {
    steps: Arc<dyn CommitSteps>,
    queue: Mutex<Queue, { rank::COMMIT_QUEUE }>,
    /// Signals that a group was taken off the queue, or that the leader resigned.
    room: Condvar,
    /// Raised when a group has operations and no member waits for it.
    unattended: Arc<Signal>,
    bytes_max: usize,
}

struct Queue {
    /// Groups without a leader, oldest first. Only the last one is open.
    groups: VecDeque<Group>,
    bytes: usize,
    /// Outcome of the leader's group; `None` without a leader.
    leading: Option<Arc<Outcome>>,
    last_group_ops: usize,
}

#[derive(Default)]
struct Group {
    builder: CommandBuilder,
    modifications: Vec<PendingModification>,
    /// Bytes that the modifications add at most.
    modification_bytes: usize,
    outcome: Arc<Outcome>,
}

impl Group {
    fn is_empty(&self) -> bool {
        self.builder.is_empty() && self.modifications.is_empty()
    }

    fn ops(&self) -> usize {
        self.builder.len() + self.modifications.len()
    }

    fn bytes(&self) -> usize {
        self.builder.encoded_bytes() + self.modification_bytes
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.outcome.finish(Err(Error::invalid(
            "the store was dropped before it committed this call; call `Db::close` first",
        )));
    }
}

impl std::fmt::Debug for CommitPipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitPipeline").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl CommitPipeline {
    pub(super) fn new(
        steps: Arc<dyn CommitSteps>,
        bytes_max: usize,
        unattended: Arc<Signal>,
    ) -> Arc<Self> {
        let queue = Queue { groups: VecDeque::new(), bytes: 0, leading: None, last_group_ops: 0 };
        let (queue, room) = (Mutex::new(queue), Condvar::new());
        Arc::new(Self { steps, queue, room, unattended, bytes_max })
    }

    /// Joins the open group. `add` must add all operations, or fail and add none.
    pub(super) fn submit(
        self: &Arc<Self>,
        bytes: usize,
        add: impl FnOnce(&mut CommandBuilder) -> Result<()>,
    ) -> Result<Completion> {
        self.submit_then(bytes, add, || None)
    }

    /// Does the same as [`CommitPipeline::submit`] with a callback, which `callback` creates after
    /// the operations were added. Callbacks of one group run in the order of its operations.
    pub(super) fn submit_then(
        self: &Arc<Self>,
        bytes: usize,
        add: impl FnOnce(&mut CommandBuilder) -> Result<()>,
        callback: impl FnOnce() -> Option<Callback>,
    ) -> Result<Completion> {
        self.join(bytes, |group| add(&mut group.builder), callback)
    }

    pub(super) fn submit_modification(
        self: &Arc<Self>,
        modification: PendingModification,
    ) -> Result<Completion> {
        let bytes = modification.bytes_max();
        let add = |group: &mut Group| {
            group.modification_bytes += bytes;
            group.modifications.push(modification);
            Ok(())
        };
        self.join(bytes, add, || None)
    }

    fn join(
        self: &Arc<Self>,
        bytes: usize,
        add: impl FnOnce(&mut Group) -> Result<()>,
        callback: impl FnOnce() -> Option<Callback>,
    ) -> Result<Completion> {
        let mut queue = self.queue.lock();
        while queue.bytes > 0 && queue.bytes + bytes > self.bytes_max {
            if queue.leading.is_some() {
                self.room.wait(queue.for_wait());
            } else {
                drop(queue);
                self.lead_once();
                queue = self.queue.lock();
            }
        }
        let fits = |group: &Group| group.is_empty() || group.bytes() + bytes <= GROUP_BYTES_MAX;
        if !queue.groups.back().is_some_and(fits) {
            queue.groups.push_back(Group::default());
        }
        let Some(group) = queue.groups.back_mut() else {
            return Err(Error::Busy("no open group".into()));
        };
        let (bytes_before, ops_before) = (group.bytes(), group.ops());
        add(group)?;
        let (added, is_empty) = (group.bytes() - bytes_before, group.ops() == ops_before);
        // A call without operations is done at once; an empty group is never committed.
        let outcome = if is_empty { Outcome::done() } else { group.outcome.clone() };
        queue.bytes += added;
        // Invariant: the queue is locked from the join to the registration, so that the order of
        // callbacks is that of operations. A group that is done at once has no others.
        if is_empty {
            drop(queue);
        }
        if let Some(callback) = callback() {
            outcome.on_done(callback);
        }
        Ok(Completion { outcome, pipeline: self.clone() })
    }

    /// Waits for a group, and leads commits while there is no other leader.
    fn wait(&self, outcome: &Outcome) -> Result<()> {
        loop {
            if let Some(result) = outcome.result() {
                return result;
            }
            if !self.lead_once() {
                outcome.park();
            }
        }
    }

    /// Commits all that was submitted before the call. Failures are reported to the members.
    pub(super) fn drain(&self) {
        let last = {
            let queue = self.queue.lock();
            let filled = queue.groups.iter().rev().find(|group| !group.is_empty());
            filled.map(|group| group.outcome.clone()).or_else(|| queue.leading.clone())
        };
        if let Some(outcome) = last {
            // Members receive the failure; the caller asks the store itself.
            let _ = self.wait(&outcome);
        }
    }

    /// Commits the oldest group, unless another thread leads or nothing waits.
    pub(super) fn lead_once(&self) -> bool {
        if !self.become_leader() {
            return false;
        }
        self.let_others_join();
        let Some(mut group) = self.take_group() else {
            self.resign();
            return true;
        };
        let mut builder = std::mem::take(&mut group.builder);
        let modifications = std::mem::take(&mut group.modifications);
        let commit = || {
            self.steps.decide(&mut builder, modifications)?;
            // Modifications that change nothing need no entry.
            if builder.is_empty() {
                return Ok(());
            }
            self.steps.append(builder).and_then(|entry| self.steps.apply(entry))
        };
        // bug engine.leader_panic_escapes: `caught("a group commit", commit)` is `Ok(commit())`
        let result = caught("a group commit", commit).unwrap_or_else(|panicked| {
            // Invariant: after a panic nothing is written any more. Memory may lack what the
            // log has.
            // bug engine.leader_panic_stops_nothing: `self.steps.stop(panicked)` is `panicked`
            Err(self.steps.stop(panicked))
        });
        // bug engine.leader_resigns_first: self.resign(); group.outcome.finish(result); return true;
        group.outcome.call_back(&result);
        self.resign();
        group.outcome.finish(result);
        true
    }

    fn become_leader(&self) -> bool {
        let mut queue = self.queue.lock();
        let oldest = queue.groups.front().filter(|group| !group.is_empty());
        let oldest = oldest.map(|group| group.outcome.clone());
        if queue.leading.is_some() || oldest.is_none() {
            return false;
        }
        queue.leading = oldest;
        true
    }

    /// Yields to writers that were completed just now and are about to write again. This makes the
    /// group as large as the last and the number of syncs smaller.
    fn let_others_join(&self) {
        for _ in 0..YIELDS_MAX {
            {
                let queue = self.queue.lock();
                let ops = queue.groups.front().map_or(0, Group::ops);
                if ops >= queue.last_group_ops {
                    return;
                }
            }
            std::thread::yield_now();
        }
    }

    fn take_group(&self) -> Option<Group> {
        let mut queue = self.queue.lock();
        let group = queue.groups.pop_front()?;
        queue.bytes = queue.bytes.saturating_sub(group.bytes());
        queue.last_group_ops = group.ops();
        self.room.notify_all();
        Some(group)
    }

    fn resign(&self) {
        let next = {
            let mut queue = self.queue.lock();
            queue.leading = None;
            let next = queue.groups.front().filter(|group| !group.is_empty());
            next.map(|group| group.outcome.clone())
        };
        self.room.notify_all();
        if let Some(next) = next
            && !next.nudge()
        {
            self.unattended.raise();
        }
    }
}

impl CommitSteps for Store {
    fn decide(
        &self,
        group: &mut CommandBuilder,
        modifications: Vec<PendingModification>,
    ) -> Result<()> {
        decide_all(self, group, modifications)
    }

    fn append(&self, group: CommandBuilder) -> Result<CommittedEntry> {
        assist(self, group.encoded_bytes() as u64)?;
        let payload = group.build().bytes().clone();
        let last = self.log().region(EMBEDDED_REGION).map_or(LogIndex(0), |region| region.last);
        let (index, term) = (last.next(), EMBEDDED_TERM);
        let region = EMBEDDED_REGION;
        let entry = EntryRecord { region, term, index, is_command: true, payload: payload.clone() };
        let mut records = Vec::with_capacity(2);
        records.extend(self.truncation_due(region));
        records.push(Record::Entry(entry));
        LogStore::append(self, &LogBatch { records })?;
        Ok(CommittedEntry { term, index, is_command: true, payload })
    }

    fn apply(&self, entry: CommittedEntry) -> Result<()> {
        StateMachine::apply(self, EMBEDDED_REGION, std::slice::from_ref(&entry))
    }

    fn stop(&self, error: Error) -> Error {
        self.log().stop(error)
    }
}

/// Makes writers do garbage collection in proportion to what they write while it lags behind.
/// Writers slow down early and never stop.
///
/// Invariant: a fault that maintenance meets, such as damage in what it moves, fails no write. Only a
/// stopped store refuses.
fn assist(store: &Store, bytes: u64) -> Result<()> {
    let Pressure::Assist(per_byte) = store.gc().pressure() else { return Ok(()) };
    let share = (bytes as f64 * per_byte) as u64;
    // bug engine.maintenance_fails_writes: store.maintain(share.max(1))?; return store.log().check_poison();
    // The statistics keep the failure.
    let _ = store.maintain(share.max(1));
    store.log().check_poison()
}

pub(super) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct Outcome {
    state: Mutex<OutcomeState, { rank::COMMIT_OUTCOME }>,
    changed: Condvar,
}

#[derive(Default)]
struct OutcomeState {
    result: Option<Result<()>>,
    callbacks: Vec<Callback>,
    waiters: usize,
    /// Set by a nudge and cleared by the next member that would sleep, so that no nudge is lost.
    nudged: bool,
}

fn copy(result: &Result<()>) -> Result<()> {
    result.as_ref().map(|&()| ()).map_err(Error::duplicate)
}

impl Outcome {
    fn done() -> Arc<Self> {
        let outcome = Arc::new(Self::default());
        outcome.finish(Ok(()));
        outcome
    }

    /// Sets the result, unless there is one.
    fn finish(&self, result: Result<()>) {
        {
            let mut state = self.state.lock();
            if state.result.is_some() {
                return;
            }
            state.result = Some(copy(&result));
        }
        self.changed.notify_all();
        self.call_back(&result);
    }

    fn call_back(&self, result: &Result<()>) {
        let callbacks = std::mem::take(&mut self.state.lock().callbacks);
        for callback in callbacks {
            // bug engine.callback_panic_spreads: callback(copy(result)); continue;
            // The panic hook has reported it. This thread belongs to another call.
            let _ = caught("a callback", || callback(copy(result)));
        }
    }

    fn result(&self) -> Option<Result<()>> {
        self.state.lock().result.as_ref().map(copy)
    }

    /// Sleeps until the outcome is known or a nudge comes; spurious returns are allowed.
    fn park(&self) {
        let mut state = self.state.lock();
        if state.result.is_none() && !state.nudged {
            state.waiters += 1;
            self.changed.wait(state.for_wait());
            state.waiters -= 1;
        }
        state.nudged = false;
    }

    /// Wakes one member, so that it may lead the next commit. Returns whether one was waiting.
    fn nudge(&self) -> bool {
        let mut state = self.state.lock();
        state.nudged = true;
        self.changed.notify_one();
        state.waiters > 0
    }

    fn on_done(&self, callback: Callback) {
        let mut state = self.state.lock();
        match &state.result {
            None => state.callbacks.push(callback),
            Some(result) => {
                let result = copy(result);
                drop(state);
                callback(result);
            }
        }
    }
}

/// Pending result of an asynchronous call. Dropping it does not cancel the call.
pub struct Completion {
    outcome: Arc<Outcome>,
    pipeline: Arc<CommitPipeline>,
}

impl Completion {
    /// Waits until the call's effects are durable and visible.
    pub fn wait(self) -> Result<()> {
        self.pipeline.wait(&self.outcome)
    }

    /// Whether the outcome is known.
    pub fn is_done(&self) -> bool {
        self.outcome.result().is_some()
    }

    /// Calls `callback` with the outcome: on the committing thread, or at once if it is known. The
    /// callback must not call the store. Its panic on the committing thread has no effect on other
    /// calls.
    pub fn on_done(self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        self.outcome.on_done(Box::new(callback));
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").field("done", &self.is_done()).finish()
    }
}

#[cfg(test)]
mod tests;
