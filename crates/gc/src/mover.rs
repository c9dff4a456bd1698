//! Moves of values during a merge, out of victims or into key order, with a readahead of the values
//! that are going to move: in order of location, one part at a time.

use crate::gc::GcHooks;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_index::{Live, MovingValue, ValueMover};
use stele_log::{Log, NEAR_BYTES_MAX, SortedWriter, Unchecked};
use stele_types::lock::{Mutex, rank};
use stele_types::{Cause, FileId, KeyRange, Locator, Lsn, Result};

/// Bytes for which the reserve is open anyway while a slice runs: what a file buffers is one of them.
const OPENED_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Victims(BTreeSet<FileId>),
    /// Values of a key range, except those in files to keep.
    Range {
        range: KeyRange,
        /// Files that are already in key order.
        keep: BTreeSet<FileId>,
    },
}

impl Plan {
    fn moves(&self, key: &[u8], at: &Locator) -> bool {
        match self {
            Self::Victims(files) => files.contains(&at.file),
            Self::Range { range, keep } => !keep.contains(&at.file) && range.contains(key),
        }
    }

    pub(crate) fn cause(&self) -> Cause {
        match self {
            Self::Victims(_) => Cause::Relocate,
            Self::Range { .. } => Cause::Sort,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Moved {
    pub files: Mutex<Vec<FileId>, { rank::GC_MOVED_FILES }>,
    pub bytes: AtomicU64,
    /// Values left in place because they could not be read, by file.
    pub unreadable: Mutex<BTreeMap<FileId, Live>, { rank::GC_MOVED_UNREADABLE }>,
}

pub(crate) struct Mover {
    log: Arc<Log>,
    hooks: Arc<dyn GcHooks>,
    plan: Plan,
    file_bytes_max: u64,
    writer: Option<SortedWriter>,
    moved: Arc<Moved>,
    read_ahead: ReadAhead,
}

impl Mover {
    pub(crate) fn new(
        log: Arc<Log>,
        hooks: Arc<dyn GcHooks>,
        plan: Plan,
        file_bytes_max: u64,
        moved: Arc<Moved>,
    ) -> Self {
        let (writer, read_ahead) = (None, ReadAhead::default());
        Self { log, hooks, plan, file_bytes_max, writer, moved, read_ahead }
    }

    /// Returns the value at `at` and its version. Verifies the checksum: damage must not be copied
    /// under a new, valid one.
    fn read(&mut self, key: &[u8], at: &Locator) -> Result<(Bytes, Lsn)> {
        let read = self.read_ahead.take(at);
        self.log.record(key, at, read)
    }

    fn finish_file(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            self.moved.files.lock().push(writer.finish()?);
        }
        Ok(())
    }

    fn append(
        &mut self,
        key: &[u8],
        version: Lsn,
        expires_at_s: u64,
        value: &[u8],
        value_crc: u32,
    ) -> Result<Locator> {
        if self.writer.as_ref().is_some_and(|writer| writer.bytes() >= self.file_bytes_max) {
            self.finish_file()?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(self.log.sorted_writer(self.plan.cause())?),
        };
        // Invariant: the reserve is opened for a value that is longer than a slice, too.
        // bug gc.long_values_get_no_reserve: never
        if value.len() as u64 > OPENED_BYTES {
            self.hooks.open_reserve(value.len() as u64 + OPENED_BYTES);
        }
        let before = writer.bytes();
        let at = writer.append_with_crc(key, version, expires_at_s, value, value_crc)?;
        self.moved.bytes.fetch_add(writer.bytes() - before, Ordering::Relaxed);
        Ok(at)
    }
}

impl ValueMover for Mover {
    fn moves(&self, key: &[u8], at: &Locator) -> bool {
        self.plan.moves(key, at)
    }

    fn read_ahead(&mut self, moving: &[MovingValue<'_>]) {
        let is_sort = self.plan.cause() == Cause::Sort;
        self.read_ahead = ReadAhead::new(moving, is_sort);
    }

    fn continue_read_ahead(&mut self, bytes_max: u64) -> u64 {
        self.read_ahead.step(&self.log, bytes_max)
    }

    fn place(&mut self, key: &[u8], at: &Locator, expires_at_s: u64) -> Result<Option<Locator>> {
        if !self.plan.moves(key, at) {
            return Ok(None);
        }
        // An unreadable value stays in place, and reads continue to report the damage. The same
        // holds for a value with a damaged record header.
        let (value, version) = match self.read(key, at) {
            Ok(read) => read,
            Err(error) => {
                // bug gc.unreadable_not_told: never
                if let Err(error) = self.log.get(at) {
                    self.hooks.note_unreadable(key, at, &error);
                }
                if !error.is_damage() {
                    return Err(error);
                }
                self.moved.unreadable.lock().entry(at.file).or_default().add(key.len(), at);
                return Ok(None);
            }
        };
        // The record keeps its first version: a rebuild of a lost index keeps the newest version of
        // a key, and a moved value is not newer than before.
        // bug gc.relocated_version_renewed: let version = self.log.head();
        // bug gc.relocated_expiry_lost: let expires_at_s = 0;
        self.append(key, version, expires_at_s, &value, at.crc).map(Some)
    }

    // Invariant: value files are durable before a run refers to them.
    fn cut(&mut self) -> Result<()> {
        // bug gc.value_file_not_finished: return Ok(());
        self.finish_file()
    }

    fn bytes(&self) -> u64 {
        self.moved.bytes.load(Ordering::Relaxed)
    }
}

/// Limits of a part. Its values are as long as a step, but at least long enough for one read. All
/// bytes that it reads, with the gaps between values, are at most so many times as much, and at
/// most one read.
const VALUES_BYTES_MIN: u64 = 64 << 10;
const OF_VALUES: u64 = 4;
const PART_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Key lengths and locations of the values, in the order in which they are placed.
    moving: Vec<(usize, Locator)>,
    values: Vec<Unchecked>,
    placed: usize,
    /// Indexes of `moving`, by location; the first `read` of them have been read.
    by_place: Vec<usize>,
    read: usize,
    /// Whether the values come into key order.
    is_sort: bool,
}

impl ReadAhead {
    pub(crate) fn new(moving: &[MovingValue<'_>], is_sort: bool) -> Self {
        let moving: Vec<_> = moving.iter().map(|(key, at)| (key.len(), *at)).collect();
        let mut by_place: Vec<usize> = (0..moving.len()).collect();
        by_place.sort_unstable_by_key(|&i| moving.get(i).map(|(_, at)| (at.file, at.offset)));
        let mut values = Vec::new();
        values.resize_with(moving.len(), Unchecked::default);
        Self { moving, values, placed: 0, by_place, read: 0, is_sort }
    }

    /// Reads the next part. Returns its bytes; 0 when all is read.
    pub(crate) fn step(&mut self, log: &Log, step_bytes: u64) -> u64 {
        let values_bytes_max = step_bytes.max(VALUES_BYTES_MIN);
        let bytes_max = values_bytes_max.saturating_mul(OF_VALUES).min(PART_BYTES_MAX);
        let (mut part, mut places) = (Vec::new(), Vec::new());
        let (mut values_bytes, mut bytes) = (0, 0);
        let mut before: Option<Locator> = None;
        for &i in self.by_place.iter().skip(self.read) {
            let Some(next) = self.moving.get(i) else { break };
            let length = u64::from(next.1.length);
            values_bytes += length;
            let gap = before.map_or(0, |before| between(&before, &next.1));
            // A sort does not read longer gaps.
            bytes += length + if self.is_sort { gap.min(length) } else { gap };
            before = Some(next.1);
            part.push(i);
            places.push(*next);
            if values_bytes >= values_bytes_max || bytes >= bytes_max {
                break;
            }
        }
        self.read += part.len();
        // If the joint read fails, the values are read one by one, which reports the failing one.
        let read = match self.is_sort {
            true => log.read_records_to_sort(&places),
            false => log.read_records(&places),
        };
        let read = read.unwrap_or_default();
        for (i, read) in part.into_iter().zip(read) {
            if let Some(value) = self.values.get_mut(i) {
                *value = read;
            }
        }
        bytes
    }

    /// Returns what was read of the value at `at`, the next one that is placed; empty if that is
    /// another.
    pub(crate) fn take(&mut self, at: &Locator) -> Unchecked {
        let (mut rest, mut position) = (self.moving.iter().skip(self.placed), self.placed);
        let Some(found) = rest.position(|(_, place)| place == at) else {
            return Unchecked::default();
        };
        position += found;
        self.placed = position + 1;
        self.values.get_mut(position).map(mem::take).unwrap_or_default()
    }
}

/// Returns the bytes between two values that one read covers; 0 where the next needs its own read.
fn between(before: &Locator, next: &Locator) -> u64 {
    let end = u64::from(before.offset) + u64::from(before.length);
    let between = u64::from(next.offset).saturating_sub(end);
    if before.file == next.file && between <= NEAR_BYTES_MAX { between } else { 0 }
}
