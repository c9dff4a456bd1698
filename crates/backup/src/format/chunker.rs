//! Cuts pairs into chunks where their keys say so, so that a change moves no cut but those beside it.

use super::chunk::{CHUNK_BYTES_MAX, Chunk, Pair};
use stele_types::checksum::crc32c;

/// Least bytes of a chunk, unless its part ends.
const CHUNK_BYTES_MIN: usize = 256 << 10;
/// Mean bytes from the least size to the cut.
const CUT_INTERVAL_BYTES: u64 = 768 << 10;

/// Pairs of a part on their way into chunks. It holds at most one chunk.
#[derive(Debug, Default)]
pub struct Chunker {
    pairs: Vec<Pair>,
    bytes: usize,
}

impl Chunker {
    /// Adds the next pair of the part. Returns the chunk that ends before it, if one does.
    #[must_use]
    pub fn push(&mut self, pair: Pair) -> Option<Chunk> {
        let bytes = pair.encoded_bytes();
        let is_full = !self.pairs.is_empty() && self.bytes + bytes > CHUNK_BYTES_MAX;
        let is_cut = self.bytes >= CHUNK_BYTES_MIN && cuts_before(&pair.key, bytes);
        let ended = if is_full || is_cut { self.finish() } else { None };
        self.bytes += bytes;
        self.pairs.push(pair);
        ended
    }

    /// Ends the part. Returns its last chunk, if pairs are left.
    #[must_use]
    pub fn finish(&mut self) -> Option<Chunk> {
        self.bytes = 0;
        let pairs = std::mem::take(&mut self.pairs);
        (!pairs.is_empty()).then_some(Chunk { pairs })
    }
}

/// Decides by the key. Large pairs cut as much more often as they are larger, so that chunks have one mean size.
fn cuts_before(key: &[u8], pair_bytes: usize) -> bool {
    // The checksums of keys that differ in a digit differ in few bits: the finalizer of splitmix64 spreads them.
    let mut hash = u64::from(crc32c(key)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash ^ (hash >> 31)) % CUT_INTERVAL_BYTES < pair_bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn pairs(count: usize, value_bytes: usize) -> Vec<Pair> {
        let pair = |n| Pair {
            key: format!("user{n:09}").into(),
            value: vec![n as u8; value_bytes].into(),
            expires_at_s: 0,
        };
        (0..count).map(pair).collect()
    }

    fn chunks(pairs: &[Pair]) -> Vec<Chunk> {
        let mut chunker = Chunker::default();
        let mut chunks: Vec<Chunk> =
            pairs.iter().cloned().filter_map(|pair| chunker.push(pair)).collect();
        chunks.extend(chunker.finish());
        chunks
    }

    #[test]
    fn chunks_hold_all_pairs_in_order_within_the_sizes() {
        for (count, value_bytes) in
            [(0, 0), (1, 9 << 20), (40_000, 100), (3_000, 10_000), (9, 5 << 20)]
        {
            let pairs = pairs(count, value_bytes);
            let chunks = chunks(&pairs);
            let joined: Vec<Pair> = chunks.iter().flat_map(|chunk| chunk.pairs.clone()).collect();
            assert_eq!(joined, pairs);
            for (at, chunk) in chunks.iter().enumerate() {
                let bytes: usize = chunk.pairs.iter().map(Pair::encoded_bytes).sum();
                assert!(bytes <= CHUNK_BYTES_MAX || chunk.pairs.len() == 1);
                assert!(bytes >= CHUNK_BYTES_MIN || at + 1 == chunks.len());
            }
        }
    }

    #[test]
    fn a_change_moves_the_cuts_beside_it_only() {
        let before = pairs(60_000, 400);
        let mut after = before.clone();
        after.remove(30_000);
        after[10].value = "short".into();
        let names = |pairs: &[Pair]| -> BTreeSet<_> {
            chunks(pairs).iter().map(|chunk| chunk.encoded().name).collect()
        };
        let (before, after) = (names(&before), names(&after));
        assert!(before.len() > 12, "{}", before.len());
        assert!(after.difference(&before).count() <= 4, "{}", after.difference(&before).count());
    }
}
