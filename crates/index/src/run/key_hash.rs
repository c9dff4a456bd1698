//! Hash of keys in filters and hash indexes. It is part of the file format.

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

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
