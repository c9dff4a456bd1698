//! Headers and footers of files.
//!
//! ```text
//! segment block 0 := "STELESEG" format:u32 block_bytes:u32 store:u64 file:u32 previous:u32
//!                    previous_end:u32 chain:u32 recycled:u32 crc:u32 salt:u64 crc:u32
//!                    zeros to block_bytes
//! other header    := magic:8 format:u32 file:u32 store:u64 zero:u32 crc:u32
//! other footer    := magic:8 file:u32 zero:u32 data_end:u64 fields:6*u64 zero:u32 crc:u32
//! ```
//! Each crc is over all bytes before it. Segments of format 1 have no salt and no second crc.

use super::take;
use std::path::Path;
use stele_types::checksum::crc32c;
use stele_types::size::FORMAT_VERSION;
use stele_types::{Error, FileId, Result, StoreId};

const SEGMENT_MAGIC: &[u8; 8] = b"STELESEG";
/// Bytes of the part that all formats share, and of all of it.
const SEGMENT_PART_BYTES: usize = 48;
const SEGMENT_HEADER_BYTES: usize = 60;
/// Last format of which segments have no salt.
const UNSALTED_FORMAT: u32 = 1;
/// The smallest block: a sector, which a device does not tear.
pub(crate) const BLOCK_BYTES_MIN: usize = 512;
/// The largest block: above what any device requires. It limits what a header can make the reader
/// allocate.
pub(crate) const BLOCK_BYTES_MAX: usize = 1 << 20;
pub(crate) const FILE_HEADER_BYTES: usize = 32;
pub(crate) const FOOTER_BYTES: usize = 80;
pub(crate) const FOOTER_FIELDS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub block_bytes: u32,
    pub store: StoreId,
    pub file: FileId,
    /// The previous segment, or 0, with its end and its last frame's crc. They reveal a sealed
    /// segment that lost its last writes.
    pub previous: FileId,
    pub previous_end: u32,
    pub chain: u32,
    /// Whether the segment began in blocks that count as written: after its end may be old frames or zeros.
    pub recycled: bool,
    /// Random number that the checksums of the segment's frames cover; `None` in format 1.
    pub salt: Option<u64>,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.block_bytes as usize);
        out.extend_from_slice(SEGMENT_MAGIC);
        let format = if self.salt.is_some() { FORMAT_VERSION } else { UNSALTED_FORMAT };
        for word in [format, self.block_bytes] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.store.0.to_le_bytes());
        let recycled = u32::from(self.recycled);
        for word in [self.file.0, self.previous.0, self.previous_end, self.chain, recycled] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        put_crc(&mut out);
        if let Some(salt) = self.salt {
            out.extend_from_slice(&salt.to_le_bytes());
            put_crc(&mut out);
        }
        out.resize(self.block_bytes as usize, 0);
        out
    }

    /// Decodes and checks a header. Fails with `Corrupt`, `NewerFormat` or `WrongStore`.
    pub(crate) fn decode(bytes: &[u8], path: &Path, store: StoreId, file: FileId) -> Result<Self> {
        let (header, format) = Self::parse(bytes)
            .ok_or_else(|| Error::corrupt(path, 0, "segment header does not match its checksum"))?;
        check_format(path, format)?;
        check_identity(path, (header.store, header.file), (store, file))?;
        let block = header.block_bytes as usize;
        if !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block) || !block.is_power_of_two() {
            return Err(Error::corrupt(path, 0, format!("segment with blocks of {block} bytes")));
        }
        // Older segments have lower numbers: following the chain back terminates.
        if header.previous >= header.file && header.previous != FileId(0) {
            let detail = format!("segment that follows {:08x}", header.previous.0);
            return Err(Error::corrupt(path, 0, detail));
        }
        Ok(header)
    }

    /// Decodes a header with no check except the checksums. Also returns the format version. Of a
    /// later format, decodes only the part that all formats share.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(Self, u32)> {
        let mut rest = checked(bytes.get(..SEGMENT_PART_BYTES)?)?.strip_prefix(SEGMENT_MAGIC)?;
        let rest = &mut rest;
        let format = take::u32_le(rest)?;
        let salt = || {
            let salted = checked(bytes.get(..SEGMENT_HEADER_BYTES)?)?;
            take::u64_le(&mut salted.get(SEGMENT_PART_BYTES..)?)
        };
        let has_salt = (UNSALTED_FORMAT + 1..=FORMAT_VERSION).contains(&format);
        let salt = if has_salt { Some(salt()?) } else { None };
        let header = Self {
            block_bytes: take::u32_le(rest)?,
            store: StoreId(take::u64_le(rest)?),
            file: FileId(take::u32_le(rest)?),
            previous: FileId(take::u32_le(rest)?),
            previous_end: take::u32_le(rest)?,
            chain: take::u32_le(rest)?,
            recycled: take::u32_le(rest)? != 0,
            salt,
        };
        Some((header, format))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Magic {
    Sidecar,
    Sorted,
    Tombstones,
}

