//! State that all connections of a node share, and the counters of the transport, for metrics.

use super::closed::{CloseReason, RejectReason};
use super::hello::{Hello, Lane};
use super::node::Nodes;
use super::runs::Runs;
use super::{Deliver, Identity, Resolve, TransportOptions};
use crate::tasks::caught;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use stele_types::StoreId;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

pub(super) struct Shared {
    pub options: TransportOptions,
    pub identity: Identity,
    pub own: watch::Sender<OwnStores>,
    pub resolve: Arc<dyn Resolve>,
    pub deliver: Arc<dyn Deliver>,
    pub stats: Stats,
    pub nodes: Nodes,
    pub runtime: Handle,
    /// Set to true to end every task. Each task holds a receiver, so that the end can be waited
    /// for.
    pub stop: watch::Sender<bool>,
    /// Nodes with a rejected last connection, with the lane and the reason.
    pub rejected: Mutex<HashMap<(String, Lane), RejectReason>>,
    pub runs: Runs,
    pub incoming: Arc<Semaphore>,
    pub snapshots_in: Arc<Semaphore>,
    /// Budget for incomplete large frames of all connections, in units of [`ROOM_UNIT_BYTES`].
    pub room: Arc<Semaphore>,
}

/// Stores of this node.
#[derive(Debug, Default)]
pub(super) struct OwnStores {
    /// Those that were opened; one may be added while the node runs.
    pub opened: Vec<StoreId>,
    /// Those that do not serve.
    pub gone: Vec<StoreId>,
}

impl OwnStores {
    pub(super) fn serves(&self, store: StoreId) -> bool {
        self.opened.contains(&store) && !self.gone.contains(&store)
    }

    pub(super) fn serving(&self) -> impl Iterator<Item = StoreId> {
        self.opened.iter().copied().filter(|store| !self.gone.contains(store))
    }

    /// Returns all stores, also those that do not serve.
    pub(super) fn all(&self) -> Vec<StoreId> {
        let not_opened = self.gone.iter().filter(|store| !self.opened.contains(store));
        self.opened.iter().chain(not_opened).copied().collect()
    }
}

/// Most entries of [`Shared::rejected`].
const REJECTED_MAX: usize = 1024;

/// Bytes of one permit of [`Shared::room`].
pub(super) const ROOM_UNIT_BYTES: usize = 1 << 10;

impl Shared {
    /// Records whether a hello was rejected. Returns whether the last one of its node on that lane
    /// was rejected for the same reason.
    pub(super) fn note_rejection(&self, hello: &Hello, reason: Option<RejectReason>) -> bool {
        let mut rejected = self.rejected.lock();
        let key = (hello.address.clone(), hello.lane);
        let Some(reason) = reason else {
            rejected.remove(&key);
            return false;
        };
        if rejected.len() >= REJECTED_MAX {
            rejected.clear();
        }
        rejected.insert(key, reason) == Some(reason)
    }

    /// Runs a task until it ends or the transport stops. Reports a panic under this name.
    pub(super) fn spawn(
        self: &Arc<Self>,
        name: String,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let deliver = self.deliver.clone();
        let task = async move {
            if let Err(panicked) = caught(&name, task).await {
                deliver.task_failed(&name, panicked);
            }
        };
        let stopping = self.until_stop(task);
        self.runtime.spawn(stopping);
    }

    pub(super) fn until_stop<T: Future<Output = ()> + Send + 'static>(
        &self,
        task: T,
    ) -> impl Future<Output = ()> + Send + 'static + use<T> {
        let mut stop = self.stop.subscribe();
        async move {
            tokio::select! {
                () = task => {}
                // An error means that the sender is gone: also stopped.
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the start.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            lanes: [LaneStats; 3],
            closed: [AtomicU64; CloseReason::LABELS.len()],
        }

        impl Stats {
            /// Returns every counter with its name.
            pub fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Messages written to connections.
    messages_sent,
    /// Bytes written to connections.
    bytes_sent,
    /// Write calls.
    writes,
    /// Messages delivered to stores.
    messages_received,
    /// Bytes read from connections.
    bytes_received,
    /// Messages dropped because too many waited.
    dropped_full,
    /// Messages dropped because their node is not connected.
    dropped_down,
    /// Messages dropped because no address is known.
    dropped_unknown,
    /// Messages dropped because they are larger than a frame.
    dropped_large,
    /// Messages received for a store that is not on this node.
    strays_received,
    /// Outgoing connections made.
    connections_out,
    /// Outgoing connections that replaced one that had ended.
    reconnects,
    /// Times that reading paused because too many bytes of large frames were incomplete.
    waits_for_room,
    /// Incoming connections accepted.
    connections_in,
    /// Snapshots sent completely.
    snapshots_sent,
    /// Snapshots received completely.
    snapshots_received,
}

/// `sent` or `received`, frames and bytes.
pub(super) type Direction = (&'static str, u64, u64);

#[derive(Debug, Default)]
pub(super) struct LaneStats {
    /// Frames written, without keepalives.
    pub frames_sent: AtomicU64,
    /// Bytes of these frames.
    pub bytes_sent: AtomicU64,
    /// Frames read, without keepalives.
    pub frames_received: AtomicU64,
    /// Bytes of their bodies.
    pub bytes_received: AtomicU64,
}

impl Stats {
    pub(super) fn lane(&self, lane: Lane) -> &LaneStats {
        let [urgent, data, bulk] = &self.lanes;
        match lane {
            Lane::Urgent => urgent,
            Lane::Data => data,
            Lane::Bulk | Lane::Probe => bulk,
        }
    }

    /// Returns each lane's name, and frames and bytes for each direction.
    pub(crate) fn lanes(&self) -> [(&'static str, [Direction; 2]); 3] {
        [Lane::Urgent, Lane::Data, Lane::Bulk].map(|lane| {
            let of = self.lane(lane);
            let sent = ("sent", of.frames_sent.load(Relaxed), of.bytes_sent.load(Relaxed));
            let received =
                ("received", of.frames_received.load(Relaxed), of.bytes_received.load(Relaxed));
            (lane.name(), [sent, received])
        })
    }

    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn count_closed(&self, reason: &CloseReason) {
        if let Some(counter) = self.closed.get(reason.number()) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// Returns the number of closed connections by reason label.
    pub fn closed(&self) -> Vec<(&'static str, u64)> {
        let counts = self.closed.iter().map(|counter| counter.load(Relaxed));
        CloseReason::LABELS.into_iter().zip(counts).collect()
    }
}
