//! Positions of all keys of a range: those at which a watch begins, and the marks that it must pass before
//! all earlier writes are returned.

use stele_types::{KeyRange, Region, RegionId};

/// State of a region as one replica has it.
#[derive(Clone, Debug)]
pub struct First {
    /// The region after the entry before `next_index`.
    pub region: Region,
    /// Index of the next entry.
    pub next_index: u64,
}

/// State of a part of a range that the leader of its region confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkPart {
    /// Keys of the part, all of the region.
    pub range: KeyRange,
    /// Region that had the keys when its leader answered.
    pub region: RegionId,
    /// Version of the region's epoch at that time.
    pub version: u64,
    /// Index of the region's log that is at least that of every write acknowledged before the mark began.
    pub index: u64,
}

/// Confirmed positions of all keys of a range. All leaders confirmed theirs after one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Parts, ascending.
    pub(super) parts: Vec<MarkPart>,
}

impl Mark {
    /// Makes a mark of its parts, in any order. Returns `None` unless they tile the range exactly.
    pub fn new(range: &KeyRange, mut parts: Vec<MarkPart>) -> Option<Self> {
        parts.sort_by(|one, other| one.range.start.cmp(&other.range.start));
        tiles(range, parts.iter().map(|part| &part.range)).then_some(Self { parts })
    }

    /// Returns whether all keys of `region` in the range of the mark were its keys, at this version, when the
    /// mark was made.
    fn confirms(&self, region: &Region) -> bool {
        let mut parts = self.parts.iter().filter(|part| part.range.overlaps(&region.range));
        parts.all(|part| part.region == region.id && part.version == region.epoch.version)
    }
}

/// Returns whether ascending parts cover a range without gap and overlap.
pub(super) fn tiles<'a>(range: &KeyRange, parts: impl Iterator<Item = &'a KeyRange>) -> bool {
    let mut next = Some(&range.start);
    for part in parts {
        if next != Some(&part.start) || part.is_empty() {
            return false;
        }
        // An empty end is that of all keys: nothing follows.
        next = (!part.end.is_empty()).then_some(&part.end);
    }
    next.map_or(&[][..], |end| &end[..]) == &range.end[..] && next != Some(&range.start)
}

/// Returns the regions of which a watch of `range` begins, each with its keys in the range, ascending;
/// `None` if it cannot begin with these.
///
/// Invariant: a watch begins at positions of one instant, at which the regions tiled its keys: each had the
/// stated version in the answer before the mark began, and still in the mark. Otherwise a key could be in two
/// logs, in none, or in one that a merge has ended before the watch knows it.
/// Tests: `random_histories_lose_and_repeat_nothing`, `a_watch_begins_only_at_regions_that_tile_its_keys`.
pub(super) fn begins_at(
    range: &KeyRange,
    firsts: Vec<First>,
    mark: &Mark,
) -> Option<Vec<(KeyRange, First)>> {
    let within = |first: First| Some((first.region.range.common(range)?, first));
    let mut parts: Vec<(KeyRange, First)> = firsts.into_iter().filter_map(within).collect();
    parts.sort_by(|(one, _), (other, _)| one.start.cmp(&other.start));
    let is_tiled = tiles(range, parts.iter().map(|(range, _)| range));
    // bug client.watch_begins_untiled: let is_tiled = true;
    let is_confirmed = parts.iter().all(|(_, first)| mark.confirms(&first.region));
    // bug client.watch_begins_unconfirmed: let is_confirmed = true;
    (is_tiled && is_confirmed).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::RegionEpoch;

    fn range(start: &'static str, end: &'static str) -> KeyRange {
        KeyRange::new(start, end)
    }

    #[test]
    fn parts_tile_a_range_without_gap_and_overlap() {
        let is_tiled = |whole: KeyRange, parts: &[KeyRange]| tiles(&whole, parts.iter());
        assert!(is_tiled(range("", ""), &[range("", "")]));
        assert!(is_tiled(range("", ""), &[range("", "b"), range("b", "")]));
        assert!(is_tiled(range("a", "c"), &[range("a", "b"), range("b", "c")]));
        for parts in [
            &[][..],
            &[range("", "b")],
            &[range("", "b"), range("c", "")],
            &[range("", "c"), range("b", "")],
            &[range("", ""), range("", "")],
            &[range("", ""), range("b", "")],
            &[range("b", ""), range("", "b")],
            &[range("", "b"), range("b", "b"), range("b", "")],
        ] {
            assert!(!is_tiled(range("", ""), parts), "{parts:?}");
        }
        assert!(!is_tiled(range("a", "c"), &[range("a", "")]));
        assert!(!is_tiled(range("a", "c"), &[range("a", "b")]));
    }

    fn first(id: u64, keys: KeyRange, version: u64) -> First {
        let epoch = RegionEpoch { conf_version: 1, version };
        let region = Region { id: RegionId(id), range: keys, epoch, ..Region::default() };
        First { region, next_index: 9 }
    }

    fn part(id: u64, keys: KeyRange, version: u64) -> MarkPart {
        MarkPart { range: keys, region: RegionId(id), version, index: 12 }
    }

    #[test]
    fn a_watch_begins_only_at_regions_that_tile_its_keys() {
        let watched = range("b", "y");
        let whole = |parts: Vec<MarkPart>| Mark::new(&watched, parts).unwrap();
        let mark = whole(vec![part(2, range("m", "y"), 3), part(1, range("b", "m"), 3)]);
        let firsts = || vec![first(2, range("m", ""), 3), first(1, range("", "m"), 3)];
        let begun = begins_at(&watched, firsts(), &mark).unwrap();
        let ranges: Vec<KeyRange> = begun.into_iter().map(|(range, _)| range).collect();
        assert_eq!(ranges, [range("b", "m"), range("m", "y")]);
        let one = vec![first(1, range("", "m"), 3)];
        assert!(begins_at(&watched, one, &mark).is_none(), "keys are in no log");
        let mut both = firsts();
        both.push(first(3, range("n", "o"), 9));
        assert!(begins_at(&watched, both, &mark).is_none(), "keys are in two logs");
    }

    #[test]
    fn a_watch_begins_only_at_versions_that_leaders_confirm_later() {
        let watched = range("", "");
        let firsts = || vec![first(1, range("", "m"), 3), first(2, range("m", ""), 3)];
        let begins = |left: MarkPart, right: MarkPart| {
            begins_at(&watched, firsts(), &Mark::new(&watched, vec![left, right]).unwrap())
                .is_some()
        };
        assert!(begins(part(1, range("", "m"), 3), part(2, range("m", ""), 3)));
        assert!(!begins(part(1, range("", "m"), 4), part(2, range("m", ""), 3)), "it changed");
        assert!(!begins(part(4, range("", "m"), 3), part(2, range("m", ""), 3)), "it is gone");
        assert!(!begins(part(1, range("", "n"), 3), part(2, range("n", ""), 3)));
    }
}
