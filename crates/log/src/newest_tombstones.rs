//! The newest tombstone of each key: all that the rebuild of an index needs.
//!
//! A file holds its tombstones in the order of what they delete, the newest of each first. Several files
//! are merged with one chunk of each in memory.

use crate::dir::Name;
use crate::format::Magic;
use crate::replay::ReplayOp;
use crate::retained_tombstones::{self, RetainedTombstone, TombstoneWriter, take_tombstone};
use crate::segment::chunks::ChunkReader;
use crate::shared::Shared;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use stele_types::{FileId, Lsn, RegionId, Result, mutant};

/// Bytes of tombstones that are sorted in memory; more of them become several files.
const SORTED_BYTES_MAX: usize = 16 << 20;
/// Bytes that a tombstone takes in memory besides its keys, about.
const OVERHEAD_BYTES: usize = 128;

/// What a tombstone deletes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Key(RegionId, Vec<u8>),
    Range(RegionId, Vec<u8>, Vec<u8>),
    Withdrawn(Lsn),
}

/// A tombstone with memory of its own. The order is that of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Owned {
    subject: Subject,
    version: Reverse<Lsn>,
    payload: Lsn,
}

impl Owned {
    fn of(tombstone: &RetainedTombstone<'_>) -> Self {
        let (subject, payload) = match tombstone {
            RetainedTombstone::Withdrawn(at) => (Subject::Withdrawn(*at), *at),
            RetainedTombstone::Op { region, payload, op, .. } => {
                let subject = match op {
                    ReplayOp::DeleteRange { start, end } => {
                        Subject::Range(*region, start.to_vec(), end.to_vec())
                    }
                    ReplayOp::Delete { key } | ReplayOp::Put { key, .. } => {
                        Subject::Key(*region, key.to_vec())
                    }
                };
                (subject, *payload)
            }
        };
        Self { subject, version: Reverse(tombstone.version()), payload }
    }

    fn tombstone(&self) -> RetainedTombstone<'_> {
        let (region, op) = match &self.subject {
            Subject::Withdrawn(at) => return RetainedTombstone::Withdrawn(*at),
            Subject::Key(region, key) => (*region, ReplayOp::Delete { key }),
            Subject::Range(region, start, end) => (*region, ReplayOp::DeleteRange { start, end }),
        };
        RetainedTombstone::Op { region, payload: self.payload, version: self.version.0, op }
    }

    fn memory_bytes(&self) -> usize {
        OVERHEAD_BYTES
            + match &self.subject {
                Subject::Key(_, key) => key.len(),
                Subject::Range(_, start, end) => start.len() + end.len(),
                Subject::Withdrawn(_) => 0,
            }
    }
}

/// Sorts tombstones and writes them to files, each durable when it is complete.
pub(crate) struct Sorter<'a> {
    shared: &'a Shared,
    /// File that will be removed.
    without: Option<FileId>,
    tombstones: BTreeSet<Owned>,
    bytes: usize,
}

impl<'a> Sorter<'a> {
    pub fn new(shared: &'a Shared, without: Option<FileId>) -> Self {
        Self { shared, without, tombstones: BTreeSet::new(), bytes: 0 }
    }

    pub fn add(&mut self, tombstone: &RetainedTombstone<'_>) -> Result<()> {
        if !is_needed(self.shared, self.without, tombstone) {
            return Ok(());
        }
        let owned = Owned::of(tombstone);
        self.bytes += owned.memory_bytes();
        self.tombstones.insert(owned);
        if self.bytes >= SORTED_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<()> {
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let mut tombstones = std::mem::take(&mut self.tombstones).into_iter();
        write_newest(self.shared, self.without, &mut || Ok(tombstones.next()))
    }
}

/// Reader of one file in its order.
struct Cursor {
    reader: ChunkReader,
    /// Place of the next chunk.
    at: Option<u64>,
    chunk: Vec<u8>,
    read: usize,
    next: Option<Owned>,
}

impl Cursor {
    fn open(shared: &Shared, file: FileId) -> Result<Self> {
        let reader = ChunkReader::open(&shared.dir, Name::Tombstones(file), Magic::Tombstones)?;
        let at = reader.first_chunk();
        let mut cursor = Self { reader, at, chunk: Vec::new(), read: 0, next: None };
        cursor.advance()?;
        Ok(cursor)
    }

