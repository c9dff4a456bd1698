//! Sample of the requested keys of each region, so that a busy region is split where its load
//! halves and not where its bytes do.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_types::{KeyRange, RegionId, redis_key};

const SAMPLE_EVERY: u64 = 64;
/// Sampled keys of a region; later ones replace earlier ones.
const KEYS_MAX: usize = 128;
/// Smallest sample that shows where the load halves.
const KEYS_MIN: usize = 32;
/// Regions with samples; at this number all samples are dropped.
const REGIONS_MAX: usize = 4096;

/// Sampled keys by region.
#[derive(Debug, Default)]
pub struct LoadSamples {
    seen: AtomicU64,
    keys: Mutex<HashMap<RegionId, Vec<Bytes>>>,
}

impl LoadSamples {
    /// Counts a request for `key`, and samples every 64th key.
    pub fn offer(&self, region: RegionId, key: &[u8]) {
        let seen = self.seen.fetch_add(1, Relaxed);
        if !seen.is_multiple_of(SAMPLE_EVERY) {
            return;
        }
        let mut keys = self.keys.lock();
        if keys.len() >= REGIONS_MAX {
            keys.clear();
        }
        let sample = keys.entry(region).or_default();
        if sample.len() == KEYS_MAX {
            sample.swap_remove((seen / SAMPLE_EVERY) as usize % KEYS_MAX);
        }
        sample.push(Bytes::copy_from_slice(key));
    }

    /// Returns a key strictly inside `range` with half of the sampled load on either side; `None`
    /// if the sample is too small or most of the load is on one key. Drops the sample.
    pub fn split_key(&self, region: RegionId, range: &KeyRange) -> Option<Bytes> {
        let mut keys = self.keys.lock().remove(&region)?;
        keys.retain(|key| range.contains(key));
        if keys.len() < KEYS_MIN {
            return None;
        }
        keys.sort_unstable();
        let middle = redis_key::border(keys.get(keys.len() / 2)?);
        let same = keys.iter().filter(|key| **key == middle).count();
        (middle > range.start && same * 2 < keys.len()).then_some(middle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_split_where_it_halves_and_not_at_a_single_hot_key() {
        let samples = LoadSamples::default();
        let range = KeyRange::all();
        for n in 0..64 * 100u64 {
            samples.offer(RegionId(1), format!("k{:04}", n / 64).as_bytes());
            samples.offer(RegionId(2), b"hot");
        }
        let middle = samples.split_key(RegionId(1), &range).unwrap();
        assert!(middle > b"k0030"[..] && middle < b"k0070"[..], "{middle:?}");
        assert_eq!(samples.split_key(RegionId(1), &range), None, "the sample is dropped");
        assert_eq!(samples.split_key(RegionId(2), &range), None, "one key cannot be split");
    }
}
