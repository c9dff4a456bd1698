//! Exchange between the store loops, the transport and the rest of the node.

use crate::members::Members;
use crate::snapshot_transfer::Snapshots;
use crate::store::{Engine, OutputSink};
use crate::stores::Stores;
use crate::tasks::Tasks;
use crate::transport::{self, BoxFuture, CloseReason, Deliver, Resolve, SnapshotOffer, Transport};
use std::sync::{Arc, OnceLock};
use stele_raftstore::{Event, Input, PeerMessage, SendSnapshot};
use stele_types::{Boot, Error, StoreId};
use tokio::sync::Notify;

/// Router of messages, snapshots, events and failures of this node's stores.
pub(super) struct Edge {
    stores: Arc<Stores>,
    snapshots: Arc<Snapshots>,
    transport: OnceLock<Transport>,
    /// Notified when a change must be reported to the placement group soon.
    pub report_due: Notify,
    /// Notified when a report reached no placement leader.
    pub leader_unknown: Notify,
    /// Background tasks of the node.
    pub tasks: Tasks,
}

impl Edge {
    pub fn new(stores: Arc<Stores>, tasks: Tasks) -> Self {
        Self {
            snapshots: Arc::new(Snapshots::new(stores.clone())),
            stores,
            transport: OnceLock::new(),
            report_due: Notify::new(),
            leader_unknown: Notify::new(),
            tasks,
        }
    }

    /// Sets the transport. Called once, before the first store starts.
    pub fn set_transport(&self, transport: Transport) {
        // A second call would be a mistake and has no effect.
        let _ = self.transport.set(transport);
    }

    /// Saves the list of members in all directories. Does not wait: the device of one may hang.
    pub fn save_members(&self, members: &Arc<Members>) {
        for copy in members.copies() {
            let members = members.clone();
            self.tasks.spawn_finite("members-file", async move {
                // Fails only by a panic, which has been logged, or when the node stops.
                let _ = tokio::task::spawn_blocking(move || copy.save(&members)).await;
                Ok(())
            });
        }
    }

    /// Tells the other nodes, and the stores of this one, that a store does not serve. Its regions
    /// would hibernate without a leader otherwise.
    pub fn store_gone(&self, store: StoreId) {
        if let Some(transport) = self.transport.get() {
            transport.store_gone(store);
        }
        self.unreachable(store);
    }

    /// Ends all snapshots; they hold their stores open.
    pub fn stop_snapshots(&self) {
        self.snapshots.stop();
    }

    pub fn transport(&self) -> Option<&Transport> {
        self.transport.get()
    }
}

impl OutputSink for Edge {
    fn send(&self, messages: Vec<PeerMessage>) {
        let (near, far): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| self.stores.has(message.to_store));
        for message in near {
            let bytes = transport::message_bytes(&message);
            self.message(message, bytes);
        }
        if let Some(transport) = self.transport.get().filter(|_| !far.is_empty()) {
            transport.send(far);
        }
    }

    fn send_snapshot(&self, snapshot: SendSnapshot<Engine>) {
        let Some(transport) = self.transport.get().cloned() else { return };
        let snapshots = self.snapshots.clone();
        self.tasks.spawn_finite("snapshot", async move {
            snapshots.send(transport, snapshot).await;
            Ok(())
        });
    }

    fn events(&self, events: Vec<Event>) {
        for event in events {
            tracing::debug!("{event:?}");
        }
        self.report_due.notify_one();
    }

    fn failed(&self, store: StoreId, error: Error) {
        self.tasks.store_failed(store, error);
        self.store_gone(store);
        self.report_due.notify_one();
    }
}

impl Deliver for Edge {
    fn message(&self, message: PeerMessage, bytes: u64) {
        if let Some(store) = self.stores.get(message.to_store) {
            store.message(message, bytes);
        } else if let Some(recovering) = self.stores.recovering_store(message.to_store) {
            recovering.message(message, bytes);
        }
    }

    fn reachable(&self, peer: StoreId) {
        self.stores.all().iter().for_each(|store| store.input(Input::StoreReachable(peer)));
    }

    fn unreachable(&self, peer: StoreId) {
        self.stores.all().iter().for_each(|store| store.input(Input::StoreUnreachable(peer)));
    }

    fn dropped(&self, _peer: StoreId) {
        // Raft detects the loss: the next response shows the gap.
    }

    fn snapshot(&self, offer: SnapshotOffer) -> BoxFuture<'static, ()> {
        let snapshots = self.snapshots.clone();
        Box::pin(async move { snapshots.receive(offer).await })
    }

    fn task_failed(&self, task: &str, error: Error) {
        // Without it no message reaches another node, although this one goes on.
        self.tasks.end_node(task, error);
    }

    fn closed(&self, peer: &str, reason: &CloseReason) {
        match reason {
            // A refusal stays until a setting or a member changes.
            CloseReason::Refused(..) => tracing::warn!("connection of {peer} closed: {reason}"),
            _ => tracing::info!("connection of {peer} closed: {reason}"),
        }
    }
}

impl Resolve for Members {
    fn address(&self, store: StoreId) -> Option<String> {
        self.get(store).filter(|member| !member.is_removed).map(|member| member.address)
    }

    fn is_removed(&self, store: StoreId) -> bool {
        Self::is_removed(self, store)
    }

    fn other_copy(&self, store: StoreId, boot: Boot) -> Option<String> {
        Self::other_copy(self, store, boot)
    }

    fn learn(&self, address: &str, stores: &[(StoreId, Boot)]) {
        Self::learn(self, address, stores.iter().copied());
    }
}
