//! Encoding of pairs in RocksDB.
//!
//! ```text
//! "a" region:u64 -> incarnation:u64 applied:u64 start:u64 start_term:u64   applied index of a region
//! "k" key        -> 0:u8 expires_at_s:u64 value
//!                 | 1:u8 expires_at_s:u64 offset:u64 length:u64 crc:u64    a value in the value log
//! ```

use super::db::Db;
use super::numbers::{Numbers, encode};
use super::value_log::{Pending, Pointer, ValueLog};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use stele_storage::Pair;
use stele_types::{Error, KeyRange, LogIndex, RegionId, Result, Term};

const APPLIED: u8 = b'a';
const DATA: u8 = b'k';
/// First key after all pairs.
const DATA_END: [u8; 1] = [DATA + 1];

const INLINE: u8 = 0;
const POINTER: u8 = 1;

pub(super) fn data_key(key: &[u8]) -> Vec<u8> {
    [&[DATA][..], key].concat()
}

pub(super) fn data_range(range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
    let end = if range.end.is_empty() { DATA_END.to_vec() } else { data_key(&range.end) };
    (data_key(&range.start), end)
}

pub(super) fn user_key(stored: &[u8]) -> Option<Bytes> {
    stored.strip_prefix(&[DATA]).map(Bytes::copy_from_slice)
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Applied {
    pub incarnation: u64,
    pub index: LogIndex,
    /// Entry after which that incarnation starts.
    pub start: (LogIndex, Term),
}

impl Applied {
    pub(super) const FIRST_KEY: [u8; 1] = [APPLIED];
    /// First key after all applied indexes.
    pub(super) const END_KEY: [u8; 1] = [APPLIED + 1];

    pub(super) fn key(region: RegionId) -> Vec<u8> {
        [&[APPLIED][..], &region.0.to_be_bytes()].concat()
    }

    /// Returns the region of such a key; `None` for others.
    pub(super) fn region(key: &[u8]) -> Option<RegionId> {
        let number = key.strip_prefix(&[APPLIED])?;
        Some(RegionId(u64::from_be_bytes(number.try_into().ok()?)))
    }

    pub(super) fn all(db: &Db, path: &Path) -> Result<BTreeMap<RegionId, Self>> {
        let mut all = BTreeMap::new();
        let mut cursor = db.cursor();
        cursor.seek(&Self::FIRST_KEY);
        while let Some((key, value)) = cursor.pair()? {
            let Some(region) = Self::region(key) else { break };
            all.insert(region, Self::decode(value, path)?);
            cursor.step(true);
        }
        Ok(all)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode(&[self.incarnation, self.index.0, self.start.0.0, self.start.1.0])
    }

    pub(super) fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let mut numbers = Numbers::new(bytes, path);
        let (incarnation, index) = (numbers.u64()?, LogIndex(numbers.u64()?));
        Ok(Self { incarnation, index, start: (LogIndex(numbers.u64()?), Term(numbers.u64()?)) })
    }
}

/// Returns the header before a value's bytes, or with the pointer to a value in the value log.
pub(super) fn header(expires_at_s: u64, at: Option<Pointer>) -> Vec<u8> {
    let mut head = vec![if at.is_some() { POINTER } else { INLINE }];
    head.extend_from_slice(&expires_at_s.to_be_bytes());
    if let Some(Pointer { offset, length, crc }) = at {
        head.extend(encode(&[offset, u64::from(length), u64::from(crc)]));
    }
    head
}

/// Returns the record of a pair: its value, or the pointer to it.
pub(super) fn record<'a>(
    pending: &mut Option<Pending>,
    inline_bytes_max: usize,
    pair: (&[u8], &'a [u8], u32, u64),
) -> (Vec<u8>, &'a [u8]) {
    let (key, value, crc, expires_at_s) = pair;
    match pending {
        Some(pending) if value.len() > inline_bytes_max => {
            (header(expires_at_s, Some(pending.push(key, value, crc))), &[])
        }
        _ => (header(expires_at_s, None), value),
    }
}

pub(super) enum Found {
    Inline { value: Bytes, expires_at_s: u64 },
    At { pointer: Pointer, expires_at_s: u64 },
}

impl Found {
    pub(super) fn decode(stored: &[u8], path: &Path) -> Result<Self> {
        let mut numbers = Numbers::new(stored, path);
        let (kind, expires_at_s) = (numbers.u8()?, numbers.u64()?);
        if kind == INLINE {
            return Ok(Self::Inline {
                value: Bytes::copy_from_slice(numbers.remaining()),
                expires_at_s,
            });
        }
        let offset = numbers.u64()?;
        let (length, crc) = (numbers.u64()? as u32, numbers.u64()? as u32);
        Ok(Self::At { pointer: Pointer { offset, length, crc }, expires_at_s })
    }

    pub(super) fn value_bytes(&self) -> u64 {
        match self {
            Self::Inline { value, .. } => value.len() as u64,
            Self::At { pointer, .. } => u64::from(pointer.length),
        }
    }

    pub(super) fn without_value(self, key: Bytes) -> Pair {
        let (Self::Inline { expires_at_s, .. } | Self::At { expires_at_s, .. }) = self;
        Pair { key, value: Bytes::new(), expires_at_s }
    }

    /// Returns the pair; reads its value from the value log if necessary.
    pub(super) fn pair(self, key: Bytes, values: Option<&ValueLog>) -> Result<Pair> {
        match (self, values) {
            (Self::Inline { value, expires_at_s }, _) => Ok(Pair { key, value, expires_at_s }),
            (Self::At { pointer, expires_at_s }, Some(values)) => {
                Ok(Pair { key, value: values.read(pointer)?.into(), expires_at_s })
            }
            (Self::At { pointer, .. }, None) => Err(Error::corrupt(
                "key-values",
                pointer.offset,
                "a pointer in a store without a value log",
            )),
        }
    }
}
