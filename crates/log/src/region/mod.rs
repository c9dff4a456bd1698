//! Regions' logs in memory: the position of each untruncated entry, 24 bytes each.

mod state;

pub(crate) use state::{Place, Region};

use crate::format::{CarriedRegion, Item};
use std::collections::BTreeMap;
use stele_types::{FileId, HardState, LogIndex, RegionId, Term};

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
    /// Number of regions that have their first entry in a segment. Invariant: kept by [`Self::change`], so that no
    /// question for the first wanted segment walks all regions.
    firsts: BTreeMap<FileId, usize>,
}

impl Regions {
    pub(crate) fn get(&self, region: RegionId) -> Option<&Region> {
        self.map.get(&region)
    }

    pub(crate) fn ids(&self) -> Vec<RegionId> {
        self.map.keys().copied().collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        self.map.iter().map(|(id, region)| (*id, region))
    }

    /// Applies one durable item. Appends are checked before, so an `Err` is damage found by
    /// recovery; it describes the violation.
    pub(crate) fn apply(&mut self, item: &Item<'_>) -> Result<(), String> {
        match item {
            Item::Entry(entry) => self.change(entry.region, |region| region.push(entry)),
            Item::HardState(region, state) => {
                self.map.entry(*region).or_default().hard_state = *state;
                Ok(())
            }
            Item::Mark(region, mark, at) => self.change(*region, |region| region.mark(mark, *at)),
            Item::Carried(carried) => {
                self.map.entry(carried.region).or_insert_with(|| Region::carried(carried));
                Ok(())
            }
            Item::Withdrawn(_) => Ok(()),
        }
    }

    fn change(
        &mut self,
        id: RegionId,
        change: impl FnOnce(&mut Region) -> Result<(), String>,
    ) -> Result<(), String> {
        let region = self.map.entry(id).or_default();
        let before = region.first_file();
        let done = change(region);
        let now = region.first_file();
        if before != now {
            before.into_iter().for_each(|file| self.drop_first(file));
            now.into_iter().for_each(|file| *self.firsts.entry(file).or_default() += 1);
        }
        done
    }

    fn drop_first(&mut self, file: FileId) {
        if let Some(regions) = self.firsts.get_mut(&file) {
            *regions -= 1;
            if *regions == 0 {
                self.firsts.remove(&file);
            }
        }
    }

    /// Returns every region's state, for the start of a segment.
    pub(crate) fn carried(&self) -> impl Iterator<Item = CarriedRegion> {
        self.map.iter().map(|(id, region)| region.carry(*id))
    }

    /// Forgets destroyed regions of which no record is left: `oldest` is the first segment, and
    /// only segments hold records of regions.
    ///
    /// Invariant: a destroyed region is known while a segment holds its records, because a rebuild
    /// of a lost index would restore them. Otherwise each region that ever left would be carried
    /// from segment to segment.
    /// Test: `a_destroyed_region_is_forgotten_once_no_segment_holds_its_records`.
    pub(crate) fn forget_destroyed(&mut self, oldest: FileId) {
        // bug log.destroyed_forgotten_early: `region.reset().file >= oldest` is `false`
        let has_records = |region: &Region| region.reset().file >= oldest;
        let mut firsts = Vec::new();
        self.map.retain(|_, region| {
            let stays = !region.destroyed || has_records(region);
            firsts.extend(region.first_file().filter(|_| !stays));
            stays
        });
        firsts.into_iter().for_each(|file| self.drop_first(file));
    }

    /// Returns the first segment that holds an untruncated entry.
    pub(crate) fn first_wanted(&self) -> Option<FileId> {
        self.firsts.keys().next().copied()
    }

    /// Returns a region that lacks entries known to exist, with the first and last of them.
    pub(crate) fn gap(&self) -> Option<(RegionId, LogIndex, LogIndex)> {
        self.map.iter().find_map(|(id, r)| r.gap().map(|(first, last)| (*id, first, last)))
    }

    pub(crate) fn entries(&self) -> u64 {
        self.map.values().map(|region| region.len() as u64).sum()
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.map.values().map(Region::memory_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Content, EntryItem};
    use stele_types::{Lsn, Mark};

    /// Draws changes of three regions; the generator is the minimal standard one of Park and Miller.
    #[test]
    fn the_first_wanted_segment_is_that_of_a_walk_over_all_regions() {
        let (mut regions, mut state) = (Regions::default(), 7_u64);
        let mut draw = |below: u64| {
            state = state * 48_271 % 0x7FFF_FFFF;
            state % below
        };
        for file in (1..1_500).map(|at| FileId(1 + at / 20)) {
            let (region, at) = (RegionId(1 + draw(3)), Lsn::new(file, 512));
            let log = regions.get(region).map(Region::log);
            let (last, term) = log.map_or_else(Default::default, |log| (log.last, log.last_term));
            let entry = EntryItem {
                region,
                term: Term(1),
                index: last.next(),
                is_command: false,
                at,
                bytes: 8,
                crc: 0,
                content: Content::Payload(b"12345678"),
            };
            let start = Mark::Start(last.next(), Term(1));
            let item = match draw(12) {
                0 => Item::Mark(region, Mark::TruncatePrefix(last, term), at),
                1 => Item::Mark(region, Mark::TruncateSuffix(last), at),
                2 => Item::Mark(region, Mark::Destroy, at),
                3 => Item::Mark(region, start, at),
                _ => Item::Entry(entry),
            };
            // Some of the changes are refused: they change nothing.
            let _ = regions.apply(&item);
            if draw(50) == 0 {
                regions.forget_destroyed(file);
            }
            let walked = regions.iter().filter_map(|(_, region)| region.first_file()).min();
            assert_eq!(regions.first_wanted(), walked, "after {item:?}");
        }
    }
}
