//! Effects of the committed entries of one region that are not applied, laid over a view of the
//! engine, so that reads do not wait for apply (BUC-Raft, section 5: Read Acceleration).
//!
//! Invariant: let an overlay hold the effects of all entries in (A, R]. Over a view that contains
//! exactly the entries up to some v with A ≤ v ≤ R, [`Overlaid`] reads the state after entry R.
//! If an entry in (A, R] writes a key, the overlay answers with the last such write. Otherwise the
//! states after A, v and R agree about the key, and the view answers. Therefore an effect that the
//! view already contains does no harm, but neither a gap in (A, R] nor a view outside of A to R is
//! allowed.
//!
//! The caller keeps these bounds: it pushes every entry with effects in order, it names an entry as
//! applied only when the views of later readers contain it, and a reader takes effects that reach
//! up to the applied index of its view.

mod effects;
mod merge;
mod overlaid;
mod range_deletes;

pub use effects::{Effects, KeyChange};
pub use overlaid::Overlaid;

use crate::Pair;
use bytes::Bytes;
use effects::Point;
use range_deletes::RangeDelete;
use std::collections::{BTreeSet, VecDeque};
use std::mem::size_of;
use std::ops::Bound;
use stele_types::{Command, Error, KeyRange, LogIndex, Op, Result, mutant};

/// Persistent map by key: a clone is O(1), and a change copies O(log n) nodes that a clone shares.
type Map<V> = rpds::RedBlackTreeMapSync<Bytes, V>;

/// Node of a map, reference counts and the allocator's rounding.
const MAP_NODE_BYTES: usize = 80;
/// Buffers of the queues double, and nodes of the set may be filled to a third only.
const QUEUE_FACTOR: usize = 3;
const ENTRY_BYTES: usize = QUEUE_FACTOR * size_of::<PushedEntry>();
const POINT_BYTES: usize =
    MAP_NODE_BYTES + size_of::<(Bytes, Point)>() + QUEUE_FACTOR * size_of::<(OpNumber, Bytes)>();
const INTERVAL_BYTES: usize = MAP_NODE_BYTES
    + size_of::<(Bytes, RangeDelete)>()
    + QUEUE_FACTOR * size_of::<(OpNumber, Bytes)>();
/// A range delete adds at most two intervals: itself, and the second part of one that it splits.
const RANGE_DELETE_BYTES: usize = 2 * INTERVAL_BYTES;
/// Smallest buffers of the queues and the set.
const BASE_BYTES: u64 = 2 << 10;

/// Returns a range as bounds of a map. It must not be empty.
fn bounds(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = if range.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(&range.end[..]) };
    (Bound::Included(&range.start[..]), end)
}

/// Position of an operation among all pushed ones; the later one wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OpNumber(u64);

/// Effects of the committed entries of one region that are not applied. Owned by the loop.
///
/// Keys and values share the memory of the pushed payloads.
#[derive(Default, Debug)]
pub struct Overlay {
    effects: Effects,
    /// Pushed entries with effects, oldest first.
    entries: VecDeque<PushedEntry>,
    /// Written key of each put and delete, oldest first.
    written: VecDeque<(OpNumber, Bytes)>,
    /// Start of each interval in the effects' range deletes, by the operation that it is from.
    intervals: BTreeSet<(OpNumber, Bytes)>,
    last_op: OpNumber,
    bytes: u64,
}

#[derive(Debug)]
struct PushedEntry {
    index: LogIndex,
    last_op: OpNumber,
    /// Upper estimate of the memory that this entry adds.
    bytes: u64,
}

