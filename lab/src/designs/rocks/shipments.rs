//! State shared by the stores of a group, in place of a network: the first store to apply each
//! entry, and its tables.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::{LogIndex, RegionId};

/// Shipments that are kept. At least one of them fits every follower; the newest may hold entries
/// that some followers do not know to be committed.
const SHIPMENTS_MAX: usize = 2;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Returns a number that is unique in this process: of an opened store, or of a shipment.
pub(super) fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Tables of a store at one time. The directory is removed when the shipment is dropped.
#[derive(Debug)]
pub struct Shipment {
    pub sender: u64,
    pub dir: PathBuf,
    /// Applied index of each region in it.
    pub applied: BTreeMap<RegionId, LogIndex>,
}

impl Drop for Shipment {
    fn drop(&mut self) {
        // Opening the store removes what remains here.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Shipments of a group.
#[derive(Debug, Default)]
pub struct Shipments(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Last entry of each region that a store applied.
    applied: BTreeMap<RegionId, LogIndex>,
    /// Store that last applied an entry first.
    sender: Option<u64>,
    shipped: VecDeque<Arc<Shipment>>,
}

impl Shipments {
    /// Records an applied entry. Returns true if no other store applied it before; the store is
    /// then the sender.
    pub fn record_applied(&self, store: u64, region: RegionId, index: LogIndex) -> bool {
        let mut state = self.0.lock();
        let known = state.applied.entry(region).or_default();
        if index <= *known {
            return false;
        }
        *known = index;
        state.sender = Some(store);
        true
    }

    pub fn is_sender(&self, store: u64) -> bool {
        self.0.lock().sender == Some(store)
    }

    pub fn publish(&self, shipment: Shipment) {
        let mut state = self.0.lock();
        state.shipped.push_back(Arc::new(shipment));
        while state.shipped.len() > SHIPMENTS_MAX {
            state.shipped.pop_front();
        }
    }

    /// Returns the newest shipment that fits.
    pub fn newest(&self, fits: impl Fn(&Shipment) -> bool) -> Option<Arc<Shipment>> {
        self.0.lock().shipped.iter().rev().find(|it| fits(it)).cloned()
    }

    /// Removes a store. Entries that only this store applied will be applied first by another one.
    pub fn leave(&self, store: u64) {
        let mut state = self.0.lock();
        state.shipped.retain(|it| it.sender != store);
        if state.sender == Some(store) {
            state.sender = None;
            state.applied.clear();
        }
    }
}
