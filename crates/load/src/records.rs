//! Records of a benchmark: keys of a fixed length and incompressible values.

use crate::args::Load;
use crate::choice::mix;
use bytes::Bytes;
use stele_types::Prng;

/// Generator of keys and values, determined by the seed.
pub struct Records {
    key_bytes: usize,
    value_bytes: usize,
    ordered: bool,
    noise: Bytes,
}

/// Bytes of noise in addition to one value; values are slices at random offsets.
const NOISE_BYTES: usize = 1 << 20;

impl Records {
    /// Returns the records of a load.
    pub fn new(load: &Load) -> Self {
        Self::with(load.key_bytes, load.value_bytes, load.ordered, load.seed)
    }

    /// Returns records of these lengths, in key order or scattered.
    pub fn with(key_bytes: u64, value_bytes: u64, ordered: bool, seed: u64) -> Self {
        let (key_bytes, value_bytes) = (key_bytes as usize, value_bytes as usize);
        let mut prng = Prng::new(seed ^ 0x6e6f_6973_6500);
        let words = (value_bytes + NOISE_BYTES) / 8 + 1;
        let noise = (0..words).flat_map(|_| prng.draw().to_le_bytes()).collect::<Vec<u8>>();
        Self { key_bytes, value_bytes, ordered, noise: noise.into() }
    }

    /// Returns the key of record `index`: eight bytes unique to the record, then padding.
    pub fn key(&self, index: u64) -> Vec<u8> {
        // `mix` is one to one, so no two records share a key.
        let number = if self.ordered { index } else { mix(index) };
        let mut key = number.to_be_bytes().to_vec();
        key.resize(self.key_bytes, b'.');
        key
    }

    /// Returns a value without copying it: a copy would be measured as work of the generator.
    pub fn value(&self, prng: &mut Prng) -> Bytes {
        let at = prng.below(NOISE_BYTES as u64) as usize;
        self.noise.slice(at..at + self.value_bytes)
    }

    /// Returns the bytes of one record, key and value.
    pub fn record_bytes(&self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }
}
