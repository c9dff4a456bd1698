//! The records of a benchmark: keys of a fixed length, values nothing can compress.

use super::choice::{Prng, mix};
use crate::args::Load;
use bytes::Bytes;

/// Keys and values, the same for the same seed.
pub struct Records {
    key_bytes: usize,
    value_bytes: usize,
    ordered: bool,
    noise: Bytes,
}

/// Values are slices of this much noise beyond their own length, at places that differ.
const NOISE_BYTES: usize = 1 << 20;

impl Records {
    pub fn new(load: &Load) -> Self {
        let (key_bytes, value_bytes) = (load.key_bytes as usize, load.value_bytes as usize);
        let mut prng = Prng::new(load.seed ^ 0x6e6f_6973_6500);
        let words = (value_bytes + NOISE_BYTES) / 8 + 1;
        let noise = (0..words).flat_map(|_| prng.next().to_le_bytes()).collect::<Vec<u8>>();
        Self { key_bytes, value_bytes, ordered: load.ordered, noise: noise.into() }
    }

    /// The key of record `index`: eight bytes that differ for each record, then filling.
    pub fn key(&self, index: u64) -> Vec<u8> {
        // `mix` maps numbers one to one, so no two records share a key.
        let number = if self.ordered { index } else { mix(index) };
        let mut key = number.to_be_bytes().to_vec();
        key.resize(self.key_bytes, b'.');
        key
    }

    /// A value. Nothing is copied: the generator's own work would be measured.
    pub fn value(&self, prng: &mut Prng) -> Bytes {
        let at = prng.below(NOISE_BYTES as u64) as usize;
        self.noise.slice(at..at + self.value_bytes)
    }

    /// Bytes of one record.
    pub fn record_bytes(&self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }
}
