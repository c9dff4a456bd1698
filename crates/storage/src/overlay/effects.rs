//! Immutable snapshots of an overlay. They hold deleted ranges as disjoint intervals, so that a
//! lookup reads at most one of them.

use crate::overlay::layer::{Head, Layer, Placed};
use crate::{Order, Pair};
use bytes::Bytes;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;
use stele_types::{KeyRange, LogIndex};

/// Immutable snapshot of an [`Overlay`](super::Overlay). A clone is cheap, and any thread may read
/// it.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Oldest first. What a newer layer does to a key replaces what older ones do.
    pub(super) layers: Vec<Arc<Layer>>,
}

/// Last put or delete of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The key.
    pub key: Bytes,
    /// Entry that wrote it.
    pub index: LogIndex,
    /// Pair that the entry left; `None` for a delete.
    pub pair: Option<Pair>,
}

impl Effects {
    /// Returns the last change of each key in `range`, ascending; `None` if a range delete has an
    /// effect there, which deletes an unknown number of keys.
    pub fn changes<'a>(
        &'a self,
        range: &'a KeyRange,
    ) -> Option<impl Iterator<Item = KeyChange> + 'a> {
        // bug overlay.changes_without_range_deletes: never
        if !range.is_empty() && self.has_range_delete_in(range) {
            return None;
        }
        let points = (!range.is_empty()).then(|| self.points(range, Order::Forward));
        Some(points.into_iter().flatten().map(|placed| KeyChange {
            key: Bytes::copy_from_slice(placed.key()),
            index: placed.index(),
            pair: placed.pair(),
        }))
    }

    /// Returns the effect on a key: `None` without one, `Some(None)` for a deleted key.
    pub fn get(&self, key: &[u8]) -> Option<Option<Pair>> {
        // bug overlay.range_delete_hides_later_put: if self.is_range_deleted(key) { return Some(None); }
        let effect = |layer: &Arc<Layer>| match layer.point(key) {
            Some(placed) => Some(placed.pair()),
            None => layer.range_deletes().contains(key).then_some(None),
        };
        // bug overlay.older_effect_wins: return self.layers.iter().find_map(effect);
        self.layers.iter().rev().find_map(effect)
    }

    /// Whether there are no effects.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Whether any key of `range` has an effect.
    pub fn has_effect_in(&self, range: &KeyRange) -> bool {
        if self.is_empty() || range.is_empty() {
            return false;
        }
        self.layers.iter().any(|layer| !layer.points_in(range).is_empty())
            || self.has_range_delete_in(range)
    }

    /// Whether a range delete is the last effect on `key`, which [`Effects::points`] does not return.
    pub(super) fn is_range_deleted(&self, key: &[u8]) -> bool {
        self.layers.iter().any(|layer| layer.range_deletes().contains(key))
    }

    /// Returns a range delete that covers the keys at which a scan of `range` begins.
    pub(super) fn range_delete_at_edge(&self, range: &KeyRange, order: Order) -> Option<KeyRange> {
        self.layers.iter().find_map(|layer| match order {
            Order::Forward => layer.range_deletes().at(&range.start),
            Order::Reverse => layer.range_deletes().below(&range.end),
        })
    }

    /// Returns the last put or delete of each key in `range`, which must not be empty, in the order
    /// of a scan; not of keys of which a range delete is the last effect.
    pub(super) fn points(&self, range: &KeyRange, order: Order) -> Points<'_> {
        let layers = self.layers.iter().map(|layer| layer.points_in(range).iter());
        let mut points = Points {
            layers: &self.layers,
            rest: layers.collect(),
            heads: BinaryHeap::new(),
            order,
        };
        (0..self.layers.len()).for_each(|number| points.advance(number));
        points
    }

    fn has_range_delete_in(&self, range: &KeyRange) -> bool {
        self.layers.iter().any(|layer| layer.range_deletes().has_overlap(range))
    }
}

/// Points of several layers in the order of a scan, one for each key.
pub(super) struct Points<'a> {
    layers: &'a [Arc<Layer>],
    rest: Vec<std::slice::Iter<'a, super::layer::Point>>,
    heads: BinaryHeap<Head<'a>>,
    order: Order,
}

impl Points<'_> {
    fn advance(&mut self, number: usize) {
        let (Some(rest), Some(layer)) = (self.rest.get_mut(number), self.layers.get(number)) else {
            return;
        };
        let point = match self.order {
            Order::Forward => rest.next(),
            Order::Reverse => rest.next_back(),
        };
        if let Some(point) = point {
            let placed = Placed { layer, point };
            self.heads.push(Head { placed, number, order: self.order });
        }
    }

    fn is_deleted_after(&self, number: usize, key: &[u8]) -> bool {
        let newer = self.layers.iter().skip(number + 1);
        // bug overlay.scan_shows_range_deleted: return false;
        newer.into_iter().any(|layer| layer.range_deletes().contains(key))
    }
}

impl<'a> Iterator for Points<'a> {
    type Item = Placed<'a>;

    fn next(&mut self) -> Option<Placed<'a>> {
        loop {
            let Head { placed, number, .. } = self.heads.pop()?;
            self.advance(number);
            let key = placed.key();
            while let Some(older) = self.heads.peek()
                && older.placed.key() == key
            {
                let older = older.number;
                self.heads.pop();
                self.advance(older);
            }
            if !self.is_deleted_after(number, key) {
                return Some(placed);
            }
        }
    }
}

/// Disjoint intervals that do not touch: the end of each by its start; empty for no upper bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals(BTreeMap<Bytes, Bytes>);

impl Intervals {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the keys of a range, which must not be empty.
    pub(super) fn insert(&mut self, range: KeyRange) {
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

    pub(super) fn extend(&mut self, others: &Self) {
        // bug overlay.merge_loses_range_deletes: return;
        for (start, end) in &others.0 {
            self.insert(KeyRange { start: start.clone(), end: end.clone() });
        }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.entry_at(key).is_some()
    }

    pub(super) fn at(&self, key: &[u8]) -> Option<KeyRange> {
        self.entry_at(key).map(interval)
    }

    /// Returns the interval that contains the last keys below `end`; empty for no upper bound.
    pub(super) fn below(&self, end: &[u8]) -> Option<KeyRange> {
        let upper = if end.is_empty() { Unbounded } else { Excluded(end) };
        let (start, own_end) = self.0.range::<[u8], _>((Unbounded, upper)).next_back()?;
        let reaches_end = own_end.is_empty() || !end.is_empty() && &own_end[..] >= end;
        reaches_end.then(|| interval((start, own_end)))
    }

    /// Whether an interval and `range`, which must not be empty, have a common key.
    pub(super) fn has_overlap(&self, range: &KeyRange) -> bool {
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
