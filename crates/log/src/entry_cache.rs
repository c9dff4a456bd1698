//! Payloads of the most recent entries by position. Direct writes leave none of them in the page
//! cache, and replication reads the newest entries.

use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::Lsn;
use stele_types::lock::{Mutex, rank};

const OVERHEAD_BYTES: u64 = 64;

/// Invariant: positions ascend and are never reused, so no entry here is stale.
#[derive(Debug)]
pub(crate) struct EntryCache {
    bytes_max: u64,
    recent: Mutex<Recent, { rank::LOG_ENTRY_CACHE }>,
    pub hits: AtomicU64,
    pub misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Recent {
    /// In ascending order of position.
    entries: VecDeque<(Lsn, Bytes)>,
    bytes: u64,
}

fn weight(payload: &Bytes) -> u64 {
    payload.len() as u64 + OVERHEAD_BYTES
}

impl EntryCache {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max: bytes_max as u64,
            recent: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Adds a batch's payloads and evicts the oldest above the limit.
    pub(crate) fn insert<'a>(&self, payloads: impl Iterator<Item = (Lsn, &'a Bytes)>) {
        if self.bytes_max == 0 {
            return;
        }
        let mut recent = self.recent.lock();
        for (at, payload) in payloads {
            debug_assert!(recent.entries.back().is_none_or(|(last, _)| *last < at));
            recent.bytes += weight(payload);
            recent.entries.push_back((at, payload.clone()));
            while recent.bytes > self.bytes_max {
                let Some((_, oldest)) = recent.entries.pop_front() else { break };
                recent.bytes -= weight(&oldest);
            }
        }
    }

    pub(crate) fn get(&self, at: Lsn) -> Option<Bytes> {
        let found = {
            let recent = self.recent.lock();
            let place = recent.entries.binary_search_by_key(&at, |(at, _)| *at).ok();
            place.and_then(|place| recent.entries.get(place)).map(|(_, payload)| payload.clone())
        };
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.recent.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::FileId;

    #[test]
    fn the_newest_stay_within_the_limit() {
        let cache = EntryCache::new(1000);
        let payload = Bytes::from(vec![7; 136]);
        let at = |n: u32| Lsn::new(FileId(1 + n / 6), 512 * (n % 6));
        cache.insert((0..12).map(|n| (at(n), &payload)));
        assert_eq!(cache.used_bytes(), 1000);
        let found: Vec<u32> = (0..13).filter(|n| cache.get(at(*n)).is_some()).collect();
        assert_eq!(found, [7, 8, 9, 10, 11]);
        cache.insert([(at(12), &Bytes::from(vec![0; 1000]))].into_iter());
        assert_eq!((cache.used_bytes(), cache.get(at(11)), cache.get(at(12))), (0, None, None));
    }
}
