//! One store of this node: its engine, its loop's thread, its maintenance thread, and the handle by
//! which everything else talks to them.

mod append_times;
mod inbox;
mod maintain;
mod store_loop;

use crate::load::LoadSamples;
use crate::threads::Thread;
use append_times::AppendTimes;
use inbox::{Inbox, Item};
use maintain::Counts;
pub use maintain::StageDone;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use stele_raftstore::{
    AdminCall, Cas, Event, Input, PeerMessage, RaftStore, Read, Readers, Refusal, Reply, RequestId,
    SendSnapshot, Write,
};
use stele_types::{Clock, Error, RegionId, Result, StoreId};
use tokio::sync::oneshot;

/// The engine behind every store of the product.
pub type Engine = stele_engine::Store;
/// The consensus core of one store.
pub type Core = RaftStore<Engine>;

/// What a store's loop hands to the rest of the node. Called on the loop's thread: never waits.
pub trait OutputSink: Send + Sync {
    /// Messages for peers, in order.
    fn send(&self, messages: Vec<PeerMessage>);
    /// A region to be streamed to a peer.
    fn send_snapshot(&self, snapshot: SendSnapshot<Engine>);
    /// What changed.
    fn events(&self, events: Vec<Event>);
    /// The store's loop ended on an error.
    fn failed(&self, store: StoreId, error: Error);
}

/// A store of this node.
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
        outward: Arc<dyn OutputSink>,
        pending_bytes_max: u64,
    ) -> Result<Arc<Self>> {
        let inbox = Arc::new(Inbox::new(pending_bytes_max));
        let running = Arc::new(AtomicBool::new(true));
        let readers = core.readers();
        let wants_checkpoint = Arc::new(AtomicBool::new(false));
        let appends = Arc::new(AppendTimes::default());
        let turn = store_loop::StoreLoop {
            appends: appends.clone(),
            core,
            engine: engine.clone(),
            inbox: inbox.clone(),
            clock: clock.clone(),
            outward: outward.clone(),
            answers: HashMap::new(),
            wants_checkpoint: wants_checkpoint.clone(),
        };
        let (stopping, queue) = (running.clone(), inbox.clone());
        let looped = spawn(Thread::Store, id, move || {
            let ended = turn.run();
            queue.stop();
            if let Err(error) = ended {
                stopping.store(false, Ordering::Release);
                outward.failed(id, error);
            }
        })?;
        let (maintained, stopping) = (engine.clone(), running.clone());
        let counts = Arc::new(Counts::default());
        let (counted, asking) = (counts.clone(), inbox.clone());
        let maintenance = spawn(Thread::Maintenance, id, move || {
            maintain::run(&maintained, &stopping, &wants_checkpoint, &asking, &counted);
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
            threads: Mutex::new(vec![looped, maintenance]),
        }))
    }

    /// The store's number in the cluster.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// The engine, for views and figures.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Who may serve reads without asking the loop.
    pub fn readers(&self) -> &Arc<Readers> {
        &self.readers
    }

    /// The clock that leases are measured with.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Which keys are asked for.
    pub fn load(&self) -> &LoadSamples {
        &self.load
    }

    /// The time that 99 of 100 of the last appends stayed below, in nanoseconds; 0 before the first.
    pub fn append_p99_nanos(&self) -> u64 {
        self.appends.p99_nanos()
    }

    /// What maintenance did since the start, by stage.
    pub fn maintained(&self) -> Vec<(String, StageDone)> {
        self.counts.all()
    }

    /// Whether this store's peer leads a region, as far as it knows.
    pub fn leads(&self, region: RegionId) -> bool {
        let leader = self.readers.get(region).and_then(|reader| reader.leader());
        leader.is_some_and(|leader| leader.store == self.id)
    }

    /// Whether the loop runs.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Bytes of requests in work.
    pub fn request_bytes(&self) -> u64 {
        self.inbox.request_bytes()
    }

    /// Proposes a command and waits until it is applied here.
    pub async fn write(&self, write: Write) -> Reply {
        let bytes = write.command.len() as u64;
        self.request(bytes, |id| Input::Write(Write { id, ..write })).await
    }

    /// Compares and sets.
    pub async fn cas(&self, cas: Cas) -> Reply {
        let bytes = (cas.key.len() + cas.new.bytes()) as u64;
        self.request(bytes, |id| Input::Cas(Cas { id, ..cas })).await
    }

    /// Waits until a view taken here sees every acknowledged write.
    pub async fn read(&self, read: Read) -> Reply {
        self.request(0, |id| Input::Read(Read { id, ..read })).await
    }

    /// Changes a region.
    pub async fn admin(&self, call: AdminCall) -> Reply {
        self.request(0, |id| Input::Admin(AdminCall { id, ..call })).await
    }

    /// Gives the core a request made from the number it gets. Refused early when too much is in work.
    pub async fn request(
        &self,
        bytes: u64,
        make: impl FnOnce(RequestId) -> Input<Engine>,
    ) -> Reply {
        let Some(_permit) = self.inbox.admit(bytes + REQUEST_OVERHEAD_BYTES) else {
            return Reply::Refused(Refusal::Busy { reason: "too many bytes of requests in work" });
        };
        let id = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed));
        let (answer, reply) = oneshot::channel();
        self.inbox.push(Item::Request { id, input: make(id), answer });
        // The loop ended: what was proposed may or may not have happened.
        reply.await.unwrap_or(Reply::Refused(Refusal::StaleCommand))
    }

    /// Gives the core something that has no answer.
    pub fn input(&self, input: Input<Engine>) {
        self.inbox.push(Item::Input(input));
    }

    /// Gives the core a peer's message of `bytes`; false when it was dropped.
    pub fn message(&self, message: PeerMessage, bytes: u64) -> bool {
        self.inbox.push_message(Input::Message(message), bytes)
    }

    /// What `look` finds in the core between two turns; `None` when the loop has ended.
    pub async fn with_core<T: Send + 'static>(
        &self,
        look: impl FnOnce(&mut Core) -> T + Send + 'static,
    ) -> Option<T> {
        let (answer, found) = oneshot::channel();
        let look = move |core: &mut Core| {
            // Whoever asked may have gone.
            let _ = answer.send(look(core));
        };
        self.inbox.push(Item::Look(Box::new(look)));
        found.await.ok()
    }

    /// Ends the loop after what waits, then the log cleanly.
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

/// What a waiting request costs beside its bytes.
const REQUEST_OVERHEAD_BYTES: u64 = 256;

/// Starts a store's thread. A panic in it ends the process: what it was about is half done in memory,
/// and nobody would do its work from there on.
pub(crate) fn spawn(
    thread: Thread,
    store: StoreId,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    let name = format!("{}{store}", thread.prefix());
    let failed = |source| Error::Io { op: "start of a thread", path: name.clone().into(), source };
    let run = || {
        let _end = EndsOnPanic;
        run();
    };
    std::thread::Builder::new().name(name.clone()).spawn(run).map_err(failed)
}

struct EndsOnPanic;

impl Drop for EndsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() && !stele_types::mutant::active("server.panic_swallowed") {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests;
