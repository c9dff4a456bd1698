//! Sorted value files: values in key order, written by garbage collection and snapshots. Reads of
//! records are here; single values are read by their locators alone.
//!
//! ```text
//! file   := header record* footer
//! record := value_bytes:u32 value_crc:u32 version:u64 expires_at_s:u64 key_bytes:u16 crc:u32
//!           key key_bytes:u16 value
//! crc    := CRC-32C over store:u64 file:u32 offset:u32, the fields before it, and key
//! ```
//! The key's length stands on both sides of the key, so a record can also be found from its value.
//! The version is that of the operation that first wrote the value: moving a value never makes it
//! newer.

mod write;

pub(crate) use write::publish;
pub use write::{SealedFile, SortedWriter};

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::dir::{Dir, Name};
use crate::format::header::FILE_HEADER_BYTES;
use crate::format::{FileHeader, Footer, Magic, take};
use crate::recover::unread_meta;
use crate::segment::chunks::read_ends;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::checksum::Crc32c;
use stele_types::size::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{Error, FileId, Locator, Lsn, Result, StoreId};
use stele_vfs::{DirEntry, VfsFile};

/// Bytes of the fixed part before the key.
pub(crate) const RECORD_HEADER_BYTES: usize = 30;
/// Bytes of the repeated key length.
pub(crate) const RECORD_KEY_TAIL_BYTES: usize = 2;

