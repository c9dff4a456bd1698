//! Numbers of regions and peers. Each is allocated once, even if the leader fails.
//!
//! Invariant: the persisted watermark is an upper bound of all allocated numbers. A leader
//! allocates only numbers up to it and raises it before they run out; the next leader starts above
//! it. A report with a number above it is wrong. A number up to it that was seen in a report counts
//! as allocated.
//! Test: `a_number_from_outside_never_moves_the_allocator`.

use super::Cluster;
use super::regions::StaleReport;
use crate::pairs::{self, PairChange};
use stele_types::{Error, Region, Result};

/// Numbers reserved at once. A change of leaders wastes at most so many.
const BATCH: u64 = 100;
pub(crate) const IDS_PER_REQUEST_MAX: u64 = 10_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    next: u64,
    /// Largest number that may have been allocated; persisted.
    watermark: u64,
}

impl Ids {
    pub(super) fn raise_watermark(&mut self, watermark: u64) {
        self.watermark = self.watermark.max(watermark);
    }

    /// Starts above the watermark: an earlier leader may have allocated every number up to it.
    pub(super) fn start_after_load(&mut self) {
        // bug placement.reuse_ids: `self.watermark` is `self.watermark.saturating_sub(BATCH)`
        self.next = self.watermark + 1;
    }

    /// Counts a number up to the watermark as allocated.
    fn note(&mut self, seen: u64) {
        self.next = self.next.max(seen.saturating_add(1));
    }
}

impl Cluster {
    pub(super) fn check_ids(&self, region: &Region) -> Result<(), StaleReport> {
        let mut numbers = region.peers.iter().map(|peer| peer.id.0).chain([region.id.0]);
        // bug placement.outside_number_moves_the_allocator: never
        if numbers.any(|number| number > self.ids.watermark) {
            return Err(StaleReport::Malformed("its numbers were never allocated"));
        }
        match region.peers.iter().all(|peer| self.stores.contains_key(&peer.store)) {
            true => Ok(()),
            false => Err(StaleReport::Malformed("one of its stores never joined")),
        }
    }

    pub(super) fn note_ids(&mut self, region: &Region) {
        self.ids.note(region.id.0);
        region.peers.iter().for_each(|peer| self.ids.note(peer.id.0));
    }

    /// Returns what must be committed and applied before [`Cluster::take_ids`] can allocate `count`
    /// numbers; nothing if enough are reserved. Fails with `Invalid` above the limit of one
    /// request.
    pub fn plan_ids(&self, count: u64) -> Result<Vec<PairChange>> {
        if count > IDS_PER_REQUEST_MAX {
            let text =
                format!("{count} ids in one request; at most {IDS_PER_REQUEST_MAX} are allowed");
            return Err(Error::invalid(text));
        }
        let last = self.ids.next.saturating_add(count).saturating_sub(1);
        match last <= self.ids.watermark {
            true => Ok(Vec::new()),
            false => Ok(vec![pairs::ids(last.saturating_add(BATCH))]),
        }
    }

    /// Allocates `count` numbers, ascending; `None` if fewer are reserved.
    pub fn take_ids(&mut self, count: u64) -> Option<std::ops::Range<u64>> {
        let end = self.ids.next.checked_add(count)?;
        // Invariant: at most the persisted watermark. The next leader would allocate the others
        // again.
        if count > 0 && end > self.ids.watermark.saturating_add(1) {
            return None;
        }
        let start = std::mem::replace(&mut self.ids.next, end);
        Some(start..end)
    }

    /// Returns how many numbers can be allocated without a commit.
    pub fn ids_reserved(&self) -> u64 {
        (self.ids.watermark + 1).saturating_sub(self.ids.next)
    }
}
