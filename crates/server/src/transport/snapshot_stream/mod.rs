//! One snapshot on its own connection: chunks go one way; TCP provides the back-pressure.
//!
//! ```text
//! sender:   Offer Chunk* End                receiver: Accepted Alive* (Done | Declined)
//! chunk    := number:u64le bytes            (numbered from 0)
//! end      := position                      (after the last chunk)
//! accepted := position?                     (what the receiver has; absent: nothing)
//! position := chunks:u64le bytes:u64le crc:u32le          (over the bytes of all chunks)
//! ```
//!
//! A snapshot with totals that do not match is refused as a whole. After a connection that broke, a sender
//! that offers the same snapshot goes on after the receiver's position.
//!
//! In version 1 of the protocol a chunk has at most [`CHUNK_BYTES_MAX`] bytes, and a byte after its
//! number, which was the end of a piece. Each snapshot begins at its first chunk. Before version 3 the header
//! of an offer has no merges that the region committed.

mod receive;
mod send;

pub use receive::{SnapshotOffer, SnapshotReceiver};
pub use send::SnapshotSender;

pub(super) use receive::receive;
pub(super) use send::open;

use super::frame::Frame;
use super::hello::{Lane, RESUMABLE};
use bytes::Bytes;
use stele_node::snapshot::Position;
use stele_types::checksum::{Crc32c, crc32c, crc32c_suffix};

/// Most bytes in one chunk of version 1.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
const NUMBER_BYTES: usize = 8;

/// Position of one side, and the layout of chunks.
#[derive(Clone, Copy, Debug)]
struct Tally {
    at: Position,
    version: u8,
}

impl Tally {
    fn header_bytes(&self) -> usize {
        NUMBER_BYTES + usize::from(self.version < RESUMABLE)
    }

    /// Returns the header of the next chunk and the checksum of its frame.
    fn send(&mut self, parts: &[Bytes]) -> (Vec<u8>, u32) {
        let mut header = self.at.chunks().to_le_bytes().to_vec();
        header.resize(self.header_bytes(), 1);
        let mut sum = Crc32c::new();
        for part in parts {
            sum.update(part);
        }
        let (crc, bytes) = (sum.finish(), parts.iter().map(|part| part.len() as u64).sum());
        self.at.add(crc, bytes);
        let frame = Crc32c::new().update(&header).update_with_crc(crc, bytes).finish();
        (header, frame)
    }

    /// Returns the chunk of a frame, if it is the next one.
    fn receive(&mut self, frame: &Frame) -> Option<Bytes> {
        let (number, _) = frame.body.split_first_chunk::<NUMBER_BYTES>()?;
        // Invariant: chunks are accepted in order; a gap or a repetition fails the snapshot.
        let in_place = u64::from_le_bytes(*number) == self.at.chunks();
        // bug server.snapshot_gap: never
        if !in_place {
            return None;
        }
        let header = frame.body.get(..self.header_bytes())?;
        let chunk = frame.body.slice(header.len()..);
        if self.version < RESUMABLE && chunk.len() > CHUNK_BYTES_MAX {
            return None;
        }
        let bytes = chunk.len() as u64;
        // The frame's checksum was verified: the chunk is not read for its own.
        self.at.add(crc32c_suffix(crc32c(header), frame.crc, bytes), bytes);
        Some(chunk)
    }
}

fn frame_bytes_max() -> usize {
    Lane::Bulk.frame_bytes_max()
}
