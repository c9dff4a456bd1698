//! Retained tombstones: deletes that outlive their segment, so that a rebuild of a lost index does
//! not restore older values in other files.
//!
//! ```text
//! chunks of tombstone*, in the order of what they delete if the footer says so
//! tombstone := kind:u8 file offset [place region key_bytes key [end_bytes end]]
//! kind      := 0 delete, 1 delete range, 2 withdrawn entry
//! ```
//! File and offset are those of the entry's payload; place is as in a sidecar's digest.
//!
//! The rebuild of an index needs only the newest tombstone of each key. A file holds its tombstones
//! in the order of what they delete, the newest of each first. Several files are merged with one
//! chunk of each in memory.

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::dir::{Dir, Name};
use crate::format::{Item, Magic, ops, take};
use crate::recover::unread_meta;
use crate::segment::chunks::{ChunkReader, ChunkWriter};
use crate::shared::Shared;
use crate::versions::ReplayOp;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use stele_types::{FileId, Lsn, RegionId, Result, varint};
use stele_vfs::DirEntry;

const DELETE: u8 = 0;
const DELETE_RANGE: u8 = 1;
const WITHDRAWN: u8 = 2;
/// Third field of the footer of a file in order; 0 in files of earlier versions.
const IN_ORDER: u64 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RetainedTombstone<'a> {
    Op { region: RegionId, payload: Lsn, version: Lsn, op: ReplayOp<'a> },
    Withdrawn(Lsn),
}

impl RetainedTombstone<'_> {
    /// Returns the tombstone's version. It is needed while an older value exists.
    pub(crate) fn version(&self) -> Lsn {
        match self {
            Self::Op { version, .. } => *version,
            Self::Withdrawn(at) => *at,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let payload = match self {
            Self::Op { payload, op: ReplayOp::DeleteRange { .. }, .. } => {
                out.push(DELETE_RANGE);
                payload
            }
            Self::Op { payload, .. } => {
                out.push(DELETE);
                payload
            }
            Self::Withdrawn(payload) => {
                out.push(WITHDRAWN);
                payload
            }
        };
        varint::put(out, u64::from(payload.file.0));
        varint::put(out, u64::from(payload.offset));
        if let Self::Op { region, payload, version, op } = self {
            varint::put(out, u64::from(version.offset.wrapping_sub(payload.offset)));
            varint::put(out, region.0);
            match op {
                ReplayOp::Delete { key } | ReplayOp::Put { key, .. } => varint::put_bytes(out, key),
                ReplayOp::DeleteRange { start, end } => {
                    varint::put_bytes(out, start);
                    varint::put_bytes(out, end);
                }
            }
        }
    }
}

pub(crate) fn take_tombstone<'a>(rest: &mut &'a [u8]) -> Option<RetainedTombstone<'a>> {
    let kind = take::u8(rest)?;
    let file = FileId(u32::try_from(varint::take(rest)?).ok()?);
    let payload = Lsn::new(file, u32::try_from(varint::take(rest)?).ok()?);
    if kind == WITHDRAWN {
        return Some(RetainedTombstone::Withdrawn(payload));
    }
    let place = u32::try_from(varint::take(rest)?).ok()?;
    let region = RegionId(varint::take(rest)?);
    let key = varint::take_bytes(rest)?;
    let op = match kind {
        DELETE => ReplayOp::Delete { key },
        DELETE_RANGE => ReplayOp::DeleteRange { start: key, end: varint::take_bytes(rest)? },
        _ => return None,
    };
    let version = Lsn::new(file, payload.offset.checked_add(place)?);
    Some(RetainedTombstone::Op { region, payload, version, op })
}

