//! Pairs of a snapshot as one stream of bytes, cut anywhere into chunks: a value may be larger than
//! a chunk.
//!
//! ```text
//! pair := key_len:varint key value_len:varint expires_at_s:varint value
//! ```

use bytes::{Buf, Bytes, BytesMut};
use stele_storage::Pair;
use stele_types::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{Error, Result, varint};

/// Appends a pair.
pub(super) fn encode(pair: &Pair, out: &mut Vec<u8>) {
    varint::put_bytes(out, &pair.key);
    varint::put(out, pair.value.len() as u64);
    varint::put(out, pair.expires_at_s);
    out.extend_from_slice(&pair.value);
}

/// Decoder of pairs from chunks. Holds at most one unfinished pair.
#[derive(Default)]
pub(super) struct Decoder {
    rest: BytesMut,
}

impl Decoder {
    /// Adds a chunk; returns the pairs it completes. Fails with `Invalid` if the bytes cannot be
    /// pairs.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<Pair>> {
        self.rest.extend_from_slice(chunk);
        let mut pairs = Vec::new();
        while let Some((header_bytes, header)) = decode_header(&self.rest)? {
            if self.rest.len() < header_bytes + header.value_bytes {
                break;
            }
            self.rest.advance(header_bytes);
            let value = self.rest.split_to(header.value_bytes).freeze();
            pairs.push(Pair { key: header.key, value, expires_at_s: header.expires_at_s });
        }
        Ok(pairs)
    }

    /// Checks the end; fails with `Invalid` when a pair is unfinished.
    pub fn finish(self) -> Result<()> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Error::invalid("the snapshot ends within a pair")),
        }
    }
}

struct PairHeader {
    key: Bytes,
    value_bytes: usize,
    expires_at_s: u64,
}

/// Decodes what precedes a value, and its length; `None` when more bytes are needed.
fn decode_header(bytes: &[u8]) -> Result<Option<(usize, PairHeader)>> {
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
    let header = PairHeader { key: Bytes::copy_from_slice(key), value_bytes, expires_at_s };
    Ok(Some((bytes.len() - rest.len(), header)))
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
        let mut bytes = Vec::new();
        pairs.iter().for_each(|pair| encode(pair, &mut bytes));
        for chunk in [1, 7, 1000, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for part in bytes.chunks(chunk) {
                found.extend(decoder.push(part).unwrap());
            }
            decoder.finish().unwrap();
            assert_eq!(found, pairs, "chunks of {chunk}");
        }
    }

    #[test]
    fn bytes_that_can_be_no_pair_are_refused_and_hold_no_memory() {
        let mut decoder = Decoder::default();
        assert!(decoder.push(&[0xff; KEY_BYTES_MAX * 2]).is_err());
        let mut decoder = Decoder::default();
        decoder.push(&[200, 1, 1, 2, 3]).unwrap();
        assert!(decoder.finish().is_err());
    }
}
