//! Interfaces that the transport's owner implements.

use super::closed::CloseReason;
use super::refusals::RefusedStore;
use super::snapshot_stream::SnapshotOffer;
use std::future::Future;
use std::pin::Pin;
use stele_node::succession::{Evidence, KnownRun, Verdict};
use stele_replica::PeerMessage;
use stele_types::{Error, StoreId, StoreRun};

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

    /// Returns whether messages of this run, of a node at `address`, are heard now.
    fn is_heard(&self, _store: StoreId, _run: &StoreRun, _address: &str) -> bool {
        true
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
