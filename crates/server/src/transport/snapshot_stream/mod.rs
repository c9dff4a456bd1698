//! One snapshot on its own connection: pieces go one way; TCP provides the back-pressure.
//!
//! ```text
//! sender:   Offer Chunk* End                  receiver: Accepted Alive* (Done | Declined)
//! chunk  := number:u64le last:u8 bytes        (numbered from 0; `last`: a piece ends here)
//! end    := chunks:u64le bytes:u64le crc:u32le            (over the bytes of all chunks)
//! ```
//!
//! A snapshot with totals that do not match is refused as a whole; a sender that fails starts again.

mod receive;
mod send;

pub use receive::{SnapshotOffer, SnapshotReceiver};
pub use send::SnapshotSender;

pub(super) use receive::receive;
pub(super) use send::open;

use bytes::Bytes;
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::limits::COMMAND_BYTES_MAX;
use stele_types::mutant;

/// Most bytes in one chunk; a longer piece is sent in several.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
/// Longest piece, in bytes.
pub const PIECE_BYTES_MAX: usize = COMMAND_BYTES_MAX;
const CHUNK_HEADER_BYTES: usize = 9;
const END_BYTES: usize = 20;

/// Totals that both sides compute.
#[derive(Default)]
struct Tally {
    chunks: u64,
    bytes: u64,
    crc: Crc32c,
}

impl Tally {
    /// Returns the header of the next chunk and the checksum of its frame.
    fn send(&mut self, chunk: &[u8], last: bool) -> ([u8; CHUNK_HEADER_BYTES], u32) {
        let mut header = [u8::from(last); CHUNK_HEADER_BYTES];
        header[..8].copy_from_slice(&self.chunks.to_le_bytes());
        let (checksum, length) = (crc32c(chunk), chunk.len() as u64);
        self.count(checksum, length);
        (header, Crc32c::new().update(&header).update_with_crc(checksum, length).finish())
    }

    /// Returns the chunk of a frame and whether a piece ends with it, if it is the next one.
    fn receive(&mut self, body: &Bytes) -> Option<(Bytes, bool)> {
        let (&[number @ .., last], _) = body.split_first_chunk::<CHUNK_HEADER_BYTES>()?;
        // Invariant: chunks are accepted in order; a gap or a repetition fails the snapshot.
        let in_place = u64::from_le_bytes(number) == self.chunks;
        if !in_place && !mutant::active("server.snapshot_gap") {
            return None;
        }
        let chunk = body.slice(CHUNK_HEADER_BYTES..);
        if chunk.len() > CHUNK_BYTES_MAX {
            return None;
        }
        self.count(crc32c(&chunk), chunk.len() as u64);
        Some((chunk, last != 0))
    }

    fn count(&mut self, crc: u32, bytes: u64) {
        self.chunks += 1;
        self.bytes += bytes;
        self.crc.update_with_crc(crc, bytes);
    }

    fn end(&self) -> [u8; END_BYTES] {
        let mut end = [0; END_BYTES];
        end[..8].copy_from_slice(&self.chunks.to_le_bytes());
        end[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        end[16..].copy_from_slice(&self.crc.finish().to_le_bytes());
        end
    }
}