impl Overlay {
    /// Adds the effects of the next committed entry. `payload` is an encoded [`Command`]; an empty
    /// one has no effects. Fails with [`Error::Invalid`] and changes nothing if `payload` is not a
    /// readable command, or if `index` is not above the last entry.
    pub fn push(&mut self, index: LogIndex, payload: &Bytes) -> Result<()> {
        if let Some(last) = self.entries.back().map(|entry| entry.index)
            && index <= last
        {
            return Err(Error::invalid(format!("overlay: entry {index} after entry {last}")));
        }
        if payload.is_empty() {
            return Ok(());
        }
        let command = Command::parse(payload.clone())?;
        let before = self.last_op;
        let mut bytes = ENTRY_BYTES + payload.len();
        for op in command.ops() {
            bytes += self.push_op(index, op, payload);
        }
        if self.last_op > before {
            let bytes = bytes as u64;
            self.bytes += bytes;
            self.entries.push_back(PushedEntry { index, last_op: self.last_op, bytes });
        }
        Ok(())
    }

    /// Adds one operation of a payload. Returns the upper estimate of the memory that it adds
    /// beside the payload.
    fn push_op(&mut self, index: LogIndex, op: Op<'_>, payload: &Bytes) -> usize {
        match op {
            Op::Put { key, value, expires_at_s, .. } => {
                let put = (payload.slice_ref(value), expires_at_s);
                self.push_point(index, payload.slice_ref(key), Some(put));
                POINT_BYTES
            }
            Op::Delete { key } => {
                self.push_point(index, payload.slice_ref(key), None);
                POINT_BYTES
            }
            Op::DeleteRange { start, end } => {
                let range = KeyRange::new(payload.slice_ref(start), payload.slice_ref(end));
                if range.is_empty() {
                    return 0;
                }
                self.push_range_delete(range);
                RANGE_DELETE_BYTES
            }
        }
    }

    fn push_point(&mut self, index: LogIndex, key: Bytes, put: Option<(Bytes, u64)>) {
        let op = self.next_op();
        let is_older_kept = mutant::active("overlay.older_effect_wins") && self.get(&key).is_some();
        if !is_older_kept {
            self.effects.set_point(key.clone(), Point { op, index, put });
        }
        self.written.push_back((op, key));
    }

    fn push_range_delete(&mut self, range: KeyRange) {
        let op = self.next_op();
        // Invariant: a point is newer than every range delete over its key. Each point is removed
        // at most once, so a push costs O(log n) for each operation on average.
        self.effects.remove_points(&range);
        let changes = self.effects.range_deletes.insert(range, op);
        for interval in changes.removed {
            self.intervals.remove(&interval);
        }
        self.intervals.extend(changes.added);
    }

    fn next_op(&mut self) -> OpNumber {
        self.last_op = OpNumber(self.last_op.0 + 1);
        self.last_op
    }

    /// Removes the effects of entries up to and including `applied`. Reads only what these entries
    /// wrote.
    pub fn note_applied(&mut self, applied: LogIndex) {
        let applied =
            if mutant::active("overlay.pruned_too_far") { applied.next() } else { applied };
        let mut last_op = OpNumber::default();
        while let Some(entry) = self.entries.front()
            && entry.index <= applied
        {
            last_op = entry.last_op;
            self.bytes -= entry.bytes;
            self.entries.pop_front();
        }
        if self.entries.is_empty() {
            return self.clear();
        }
        while let Some((op, key)) = self.written.front()
            && *op <= last_op
        {
            self.effects.remove_point(key, last_op);
            self.written.pop_front();
        }
        while let Some((op, start)) = self.intervals.first()
            && *op <= last_op
        {
            self.effects.range_deletes.remove(start);
            self.intervals.pop_first();
        }
    }

    /// Removes all effects and frees their memory.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether the overlay has no effects.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes of memory that the overlay holds: payloads with their keys and values, and
    /// its own structure. An upper estimate; memory that only snapshots of readers still hold does
    /// not count.
    pub fn bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { self.bytes + BASE_BYTES }
    }

    /// Returns the effect on a key: `None` without one, `Some(None)` for a deleted key.
    pub fn get(&self, key: &[u8]) -> Option<Option<Pair>> {
        self.effects.get(key)
    }

    /// Returns a snapshot for readers, in O(1). Later pushes do not change it.
    pub fn effects(&self) -> Effects {
        self.effects.clone()
    }
}

#[cfg(test)]
mod tests;
