//! What the stores of a group share in place of a network: who applied what first, and its tables.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::{LogIndex, RegionId};

/// Shipments that wait to be taken: one that every follower may take is among them, the newest may
/// hold what some have not heard is committed.
const KEPT: usize = 2;

static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// A number that nothing else in this process has: of a store since it was opened, or of a shipment.
pub fn number() -> u64 {
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// The tables of a store at one time. The directory goes when nobody has the shipment any more.
#[derive(Debug)]
pub struct Shipment {
    pub sender: u64,
    pub dir: PathBuf,
    /// How far it holds each region.
    pub applied: BTreeMap<RegionId, LogIndex>,
}

impl Drop for Shipment {
    fn drop(&mut self) {
        // What stays here, opening the store removes.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Shipments(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The last entry of each region that some store applied.
    applied: BTreeMap<RegionId, LogIndex>,
    /// Who applied one first, the last time.
    sender: Option<u64>,
    shipped: VecDeque<Arc<Shipment>>,
}

impl Shipments {
    /// Whether no other store applied this entry before. Who did so last is the sender.
    pub fn is_first(&self, store: u64, region: RegionId, index: LogIndex) -> bool {
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
        while state.shipped.len() > KEPT {
            state.shipped.pop_front();
        }
    }

    /// The newest that fits.
    pub fn newest(&self, fits: impl Fn(&Shipment) -> bool) -> Option<Arc<Shipment>> {
        self.0.lock().shipped.iter().rev().find(|it| fits(it)).cloned()
    }

    /// The store ends. What only it applied, somebody will apply first again.
    pub fn leave(&self, store: u64) {
        let mut state = self.0.lock();
        state.shipped.retain(|it| it.sender != store);
        if state.sender == Some(store) {
            state.sender = None;
            state.applied.clear();
        }
    }
}
