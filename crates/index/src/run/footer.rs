//! The footer of a run: the layout of its parts, its metadata, and the trailers: checksums of the
//! parts (RocksDB block trailer).
//!
//! ```text
//! footer := body tail
//! body   := meta blocks:varint data_bytes:varint fences_bytes:varint filter_bytes:varint
//!           hash_bytes:varint probes:u8 block_bits:u8 [earliest_expiry_s:varint]
//! tail   := body_len:u32le version:u32le crc:u32le magic:8 bytes      (crc of body, body_len, version)
//! ```
//! Parts are contiguous, so their lengths determine their offsets; lengths include the trailers.
//! The earliest expiry is 0 if no entry expires. It is absent in format 1.

use crate::run::meta::RunMeta;
use std::path::Path;
use stele_types::checksum::crc32c;
use stele_types::size::FORMAT_VERSION;
use stele_types::{Error, Result, RunId, varint};
use stele_vfs::VfsFile;

const MAGIC: [u8; 8] = *b"STELERUN";
const TAIL_BYTES: usize = 20;
/// Bytes read first from the end of a file: nearly every footer fits.
const GUESS_BYTES: u64 = 16 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) blocks: u64,
    pub(super) data_bytes: u64,
    pub(super) fences_bytes: u64,
    pub(super) filter_bytes: u64,
    pub(super) hash_bytes: u64,
    pub(super) probes: u8,
    pub(super) block_bits: u8,
}

impl Layout {
    pub(super) fn filter_at(&self) -> u64 {
        self.data_bytes + self.fences_bytes
    }

    pub(super) fn hash_at(&self) -> u64 {
        self.filter_at() + self.filter_bytes
    }

    pub(super) fn footer_at(&self) -> u64 {
        self.hash_at() + self.hash_bytes
    }
}

/// Encodes the copy of a footer for the manifest, `file_bytes:varint body`, without the checkpoint:
/// the manifest has its own.
pub(super) fn encode_copy(meta: &RunMeta, layout: &Layout) -> Vec<u8> {
    let mut meta = meta.clone();
    meta.extra.checkpoint = Vec::new();
    let mut out = Vec::new();
    varint::put(&mut out, meta.bytes);
    put_body(&mut out, &meta, layout);
    out
}

/// Decodes the output of [`encode_copy`]; `None` for other bytes.
pub(super) fn decode_copy(mut copy: &[u8]) -> Option<(RunMeta, Layout)> {
    let length = varint::take(&mut copy)?;
    decode(copy, length).filter(|(_, layout)| layout.footer_at() <= length)
}

fn put_body(out: &mut Vec<u8>, meta: &RunMeta, layout: &Layout) {
    meta.encode(out);
    let sizes = [
        layout.blocks,
        layout.data_bytes,
        layout.fences_bytes,
        layout.filter_bytes,
        layout.hash_bytes,
    ];
    sizes.into_iter().for_each(|n| varint::put(out, n));
    out.extend_from_slice(&[layout.probes, layout.block_bits]);
    varint::put(out, meta.encoded_expiry());
}

pub(super) fn encode(meta: &RunMeta, layout: &Layout) -> Vec<u8> {
    let mut out = Vec::new();
    put_body(&mut out, meta, layout);
    let body_len = out.len() as u32;
    out.extend_from_slice(&body_len.to_le_bytes());
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&MAGIC);
    out
}

/// Reads the footer of a file. Fails with [`Error::Corrupt`] when it is damaged, and with
/// [`Error::NewerFormat`] when it is intact and of a later format.
pub(super) fn read(file: &dyn VfsFile) -> Result<(RunMeta, Layout)> {
    match read_once(file) {
        // A second read distinguishes damage on the device from a bit flipped in transfer.
        Err(Error::Corrupt { .. }) => read_once(file),
        result => result,
    }
}

fn read_once(file: &dyn VfsFile) -> Result<(RunMeta, Layout)> {
    let length = file.len()?;
    let mut end = vec![0; length.min(GUESS_BYTES) as usize];
    let from = length - end.len() as u64;
    file.read_exact_at(&mut end, from)?;
    let body_len = tail(file.path(), length, &end)?;
    let whole = body_len + TAIL_BYTES;
    if whole > end.len() {
        if whole as u64 > length {
            return Err(Error::corrupt(file.path(), length, "footer is longer than the file"));
        }
        end.resize(whole, 0);
        file.read_exact_at(&mut end, length - whole as u64)?;
    }
    let footer = end.get(end.len() - whole..).unwrap_or_default();
    parse(file.path(), length, footer)
}

fn tail(path: &Path, length: u64, end: &[u8]) -> Result<usize> {
    let magic = end.last_chunk::<8>();
    let body_len = end.last_chunk::<TAIL_BYTES>().and_then(|tail| tail.first_chunk::<4>());
    match (magic, body_len) {
        (Some(&MAGIC), Some(body_len)) => Ok(u32::from_le_bytes(*body_len) as usize),
        _ => Err(Error::corrupt(path, length, "file does not end with a run footer")),
    }
}

