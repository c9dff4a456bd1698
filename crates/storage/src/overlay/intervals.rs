//! Deleted ranges as disjoint intervals, so that a lookup reads at most one of them.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use stele_types::{KeyRange, mutant};

/// Disjoint intervals that do not touch: the end of each by its start; empty for no upper bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals(BTreeMap<Bytes, Bytes>);

impl Intervals {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the keys of a range, which must not be empty.
    pub fn insert(&mut self, range: KeyRange) {
        let KeyRange { mut start, mut end } = range;
        let before = self.0.range::<[u8], _>((Unbounded, Included(&start[..]))).next_back();
        if let Some((first, first_end)) = before
            && (first_end.is_empty() || *first_end >= start)
        {
            let (first, first_end) = (first.clone(), first_end.clone());
            self.0.remove(&first);
            (start, end) = (first, later_end(end, first_end));
        }
        let upper = if end.is_empty() { Unbounded } else { Included(&end[..]) };
        let inside = self.0.range::<[u8], _>((Excluded(&start[..]), upper));
        let inside: Vec<Bytes> = inside.map(|(start, _)| start.clone()).collect();
        for inner in inside {
            if let Some(inner_end) = self.0.remove(&inner) {
                end = later_end(end, inner_end);
            }
        }
        self.0.insert(start, end);
    }

    /// Adds the keys of other intervals.
    pub fn extend(&mut self, others: &Self) {
        if mutant::active("overlay.merge_loses_range_deletes") {
            return;
        }
        for (start, end) in &others.0 {
            self.insert(KeyRange { start: start.clone(), end: end.clone() });
        }
    }

    /// Whether an interval contains `key`.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.entry_at(key).is_some()
    }

    /// Returns the interval that contains `key`.
    pub fn at(&self, key: &[u8]) -> Option<KeyRange> {
        self.entry_at(key).map(interval)
    }

    /// Returns the interval that contains the last keys below `end`; empty for no upper bound.
    pub fn below(&self, end: &[u8]) -> Option<KeyRange> {
        let upper = if end.is_empty() { Unbounded } else { Excluded(end) };
        let (start, own_end) = self.0.range::<[u8], _>((Unbounded, upper)).next_back()?;
        let reaches_end = own_end.is_empty() || !end.is_empty() && &own_end[..] >= end;
        reaches_end.then(|| interval((start, own_end)))
    }

    /// Whether an interval and `range`, which must not be empty, have a common key.
    pub fn has_overlap(&self, range: &KeyRange) -> bool {
        let end = if range.end.is_empty() { Unbounded } else { Excluded(&range.end[..]) };
        let starting_in = (Included(&range.start[..]), end);
        self.contains(&range.start) || self.0.range::<[u8], _>(starting_in).next().is_some()
    }

    fn entry_at(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        if self.0.is_empty() {
            return None;
        }
        let last = self.0.range::<[u8], _>((Unbounded, Included(key))).next_back();
        last.filter(|(_, end)| end.is_empty() || key < &end[..])
    }
}

fn interval((start, end): (&Bytes, &Bytes)) -> KeyRange {
    KeyRange { start: start.clone(), end: end.clone() }
}

/// Returns the later of two ends; an empty one is after all keys.
fn later_end(one: Bytes, other: Bytes) -> Bytes {
    match one.is_empty() || other.is_empty() {
        true => Bytes::new(),
        false => one.max(other),
    }
}
