//! Requests to other replicas for values that cannot be read here, and answers to other stores that
//! lost entries, from this store's log. A region has one request at a time under way, to one
//! replica after the other; an unanswered request is repeated.

use super::RaftStore;
use crate::entry_recovery::find_entries;
use crate::messages::{Body, PeerMessage};
use crate::validate;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{LostEntry, LostValue, Pair, StorageEngine};
use stele_types::{KeyRange, RegionId, StoreIdent, keyspace};

/// Nanoseconds between two rounds of requests.
const REQUEST_INTERVAL_NANOS: u64 = 200_000_000;
/// Most values requested in one round: the replies must fit in the engine.
const REQUESTED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Repair {
    next_nanos: u64,
    rounds: usize,
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the monotonic nanoseconds of the next round; `None` while nothing is lost.
    pub(super) fn asks_at(&self) -> Option<u64> {
        self.ctx.engine.has_lost().then_some(self.repair.next_nanos)
    }

    pub(super) fn request_lost(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if now < self.repair.next_nanos || !self.ctx.engine.has_lost() {
            return;
        }
        self.repair.next_nanos = now + REQUEST_INTERVAL_NANOS;
        self.repair.rounds += 1;
        // bug replica.never_asks: return;
        let mut by_region: BTreeMap<RegionId, Vec<LostValue>> = BTreeMap::new();
        for lost in self.ctx.engine.lost_values(REQUESTED_MAX) {
            match self.replicas.values().find(|replica| replica.is_owner_of(&lost.key)) {
                Some(replica) => by_region.entry(replica.region.id).or_default().push(lost),
                // The engine accepts the value if it is the lost one.
                None => {
                    let own = self.own_pairs().into_iter().find(|(key, _)| *key == lost.key);
                    own.into_iter()
                        .for_each(|(key, value)| self.ctx.engine.repair_value(&key, value));
                }
            }
        }
        self.request_lost_ranges();
        for (region, lost) in by_region {
            if let Some(replica) = self.replicas.get(&region) {
                replica.ask(&mut self.ctx, self.repair.rounds, Body::ValueRepairRequest(lost));
            }
        }
    }

    /// Requests the parts of lost ranges that regions here own from their replicas. The other
    /// parts, except orphaned ranges, are repaired from this store alone.
    fn request_lost_ranges(&mut self) {
        for lost in self.ctx.engine.lost_ranges() {
            let mut left = vec![lost.clone()];
            for replica in self.replicas.values() {
                for own in replica.owned_ranges() {
                    left = left.iter().flat_map(|left| left.without(&own)).collect();
                    if let Some(part) = lost.common(&own) {
                        replica.ask(
                            &mut self.ctx,
                            self.repair.rounds,
                            Body::RangeRepairRequest(part),
                        );
                    }
                }
            }
            let orphaned_ranges = self.orphaned_ranges.parts();
            let orphaned_ranges = orphaned_ranges.iter().flat_map(|part| part.engine_ranges());
            // bug replica.rest_covered: skip
            left = orphaned_ranges.fold(left, |left, range| {
                left.iter().flat_map(|left| left.without(&range)).collect()
            });
            left.iter().for_each(|left| self.repair_own_range(left));
        }
    }

    /// Repairs a range without region keys or orphaned keys. The store has its own pairs in memory,
    /// except the last changes of removed regions; a replica that has not learned such a change
    /// learns it from another store.
    fn repair_own_range(&mut self, range: &KeyRange) {
        let mut pairs = self.own_pairs();
        pairs.retain(|(key, _)| range.contains(key));
        pairs.sort();
        let pair = |(key, value)| Pair { key, value, expires_at_s: 0 };
        // A failure is retried in the next round.
        let _ = self.ctx.engine.repair_range(range, pairs.into_iter().map(pair).collect());
    }

    fn own_pairs(&self) -> Vec<(Bytes, Bytes)> {
        let (cluster, store) = (self.ctx.options.cluster, self.ctx.options.store);
        let tick = self.ctx.tick;
        // bug replica.tick_not_repaired: let tick = None;
        let mut pairs = StoreIdent { tick, ..StoreIdent::new(cluster, store) }.pairs();
        let gone = self.tombstones.values();
        pairs.extend(gone.map(|region| (keyspace::region_key(region.id), region.encode())));
        pairs
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Answers a store that recovers its log. Membership does not matter: only the exact bytes that
    /// the other store once wrote are sent.
    pub(super) fn answer_entry_recovery(&mut self, message: &PeerMessage, lost: &[LostEntry]) {
        let here = self.ctx.options.store;
        if let Err(reason) = validate::check_stores(message, here) {
            slog::debug!(self.ctx.logger, "refused a message"; "reason" => reason);
            return;
        }
        let found = find_entries(lost, |lost| self.entry(lost));
        if !found.is_empty() {
            let body = Body::EntryRecoveryReply(found);
            let answer = PeerMessage::between_stores(here, message.from_store, body);
            self.ctx.out.messages.push(answer);
        }
    }

    /// Returns the payload of an entry; `None` if this log does not have it or cannot read it
    /// either.
    fn entry(&self, lost: &LostEntry) -> Option<Bytes> {
        let (from, to) = (lost.index, lost.index.next());
        let entries = self.ctx.engine.entries(lost.region, from, to, 0).ok()?;
        let entry = entries.into_iter().next()?;
        // Invariant: only the requested entry is sent. One of another term may be the proposal of a
        // deposed leader, and would replace an acknowledged entry.
        let is_it =
            entry.index == lost.index && entry.term == lost.term && lost.is_copy(&entry.payload);
        // bug replica.found_entry_unchecked: `is_it` is `true`
        is_it.then_some(entry.payload)
    }
}
