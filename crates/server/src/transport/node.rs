//! Another node, its two lasting connections, and which stores are reached through it.

use super::closed::CloseReason;
use super::hello::Lane;
use super::link;
use super::options::Options;
use super::queue::Queue;
use super::shared::Shared;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_types::StoreId;
use tokio::sync::Notify;

/// One of a node's connections, seen from those who send.
pub struct Link {
    /// What waits for it.
    pub queue: Queue,
    /// Ends a pause: dial now.
    pub retry: Notify,
}

impl Link {
    fn new(bytes_max: u64) -> Self {
        Self { queue: Queue::new(bytes_max), retry: Notify::new() }
    }
}

/// Another node.
pub struct Node {
    /// `host:port`.
    pub address: String,
    stores: RwLock<Arc<[StoreId]>>,
    urgent: Link,
    data: Link,
    /// What the owner was told last; nothing yet.
    reachable: Mutex<Option<bool>>,
    abandoned: AtomicBool,
}

impl Node {
    fn new(address: String, options: &Options) -> Self {
        Self {
            address,
            stores: RwLock::new(Arc::new([])),
            urgent: Link::new(options.urgent_queue_bytes_max),
            data: Link::new(options.data_queue_bytes_max),
            reachable: Mutex::new(None),
            abandoned: AtomicBool::new(false),
        }
    }

    /// The stores that are reached through it.
    pub fn stores(&self) -> Arc<[StoreId]> {
        self.stores.read().clone()
    }

    /// The connection of a lane.
    pub fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Urgent => &self.urgent,
            Lane::Data | Lane::Bulk => &self.data,
        }
    }

    /// Whether no store is reached through it any more.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Ends the pauses of both connections.
    pub fn retry(&self) {
        self.urgent.retry.notify_one();
        self.data.retry.notify_one();
    }

    /// A connection was made.
    pub fn connected(&self, lane: Lane, shared: &Shared) {
        self.link(lane).queue.open();
        if lane == Lane::Urgent {
            self.tell(true, shared);
            // The node is back: no reason for the other connection to wait longer.
            self.data.retry.notify_one();
        }
    }

    /// A connection ended, or was not made.
    pub fn disconnected(&self, lane: Lane, shared: &Shared) {
        let lost = self.link(lane).queue.close();
        super::Stats::add(&shared.stats.dropped_down, lost);
        if lane == Lane::Urgent {
            self.tell(false, shared);
        } else if lost > 0 && *self.reachable.lock() == Some(true) {
            self.stores().iter().for_each(|store| shared.deliver.dropped(*store));
        }
    }

    fn add(&self, store: StoreId, shared: &Shared) {
        let told = self.reachable.lock();
        let mut stores = self.stores.write();
        if stores.contains(&store) {
            return;
        }
        *stores = stores.iter().copied().chain([store]).collect();
        drop(stores);
        // What the node's other stores were told before.
        match *told {
            Some(true) => shared.deliver.reachable(store),
            Some(false) => shared.deliver.unreachable(store),
            None => {}
        }
    }

    fn tell(&self, reachable: bool, shared: &Shared) {
        let mut told = self.reachable.lock();
        if *told == Some(reachable) {
            return;
        }
        *told = Some(reachable);
        for store in self.stores().iter() {
            match reachable {
                true => shared.deliver.reachable(*store),
                false => shared.deliver.unreachable(*store),
            }
        }
    }
}

/// All nodes that this one talks to.
#[derive(Default)]
pub struct Nodes {
    routes: RwLock<HashMap<StoreId, Arc<Node>>>,
    by_address: Mutex<HashMap<String, Arc<Node>>>,
}

impl Nodes {
    /// The node that has the store; it is dialled when it is new.
    pub fn route(&self, store: StoreId, shared: &Arc<Shared>) -> Result<Arc<Node>, CloseReason> {
        if let Some(node) = self.routes.read().get(&store) {
            return Ok(node.clone());
        }
        if shared.resolve.is_removed(store) {
            return Err(CloseReason::NoAddress(store));
        }
        let address = shared.resolve.address(store).ok_or(CloseReason::NoAddress(store))?;
        let mut by_address = self.by_address.lock();
        let node = by_address.entry(address.clone()).or_insert_with(|| {
            let node = Arc::new(Node::new(address, &shared.options));
            for lane in [Lane::Urgent, Lane::Data] {
                shared.spawn(link::run(shared.clone(), node.clone(), lane));
            }
            node
        });
        node.add(store, shared);
        self.routes.write().insert(store, node.clone());
        Ok(node.clone())
    }

    /// The node that is known to have the store.
    pub fn known(&self, store: StoreId) -> Option<Arc<Node>> {
        self.routes.read().get(&store).cloned()
    }

    /// Asks anew where the stores of a node are; those that moved are looked up when next needed.
    pub fn refresh(&self, node: &Node, shared: &Shared) {
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
            node.urgent.queue.close();
            node.data.queue.close();
            node.retry();
        }
        *node.stores.write() = stay;
    }

    /// Asks anew where every store is.
    pub fn refresh_all(&self, shared: &Shared) {
        let nodes: Vec<_> = self.by_address.lock().values().cloned().collect();
        for node in nodes {
            self.refresh(&node, shared);
            node.retry();
        }
    }

    /// Every node.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.by_address.lock().values().cloned().collect()
    }
}