pub(crate) fn of_item(
    item: &Item<'_>,
    f: &mut dyn FnMut(RetainedTombstone<'_>) -> Result<()>,
) -> Result<()> {
    match item {
        Item::Entry(entry) if entry.is_command => {
            let ops = ops::versioned(entry.content, entry.at, 0).unwrap_or_default();
            for (version, op) in ops {
                if !matches!(op, ReplayOp::Put { .. }) {
                    let (region, payload) = (entry.region, entry.at);
                    f(RetainedTombstone::Op { region, payload, version, op })?;
                }
            }
            Ok(())
        }
        Item::Withdrawn(at) => f(RetainedTombstone::Withdrawn(*at)),
        _ => Ok(()),
    }
}

#[derive(Debug)]
pub(crate) struct TombstoneWriter {
    chunks: ChunkWriter,
    count: u64,
    newest: Lsn,
}

impl TombstoneWriter {
    pub(crate) fn new(dir: &Dir, id: FileId) -> Self {
        let chunks = ChunkWriter::new(dir, Name::Tombstones(id), Magic::Tombstones);
        Self { chunks, count: 0, newest: Lsn::default() }
    }

    pub(crate) fn push(&mut self, tombstone: &RetainedTombstone<'_>) -> Result<()> {
        tombstone.encode(self.chunks.chunk());
        self.count += 1;
        self.newest = self.newest.max(tombstone.version());
        self.chunks.flush_full().map(|_| ())
    }

    pub(crate) fn abandon(self) -> Result<()> {
        self.chunks.abandon()
    }

    /// Completes the file, which is durable after the next sync of the directory. Returns `None`
    /// when there was nothing to keep.
    pub(crate) fn finish(self) -> Result<Option<FileMeta>> {
        if self.count == 0 {
            self.chunks.abandon()?;
            return Ok(None);
        }
        let newest = self.newest;
        let bytes = self.chunks.finish([self.count, newest.as_u64(), IN_ORDER, 0, 0, 0])?;
        Ok(Some(tombstones_meta(bytes, newest)))
    }
}

/// Whether a file holds its tombstones in the order of what they delete.
pub(crate) fn is_in_order(dir: &Dir, id: FileId) -> Result<bool> {
    let reader = ChunkReader::open(dir, Name::Tombstones(id), Magic::Tombstones)?;
    let [_, _, order, ..] = reader.footer.fields;
    Ok(order == IN_ORDER)
}

pub(crate) fn each(
    dir: &Dir,
    id: FileId,
    f: &mut dyn FnMut(RetainedTombstone<'_>) -> Result<()>,
) -> Result<()> {
    let reader = ChunkReader::open(dir, Name::Tombstones(id), Magic::Tombstones)?;
    reader.each(&mut |at, chunk| {
        let mut rest = chunk;
        while !rest.is_empty() {
            let tombstone = take_tombstone(&mut rest);
            f(tombstone.ok_or_else(|| reader.corrupt(at, "malformed tombstone"))?)?;
        }
        Ok(())
    })
}

/// Reads a file's metadata from its footer. With a damaged footer the file is kept permanently.
pub(crate) fn meta(dir: &Dir, id: FileId, entry: &DirEntry) -> Result<FileMeta> {
    match ChunkReader::open(dir, Name::Tombstones(id), Magic::Tombstones) {
        Ok(reader) => {
            let [_, newest, ..] = reader.footer.fields;
            Ok(tombstones_meta(entry.bytes, Lsn::from_u64(newest)))
        }
        Err(error) if error.is_damage() => {
            Ok(tombstones_meta(entry.bytes, Lsn::new(FileId(u32::MAX), u32::MAX)))
        }
        Err(error) => Err(error),
    }
}

fn tombstones_meta(bytes: u64, newest: Lsn) -> FileMeta {
    let mut meta = unread_meta(FileKind::Tombstones, bytes, Lsn::default());
    (meta.payload_bytes, meta.max_lsn) = (0, newest);
    meta
}

/// Bytes of tombstones that are sorted in memory; more of them become several files.
const SORTED_BYTES_MAX: usize = 16 << 20;
/// Bytes that a tombstone takes in memory besides its keys, about.
const OVERHEAD_BYTES: usize = 128;

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

pub(crate) struct Sorter<'a> {
    shared: &'a Shared,
    without: Option<FileId>,
    tombstones: BTreeSet<Owned>,
    bytes: usize,
}

impl<'a> Sorter<'a> {
    pub(crate) fn new(shared: &'a Shared, without: Option<FileId>) -> Self {
        Self { shared, without, tombstones: BTreeSet::new(), bytes: 0 }
    }

    pub(crate) fn add(&mut self, tombstone: &RetainedTombstone<'_>) -> Result<()> {
        if !is_needed(self.shared, self.without, tombstone) {
            return Ok(());
        }
        let owned = Owned::of(tombstone);
        self.bytes += owned.memory_bytes();
        self.tombstones.insert(owned);
        if self.bytes >= SORTED_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let mut tombstones = std::mem::take(&mut self.tombstones).into_iter();
        write_newest(self.shared, self.without, &mut || Ok(tombstones.next()))
    }
}

struct Cursor {
    reader: ChunkReader,
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
    each(&shared.dir, file, &mut |tombstone| sorter.add(&tombstone))?;
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
            // bug log.every_tombstone_retained: never
            if is_older {
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