fn parse(path: &Path, length: u64, footer: &[u8]) -> Result<(RunMeta, Layout)> {
    let at = length - footer.len() as u64;
    let bad = |detail: &str| Error::corrupt(path, at, detail);
    let split = footer.split_at_checked(footer.len().wrapping_sub(12));
    let (covered, rest) = split.ok_or_else(|| bad("footer is truncated"))?;
    let crc = rest.first_chunk().map(|crc| u32::from_le_bytes(*crc));
    // bug index.footer_crc_unchecked: never
    if crc != Some(crc32c(covered)) {
        return Err(bad("checksum of the footer does not match"));
    }
    let (covered, version) =
        covered.split_last_chunk().ok_or_else(|| bad("footer is truncated"))?;
    let found = u32::from_le_bytes(*version);
    if found > FORMAT_VERSION {
        let path = path.to_path_buf();
        return Err(Error::NewerFormat { path, found, supported: FORMAT_VERSION });
    }
    let body = covered.get(..covered.len() - 4).unwrap_or_default();
    decode(body, length)
        .filter(|(_, layout)| layout.footer_at() == at)
        .ok_or_else(|| bad("footer does not parse"))
}

fn decode(mut body: &[u8], length: u64) -> Option<(RunMeta, Layout)> {
    let mut meta = RunMeta::decode(&mut body, length)?;
    let mut layout = Layout::default();
    let fields = [
        &mut layout.blocks,
        &mut layout.data_bytes,
        &mut layout.fences_bytes,
        &mut layout.filter_bytes,
        &mut layout.hash_bytes,
    ];
    for field in fields {
        *field = varint::take(&mut body)?;
        // No part is larger than the file, so sums of parts cannot overflow.
        if *field > length {
            return None;
        }
    }
    let (&[probes, block_bits], mut expiry) = body.split_first_chunk()?;
    (layout.probes, layout.block_bits) = (probes, block_bits);
    let encoded = if expiry.is_empty() { 0 } else { varint::take(&mut expiry)? };
    meta.decode_expiry(encoded);
    expiry.is_empty().then_some((meta, layout))
}

pub(super) const TRAILER_BYTES: usize = 4;

/// Mixes the CRC-32C of a part with the run and the part's offset: the same bytes at
/// another offset or in another run have another trailer.
fn trailer_of(id: RunId, offset: u64, crc: u32) -> u32 {
    let place = (id.0 ^ offset.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    crc ^ (place >> 32) as u32
}

/// Appends the trailer of `out[from..]`, which will lie at `offset` of the file.
pub(super) fn put(out: &mut Vec<u8>, from: usize, id: RunId, offset: u64) {
    let crc = trailer_of(id, offset, crc32c(out.get(from..).unwrap_or_default()));
    out.extend_from_slice(&crc.to_le_bytes());
}

pub(super) fn check<'a>(path: &Path, id: RunId, offset: u64, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let Some((part, crc)) = bytes.split_last_chunk::<TRAILER_BYTES>() else {
        return Err(Error::corrupt(path, offset, "part is too short for a checksum"));
    };
    if is_of(crc, id, offset, crc32c(part)) {
        return Ok(part);
    }
    Err(Error::corrupt(path, offset, format!("checksum of {} bytes does not match", part.len())))
}

pub(super) fn is_of(trailer: &[u8; TRAILER_BYTES], id: RunId, offset: u64, crc: u32) -> bool {
    // bug index.run_crc_unchecked: `u32::from_le_bytes(*trailer) == trailer_of(id, offset, crc)` is `true`
    u32::from_le_bytes(*trailer) == trailer_of(id, offset, crc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::RunId;

    fn decoded(meta: &RunMeta, without: usize) -> Option<u64> {
        let mut body = Vec::new();
        put_body(&mut body, meta, &Layout::default());
        body.truncate(body.len() - without);
        decode(&body, 1000).map(|(meta, _)| meta.earliest_expiry_s)
    }

    #[test]
    fn a_footer_states_the_earliest_expiry_and_one_of_format_1_may_have_any() {
        let none = RunMeta::empty(RunId(7));
        assert_eq!((decoded(&none, 0), decoded(&none, 1)), (Some(u64::MAX), Some(u64::MAX)));
        let mut some = none;
        some.count_expiry(90);
        some.count_expiry(80);
        some.count_expiry(100);
        assert_eq!((decoded(&some, 0), decoded(&some, 1)), (Some(80), Some(0)));
        assert_eq!(decoded(&some, 2), None, "a footer that is cut");
        let unknown = RunMeta { earliest_expiry_s: 0, ..some };
        assert_eq!(decoded(&unknown, 0), Some(0), "a copy in the manifest");
    }
}
