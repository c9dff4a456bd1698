//! Retained tombstones: deletes that outlive their segment, so that a rebuild of a lost index does
//! not restore older values in other files.
//!
//! ```text
//! chunks of tombstone*, in the order of what they delete if the footer says so
//! tombstone := kind:u8 file offset [place region key_bytes key [end_bytes end]]
//! kind      := 0 delete, 1 delete range, 2 withdrawn entry
//! ```
//! File and offset are those of the entry's payload; place is as in a sidecar's digest.

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::dir::{Dir, Name};
use crate::format::{Item, Magic, ops, take};
use crate::recover::unread_meta;
use crate::replay::ReplayOp;
use crate::segment::chunks::{ChunkReader, ChunkWriter};
use stele_types::{FileId, Lsn, RegionId, Result, varint};
use stele_vfs::DirEntry;

const DELETE: u8 = 0;
const DELETE_RANGE: u8 = 1;
const WITHDRAWN: u8 = 2;
/// Third field of the footer of a file in order; 0 in files of earlier versions.
const IN_ORDER: u64 = 1;

/// One tombstone, borrowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RetainedTombstone<'a> {
    /// A delete or range delete of an entry.
    Op {
        region: RegionId,
        payload: Lsn,
        version: Lsn,
        op: ReplayOp<'a>,
    },
    Withdrawn(Lsn),
}

impl RetainedTombstone<'_> {
    /// Returns the tombstone's version. It is needed while an older value exists.
    pub fn version(&self) -> Lsn {
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

/// Passes the tombstones in one item of a segment to `f`.
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
    pub fn new(dir: &Dir, id: FileId) -> Self {
        let chunks = ChunkWriter::new(dir, Name::Tombstones(id), Magic::Tombstones);
        Self { chunks, count: 0, newest: Lsn::default() }
    }

    pub fn push(&mut self, tombstone: &RetainedTombstone<'_>) -> Result<()> {
        tombstone.encode(self.chunks.chunk());
        self.count += 1;
        self.newest = self.newest.max(tombstone.version());
        self.chunks.flush_full().map(|_| ())
    }

    /// Removes the unfinished file.
    pub fn abandon(self) -> Result<()> {
        self.chunks.abandon()
    }

    /// Completes the file, which is durable after the next sync of the directory. Returns `None`
    /// when there was nothing to keep.
    pub fn finish(self) -> Result<Option<FileMeta>> {
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

/// Passes all tombstones of a file to `f`.
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
