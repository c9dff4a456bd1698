//! Orphaned ranges: pairs that no region here owns and that may still be needed.
//!
//! A replica that missed splits continues from a snapshot of its smaller region. The other pairs it
//! had may be the last intact copy of values that the split children's replicas lost, and no
//! snapshot of these children can be made before they have requested copies here. The pairs are
//! outdated, so nothing else reads them. They stay until a replica that owns their keys is created
//! here, which replaces them, but at most for [`crate::Options::orphaned_kept_nanos`]. Only memory
//! holds the ranges: opening drops the pairs.

use super::RaftStore;
use stele_storage::StorageEngine;
use stele_types::{KeyRange, Region, RegionKind, Result, mutant};

/// Ranges of user keys, each with the monotonic nanoseconds at which its pairs are dropped.
#[derive(Default)]
pub(super) struct OrphanedRanges(Vec<(KeyRange, u64)>);

impl OrphanedRanges {
    /// Returns the monotonic nanoseconds at which the next pairs are dropped.
    pub fn drop_at(&self) -> Option<u64> {
        self.0.iter().map(|(_, drop_at)| *drop_at).min()
    }

    /// Returns the ranges as regions, for the search for unowned pairs.
    pub fn parts(&self) -> Vec<Region> {
        self.0.iter().map(|(range, _)| part(range)).collect()
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the user keys with pairs that no region here owns and that are kept.
    pub fn orphaned_ranges(&self) -> Vec<KeyRange> {
        self.orphaned_ranges.0.iter().map(|(range, _)| range.clone()).collect()
    }

    /// Keeps what a replica owned that a snapshot of `region` replaced, except what this region owns.
    pub(super) fn keep_orphaned(&mut self, before: &Region, region: &Region) {
        if before.kind == RegionKind::Data {
            let drop_at = self.ctx.now.monotonic_nanos + self.ctx.options.orphaned_kept_nanos;
            let left = before.range.without(&region.range).into_iter();
            self.orphaned_ranges.0.extend(left.map(|range| (range, drop_at)));
        }
    }

    /// Removes keys that regions here own now, and drops the pairs that were kept long enough.
    pub(super) fn settle_orphaned_ranges(&mut self) -> Result<()> {
        if self.orphaned_ranges.0.is_empty() {
            return Ok(());
        }
        let (mut kept, mut unneeded) = (Vec::new(), Vec::new());
        for (range, drop_at) in std::mem::take(&mut self.orphaned_ranges.0) {
            let here = self.peers.values().map(|peer| &peer.region);
            let here = here.filter(|region| region.kind == RegionKind::Data);
            let left = here.fold(vec![range], |left, region| {
                left.iter().flat_map(|left| left.without(&region.range)).collect()
            });
            let is_over = self.ctx.now.monotonic_nanos >= drop_at
                && !mutant::active("raftstore.rest_kept_for_ever");
            if is_over || mutant::active("raftstore.rest_dropped") {
                unneeded.extend(left.iter().map(part));
            } else {
                kept.extend(left.into_iter().map(|left| (left, drop_at)));
            }
        }
        self.orphaned_ranges.0 = kept;
        self.drop_or_wait(unneeded)
    }
}

fn part(range: &KeyRange) -> Region {
    Region { range: range.clone(), ..Region::default() }
}
