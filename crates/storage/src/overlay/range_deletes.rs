//! Range deletes as disjoint intervals, so that a lookup reads at most one of them.

use super::{Map, OpNumber, bounds};
use bytes::Bytes;
use std::ops::Bound::{Excluded, Included, Unbounded};
use stele_types::{KeyRange, mutant};

/// Interval from its key in the map to `end`, in which one operation deleted every key.
#[derive(Clone, Debug)]
pub(super) struct RangeDelete {
    /// First key after the interval; empty for no upper bound.
    pub end: Bytes,
    pub op: OpNumber,
}

/// Disjoint intervals by their start. The newest operation owns each key.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeDeletes(Map<RangeDelete>);

/// Intervals that an insertion added and removed, by operation and start.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub added: Vec<(OpNumber, Bytes)>,
    pub removed: Vec<(OpNumber, Bytes)>,
}

impl RangeDeletes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the interval of a newer operation. Older ones keep the keys outside of it.
    pub fn insert(&mut self, range: KeyRange, op: OpNumber) -> Changes {
        let mut changes = Changes::default();
        for (old_range, old_op) in self.overlapping(&range) {
            self.0.remove_mut(&old_range.start);
            let mut parts = old_range.without(&range);
            if mutant::active("overlay.split_keeps_one_part") {
                parts.truncate(1);
            }
            changes.removed.push((old_op, old_range.start));
            for KeyRange { start, end } in parts {
                changes.added.push((old_op, start.clone()));
                self.0.insert_mut(start, RangeDelete { end, op: old_op });
            }
        }
        changes.added.push((op, range.start.clone()));
        self.0.insert_mut(range.start, RangeDelete { end: range.end, op });
        changes
    }

    pub fn remove(&mut self, start: &[u8]) {
        self.0.remove_mut(start);
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
        let (start, delete) = self.0.range::<[u8], _>((Unbounded, upper)).next_back()?;
        let reaches_end = delete.end.is_empty() || !end.is_empty() && &delete.end[..] >= end;
        reaches_end.then(|| interval((start, delete)))
    }

    /// Whether an interval and `range`, which must not be empty, have a common key.
    pub fn has_overlap(&self, range: &KeyRange) -> bool {
        self.contains(&range.start) || self.starting_in(range).next().is_some()
    }

    /// Returns the intervals that have a common key with `range`, and their operations.
    fn overlapping(&self, range: &KeyRange) -> Vec<(KeyRange, OpNumber)> {
        let first = self.entry_at(&range.start).filter(|(start, _)| *start < &range.start);
        let all = first.into_iter().chain(self.starting_in(range));
        all.map(|(start, delete)| (interval((start, delete)), delete.op)).collect()
    }

    fn entry_at(&self, key: &[u8]) -> Option<(&Bytes, &RangeDelete)> {
        if self.0.is_empty() {
            return None;
        }
        let last = self.0.range::<[u8], _>((Unbounded, Included(key))).next_back();
        last.filter(|(_, delete)| delete.end.is_empty() || key < &delete.end[..])
    }

    fn starting_in<'a>(
        &'a self,
        range: &'a KeyRange,
    ) -> impl Iterator<Item = (&'a Bytes, &'a RangeDelete)> {
        self.0.range::<[u8], _>(bounds(range))
    }
}

fn interval((start, delete): (&Bytes, &RangeDelete)) -> KeyRange {
    KeyRange { start: start.clone(), end: delete.end.clone() }
}
