//! One store of this node: its engine, its loop's thread, its maintenance thread, and the handle
//! that the rest of the node uses.

mod sample;
mod space_watch;
#[cfg(test)]
mod tests;
mod threads;

pub use sample::Sample;
pub use space_watch::full_text;
pub use threads::StageWork;

use crate::load::LoadSamples;
use crate::redis::SweepTotals;
use crate::tasks::Thread;
use parking_lot::Mutex;
use sample::Latest;
use space_watch::{RoomRefusals, SpaceWatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use stele_replica::{
    Changes, Ended, Event, Input, Item, MemoryGuard, PeerMessage, RaftStore, ReadGate, Reply,
    Request, SendSnapshot, SlowWriters, Slowdowns, StageTimes, StoreLoop, Submission, Unknown,
};
use stele_storage::{Space, StorageEngine};
use stele_types::{Clock, Error, Peer, PeerRole, Region, RegionId, Result, StoreId};
use threads::{Counts, Inbox, Lookups, LoopThread, Writer, answer_all, maintain};
use tokio::sync::oneshot;

/// Engine of every store.
pub type Engine = stele_engine::Store;
/// Consensus core of one store.
pub type Core = RaftStore<Engine>;

/// Receiver of a store loop's outputs. Called on the loop's thread: must not block.
pub trait OutputSink<E: StorageEngine = Engine>: Send + Sync {
    /// Sends messages to peers, in order.
    fn send(&self, messages: Vec<PeerMessage>);
    /// Streams a region to a peer.
    fn send_snapshot(&self, snapshot: SendSnapshot<E>);
    /// Reports changes.
    fn events(&self, events: Vec<Event>);
    /// Reports that the store's loop ended with an error.
    fn failed(&self, store: StoreId, error: Error);
}

/// Handle of a store of this node.
pub struct StoreHandle<E: StorageEngine = Engine> {
    id: StoreId,
    engine: Arc<E>,
    readers: Arc<ReadGate>,
    times: Arc<StageTimes>,
    inbox: Arc<Inbox<E>>,
    clock: Arc<dyn Clock>,
    load: LoadSamples,
    receiving: AtomicU64,
    /// Snapshots of which the reception began since the last report.
    receptions_begun: AtomicU64,
    counts: Arc<Counts>,
    space: Arc<SpaceWatch>,
    room_refusals: RoomRefusals,
    samples: Arc<Latest<Sample>>,
    region_changes: Arc<Latest<Changes>>,
    running: Arc<AtomicBool>,
    writers: Arc<SlowWriters>,
    swept: SweepTotals,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<E: StorageEngine + 'static> StoreHandle<E> {
    /// Starts the threads of an opened store.
    pub fn start(
        id: StoreId,
        engine: Arc<E>,
        core: RaftStore<E>,
        clock: Arc<dyn Clock>,
        sink: Arc<dyn OutputSink<E>>,
        pending_bytes_max: u64,
    ) -> Result<Arc<Self>> {
        let inbox = Arc::new(Inbox::new(pending_bytes_max));
        let running = Arc::new(AtomicBool::new(true));
        let (readers, times) = (core.readers(), core.times());
        let wants_checkpoint = Arc::new(AtomicBool::new(false));
        let (writer, write_thread) = Writer::start(id, engine.clone(), clock.clone())?;
        let (lookups, lookup_threads) = Lookups::start(id, &engine, &inbox)?;
        let loop_thread = LoopThread {
            writer,
            lookups,
            store_loop: StoreLoop::new(core),
            inbox: inbox.clone(),
            clock: clock.clone(),
            sink: sink.clone(),
            wants_checkpoint: wants_checkpoint.clone(),
        };
        let (stopping, requests) = (running.clone(), inbox.clone());
        let loop_thread = spawn(Thread::Store, id, move || {
            let ended = loop_thread.run();
            answer_all(requests.queue.refuse_all());
            if let Err(Ended { error, replies }) = ended {
                answer_all(replies);
                stopping.store(false, Ordering::Release);
                sink.failed(id, error);
            }
        })?;
        let (maintained, stopping) = (engine.clone(), running.clone());
        let (counts, space) = (Arc::new(Counts::default()), Arc::new(SpaceWatch::new(id)));
        let (counting, watch, items) = (counts.clone(), space.clone(), inbox.clone());
        let (writers, timer) = (Arc::new(SlowWriters::default()), clock.clone());
        let slowed = writers.clone();
        let maintenance = spawn(Thread::Maintenance, id, move || {
            let pace = (&*timer, &*slowed);
            let (counts, space) = (&*counting, &*watch);
            maintain(&*maintained, &stopping, &wants_checkpoint, &items, counts, space, pace);
        })?;
        let mut threads = vec![loop_thread, write_thread, maintenance];
        threads.extend(lookup_threads);
        Ok(Arc::new(Self {
            id,
            engine,
            readers,
            times,
            inbox,
            clock,
            load: LoadSamples::default(),
            receiving: AtomicU64::new(0),
            receptions_begun: AtomicU64::new(0),
            counts,
            space,
            room_refusals: RoomRefusals::default(),
            samples: Arc::default(),
            region_changes: Arc::default(),
            running,
            writers,
            swept: SweepTotals::default(),
            threads: Mutex::new(threads),
        }))
    }

    /// Returns the store's id in the cluster.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Returns the engine, for views and statistics.
    pub fn engine(&self) -> &Arc<E> {
        &self.engine
    }

    /// Returns the replicas that may serve reads without the loop.
    pub fn readers(&self) -> &Arc<ReadGate> {
        &self.readers
    }

    /// Returns the times of the stages of writes and reads.
    pub fn times(&self) -> &Arc<StageTimes> {
        &self.times
    }

    /// Returns the clock that measures leases.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns what the sweeper of Redis keys has done.
    pub(crate) fn swept(&self) -> &SweepTotals {
        &self.swept
    }

    /// Returns the sample of requested keys.
    pub fn load(&self) -> &LoadSamples {
        &self.load
    }

    /// Counts a snapshot as being received until the result is dropped.
    pub(crate) fn begin_receiving(self: &Arc<Self>) -> Receiving<E> {
        self.receiving.fetch_add(1, Ordering::Relaxed);
        // bug server.short_snapshot_unreported: skip
        self.receptions_begun.fetch_add(1, Ordering::Relaxed);
        Receiving(self.clone())
    }

    /// Returns the number of snapshots that the store receives, or began to receive since the last call.
    /// Only reports call it.
    ///
    /// Invariant: each snapshot is in a report. The writes of a short one also lower the speed that the
    /// reports after it contain.
    /// Test: `a_snapshot_that_begins_and_ends_between_two_reports_is_reported`.
    pub(crate) fn take_receiving(&self) -> u64 {
        let begun = self.receptions_begun.swap(0, Ordering::Relaxed);
        self.receiving.load(Ordering::Relaxed).max(begun)
    }

    /// Returns the maintenance work since the start, by stage.
    pub fn maintained(&self) -> Vec<(&'static str, StageWork)> {
        self.counts.all()
    }

    /// Records whether replicas of the store refuse entries for which there is no room.
    pub(crate) fn set_refuses_entries(&self, refuses_entries: bool) {
        self.space.set_refuses_entries(refuses_entries);
    }

    /// Returns the space of the device, as maintenance read it last.
    pub fn space(&self) -> Space {
        self.space.last()
    }

    /// Records that a write to a region was refused because a device has no room. Returns whether the
    /// region's leader may still move to a store that has some.
    pub(crate) fn may_leader_find_room(&self, region: &Region) -> bool {
        let may_lead = |peer: &&Peer| peer.role != PeerRole::Learner && peer.store != self.id;
        let has_others = region.peers.iter().any(|peer| may_lead(&peer));
        let (now_nanos, is_full) = (self.clock.monotonic_nanos(), self.space().is_full);
        self.room_refusals.note(now_nanos, is_full) && has_others
    }

    /// Returns whether this store's peer leads a region, as far as it knows.
    pub fn leads(&self, region: RegionId) -> bool {
        let leader = self.readers.get(region).and_then(|reader| reader.leader());
        leader.is_some_and(|leader| leader.store == self.id)
    }

    /// Returns whether the loop runs.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Returns the bytes of requests in progress.
    pub fn request_bytes(&self) -> u64 {
        self.inbox.queue.request_bytes()
    }

    pub(crate) fn set_slowdowns(&self, slowdowns: Slowdowns) {
        self.writers.reported(slowdowns, self.clock.monotonic_nanos());
    }

    /// Returns the nanoseconds that writers wait for each KiB because this store lags; 0 for none.
    pub fn slowdown(&self) -> u64 {
        self.writers.own()
    }

    /// Sends the core a request and waits for the reply. A writer first waits while garbage collection
    /// of a replica lags behind writers. Answers at once when too many bytes are in progress. `memory`
    /// is kept until the outcome is known.
    pub async fn submit(&self, request: impl Into<Request>, memory: MemoryGuard) -> Reply {
        let request = request.into();
        if let Some(pause) = self.pause(&request) {
            tokio::time::sleep(pause).await;
        }
        let (caller, reply) = Caller::waiting();
        self.enqueue([Submission { request, caller, memory }]);
        reply.await.unwrap_or(Caller::LOST)
    }

    /// Like [`StoreHandle::submit`], for callers outside an async runtime. No writer is slowed.
    pub fn submit_blocking(&self, request: impl Into<Request>) -> Reply {
        let (caller, reply) = Caller::waiting();
        self.enqueue([Submission { request: request.into(), caller, memory: None }]);
        reply.blocking_recv().unwrap_or(Caller::LOST)
    }

    /// Like [`StoreHandle::submit`], for callers that do not wait: no task is needed unless a writer is
    /// slowed. The loop takes all others in one turn.
    pub fn begin(self: &Arc<Self>, requests: Vec<Submission<Caller>>) {
        let mut at_once = Vec::with_capacity(requests.len());
        for submission in requests {
            let Some(pause) = self.pause(&submission.request) else {
                at_once.push(submission);
                continue;
            };
            let store = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                store.enqueue([submission]);
            });
        }
        self.enqueue(at_once);
    }

    fn pause(&self, request: &Request) -> Option<Duration> {
        let now_nanos = self.clock.monotonic_nanos();
        let nanos = self.writers.wait_nanos(request, &self.readers, now_nanos)?;
        Some(Duration::from_nanos(nanos))
    }

    fn enqueue(&self, requests: impl IntoIterator<Item = Submission<Caller>>) {
        let (wakes, not_taken) = self.inbox.queue.submit_all(requests);
        self.inbox.wake(wakes);
        for not_taken in not_taken {
            let reply = not_taken.reply();
            not_taken.caller.answer(reply);
        }
    }

    /// Sends the core an input without a reply.
    pub fn input(&self, input: Input<E>) {
        self.inbox.push(Item::Input(input));
    }

    /// Sends the core messages of peers, each with its bytes, which are dropped while too many wait. The
    /// loop takes all of them in one turn. Returns whether they woke it.
    pub fn messages(&self, messages: impl IntoIterator<Item = (PeerMessage, u64)>) -> bool {
        let wakes = self.inbox.queue.push_messages(messages);
        self.inbox.wake(wakes);
        wakes
    }

    /// Runs `call` on the core between two turns of the loop; `None` when the loop has ended.
    pub(crate) async fn with_core<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut RaftStore<E>) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, found) = oneshot::channel();
        let call = move |core: &mut RaftStore<E>| {
            // The caller may have gone.
            let _ = answer.send(call(core));
        };
        self.inbox.push(Item::Call(Box::new(call)));
        found.await.ok()
    }

    /// Ends the loop with an error.
    pub fn fail(&self, error: Error) {
        self.inbox.push(Item::Stopped(error));
    }

    /// Stops the threads after the waiting items.
    pub fn stop_threads(&self) {
        self.inbox.stop();
        self.running.store(false, Ordering::Release);
        for thread in self.threads.lock().drain(..) {
            // A panic has ended the process already.
            let _ = thread.join();
        }
    }
}

