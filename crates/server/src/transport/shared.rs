//! State that all connections of a node share.

use super::closed::RejectReason;
use super::deliver::{Deliver, Resolve};
use super::hello::{Hello, Lane};
use super::node::Nodes;
use super::options::{Identity, TransportOptions};
use super::runs::Runs;
use super::stats::Stats;
use crate::tasks::caught;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use stele_types::StoreId;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

/// State that all connections of a node share.
pub(super) struct Shared {
    pub options: TransportOptions,
    pub identity: Identity,
    /// Stores of this node; one may be added while it runs.
    pub own: RwLock<Vec<StoreId>>,
    /// Stores of this node that do not serve.
    pub gone: watch::Sender<Vec<StoreId>>,
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

/// Most entries of [`Shared::rejected`].
const REJECTED_MAX: usize = 1024;

/// Bytes of one permit of [`Shared::room`].
pub(super) const ROOM_UNIT_BYTES: usize = 1 << 10;

impl Shared {
    /// Returns whether the store is one of this node's that serve.
    pub(super) fn is_own(&self, store: StoreId) -> bool {
        self.own.read().contains(&store) && !self.gone.borrow().contains(&store)
    }

    /// Returns the stores of this node that serve.
    pub(super) fn serving(&self) -> Vec<StoreId> {
        let gone = self.gone.borrow();
        self.own.read().iter().copied().filter(|store| !gone.contains(store)).collect()
    }

    /// Returns the stores of this node, also those that do not serve.
    pub(super) fn all_own(&self) -> Vec<StoreId> {
        let mut all = self.own.read().clone();
        let gone = self.gone.borrow();
        all.extend(gone.iter().filter(|store| !self.own.read().contains(store)));
        all
    }

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

    /// Wraps a future so that it also ends when the transport stops.
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
