//! Old values: what the keys of a region had before the writes that are applied, for readers that ask for it.
//!
//! While nothing asks, an apply reads one flag. Otherwise it looks each written key of the asked ranges up in the
//! index, which may wait for the device, and keeps the reference. The reader reads the value itself, as long as its
//! file is there.

use super::Shared;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use stele_index::Found;
use stele_types::lock::{Mutex, rank};
use stele_types::{
    Command, CommittedEntry, KeyRange, Locator, LogIndex, Op, RegionId, Result, ValueRef,
};

/// Bytes of keys and short values that wait for one reader. Beyond them the oldest are unknown.
const HELD_BYTES_MAX: usize = 4 << 20;
/// Memory of one held key beside its bytes.
const HELD_OVERHEAD_BYTES: usize = 96;

/// What a key had before a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldValue {
    /// Not looked up, or no longer there.
    Unknown,
    /// No value.
    Absent,
    /// A value, which may have expired.
    Present {
        /// The value.
        value: Bytes,
        /// Expiry in Unix seconds; 0 for none.
        expires_at_s: u64,
    },
}

/// What is held of a value until the reader asks.
#[derive(Clone, Debug)]
enum Held {
    Unknown,
    Absent,
    Present { value: ValueRef, expires_at_s: u64 },
}

/// Lookups of one entry: the keys in the order of its puts and deletes.
#[derive(Debug)]
struct OfEntry {
    index: LogIndex,
    keys: VecDeque<(Bytes, Held)>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<OfEntry>,
    bytes: usize,
}

#[derive(Debug)]
struct Watched {
    region: RegionId,
    /// Ranges of engine keys.
    ranges: Vec<KeyRange>,
    waiting: Mutex<Waiting, { rank::OLD_VALUES_OF_READER }>,
}

/// Readers that ask a store for old values.
#[derive(Debug, Default)]
pub(crate) struct OldValues {
    count: AtomicUsize,
    watched: Mutex<Vec<Arc<Watched>>, { rank::OLD_VALUES }>,
}

/// Reader of the old values of one region's writes. It ends when it is dropped.
#[derive(Debug)]
pub struct OldValuesReader {
    shared: Arc<Shared>,
    watched: Arc<Watched>,
}

impl OldValuesReader {
    pub(super) fn new(shared: &Arc<Shared>, region: RegionId, ranges: Vec<KeyRange>) -> Self {
        let watched = Arc::new(Watched { region, ranges, waiting: Mutex::default() });
        let all = &shared.old_values;
        all.watched.lock().push(Arc::clone(&watched));
        all.count.fetch_add(1, Ordering::Release);
        Self { shared: Arc::clone(shared), watched }
    }

    /// Returns what the keys had before the puts and deletes of an entry, in their order, and forgets earlier
    /// entries. Empty if they were not looked up: then each is unknown. Values of more than `bytes_max` in all are
    /// unknown. May wait for the device.
    pub fn take(&self, index: LogIndex, bytes_max: usize) -> Vec<(Bytes, OldValue)> {
        let mut waiting = self.watched.waiting.lock();
        while waiting.entries.front().is_some_and(|entry| entry.index < index) {
            waiting.drop_first();
        }
        let is_next = waiting.entries.front().is_some_and(|entry| entry.index == index);
        let Some(entry) = is_next.then(|| waiting.drop_first()).flatten() else {
            return Vec::new();
        };
        drop(waiting);
        let mut left = bytes_max;
        let values = entry.keys.into_iter().map(|(key, held)| (key, self.value(held, &mut left)));
        values.collect()
    }

    fn value(&self, held: Held, left: &mut usize) -> OldValue {
        let (value, expires_at_s) = match held {
            Held::Unknown => return OldValue::Unknown,
            Held::Absent => return OldValue::Absent,
            Held::Present { value, expires_at_s } => (value, expires_at_s),
        };
        let Some(rest) = left.checked_sub(value.len() as usize) else { return OldValue::Unknown };
        *left = rest;
        let read: Result<Bytes> = match value {
            ValueRef::Inline(value) => Ok(value),
            ValueRef::At(at) => self.read(&at),
        };
        // Its file may be gone, or damaged: the write itself is not concerned.
        read.map_or(OldValue::Unknown, |value| OldValue::Present { value, expires_at_s })
    }

    fn read(&self, at: &Locator) -> Result<Bytes> {
        self.shared.value(at)
    }
}