impl Magic {
    fn bytes(self) -> &'static [u8; 8] {
        match self {
            Self::Sidecar => b"STELESID",
            Self::Sorted => b"STELEVAL",
            Self::Tombstones => b"STELEGRV",
        }
    }
}

/// The header of every file except segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileHeader {
    pub magic: Magic,
    pub store: StoreId,
    pub file: FileId,
}

impl FileHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER_BYTES);
        out.extend_from_slice(self.magic.bytes());
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.file.0.to_le_bytes());
        out.extend_from_slice(&self.store.0.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Fails unless `bytes` are the header this value describes.
    pub(crate) fn check(&self, bytes: &[u8], path: &Path) -> Result<()> {
        let (format, file, store) = self
            .parse(bytes)
            .ok_or_else(|| Error::corrupt(path, 0, "file header does not match its checksum"))?;
        check_format(path, format)?;
        check_identity(path, (store, file), (self.store, self.file))
    }

    fn parse(&self, bytes: &[u8]) -> Option<(u32, FileId, StoreId)> {
        let mut rest =
            checked(bytes.get(..FILE_HEADER_BYTES)?)?.strip_prefix(self.magic.bytes())?;
        let rest = &mut rest;
        let format = take::u32_le(rest)?;
        Some((format, FileId(take::u32_le(rest)?), StoreId(take::u64_le(rest)?)))
    }
}

/// The footer of every file except segments: its presence shows that the file is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub magic: Magic,
    pub file: FileId,
    pub data_end: u64,
    pub fields: [u64; FOOTER_FIELDS],
}

impl Footer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FOOTER_BYTES);
        out.extend_from_slice(self.magic.bytes());
        out.extend_from_slice(&self.file.0.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.data_end.to_le_bytes());
        for field in self.fields {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&[0; 4]);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns `None` unless `bytes` are the complete footer of `file`.
    pub(crate) fn decode(bytes: &[u8], magic: Magic, file: FileId) -> Option<Self> {
        let mut rest = checked(bytes.get(..FOOTER_BYTES)?)?.strip_prefix(magic.bytes())?;
        let rest = &mut rest;
        let named = FileId(take::u32_le(rest)?);
        take::u32_le(rest)?;
        let data_end = take::u64_le(rest)?;
        let mut fields = [0; FOOTER_FIELDS];
        for field in &mut fields {
            *field = take::u64_le(rest)?;
        }
        (named == file).then_some(Self { magic, file, data_end, fields })
    }
}

fn put_crc(out: &mut Vec<u8>) {
    let crc = crc32c(out);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Returns the bytes before a trailing crc if it matches.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<4>()?;
    (crc32c(content) == u32::from_le_bytes(*crc)).then_some(content)
}

fn check_format(path: &Path, found: u32) -> Result<()> {
    if found <= FORMAT_VERSION {
        return Ok(());
    }
    Err(Error::NewerFormat { path: path.to_path_buf(), found, supported: FORMAT_VERSION })
}

