//! Fault injection for tests: a broken network between this node and another.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use stele_types::StoreId;

/// Direction that is lost between this node and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    Nothing,
    /// Messages from this node.
    Out,
    /// Messages from the other node.
    In,
    /// Both directions.
    Both,
}

/// Active cuts, each by a store of the other node.
#[derive(Default)]
pub struct Cuts {
    /// Set if there are any: the usual check takes no lock.
    any: AtomicBool,
    ways: RwLock<HashMap<StoreId, Cut>>,
}

impl Cuts {
    /// Sets the cut of a store; replaces the previous one.
    pub fn set(&self, store: StoreId, cut: Cut) {
        let mut ways = self.ways.write();
        match cut {
            Cut::Nothing => ways.remove(&store),
            _ => ways.insert(store, cut),
        };
        self.any.store(!ways.is_empty(), Relaxed);
    }

    /// Returns whether messages to the node that has these stores are lost.
    pub fn blocks_out(&self, stores: &[StoreId]) -> bool {
        self.holds(stores, Cut::Out)
    }

    /// Returns whether messages from it are lost.
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
