//! A sealed segment's sidecar: everything except the values, so that recovery reads a few percent
//! of the bytes. It is optional: without it the segment is scanned.

use super::chunks::{ChunkReader, ChunkWriter};
use super::scan::End;
use crate::RECORD_OVERHEAD_BYTES;
use crate::dir::{Dir, Name};
use crate::format::item::{Previous, put_digest};
use crate::format::ops::OpKind;
use crate::format::{Content, EntryItem, Footer, Item, Magic, ops};
use stele_types::{FileId, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub records: u64,
    /// See [`crate::ValueFileInfo::payload_bytes`].
    pub payload_bytes: u64,
    /// Deletes, range deletes and withdrawn entries, which a rebuild needs from a removed segment.
    pub tombstones: u64,
}

impl Totals {
    pub(crate) fn count(&mut self, item: &Item<'_>, inline_max: usize) {
        self.records += 1;
        match item {
            Item::Entry(EntryItem { content: Content::Lost, bytes, .. }) => {
                self.payload_bytes += record_bytes(0, *bytes);
            }
            Item::Entry(entry) if entry.is_command => {
                let (mut bytes, mut tombstones) = (0, 0);
                let whole = ops::each(entry.content, inline_max, |op| match op.what {
                    OpKind::Put { key, value_bytes, inline: None, .. } => {
                        bytes += record_bytes(key.len(), value_bytes);
                    }
                    OpKind::Put { .. } => {}
                    OpKind::Delete(_) | OpKind::DeleteRange(..) => tombstones += 1,
                });
                if whole {
                    self.payload_bytes += bytes;
                    self.tombstones += tombstones;
                }
            }
            Item::Withdrawn(_) => self.tombstones += 1,
            _ => {}
        }
    }
}

/// Returns the bytes that a record counts for in statistics of live bytes.
pub(crate) fn record_bytes(key_bytes: usize, value_bytes: u32) -> u64 {
    key_bytes as u64 + u64::from(value_bytes) + RECORD_OVERHEAD_BYTES
}

/// Collects a segment's items while it is written or scanned.
///
/// Invariant: a sidecar makes nothing fail. After a failure of its file, the segment has none.
#[derive(Debug)]
pub(crate) struct SidecarWriter {
    /// `None` after a failure.
    pub chunks: Option<ChunkWriter>,
    previous: Previous,
    scratch: Vec<u8>,
    inline_max: usize,
    has_lost_entry: bool,
    pub totals: Totals,
}

impl SidecarWriter {
    pub(crate) fn new(dir: &Dir, segment: FileId, inline_max: usize) -> Self {
        let chunks = Some(ChunkWriter::new(dir, Name::Sidecar(segment), Magic::Sidecar));
        let previous = Previous::default();
        let totals = Totals::default();
        Self { chunks, previous, scratch: Vec::new(), inline_max, has_lost_entry: false, totals }
    }

    pub(crate) fn push(&mut self, item: &Item<'_>) {
        self.totals.count(item, self.inline_max);
        self.has_lost_entry |=
            matches!(item, Item::Entry(EntryItem { content: Content::Lost, .. }));
        let Some(chunks) = &mut self.chunks else { return };
        let (out, scratch) = (chunks.chunk(), &mut self.scratch);
        put_digest(out, scratch, &mut self.previous, item, self.inline_max);
        match chunks.flush_full() {
            Ok(false) => {}
            Ok(true) => self.previous = Previous::default(),
            Err(_) => self.drop_file(),
        }
    }

    /// Completes the sidecar, which is durable under its name after the next sync of the directory.
    /// A segment with an unreadable entry gets no sidecar: the entry would look like one without
    /// operations.
    pub(crate) fn finish(mut self, end: End) {
        // bug log.lost_for_empty: never
        if self.has_lost_entry {
            return self.drop_file();
        }
        let Totals { records, payload_bytes, tombstones } = self.totals;
        let fields =
            [u64::from(end.at), u64::from(end.chain), records, payload_bytes, tombstones, 0];
        if let Some(chunks) = self.chunks.take() {
            // After a failure the file has no name that counts.
            let _ = chunks.finish(fields);
        }
    }

    fn drop_file(&mut self) {
        if let Some(chunks) = self.chunks.take() {
            // What remains is removed by the next open.
            let _ = chunks.abandon();
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.as_ref().map_or(0, ChunkWriter::memory_bytes);
        chunks + self.scratch.capacity()
    }
}

pub(crate) fn summary(footer: &Footer) -> (End, Totals) {
    let [end, chain, records, payload_bytes, tombstones, _] = footer.fields;
    let end = End { at: end as u32, chain: chain as u32 };
    (end, Totals { records, payload_bytes, tombstones })
}

pub(crate) fn open(dir: &Dir, segment: FileId) -> Result<ChunkReader> {
    ChunkReader::open(dir, Name::Sidecar(segment), Magic::Sidecar)
}