fn check_identity(
    path: &Path,
    found: (StoreId, FileId),
    expected: (StoreId, FileId),
) -> Result<()> {
    if found.0 != expected.0 {
        let detail = format!("written by store {}, this is store {}", found.0, expected.0);
        return Err(Error::WrongStore { path: path.to_path_buf(), detail });
    }
    if found.1 != expected.1 {
        let detail = format!("header names file {:08x}", found.1.0);
        return Err(Error::corrupt(path, 0, detail));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_footers_round_trip_and_refuse_other_files() {
        let path = Path::new("f");
        let header = SegmentHeader {
            block_bytes: 512,
            store: StoreId(3),
            file: FileId(4),
            previous: FileId(2),
            previous_end: 1024,
            chain: 5,
            recycled: true,
            salt: Some(6),
        };
        let bytes = header.encode();
        assert_eq!(bytes.len(), 512);
        let decode = |b: &[u8], s, f| SegmentHeader::decode(b, path, StoreId(s), FileId(f));
        assert_eq!(decode(&bytes, 3, 4).unwrap(), header);
        assert!(matches!(decode(&bytes, 9, 4), Err(Error::WrongStore { .. })));
        assert!(matches!(decode(&bytes, 3, 5), Err(Error::Corrupt { .. })));
        assert!(matches!(decode(&[0; 512], 3, 4), Err(Error::Corrupt { .. })));

        let file_header = FileHeader { magic: Magic::Sorted, store: StoreId(3), file: FileId(4) };
        file_header.check(&file_header.encode(), path).unwrap();
        assert!(
            FileHeader { magic: Magic::Tombstones, ..file_header }
                .check(&file_header.encode(), path)
                .is_err()
        );
        let footer = Footer { magic: Magic::Sorted, file: FileId(4), data_end: 77, fields: [1; 6] };
        let bytes = footer.encode();
        assert_eq!(bytes.len(), FOOTER_BYTES);
        assert_eq!(Footer::decode(&bytes, Magic::Sorted, FileId(4)), Some(footer));
        assert_eq!(Footer::decode(&bytes, Magic::Sorted, FileId(5)), None);
    }

    /// A sound header of format 1.
    const UNSALTED: SegmentHeader = SegmentHeader {
        block_bytes: 512,
        store: StoreId(3),
        file: FileId(4),
        previous: FileId(2),
        previous_end: 1024,
        chain: 5,
        recycled: false,
        salt: None,
    };

    #[test]
    fn a_segment_that_follows_itself_or_has_blocks_of_any_size_is_refused() {
        let refused = |header: SegmentHeader| {
            let bytes = SegmentHeader { block_bytes: 512, ..header }.encode();
            let mut bytes = bytes[..SEGMENT_PART_BYTES].to_vec();
            bytes[12..16].copy_from_slice(&header.block_bytes.to_le_bytes());
            let crc = crc32c(&bytes[..SEGMENT_PART_BYTES - 4]);
            bytes[SEGMENT_PART_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
            SegmentHeader::decode(&bytes, Path::new("f"), StoreId(3), FileId(4)).is_err()
        };
        assert!(!refused(UNSALTED));
        assert!(refused(SegmentHeader { previous: FileId(4), ..UNSALTED }));
        assert!(refused(SegmentHeader { previous: FileId(5), ..UNSALTED }));
        assert!(refused(SegmentHeader { block_bytes: 1 << 31, ..UNSALTED }));
        assert!(refused(SegmentHeader { block_bytes: 256, ..UNSALTED }));
    }

    #[test]
    fn a_segment_of_format_1_has_no_salt_and_every_byte_of_a_later_header_counts() {
        let decode =
            |bytes: &[u8]| SegmentHeader::decode(bytes, Path::new("f"), StoreId(3), FileId(4)).ok();
        assert_eq!(UNSALTED.encode()[8..12], 1u32.to_le_bytes());
        assert_eq!(decode(&UNSALTED.encode()), Some(UNSALTED));
        let salted = SegmentHeader { salt: Some(9), ..UNSALTED };
        let bytes = salted.encode();
        assert_eq!(decode(&bytes), Some(salted));
        for at in 0..SEGMENT_HEADER_BYTES {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert_eq!(decode(&flipped), None, "byte {at}");
        }
    }

    #[test]
    fn a_newer_format_is_refused_as_such() {
        let file_header = FileHeader { magic: Magic::Sorted, store: StoreId(3), file: FileId(4) };
        let mut bytes = file_header.encode();
        bytes[8] = 99;
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        let refused = file_header.check(&bytes, Path::new("f"));
        assert!(matches!(refused, Err(Error::NewerFormat { found: 99, .. })));
    }
}
