//! The memtable: applied writes that are not in a run yet. Ordered, multi-version, written by one
//! thread at a time and read by any number of threads without locks.
//!
//! It is a B+-tree and not a skip list: a search touches five wide nodes with adjacent key prefixes
//! instead of some twenty scattered nodes.

mod cursor;
mod node;
mod range_deletes;
mod record;
#[cfg(test)]
pub(crate) mod tests;
mod tree;

pub(crate) use cursor::MemtableCursor;
pub use range_deletes::RangeSet;

use crate::cursor::{Cursor, Found, ValueSlice};
use bytes::Bytes;
use range_deletes::RangeDeletes;
use record::VersionRecord;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stele_types::lock::{RwLock, rank};
use stele_types::{KeyRange, Result, Seq};
use tree::{LeafTarget, Tree};

/// A put or a delete of one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyWrite<'a> {
    /// Its sequence number.
    pub seq: Seq,
    /// The key.
    pub key: &'a [u8],
    /// The value, or `None` for a delete.
    pub value: Option<ValueSlice<'a>>,
    /// Expiry of the value in Unix seconds; 0 for none.
    pub expires_at_s: u64,
}

/// Key → newest visible version, by sequence number. Sequence numbers never decrease from write to
/// write; of writes with equal numbers the later one wins. Keys are at most `KEY_BYTES_MAX` long
/// and inline values at most `INLINE_VALUE_BYTES_MAX`; the caller checks this.
pub(crate) struct Memtable {
    tree: Tree,
    deletes: RwLock<RangeDeletes, { rank::MEMTABLE_DELETES }>,
    /// Number of range deletes; with 0 readers take no lock.
    delete_count: AtomicU64,
    delete_bytes: AtomicUsize,
    entries: AtomicU64,
    tombstones: AtomicU64,
}

impl Default for Memtable {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memtable")
            .field("entries", &self.entries())
            .field("bytes", &self.bytes())
            .finish()
    }
}

impl Memtable {
    pub(crate) fn new() -> Self {
        Self {
            tree: Tree::new(),
            deletes: RwLock::default(),
            delete_count: AtomicU64::new(0),
            delete_bytes: AtomicUsize::new(0),
            entries: AtomicU64::new(0),
            tombstones: AtomicU64::new(0),
        }
    }

