//! What the transport asks of its owner.

use super::closed::CloseReason;
use super::snapshot_stream::SnapshotOffer;
use std::future::Future;
use std::pin::Pin;
use stele_raftstore::PeerMessage;
use stele_types::StoreId;

/// A future behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where stores are.
pub trait Resolve: Send + Sync {
    /// `host:port` of the node that has the store, if any is known.
    fn address(&self, store: StoreId) -> Option<String>;

    /// Whether the store was removed from the cluster for good.
    fn is_removed(&self, _store: StoreId) -> bool {
        false
    }
}

/// What comes from other nodes. Save for `snapshot` the calls never wait.
pub trait Deliver: Send + Sync {
    /// A message for a store of this node, and about how many bytes it holds.
    fn message(&self, message: PeerMessage, bytes: u64);

    /// Messages to the store go through from now on.
    fn reachable(&self, store: StoreId);

    /// Messages to the store are lost from now on.
    fn unreachable(&self, store: StoreId);

    /// Messages to the store were dropped, as too many wait or their connection broke; it is
    /// reachable all the same. Told once until the queue has emptied.
    fn dropped(&self, store: StoreId);

    /// A snapshot is offered. It is declined when the future ends without an answer.
    fn snapshot(&self, offer: SnapshotOffer) -> BoxFuture<'static, ()>;

    /// A connection from or to `remote` ended, for the log.
    fn closed(&self, _remote: &str, _reason: &CloseReason) {}
}
