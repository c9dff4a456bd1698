//! Runs of this node's stores, as its hellos and reports state them.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use stele_types::{Boot, StoreId};

/// Runs of this node's stores. One store may be added while the node runs.
#[derive(Debug)]
pub struct Boots {
    nonce: u64,
    counts: RwLock<BTreeMap<StoreId, u64>>,
}

impl Boots {
    /// Creates the runs of a process with this random number, which is not 0, without a store.
    pub fn new(nonce: u64) -> Self {
        Self { nonce, counts: RwLock::default() }
    }

    /// Adds a store with the number of starts of its directory; 0 if that could not be written.
    pub fn add(&self, store: StoreId, count: u64) {
        self.counts.write().insert(store, count);
    }

    /// Returns the random number of the process.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Returns the number of starts of a store's directory; 0 if it is unknown.
    pub fn count(&self, store: StoreId) -> u64 {
        self.counts.read().get(&store).copied().unwrap_or_default()
    }

    /// Returns the run of a store.
    pub fn get(&self, store: StoreId) -> Boot {
        Boot { count: self.count(store), nonce: self.nonce }
    }
}
