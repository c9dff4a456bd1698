//! Keys, values and key choices, all from a seed.

use std::ops::Range;

/// Length of every key.
pub const KEY_BYTES: usize = 16;
/// Size of the random bytes from which values are cut.
const POOL_BYTES: usize = 4 << 20;
/// Constant of YCSB's Zipf distribution.
const ZIPF_THETA: f64 = 0.99;

fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Random number sequence (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws a number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Draws a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.any() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Returns the key of a number. Consecutive numbers give distinct keys in random order, because the
/// mix is a bijection.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&mix(number.wrapping_add(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
    key[8..].copy_from_slice(&mix(number ^ 0x5851_f42d_4c95_7f2d).to_be_bytes());
    key
}

/// Random bytes, which do not compress.
pub struct Values {
    pool: Vec<u8>,
    random: Random,
}

impl Values {
    /// Creates the bytes for values of up to `bytes_max`.
    pub fn new(seed: u64, bytes_max: usize) -> Self {
        let mut random = Random::new(seed);
        let words = (POOL_BYTES + bytes_max).div_ceil(8);
        let pool = (0..words).flat_map(|_| random.any().to_le_bytes()).collect();
        Self { pool, random }
    }

    /// Returns the position of the next value, for [`Values::get`].
    pub fn next_range(&mut self, bytes: usize) -> Range<usize> {
        let from = self.random.below(POOL_BYTES as u64) as usize;
        from..from + bytes
    }

    /// Returns the value at a position.
    pub fn get(&self, range: Range<usize>) -> &[u8] {
        &self.pool[range]
    }

    /// Returns the next value.
    pub fn next(&mut self, bytes: usize) -> &[u8] {
        let range = self.next_range(bytes);
        self.get(range)
    }
}

/// Distribution of the keys to write.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Uniform.
    Uniform,
    /// Nine of ten writes go to a tenth of the keys.
    Hot,
    /// Zipf's distribution, with ranks scattered over the keys.
    Zipf(Zipf),
}

impl Choice {
    /// Draws the number of the next key.
    pub fn next(&self, random: &mut Random, keys: u64) -> u64 {
        match self {
            Self::Uniform => random.below(keys),
            Self::Hot if random.below(10) < 9 => random.below((keys / 10).max(1)),
            Self::Hot => random.below(keys),
            Self::Zipf(zipf) => mix(zipf.rank(random)) % keys,
        }
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

    fn rank(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(ZIPF_THETA) {
            return 1;
        }
        (self.keys * (self.eta * unit - self.eta + 1.0).powf(self.alpha)) as u64
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
    fn choices_have_their_shares() {
        let keys = 1_000;
        let hottest = |choice: &Choice| {
            let mut random = Random::new(1);
            let mut counts = vec![0u32; keys as usize];
            for _ in 0..100_000 {
                counts[choice.next(&mut random, keys) as usize] += 1;
            }
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts[..100].iter().sum::<u32>()
        };
        let (uniform, hot, zipf) = (
            hottest(&Choice::Uniform),
            hottest(&Choice::Hot),
            hottest(&Choice::Zipf(Zipf::new(keys))),
        );
        assert!((10_000..13_000).contains(&uniform), "{uniform}");
        assert!((90_000..92_500).contains(&hot), "{hot}");
        assert!((60_000..80_000).contains(&zipf), "{zipf}");
    }
}
