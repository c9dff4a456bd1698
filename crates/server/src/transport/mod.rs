//! Replication between nodes: framed TCP, separate from the client protocols.
//!
//! Each node dials each other node it has messages for. Messages travel one way on a connection,
//! keepalives the other:
//!
//! - urgent: heartbeats, votes, reads; one connection, never queued after entries,
//! - data: entries and their acknowledgements; one connection,
//! - bulk: a connection for each snapshot in transfer.
//!
//! All queues are bounded in bytes. A message that does not fit, or has no connection, is dropped:
//! Raft sends it again. Layouts are documented in [`frame`], [`hello`] and [`snapshot_stream`].

mod batch;
mod closed;
mod connection;
pub mod frame;
pub mod hello;
mod link;
mod node;
mod outgoing;
mod queue;
mod runs;
mod serve;
mod shared;
pub mod snapshot_stream;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::stores::Boots;
pub use batch::FrameBatch;
pub use closed::{CloseReason, RejectReason};
pub use hello::{MAGIC, RefusedStore};
pub use queue::message_bytes;
pub use shared::Stats;
pub use snapshot_stream::{SnapshotOffer, SnapshotReceiver, SnapshotSender};

use crate::access::{Access, Rights, Socket};
use bytes::Bytes;
use hello::Lane;
use node::Nodes;
use outgoing::Sending;
use parking_lot::Mutex;
use shared::{OwnStores, ROOM_UNIT_BYTES, Shared};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use stele_node::members::{NotOwner, RunStanding};
use stele_node::succession::{Evidence, KnownRun, Refusal, Verdict};
use stele_replica::{LeaseTimes, PeerMessage};
use stele_types::{ClusterId, Error, StoreId, StoreRun};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

/// Connections of this node with the others. Clones share the same transport.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
}

