//! Effects of consecutive entries, sorted by key: immutable, and 32 bytes for each key.

use super::effects::Intervals;
use super::{INTERVAL_BYTES, INTERVALS_BYTES, LAYER_BYTES, PAYLOAD_BYTES, POINT_BYTES};
use crate::{Order, Pair};
use bytes::Bytes;
use std::cmp::Ordering;
use std::num::NonZeroU32;
use stele_types::{Command, KeyRange, LogIndex, Op, Result};

/// Keys and intervals from which on a layer is large.
const LARGE_SIZE: usize = 1 << 16;
/// Bytes of payloads from which on a layer is large.
const LARGE_BYTES: u64 = 1 << 20;

/// Effects of consecutive entries. Keys and values stay in the payloads of the entries.
#[derive(Debug, Default)]
pub struct Layer {
    /// Entries with effects, ascending.
    payloads: Vec<(LogIndex, Bytes)>,
    /// Last put or delete of each key, by key. Invariant: a point is newer than the range delete over
    /// its key, if there is one.
    points: Vec<Point>,
    range_deletes: Intervals,
    payload_bytes: u64,
}

/// Last put or delete of a key, as places in a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    payload: u32,
    key_at: u32,
    key_len: u32,
    /// `None` for a delete. No value is at the begin of a payload.
    value_at: Option<NonZeroU32>,
    value_len: u32,
    /// Expiry in Unix seconds; 0 for none.
    expires_at_s: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a> {
    pub layer: &'a Layer,
    pub point: &'a Point,
}

impl Layer {
    /// Returns the effects of consecutive entries, ascending. Each payload is an encoded
    /// [`Command`]; an empty one has no effects. Fails with `Invalid` if one is not readable.
    pub fn of(entries: impl IntoIterator<Item = (LogIndex, Bytes)>) -> Result<Self> {
        let mut layer = Self::default();
        // Range deletes with the number of points before them.
        let mut deletes = Vec::new();
        for (index, payload) in entries {
            if !payload.is_empty() {
                layer.add(index, payload, &mut deletes)?;
            }
        }
        layer.carry_out(deletes);
        let Self { payloads, points, .. } = &mut layer;
        points.sort_by(|one, other| key_of(payloads, one).cmp(key_of(payloads, other)));
        points.dedup_by(|later, kept| {
            let is_same = key_of(payloads, later) == key_of(payloads, kept);
            // bug overlay.older_effect_wins: never
            if is_same {
                *kept = *later;
            }
            is_same
        });
        points.shrink_to_fit();
        payloads.shrink_to_fit();
        Ok(layer)
    }

    fn add(
        &mut self,
        index: LogIndex,
        payload: Bytes,
        deletes: &mut Vec<(usize, KeyRange)>,
    ) -> Result<()> {
        let command = Command::parse(payload.clone())?;
        let (number, before) = (self.payloads.len() as u32, (self.points.len(), deletes.len()));
        let point = |key: &[u8]| Point {
            payload: number,
            key_at: (key.as_ptr() as usize).wrapping_sub(payload.as_ptr() as usize) as u32,
            key_len: key.len() as u32,
            value_at: None,
            value_len: 0,
            expires_at_s: 0,
        };
        for op in command.ops() {
            match op {
                Op::Put { key, value, value_offset, expires_at_s, .. } => self.points.push(Point {
                    value_at: NonZeroU32::new(value_offset),
                    value_len: value.len() as u32,
                    expires_at_s,
                    ..point(key)
                }),
                Op::Delete { key } => self.points.push(point(key)),
                Op::DeleteRange { start, end } => {
                    let range = KeyRange::new(payload.slice_ref(start), payload.slice_ref(end));
                    if !range.is_empty() {
                        deletes.push((self.points.len(), range));
                    }
                }
            }
        }
        if before != (self.points.len(), deletes.len()) {
            self.payload_bytes += payload.len() as u64;
            self.payloads.push((index, payload));
        }
        Ok(())
    }

    /// Removes the points that a later range delete removed.
    fn carry_out(&mut self, mut deletes: Vec<(usize, KeyRange)>) {
        if deletes.is_empty() {
            return;
        }
        let mut kept = Vec::with_capacity(self.points.len());
        for (number, point) in self.points.iter().enumerate().rev() {
            while let Some((_, range)) = deletes.pop_if(|(before, _)| *before > number) {
                self.range_deletes.insert(range);
            }
            if !self.range_deletes.contains(key_of(&self.payloads, point)) {
                kept.push(*point);
            }
        }
        deletes.into_iter().for_each(|(_, range)| self.range_deletes.insert(range));
        kept.reverse();
        self.points = kept;
    }

