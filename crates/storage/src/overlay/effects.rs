//! Immutable snapshots of an overlay.

use super::range_deletes::RangeDeletes;
use super::{Map, OpNumber, bounds};
use crate::{Order, Pair};
use bytes::Bytes;
use stele_types::{KeyRange, LogIndex, mutant};

/// Immutable snapshot of an [`Overlay`](super::Overlay). A clone is cheap, and any thread may read
/// it.
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Puts and deletes of single keys. Invariant: a point is newer than the range delete over its
    /// key, if there is one.
    points: Map<Point>,
    pub(super) range_deletes: RangeDeletes,
}

/// Last put or delete of a key.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub op: OpNumber,
    /// Entry of the operation.
    pub index: LogIndex,
    /// Value and expiry in Unix seconds; `None` for a delete.
    pub put: Option<(Bytes, u64)>,
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
        let is_blind = mutant::active("overlay.changes_without_range_deletes");
        if !range.is_empty() && !is_blind && self.range_deletes.has_overlap(range) {
            return None;
        }
        let points = (!range.is_empty()).then(|| self.points(range, Order::Forward));
        Some(points.into_iter().flatten().map(|(key, point)| KeyChange {
            key: key.clone(),
            index: point.index,
            pair: point.pair(key),
        }))
    }

    /// Returns the effect on a key: `None` without one, `Some(None)` for a deleted key.
    pub fn get(&self, key: &[u8]) -> Option<Option<Pair>> {
        if mutant::active("overlay.range_delete_hides_later_put") && self.is_range_deleted(key) {
            return Some(None);
        }
        if let Some((key, point)) = self.points.get_key_value(key) {
            return Some(point.pair(key));
        }
        self.is_range_deleted(key).then_some(None)
    }

    /// Whether there are no effects.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.range_deletes.is_empty()
    }

    /// Whether any key of `range` has an effect.
    pub fn has_effect_in(&self, range: &KeyRange) -> bool {
        if self.is_empty() || range.is_empty() {
            return false;
        }
        self.points.range::<[u8], _>(bounds(range)).next().is_some()
            || self.range_deletes.has_overlap(range)
    }

    /// Whether a range delete is the last effect on `key`, which has no point.
    pub(super) fn is_range_deleted(&self, key: &[u8]) -> bool {
        self.range_deletes.contains(key)
    }

    /// Returns the range delete that covers the keys at which a scan of `range` begins.
    pub(super) fn range_delete_at_edge(&self, range: &KeyRange, order: Order) -> Option<KeyRange> {
        match order {
            Order::Forward => self.range_deletes.at(&range.start),
            Order::Reverse => self.range_deletes.below(&range.end),
        }
    }

    /// Returns the points in `range`, which must not be empty, in the order of a scan.
    pub(super) fn points<'a>(
        &'a self,
        range: &'a KeyRange,
        order: Order,
    ) -> Box<dyn Iterator<Item = (&'a Bytes, &'a Point)> + 'a> {
        let points = self.points.range::<[u8], _>(bounds(range));
        match order {
            Order::Forward => Box::new(points),
            Order::Reverse => Box::new(points.rev()),
        }
    }

    pub(super) fn set_point(&mut self, key: Bytes, point: Point) {
        self.points.insert_mut(key, point);
    }

    /// Removes the point of `key` unless an operation after `last_op` wrote it.
    pub(super) fn remove_point(&mut self, key: &[u8], last_op: OpNumber) {
        let is_older =
            |point: &Point| point.op <= last_op || mutant::active("overlay.later_effect_pruned");
        if self.points.get(key).is_some_and(is_older) {
            self.points.remove_mut(key);
        }
    }

    /// Removes the points in `range`, which must not be empty.
    pub(super) fn remove_points(&mut self, range: &KeyRange) {
        let keys: Vec<Bytes> =
            self.points.range::<[u8], _>(bounds(range)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.points.remove_mut(&key);
        }
    }
}

impl Point {
    /// Returns the pair that the point leaves under `key`.
    pub fn pair(&self, key: &Bytes) -> Option<Pair> {
        let (value, expires_at_s) = match &self.put {
            Some(put) => put.clone(),
            // BUC-Raft's Algorithm 1 returns the value of the last log entry of a key.
            None if mutant::active("overlay.delete_returns_value") => (Bytes::new(), 0),
            None => return None,
        };
        Some(Pair { key: key.clone(), value, expires_at_s })
    }
}
