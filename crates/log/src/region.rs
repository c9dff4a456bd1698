//! Regions' logs in memory: for each region the position of each untruncated entry, 24 bytes each.

use crate::format::{CarriedRegion, EntryItem, Item};
use std::collections::{BTreeMap, VecDeque};
use stele_types::{FileId, HardState, LogIndex, Lsn, Mark, RegionId, Term};

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

    pub(crate) fn first_wanted(&self) -> Option<FileId> {
        self.firsts.keys().next().copied()
    }

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

/// Top bit of `Place::bytes`: the entry is a command. Payloads are below 2 GiB.
const IS_COMMAND: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub term: Term,
    pub at: Lsn,
    bytes: u32,
    pub crc: u32,
}

impl Place {
    pub(crate) fn new(term: Term, at: Lsn, bytes: u32, crc: u32, is_command: bool) -> Self {
        Self { term, at, bytes: bytes | if is_command { IS_COMMAND } else { 0 }, crc }
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.bytes & !IS_COMMAND
    }

    pub(crate) fn is_command(&self) -> bool {
        self.bytes & IS_COMMAND != 0
    }
}

/// Invariant: positions ascend with the index; an entry appended again brings all later entries
/// along.
#[derive(Debug, Default)]
pub(crate) struct Region {
    pub hard_state: HardState,
    pub destroyed: bool,
    pub truncated: (LogIndex, Term),
    /// Index and term before `places[0]`. Above `truncated` only during recovery that began after
    /// entries which it has not yet found to be truncated or appended again.
    base: (LogIndex, Term),
    places: VecDeque<Place>,
    payload_bytes: u64,
    reset: Lsn,
}

impl Region {
    pub(crate) fn carried(from: &CarriedRegion) -> Self {
        Self {
            hard_state: from.hard_state,
            destroyed: from.destroyed,
            truncated: from.truncated,
            base: from.last,
            reset: from.reset,
            ..Self::default()
        }
    }

    pub(crate) fn carry(&self, region: RegionId) -> CarriedRegion {
        CarriedRegion {
            region,
            destroyed: self.destroyed,
            hard_state: self.hard_state,
            truncated: self.truncated,
            last: self.last(),
            reset: self.reset,
        }
    }

    pub(crate) fn log(&self) -> RegionLog {
        let (last, last_term) = self.last();
        RegionLog {
            first: self.truncated.0.next(),
            last,
            last_term,
            truncated: self.truncated,
            hard_state: self.hard_state,
            destroyed: self.destroyed,
        }
    }

    pub(crate) fn last(&self) -> (LogIndex, Term) {
        match self.places.back() {
            Some(place) => (LogIndex(self.base.0.0 + self.places.len() as u64), place.term),
            None => self.base,
        }
    }

    pub(crate) fn place(&self, index: LogIndex) -> Option<&Place> {
        let at = index.0.checked_sub(self.base.0.0)?.checked_sub(1)?;
        self.places.get(usize::try_from(at).ok()?)
    }

    pub(crate) fn term(&self, index: LogIndex) -> Option<Term> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        self.place(index).map(|place| place.term)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(crate) fn first_file(&self) -> Option<FileId> {
        self.places.front().map(|place| place.at.file)
    }

    /// Returns the position of the first entry above `index`. No later entry lies before it.
    pub(crate) fn first_above(&self, index: LogIndex) -> Option<Lsn> {
        let skipped = index.0.saturating_sub(self.base.0.0);
        self.places.get(usize::try_from(skipped).ok()?).map(|place| place.at)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.places.capacity() * size_of::<Place>()
    }

    /// Returns the entries above the truncated index that recovery did not find.
    pub(crate) fn gap(&self) -> Option<(LogIndex, LogIndex)> {
        (self.base.0 > self.truncated.0).then(|| (self.truncated.0.next(), self.base.0))
    }

