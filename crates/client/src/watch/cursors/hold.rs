//! Cuts: positions in all logs up to which cursors return writes, and at which they are held.
//!
//! A cut is the state of all regions at one instant, at or after everything that was returned: each region that had
//! keys then has a part, with its keys and the last index of its log. A cursor of such a region stops before
//! the first later entry. One of another region goes on: a merge before the cut has ended it, and the
//! part of the target has its keys. New regions come from splits before the cut only, because a later one lies
//! behind the position at which the cursor of its region is held.

use super::{Cursors, StreamId, odd};
use crate::watch::mark::tiles;
use std::collections::BTreeMap;
use stele_proto::stele::control::v1::MomentPart;
use stele_types::{Error, KeyRange, RegionId, Result};

/// Part of a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPart {
    /// All keys of the region.
    pub range: KeyRange,
    /// The region.
    pub region: RegionId,
    /// Term of the last entry.
    pub term: u64,
    /// Index of the last entry in the cut.
    pub index: u64,
}

/// Positions in all logs at one instant.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Ascending by key.
    parts: Vec<CutPart>,
    /// Last index by region.
    last: BTreeMap<RegionId, u64>,
    /// Number of parts that are known to be reached.
    reached: usize,
    /// Whether its end was returned.
    has_ended: bool,
}

impl Cut {
    /// Makes a cut of its parts. Fails with `Refused` unless they tile all keys, each with a region of its own.
    pub fn new(mut parts: Vec<CutPart>) -> Result<Self> {
        parts.sort_by(|one, other| one.range.start.cmp(&other.range.start));
        let is_tiled = tiles(&KeyRange::all(), parts.iter().map(|part| &part.range));
        let last: BTreeMap<RegionId, u64> =
            parts.iter().map(|part| (part.region, part.index)).collect();
        if !is_tiled || last.len() != parts.len() {
            return Err(Error::Refused("the parts of a moment do not have all keys once".into()));
        }
        Ok(Self { parts, last, reached: 0, has_ended: false })
    }

    /// Makes the cut of a moment. Fails as [`Cut::new`] does.
    pub fn of_moment(parts: Vec<MomentPart>) -> Result<Self> {
        let part = |part: MomentPart| CutPart {
            range: KeyRange { start: part.start_key, end: part.end_key },
            region: RegionId(part.region_id),
            term: part.term,
            index: part.last_index,
        };
        Self::new(parts.into_iter().map(part).collect())
    }

    /// Returns the parts, ascending by key.
    pub fn parts(&self) -> &[CutPart] {
        &self.parts
    }
}

impl Cursors {
    /// Holds all cursors at a cut, in place of a mark. What was returned must be in it. Once all have reached
    /// it, [`LoggedEvent::Resolved`](super::LoggedEvent::Resolved) is returned, and nothing more before
    /// [`Cursors::let_go`]. Fails with `Invalid` unless all keys are watched.
    pub fn hold_at(&mut self, cut: Cut) -> Result<()> {
        if self.range != KeyRange::all() {
            return Err(Error::invalid("only a watch of all keys can be held at a moment"));
        }
        self.let_go();
        (self.mark, self.cut, self.has_moved) = (None, Some(cut), true);
        Ok(())
    }

    /// Lets cursors go on that are held at a cut.
    pub fn let_go(&mut self) {
        self.cut = None;
        // Those that wait in the queue already are passed over the second time.
        let held = self.cursors.iter().filter(|(_, cursor)| cursor.held.is_some());
        self.ready = held.map(|(id, _)| *id).collect();
    }

    /// Returns the last index that the cursor of a region may pass.
    pub(super) fn last_of_cut(&self, region: RegionId) -> u64 {
        let last = self.cut.as_ref().and_then(|cut| cut.last.get(&region));
        last.copied().unwrap_or(u64::MAX)
    }

    /// Holds the first cursor of the queue until [`Cursors::let_go`].
    pub(super) fn hold(&mut self, region: RegionId) {
        self.ready.retain(|ready| *ready != region);
        self.has_moved = true;
    }

    /// Returns whether all cursors have come to the cut, once.
    ///
    /// Invariant: when this is true, the writes that were returned are exactly those in the cut.
    /// Test: `what_is_returned_at_a_held_cut_is_exactly_what_is_in_it`.
    pub(super) fn is_cut_reached(&mut self) -> Result<bool> {
        let Some(cut) = self.cut.as_mut().filter(|cut| !cut.has_ended) else { return Ok(false) };
        while let Some(part) = cut.parts.get(cut.reached) {
            let cursor = self.cursors.get(&part.region);
            // bug client.watch_cut_reached_early: `cursor.next > part.index` is `true`
            let Some(cursor) = cursor.filter(|cursor| cursor.next > part.index) else {
                return Ok(false);
            };
            if cursor.range != part.range {
                let detail = "its region has other keys at the moment";
                return Err(odd(StreamId::Cursor(part.region), part.index, detail));
            }
            cut.reached += 1;
        }
        cut.has_ended = true;
        Ok(true)
    }
}