    pub(super) fn merged(older: &Self, newer: &Self) -> Self {
        let shift = older.payloads.len() as u32;
        let payloads: Vec<_> = older.payloads.iter().chain(&newer.payloads).cloned().collect();
        let mut range_deletes = older.range_deletes.clone();
        range_deletes.extend(&newer.range_deletes);
        let mut points = Vec::with_capacity(older.points.len() + newer.points.len());
        let mut old = older.points.iter().peekable();
        let mut push_older = |points: &mut Vec<Point>, bound: Option<&[u8]>| {
            let is_before = |point: &&Point| bound.is_none_or(|bound| older.key(point) <= bound);
            while let Some(point) = old.next_if(is_before) {
                let key = older.key(point);
                let is_deleted = newer.range_deletes.contains(key);
                // bug overlay.merge_keeps_deleted: let is_deleted = false;
                if bound != Some(key) && !is_deleted {
                    points.push(*point);
                }
            }
        };
        for point in &newer.points {
            push_older(&mut points, Some(newer.key(point)));
            points.push(Point { payload: point.payload + shift, ..*point });
        }
        push_older(&mut points, None);
        points.shrink_to_fit();
        let payload_bytes = older.payload_bytes + newer.payload_bytes;
        Self { payloads, points, range_deletes, payload_bytes }
    }

    /// Returns the first and the last entry with effects; `None` without effects.
    pub(super) fn entries(&self) -> Option<(LogIndex, LogIndex)> {
        Some((self.payloads.first()?.0, self.payloads.last()?.0))
    }

    pub(super) fn size(&self) -> usize {
        self.points.len() + self.range_deletes.len()
    }

    /// Whether it costs too much to merge this layer with newer ones.
    pub(super) fn is_large(&self) -> bool {
        self.size() >= LARGE_SIZE || self.payload_bytes >= LARGE_BYTES
    }

    /// Returns the bytes of memory: an upper estimate.
    pub(super) fn bytes(&self) -> u64 {
        let intervals = match self.range_deletes.len() {
            0 => 0,
            count => INTERVALS_BYTES + count * INTERVAL_BYTES,
        };
        let parts =
            self.payloads.len() * PAYLOAD_BYTES + self.points.len() * POINT_BYTES + intervals;
        self.payload_bytes + (LAYER_BYTES + parts) as u64
    }

    pub(super) fn range_deletes(&self) -> &Intervals {
        &self.range_deletes
    }

    pub(super) fn point(&self, key: &[u8]) -> Option<Placed<'_>> {
        let place = self.points.binary_search_by(|point| self.key(point).cmp(key)).ok()?;
        Some(Placed { layer: self, point: self.points.get(place)? })
    }

    /// Returns the points in `range`, ascending.
    pub(super) fn points_in(&self, range: &KeyRange) -> &[Point] {
        let from = self.points.partition_point(|point| self.key(point) < &range.start[..]);
        let rest = self.points.get(from..).unwrap_or_default();
        let count = rest.partition_point(|point| range.is_below_end(self.key(point)));
        rest.get(..count).unwrap_or_default()
    }

    fn key(&self, point: &Point) -> &[u8] {
        key_of(&self.payloads, point)
    }
}

/// Returns the key of a point; empty if it is not in the payload, which cannot be.
fn key_of<'a>(payloads: &'a [(LogIndex, Bytes)], point: &Point) -> &'a [u8] {
    let key = payloads.get(point.payload as usize).and_then(|(_, payload)| {
        let at = point.key_at as usize;
        payload.get(at..at + point.key_len as usize)
    });
    debug_assert!(key.is_some(), "a point outside of its payload");
    key.unwrap_or_default()
}

impl<'a> Placed<'a> {
    pub(super) fn key(&self) -> &'a [u8] {
        key_of(&self.layer.payloads, self.point)
    }

    pub(super) fn index(&self) -> LogIndex {
        let payload = self.layer.payloads.get(self.point.payload as usize);
        payload.map_or(LogIndex(0), |(index, _)| *index)
    }

    pub(super) fn pair(&self) -> Option<Pair> {
        let (_, payload) = self.layer.payloads.get(self.point.payload as usize)?;
        let key = payload.slice_ref(self.key());
        let Point { value_at, value_len, expires_at_s, .. } = *self.point;
        // BUC-Raft's Algorithm 1 returns the value of the last log entry of a key.
        // bug overlay.delete_returns_value: let value_at = value_at.or(NonZeroU32::new(1));
        let at = value_at?.get() as usize;
        let value = payload.slice(at..at + value_len as usize);
        Some(Pair { key, value, expires_at_s })
    }
}

/// Next point of one layer in a scan over several; the greatest one comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'a> {
    pub placed: Placed<'a>,
    /// Number of the layer; greater is newer.
    pub number: usize,
    pub order: Order,
}

impl Ord for Head<'_> {
    /// By key in the order of the scan, then the newest layer first.
    fn cmp(&self, other: &Self) -> Ordering {
        let ascending = self.placed.key().cmp(other.placed.key());
        let by_key = match self.order {
            Order::Forward => ascending.reverse(),
            Order::Reverse => ascending,
        };
        by_key.then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}
