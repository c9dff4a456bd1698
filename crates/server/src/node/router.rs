//! Exchange between the store loops, the transport and the rest of the node.

use super::stopped_run::{self, StoppedRun};
use crate::access::{Access, LiveRules};
use crate::members::Members;
use crate::snapshot_transfer::SnapshotTransfer;
use crate::store::{Engine, OutputSink};
use crate::stores::Stores;
use crate::tasks::Tasks;
use crate::transport::{
    self, BoxFuture, CloseReason, Deliver, RefusedStore, Resolve, SnapshotOffer, Transport,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use stele_node::members::{NotOwner, RunStanding};
use stele_node::succession::{Evidence, KnownRun, Refusal, Verdict};
use stele_replica::{Event, Input, PeerMessage, SendSnapshot};
use stele_types::{Error, StartId, StoreId, StoreRun};
use tokio::sync::Notify;

pub(super) struct NodeRouter {
    stores: Arc<Stores>,
    snapshots: Arc<SnapshotTransfer>,
    transport: OnceLock<Transport>,
    /// Notified when a change must be reported to the placement group soon.
    pub report_due: Notify,
    /// Notified when a report reached no placement leader.
    pub leader_unknown: Notify,
    pub tasks: Tasks,
    access: Access,
    /// Last refusal of each store of this node by another one, for the log.
    refused: Mutex<BTreeMap<StoreId, (Refusal, StartId)>>,
    /// Stores of this node that were stopped beside another run of theirs.
    stopped: Mutex<BTreeSet<StoreId>>,
    /// Held while a directory's record of such a stop changes.
    pub stop_records: Arc<Mutex<()>>,
    members: OnceLock<Arc<Members>>,
}

impl NodeRouter {
    pub(super) fn new(stores: Arc<Stores>, tasks: Tasks, access: Access) -> Self {
        Self {
            snapshots: Arc::new(SnapshotTransfer::new(stores.clone())),
            stores,
            transport: OnceLock::new(),
            report_due: Notify::new(),
            leader_unknown: Notify::new(),
            tasks,
            access,
            refused: Mutex::default(),
            stopped: Mutex::default(),
            stop_records: Arc::default(),
            members: OnceLock::new(),
        }
    }

    /// Sets the transport. Called once, before the first store starts.
    pub(super) fn set_transport(&self, transport: Transport) {
        // A second call would be a mistake and has no effect.
        let _ = self.transport.set(transport);
    }

    /// Sets the list of members. Called once, before the first store starts.
    pub(super) fn set_members(&self, members: Arc<Members>) {
        // A second call would be a mistake and has no effect.
        let _ = self.members.set(members);
    }

    pub(super) fn is_stopped_beside(&self, store: StoreId) -> bool {
        self.stopped.lock().contains(&store)
    }

    pub(super) fn goes_on(&self, store: StoreId) {
        self.stopped.lock().remove(&store);
        self.refused.lock().remove(&store);
        self.tasks.store_goes_on(store);
    }

    /// Stops a store, until the operator chooses one of its runs.
    ///
    /// Invariant: of two runs of one parent that both answer none votes, acknowledges, or reads under a
    /// lease: neither knows which writes the other one acknowledged. A restart does not change that.
    fn stop_beside(&self, refused: &RefusedStore) {
        let is_first = self.stopped.lock().insert(refused.store);
        // bug server.rival_goes_on: always
        if !is_first {
            return;
        }
        let store = refused.store;
        let Some(members) = self.members.get() else { return };
        let dir = members.own().remove(&store).flatten().unwrap_or_default();
        // What it holds when it stops.
        let summary = stopped_run::summary(members, &self.stores, store).ok();
        let (path, detail) = (dir.clone(), refused.text.clone());
        if let Some(store) = self.stores.get(store) {
            store.fail(Error::WrongStore { path, detail });
        }
        let (tasks, record) = (self.tasks.clone(), self.stop_records.clone());
        let (refused, cluster, access) = (refused.clone(), members.cluster(), self.access.clone());
        let stopped = StoppedRun { refused, dir, summary, cluster, access, tasks, record };
        self.tasks.spawn_finite("stopped-run", stopped.record());
    }

    /// Saves the list of members in all directories. Does not wait: the device of one may hang.
    pub(super) fn save_members(&self, members: &Arc<Members>) {
        for copy in members.copies() {
            let members = members.clone();
            self.tasks.spawn_finite("members-file", async move {
                // Fails only by a panic, which has been logged, or when the node stops.
                let _ = tokio::task::spawn_blocking(move || copy.save(&members)).await;
                Ok(())
            });
        }
    }

    /// Returns how this node connects, and the rules of those that connect to it.
    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// Saves the grants in force in the directories that lack them. Does not wait.
    pub(super) fn save_grants(&self, members: &Members, rules: &Arc<LiveRules>) {
        let (version, cluster) = (rules.get().grants.version, members.cluster());
        for copy in members.copies().into_iter().filter(|copy| copy.lacks_grants(version)) {
            let rules = rules.clone();
            self.tasks.spawn_finite("access-file", async move {
                let save = move || copy.save_grants(cluster, &rules);
                // Fails only by a panic, which has been logged, or when the node stops.
                let _ = tokio::task::spawn_blocking(save).await;
                Ok(())
            });
        }
    }

    /// Tells the other nodes, and the stores of this one, that a store does not serve. Its regions
    /// would hibernate without a leader otherwise.
    pub(super) fn store_gone(&self, store: StoreId) {
        if let Some(transport) = self.transport.get() {
            transport.store_gone(store);
        }
        self.unreachable(store);
    }

    /// Ends all snapshots; they hold their stores open.
    pub(super) fn stop_snapshots(&self) {
        self.snapshots.stop();
    }

    pub(super) fn transport(&self) -> Option<&Transport> {
        self.transport.get()
    }
}

impl OutputSink for NodeRouter {
    fn send(&self, mut messages: Vec<PeerMessage>) {
        let serving = self.stores.serving();
        let near = messages.extract_if(.., |message| serving.has(message.to_store));
        let sized = near.map(|message| {
            let bytes = transport::message_bytes(&message);
            (message, bytes)
        });
        serving.deliver(&mut sized.collect());
        if let Some(transport) = self.transport.get().filter(|_| !messages.is_empty()) {
            transport.send(messages);
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
        match self.is_stopped_beside(store) {
            true => self.tasks.store_stopped(store, &error),
            false => self.tasks.store_failed(store, error),
        }
        self.store_gone(store);
        self.report_due.notify_one();
    }
}

impl Deliver for NodeRouter {
    fn messages(&self, messages: &mut Vec<(PeerMessage, u64)>) {
        // One for a store that has just stopped is lost, as on the way.
        self.stores.serving().deliver(messages);
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

    fn refused(&self, refused: &RefusedStore) {
        // The list arrives within a second.
        if refused.refusal == Refusal::NotListed {
            return tracing::debug!("store {}: {}", refused.store, refused.text);
        }
        let key = (refused.refusal, refused.rival.id());
        // It is refused several times a second.
        if self.refused.lock().insert(refused.store, key) != Some(key) {
            tracing::error!(
                "store {} is not heard by another node: {}",
                refused.store,
                refused.text
            );
        }
        if refused.refusal == Refusal::Conflict {
            self.stop_beside(refused);
        }
    }

    fn refuses(&self, remote: &str, refused: &[RefusedStore]) {
        for it in refused {
            tracing::warn!("store {} of {remote} is not heard: {}", it.store, it.text);
        }
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
        Self::address(self, store)
    }

    fn is_removed(&self, store: StoreId) -> bool {
        Self::is_removed(self, store)
    }

    fn known_run(&self, store: StoreId) -> Option<KnownRun> {
        Self::known_run(self, store)
    }

    fn admit(&self, store: StoreId, run: &StoreRun, address: &str, evidence: &Evidence) -> Verdict {
        Self::admit(self, store, run, address, evidence)
    }

    fn check_owner(&self, store: StoreId, node: &str) -> Result<(), NotOwner> {
        Self::check_owner(self, store, node)
    }

    fn is_bound(&self, store: StoreId) -> bool {
        self.get(store).is_some_and(|member| member.owner.is_some())
    }

    fn standing(&self, store: StoreId, run: &StoreRun, address: &str) -> RunStanding {
        Self::standing(self, store, run, address)
    }
}
