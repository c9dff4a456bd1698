//! Moves of values during a merge: out of victims, or into key order.

use crate::gc::GcHooks;
use crate::read_ahead::ReadAhead;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_index::{Live, MovingValue, ValueMover};
use stele_log::{Log, SortedWriter};
use stele_types::lock::{Mutex, rank};
use stele_types::{Cause, FileId, KeyRange, Locator, Lsn, Result, mutant};

/// Bytes for which the reserve is open anyway while a slice runs: what a file buffers is one of them.
const OPENED_BYTES: u64 = 1 << 20;

/// Selection of the values to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Values in these files.
    Victims(BTreeSet<FileId>),
    /// Values of a key range, except those in files to keep.
    Range {
        /// Key range.
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

    /// Returns the cause under which the bytes are counted.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Victims(_) => Cause::Relocate,
            Self::Range { .. } => Cause::Sort,
        }
    }
}

/// Progress of a mover, readable while the job owns it.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// Finished value files.
    pub files: Mutex<Vec<FileId>, { rank::GC_MOVED_FILES }>,
    /// Bytes written to value files.
    pub bytes: AtomicU64,
    /// Values left in place because they could not be read, by file.
    pub unreadable: Mutex<BTreeMap<FileId, Live>, { rank::GC_MOVED_UNREADABLE }>,
}

/// Writes values in key order to value files of bounded size.
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
    pub fn new(
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
        if value.len() as u64 > OPENED_BYTES && !mutant::active("gc.long_values_get_no_reserve") {
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
        self.read_ahead = ReadAhead::new(moving);
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
                if let Err(error) = self.log.get(at)
                    && !mutant::active("gc.unreadable_not_told")
                {
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
        let version = match version {
            _ if mutant::active("gc.relocated_version_renewed") => self.log.head(),
            version => version,
        };
        let expires_at_s =
            if mutant::active("gc.relocated_expiry_lost") { 0 } else { expires_at_s };
        self.append(key, version, expires_at_s, &value, at.crc).map(Some)
    }

    // Invariant: value files are durable before a run refers to them.
    fn cut(&mut self) -> Result<()> {
        if mutant::active("gc.value_file_not_finished") {
            return Ok(());
        }
        self.finish_file()
    }

    fn bytes(&self) -> u64 {
        self.moved.bytes.load(Ordering::Relaxed)
    }
}
