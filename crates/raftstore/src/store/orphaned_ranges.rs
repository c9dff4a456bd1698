//! Orphaned ranges: pairs that no region here owns and that may still be needed.
//!
//! A replica that missed splits continues from a snapshot of its smaller region, or is removed. The
//! other pairs it had may be the last intact copy of values that the split children's replicas
//! lost, and no snapshot of these children can be made before they have requested copies here. The
//! pairs are outdated, so nothing else reads them. They stay until a replica that owns their keys
//! is created here, which replaces them, or until the current owners of these keys are known to
//! have no replica here.

use super::{Pairs, RaftStore};
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{KeyRange, Region, RegionId, RegionKind, Result, StoreId, keyspace, mutant};

/// Orphaned ranges by region and version: several replicas in turn may leave some.
#[derive(Default)]
pub(super) struct OrphanedRanges(BTreeMap<(RegionId, u64), OrphanedRange>);

/// Pairs left by a removed replica.
struct OrphanedRange {
    /// Its region, as last known; also the record that the store keeps.
    region: Region,
    /// User keys of its range that are still orphaned.
    left: Vec<KeyRange>,
}

impl OrphanedRange {
    fn name(&self) -> (RegionId, u64) {
        (self.region.id, self.region.epoch.version)
    }

    fn key(&self) -> Bytes {
        let (region, version) = self.name();
        keyspace::orphaned_range_key(region, version)
    }

    fn parts(&self) -> impl Iterator<Item = Region> {
        self.left.iter().map(|left| Region { range: left.clone(), ..self.region.clone() })
    }

    /// Removes keys from the orphaned ones.
    fn remove(&mut self, range: &KeyRange) {
        self.left = self.left.iter().flat_map(|left| left.without(range)).collect();
    }

    /// Removes keys from the orphaned ones and returns those that were orphaned, as regions.
    fn extract(&mut self, range: &KeyRange) -> Vec<Region> {
        let common =
            |part: Region| Some(Region { range: part.range.common(range)?, ..part.clone() });
        let parts = self.parts().filter_map(common).collect();
        self.remove(range);
        parts
    }
}

impl OrphanedRanges {
    /// Reads the records of the store, minus the keys that its regions own.
    pub fn open<E: StorageEngine>(engine: &E, live: &[Region]) -> Result<Self> {
        let options = ScanOptions::new(keyspace::orphaned_range_keys(), usize::MAX);
        let mut found = Self::default();
        for pair in engine.view()?.scan(&options)? {
            let region = Region::decode(&pair.value)?;
            let mut orphaned = OrphanedRange { left: vec![region.range.clone()], region };
            live.iter().filter(|it| is_data(it)).for_each(|it| orphaned.remove(&it.range));
            found.0.insert(orphaned.name(), orphaned);
        }
        Ok(found)
    }

    /// Returns the ranges as regions, for the search for unowned pairs.
    pub fn parts(&self) -> Vec<Region> {
        self.0.values().flat_map(OrphanedRange::parts).collect()
    }

