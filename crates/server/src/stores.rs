//! The stores of this node.

use crate::recovery_thread::RecoveryThread;
use crate::store::StoreHandle;
use parking_lot::{RwLock, RwLockWriteGuard};
use std::sync::Arc;
use stele_types::{RegionId, StoreId};

/// The stores of this node, in the order they were started.
pub struct Stores {
    all: RwLock<Vec<Arc<StoreHandle>>>,
    /// Those that wait for copies of entries before they open.
    waiting: RwLock<Vec<Arc<RecoveryThread>>>,
    /// Largest Raft entry; larger batches are split.
    pub entry_bytes_max: usize,
}

impl Stores {
    /// No store yet.
    pub fn new(entry_bytes_max: usize) -> Self {
        Self { all: RwLock::default(), waiting: RwLock::default(), entry_bytes_max }
    }

    /// Adds a store that was started.
    pub fn add(&self, store: Arc<StoreHandle>) {
        self.all.write().push(store);
    }

    /// Lets all stores go, and with them their directories: they have been stopped.
    pub fn clear(&self) {
        self.all.write().clear();
    }

    /// The store of that number.
    pub fn get(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.all.read().iter().find(|store| store.id() == id).cloned()
    }

    /// The first store.
    pub fn first(&self) -> Option<Arc<StoreHandle>> {
        self.all.read().first().cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<StoreHandle>> {
        self.all.read().clone()
    }

    /// Stores of this node that wait for copies of entries before they open.
    pub fn waiting(&self) -> Vec<Arc<RecoveryThread>> {
        self.waiting.read().clone()
    }

    /// The same, to be changed.
    pub fn waiting_list(&self) -> RwLockWriteGuard<'_, Vec<Arc<RecoveryThread>>> {
        self.waiting.write()
    }

    /// The one of that number.
    pub fn waiting_for(&self, id: StoreId) -> Option<Arc<RecoveryThread>> {
        self.waiting.read().iter().find(|store| store.id == id).cloned()
    }

    /// That store has opened, or never will.
    pub fn remove_waiting(&self, id: StoreId) {
        self.waiting.write().retain(|store| store.id != id);
    }

    /// Whether this node has the store, open or not.
    pub fn has(&self, id: StoreId) -> bool {
        self.get(id).is_some() || self.waiting_for(id).is_some()
    }

    /// A store with a replica of the region; one that leads it, if there is one.
    pub fn holding(&self, region: RegionId) -> Option<Arc<StoreHandle>> {
        let mut holders = self.all();
        holders.retain(|store| store.readers().get(region).is_some());
        let leading = holders.iter().find(|store| store.leads(region));
        leading.or(holders.first()).cloned()
    }
}
