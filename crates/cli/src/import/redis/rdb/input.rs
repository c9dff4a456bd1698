//! Bytes of an RDB file: numbers, lengths and strings, with the offset and the checksum of what was read.
//!
//! Invariant: a length takes no memory before its bytes are read, and a string of more than
//! [`STRING_BYTES_MAX`] takes none.
//! Test: `a_length_takes_no_memory_before_its_bytes`.

use super::RdbError;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use std::io::{self, Read};
use stele_types::size::VALUE_BYTES_MAX;

/// Longest string that is held: no longer value can be stored.
pub(super) const STRING_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Part in which a long string is read.
const PIECE_BYTES: usize = 1 << 20;

const ENCODING_INT8: u8 = 0;
const ENCODING_INT16: u8 = 1;
const ENCODING_INT32: u8 = 2;
const ENCODING_LZF: u8 = 3;

/// String of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum RdbString {
    Held(Bytes),
    /// A string of more bytes than can be stored, and their number. It was skipped.
    TooLong(u64),
}

/// Number before a string or a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Plain(u64),
    /// The string has this encoding.
    Encoded(u8),
}

/// Source of bytes.
pub(super) struct RdbInput<R> {
    from: R,
    offset: u64,
    digest: Digest,
}

impl<R: Read> RdbInput<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, offset: 0, digest: Digest::new(CrcAlgorithm::Crc64Redis) }
    }

    /// Returns the number of bytes that were read.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the checksum of the bytes that were read.
    pub(super) fn checksum(&self) -> u64 {
        self.digest.finalize()
    }

    pub(super) fn damaged(&self, detail: impl Into<String>) -> RdbError {
        RdbError::Damaged { offset: self.offset, detail: detail.into() }
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), RdbError> {
        self.from.read_exact(into).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("the file ends early"),
            _ => RdbError::Io(error),
        })?;
        self.offset += into.len() as u64;
        self.digest.update(into);
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], RdbError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, RdbError> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Reads bytes in parts, so that memory follows what the file really has.
    pub(super) fn bytes(&mut self, bytes: usize) -> Result<Vec<u8>, RdbError> {
        let mut read = Vec::new();
        while read.len() < bytes {
            let begin = read.len();
            read.resize(bytes.min(begin + PIECE_BYTES.min(begin.max(4 << 10))), 0);
            self.fill(read.get_mut(begin..).unwrap_or_default())?;
        }
        Ok(read)
    }

    pub(super) fn skip(&mut self, mut bytes: u64) -> Result<(), RdbError> {
        let mut dropped = [0; 4 << 10];
        while bytes > 0 {
            let part = bytes.min(dropped.len() as u64);
            self.fill(dropped.get_mut(..part as usize).unwrap_or_default())?;
            bytes -= part;
        }
        Ok(())
    }

    fn any_length(&mut self) -> Result<Length, RdbError> {
        let first = self.byte()?;
        Ok(match (first >> 6, first) {
            (0, _) => Length::Plain(u64::from(first)),
            (1, _) => Length::Plain(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            (2, 0x80) => Length::Plain(u64::from(u32::from_be_bytes(self.array()?))),
            (2, 0x81) => Length::Plain(u64::from_be_bytes(self.array()?)),
            (2, _) => return Err(self.damaged(format!("a length begins with {first:#04x}"))),
            _ => Length::Encoded(first & 0x3f),
        })
    }

    /// Reads a number of elements or bytes.
    pub(super) fn length(&mut self) -> Result<u64, RdbError> {
        match self.any_length()? {
            Length::Plain(length) => Ok(length),
            Length::Encoded(encoding) => {
                Err(self.damaged(format!("encoding {encoding} in the place of a number")))
            }
        }
    }

    pub(super) fn string(&mut self) -> Result<RdbString, RdbError> {
        let number = |number: i64| RdbString::Held(Bytes::from(number.to_string()));
        Ok(match self.any_length()? {
            Length::Plain(bytes) => match held(bytes) {
                Some(bytes) => RdbString::Held(Bytes::from(self.bytes(bytes)?)),
                None => {
                    self.skip(bytes)?;
                    RdbString::TooLong(bytes)
                }
            },
            Length::Encoded(ENCODING_INT8) => number(i64::from(i8::from_le_bytes(self.array()?))),
            Length::Encoded(ENCODING_INT16) => number(i64::from(i16::from_le_bytes(self.array()?))),
            Length::Encoded(ENCODING_INT32) => number(i64::from(i32::from_le_bytes(self.array()?))),
            Length::Encoded(ENCODING_LZF) => self.compressed()?,
            Length::Encoded(other) => {
                return Err(self.damaged(format!("a string has the unknown encoding {other}")));
            }
        })
    }

    /// Reads a string that must be held, such as a name.
    pub(super) fn short_string(&mut self, what: &str) -> Result<Bytes, RdbError> {
        match self.string()? {
            RdbString::Held(bytes) => Ok(bytes),
            RdbString::TooLong(bytes) => Err(self.damaged(format!("{what} of {bytes} bytes"))),
        }
    }

    pub(super) fn skip_string(&mut self) -> Result<(), RdbError> {
        match self.any_length()? {
            Length::Plain(bytes) => self.skip(bytes),
            Length::Encoded(ENCODING_INT8) => self.skip(1),
            Length::Encoded(ENCODING_INT16) => self.skip(2),
            Length::Encoded(ENCODING_INT32) => self.skip(4),
            Length::Encoded(ENCODING_LZF) => {
                let compressed = self.length()?;
                self.length()?;
                self.skip(compressed)
            }
            Length::Encoded(other) => {
                Err(self.damaged(format!("a string has the unknown encoding {other}")))
            }
        }
    }

    fn compressed(&mut self) -> Result<RdbString, RdbError> {
        let (compressed, bytes) = (self.length()?, self.length()?);
        let (Some(compressed_held), Some(bytes_held)) = (held(compressed), held(bytes)) else {
            self.skip(compressed)?;
            return Ok(RdbString::TooLong(bytes));
        };
        let compressed = self.bytes(compressed_held)?;
        let expanded = expand(&compressed, bytes_held);
        let expanded = expanded.ok_or_else(|| self.damaged("a compressed string is damaged"))?;
        Ok(RdbString::Held(Bytes::from(expanded)))
    }
}