    pub(crate) fn push(&mut self, entry: &EntryItem<'_>) -> Result<(), String> {
        let (index, last) = (entry.index, self.last().0);
        // No entry has the largest index, because no index follows it.
        if index <= self.truncated.0 || index > last.next() || index.0 == u64::MAX {
            return Err(format!(
                "entry {index} of region {} does not continue its log, which is ({}, {last}]",
                entry.region, self.truncated.0
            ));
        }
        self.cut_from(index);
        let place = Place::new(entry.term, entry.at, entry.bytes, entry.crc, entry.is_command);
        self.places.push_back(place);
        self.payload_bytes += u64::from(entry.bytes);
        Ok(())
    }

    pub(crate) fn mark(&mut self, mark: &Mark, at: Lsn) -> Result<(), String> {
        match *mark {
            Mark::Start(index, term) => {
                self.clear(at);
                // The vote and commit index from before the destruction do not apply to the new
                // replica.
                // bug log.hard_state_kept: never
                if self.destroyed {
                    self.hard_state = HardState::default();
                }
                (self.truncated, self.base) = ((index, term), (index, term));
                self.destroyed = false;
            }
            Mark::Destroy => {
                self.clear(at);
                self.base = self.truncated;
                self.destroyed = true;
            }
            Mark::TruncatePrefix(index, term) => self.truncate_prefix(index, term)?,
            Mark::TruncateSuffix(from) if from <= self.truncated.0 => {
                return Err(format!("entries from {from} on are already truncated"));
            }
            Mark::TruncateSuffix(from) => self.cut_from(from),
        }
        Ok(())
    }

    fn truncate_prefix(&mut self, index: LogIndex, term: Term) -> Result<(), String> {
        if index <= self.truncated.0 {
            return Ok(());
        }
        if index > self.last().0 {
            return Err(format!(
                "entries up to {index} cannot be truncated: the last entry is {}",
                self.last().0
            ));
        }
        self.truncated = (index, term);
        if index >= self.base.0 {
            let dropped = (index.0 - self.base.0.0) as usize;
            let bytes: u64 = self.places.drain(..dropped).map(|p| u64::from(p.bytes())).sum();
            self.payload_bytes -= bytes;
            self.base = (index, term);
            self.shrink_places();
        }
        Ok(())
    }

    fn cut_from(&mut self, index: LogIndex) {
        if index > self.last().0 {
            return;
        }
        let keep = index.0.saturating_sub(self.base.0.0).saturating_sub(1) as usize;
        let bytes: u64 = self.places.drain(keep..).map(|p| u64::from(p.bytes())).sum();
        self.payload_bytes -= bytes;
        if index <= self.base.0 {
            let before = LogIndex(index.0.saturating_sub(1));
            let known = before == self.truncated.0;
            self.base = (before, if known { self.truncated.1 } else { Term(0) });
        }
    }

    fn clear(&mut self, at: Lsn) {
        self.places = VecDeque::new();
        self.payload_bytes = 0;
        self.reset = at;
    }

    fn shrink_places(&mut self) {
        const SLACK: usize = 64;
        if self.places.capacity() > 4 * self.places.len() + SLACK {
            self.places.shrink_to(2 * self.places.len());
        }
    }

    pub(crate) fn reset(&self) -> Lsn {
        self.reset
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

    fn entry(index: u64) -> EntryItem<'static> {
        EntryItem {
            region: RegionId(1),
            term: Term(1),
            index: LogIndex(index),
            is_command: false,
            at: Lsn::new(FileId(1), 512),
            bytes: 0,
            crc: 0,
            content: Content::Payload(b""),
        }
    }

    #[test]
    fn a_log_that_claims_the_last_index_of_all_takes_no_more() {
        let last = (LogIndex(u64::MAX), Term(9));
        let carried = CarriedRegion { region: RegionId(1), last, ..CarriedRegion::default() };
        let mut region = Region::carried(&carried);
        assert!(region.push(&entry(u64::MAX)).is_err());
        assert_eq!(region.last(), last);
        assert_eq!(region.log().first, LogIndex(1));
        region.mark(&Mark::TruncateSuffix(LogIndex(u64::MAX)), Lsn::default()).unwrap();
        region.push(&entry(u64::MAX - 1)).unwrap();
        assert_eq!(region.last().0, LogIndex(u64::MAX - 1));
    }
}
