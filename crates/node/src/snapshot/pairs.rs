//! Pairs of a snapshot as one stream of bytes, and the positions in it by which the snapshot goes
//! on after its connection broke.
//!
//! ```text
//! pair := key_len:varint key value_len:varint expires_at_s:varint value
//! ```
//!
//! Chunks of whole pairs are decoded where they are. A node of an earlier version cuts the stream
//! anywhere.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use stele_storage::Pair;
use stele_types::checksum::Crc32c;
use stele_types::size::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{Error, Result, varint};

/// Shorter values are copied into the bytes around them.
const SHARED_BYTES_MIN: usize = 2 << 10;

/// Encodes pairs in parts, to be sent one after the other. A long value is a part that shares its
/// memory.
pub(super) fn encode(pairs: &[Pair]) -> Vec<Bytes> {
    let (mut parts, mut copied) = (Vec::new(), Vec::new());
    for pair in pairs {
        varint::put_bytes(&mut copied, &pair.key);
        varint::put(&mut copied, pair.value.len() as u64);
        varint::put(&mut copied, pair.expires_at_s);
        if pair.value.len() < SHARED_BYTES_MIN {
            copied.extend_from_slice(&pair.value);
        } else {
            parts.push(Bytes::from(std::mem::take(&mut copied)));
            parts.push(pair.value.clone());
        }
    }
    if !copied.is_empty() {
        parts.push(Bytes::from(copied));
    }
    parts
}

/// Decoder of pairs from chunks. Holds at most one unfinished pair.
#[derive(Default)]
pub(super) struct Decoder {
    rest: BytesMut,
}

impl Decoder {
    /// Adds a chunk; returns the pairs it completes, which share its memory if it holds whole pairs.
    /// Fails with `Invalid` if the bytes cannot be pairs.
    pub(super) fn push(&mut self, mut chunk: Bytes) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        if self.rest.is_empty() {
            while let Some((header_bytes, header)) = decode_header(&chunk)? {
                let PairHeader { key, value_bytes, expires_at_s } = header;
                let end = header_bytes + value_bytes;
                if chunk.len() < end {
                    break;
                }
                let (key, value) = (chunk.slice_ref(key), chunk.slice(header_bytes..end));
                chunk.advance(end);
                pairs.push(Pair { key, value, expires_at_s });
            }
        }
        self.rest.extend_from_slice(&chunk);
        while let Some((header_bytes, header)) = decode_header(&self.rest)? {
            let PairHeader { key, value_bytes, expires_at_s } = header;
            if self.rest.len() < header_bytes + value_bytes {
                break;
            }
            let key = Bytes::copy_from_slice(key);
            self.rest.advance(header_bytes);
            let value = self.rest.split_to(value_bytes).freeze();
            pairs.push(Pair { key, value, expires_at_s });
        }
        Ok(pairs)
    }

    /// Checks the end; fails with `Invalid` when a pair is unfinished.
    pub(super) fn finish(self) -> Result<()> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid("the snapshot ends within a pair")),
        }
    }
}

struct PairHeader<'a> {
    key: &'a [u8],
    value_bytes: usize,
    expires_at_s: u64,
}

/// Decodes what precedes a value, and its length; `None` when more bytes are needed.
fn decode_header(bytes: &[u8]) -> Result<Option<(usize, PairHeader<'_>)>> {
    const HEADER_BYTES_MAX: usize = KEY_BYTES_MAX + 3 * varint::VARINT_BYTES_MAX;
    let mut rest = bytes;
    let mut take = || {
        let key = varint::take_bytes(&mut rest)?;
        Some((key, varint::take(&mut rest)?, varint::take(&mut rest)?))
    };
    let Some((key, value_bytes, expires_at_s)) = take() else {
        if bytes.len() > HEADER_BYTES_MAX {
            return Err(Error::invalid("a key of a snapshot is too long"));
        }
        return Ok(None);
    };
    if key.len() > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX as u64 {
        return Err(Error::invalid("a pair of a snapshot is too long"));
    }
    let value_bytes = value_bytes as usize;
    let header = PairHeader { key, value_bytes, expires_at_s };
    Ok(Some((bytes.len() - rest.len(), header)))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::Prng;

    #[test]
    fn pairs_survive_any_cut_into_chunks() {
        let mut random = Prng::new(7);
        let pairs: Vec<Pair> = (0..200u32)
            .map(|n| Pair {
                key: Bytes::from(format!("key{n:05}")),
                value: Bytes::from(vec![n as u8; random.below(3000) as usize]),
                expires_at_s: u64::from(n % 3),
            })
            .collect();
        let bytes = encode(&pairs).concat();
        for chunk in [1, 7, 1000, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for part in bytes.chunks(chunk) {
                found.extend(decoder.push(Bytes::copy_from_slice(part)).unwrap());
            }
            decoder.finish().unwrap();
            assert_eq!(found, pairs, "chunks of {chunk}");
        }
    }

    #[test]
    fn bytes_that_can_be_no_pair_are_refused_and_hold_no_memory() {
        let mut decoder = Decoder::default();
        assert!(decoder.push(Bytes::from(vec![0xff; KEY_BYTES_MAX * 2])).is_err());
        let mut decoder = Decoder::default();
        decoder.push(Bytes::from_static(&[200, 1, 1, 2, 3])).unwrap();
        assert!(decoder.finish().is_err());
    }

    #[test]
    fn long_values_are_copied_neither_when_they_are_encoded_nor_when_they_are_decoded() {
        let pair = |key: &'static str, bytes: usize| Pair {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from(vec![7; bytes]),
            expires_at_s: 0,
        };
        let pairs = [pair("a", 100), pair("b", 70_000), pair("c", 5)];
        let parts = encode(&pairs);
        assert_eq!(parts.len(), 3, "the short ones lie in the bytes around them");
        assert_eq!(parts[1].as_ptr(), pairs[1].value.as_ptr());
        let chunk = Bytes::from(parts.concat());
        let found = Decoder::default().push(chunk.clone()).unwrap();
        assert_eq!(found, pairs);
        let inside = chunk.as_ptr_range();
        assert!(found.iter().all(|pair| inside.contains(&pair.value.as_ptr())));
    }
}