pub(crate) fn bytes_before_value(key_bytes: usize) -> u32 {
    (RECORD_HEADER_BYTES + key_bytes + RECORD_KEY_TAIL_BYTES) as u32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordFields {
    pub value_bytes: u32,
    pub value_crc: u32,
    pub version: Lsn,
    pub expires_at_s: u64,
    pub key_bytes: u16,
    pub crc: u32,
}

impl RecordFields {
    fn encode(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[0..4].copy_from_slice(&self.value_bytes.to_le_bytes());
        out[4..8].copy_from_slice(&self.value_crc.to_le_bytes());
        out[8..16].copy_from_slice(&self.version.as_u64().to_le_bytes());
        out[16..24].copy_from_slice(&self.expires_at_s.to_le_bytes());
        out[24..26].copy_from_slice(&self.key_bytes.to_le_bytes());
        out[26..30].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        Some(Self {
            value_bytes: take::u32_le(rest)?,
            value_crc: take::u32_le(rest)?,
            version: Lsn::from_u64(take::u64_le(rest)?),
            expires_at_s: take::u64_le(rest)?,
            key_bytes: u16::from(take::u8(rest)?) | u16::from(take::u8(rest)?) << 8,
            crc: take::u32_le(rest)?,
        })
    }

    fn checksum(&self, store: StoreId, at: Lsn, key: &[u8]) -> u32 {
        let encoded = self.encode();
        let mut crc = Crc32c::new();
        crc.update(&store.0.to_le_bytes()).update(&at.file.0.to_le_bytes());
        crc.update(&at.offset.to_le_bytes()).update(&encoded[..26]).update(key).finish()
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SortedTotals {
    pub records: u64,
    pub payload_bytes: u64,
    pub min_version: Lsn,
    pub max_version: Lsn,
}

impl SortedTotals {
    fn new() -> Self {
        let min_version = Lsn::new(FileId(u32::MAX), u32::MAX);
        Self { records: 0, payload_bytes: 0, min_version, max_version: Lsn::default() }
    }

    fn fields(&self) -> [u64; 6] {
        let (min, max) = (self.min_version.as_u64(), self.max_version.as_u64());
        [self.records, self.payload_bytes, min, max, 0, 0]
    }

    pub(crate) fn of(fields: [u64; 6]) -> Self {
        let [records, payload_bytes, min, max, ..] = fields;
        let (min_version, max_version) = (Lsn::from_u64(min), Lsn::from_u64(max));
        Self { records, payload_bytes, min_version, max_version }
    }
}

const WINDOW_BYTES: usize = 1 << 20;

/// Reads a file's metadata from its footer; with a damaged footer, from the directory alone.
pub(crate) fn meta(dir: &Dir, id: FileId, entry: &DirEntry) -> Result<FileMeta> {
    let bytes = entry.allocated_bytes.max(entry.bytes);
    let mut meta = unread_meta(FileKind::Sorted, bytes, Lsn::default());
    match SortedReader::open(dir, id) {
        Ok(reader) => {
            let totals = reader.totals();
            meta.payload_bytes = totals.payload_bytes;
            (meta.min_lsn, meta.max_lsn) = (totals.min_version, totals.max_version);
            Ok(meta)
        }
        // Values are checked when they are read; one bad block must not hide the others.
        Err(error) if error.is_damage() => Ok(meta),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SortedRecord<'a> {
    pub at: u64,
    pub fields: RecordFields,
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub locator: Locator,
}

#[derive(Debug)]
pub(crate) struct SortedReader {
    file: Arc<dyn VfsFile>,
    store: StoreId,
    footer: Footer,
    file_bytes: u64,
    window: Vec<u8>,
    window_at: u64,
    at: u64,
}

impl SortedReader {
    pub(crate) fn open(dir: &Dir, id: FileId) -> Result<Self> {
        let file = dir.open_read(Name::Sorted(id))?;
        let header = FileHeader { magic: Magic::Sorted, store: dir.store, file: id };
        let (footer, file_bytes) = read_ends(file.as_ref(), &header)?;
        let (window, at) = (Vec::new(), FILE_HEADER_BYTES as u64);
        Ok(Self { file, store: dir.store, footer, file_bytes, window, window_at: 0, at })
    }

    pub(crate) fn totals(&self) -> SortedTotals {
        SortedTotals::of(self.footer.fields)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.file.path()
    }

    /// Returns the next record with its header checked; the caller must check the value.
    pub(crate) fn next_record(&mut self) -> Result<Option<SortedRecord<'_>>> {
        let at = self.at;
        if at >= self.footer.data_end {
            return Ok(None);
        }
        let bad = |this: &Self| this.corrupt(at, "record header does not match its checksum");
        let header = self.range(at, RECORD_HEADER_BYTES)?;
        let fields = RecordFields::decode(header).ok_or_else(|| bad(self))?;
        let key_bytes = usize::from(fields.key_bytes);
        let value_bytes = fields.value_bytes as usize;
        if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            return Err(bad(self));
        }
        let whole = RECORD_HEADER_BYTES + key_bytes + RECORD_KEY_TAIL_BYTES + value_bytes;
        let id = self.footer.file;
        let store = self.store;
        self.range(at, whole)?;
        self.at = at + whole as u64;
        let begin = (at - self.window_at) as usize;
        let record = self.window.get(begin..begin + whole).unwrap_or_default();
        let rest = record.get(RECORD_HEADER_BYTES..).unwrap_or_default();
        let (key, rest) = rest.split_at_checked(key_bytes).unwrap_or_default();
        let value = rest.get(RECORD_KEY_TAIL_BYTES..).unwrap_or_default();
        if fields.checksum(store, Lsn::new(id, at as u32), key) != fields.crc {
            return Err(bad(self));
        }
        let offset = (at + (whole - value_bytes) as u64) as u32;
        let (length, crc) = (fields.value_bytes, fields.value_crc);
        let locator = Locator { file: id, offset, length, crc };
        Ok(Some(SortedRecord { at, fields, key, value, locator }))
    }

    fn range(&mut self, at: u64, bytes: usize) -> Result<&[u8]> {
        let end = at + bytes as u64;
        if end > self.footer.data_end {
            return Err(self.corrupt(at, "record is longer than the file"));
        }
        if at < self.window_at || end > self.window_at + self.window.len() as u64 {
            let left = (self.footer.data_end - at) as usize;
            self.window.resize(bytes.max(WINDOW_BYTES).min(left), 0);
            self.window.shrink_to(2 * WINDOW_BYTES);
            self.file.read_exact_at(&mut self.window, at)?;
            self.window_at = at;
        }
        let begin = (at - self.window_at) as usize;
        Ok(self.window.get(begin..begin + bytes).unwrap_or_default())
    }

    fn corrupt(&self, at: u64, detail: &str) -> Error {
        Error::corrupt(self.file.path(), at, detail)
    }
}

/// Decodes the fields of the record at `place` from `header`, all its bytes before the value.
/// Returns `None` if they differ from what was written or belong to another key.
pub(crate) fn header_of(
    header: &[u8],
    store: StoreId,
    place: Lsn,
    key: &[u8],
) -> Option<RecordFields> {
    let (fields, rest) = header.split_at_checked(RECORD_HEADER_BYTES)?;
    let fields = RecordFields::decode(fields)?;
    let is_whole = fields.checksum(store, place, key) == fields.crc;
    (is_whole && rest.starts_with(key)).then_some(fields)
}

pub(crate) fn header_before(
    file: &dyn VfsFile,
    store: StoreId,
    at: &Locator,
) -> Result<(RecordFields, Bytes)> {
    let bad = || {
        Error::corrupt(file.path(), u64::from(at.offset), "no record has a value at this position")
    };
    let longest = RECORD_HEADER_BYTES + KEY_BYTES_MAX + RECORD_KEY_TAIL_BYTES;
    let longest = longest.min(at.offset as usize);
    for window in [longest.min(512), longest] {
        let mut bytes = vec![0; window];
        file.read_exact_at(&mut bytes, u64::from(at.offset) - window as u64)?;
        let (front, key_bytes) = bytes.split_last_chunk::<2>().ok_or_else(bad)?;
        let key_bytes = usize::from(u16::from_le_bytes(*key_bytes));
        let Some(head_at) = front.len().checked_sub(key_bytes + RECORD_HEADER_BYTES) else {
            continue;
        };
        let (header, key) = front
            .get(head_at..)
            .and_then(|r| r.split_at_checked(RECORD_HEADER_BYTES))
            .ok_or_else(bad)?;
        let fields = RecordFields::decode(header).ok_or_else(bad)?;
        let begin = u64::from(at.offset) - (window - head_at) as u64;
        let place = Lsn::new(at.file, begin as u32);
        if fields.checksum(store, place, key) != fields.crc || fields.value_crc != at.crc {
            return Err(bad());
        }
        return Ok((fields, Bytes::copy_from_slice(key)));
    }
    Err(bad())
}
