//! Another node, its two permanent connections, and the stores that are reached through it.

use super::closed::CloseReason;
use super::hello::Lane;
use super::outgoing::Link;
use super::shared::Shared;
use super::{TransportOptions, link};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_types::StoreId;
use tokio::sync::Notify;

pub(super) struct RemoteNode {
    /// `host:port`.
    pub address: String,
    stores: RwLock<Arc<[StoreId]>>,
    urgent: Link,
    data: Link,
    reported: Mutex<Reported>,
    /// Whether [`Reported::refused`] has entries. Changed under the lock of `reported` only.
    refuses_any: AtomicBool,
    abandoned: AtomicBool,
    end: Notify,
}

#[derive(Default)]
struct Reported {
    /// Whether the node is reachable; `None` before the first report.
    is_reachable: Option<bool>,
    /// Stores that do not serve although the node is reachable, as far as it tells.
    gone: Vec<StoreId>,
    /// Stores of the node of which another run is the known one: they are counted as gone.
    refused: Vec<StoreId>,
}

impl RemoteNode {
    fn new(address: String, options: &TransportOptions) -> Self {
        Self {
            address,
            stores: RwLock::new(Arc::new([])),
            urgent: Link::new(options.urgent_queue_bytes_max),
            data: Link::new(options.data_queue_bytes_max),
            reported: Mutex::default(),
            refuses_any: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            end: Notify::new(),
        }
    }

    pub(super) fn stores(&self) -> Arc<[StoreId]> {
        self.stores.read().clone()
    }

    /// Returns the connection of a lane; for bulk, that of data.
    pub(super) fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Urgent => &self.urgent,
            Lane::Data | Lane::Bulk | Lane::Probe => &self.data,
        }
    }

    /// Returns whether no store is reached through it any longer.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Waits until no store is reached through it any longer.
    pub(super) async fn ended(&self) {
        let ended = self.end.notified();
        if !self.is_abandoned() {
            ended.await;
        }
    }

    /// Returns whether the node states a run of the store that is not the known one.
    pub(super) fn refuses(&self, store: StoreId) -> bool {
        self.refuses_any.load(Ordering::Acquire) && self.reported.lock().refused.contains(&store)
    }

    pub(super) fn is_reachable(&self, store: StoreId) -> bool {
        let reported = self.reported.lock();
        reported.is_reachable == Some(true) && !reported.gone.contains(&store)
    }

    pub(super) fn retry(&self) {
        self.urgent.retry.notify_one();
        self.data.retry.notify_one();
    }

    /// Records that a connection was made to the node, with these stores that do not serve, and those
    /// that are not the known ones.
    pub(super) fn connected(
        &self,
        lane: Lane,
        (mut gone, refused): (Vec<StoreId>, Vec<StoreId>),
        shared: &Shared,
    ) {
        gone.extend(&refused);
        // Before the queue takes messages for them.
        {
            let mut reported = self.reported.lock();
            self.refuses_any.store(!refused.is_empty(), Ordering::Release);
            reported.refused = refused;
        }
        self.link(lane).queue.open();
        if lane == Lane::Urgent {
            self.report(true, Some(gone), shared);
            // The node is reachable again: the other connection need not wait longer.
            self.data.retry.notify_one();
        }
    }

    pub(super) fn disconnected(&self, lane: Lane, shared: &Shared) {
        let lost = self.link(lane).queue.close();
        super::Stats::add(&shared.stats.dropped_down, lost);
        if lane == Lane::Urgent {
            self.report(false, None, shared);
        } else if lost > 0 && self.reported.lock().is_reachable == Some(true) {
            self.stores().iter().for_each(|store| shared.deliver.dropped(*store));
        }
    }

    fn add(&self, store: StoreId, shared: &Shared) {
        let reported = self.reported.lock();
        let mut stores = self.stores.write();
        if stores.contains(&store) {
            return;
        }
        *stores = stores.iter().copied().chain([store]).collect();
        drop(stores);
        // Reports the state that the node's other stores have.
        if let Some(is_reachable) = reported.is_reachable {
            shared.deliver.state(store, is_reachable && !reported.gone.contains(&store));
        }
    }

    /// Records which stores of the node do not serve.
    ///
    /// Invariant: a store that has failed is unreachable although its node is connected. Its regions
    /// hibernate without a leader otherwise.
    /// Test: `a_store_that_fails_while_its_node_runs_is_unreachable_at_once_and_the_others_are_not`.
    pub(super) fn set_gone(&self, mut gone: Vec<StoreId>, shared: &Shared) {
        let mut reported = self.reported.lock();
        gone.extend(&reported.refused);
        // bug server.gone_unheard: always
        if reported.gone == gone {
            return;
        }
        let before = std::mem::replace(&mut reported.gone, gone);
        if reported.is_reachable != Some(true) {
            return;
        }
        for store in self.stores().iter() {
            let (was, is) = (before.contains(store), reported.gone.contains(store));
            if was != is {
                shared.deliver.state(*store, !is);
            }
        }
    }

    fn report(&self, is_reachable: bool, gone: Option<Vec<StoreId>>, shared: &Shared) {
        let mut reported = self.reported.lock();
        if let Some(gone) = gone {
            reported.gone = gone;
        }
        if reported.is_reachable == Some(is_reachable) {
            return;
        }
        reported.is_reachable = Some(is_reachable);
        for store in self.stores().iter() {
            shared.deliver.state(*store, is_reachable && !reported.gone.contains(store));
        }
    }
}

