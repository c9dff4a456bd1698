//! Asking other replicas for values that can't be read here. One message at a time for each region,
//! to one replica after the other; what nobody answers is asked for again.

use super::RaftStore;
use std::collections::BTreeMap;
use stele_storage::{LostValue, StorageEngine};
use stele_types::{RegionId, mutant};

/// Between two rounds of questions.
const ASK_NANOS: u64 = 200_000_000;
/// Values asked for in one round: what comes back must find room in the engine.
const ASKED_MAX: usize = 64;

/// When and whom to ask.
#[derive(Debug, Default)]
pub(super) struct Repair {
    next_nanos: u64,
    rounds: usize,
}

impl<E: StorageEngine> RaftStore<E> {
    /// When to ask at the latest; `None` while nothing is lost.
    pub(super) fn asks_at(&self) -> Option<u64> {
        self.ctx.engine.has_lost().then_some(self.repair.next_nanos)
    }

    pub(super) fn ask_for_lost(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if now < self.repair.next_nanos || !self.ctx.engine.has_lost() {
            return;
        }
        self.repair.next_nanos = now + ASK_NANOS;
        self.repair.rounds += 1;
        if mutant::active("raftstore.never_asks") {
            return;
        }
        let mut by_region: BTreeMap<RegionId, Vec<LostValue>> = BTreeMap::new();
        for lost in self.ctx.engine.lost_values(ASKED_MAX) {
            let owner = self.peers.values().find(|peer| peer.owns(&lost.key));
            if let Some(peer) = owner {
                by_region.entry(peer.region.id).or_default().push(lost);
            }
        }
        for (region, lost) in by_region {
            if let Some(peer) = self.peers.get(&region) {
                peer.ask_for(&mut self.ctx, self.repair.rounds, lost);
            }
        }
    }
}
