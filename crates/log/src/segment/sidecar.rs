//! A sealed segment's sidecar: everything of it but the values, so that recovery reads a few percent
//! of the bytes. It is only a shortcut: without it the segment is scanned.

use super::chunks::{ChunkReader, ChunkWriter};
use super::scan::End;
use crate::RECORD_OVERHEAD_BYTES;
use crate::dir::{Dir, Name};
use crate::format::item::{Previous, put_digest};
use crate::format::ops::What;
use crate::format::{Content, EntryItem, Footer, Item, Magic, ops};
use stele_types::{FileId, Result, mutant};

/// What a segment holds, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub records: u64,
    /// See [`crate::ValueFileInfo::payload_bytes`].
    pub payload_bytes: u64,
    /// Deletes, delete-ranges and withdrawals: what a rebuild needs of a removed segment.
    pub graves: u64,
}

impl Totals {
    pub fn count(&mut self, item: &Item<'_>, inline_max: usize) {
        self.records += 1;
        match item {
            Item::Entry(EntryItem { content: Content::Lost, bytes, .. }) => {
                self.payload_bytes += record_bytes(0, *bytes);
            }
            Item::Entry(entry) if entry.is_command => {
                let (mut bytes, mut graves) = (0, 0);
                let whole = ops::each(entry.content, inline_max, |op| match op.what {
                    What::Put { key, value_bytes, inline: None, .. } => {
                        bytes += record_bytes(key.len(), value_bytes);
                    }
                    What::Put { .. } => {}
                    What::Delete(_) | What::DeleteRange(..) => graves += 1,
                });
                if whole {
                    self.payload_bytes += bytes;
                    self.graves += graves;
                }
            }
            Item::Withdrawn(_) => self.graves += 1,
            _ => {}
        }
    }
}

/// What a record counts for in figures of live bytes.
pub(crate) fn record_bytes(key_bytes: usize, value_bytes: u32) -> u64 {
    key_bytes as u64 + u64::from(value_bytes) + RECORD_OVERHEAD_BYTES
}

/// Collects a segment's items while it is written or scanned.
#[derive(Debug)]
pub(crate) struct SidecarWriter {
    chunks: ChunkWriter,
    previous: Previous,
    scratch: Vec<u8>,
    inline_max: usize,
    /// Whether an entry can't be read.
    lacks: bool,
    pub totals: Totals,
}

impl SidecarWriter {
    pub fn new(dir: &Dir, segment: FileId, inline_max: usize) -> Self {
        let chunks = ChunkWriter::new(dir, Name::Sidecar(segment), Magic::Sidecar);
        let previous = Previous::default();
        let totals = Totals::default();
        Self { chunks, previous, scratch: Vec::new(), inline_max, lacks: false, totals }
    }

    pub fn push(&mut self, item: &Item<'_>) -> Result<()> {
        self.totals.count(item, self.inline_max);
        self.lacks |= matches!(item, Item::Entry(EntryItem { content: Content::Lost, .. }));
        let (out, scratch) = (self.chunks.chunk(), &mut self.scratch);
        put_digest(out, scratch, &mut self.previous, item, self.inline_max);
        if self.chunks.flush_full()? {
            self.previous = Previous::default();
        }
        Ok(())
    }

    /// Durable under its name after the next sync of the directory. A segment with an entry that can't
    /// be read gets no sidecar: there the entry would pass for one without operations.
    pub fn finish(self, end: End) -> Result<()> {
        if self.lacks && !mutant::active("log.lost_for_empty") {
            return self.chunks.abandon();
        }
        let Totals { records, payload_bytes, graves } = self.totals;
        let fields = [u64::from(end.at), u64::from(end.chain), records, payload_bytes, graves, 0];
        self.chunks.finish(fields).map(|_| ())
    }

    pub fn memory_bytes(&self) -> usize {
        self.chunks.memory_bytes() + self.scratch.capacity()
    }
}

/// What a sidecar's foot says.
pub(crate) fn summary(footer: &Footer) -> (End, Totals) {
    let [end, chain, records, payload_bytes, graves, _] = footer.fields;
    let end = End { at: end as u32, chain: chain as u32 };
    (end, Totals { records, payload_bytes, graves })
}

pub(crate) fn open(dir: &Dir, segment: FileId) -> Result<ChunkReader> {
    ChunkReader::open(dir, Name::Sidecar(segment), Magic::Sidecar)
}
