//! Regions' logs in memory: the position of each untruncated entry, 24 bytes each.

mod state;

pub(crate) use state::{Place, Region};

use crate::format::{CarriedRegion, Item};
use std::collections::BTreeMap;
use stele_types::{FileId, HardState, LogIndex, RegionId, Term, mutant};

/// Public state of a region's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLog {
    /// First index in the log; `last` + 1 if it is empty.
    pub first: LogIndex,
    /// Last index in the log, or the truncated one if it is empty.
    pub last: LogIndex,
    /// Term of `last`.
    pub last_term: Term,
    /// Index and term of the last entry dropped from the front.
    pub truncated: (LogIndex, Term),
    /// The newest hard state.
    pub hard_state: HardState,
    /// Whether the region left this store permanently.
    pub destroyed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Regions {
    map: BTreeMap<RegionId, Region>,
}

impl Regions {
    pub fn get(&self, region: RegionId) -> Option<&Region> {
        self.map.get(&region)
    }

    pub fn ids(&self) -> Vec<RegionId> {
        self.map.keys().copied().collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        self.map.iter().map(|(id, region)| (*id, region))
    }

    /// Applies one durable item. Appends are checked before, so an `Err` is damage found by
    /// recovery; it describes the violation.
    pub fn apply(&mut self, item: &Item<'_>) -> Result<(), String> {
        match item {
            Item::Entry(entry) => self.map.entry(entry.region).or_default().push(entry),
            Item::HardState(region, state) => {
                self.map.entry(*region).or_default().hard_state = *state;
                Ok(())
            }
            Item::Mark(region, mark, at) => self.map.entry(*region).or_default().mark(mark, *at),
            Item::Carried(carried) => {
                self.map.entry(carried.region).or_insert_with(|| Region::carried(carried));
                Ok(())
            }
            Item::Withdrawn(_) => Ok(()),
        }
    }

    /// Returns every region's state, for the start of a segment.
    pub fn carried(&self) -> impl Iterator<Item = CarriedRegion> {
        self.map.iter().map(|(id, region)| region.carry(*id))
    }

    /// Forgets destroyed regions of which no record is left: `oldest` is the first segment, and
    /// only segments hold records of regions.
    ///
    /// Invariant: a destroyed region is known while a segment holds its records, because a rebuild
    /// of a lost index would restore them. Otherwise each region that ever left would be carried
    /// from segment to segment.
    pub fn forget_destroyed(&mut self, oldest: FileId) {
        let is_early = mutant::active("log.destroyed_forgotten_early");
        let has_records = |region: &Region| region.reset().file >= oldest && !is_early;
        self.map.retain(|_, region| !region.destroyed || has_records(region));
    }

    /// Returns the first segment that holds an untruncated entry.
    pub fn first_wanted(&self) -> Option<FileId> {
        self.map.values().filter_map(Region::first_file).min()
    }

    /// Returns a region that lacks entries known to exist, with the first and last of them.
    pub fn gap(&self) -> Option<(RegionId, LogIndex, LogIndex)> {
        self.map.iter().find_map(|(id, r)| r.gap().map(|(first, last)| (*id, first, last)))
    }

    pub fn entries(&self) -> u64 {
        self.map.values().map(|region| region.len() as u64).sum()
    }

    pub fn memory_bytes(&self) -> usize {
        self.map.values().map(Region::memory_bytes).sum()
    }
}