impl Drop for OldValuesReader {
    fn drop(&mut self) {
        let all = &self.shared.old_values;
        all.watched.lock().retain(|watched| !Arc::ptr_eq(watched, &self.watched));
        all.count.fetch_sub(1, Ordering::Release);
    }
}

impl Waiting {
    fn drop_first(&mut self) -> Option<OfEntry> {
        let entry = self.entries.pop_front()?;
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

impl OldValues {
    /// Looks up what the keys of these entries have, before the entries are applied.
    ///
    /// Invariant: an old value is that before its own write, also if an earlier write of the same apply changed
    /// the key.
    /// Test: `old_values_are_those_before_each_write_also_within_one_apply`.
    pub(crate) fn note(&self, shared: &Shared, runs: &[(RegionId, &[CommittedEntry])]) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        for watched in self.watched.lock().iter() {
            let runs = runs.iter().filter(|(region, _)| *region == watched.region);
            for (_, entries) in runs {
                watched.note(shared, entries);
            }
        }
    }
}

impl Watched {
    fn note(&self, shared: &Shared, entries: &[CommittedEntry]) {
        let view = shared.index.view();
        let before = |key: &[u8]| match view.get(key) {
            Ok(Some(Found::Value { value, expires_at_s })) => {
                Held::Present { value: owned(value), expires_at_s }
            }
            Ok(Some(Found::Deleted) | None) => Held::Absent,
            // A damaged block: the apply itself does not read it.
            Err(_) => Held::Unknown,
        };
        let mut changed = Changed::default();
        for entry in entries.iter().filter(|entry| entry.is_command) {
            let mut of_entry = OfEntry { index: entry.index, keys: VecDeque::new(), bytes: 0 };
            // A malformed entry fails the apply that follows.
            Command::each_op_of(&entry.payload, |op| {
                let (Op::Put { key, .. } | Op::Delete { key }) = &op else {
                    changed.apply(&op, &entry.payload);
                    return;
                };
                if self.ranges.iter().any(|range| range.contains(key)) {
                    let held = changed.get(key).unwrap_or_else(|| before(key));
                    // bug engine.old_value_before_the_apply: let held = before(key);
                    of_entry.add(key, held);
                    changed.apply(&op, &entry.payload);
                }
            });
            self.hold(of_entry);
        }
    }

    fn hold(&self, entry: OfEntry) {
        if entry.keys.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        waiting.bytes += entry.bytes;
        waiting.entries.push_back(entry);
        // Invariant: what waits for a reader is bounded; what it misses is unknown to it.
        // Test: `what_waits_for_a_reader_of_old_values_is_bounded`.
        // bug engine.old_values_unbounded: never
        while waiting.bytes > HELD_BYTES_MAX {
            waiting.drop_first();
        }
    }
}

impl OfEntry {
    fn add(&mut self, key: &[u8], held: Held) {
        let inline = match &held {
            Held::Present { value: ValueRef::Inline(value), .. } => value.len(),
            _ => 0,
        };
        self.bytes += HELD_OVERHEAD_BYTES + key.len() + inline;
        self.keys.push_back((Bytes::copy_from_slice(key), held));
    }
}

/// A short value without the block that it is part of.
fn owned(value: ValueRef) -> ValueRef {
    match value {
        ValueRef::Inline(value) => ValueRef::Inline(Bytes::copy_from_slice(&value)),
        at @ ValueRef::At(_) => at,
    }
}

/// Writes of the apply that the index does not have yet.
#[derive(Default)]
struct Changed {
    keys: BTreeMap<Bytes, Held>,
    ranges: Vec<KeyRange>,
}

impl Changed {
    fn get(&self, key: &[u8]) -> Option<Held> {
        let deleted = || self.ranges.iter().any(|range| range.contains(key));
        self.keys.get(key).cloned().or_else(|| deleted().then_some(Held::Absent))
    }

    fn apply(&mut self, op: &Op<'_>, payload: &Bytes) {
        match op {
            Op::Put { key, value, expires_at_s, .. } => {
                let value = ValueRef::Inline(payload.slice_ref(value));
                let held = Held::Present { value, expires_at_s: *expires_at_s };
                self.keys.insert(payload.slice_ref(key), held);
            }
            Op::Delete { key } => {
                self.keys.insert(payload.slice_ref(key), Held::Absent);
            }
            Op::DeleteRange { start, end } => {
                let range = KeyRange::new(payload.slice_ref(start), payload.slice_ref(end));
                self.keys.retain(|key, _| !range.contains(key));
                self.ranges.push(range);
            }
        }
    }
}
