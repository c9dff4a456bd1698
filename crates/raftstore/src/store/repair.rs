//! Asking other replicas for values that can't be read here. One message at a time for each region,
//! to one replica after the other; what nobody answers is asked for again.

use super::RaftStore;
use crate::messages::Body;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{LostValue, Pair, StorageEngine};
use stele_types::{KeyRange, RegionId, StoreIdent, keyspace, mutant};

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
            match self.peers.values().find(|peer| peer.owns(&lost.key)) {
                Some(peer) => by_region.entry(peer.region.id).or_default().push(lost),
                // The engine takes it if it is what was lost.
                None => {
                    let fact = self.own_facts().into_iter().find(|(key, _)| *key == lost.key);
                    fact.into_iter()
                        .for_each(|(key, value)| self.ctx.engine.repair_value(&key, value));
                }
            }
        }
        self.ask_for_ranges();
        for (region, lost) in by_region {
            if let Some(peer) = self.peers.get(&region) {
                peer.ask(&mut self.ctx, self.repair.rounds, Body::ValueRepairRequest(lost));
            }
        }
    }

    /// Parts of lost ranges that regions here own, their replicas are asked for; of the rest, this
    /// store alone may know.
    fn ask_for_ranges(&mut self) {
        for lost in self.ctx.engine.lost_ranges() {
            let mut left = vec![lost.clone()];
            for peer in self.peers.values() {
                for own in peer.owned_ranges() {
                    left = left.iter().flat_map(|left| left.without(&own)).collect();
                    if let Some(part) = lost.common(&own) {
                        peer.ask(&mut self.ctx, self.repair.rounds, Body::RangeRepairRequest(part));
                    }
                }
            }
            if !mutant::active("raftstore.rest_covered") {
                let orphaned_ranges = self.orphaned_ranges.parts();
                let orphaned_ranges = orphaned_ranges.iter().flat_map(|part| part.engine_ranges());
                left = orphaned_ranges.fold(left, |left, range| {
                    left.iter().flat_map(|left| left.without(&range)).collect()
                });
            }
            left.iter().for_each(|left| self.cover_own(left));
        }
    }

    /// Keys of no region here, and that none may come for. What the store keeps of itself is in memory, save for the last changes
    /// of regions that left: a replica of one that is late to hear of it hears of it elsewhere.
    fn cover_own(&mut self, range: &KeyRange) {
        let mut pairs = self.own_facts();
        pairs.retain(|(key, _)| range.contains(key));
        pairs.sort();
        let pair = |(key, value)| Pair { key, value, expires_at_s: 0 };
        // What fails is tried again in the next round.
        let _ = self.ctx.engine.repair_range(range, pairs.into_iter().map(pair).collect());
    }

    /// What the store keeps of itself and has in memory.
    fn own_facts(&self) -> Vec<(Bytes, Bytes)> {
        let (cluster, store) = (self.ctx.options.cluster, self.ctx.options.store);
        let mut facts = vec![(keyspace::ident_key(), StoreIdent { cluster, store }.encode())];
        let gone = self.tombstones.values();
        facts.extend(gone.map(|region| (keyspace::region_key(region.id), region.encode())));
        facts.extend(self.orphaned_ranges.facts());
        facts
    }
}
