//! Stores of this node.

use crate::failed_dir::FailedDir;
use crate::recovery_thread::RecoveryThread;
use crate::store::StoreHandle;
use parking_lot::{RwLock, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_engine::GcOptions;
use stele_types::{RegionId, Result, StoreId};

/// Stores of this node, in the order they were started.
pub struct Stores {
    all: RwLock<Vec<Arc<StoreHandle>>>,
    /// Stores that wait for copies of entries before they open.
    recovering: RwLock<Vec<Arc<RecoveryThread>>>,
    failed: RwLock<Vec<FailedDir>>,
    /// Bytes of the largest Raft entry; larger batches are split.
    pub entry_bytes_max: usize,
    undetermined_writes_fail: AtomicBool,
    /// The node hands its leaders over and stops.
    stopping: AtomicBool,
    /// Settings of garbage collection that replaced those of the start.
    gc_options: RwLock<Option<GcOptions>>,
}

impl Stores {
    /// Creates the list without a store.
    pub fn new(entry_bytes_max: usize) -> Self {
        Self {
            all: RwLock::default(),
            recovering: RwLock::default(),
            failed: RwLock::default(),
            entry_bytes_max,
            undetermined_writes_fail: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            gc_options: RwLock::default(),
        }
    }

    /// Returns whether the node hands its leaders over and stops.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Records that the node hands its leaders over and stops.
    pub fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Replaces the settings of garbage collection of all stores, also of those that open later. Fails
    /// with `Invalid` when one is out of bounds.
    pub fn set_gc_options(&self, options: &GcOptions) -> Result<()> {
        options.validate()?;
        *self.gc_options.write() = Some(options.clone());
        self.all().iter().try_for_each(|store| store.engine().set_gc_options(options.clone()))
    }

    /// Returns whether puts and deletes of unknown outcome are answered with an error, which clients
    /// do not repeat. A setting of the cluster.
    pub fn undetermined_writes_fail(&self) -> bool {
        self.undetermined_writes_fail.load(Ordering::Relaxed)
    }

    /// Takes over that setting.
    pub fn set_undetermined_writes_fail(&self, fail: bool) {
        self.undetermined_writes_fail.store(fail, Ordering::Relaxed);
    }

    /// Adds a started store.
    pub fn add(&self, store: Arc<StoreHandle>) {
        let options = self.gc_options.read().clone();
        if let Some(Err(error)) = options.map(|options| store.engine().set_gc_options(options)) {
            tracing::warn!("store {}: garbage collection keeps its settings: {error}", store.id());
        }
        self.all.write().push(store);
    }

    /// Takes out a store that has stopped.
    pub fn remove(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        let mut all = self.all.write();
        let at = all.iter().position(|store| store.id() == id)?;
        Some(all.remove(at))
    }

    /// Drops all stores, which must be stopped, and so frees their directories.
    pub fn clear(&self) {
        self.all.write().clear();
    }

    /// Returns the store with this id, if it is open.
    pub fn get(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.all.read().iter().find(|store| store.id() == id).cloned()
    }

    /// Returns the first store.
    pub fn first(&self) -> Option<Arc<StoreHandle>> {
        self.all.read().first().cloned()
    }

    /// Returns all open stores.
    pub fn all(&self) -> Vec<Arc<StoreHandle>> {
        self.all.read().clone()
    }

    /// Returns the stores that wait for copies of entries before they open.
    pub fn recovering(&self) -> Vec<Arc<RecoveryThread>> {
        self.recovering.read().clone()
    }

    /// Adds a directory that serves no store, and logs it.
    pub fn add_failed(&self, dir: FailedDir) {
        match dir.is_expected {
            true => tracing::warn!("{dir}"),
            false => tracing::error!("{dir}"),
        }
        self.failed.write().push(dir);
    }

    /// Returns the directories that serve no store.
    pub fn failed(&self) -> Vec<FailedDir> {
        self.failed.read().clone()
    }

    /// Locks the list of recovering stores for changes.
    pub fn recovering_mut(&self) -> RwLockWriteGuard<'_, Vec<Arc<RecoveryThread>>> {
        self.recovering.write()
    }

    /// Returns the recovering store with this id.
    pub fn recovering_store(&self, id: StoreId) -> Option<Arc<RecoveryThread>> {
        self.recovering.read().iter().find(|store| store.id == id).cloned()
    }

    /// Removes a recovering store that has opened or failed.
    pub fn remove_recovering(&self, id: StoreId) {
        self.recovering.write().retain(|store| store.id != id);
    }

    /// Returns whether this node has the store, open or recovering.
    pub fn has(&self, id: StoreId) -> bool {
        self.get(id).is_some() || self.recovering_store(id).is_some()
    }

    /// Returns a store with a replica of the region; the one that leads it, if there is one. One that
    /// has failed knows nothing of its regions any more.
    pub fn holding(&self, region: RegionId) -> Option<Arc<StoreHandle>> {
        let mut holders = self.all();
        holders.retain(|store| store.is_running() && store.readers().get(region).is_some());
        let leading = holders.iter().find(|store| store.leads(region));
        leading.or(holders.first()).cloned()
    }
}
