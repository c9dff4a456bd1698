//! Checks ownership: every pair of a store belongs to a replica there, and every peer id to one
//! replica permanently.

use crate::plan::SECOND;
use crate::world::{Slot, World};
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{EngineView, ScanOptions, StateMachine};
use stele_types::{KeyRange, PeerId, RegionId, RegionKind, StoreId, keyspace};

/// Limit for dropping the pairs of a destroyed replica.
const SOON_NANOS: u64 = 3 * SECOND;

#[derive(Default)]
pub(super) struct Peers(BTreeMap<PeerId, (RegionId, StoreId)>);

impl World {
    pub(super) fn check_peers(&mut self) {
        let reports = self.reports_by_region();
        for (number, report) in reports.into_values().flatten() {
            for peer in &report.region.peers {
                let this = (report.region.id, peer.store);
                let known = *self.checks.peers.0.entry(peer.id).or_insert(this);
                if known != this {
                    let text = format!("peer {} is both {known:?} and {this:?}", peer.id);
                    return self.fail(format!("store {number} reports: {text}"));
                }
            }
        }
    }

    /// Checks that no key has two owners on one store, or two owners with the same version.
    pub(super) fn check_ranges(&mut self) {
        let reports = self.reports_by_region();
        let data = reports.into_values().flatten().map(|(number, it)| (number, it.region));
        let data: Vec<_> = data.filter(|(_, it)| it.kind == RegionKind::Data).collect();
        for (at, (slot, one)) in data.iter().enumerate() {
            for (other_slot, other) in &data[at + 1..] {
                let both = one.id != other.id && one.range.overlaps(&other.range);
                let same = one.epoch.version == other.epoch.version || slot == other_slot;
                if both && same {
                    return self.fail(format!(
                        "stores {slot} and {other_slot} hold overlapping {one:?} and {other:?}"
                    ));
                }
            }
        }
    }

    /// Returns the pairs that no replica on their store owns.
    pub fn unowned(&mut self) -> Vec<(u64, Bytes)> {
        let mut unowned = Vec::new();
        for number in self.serving() {
            let excused = self.slots.get(&number).is_none_or(Slot::may_fail_reads);
            let Some(engine) = self.engine(number).filter(|_| !excused) else { continue };
            let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else {
                continue;
            };
            let ranges = core.regions().into_iter().flat_map(|it| it.region.engine_ranges());
            let owned: Vec<KeyRange> = ranges.collect();
            // Local records belong to the store itself.
            let range = KeyRange::new(vec![keyspace::LOCAL + 1], Vec::new());
            let options = ScanOptions { keys_only: true, ..ScanOptions::new(range, usize::MAX) };
            let Ok(found) = engine.view().and_then(|view| view.scan(&options)) else { continue };
            let is_stray = |key: &Bytes| !owned.iter().any(|range| range.contains(key));
            let keys = found.into_iter().map(|pair| pair.key).filter(is_stray);
            unowned.extend(keys.map(|key| (number, key)));
        }
        unowned
    }

    /// Checks that the pairs of destroyed replicas are dropped at once, and those of orphaned ranges
    /// when their time is over.
    pub(crate) fn check_owned(&mut self) {
        self.check_dropped(SOON_NANOS, |world, (number, key)| !world.is_orphaned(*number, key));
        self.check_dropped(self.plan.raft.orphaned_kept_nanos + SOON_NANOS, |_, _| true);
    }

    /// Checks that pairs which no replica owns and for which `must_go` holds are dropped within
    /// `nanos`.
    fn check_dropped(&mut self, nanos: u64, must_go: fn(&mut Self, &(u64, Bytes)) -> bool) {
        let mut left = self.unowned();
        left.retain(|pair| must_go(self, pair));
        let end = self.now + nanos;
        while !left.is_empty() && self.now < end {
            self.run(SECOND);
            let unowned = self.unowned();
            left.retain(|pair| unowned.contains(pair));
        }
        if let Some((number, key)) = left.first() {
            self.fail(format!("store {number} holds {key:?}, which no replica there owns"));
        }
    }

    fn is_orphaned(&mut self, number: u64, key: &Bytes) -> bool {
        let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
        let ranges = core.map(|core| core.orphaned_ranges()).unwrap_or_default();
        keyspace::user_key(key).is_some_and(|key| ranges.iter().any(|range| range.contains(&key)))
    }
}
