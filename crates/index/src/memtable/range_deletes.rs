//! Range deletes of one memtable, and sets of keys given as ranges. The n-th range delete has epoch
//! n. A version written after the n-th has epoch n and is hidden only by later range deletes, also
//! when sequence numbers are equal.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stele_types::{KeyRange, varint};

/// Bookkeeping bytes per range delete, besides its keys.
const RANGE_DELETE_BYTES: usize = 160;

/// Newest range delete over each key: sorted, disjoint pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces(Vec<(KeyRange, u64)>);

impl Pieces {
    /// Returns the epoch of the newest range delete over `key`; 0 for none.
    pub(super) fn epoch_over(&self, key: &[u8]) -> u64 {
        let after = self.0.partition_point(|(range, _)| &range.start[..] <= key);
        match after.checked_sub(1).and_then(|i| self.0.get(i)) {
            Some((range, epoch)) if range.is_below_end(key) => *epoch,
            _ => 0,
        }
    }

    fn keys(&self) -> RangeSet {
        RangeSet::from_ranges(self.0.iter().map(|(range, _)| range.clone()))
    }
}

/// Pieces by start, each with its end and epoch.
#[derive(Debug, Default)]
struct Map(BTreeMap<Bytes, (Bytes, u64)>);

impl Map {
    fn covering(&self, key: &[u8]) -> Option<(&Bytes, &(Bytes, u64))> {
        let below = (Bound::Unbounded, Bound::Included(key));
        let (start, piece) = self.0.range::<[u8], _>(below).next_back()?;
        (piece.0.is_empty() || key < &piece.0[..]).then_some((start, piece))
    }

    /// Splits the piece that contains `key` so that a piece starts at `key`.
    fn cut(&mut self, key: &Bytes) {
        let Some((start, piece)) = self.covering(key) else { return };
        if start != key {
            let (start, (end, epoch)) = (start.clone(), piece.clone());
            self.0.insert(start, (key.clone(), epoch));
            self.0.insert(key.clone(), (end, epoch));
        }
    }

    fn add(&mut self, range: &KeyRange, epoch: u64) {
        self.cut(&range.start);
        if !range.end.is_empty() {
            self.cut(&range.end);
        }
        let end =
            if range.end.is_empty() { Bound::Unbounded } else { Bound::Excluded(&range.end[..]) };
        let inside = (Bound::Included(&range.start[..]), end);
        let hidden: Vec<Bytes> = self.0.range::<[u8], _>(inside).map(|(s, _)| s.clone()).collect();
        for start in hidden {
            self.0.remove(&start);
        }
        self.0.insert(range.start.clone(), (range.end.clone(), epoch));
    }

    fn pieces(&self) -> Pieces {
        let piece = |(start, (end, epoch)): (&Bytes, &(Bytes, u64))| {
            (KeyRange { start: start.clone(), end: end.clone() }, *epoch)
        };
        Pieces(self.0.iter().map(piece).collect())
    }
}

/// All range deletes in the order they were made. Adding one costs time proportional to the pieces
/// it hides. A query at the newest sequence number is a lookup; a query at an older one scans the
/// range deletes made by then.
#[derive(Debug, Default)]
pub(super) struct RangeDeletes {
    made: Vec<(u64, KeyRange)>,
    newest: Map,
    pieces: Option<(Arc<Pieces>, Arc<RangeSet>)>,
    bytes: usize,
}

impl RangeDeletes {
    pub(super) fn add(&mut self, seq: u64, range: KeyRange) {
        self.bytes += RANGE_DELETE_BYTES + 2 * (range.start.len() + range.end.len());
        self.newest.add(&range, self.made.len() as u64 + 1);
        self.made.push((seq, range));
        self.pieces = None;
    }

