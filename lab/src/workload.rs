//! Keys and values, all from a seed.

use anyhow::Result;
use stele_engine::{Batch, Db};
use stele_types::Prng;

pub(crate) const KEY_BYTES: usize = 16;
/// Size of the random bytes from which values are cut.
const POOL_BYTES: usize = 4 << 20;

/// Returns the key of a number. Consecutive numbers give distinct keys in random order.
pub(crate) fn key(number: u64) -> [u8; KEY_BYTES] {
    // The first number of a seed is a bijection of it.
    let scattered = |number: u64| Prng::new(number).draw().to_be_bytes();
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&scattered(number));
    key[8..].copy_from_slice(&scattered(number ^ 0x5851_f42d_4c95_7f2d));
    key
}

/// Random bytes, which do not compress.
pub(crate) struct Values {
    pool: Vec<u8>,
}

impl Values {
    /// Creates the bytes for values of up to `bytes_max`.
    pub(crate) fn new(seed: u64, bytes_max: usize) -> Self {
        let mut random = Prng::new(seed);
        let words = (POOL_BYTES + bytes_max).div_ceil(8);
        Self { pool: (0..words).flat_map(|_| random.draw().to_le_bytes()).collect() }
    }

    /// Returns a random value of `bytes`.
    pub(crate) fn any(&self, random: &mut Prng, bytes: usize) -> &[u8] {
        let from = random.below(POOL_BYTES as u64) as usize;
        &self.pool[from..from + bytes]
    }
}

/// Puts the keys below `keys`, `batch_keys` in each batch, and passes the number of those that are written to `each`.
pub(crate) fn load(
    db: &Db,
    (keys, batch_keys): (u64, u64),
    value_bytes: usize,
    mut each: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let (values, mut random) = (Values::new(1, value_bytes), Prng::new(1));
    let mut next = 0;
    while next < keys {
        let mut batch = Batch::new();
        for number in next..(next + batch_keys).min(keys) {
            batch.put(&key(number), values.any(&mut random, value_bytes))?;
        }
        next += batch.len() as u64;
        db.write(batch)?;
        each(next)?;
    }
    Ok(())
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
}
