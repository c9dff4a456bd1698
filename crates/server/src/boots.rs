//! Runs of this node's stores, as its hellos and reports state them.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use stele_types::{StoreId, StoreRun};

/// Runs of this node's stores. One store may be added while the node runs.
#[derive(Debug)]
pub struct Boots {
    nonce: u64,
    runs: RwLock<BTreeMap<StoreId, StoreRun>>,
}

impl Boots {
    /// Creates the runs of a process with this random number, which is not 0, without a store.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, runs: RwLock::default() }
    }

    /// Adds a store with the run of its directory.
    pub fn add(&self, store: StoreId, run: StoreRun) {
        self.runs.write().insert(store, run);
    }

    /// Returns the random number of the process.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Returns the run of a store; unknown for one that this node does not have.
    pub fn get(&self, store: StoreId) -> StoreRun {
        self.runs.read().get(&store).cloned().unwrap_or_default()
    }
}
