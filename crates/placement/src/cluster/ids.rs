//! Numbers for regions and peers. Given out once, whatever happens to whoever gives them out.
//!
//! The persisted watermark bounds what was ever given out. A leader gives out numbers up to it
//! only, and raises it first when they run short; the next leader starts above it. A number seen in
//! a report counts as given out, even if the record of that is lost.

use super::Cluster;
use crate::pairs::{self, PairChange};
use stele_types::{Error, Result, mutant};

/// How many numbers are reserved at once: what a change of leaders may waste.
const BATCH: u64 = 100;
/// A number beyond this one was never given out: whoever reports it is wrong.
pub(super) const ID_MAX: u64 = 1 << 56;
/// Most numbers for one request.
pub const IDS_PER_REQUEST_MAX: u64 = 10_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    /// The next number to give out.
    next: u64,
    /// Numbers up to this one may have been given out; persisted.
    watermark: u64,
}

impl Ids {
    pub(super) fn raise_watermark(&mut self, watermark: u64) {
        self.watermark = self.watermark.max(watermark);
    }

    /// An earlier leader may have given out everything up to the watermark.
    pub(super) fn start_after_load(&mut self) {
        let unused = match mutant::active("placement.reuse_ids") {
            true => BATCH,
            false => 0,
        };
        self.next = self.watermark.saturating_sub(unused) + 1;
    }

    pub(super) fn note(&mut self, seen: u64) {
        self.next = self.next.max(seen.saturating_add(1));
    }
}

impl Cluster {
    /// What must be committed and applied before [`Cluster::take_ids`] can give out `count`
    /// numbers; nothing if enough are reserved. Fails with `Invalid` beyond what one request may
    /// ask.
    pub fn plan_ids(&self, count: u64) -> Result<Vec<PairChange>> {
        if count > IDS_PER_REQUEST_MAX {
            let text = format!("{count} ids at once; at most {IDS_PER_REQUEST_MAX}");
            return Err(Error::invalid(text));
        }
        let last = self.ids.next.saturating_add(count).saturating_sub(1);
        match last <= self.ids.watermark {
            true => Ok(Vec::new()),
            false => Ok(vec![pairs::ids(last.saturating_add(BATCH))]),
        }
    }

    /// Gives out `count` numbers, ascending; `None` if fewer are reserved.
    pub fn take_ids(&mut self, count: u64) -> Option<std::ops::Range<u64>> {
        let end = self.ids.next.checked_add(count)?;
        // Only what the persisted watermark covers: else the next leader would give it out again.
        if count > 0 && end > self.ids.watermark.saturating_add(1) {
            return None;
        }
        let start = std::mem::replace(&mut self.ids.next, end);
        Some(start..end)
    }

    /// How many numbers can be given out without a commit.
    pub fn ids_reserved(&self) -> u64 {
        (self.ids.watermark + 1).saturating_sub(self.ids.next)
    }
}
