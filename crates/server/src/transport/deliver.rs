//! Interfaces that the transport's owner implements.

use super::closed::CloseReason;
use super::snapshot_stream::SnapshotOffer;
use std::future::Future;
use std::pin::Pin;
use stele_raftstore::PeerMessage;
use stele_types::{Boot, Error, StoreId};

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

    /// Returns the address at which a store runs, if `boot` is a run of another copy of its directory.
    fn other_copy(&self, _store: StoreId, _boot: Boot) -> Option<String> {
        None
    }

    /// Learns the address that a node states for its stores, each with its run.
    fn learn(&self, _address: &str, _stores: &[(StoreId, Boot)]) {}
}

/// Receiver of messages and events from other nodes. Except `snapshot`, the calls never block.
pub trait Deliver: Send + Sync {
    /// Delivers a message for a store of this node, with its approximate size in bytes.
    fn message(&self, message: PeerMessage, bytes: u64);

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

    /// Reports that a connection from or to `remote` ended, for the log.
    fn closed(&self, _remote: &str, _reason: &CloseReason) {}
}
