//! Positions in a snapshot, by which it goes on after its connection broke.

use std::collections::VecDeque;
use stele_types::checksum::Crc32c;

/// Bytes of an encoded position.
pub const POSITION_BYTES: usize = 20;
/// Most positions that a sender keeps. What a receiver has is behind by the buffers of the connection, a
/// few MiB.
const POSITIONS_MAX: usize = 512;

/// Chunks of a snapshot up to one of them, as both sides count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    chunks: u64,
    bytes: u64,
    crc: u32,
}

impl Position {
    /// Returns the number of chunks.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Encodes it as `chunks:u64le bytes:u64le crc:u32le`, over the bytes of all chunks.
    pub fn encode(&self) -> [u8; POSITION_BYTES] {
        let mut out = [0; POSITION_BYTES];
        out[..8].copy_from_slice(&self.chunks.to_le_bytes());
        out[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        out[16..].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// Decodes a position; `None` if the bytes are none.
    pub fn decode(body: &[u8]) -> Option<Self> {
        let (chunks, rest) = body.split_first_chunk::<8>()?;
        let (bytes, rest) = rest.split_first_chunk::<8>()?;
        let crc = u32::from_le_bytes(rest.try_into().ok()?);
        let (chunks, bytes) = (u64::from_le_bytes(*chunks), u64::from_le_bytes(*bytes));
        Some(Self { chunks, bytes, crc })
    }

    /// Moves it past a chunk of `bytes` with this checksum.
    pub fn add(&mut self, crc: u32, bytes: u64) {
        let mut sum = Crc32c::new();
        sum.update_with_crc(self.crc, self.bytes).update_with_crc(crc, bytes);
        self.chunks += 1;
        self.bytes += bytes;
        self.crc = sum.finish();
    }
}

/// Positions after the last chunks that were sent, with what followed each.
#[derive(Debug)]
pub(super) struct Positions<R>(VecDeque<(Position, R)>);

impl<R: Clone> Positions<R> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Returns whether the snapshot cannot go on on another connection.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a position and what follows it. The first chunk of all stays reachable: a receiver that
    /// restarted has nothing.
    pub(super) fn note(&mut self, position: Position, rest: R) {
        if self.0.back().is_some_and(|(last, _)| *last == position) {
            return;
        }
        if self.0.len() >= POSITIONS_MAX {
            self.0.remove(1);
        }
        self.0.push_back((position, rest));
    }

    /// Returns what follows a position of the receiver, and forgets all later ones; `None` if it is not
    /// known.
    pub(super) fn rest_at(&mut self, position: Position) -> Option<R> {
        let at = self.0.iter().position(|(known, _)| *known == position)?;
        self.0.truncate(at + 1);
        self.0.back().map(|(_, rest)| rest.clone())
    }
}