impl Transport {
    /// Creates a transport; its tasks run on the runtime of the caller.
    pub fn start(
        options: TransportOptions,
        identity: Identity,
        resolve: Arc<dyn Resolve>,
        deliver: Arc<dyn Deliver>,
    ) -> Self {
        let shared = Shared {
            incoming: Arc::new(Semaphore::new(options.incoming_max)),
            snapshots_in: Arc::new(Semaphore::new(options.snapshots_in_max)),
            room: Arc::new(Semaphore::new(options.received_bytes_max.div_ceil(ROOM_UNIT_BYTES))),
            own: watch::Sender::new(OwnStores {
                opened: identity.stores.clone(),
                gone: Vec::new(),
            }),
            options,
            identity,
            resolve,
            deliver,
            stats: Stats::default(),
            nodes: Nodes::default(),
            runtime: Handle::current(),
            stop: watch::Sender::new(false),
            rejected: Mutex::default(),
            runs: runs::Runs::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sends messages to their stores, in order for each store and lane; never blocks. Callable
    /// from any thread.
    pub fn send(&self, messages: Vec<PeerMessage>) {
        let place = |(at, it): (usize, &PeerMessage)| (it.to_store, queue::is_data(it), at);
        let mut places: Vec<_> = messages.iter().enumerate().map(place).collect();
        places.sort_unstable();
        // A message is large: only its place is sorted.
        let mut messages: Vec<_> = messages.into_iter().map(Some).collect();
        for group in places.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let Some(&(store, is_data, _)) = group.first() else { continue };
            let lane = if is_data { Lane::Data } else { Lane::Urgent };
            let group = group.iter().filter_map(|(.., at)| messages.get_mut(*at)?.take());
            self.send_to(store, lane, group);
        }
    }

    fn send_to(&self, store: StoreId, lane: Lane, messages: impl Iterator<Item = PeerMessage>) {
        let (shared, stats) = (&self.shared, &self.shared.stats);
        let route = shared.nodes.route(store, shared);
        let Some(node) = route.ok().filter(|node| !node.refuses(store)) else {
            Stats::add(&stats.dropped_unknown, messages.count());
            shared.deliver.unreachable(store);
            return;
        };
        let pushed = node.link(lane).send(messages, Sending { shared, node: &node, lane });
        Stats::add(&stats.dropped_full, pushed.full);
        Stats::add(&stats.dropped_down, pushed.down);
        if pushed.overflowed {
            shared.deliver.dropped(store);
        }
    }

    /// Offers a snapshot of `from`, a store of this node, to another store, and waits until that
    /// store accepts it. The store then receives `header` and the chunks. If `resumes` is set, it may
    /// have a part of them: [`SnapshotSender::position`].
    pub(crate) async fn open_snapshot(
        &self,
        from: StoreId,
        to: StoreId,
        header: Bytes,
        resumes: bool,
    ) -> Result<SnapshotSender, CloseReason> {
        snapshot_stream::open(self.shared.clone(), to, from, header, resumes).await
    }

    /// Returns how connections to other nodes are made.
    pub(crate) fn access(&self) -> &Access {
        &self.shared.options.access
    }

    /// Serves a connection of a caller with these rights until it ends; its first bytes, not yet read, are
    /// [`MAGIC`].
    pub async fn serve(&self, stream: Socket, rights: Rights) {
        self.shared.until_stop(serve::run(self.shared.clone(), stream, rights)).await;
    }

    /// Looks up the address of every store again, and dials unconnected nodes at once.
    pub fn members_changed(&self) {
        self.shared.nodes.refresh_all(&self.shared);
    }

    /// Adds a store of this node: messages for it are accepted from now on. A connection made
    /// before does not carry its messages; it ends at the first one and is dialled again.
    pub fn add_store(&self, store: StoreId) {
        self.shared.own.send_modify(|own| own.opened.push(store));
    }

    /// Tells all nodes, now and when they connect, that a store of this node does not serve.
    pub(crate) fn store_gone(&self, store: StoreId) {
        self.shared.own.send_if_modified(|own| {
            let is_new = !own.gone.contains(&store);
            own.gone.extend(is_new.then_some(store));
            is_new
        });
    }

    pub(crate) fn store_serves(&self, store: StoreId) {
        self.shared.own.send_if_modified(|own| {
            let before = own.gone.len();
            own.gone.retain(|it| *it != store);
            own.gone.len() < before
        });
    }

    /// Judges the run that another node states for a store at `address`. Asks the address of the known
    /// run if that has no connection.
    pub async fn admit(&self, store: StoreId, run: &StoreRun, address: &str) -> Verdict {
        self.shared.admit(store, run, address).await
    }

    /// Like [`Transport::admit`], of a run that another node than its own states. Of a bound store the node
    /// at `address` itself is asked.
    pub(crate) async fn admit_hearsay(
        &self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
    ) -> Verdict {
        match self.shared.resolve.is_bound(store) {
            true => self.shared.admit_stated(store, address).await,
            false => self.shared.judge(store, run, address, true).await,
        }
    }

    pub(crate) fn refused_store(
        &self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        refusal: Refusal,
    ) -> RefusedStore {
        self.shared.refused_store(store, run, address, refusal)
    }

    /// Returns whether messages to the store get through, as of its node's last connection.
    pub fn is_reachable(&self, store: StoreId) -> bool {
        self.shared.nodes.known(store).is_some_and(|node| node.is_reachable(store))
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Returns the bytes of all nodes that wait or are being written.
    pub(crate) fn queued_bytes(&self) -> u64 {
        let bytes = |node: Arc<node::RemoteNode>| {
            node.link(Lane::Urgent).queue.bytes() + node.link(Lane::Data).queue.bytes()
        };
        self.shared.nodes.all().into_iter().map(bytes).sum()
    }

    /// Closes all connections and waits until all tasks of the transport have ended.
    pub async fn shutdown(&self) {
        self.shared.stop.send_replace(true);
        self.shared.stop.closed().await;
    }
}

/// Boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Addresses of stores.
pub trait Resolve: Send + Sync {
    /// Returns `host:port` of the node that has the store, if known.
    fn address(&self, store: StoreId) -> Option<String>;

    /// Returns whether the store was removed from the cluster permanently.
    fn is_removed(&self, _store: StoreId) -> bool {
        false
    }

    /// Returns the last accepted run of a store, if known.
    fn known_run(&self, _store: StoreId) -> Option<KnownRun> {
        None
    }

    /// Judges the run that a node at `address` states for its store, and learns it if it is accepted.
    fn admit(
        &self,
        _store: StoreId,
        _run: &StoreRun,
        _address: &str,
        _evidence: &Evidence,
    ) -> Verdict {
        Verdict::Same
    }

    /// Fails unless the node with this name in its certificate may act for a store.
    fn check_owner(&self, _store: StoreId, _node: &str) -> Result<(), NotOwner> {
        Ok(())
    }

    /// Returns whether a store is bound to a node.
    fn is_bound(&self, _store: StoreId) -> bool {
        false
    }

    /// Returns how this run, of a node at `address`, stands now.
    fn standing(&self, store: StoreId, _run: &StoreRun, _address: &str) -> RunStanding {
        if self.is_removed(store) { RunStanding::Removed } else { RunStanding::Heard }
    }
}

/// Receiver of messages and events from other nodes. Except `snapshot`, the calls never block.
pub trait Deliver: Send + Sync {
    /// Takes messages for stores of this node, in order, each with its approximate size in bytes.
    fn messages(&self, messages: &mut Vec<(PeerMessage, u64)>);

    /// Reports that messages to the store get through from now on.
    fn reachable(&self, store: StoreId);

    /// Reports that messages to the store are lost from now on.
    fn unreachable(&self, store: StoreId);

    /// Reports whether messages to the store get through from now on.
    fn state(&self, store: StoreId, is_reachable: bool) {
        match is_reachable {
            true => self.reachable(store),
            false => self.unreachable(store),
        }
    }

    /// Reports that messages to the store were dropped because the queue was full or their
    /// connection broke; the store is still reachable. Reported once until the queue has emptied.
    fn dropped(&self, store: StoreId);

    /// Offers a snapshot. It is declined when the future ends without an answer.
    fn snapshot(&self, offer: SnapshotOffer) -> BoxFuture<'static, ()>;

    /// Reports that a task of the transport failed, so that messages to a node are no longer sent.
    fn task_failed(&self, task: &str, error: Error);

    /// Reports that another node does not hear a store of this one.
    fn refused(&self, _refused: &RefusedStore) {}

    /// Reports that this node does not hear some stores of `remote`, for the log.
    fn refuses(&self, _remote: &str, _refused: &[RefusedStore]) {}

    /// Reports that a connection from or to `remote` ended, for the log.
    fn closed(&self, _remote: &str, _reason: &CloseReason) {}
}

/// Bounds and pauses of the transport.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// Time without a message of the connection's task after which it sends a keepalive.
    pub keepalive_interval: Duration,
    /// Time without a received byte after which a connection is closed. TCP repeats what a
    /// partition dropped after 0.2, 0.6, 1.4, 3 and 6 s (Linux): beyond 2 s a new connection
    /// recovers earlier than the old one's next attempt.
    pub silence_max: Duration,
    /// Time without an accepted byte after which a connection is closed; also the longest pause of
    /// a snapshot's receiver.
    pub stall_max: Duration,
    /// Time to connect and to receive the reply to the hello. TCP repeats a connection attempt into
    /// a partition after 1, 3 and 7 s (Linux): a longer attempt would be slower than a new one when
    /// the partition heals.
    pub dial_timeout: Duration,
    /// Pause before the second attempt; doubles up to `backoff_max`, half of it random.
    pub backoff_min: Duration,
    /// Longest pause; see `backoff_min`.
    pub backoff_max: Duration,
    /// Bytes of entries and acknowledgements that wait for one node, at most.
    pub data_queue_bytes_max: u64,
    /// Bytes of all other messages that wait for one node, at most.
    pub urgent_queue_bytes_max: u64,
    /// Bytes that are encoded and written at once, at most.
    pub batch_bytes_max: u64,
    /// Bytes of incomplete large frames, of all connections together, at most; above, they are not
    /// read further and their senders wait.
    pub received_bytes_max: usize,
    /// Most connections from other nodes.
    pub incoming_max: usize,
    /// Most snapshots received at the same time.
    pub snapshots_in_max: usize,
    /// Seed of random pauses.
    pub seed: u64,
    /// How connections are made.
    pub access: Access,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            keepalive_interval: Duration::from_millis(500),
            silence_max: Duration::from_secs(2),
            stall_max: Duration::from_secs(30),
            dial_timeout: Duration::from_millis(1_500),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_millis(250),
            data_queue_bytes_max: 64 << 20,
            urgent_queue_bytes_max: 4 << 20,
            batch_bytes_max: 1 << 20,
            received_bytes_max: 256 << 20,
            incoming_max: 1024,
            snapshots_in_max: 8,
            seed: 0,
            access: Access::default(),
        }
    }
}

/// Identity of this node to the others.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Cluster of the node.
    pub cluster: ClusterId,
    /// `host:port` under which others dial it.
    pub address: String,
    /// Stores of the node.
    pub stores: Vec<StoreId>,
    /// Times of its leases, which must be those of the other nodes.
    pub times: LeaseTimes,
    /// Runs of its stores.
    pub boots: Arc<Boots>,
}
