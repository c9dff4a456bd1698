//! Keys, values and key choices, all from a seed.

use stele_types::Prng;

/// Length of every key.
pub const KEY_BYTES: usize = 16;
/// Size of the random bytes from which values are cut; they do not compress.
const POOL_BYTES: usize = 4 << 20;
/// Constant of YCSB's Zipf distribution.
const ZIPF_THETA: f64 = 0.99;

/// Maps numbers to scattered numbers, one to one.
pub fn scatter(number: u64) -> u64 {
    Prng::new(number).draw()
}

/// Returns the key of a number. Consecutive numbers give distinct keys in random order.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let (high, low) = key.split_at_mut(KEY_BYTES / 2);
    high.copy_from_slice(&scatter(number).to_be_bytes());
    low.copy_from_slice(&number.to_be_bytes());
    key
}

/// Random bytes from which values are cut.
pub struct Values {
    pool: Vec<u8>,
    bytes: usize,
}

impl Values {
    /// Creates the bytes for values of length `bytes`.
    pub fn new(bytes: usize) -> Self {
        let mut random = Prng::new(bytes as u64);
        let words = (POOL_BYTES + bytes).div_ceil(8);
        let pool = (0..words).flat_map(|_| random.draw().to_le_bytes()).collect();
        Self { pool, bytes }
    }

    /// Returns a random value.
    pub fn any(&self, random: &mut Prng) -> &[u8] {
        let from = random.below(POOL_BYTES as u64) as usize;
        self.pool.get(from..from + self.bytes).unwrap_or_default()
    }
}

/// Zipf's distribution by the method of Gray et al., "Quickly generating billion-record synthetic
/// databases" (SIGMOD 1994).
#[derive(Clone, Debug)]
pub struct Zipf {
    keys: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Creates the distribution over ranks below `keys`.
    pub fn new(keys: u64) -> Self {
        let term = |rank: u64| (rank as f64).powf(-ZIPF_THETA);
        let zeta: f64 = (1..=keys).map(term).sum();
        let n = keys as f64;
        let first_two = term(1) + term(2);
        let eta = (1.0 - (2.0 / n).powf(1.0 - ZIPF_THETA)) / (1.0 - first_two / zeta);
        Self { keys: n, zeta, alpha: 1.0 / (1.0 - ZIPF_THETA), eta }
    }

    /// Draws a rank; 0 is the most frequent.
    pub fn rank(&self, random: &mut Prng) -> u64 {
        let unit = (random.draw() >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(ZIPF_THETA) {
            return 1;
        }
        let rank = (self.keys * (self.eta * unit - self.eta + 1.0).powf(self.alpha)) as u64;
        rank.min(self.keys as u64 - 1)
    }

    /// Draws the number of a key; the ranks are scattered over the keys.
    pub fn scattered(&self, random: &mut Prng) -> u64 {
        scatter(self.rank(random)) % self.keys as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_distinct_and_in_random_order() {
        let keys: Vec<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        let ascending = keys.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_500..5_500).contains(&ascending), "{ascending}");
    }

    #[test]
    fn the_first_tenth_of_the_ranks_is_chosen_most() {
        let (zipf, mut random) = (Zipf::new(1_000), Prng::new(1));
        let ranks: Vec<u64> = (0..100_000).map(|_| zipf.rank(&mut random)).collect();
        assert!(ranks.iter().all(|rank| *rank < 1_000));
        let hot = ranks.iter().filter(|rank| **rank < 100).count();
        assert!((60_000..80_000).contains(&hot), "{hot}");
    }
}