/// A snapshot that a store receives.
pub struct Receiving<E: StorageEngine>(Arc<StoreHandle<E>>);

impl<E: StorageEngine> Drop for Receiving<E> {
    fn drop(&mut self) {
        self.0.receiving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StoreHandle<Engine> {
    /// Stops the threads after the waiting items, then closes the log cleanly.
    pub fn stop(&self) -> Result<()> {
        self.stop_threads();
        self.engine.close()
    }
}

/// Starts a store's thread. A panic in it aborts the process: its work is half done in memory, and
/// no other thread would continue it.
pub(crate) fn spawn(
    thread: Thread,
    store: StoreId,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let name = format!("{}{store}", thread.prefix());
    let failed = |source| Error::Io { op: "start of a thread", path: name.clone().into(), source };
    let run = || {
        let _end = AbortOnPanic;
        run();
    };
    std::thread::Builder::new().name(name.clone()).spawn(run).map_err(failed)
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        // bug server.panic_swallowed: never
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Gets the reply to one request. Called on the store's loop or on the thread that sent the request: it must
/// not block.
pub struct Caller(Option<Box<dyn FnOnce(Reply) + Send>>);

impl Caller {
    /// Reply to a request of which the loop took note and no reply came.
    pub const LOST: Reply = Reply::Unknown(Unknown::StoreStopped);

    /// Creates a caller that passes the reply to `answer`.
    pub fn new(answer: impl FnOnce(Reply) + Send + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }

    /// Returns a caller with a channel on which the reply comes.
    pub fn waiting() -> (Self, oneshot::Receiver<Reply>) {
        let (sender, receiver) = oneshot::channel();
        let answer = |reply| {
            // The receiver may have gone.
            let _ = sender.send(reply);
        };
        (Self::new(answer), receiver)
    }

    /// Passes the reply on.
    pub fn answer(mut self, reply: Reply) {
        self.pass(reply);
    }

    fn pass(&mut self, reply: Reply) {
        if let Some(answer) = self.0.take() {
            answer(reply);
        }
    }
}

/// Invariant: each request has a reply, also if it is dropped: a client waits for it.
impl Drop for Caller {
    fn drop(&mut self) {
        // bug server.dropped_request_unanswered: skip
        self.pass(Self::LOST);
    }
}

#[cfg(test)]
mod caller_tests {
    use super::*;
    use std::sync::mpsc;
    use stele_replica::Refusal;

    #[test]
    fn a_request_is_answered_once_also_if_it_is_dropped() {
        let (replies, got) = mpsc::channel();
        let caller = || {
            let replies = replies.clone();
            Caller::new(move |reply| replies.send(reply).unwrap())
        };
        caller().answer(Reply::Refused(Refusal::StoreStopped));
        assert_eq!(got.try_recv(), Ok(Reply::Refused(Refusal::StoreStopped)));
        assert!(got.try_recv().is_err());
        drop(caller());
        assert_eq!(got.try_recv(), Ok(Caller::LOST));
        let (caller, reply) = Caller::waiting();
        drop(caller);
        assert_eq!(reply.blocking_recv(), Ok(Caller::LOST));
    }
}
