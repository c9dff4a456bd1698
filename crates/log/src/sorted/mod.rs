//! Sorted value files: values in key order, written by garbage collection and snapshots.
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

mod read;
mod write;

pub(crate) use read::{SortedReader, header_before, header_of, meta};
pub(crate) use write::publish;
pub use write::{SealedFile, SortedWriter};

use crate::format::take;
use stele_types::checksum::Crc32c;
use stele_types::{FileId, Lsn, StoreId};

/// Bytes of the fixed part before the key.
pub(crate) const RECORD_HEADER_BYTES: usize = 30;
/// Bytes of the repeated key length.
pub(crate) const RECORD_KEY_TAIL_BYTES: usize = 2;

pub(crate) fn bytes_before_value(key_bytes: usize) -> u32 {
    (RECORD_HEADER_BYTES + key_bytes + RECORD_KEY_TAIL_BYTES) as u32
}

/// A record's fields except its key and value.
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

/// Fields of a sorted file's footer.
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