#[derive(Default)]
pub(super) struct Nodes {
    routes: RwLock<HashMap<StoreId, Arc<RemoteNode>>>,
    by_address: Mutex<HashMap<String, Arc<RemoteNode>>>,
}

impl Nodes {
    /// Returns the node that has the store; dials it if it is new.
    pub(super) fn route(
        &self,
        store: StoreId,
        shared: &Arc<Shared>,
    ) -> Result<Arc<RemoteNode>, CloseReason> {
        if let Some(node) = self.routes.read().get(&store) {
            return Ok(node.clone());
        }
        if shared.resolve.is_removed(store) {
            return Err(CloseReason::NoAddress(store));
        }
        let address = shared.resolve.address(store).ok_or(CloseReason::NoAddress(store))?;
        let mut by_address = self.by_address.lock();
        let node = by_address.entry(address.clone()).or_insert_with(|| {
            let node = Arc::new(RemoteNode::new(address, &shared.options));
            for lane in [Lane::Urgent, Lane::Data] {
                let name = format!("connection to {} ({})", node.address, lane.name());
                shared.spawn(name, link::run(shared.clone(), node.clone(), lane));
            }
            node
        });
        node.add(store, shared);
        self.routes.write().insert(store, node.clone());
        Ok(node.clone())
    }

    pub(super) fn known(&self, store: StoreId) -> Option<Arc<RemoteNode>> {
        self.routes.read().get(&store).cloned()
    }

    /// Looks up the stores of a node again; the address of a store that moved is looked up when
    /// needed.
    pub(super) fn refresh(&self, node: &RemoteNode, shared: &Shared) {
        let mut by_address = self.by_address.lock();
        let stays = |store: &StoreId| {
            let address = shared.resolve.address(*store);
            !shared.resolve.is_removed(*store) && address.as_deref() == Some(&node.address)
        };
        let before = node.stores();
        let stay: Arc<[StoreId]> = before.iter().copied().filter(stays).collect();
        if stay.len() == before.len() && !stay.is_empty() {
            return;
        }
        let mut routes = self.routes.write();
        for store in before.iter().filter(|store| !stay.contains(store)) {
            routes.remove(store);
        }
        if stay.is_empty() {
            by_address.remove(&node.address);
            node.abandoned.store(true, Ordering::Release);
            node.end.notify_waiters();
            node.urgent.queue.close();
            node.data.queue.close();
            node.retry();
        }
        *node.stores.write() = stay;
    }

    pub(super) fn refresh_all(&self, shared: &Shared) {
        let nodes: Vec<_> = self.by_address.lock().values().cloned().collect();
        for node in nodes {
            self.refresh(&node, shared);
            node.retry();
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<RemoteNode>> {
        self.by_address.lock().values().cloned().collect()
    }
}