    /// Takes the next tombstone and reads the one after it.
    fn take(&mut self) -> Result<Option<Owned>> {
        let taken = self.next.take();
        self.advance()?;
        Ok(taken)
    }

    fn advance(&mut self) -> Result<()> {
        while self.read >= self.chunk.len() {
            let Some(at) = self.at else { return Ok(()) };
            self.at = self.reader.read_chunk(at, &mut self.chunk)?;
            self.read = 0;
        }
        let mut rest = self.chunk.get(self.read..).unwrap_or_default();
        let tombstone = take_tombstone(&mut rest);
        let malformed = || self.reader.corrupt(self.at.unwrap_or_default(), "malformed tombstone");
        self.next = Some(Owned::of(&tombstone.ok_or_else(malformed)?));
        self.read = self.chunk.len() - rest.len();
        Ok(())
    }
}

/// Merges sorted files into one, then removes them.
pub(crate) fn merge(shared: &Shared, files: &[FileId]) -> Result<()> {
    let cursors = files.iter().map(|file| Cursor::open(shared, *file));
    let mut cursors: Vec<Cursor> = cursors.collect::<Result<_>>()?;
    write_newest(shared, None, &mut || {
        let with_next = cursors.iter_mut().filter(|cursor| cursor.next.is_some());
        match with_next.min_by(|a, b| a.next.cmp(&b.next)) {
            Some(cursor) => cursor.take(),
            None => Ok(None),
        }
    })
}

/// Writes the tombstones of a file that an earlier version wrote in another order to new files.
pub(crate) fn sort(shared: &Shared, file: FileId) -> Result<()> {
    let mut sorter = Sorter::new(shared, None);
    retained_tombstones::each(&shared.dir, file, &mut |tombstone| sorter.add(&tombstone))?;
    sorter.finish()
}

/// Writes a file of tombstones that come in order.
///
/// Invariant: of the deletes of one key in one region the newest is retained. It hides all that the others
/// hide: a log without replicas never withdraws an entry.
fn write_newest(
    shared: &Shared,
    without: Option<FileId>,
    next: &mut dyn FnMut() -> Result<Option<Owned>>,
) -> Result<()> {
    let id = shared.allocate_file();
    let mut writer = TombstoneWriter::new(&shared.dir, id);
    let mut last: Option<Subject> = None;
    let mut write = || -> Result<()> {
        while let Some(owned) = next()? {
            let is_older = last.as_ref() == Some(&owned.subject);
            if is_older && !mutant::active("log.every_tombstone_retained") {
                continue;
            }
            if is_needed(shared, without, &owned.tombstone()) {
                writer.push(&owned.tombstone())?;
            }
            last = Some(owned.subject);
        }
        Ok(())
    };
    if let Err(error) = write() {
        // The next open removes what cannot be removed now. The caller learns of the first failure.
        let _ = writer.abandon();
        return Err(error);
    }
    if let Some(meta) = writer.finish()? {
        shared.dir.sync()?;
        shared.catalog.write().insert(id, meta);
    }
    Ok(())
}

/// Whether a value file holds something older that a tombstone could hide.
fn is_needed(shared: &Shared, without: Option<FileId>, tombstone: &RetainedTombstone<'_>) -> bool {
    let catalog = shared.catalog.read();
    match tombstone {
        RetainedTombstone::Op { version, .. } => {
            catalog.oldest_value(without).is_some_and(|oldest| oldest < *version)
        }
        RetainedTombstone::Withdrawn(at) => {
            without != Some(at.file) && catalog.get(at.file).is_some()
        }
    }
}