    /// Returns the records of the store as pairs.
    pub fn stored_pairs(&self) -> Vec<(Bytes, Bytes)> {
        self.0.values().map(|orphaned| (orphaned.key(), orphaned.region.encode())).collect()
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the user keys with pairs that no region here owns. The placement group knows their
    /// owners, see [`crate::Input::Owners`].
    pub fn orphaned_ranges(&self) -> Vec<KeyRange> {
        self.orphaned_ranges.0.values().flat_map(|orphaned| orphaned.left.clone()).collect()
    }

    /// Records the part of a removed replica's range that must be kept. Returns the pair to write.
    pub(super) fn record_orphaned_ranges(
        &mut self,
        region: &Region,
        pairs: &Pairs,
    ) -> Option<(Bytes, Bytes)> {
        let left = match pairs {
            Pairs::Owned => return None,
            Pairs::Known(range) => region.range.without(range),
            Pairs::Unclear => vec![region.range.clone()],
        };
        let mut orphaned = OrphanedRange { region: region.clone(), left };
        let others = self.peers.values().map(|peer| &peer.region);
        others.filter(|it| is_data(it)).for_each(|it| orphaned.remove(&it.range));
        if !is_data(region) || orphaned.left.is_empty() {
            return None;
        }
        let note = (orphaned.key(), orphaned.region.encode());
        self.orphaned_ranges.0.insert(orphaned.name(), orphaned);
        Some(note)
    }

    /// Records the keys that the replica here owns and a snapshot of `region` does not. Returns
    /// whether the installation must wait. Invariant: the record is durable before the
    /// installation; otherwise an opening in between would drop the pairs.
    pub(super) fn record_orphaned_remainder(&mut self, region: &Region) -> Result<bool> {
        let Some(peer) = self.peers.get(&region.id) else { return Ok(false) };
        let before = peer.region.clone();
        let left = before.range.without(&region.range);
        if left.is_empty() || !is_data(&before) {
            return Ok(false);
        }
        let orphaned = OrphanedRange { region: (*before).clone(), left };
        let known = self.orphaned_ranges.0.get(&orphaned.name());
        if known.is_none_or(|known| known.region != orphaned.region) {
            let note = (orphaned.key(), orphaned.region.encode());
            self.ctx.journal.put(&mut self.ctx.batches, &[note])?;
        }
        self.orphaned_ranges.0.insert(orphaned.name(), orphaned);
        let is_durable = !self.ctx.batches.has_records_of(super::journal::JOURNAL);
        Ok(!is_durable && !mutant::active("raftstore.rest_noted_late"))
    }

    /// Removes keys that regions here own now, and drops those that the placement group's
    /// descriptors prove unneeded.
    pub(super) fn settle_orphaned_ranges(&mut self) -> Result<()> {
        let owners = std::mem::take(&mut self.owners);
        let store = self.ctx.options.store;
        let (mut unneeded, mut done) = (Vec::new(), Vec::new());
        for (name, orphaned) in &mut self.orphaned_ranges.0 {
            if self.arrived.iter().any(|(header, _)| header.region.id == name.0) {
                // Its replica is still here and owns the keys.
                continue;
            }
            let here = self.peers.values().map(|peer| &peer.region);
            here.filter(|it| is_data(it)).for_each(|it| orphaned.remove(&it.range));
            for owner in &owners {
                if is_proven_unneeded(owner, &orphaned.region, store) {
                    unneeded.extend(orphaned.extract(&owner.range));
                }
            }
            if mutant::active("raftstore.rest_dropped") {
                unneeded.extend(orphaned.extract(&KeyRange::all()));
            }
            if orphaned.left.is_empty() {
                done.push(*name);
            }
        }
        let gone = done.iter().filter_map(|name| self.orphaned_ranges.0.remove(name));
        let keys: Vec<Bytes> = gone.map(|orphaned| orphaned.key()).collect();
        if !keys.is_empty() {
            self.ctx.journal.remove(&mut self.ctx.batches, &keys)?;
        }
        self.drop_or_wait(unneeded)
    }
}

fn is_data(region: &Region) -> bool {
    region.kind == RegionKind::Data
}

/// Returns whether a descriptor proves that keys left by a replica here are unneeded: their owner
/// has no replica on this store. Invariant: only a descriptor newer than the removed replica's
/// counts. Splits copy members and merges need equal ones, so this store was removed from the
/// members in between; an older descriptor may be from before it was added.
fn is_proven_unneeded(owner: &Region, left: &Region, store: StoreId) -> bool {
    let is_later = owner.epoch.version > left.epoch.version
        || owner.id == left.id && owner.epoch.conf_version > left.epoch.conf_version
        || mutant::active("raftstore.rest_judged_by_the_past");
    is_data(owner) && owner.peer_on(store).is_none() && is_later
}
