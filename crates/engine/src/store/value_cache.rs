//! Cache of recently read values, by location. A location is written once and its file number is
//! never reused, so a cached value cannot be stale.

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::Locator;

/// Cost of an entry besides its bytes.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

#[derive(Clone, Debug)]
struct Weight;

impl Weighter<u64, Bytes> for Weight {
    fn weight(&self, _: &u64, value: &Bytes) -> u64 {
        value.len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// A cache of values with a byte limit.
#[derive(Debug)]
pub(crate) struct ValueCache {
    values: Option<Cache<u64, Bytes, Weight>>,
    value_bytes_max: u64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl ValueCache {
    pub fn new(bytes_max: usize) -> Self {
        // A cache smaller than a few values only costs copies.
        const BYTES_MIN: usize = 64 << 10;
        const VALUE_BYTES_EXPECTED: usize = 1 << 10;
        let values = (bytes_max >= BYTES_MIN).then(|| {
            let items = (bytes_max / VALUE_BYTES_EXPECTED).min(1 << 20);
            Cache::with_weighter(items, bytes_max as u64, Weight)
        });
        // One value must not evict a large part of the others.
        let value_bytes_max = bytes_max as u64 / 32;
        Self { values, value_bytes_max, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    pub fn get(&self, at: &Locator) -> Option<Bytes> {
        let found = self.values.as_ref()?.get(&at.lsn().as_u64())?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(found)
    }

    /// Adds a value that was read after a miss.
    pub fn insert(&self, at: &Locator, value: &Bytes) {
        let Some(values) = &self.values else { return };
        self.misses.fetch_add(1, Ordering::Relaxed);
        if value.len() as u64 <= self.value_bytes_max {
            values.insert(at.lsn().as_u64(), value.clone());
        }
    }

    pub fn bytes(&self) -> u64 {
        self.values.as_ref().map_or(0, Cache::weight)
    }

    /// Returns hits and misses so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits.load(Ordering::Relaxed), self.misses.load(Ordering::Relaxed))
    }
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
}
