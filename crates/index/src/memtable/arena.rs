//! Memory of one memtable: 8-byte words, allocated once and freed together.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words in the first bucket (64 KiB); each further bucket is twice as large. Memory that was never
/// written is not resident, so limits apply to `used_bytes`.
const FIRST_WORDS: usize = 8 << 10;
/// Enough buckets for every `u32` address: 32 GiB.
const BUCKETS: usize = 20;
/// Address 0 means "none".
const RESERVED_WORDS: u32 = 8;

/// Allocated words, addressed by number. Only the holder of the tree's writer lock allocates; any
/// thread reads. Words are atomic, so a reader that races with the writer sees old or new words and
/// never anything else. The versions of the nodes tell the reader whether what it read is
/// consistent.
pub(super) struct Arena {
    buckets: [OnceLock<Box<[AtomicU64]>>; BUCKETS],
    used: AtomicU32,
}

fn bucket_of(at: usize) -> (usize, usize) {
    let bucket = (at / FIRST_WORDS + 1).ilog2() as usize;
    (bucket, at + FIRST_WORDS - (FIRST_WORDS << bucket))
}

fn zeroed(words: usize) -> Box<[AtomicU64]> {
    const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
    // The system provides zero pages for `vec![0; n]`, so a bucket takes memory only where it is
    // used.
    let words = Box::into_raw(vec![0u64; words].into_boxed_slice());
    // SAFETY: the pointer comes from `Box::into_raw` above, so it is unique and valid; AtomicU64
    // has the size and bit validity of u64 (documented) and, checked above, its alignment, so the
    // slice's layout is the one it was allocated with.
    unsafe { Box::from_raw(words as *mut [AtomicU64]) }
}

impl Arena {
    pub(super) fn new() -> Self {
        let arena = Self {
            buckets: [const { OnceLock::new() }; BUCKETS],
            used: AtomicU32::new(RESERVED_WORDS),
        };
        arena.buckets[0].get_or_init(|| zeroed(FIRST_WORDS));
        arena
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed) as usize * 8
    }

    /// Allocates `words` zeroed, contiguous words. The caller holds the writer lock.
    pub(super) fn allocate(&self, words: usize) -> u32 {
        let mut at = self.used.load(Ordering::Relaxed) as usize;
        let (mut bucket, mut place) = bucket_of(at);
        while place + words > FIRST_WORDS << bucket {
            at += (FIRST_WORDS << bucket) - place;
            (bucket, place) = (bucket + 1, 0);
        }
        let end = at + words;
        // A memtable is frozen at its limit, far below what a u32 can address.
        assert!(end <= u32::MAX as usize, "memtable is larger than 32 GiB");
        self.buckets[bucket].get_or_init(|| zeroed(FIRST_WORDS << bucket));
        self.used.store(end as u32, Ordering::Relaxed);
        at as u32
    }

    /// Returns the words from `at` to the end of their bucket.
    #[inline]
    pub(super) fn from(&self, at: u32) -> &[AtomicU64] {
        let (bucket, place) = bucket_of(at as usize);
        match self.buckets[bucket].get() {
            Some(words) => &words[place..],
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_never_overlap_nor_cross_a_bucket() {
        let arena = Arena::new();
        let mut last_end = RESERVED_WORDS as usize;
        for i in 0..3000usize {
            let words = 1 + i * 7 % 300;
            let at = arena.allocate(words);
            assert!(at as usize >= last_end);
            assert!(arena.from(at).len() >= words);
            for word in &arena.from(at)[..words] {
                assert_eq!(word.swap(u64::MAX, Ordering::Relaxed), 0);
            }
            last_end = at as usize + words;
        }
        assert_eq!(arena.used_bytes(), last_end * 8);
    }

    #[test]
    fn addresses_map_to_consecutive_buckets() {
        assert_eq!(bucket_of(0), (0, 0));
        assert_eq!(bucket_of(FIRST_WORDS - 1), (0, FIRST_WORDS - 1));
        assert_eq!(bucket_of(FIRST_WORDS), (1, 0));
        assert_eq!(bucket_of(3 * FIRST_WORDS), (2, 0));
        assert!(bucket_of(u32::MAX as usize).0 < BUCKETS);
    }
}
