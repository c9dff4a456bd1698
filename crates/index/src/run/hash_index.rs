//! The hash index: from a key's hash directly to its block and slot. The hash, which filters use
//! too, is part of the file format.
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

#[derive(Debug)]
pub(super) struct HashIndex {
    cells: Box<[u32]>,
    block_bits: u32,
}

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

    fn home(&self, hash: u64) -> usize {
        let buckets = (self.cells.len() / BUCKET) as u128;
        ((u128::from(hash) * buckets) >> 64) as usize * BUCKET
    }

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

const SEEDS: [u64; 4] =
    [0x2d35_8dcc_aa6c_78a5, 0x8bb8_4b93_962e_acc9, 0x4b33_a62e_d433_d4a3, 0x4d5a_2da5_1de1_aa47];

/// Multiplies and folds: both halves of the product mix.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

/// Computes a 64-bit hash of a key, the same on every machine.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    let mut hash = SEEDS[0] ^ key.len() as u64;
    let mut pairs = key.chunks_exact(16);
    for pair in &mut pairs {
        let (low, high) = pair.split_at(8);
        hash = fold(word(low) ^ SEEDS[1], word(high) ^ hash);
    }
    let rest = pairs.remainder();
    if !rest.is_empty() {
        let (low, high) = rest.split_at(rest.len().min(8));
        hash = fold(word(low) ^ SEEDS[2], word(high) ^ hash);
    }
    fold(hash ^ SEEDS[3], SEEDS[1])
}

pub(super) const LINE_BYTES: usize = 64;

/// Prefetches the cache line of `bytes[at]`, if it exists. Only a hint.
#[inline(always)]
pub(super) fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes nothing and cannot fault, and the address is that of a byte
        // borrowed here.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

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

    #[test]
    fn the_hash_is_fixed_because_files_hold_it() {
        assert_eq!(key_hash(b""), key_hash(b""));
        let all: Vec<u64> = (0..40).map(|n| key_hash(&vec![b'k'; n])).collect();
        let folded = all.iter().fold(0u64, |sum, hash| sum.rotate_left(7) ^ hash);
        assert_eq!(folded, FOLDED_OF_40);
    }

    const FOLDED_OF_40: u64 = 7_221_974_898_750_981_919;

    #[test]
    fn similar_keys_hash_apart_in_high_and_low_bits() {
        let keys = (0..100_000u64).map(|i| format!("user{i:012}"));
        let hashes: Vec<u64> = keys.map(|key| key_hash(key.as_bytes())).collect();
        assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
        for shift in [0, 16, 32, 48] {
            let mut counts = [0u32; 256];
            hashes.iter().for_each(|hash| counts[(hash >> shift) as usize & 255] += 1);
            assert!(counts.iter().all(|count| (280..510).contains(count)), "{counts:?}");
        }
    }
}
