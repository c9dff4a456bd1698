//! Positions of records and values.

use crate::{Error, FileId, Result, checksum};
use bytes::Bytes;
use std::fmt;

/// A position in a store's log: a value file and a byte offset in it. Ordered as the log was
/// written, because file identifiers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn {
    /// The segment.
    pub file: FileId,
    /// Bytes from the start of the segment.
    pub offset: u32,
}

impl Lsn {
    /// Creates a position from its two parts.
    pub fn new(file: FileId, offset: u32) -> Self {
        Self { file, offset }
    }

    /// Returns one number with the same order.
    pub fn as_u64(self) -> u64 {
        u64::from(self.file.0) << 32 | u64::from(self.offset)
    }

    /// Inverts [`Lsn::as_u64`].
    pub fn from_u64(packed: u64) -> Self {
        Self { file: FileId((packed >> 32) as u32), offset: packed as u32 }
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}:{}", self.file.0, self.offset)
    }
}

/// A 16-byte reference to a value's bytes in a value file (XLL: nameless append).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Locator {
    /// The segment or sorted value file.
    pub file: FileId,
    /// Bytes from the start of the file to the value's first byte.
    pub offset: u32,
    /// The value's length in bytes.
    pub length: u32,
    /// CRC-32C of the value's bytes.
    pub crc: u32,
}

impl Locator {
    /// Bytes of the encoded form.
    pub const BYTES: usize = 16;

    /// Encodes file, offset, length and crc as little-endian integers.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[0..4].copy_from_slice(&self.file.0.to_le_bytes());
        out[4..8].copy_from_slice(&self.offset.to_le_bytes());
        out[8..12].copy_from_slice(&self.length.to_le_bytes());
        out[12..16].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// Decodes [`Locator::encode`]; `None` when `bytes` is not exactly 16 long.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let part: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(part))
        };
        if bytes.len() != Self::BYTES {
            return None;
        }
        Some(Self { file: FileId(word(0)?), offset: word(4)?, length: word(8)?, crc: word(12)? })
    }

    /// Returns the value's position.
    pub fn lsn(&self) -> Lsn {
        Lsn { file: self.file, offset: self.offset }
    }

    /// Fails with [`Error::Corrupt`] unless `value` has the locator's length and checksum.
    ///
    /// Invariant: a locator that the index refers to names a file that exists, and a value that matches. All
    /// rules of removal and of order keep it, and `stele verify` checks it.
    /// Tests: `a_locator_points_at_the_value_inside_the_command`,
    /// `nothing_that_a_lost_run_refers_to_is_removed_before_it_is_covered`.
    pub fn check(&self, value: &[u8]) -> Result<()> {
        // bug locator.crc_unchecked: return Ok(());
        if value.len() == self.length as usize && checksum::crc32c(value) == self.crc {
            return Ok(());
        }
        Err(Error::corrupt_value(self, "value does not match its checksum"))
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}:{}+{}", self.file.0, self.offset, self.length)
    }
}

/// A value as stored in the index: the bytes of a short value, otherwise its locator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueRef {
    /// A value of at most `limits::INLINE_VALUE_BYTES_MAX` bytes.
    Inline(Bytes),
    /// A value in a value file.
    At(Locator),
}

impl ValueRef {
    /// Returns the value's length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Self::Inline(value) => value.len() as u32,
            Self::At(locator) => locator.length,
        }
    }

    /// Whether the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
