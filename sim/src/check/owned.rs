//! Checks ownership: every pair of a store belongs to a replica there, and every peer id to one
//! replica permanently.

use crate::plan::SECOND;
use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{EngineView, ScanOptions, StateMachine};
use stele_types::{KeyRange, PeerId, RegionId, RegionKind, StoreId, keyspace};

/// Limit for dropping the pairs of a destroyed replica.
const SOON_NANOS: u64 = 3 * SECOND;

/// Region and store of each peer id.
#[derive(Default)]
pub struct Peers(BTreeMap<PeerId, (RegionId, StoreId)>);

impl World {
    /// Checks that the placement group allocates each peer id once.
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
            let excused = self.slots.get(&number).is_none_or(|it| it.is_damaged || it.is_troubled);
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

    /// Checks that orphaned ranges get an owner or are dropped within `nanos`.
    pub(crate) fn check_orphaned_ranges(&mut self, nanos: u64) {
        let are_claimed = |world: &mut Self| {
            let mut cores = world.slots.values_mut().filter_map(|slot| slot.core());
            cores.all(|core| core.orphaned_ranges().is_empty())
        };
        if !self.run_until(nanos, are_claimed) {
            self.fail("a store keeps orphaned ranges".into());
        }
    }

    /// Checks that the pairs of destroyed replicas are dropped.
    pub(crate) fn check_owned(&mut self) {
        let before = self.unowned();
        if before.is_empty() {
            return;
        }
        self.run(SOON_NANOS);
        if let Some((number, key)) = self.unowned().into_iter().find(|it| before.contains(it)) {
            self.fail(format!("store {number} holds {key:?}, which no replica there owns"));
        }
    }
}
