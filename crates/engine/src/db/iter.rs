//! Iteration: keys and references from the index, values read in slices that grow, each slice
//! sorted by location. In a long scan the next slices are read while the last one is used. A
//! [`Group`] selects keys by their first four bytes (KV-SSD section 3.1).

use super::read_queue::{ReadQueue, ScanReadahead};
use crate::store::{Extent, ReadSlice, SLICE_PAIRS_MAX, Slice, Store, View};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_gc::Scanned;
use stele_index::ViewIter;
use stele_storage::{Order, Pair};
use stele_types::{KeyRange, Result, is_expired};

/// Pairs of the first slice; small, so that a short scan reads few values it does not return.
const FIRST_SLICE_PAIRS: usize = 16;
/// Number of slices after which a scan counts as long, and the next one is read ahead.
const SLICES_BEFORE_READAHEAD: u32 = 2;
/// Limit for the keys and values of one slice: with the gaps between the values, one read buffer.
const BYTES_MAX: u64 = (2 << 20) - (256 << 10);
/// Limit for the slices of one scan that are read ahead, if their values take at most
/// [`READAHEAD_BYTES_MAX`].
const READAHEAD_SLICES_MAX: usize = 4;
const READAHEAD_BYTES_MAX: u64 = READAHEAD_SLICES_MAX as u64 * BYTES_MAX;

/// Pairs of one point in time, in key order. Later writes and deletes are not visible. While it
/// exists, the space of pairs that it may yield is not freed. Keys, and values of neighbours, share
/// memory (up to about 2 MiB): a caller that keeps few of them for long should copy them.
pub struct DbIter {
    store: Arc<Store>,
    view: Arc<View>,
    references: ViewIter,
    ready: ReadSlice,
    /// Slices after `ready`, each with its statistics, which count when it is reached.
    readahead: VecDeque<(ScanReadahead, Seen)>,
    /// Queue of the reading threads; `None` disables readahead.
    queue: Option<Arc<ReadQueue>>,
    slices: u32,
    slice_pairs: usize,
    /// Number of pairs that the caller is still expected to request.
    pairs_left: usize,
    bytes_left: u64,
    keys_only: bool,
    now_s: u64,
    done: bool,
    seen: Seen,
}

/// Statistics of the pairs read, for the scan load that decides which ranges are sorted.
#[derive(Debug, Default)]
struct Seen {
    first: Bytes,
    last: Bytes,
    scanned: Scanned,
}

impl Seen {
    fn of(slice: &Slice) -> Self {
        Self {
            first: Bytes::copy_from_slice(slice.first_key()),
            last: Bytes::copy_from_slice(slice.last_key()),
            scanned: Scanned {
                values: slice.len() as u64,
                bytes: slice.value_bytes(),
                scattered_reads: 0,
            },
        }
    }

    fn add(&mut self, next: Self) {
        if self.scanned.values == 0 {
            self.first = next.first;
        }
        self.last = next.last;
        self.scanned.values += next.scanned.values;
        self.scanned.bytes += next.scanned.bytes;
    }
}

impl DbIter {
    pub(super) fn new(
        store: &Arc<Store>,
        queue: Option<Arc<ReadQueue>>,
        range: KeyRange,
        order: Order,
        keys_only: bool,
        now_s: u64,
    ) -> Result<Self> {
        let view = Arc::new(View::new(store.shared()));
        let references = view.references(range, order)?;
        Ok(Self {
            store: store.clone(),
            view,
            references,
            ready: ReadSlice::default(),
            readahead: VecDeque::new(),
            queue: queue.filter(|_| !keys_only),
            slices: 0,
            slice_pairs: FIRST_SLICE_PAIRS,
            pairs_left: usize::MAX,
            bytes_left: u64::MAX,
            keys_only,
            now_s,
            done: false,
            seen: Seen::default(),
        })
    }

    /// Sets the number of pairs and bytes that will be requested, so that only their values are
    /// read.
    pub(crate) fn expect(mut self, pairs: usize, bytes: usize) -> Self {
        self.slice_pairs = pairs.clamp(1, SLICE_PAIRS_MAX);
        (self.pairs_left, self.bytes_left) = (pairs, bytes as u64);
        self
    }

    fn collect(&mut self) -> Result<Slice> {
        // If expected pairs have expired, a few more are read at a time.
        let few = FIRST_SLICE_PAIRS;
        let extent = Extent {
            pairs_max: self.slice_pairs.min(if self.pairs_left > 0 {
                self.pairs_left
            } else {
                few
            }),
            bytes_max: if self.bytes_left > 0 { self.bytes_left.min(BYTES_MAX) } else { BYTES_MAX },
            keys_only: self.keys_only,
        };
        let slice = Slice::collect(&mut self.references, extent)?;
        self.slices += 1;
        self.slice_pairs = (self.slice_pairs * 4).min(SLICE_PAIRS_MAX);
        self.pairs_left = self.pairs_left.saturating_sub(slice.len());
        self.bytes_left = self.bytes_left.saturating_sub(slice.bytes());
        Ok(slice)
    }

    fn is_long(&self) -> bool {
        self.slices >= SLICES_BEFORE_READAHEAD && self.pairs_left > 0 && self.bytes_left > 0
    }

