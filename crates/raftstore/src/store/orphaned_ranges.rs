//! Pairs that no region here owns and that may be wanted yet. A replica that was behind splits goes on
//! from a snapshot of what is left of its region, or leaves: the rest of what it had may be the last
//! whole copy of values that the rest's other replicas lost, and then no snapshot of the rest can be
//! made before they have asked here. Nobody reads these pairs for anything else, for they are of the
//! past. They stay until a replica that owns their keys is here again, which replaces them, or until
//! the regions that have these keys by now are known to have no replica here.

use super::{Pairs, RaftStore};
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{KeyRange, Region, RegionId, RegionKind, Result, StoreId, keyspace, mutant};

/// By region and version: one replica after the other may leave something.
#[derive(Default)]
pub(super) struct OrphanedRanges(BTreeMap<(RegionId, u64), OrphanedRange>);

/// What a replica that is not here any more left.
struct OrphanedRange {
    /// Its region as it last knew it; the note that the store keeps of it.
    region: Region,
    /// User keys of its range that are still unclaimed.
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

    /// These keys are not left any more.
    fn take(&mut self, range: &KeyRange) {
        self.left = self.left.iter().flat_map(|left| left.without(range)).collect();
    }

    /// Nor are these, and what of them was left.
    fn give_up(&mut self, range: &KeyRange) -> Vec<Region> {
        let common =
            |part: Region| Some(Region { range: part.range.common(range)?, ..part.clone() });
        let parts = self.parts().filter_map(common).collect();
        self.take(range);
        parts
    }
}

impl OrphanedRanges {
    /// What the store noted before it was closed, as far as none of its regions owns it.
    pub fn open<E: StorageEngine>(engine: &E, live: &[Region]) -> Result<Self> {
        let options = ScanOptions::new(keyspace::unclaimed_keys(), usize::MAX);
        let mut found = Self::default();
        for pair in engine.view()?.scan(&options)? {
            let region = Region::decode(&pair.value)?;
            let mut rest = OrphanedRange { left: vec![region.range.clone()], region };
            live.iter().filter(|it| is_data(it)).for_each(|it| rest.take(&it.range));
            found.0.insert(rest.name(), rest);
        }
        Ok(found)
    }

    /// The ranges as regions, for who looks for what nobody owns.
    pub fn parts(&self) -> Vec<Region> {
        self.0.values().flat_map(OrphanedRange::parts).collect()
    }

    /// Facts that the store keeps.
    pub fn facts(&self) -> Vec<(Bytes, Bytes)> {
        self.0.values().map(|rest| (rest.key(), rest.region.encode())).collect()
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// User keys with pairs that no region here owns: the placement group knows whose they are, see
    /// [`crate::Input::Owners`].
    pub fn orphaned_ranges(&self) -> Vec<KeyRange> {
        self.orphaned_ranges.0.values().flat_map(|rest| rest.left.clone()).collect()
    }

    /// A replica is about to leave: what of its range is not to be dropped, and the note that says so.
    pub(super) fn leave_unclaimed(
        &mut self,
        region: &Region,
        pairs: &Pairs,
    ) -> Option<(Bytes, Bytes)> {
        let left = match pairs {
            Pairs::Owned => return None,
            Pairs::Known(range) => region.range.without(range),
            Pairs::Unclear => vec![region.range.clone()],
        };
        let mut rest = OrphanedRange { region: region.clone(), left };
        let others = self.peers.values().map(|peer| &peer.region);
        others.filter(|it| is_data(it)).for_each(|it| rest.take(&it.range));
        if !is_data(region) || rest.left.is_empty() {
            return None;
        }
        let note = (rest.key(), rest.region.encode());
        self.orphaned_ranges.0.insert(rest.name(), rest);
        Some(note)
    }

    /// A snapshot of `region` takes the place of a replica that owns more. Returns whether that has
    /// to wait. Rule: the note of the rest is durable before; an opening in between would drop it.
    pub(super) fn note_rest(&mut self, region: &Region) -> Result<bool> {
        let Some(peer) = self.peers.get(&region.id) else { return Ok(false) };
        let before = peer.region.clone();
        let left = before.range.without(&region.range);
        if left.is_empty() || !is_data(&before) {
            return Ok(false);
        }
        let rest = OrphanedRange { region: (*before).clone(), left };
        let known = self.orphaned_ranges.0.get(&rest.name());
        if known.is_none_or(|known| known.region != rest.region) {
            let note = (rest.key(), rest.region.encode());
            self.ctx.journal.put(&mut self.ctx.batches, &[note])?;
        }
        self.orphaned_ranges.0.insert(rest.name(), rest);
        let is_durable = !self.ctx.batches.has_records_of(super::journal::JOURNAL);
        Ok(!is_durable && !mutant::active("raftstore.rest_noted_late"))
    }

    /// Forgets what regions here own by now, and drops what is wanted here no more, as the placement
    /// group's descriptors prove.
    pub(super) fn settle_unclaimed(&mut self) -> Result<()> {
        let owners = std::mem::take(&mut self.owners);
        let store = self.ctx.options.store;
        let (mut unwanted, mut done) = (Vec::new(), Vec::new());
        for (name, rest) in &mut self.orphaned_ranges.0 {
            if self.arrived.iter().any(|(header, _)| header.region.id == name.0) {
                // Its replica is still here, and owns it.
                continue;
            }
            let here = self.peers.values().map(|peer| &peer.region);
            here.filter(|it| is_data(it)).for_each(|it| rest.take(&it.range));
            for owner in &owners {
                if proves_unwanted(owner, &rest.region, store) {
                    unwanted.extend(rest.give_up(&owner.range));
                }
            }
            if mutant::active("raftstore.rest_dropped") {
                unwanted.extend(rest.give_up(&KeyRange::all()));
            }
            if rest.left.is_empty() {
                done.push(*name);
            }
        }
        let gone = done.iter().filter_map(|name| self.orphaned_ranges.0.remove(name));
        let keys: Vec<Bytes> = gone.map(|rest| rest.key()).collect();
        if !keys.is_empty() {
            self.ctx.journal.remove(&mut self.ctx.batches, &keys)?;
        }
        self.drop_or_wait(unwanted)
    }
}

fn is_data(region: &Region) -> bool {
    region.kind == RegionKind::Data
}

/// Whether a region has no replica here though it has keys that a replica here left. Rule: only as of
/// later than the replica knew. Splits copy members and merges need the same ones, so a store was taken
/// out of the members in between; an earlier descriptor may be from before it came in.
fn proves_unwanted(owner: &Region, left: &Region, store: StoreId) -> bool {
    let is_later = owner.epoch.version > left.epoch.version
        || owner.id == left.id && owner.epoch.conf_version > left.epoch.conf_version
        || mutant::active("raftstore.rest_judged_by_the_past");
    is_data(owner) && owner.peer_on(store).is_none() && is_later
}
