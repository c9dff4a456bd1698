//! Range deletes of one memtable. The n-th has epoch n. A version written after the n-th has epoch
//! n and is hidden only by later range deletes, also when sequence numbers are equal.

use super::range_set::RangeSet;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use stele_types::KeyRange;

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
