//! One store of this node: its engine, its loop's thread, its maintenance thread, and the handle
//! that the rest of the node uses.

mod append_times;
mod inbox;
mod maintain;
mod store_loop;

use crate::load::LoadSamples;
use crate::threads::Thread;
use append_times::AppendTimes;
use inbox::{Inbox, Item};
use maintain::Counts;
pub use maintain::StageWork;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use stele_raftstore::{
    AdminCall, Busy, Cas, Event, Input, PeerMessage, RaftStore, Read, Readers, Refusal, Reply,
    RequestId, SendSnapshot, Unknown, Write,
};
use stele_types::{Clock, Error, RegionId, Result, StoreId};
use tokio::sync::oneshot;

/// Engine of every store.
pub type Engine = stele_engine::Store;
/// Consensus core of one store.
pub type Core = RaftStore<Engine>;

/// Receiver of a store loop's outputs. Called on the loop's thread: must not block.
pub trait OutputSink: Send + Sync {
    /// Sends messages to peers, in order.
    fn send(&self, messages: Vec<PeerMessage>);
    /// Streams a region to a peer.
    fn send_snapshot(&self, snapshot: SendSnapshot<Engine>);
    /// Reports changes.
    fn events(&self, events: Vec<Event>);
    /// Reports that the store's loop ended with an error.
    fn failed(&self, store: StoreId, error: Error);
}

/// Handle of a store of this node.
pub struct StoreHandle {
    id: StoreId,
    engine: Arc<Engine>,
    readers: Arc<Readers>,
    inbox: Arc<Inbox>,
    clock: Arc<dyn Clock>,
    next_request: AtomicU64,
    load: LoadSamples,
    appends: Arc<AppendTimes>,
    counts: Arc<Counts>,
    running: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl StoreHandle {
    /// Starts the threads of an opened store.
    pub fn start(
        id: StoreId,
        engine: Arc<Engine>,
        core: Core,
        clock: Arc<dyn Clock>,
        sink: Arc<dyn OutputSink>,
        pending_bytes_max: u64,
    ) -> Result<Arc<Self>> {
        let inbox = Arc::new(Inbox::new(pending_bytes_max));
        let running = Arc::new(AtomicBool::new(true));
        let readers = core.readers();
        let wants_checkpoint = Arc::new(AtomicBool::new(false));
        let appends = Arc::new(AppendTimes::default());
        let store_loop = store_loop::StoreLoop {
            appends: appends.clone(),
            core,
            engine: engine.clone(),
            inbox: inbox.clone(),
            clock: clock.clone(),
            sink: sink.clone(),
            answers: HashMap::new(),
            wants_checkpoint: wants_checkpoint.clone(),
        };
        let (stopping, queue) = (running.clone(), inbox.clone());
        let loop_thread = spawn(Thread::Store, id, move || {
            let ended = store_loop.run();
            queue.stop();
            queue.refuse_all();
            if let Err(error) = ended {
                stopping.store(false, Ordering::Release);
                sink.failed(id, error);
            }
        })?;
        let (maintained, stopping) = (engine.clone(), running.clone());
        let counts = Arc::new(Counts::default());
        let (counting, requests) = (counts.clone(), inbox.clone());
        let maintenance = spawn(Thread::Maintenance, id, move || {
            maintain::run(&maintained, &stopping, &wants_checkpoint, &requests, &counting);
        })?;
        Ok(Arc::new(Self {
            id,
            engine,
            readers,
            inbox,
            clock,
            next_request: AtomicU64::new(1),
            load: LoadSamples::default(),
            appends,
            counts,
            running,
            threads: Mutex::new(vec![loop_thread, maintenance]),
        }))
    }

    /// Returns the store's id in the cluster.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// Returns the engine, for views and statistics.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the replicas that may serve reads without the loop.
    pub fn readers(&self) -> &Arc<Readers> {
        &self.readers
    }

    /// Returns the clock that measures leases.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the sample of requested keys.
    pub fn load(&self) -> &LoadSamples {
        &self.load
    }

    /// Returns the 99th percentile of the last appends' durations, in nanoseconds; 0 before the
    /// first.
    pub fn append_p99_nanos(&self) -> u64 {
        self.appends.p99_nanos()
    }

    /// Returns the maintenance work since the start, by stage.
    pub fn maintained(&self) -> Vec<(String, StageWork)> {
        self.counts.all()
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
        self.inbox.request_bytes()
    }

    /// Proposes a command and waits until it is applied here.
    pub async fn write(&self, write: Write) -> Reply {
        let bytes = write.command.len() as u64;
        self.request(bytes, |id| Input::Write(Write { id, ..write })).await
    }

    /// Proposes a compare-and-swap and waits until it is applied here.
    pub async fn cas(&self, cas: Cas) -> Reply {
        let bytes = (cas.key.len() + cas.new.bytes()) as u64;
        self.request(bytes, |id| Input::Cas(Cas { id, ..cas })).await
    }

    /// Waits until a view taken here sees every acknowledged write.
    pub async fn read(&self, read: Read) -> Reply {
        self.request(0, |id| Input::Read(Read { id, ..read })).await
    }

    /// Executes an administrative call on a region.
    pub async fn admin(&self, call: AdminCall) -> Reply {
        self.request(0, |id| Input::Admin(AdminCall { id, ..call })).await
    }

    /// Sends the core the request that `make` builds from its id, and waits for the reply. Refuses
    /// it at once when too many bytes are in progress.
    pub async fn request(
        &self,
        bytes: u64,
        make: impl FnOnce(RequestId) -> Input<Engine>,
    ) -> Reply {
        let Some(_permit) = self.inbox.admit(bytes + REQUEST_OVERHEAD_BYTES) else {
            return Reply::Busy(Busy::Wait { reason: "too many bytes of requests in progress" });
        };
        let id = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed));
        let (answer, reply) = oneshot::channel();
        if !self.inbox.push(Item::Request { id, input: make(id), answer }) {
            return Reply::Refused(Refusal::StoreStopped);
        }
        // The loop took the request and ended before it answered: the request may have been
        // executed, and another store may still commit it.
        reply.await.unwrap_or(Reply::Unknown(Unknown::StoreStopped))
    }

    /// Sends the core an input without a reply.
    pub fn input(&self, input: Input<Engine>) {
        self.inbox.push(Item::Input(input));
    }

    /// Sends the core a peer's message of `bytes`; false when it was dropped.
    pub fn message(&self, message: PeerMessage, bytes: u64) -> bool {
        self.inbox.push_message(Input::Message(message), bytes)
    }

    /// Runs `call` on the core between two iterations of the loop; `None` when the loop has ended.
    pub async fn with_core<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, found) = oneshot::channel();
        let call = move |core: &mut Core| {
            // The caller may have gone.
            let _ = answer.send(call(core));
        };
        self.inbox.push(Item::CoreCall(Box::new(call)));
        found.await.ok()
    }

    /// Stops the loop after the waiting items, then closes the log cleanly.
    pub fn stop(&self) -> Result<()> {
        self.inbox.stop();
        self.running.store(false, Ordering::Release);
        for thread in self.threads.lock().drain(..) {
            // A panic has ended the process already.
            let _ = thread.join();
        }
        self.engine.close()
    }
}

/// Cost of a waiting request beside its bytes.
const REQUEST_OVERHEAD_BYTES: u64 = 256;

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
        if std::thread::panicking() && !stele_types::mutant::active("server.panic_swallowed") {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