    /// Whether one more slice may be read ahead. Several of full size are, so that the device has a
    /// read to do while the values of another are extracted, and does not wait for the caller.
    fn may_read_ahead(&self) -> bool {
        let bytes: u64 = self.readahead.iter().map(|(_, seen)| seen.scanned.bytes).sum();
        let full = self.slice_pairs == SLICE_PAIRS_MAX && bytes < READAHEAD_BYTES_MAX;
        let slices_max = if full { READAHEAD_SLICES_MAX } else { 1 };
        self.queue.is_some() && self.is_long() && self.readahead.len() < slices_max
    }

    /// Starts the next slice; `None` at the end.
    fn start_slice(&mut self) -> Result<Option<(ScanReadahead, Seen)>> {
        let long = self.is_long();
        let slice = self.collect()?;
        if slice.is_empty() {
            return Ok(None);
        }
        let seen = Seen::of(&slice);
        let readahead = ScanReadahead::new(&self.view, slice);
        if let Some(queue) = self.queue.as_ref().filter(|_| long) {
            queue.submit_slice(&readahead);
        }
        Ok(Some((readahead, seen)))
    }

    fn fill(&mut self) -> Result<()> {
        // Dropped before the next read starts, which may reuse its memory.
        self.ready = ReadSlice::default();
        let started = match self.readahead.pop_front() {
            Some(readahead) => Some(readahead),
            None => self.start_slice()?,
        };
        let Some((readahead, seen)) = started else {
            self.done = true;
            return Ok(());
        };
        // Keys and locations of the slices after it are found while it is read.
        while self.may_read_ahead()
            && let Some(started) = self.start_slice()?
        {
            self.readahead.push_back(started);
        }
        self.ready = readahead.take()?;
        self.seen.add(seen);
        self.seen.scanned.scattered_reads += self.ready.scattered_reads();
        Ok(())
    }

    fn step(&mut self) -> Result<Option<Pair>> {
        loop {
            if let Some(pair) = self.view.next_pair(&mut self.ready)? {
                if is_expired(pair.expires_at_s, self.now_s) {
                    continue;
                }
                return Ok(Some(pair));
            }
            if self.done {
                return Ok(None);
            }
            self.fill()?;
        }
    }
}

impl Iterator for DbIter {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.step() {
            Ok(pair) => pair.map(Ok),
            Err(error) => {
                // After an error nothing more is yielded: a gap must not look like the end.
                self.done = true;
                self.ready = ReadSlice::default();
                self.readahead.clear();
                Some(Err(error))
            }
        }
    }
}

impl Drop for DbIter {
    fn drop(&mut self) {
        if self.seen.scanned.bytes == 0 {
            return;
        }
        let (low, high) = if self.seen.first <= self.seen.last {
            (&self.seen.first, &self.seen.last)
        } else {
            (&self.seen.last, &self.seen.first)
        };
        let range = KeyRange::new(low.clone(), high.clone());
        self.store.gc().note_scan(&range, self.seen.scanned);
    }
}

impl std::fmt::Debug for DbIter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DbIter").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// A set of keys of at least four bytes. The first four, as a big-endian number, equal
/// `prefix` in every bit that is set in `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Bits to match.
    pub prefix: [u8; 4],
    /// Mask of the bits that must match.
    pub mask: [u8; 4],
}

impl Group {
    /// Creates the group of all keys that begin with these four bytes.
    pub fn of(prefix: [u8; 4]) -> Self {
        Self { prefix, mask: [0xff; 4] }
    }

    /// Whether `key` belongs to the group.
    pub fn contains(&self, key: &[u8]) -> bool {
        let Some(head) = key.first_chunk::<4>() else { return false };
        let mask = u32::from_be_bytes(self.mask);
        u32::from_be_bytes(*head) & mask == u32::from_be_bytes(self.prefix) & mask
    }

    pub(crate) fn filter(
        self,
        pairs: impl Iterator<Item = Result<Pair>>,
    ) -> impl Iterator<Item = Result<Pair>> {
        pairs.filter(move |pair| pair.as_ref().map_or(true, |pair| self.contains(&pair.key)))
    }

    /// Returns the smallest range that holds the group: the mask's leading ones are a true prefix.
    pub fn range(&self) -> KeyRange {
        let bits = u32::from_be_bytes(self.mask).leading_ones();
        let fixed = if bits == 0 { 0 } else { u32::MAX << (32 - bits) };
        let start = u32::from_be_bytes(self.prefix) & fixed;
        let end = u64::from(start) + (1u64 << (32 - bits));
        let end = u32::try_from(end).map(|e| e.to_be_bytes().to_vec()).unwrap_or_default();
        KeyRange::new(start.to_be_bytes().to_vec(), end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_lies_inside_its_range_and_matches_by_mask() {
        let group = Group { prefix: *b"ab\x00\x0f", mask: [0xff, 0xff, 0, 0x0f] };
        assert!(group.contains(b"abXo") && group.contains(b"abY\xffrest"));
        assert!(!group.contains(b"abX") && !group.contains(b"acXo") && !group.contains(b"abX0"));
        assert_eq!(group.range(), KeyRange::new(&b"ab\0\0"[..], &b"ac\0\0"[..]));
        assert!(group.range().contains(b"abXo"));
    }

    #[test]
    fn the_last_group_has_no_upper_bound() {
        assert!(Group::of([255; 4]).range().end.is_empty());
        assert_eq!(
            Group { prefix: [0; 4], mask: [0; 4] }.range(),
            KeyRange::new(vec![0; 4], vec![])
        );
    }
}
