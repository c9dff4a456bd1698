//! Stores of this node.

use crate::failed_dir::FailedDir;
use crate::recovery_thread::RecoveryThread;
use crate::store::StoreHandle;
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_engine::GcOptions;
use stele_replica::PeerMessage;
use stele_types::{RegionId, Result, StoreId};

/// Stores of this node that take messages, in the order they were started.
#[derive(Clone, Default)]
pub struct Serving {
    open: Vec<Arc<StoreHandle>>,
    /// Stores that wait for copies of entries before they open.
    recovering: Vec<Arc<RecoveryThread>>,
}

impl Serving {
    fn get(&self, id: StoreId) -> Option<&Arc<StoreHandle>> {
        self.open.iter().find(|store| store.id() == id)
    }

    fn recovering(&self, id: StoreId) -> Option<&Arc<RecoveryThread>> {
        self.recovering.iter().find(|store| store.id == id)
    }

    /// Queues a message of `bytes` for its store, which drops it while too many wait. Returns it if its
    /// store is none of these.
    pub fn deliver(&self, message: PeerMessage, bytes: u64) -> Option<PeerMessage> {
        if let Some(store) = self.get(message.to_store) {
            store.message(message, bytes);
        } else if let Some(recovering) = self.recovering(message.to_store) {
            recovering.message(message, bytes);
        } else {
            return Some(message);
        }
        None
    }
}

/// Stores of this node.
pub struct Stores {
    /// Replaced as a whole at each change, so that a batch of messages reads it once.
    serving: RwLock<Arc<Serving>>,
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
            serving: RwLock::default(),
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
        self.change(|serving| serving.open.push(store));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Serving) -> T) -> T {
        change(Arc::make_mut(&mut self.serving.write()))
    }

    /// Takes out a store that has stopped.
    pub fn remove(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.change(|serving| {
            let at = serving.open.iter().position(|store| store.id() == id)?;
            Some(serving.open.remove(at))
        })
    }

    /// Drops all stores, which must be stopped, and so frees their directories.
    pub fn clear(&self) {
        self.change(|serving| serving.open.clear());
    }

    /// Returns the stores that take messages now.
    pub fn serving(&self) -> Arc<Serving> {
        self.serving.read().clone()
    }

    /// Returns the store with this id, if it is open.
    pub fn get(&self, id: StoreId) -> Option<Arc<StoreHandle>> {
        self.serving.read().get(id).cloned()
    }

    /// Returns the first store.
    pub fn first(&self) -> Option<Arc<StoreHandle>> {
        self.serving.read().open.first().cloned()
    }

    /// Returns all open stores.
    pub fn all(&self) -> Vec<Arc<StoreHandle>> {
        self.serving.read().open.clone()
    }

    /// Returns the stores that wait for copies of entries before they open.
    pub fn recovering(&self) -> Vec<Arc<RecoveryThread>> {
        self.serving.read().recovering.clone()
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

    /// Starts a recovering store. It is listed before its thread can remove it.
    pub fn add_recovering(
        &self,
        start: impl FnOnce() -> Result<Arc<RecoveryThread>>,
    ) -> Result<()> {
        self.change(|serving| {
            serving.recovering.push(start()?);
            Ok(())
        })
    }

    /// Returns whether this node has the store, open or recovering.
    pub fn has(&self, id: StoreId) -> bool {
        let serving = self.serving.read();
        serving.get(id).is_some() || serving.recovering(id).is_some()
    }

    /// Removes a recovering store that has opened or failed.
    pub fn remove_recovering(&self, id: StoreId) {
        self.change(|serving| serving.recovering.retain(|store| store.id != id));
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