    pub(super) fn count(&self) -> u64 {
        self.made.len() as u64
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn visible(&self, at: u64) -> usize {
        // bug index.range_delete_seq_ignored: return self.made.len();
        self.made.partition_point(|(seq, _)| *seq <= at)
    }

    /// Returns the epoch of the newest range delete over `key` visible at `at`; 0 for none.
    pub(super) fn epoch_over(&self, key: &[u8], at: u64) -> u64 {
        let visible = self.visible(at);
        if visible == self.made.len() {
            return self.newest.covering(key).map_or(0, |(_, (_, epoch))| *epoch);
        }
        let mut made = self.made.iter().take(visible);
        made.rposition(|(_, range)| range.contains(key)).map_or(0, |i| i as u64 + 1)
    }

    /// Returns everything visible at `at`: as pieces with epochs, and as a set of keys.
    pub(super) fn pieces(&mut self, at: u64) -> (Arc<Pieces>, Arc<RangeSet>) {
        let both = |map: &Map| {
            let pieces = map.pieces();
            let keys = pieces.keys();
            (Arc::new(pieces), Arc::new(keys))
        };
        let visible = self.visible(at);
        if visible == self.made.len() {
            return self.pieces.get_or_insert_with(|| both(&self.newest)).clone();
        }
        let mut older = Map::default();
        for (i, (_, range)) in self.made.iter().take(visible).enumerate() {
            older.add(range, i as u64 + 1);
        }
        both(&older)
    }
}

/// Sorted, disjoint, non-empty ranges of keys; ranges that touch are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(Vec<KeyRange>);

impl RangeSet {
    /// Returns the union of `ranges`, which may overlap.
    pub fn from_ranges(ranges: impl IntoIterator<Item = KeyRange>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        sorted.sort_by(|a, b| a.start.cmp(&b.start));
        let mut joined: Vec<KeyRange> = Vec::with_capacity(sorted.len());
        for range in sorted {
            match joined.last_mut() {
                Some(last) if last.end.is_empty() || range.start <= last.end => {
                    if range.end.is_empty() || (!last.end.is_empty() && range.end > last.end) {
                        last.end = range.end;
                    }
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// Returns the range that contains `key`.
    pub fn range_of(&self, key: &[u8]) -> Option<&KeyRange> {
        let after = self.0.partition_point(|range| &range.start[..] <= key);
        self.0.get(after.checked_sub(1)?).filter(|range| range.is_below_end(key))
    }

    /// Returns whether `key` is in the set.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.range_of(key).is_some()
    }

    /// Returns whether a key may be both in the set and in `range`.
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        self.0.iter().any(|own| own.overlaps(range))
    }

    /// Returns the keys in either set.
    pub fn union(&self, other: &Self) -> Self {
        Self::from_ranges(self.iter().chain(other.iter()).cloned())
    }

    /// Returns the keys of the set that lie in `range`.
    pub fn within(&self, range: &KeyRange) -> Self {
        let cut = self.0.iter().filter(|own| own.overlaps(range)).map(|own| {
            let end = if own.end.is_empty() || range.is_empty() {
                &range.end
            } else if range.end.is_empty() {
                &own.end
            } else {
                (&own.end).min(&range.end)
            };
            KeyRange { start: (&own.start).max(&range.start).clone(), end: end.clone() }
        });
        Self(cut.collect())
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the ranges in key order.
    pub fn iter(&self) -> impl Iterator<Item = &KeyRange> {
        self.0.iter()
    }

    /// Appends count:varint, then start and end of each range, length-prefixed.
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.0.len() as u64);
        for range in &self.0 {
            varint::put_bytes(out, &range.start);
            varint::put_bytes(out, &range.end);
        }
    }

    /// Decodes the output of [`RangeSet::encode`] and removes it from the front.
    pub fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let count = varint::take(bytes)?;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let start = varint::take_bytes(bytes)?.to_vec();
            ranges.push(KeyRange::new(start, varint::take_bytes(bytes)?.to_vec()));
        }
        Some(Self::from_ranges(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(&'static str, &'static str)]) -> RangeSet {
        RangeSet::from_ranges(ranges.iter().map(|(a, b)| KeyRange::new(*a, *b)))
    }

    #[test]
    fn ranges_join_when_they_touch_and_unbounded_ones_swallow_the_rest() {
        assert_eq!(
            set(&[("d", "f"), ("a", "b"), ("b", "c"), ("x", "x")]),
            set(&[("a", "c"), ("d", "f")])
        );
        assert_eq!(set(&[("m", ""), ("a", "b"), ("p", "q")]), set(&[("a", "b"), ("m", "")]));
        assert_eq!(set(&[("a", "z"), ("b", "c")]).len(), 1);
    }

    #[test]
    fn membership_ends_before_the_end() {
        let some = set(&[("b", "d"), ("m", "")]);
        for (key, inside) in
            [("a", false), ("b", true), ("c\u{7f}", true), ("d", false), ("zz", true)]
        {
            assert_eq!(some.covers(key.as_bytes()), inside, "{key}");
        }
        assert!(
            some.overlaps(&KeyRange::new("c", "d")) && !some.overlaps(&KeyRange::new("d", "m"))
        );
        assert_eq!(some.within(&KeyRange::new("c", "n")), set(&[("c", "d"), ("m", "n")]));
        assert_eq!(some.within(&KeyRange::new("c", "")), set(&[("c", "d"), ("m", "")]));
        assert_eq!(set(&[("a", "")]).within(&KeyRange::new("", "c")), set(&[("a", "c")]));
    }

    #[test]
    fn encoding_survives_the_round_trip_and_refuses_cut_bytes() {
        let some = set(&[("b", "d"), ("m", "")]);
        let mut out = Vec::new();
        some.encode(&mut out);
        assert_eq!(RangeSet::decode(&mut &out[..]), Some(some));
        assert_eq!(RangeSet::decode(&mut &out[..out.len() - 1]), None);
    }
}
