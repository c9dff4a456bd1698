//! The hash index: from a key's hash directly to its block and slot.
//!
//! ```text
//! part := cell:u32le* trailer     (16 cells to a bucket; all ones: empty)
//! cell := fingerprint:(24 - b) | block:b | slot:8         (b bits hold every block number)
//! ```
//! A key lies in its home bucket, or, when that is full, in the next one with a free cell. 85 % of
//! the cells are used: 4.7 bytes per key. With 64 MiB runs the fingerprint has 10 bits, so about
//! one get in seventy reads a second block.

const BUCKET: usize = 16;
const EMPTY: u32 = u32::MAX;
const SLOT_BITS: u32 = 8;
/// Maximum number of block bits: with more, too few are left for fingerprints.
const BLOCK_BITS_MAX: u32 = 20;

/// A hash index in memory.
#[derive(Debug)]
pub(super) struct HashIndex {
    cells: Box<[u32]>,
    block_bits: u32,
}

/// Possible location of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: u32,
    pub(super) slot: u8,
}

/// Returns the size of the part for a number of keys, without its trailer.
pub(super) fn bytes_for(keys: usize) -> usize {
    (keys * 20).div_ceil(17 * BUCKET) * BUCKET * 4
}

impl HashIndex {
    /// Builds an index; `None` when there are too many blocks or no keys.
    pub(super) fn build(hashes: &[u64], places: &[Place], blocks: usize) -> Option<Self> {
        // Bits for one more than the highest block number, so that no cell is all ones.
        let block_bits = usize::BITS - blocks.leading_zeros();
        if hashes.is_empty() || block_bits > BLOCK_BITS_MAX {
            return None;
        }
        let cells = vec![EMPTY; bytes_for(hashes.len()) / 4].into_boxed_slice();
        let mut index = Self { cells, block_bits };
        for (&hash, place) in hashes.iter().zip(places) {
            let cell = index.fingerprint(hash) | place.block << SLOT_BITS | u32::from(place.slot);
            let home = index.home(hash);
            let (before, from) = index.cells.split_at_mut(home);
            let free = from.iter_mut().chain(before).find(|cell| **cell == EMPTY);
            if let Some(free) = free {
                *free = cell;
            }
        }
        Some(index)
    }

    /// Returns the first cell of the home bucket.
    fn home(&self, hash: u64) -> usize {
        let buckets = (self.cells.len() / BUCKET) as u128;
        ((u128::from(hash) * buckets) >> 64) as usize * BUCKET
    }

    /// Returns the fingerprint of a hash, shifted above the block number.
    fn fingerprint(&self, hash: u64) -> u32 {
        ((hash as u32) >> (SLOT_BITS + self.block_bits)) << (SLOT_BITS + self.block_bits)
    }

    /// Returns the possible places of a key with this hash; if the key exists, its place is among
    /// them.
    #[inline]
    pub(super) fn places(&self, hash: u64) -> impl Iterator<Item = Place> {
        let (fingerprint, low) = (self.fingerprint(hash), (1 << (SLOT_BITS + self.block_bits)) - 1);
        let (before, from) = self.cells.split_at_checked(self.home(hash)).unwrap_or_default();
        let taken = from.iter().chain(before).take_while(|cell| **cell != EMPTY);
        taken
            .filter(move |cell| **cell & !low == fingerprint)
            .map(move |cell| Place { block: (cell & low) >> SLOT_BITS, slot: *cell as u8 })
    }

    pub(super) fn block_bits(&self) -> u8 {
        self.block_bits as u8
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.cells.iter().for_each(|cell| out.extend_from_slice(&cell.to_le_bytes()));
    }

    /// Decodes a part; `None` when it is not whole buckets or `block_bits` is impossible.
    pub(super) fn decode(part: &[u8], block_bits: u8) -> Option<Self> {
        let block_bits = u32::from(block_bits);
        if part.is_empty() || !part.len().is_multiple_of(BUCKET * 4) || block_bits > BLOCK_BITS_MAX
        {
            return None;
        }
        let cells = part.as_chunks().0.iter().map(|cell| u32::from_le_bytes(*cell)).collect();
        Some(Self { cells, block_bits })
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_hash;
    use super::*;

    #[test]
    fn every_key_is_found_where_it_lies() {
        let count = 30_000u32;
        let hashes: Vec<u64> = (0..count).map(|i| key_hash(&i.to_be_bytes())).collect();
        let place = |i: u32| Place { block: i / 100, slot: (i % 100) as u8 };
        let places: Vec<Place> = (0..count).map(place).collect();
        let built = HashIndex::build(&hashes, &places, 300).unwrap();
        let mut out = Vec::new();
        built.encode(&mut out);
        assert_eq!(out.len(), bytes_for(count as usize));
        assert!(out.len() as f64 / f64::from(count) < 4.8);
        let index = HashIndex::decode(&out, built.block_bits()).unwrap();
        let mut candidates = 0;
        for (hash, place) in hashes.iter().zip(&places) {
            assert!(index.places(*hash).any(|found| found == *place));
            candidates += index.places(*hash).count();
        }
        assert!(candidates < count as usize * 101 / 100, "{candidates}");
        assert!(HashIndex::decode(&out[4..], 9).is_none());
    }

    #[test]
    fn full_buckets_run_over_around_the_end() {
        let hashes = [u64::MAX; 40];
        let places: Vec<Place> = (0..40).map(|slot| Place { block: 3, slot }).collect();
        let index = HashIndex::build(&hashes, &places, 4).unwrap();
        assert_eq!(index.places(u64::MAX).count(), 40);
        assert_eq!(index.places(0).filter(|p| p.slot == 0).count(), 0);
    }
}
