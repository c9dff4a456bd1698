//! Trailers: checksums of a run's parts (RocksDB block trailer).

use std::path::Path;
use stele_types::checksum::crc32c;
use stele_types::{Error, Result, RunId};

/// Size of a trailer.
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

/// Checks a part with its trailer and returns the part.
pub(super) fn check<'a>(path: &Path, id: RunId, offset: u64, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let Some((part, crc)) = bytes.split_last_chunk::<TRAILER_BYTES>() else {
        return Err(Error::corrupt(path, offset, "part is too short for a checksum"));
    };
    if is_of(crc, id, offset, crc32c(part)) {
        return Ok(part);
    }
    Err(Error::corrupt(path, offset, format!("checksum of {} bytes does not match", part.len())))
}

/// Returns whether a trailer is that of the part at `offset` with this CRC-32C.
pub(super) fn is_of(trailer: &[u8; TRAILER_BYTES], id: RunId, offset: u64, crc: u32) -> bool {
    u32::from_le_bytes(*trailer) == trailer_of(id, offset, crc)
        || stele_types::mutant::active("index.run_crc_unchecked")
}
