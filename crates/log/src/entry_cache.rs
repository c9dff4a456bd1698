//! Payloads of recent entries by position: after direct writes the page cache has none of them.

use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::Lsn;

const ENTRY_BYTES_TYPICAL: usize = 4 << 10;
const OVERHEAD_BYTES: u64 = 64;

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<u64, Bytes> for ByBytes {
    fn weight(&self, _at: &u64, payload: &Bytes) -> u64 {
        payload.len() as u64 + OVERHEAD_BYTES
    }
}

/// Positions are never given to another entry, so nothing here can be stale.
#[derive(Debug)]
pub(crate) struct EntryCache {
    cache: Option<Cache<u64, Bytes, ByBytes>>,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
}

impl EntryCache {
    pub fn new(bytes_max: usize) -> Self {
        let count = bytes_max / ENTRY_BYTES_TYPICAL + 16;
        let cache = (bytes_max > 0).then(|| Cache::with_weighter(count, bytes_max as u64, ByBytes));
        Self { cache, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    pub fn insert(&self, at: Lsn, payload: &Bytes) {
        if let Some(cache) = &self.cache {
            cache.insert(at.as_u64(), payload.clone());
        }
    }

    pub fn get(&self, at: Lsn) -> Option<Bytes> {
        let found = self.cache.as_ref().and_then(|cache| cache.get(&at.as_u64()));
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub fn used_bytes(&self) -> u64 {
        self.cache.as_ref().map_or(0, Cache::weight)
    }
}
