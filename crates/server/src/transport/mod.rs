//! Replication between nodes: framed TCP, apart from what clients speak.
//!
//! Each node dials each other node it has something to tell. Messages travel one way on a
//! connection, signs of life the other:
//!
//! - urgent: heartbeats, votes, reads; one connection, never behind entries,
//! - data: entries and their acknowledgements; one connection,
//! - bulk: a connection for each snapshot on its way.
//!
//! Everything that waits is bounded in bytes. What does not fit, or has no connection, is dropped:
//! Raft sends it again when it is told. Layouts stand in [`frame`], [`hello`] and [`snapshot_stream`].

mod backoff;
mod batch;
mod closed;
mod connection;
mod cut;
mod deliver;
pub mod frame;
pub mod hello;
mod link;
mod node;
mod options;
mod queue;
mod serve;
mod shared;
pub mod snapshot_stream;
mod stats;

#[cfg(test)]
pub(crate) mod tests;

pub use closed::{CloseReason, RejectReason};
pub use cut::Cut;
pub use deliver::{BoxFuture, Deliver, Resolve};
pub use hello::MAGIC;
pub use options::{Identity, Options};
pub use queue::message_bytes;
pub use snapshot_stream::{SnapshotOffer, SnapshotReceiver, SnapshotSender};
pub use stats::Stats;

use hello::Lane;
use node::Nodes;
use parking_lot::RwLock;
use shared::{ROOM_UNIT_BYTES, Shared};
use std::sync::Arc;
use stele_raftstore::PeerMessage;
use stele_types::StoreId;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

/// The connections of a node with the others. Clones are the same transport.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
}

impl Transport {
    /// A transport whose tasks run on the runtime that this is called in.
    pub fn start(
        options: Options,
        identity: Identity,
        resolve: Arc<dyn Resolve>,
        deliver: Arc<dyn Deliver>,
    ) -> Self {
        let shared = Shared {
            incoming: Arc::new(Semaphore::new(options.incoming_max)),
            snapshots_in: Arc::new(Semaphore::new(options.snapshots_in_max)),
            room: Arc::new(Semaphore::new(options.received_bytes_max.div_ceil(ROOM_UNIT_BYTES))),
            own: RwLock::new(identity.stores.clone()),
            options,
            identity,
            resolve,
            deliver,
            stats: Stats::default(),
            cuts: cut::Cuts::default(),
            nodes: Nodes::default(),
            runtime: Handle::current(),
            stop: watch::Sender::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sends messages to their stores, in order for each store and lane; never waits. Callable from
    /// any thread.
    pub fn send(&self, messages: Vec<PeerMessage>) {
        let mut groups: Vec<(StoreId, Lane, Vec<PeerMessage>)> = Vec::new();
        for message in messages {
            let store = message.to_store;
            let lane = if queue::is_data(&message) { Lane::Data } else { Lane::Urgent };
            match groups.iter_mut().find(|group| (group.0, group.1) == (store, lane)) {
                Some((_, _, group)) => group.push(message),
                None => groups.push((store, lane, vec![message])),
            }
        }
        for (store, lane, messages) in groups {
            self.send_to(store, lane, messages);
        }
    }

    fn send_to(&self, store: StoreId, lane: Lane, messages: Vec<PeerMessage>) {
        let (shared, stats) = (&self.shared, &self.shared.stats);
        let Ok(node) = shared.nodes.route(store, shared) else {
            Stats::add(&stats.dropped_unknown, messages.len());
            shared.deliver.unreachable(store);
            return;
        };
        let pushed = node.link(lane).queue.push(messages);
        Stats::add(&stats.dropped_full, pushed.full);
        Stats::add(&stats.dropped_down, pushed.down);
        if pushed.overflowed {
            shared.deliver.dropped(store);
        }
    }

    /// Offers a snapshot of `from`, a store of this node, to another store, and waits until that one
    /// wants it. It then gets `header` and the pieces as they are sent.
    pub async fn open_snapshot(
        &self,
        from: StoreId,
        to: StoreId,
        header: &[u8],
    ) -> Result<SnapshotSender, CloseReason> {
        snapshot_stream::open(self.shared.clone(), to, from, header).await
    }

    /// Serves a connection whose first bytes, not yet read, are [`MAGIC`], to its end.
    pub async fn serve(&self, stream: TcpStream) {
        self.shared.until_stop(serve::run(self.shared.clone(), stream)).await;
    }

    /// Asks anew where every store is, and dials without delay what is not connected.
    pub fn members_changed(&self) {
        self.shared.nodes.refresh_all(&self.shared);
    }

    /// Another store of this node has joined: what is for it is taken from now on. A connection made
    /// before does not speak for it; it ends with the first such message and is made anew.
    pub fn add_store(&self, store: StoreId) {
        self.shared.own.write().push(store);
    }

    /// A switch for tests: what is lost between this node and the one that has the store.
    pub fn cut(&self, store: StoreId, cut: Cut) {
        self.shared.cuts.set(store, cut);
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Bytes that wait or are being written, of all nodes.
    pub fn queued_bytes(&self) -> u64 {
        let bytes = |node: Arc<node::Node>| {
            node.link(Lane::Urgent).queue.bytes() + node.link(Lane::Data).queue.bytes()
        };
        self.shared.nodes.all().into_iter().map(bytes).sum()
    }

    /// Ends all connections and waits until nothing of the transport runs any more.
    pub async fn shutdown(&self) {
        self.shared.stop.send_replace(true);
        self.shared.stop.closed().await;
    }
}
