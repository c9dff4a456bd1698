//! Every pair of a store belongs to a replica there, and a replica's number to one replica for ever.

use crate::plan::SECOND;
use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{KeyRange, PeerId, RegionId, RegionKind, StoreId, keyspace};

/// A replica that leaves has its pairs dropped within this.
const SOON_NANOS: u64 = 3 * SECOND;

/// Where each replica was first seen.
#[derive(Default)]
pub struct Peers(BTreeMap<PeerId, (RegionId, StoreId)>);

impl World {
    /// The placement group gives a number out once.
    pub(super) fn check_peers(&mut self) {
        let reports = self.reports_by_region();
        for (number, report) in reports.into_values().flatten() {
            for peer in &report.region.peers {
                let this = (report.region.id, peer.store);
                let known = *self.checks.peers.0.entry(peer.id).or_insert(this);
                if known != this {
                    let text = format!("replica {} is {known:?} and {this:?}", peer.id);
                    return self.fail(format!("store {number} says that {text}"));
                }
            }
        }
    }

    /// No key has two owners on a store, and none of two regions that claim it at the same version.
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

    /// Pairs that no replica on their store owns.
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
            // Local facts are the store's own.
            let range = KeyRange::new(vec![keyspace::LOCAL + 1], Vec::new());
            let options = ScanOptions { keys_only: true, ..ScanOptions::new(range, usize::MAX) };
            let Ok(found) = engine.view().and_then(|view| view.scan(&options)) else { continue };
            let is_stray = |key: &Bytes| !owned.iter().any(|range| range.contains(key));
            let keys = found.into_iter().map(|pair| pair.key).filter(is_stray);
            unowned.extend(keys.map(|key| (number, key)));
        }
        unowned
    }

    /// What a replica that was behind left has an owner or is gone within this time.
    pub(crate) fn check_claimed(&mut self, nanos: u64) {
        let is_claimed = |world: &mut Self| {
            let mut cores = world.slots.values_mut().filter_map(|slot| slot.core());
            cores.all(|core| core.orphaned_ranges().is_empty())
        };
        if !self.run_until(nanos, is_claimed) {
            self.fail("a store keeps what no region there owns".into());
        }
    }

    /// What a replica that left had is gone, at once or soon.
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
