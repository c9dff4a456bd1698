//! A switch for tests: what a broken network does to the connections with one node.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use stele_types::StoreId;

/// What is lost between this node and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    Nothing,
    /// What this node sends.
    Out,
    /// What the other sends.
    In,
    /// Everything.
    Both,
}

/// The cuts in force, each by a store of the other node.
#[derive(Default)]
pub struct Cuts {
    /// Whether there are any: the usual answer takes no lock.
    any: AtomicBool,
    ways: RwLock<HashMap<StoreId, Cut>>,
}

impl Cuts {
    /// Puts a cut in force in place of the store's last one.
    pub fn set(&self, store: StoreId, cut: Cut) {
        let mut ways = self.ways.write();
        match cut {
            Cut::Nothing => ways.remove(&store),
            _ => ways.insert(store, cut),
        };
        self.any.store(!ways.is_empty(), Relaxed);
    }

    /// Whether what goes out to the node that has these stores is lost.
    pub fn blocks_out(&self, stores: &[StoreId]) -> bool {
        self.holds(stores, Cut::Out)
    }

    /// Whether what comes from it is lost.
    pub fn blocks_in(&self, stores: &[StoreId]) -> bool {
        self.holds(stores, Cut::In)
    }

    fn holds(&self, stores: &[StoreId], way: Cut) -> bool {
        if !self.any.load(Relaxed) {
            return false;
        }
        let ways = self.ways.read();
        let cut = |store| ways.get(store).is_some_and(|cut| *cut == way || *cut == Cut::Both);
        stores.iter().any(cut)
    }
}
