//! A batch on disk: one frame, from a block boundary, padded with zeros to the next one. Invariant:
//! a durable block is never written again.
//!
//! ```text
//! frame  := body_bytes:u32 crc:u32 file:u32 offset:u32 chain:u32 records:u32 body padding
//! body   := item* [filler]                        (see `item`)
//! crc    := CRC-32C over store:u64, salt:u64 of the segment, the header without crc, and body
//! chain  := crc of the previous frame, across segments; 0 before the first
//! ```
//! In a segment of format 1 the checksum covers no salt. File, offset and store in the checksum detect a
//! frame written to or read from another place, and a frame from before its segment was recycled. The chain
//! detects a lost write.
//!
//! Invariant: bytes that count as a frame were written as one. No client knows the salt, so no value holds
//! such bytes.
//! Test: `a_value_is_not_taken_for_batches_though_its_writer_knows_the_store`.

use super::take;
use stele_types::checksum::{Crc32c, crc32c};
use stele_types::{FileId, Lsn, StoreId};

pub(crate) const FRAME_HEADER_BYTES: usize = 24;

/// What the checksums of a segment's frames cover besides the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub store: StoreId,
    /// Random number of the segment; `None` in format 1.
    pub salt: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub body_bytes: u32,
    pub crc: u32,
    pub at: Lsn,
    pub chain: u32,
    /// 0 in a frame that only confirms the previous one.
    pub records: u32,
}

impl FrameHeader {
    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        out[0..4].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[4..8].copy_from_slice(&self.crc.to_le_bytes());
        out[8..12].copy_from_slice(&self.at.file.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.at.offset.to_le_bytes());
        out[16..20].copy_from_slice(&self.chain.to_le_bytes());
        out[20..24].copy_from_slice(&self.records.to_le_bytes());
        out
    }

    /// Returns `None` when `bytes` are fewer than a header.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let rest = &mut bytes;
        let body_bytes = take::u32_le(rest)?;
        let crc = take::u32_le(rest)?;
        let at = Lsn::new(FileId(take::u32_le(rest)?), take::u32_le(rest)?);
        Some(Self { body_bytes, crc, at, chain: take::u32_le(rest)?, records: take::u32_le(rest)? })
    }

    pub(crate) fn checksum(&self, origin: Origin, body: &[u8]) -> u32 {
        self.checksum_with_crc(origin, crc32c(body))
    }

    /// [`FrameHeader::checksum`] over a body of `body_bytes` with a known checksum.
    pub(crate) fn checksum_with_crc(&self, origin: Origin, body_crc: u32) -> u32 {
        let encoded = self.encode();
        let mut crc = Crc32c::new();
        crc.update(&origin.store.0.to_le_bytes());
        // bug log.salt_ignored: `origin.salt` is `None`
        if let Some(salt) = origin.salt {
            crc.update(&salt.to_le_bytes());
        }
        crc.update(&encoded[0..4]).update(&encoded[8..]);
        crc.update_with_crc(body_crc, u64::from(self.body_bytes)).finish()
    }

    pub(crate) fn is_at(&self, at: Lsn) -> bool {
        // bug log.accept_any_position: `self.at == at` is `true`
        self.at == at
    }

    /// Returns the bytes of the frame without its padding.
    pub(crate) fn bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.body_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_covers_place_store_salt_chain_and_body() {
        let origin = Origin { store: StoreId(1), salt: Some(5) };
        let header = FrameHeader {
            body_bytes: 3,
            crc: 0,
            at: Lsn::new(FileId(7), 512),
            chain: 9,
            records: 1,
        };
        assert_eq!(FrameHeader::decode(&header.encode()), Some(header));
        let sum = header.checksum(origin, b"abc");
        assert_ne!(sum, header.checksum(Origin { store: StoreId(2), ..origin }, b"abc"));
        assert_ne!(sum, header.checksum(Origin { salt: Some(6), ..origin }, b"abc"));
        assert_ne!(sum, header.checksum(Origin { salt: None, ..origin }, b"abc"));
        assert_ne!(sum, header.checksum(origin, b"abd"));
        for other in [
            FrameHeader { at: Lsn::new(FileId(8), 512), ..header },
            FrameHeader { at: Lsn::new(FileId(7), 1024), ..header },
            FrameHeader { chain: 8, ..header },
            FrameHeader { records: 2, ..header },
        ] {
            assert_ne!(sum, other.checksum(origin, b"abc"));
        }
    }
}