fn held(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= STRING_BYTES_MAX)
}

/// Expands LZF: runs of literals, and references to what was expanded before. `None` unless the result has
/// this number of bytes.
fn expand(mut from: &[u8], bytes: usize) -> Option<Vec<u8>> {
    const LITERALS_MAX: usize = 32;
    const LONG: usize = 7;
    const REFERENCE_BYTES_LEAST: usize = 2;
    let mut out: Vec<u8> = Vec::new();
    while let Some((&control, rest)) = from.split_first() {
        from = rest;
        let control = usize::from(control);
        if control < LITERALS_MAX {
            let (literals, rest) = from.split_at_checked(control + 1)?;
            out.extend_from_slice(literals);
            from = rest;
        } else {
            let mut next = || {
                let (&byte, rest) = from.split_first()?;
                from = rest;
                Some(usize::from(byte))
            };
            let mut length = control >> 5;
            if length == LONG {
                length += next()?;
            }
            let distance = ((control & 0x1f) << 8 | next()?) + 1;
            let begin = out.len().checked_sub(distance)?;
            // The reference may overlap with its own result.
            for at in begin..begin + length + REFERENCE_BYTES_LEAST {
                out.push(*out.get(at)?);
            }
        }
        if out.len() > bytes {
            return None;
        }
    }
    (out.len() == bytes).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(bytes: &[u8]) -> Result<RdbString, RdbError> {
        let mut input = RdbInput::new(bytes);
        let skipped = {
            let mut input = RdbInput::new(bytes);
            input.skip_string().map(|()| input.offset())
        };
        let found = input.string();
        assert_eq!(skipped.ok(), found.is_ok().then(|| input.offset()), "skipped like read");
        found
    }

    #[test]
    fn every_form_of_a_string_is_read_and_skipped() {
        let held = |text: &[u8]| RdbString::Held(Bytes::copy_from_slice(text));
        assert_eq!(string(b"\x03abc").unwrap(), held(b"abc"));
        assert_eq!(string(b"\x40\x02ab").unwrap(), held(b"ab"));
        assert_eq!(string(b"\x80\0\0\0\x01a").unwrap(), held(b"a"));
        assert_eq!(string(b"\x81\0\0\0\0\0\0\0\x01a").unwrap(), held(b"a"));
        assert_eq!(string(b"\xc0\xff").unwrap(), held(b"-1"));
        assert_eq!(string(b"\xc1\0\x80").unwrap(), held(b"-32768"));
        assert_eq!(string(b"\xc2\xff\xff\xff\x7f").unwrap(), held(b"2147483647"));
        // `a`, and 9 bytes from one byte before.
        assert_eq!(string(b"\xc3\x05\x0a\0a\xe0\0\0").unwrap(), held(b"aaaaaaaaaa"));
        assert_eq!(string(b"\0").unwrap(), held(b""));
    }

    #[test]
    fn damaged_strings_are_errors() {
        let rows: [&[u8]; 8] = [
            b"",
            b"\x03ab",
            b"\x82\0\0\0\x01a",
            b"\xc4a",
            b"\xc3\x02\x0a\0a",
            b"\xc3\x05\x09\0a\xe0\0\0",
            b"\xc3\x03\x0a\x20\x01a",
            b"\xc3\xc0\x01\x01",
        ];
        for bytes in rows {
            assert!(RdbInput::new(bytes).string().is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_length_takes_no_memory_before_its_bytes() {
        let begin = b"\x80\x03\xff\xff\xff";
        assert!(RdbInput::new(&begin[..]).string().is_err());
        let long = STRING_BYTES_MAX as u64 + 1;
        let mut bytes = vec![0x81];
        bytes.extend(long.to_be_bytes());
        let mut input = RdbInput::new(bytes.as_slice().chain(io::repeat(7)));
        assert_eq!(input.string().unwrap(), RdbString::TooLong(long));
        assert_eq!(input.offset(), 9 + long);
    }

    #[test]
    fn the_checksum_is_that_of_redis() {
        // The check value of the algorithm.
        let mut input = RdbInput::new(&b"123456789"[..]);
        input.skip(9).unwrap();
        assert_eq!(input.checksum(), 0xe9c6_d914_c4b8_d9ca);
    }
}