    /// Writes versions in their order. Between them no range delete is made.
    pub(crate) fn write(&self, writes: &[KeyWrite<'_>]) {
        let epoch = self.delete_count.load(Ordering::Acquire);
        let new = self.tree.insert(writes, epoch);
        let deleted = writes.iter().filter(|write| write.value.is_none()).count();
        self.entries.fetch_add(new, Ordering::Relaxed);
        self.tombstones.fetch_add(deleted as u64, Ordering::Relaxed);
    }

    /// Deletes every key in [start, end), here and in older sources; an empty `end` is unbounded.
    pub(crate) fn delete_range(&self, seq: Seq, start: &[u8], end: &[u8]) {
        let range = KeyRange::new(Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        if range.is_empty() {
            return;
        }
        let mut deletes = self.deletes.write();
        deletes.add(seq.0, range);
        self.delete_bytes.store(deletes.bytes(), Ordering::Relaxed);
        self.delete_count.store(deletes.count(), Ordering::Release);
    }

    /// Returns the newest version of `key` visible at `at`. Returns [`Found::Deleted`] also when a
    /// range delete covers the key, so that older sources are not searched.
    pub(crate) fn get(&self, key: &[u8], at: Seq) -> Option<Found> {
        let head = self.tree.read_leaf(LeafTarget::Key(key), |leaf, meta| {
            match leaf.lower_bound(&self.tree.arena, meta, key) {
                (slot, true) => leaf.record(slot),
                _ => 0,
            }
        });
        let covered = self.epoch_over(key, at);
        let record = self.visible(head, at.0);
        if record == 0 {
            return (covered > 0).then_some(Found::Deleted);
        }
        let record = VersionRecord::at(&self.tree.arena, record);
        Some(if covered > record.epoch() { Found::Deleted } else { record.found() })
    }

    /// Starts to load what gets of these keys will read.
    pub(crate) fn prefetch(&self, keys: &[Bytes]) {
        self.tree.prefetch(keys);
    }

    pub(crate) fn ranges(&self, at: Seq) -> Arc<RangeSet> {
        if self.delete_count.load(Ordering::Acquire) == 0 {
            return Arc::default();
        }
        self.deletes.write().pieces(at.0).1
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tree.arena.used_bytes() + self.delete_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns how many times a key was deleted, without range deletes.
    pub(crate) fn tombstones(&self) -> u64 {
        self.tombstones.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries() == 0 && self.delete_count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn cursor(self: &Arc<Self>, at: Seq) -> MemtableCursor {
        let any = self.delete_count.load(Ordering::Acquire) > 0;
        let deletes = any.then(|| self.deletes.write().pieces(at.0).0);
        MemtableCursor::new(Arc::clone(self), at.0, deletes)
    }

    fn epoch_over(&self, key: &[u8], at: Seq) -> u64 {
        if self.delete_count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.deletes.read().epoch_over(key, at.0)
    }

    /// Returns the newest version from `head` on that is visible at `at`; 0 for none.
    #[inline]
    fn visible(&self, head: u32, at: u64) -> u32 {
        let mut record = head;
        while record != 0 {
            let version = VersionRecord::at(&self.tree.arena, record);
            // bug index.memtable_seq_ignored: always
            if version.seq() <= at {
                break;
            }
            record = version.older();
        }
        record
    }
}

/// Estimated entries up to which all entries are returned.
const WHOLE_MAX: f64 = 1024.0;
/// Number of places sampled otherwise, and entries at each.
const PLACES: usize = 64;
const ENTRIES: usize = 16;

/// Receiver of key, value (`None`: deleted) and the number of entries that this one represents.
pub(crate) type SampleSink<'a> = dyn FnMut(&[u8], Option<ValueSlice<'_>>, f64) + 'a;

impl Memtable {
    pub(crate) fn sample(
        self: &Arc<Self>,
        range: &KeyRange,
        at: Seq,
        f: &mut SampleSink<'_>,
    ) -> Result<()> {
        let share = |key: &[u8]| self.tree.share_below(key);
        let from = share(&range.start);
        let to = if range.end.is_empty() { 1.0 } else { share(&range.end) };
        let entries = (to - from).max(0.0) * self.entries() as f64;
        let mut cursor = self.cursor(at);
        if entries <= WHOLE_MAX {
            cursor.seek(&range.start)?;
            // The estimate may be wrong; the walk is bounded nevertheless.
            return emit(&mut cursor, range, 2 * WHOLE_MAX as usize, 1.0, f);
        }
        let weight = entries / (PLACES * ENTRIES) as f64;
        for place in 0..PLACES {
            let share = from + (to - from) * (place as f64 + 0.5) / PLACES as f64;
            cursor.seek(&self.key_at(share).max(range.start.to_vec()))?;
            emit(&mut cursor, range, ENTRIES, weight, f)?;
        }
        Ok(())
    }

    fn key_at(&self, share: f64) -> Vec<u8> {
        let record = self.tree.read_leaf_at(share, |leaf, meta| match meta.count {
            0 => 0,
            _ => leaf.record(0),
        });
        let mut key = Vec::new();
        if record != 0 {
            VersionRecord::at(&self.tree.arena, record).key_into(&mut key);
        }
        key
    }
}

fn emit(
    cursor: &mut impl Cursor,
    range: &KeyRange,
    entries_max: usize,
    weight: f64,
    f: &mut SampleSink<'_>,
) -> Result<()> {
    for _ in 0..entries_max {
        if !cursor.valid() || !range.is_below_end(cursor.key()) {
            break;
        }
        f(cursor.key(), cursor.value().map(|(value, _)| value), weight);
        cursor.next()?;
    }
    Ok(())
}
