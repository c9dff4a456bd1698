//! Cache of recently read values, by location. A location is written once and its file number is
//! never reused, so a cached value cannot be stale.

use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_types::Locator;

const ENTRY_OVERHEAD_BYTES: u64 = 96;
/// One value must not evict a large part of the others.
const LARGEST_VALUE_SHARE: u64 = 32;
/// The cache drops, without an error, a value that exceeds a shard. By default the number of shards
/// follows the processors, and shards of a large machine hold no large value.
/// Invariant: a shard holds four of the largest values.
const SHARDS: usize = 8;

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<u64, Bytes> for Weight {
    fn weight(&self, _: &u64, value: &Bytes) -> u64 {
        value.len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

#[derive(Debug)]
pub(crate) struct ValueCache {
    values: Option<Cache<u64, Bytes, Weight>>,
    value_bytes_max: u64,
    /// Whether a value was ever added.
    is_used: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl ValueCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        // A cache smaller than a few values only costs copies.
        const BYTES_MIN: usize = 64 << 10;
        let values = if bytes_max >= BYTES_MIN { cache(bytes_max) } else { None };
        let value_bytes_max = bytes_max as u64 / LARGEST_VALUE_SHARE;
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { values, value_bytes_max, is_used: AtomicBool::new(false), hits, misses }
    }

    /// Returns whether it may hold values.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, at: &Locator) -> Option<Bytes> {
        let found = self.values.as_ref()?.get(&at.lsn().as_u64())?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Returns whether it holds a value, without counting it as found.
    pub(crate) fn contains(&self, at: &Locator) -> bool {
        self.values.as_ref().is_some_and(|values| values.contains_key(&at.lsn().as_u64()))
    }

    pub(crate) fn insert(&self, at: &Locator, value: &Bytes) {
        self.insert_with(at, value.len(), || value.clone());
    }

    /// Adds a copy of a value that may share the memory of other values.
    ///
    /// Invariant: a value in the cache keeps no memory but its own: more than its bytes would not count.
    /// Test: `a_cached_value_keeps_no_memory_of_the_values_that_it_was_read_with`.
    pub(crate) fn insert_copy(&self, at: &Locator, value: &Bytes) {
        // bug engine.cached_value_keeps_its_read: return self.insert(at, value);
        self.insert_with(at, value.len(), || Bytes::copy_from_slice(value));
    }

    fn insert_with(&self, at: &Locator, value_bytes: usize, value: impl FnOnce() -> Bytes) {
        let Some(values) = &self.values else { return };
        self.misses.fetch_add(1, Ordering::Relaxed);
        if value_bytes as u64 <= self.value_bytes_max {
            values.insert(at.lsn().as_u64(), value());
            // Only the first time, so that readers do not wait for the memory of a flag.
            if !self.is_used() {
                self.is_used.store(true, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.values.as_ref().map_or(0, Cache::weight)
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
}

/// Returns a cache of `bytes_max`; `None` only if an option were missing.
fn cache(bytes_max: usize) -> Option<Cache<u64, Bytes, Weight>> {
    const VALUE_BYTES_EXPECTED: usize = 1 << 10;
    // bug engine.value_cache_shards_by_processors: `SHARDS` is `64`
    let options = OptionsBuilder::new()
        .shards(SHARDS)
        .estimated_items_capacity((bytes_max / VALUE_BYTES_EXPECTED).min(1 << 20))
        .weight_capacity(bytes_max as u64)
        .build();
    let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
    Some(Cache::with_options(options.ok()?, Weight, hasher, lifecycle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::FileId;

    #[test]
    fn the_cache_keeps_to_its_bytes_and_counts_what_it_found() {
        let cache = ValueCache::new(256 << 10);
        let at = |n: u32| Locator { file: FileId(1), offset: n * 4096, length: 4096, crc: 0 };
        for n in 0..1000 {
            assert!(cache.get(&at(n)).is_none());
            cache.insert(&at(n), &Bytes::from(vec![n as u8; 4096]));
            assert!(cache.bytes() <= 256 << 10);
        }
        let kept =
            (0..1000).filter(|&n| cache.get(&at(n)).is_some_and(|v| v[0] == n as u8)).count();
        assert!(kept > 16, "{kept} of 1000 values were kept");
        assert_eq!(cache.counts(), (kept as u64, 1000));
        cache.insert(&at(0), &Bytes::from(vec![0; 64 << 10]));
        assert!(cache.get(&at(0)).is_none_or(|v| v.len() == 4096));
    }

    #[test]
    fn the_largest_values_are_kept_on_machines_of_any_number_of_processors() {
        let cache = ValueCache::new(8 << 20);
        let at = Locator { file: FileId(1), offset: 0, length: 256 << 10, crc: 0 };
        cache.insert(&at, &Bytes::from(vec![7; 256 << 10]));
        assert!(cache.get(&at).is_some());
    }
}
