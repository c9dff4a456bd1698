//! Nodes of the tree: sorted slots under a version that is odd while the writer changes them. They
//! lie in an [`Arena`], the memory of one memtable: 8-byte words, allocated once and freed
//! together.
//!
//! ```text
//! word 0    version
//! word 1    count (bits 0-7) | length of all keys of a leaf (8-23) | skip (32-47) | level (48-55; 0 is a leaf)
//! word 2    low fence (32-63) | high fence (0-31): record addresses, 0 for no bound
//! word 3    leaf: next leaf's address; inner: first child's address
//! 32 words  prefixes: eight key bytes after the first `skip`
//! 32 words  leaf:  record address (32-63) | four more key bytes (0-31)
//!           inner: separator's record address (32-63) | child's address (0-31)
//! ```
//! Keys of a node lie in [low, high), so they share the prefix that both fences share: `skip`
//! bytes. Comparing the following bytes nearly always decides without reading a record: that keys differ,
//! and, where the rest of the key is short and all keys of the leaf are as long, that they are equal.

use super::record::{VersionRecord, word_at};
use std::cmp::Ordering as Order;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub(super) const SLOTS: usize = 32;
const PREFIXES: usize = 4;
const ITEMS: usize = PREFIXES + SLOTS;
/// Key bytes after the first `skip` that a leaf holds itself.
const LEAF_KEY_BYTES: usize = 12;
/// Length of the keys of a leaf with keys of several lengths; no key is as long.
const MIXED: usize = 0xffff;
pub(super) const NODE_WORDS: usize = ITEMS + SLOTS;

/// Words of the lines that a search of a node reads first.
pub(super) const SEARCHED_WORDS: [usize; 4] = [0, PREFIXES + 8, PREFIXES + 16, PREFIXES + 24];

/// Content of word 1.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) count: usize,
    pub(super) skip: usize,
    pub(super) level: usize,
    /// Length in bytes of all keys of a leaf, or [`MIXED`].
    pub(super) key_len: usize,
}

impl Meta {
    /// Returns whether a leaf tells without its records if it has a key of `key_len` bytes.
    ///
    /// Invariant: keys of different lengths can agree in all bytes that a leaf holds, because short ones
    /// are padded. They are compared by their records.
    /// Test: `keys_that_differ_only_in_length_or_far_behind_stay_apart`.
    #[inline]
    pub(super) fn holds_whole_keys(&self, key_len: usize) -> bool {
        // bug index.leaf_ignores_length: `self.key_len == key_len` is `true`
        self.key_len == key_len && self.skip + LEAF_KEY_BYTES >= key_len
    }
}

#[derive(Clone, Copy)]
pub(super) struct Node<'a>(&'a [AtomicU64; NODE_WORDS]);

impl<'a> Node<'a> {
    /// Returns the node at `at`. Nodes are never freed, so a stale address is also that of a node.
    #[inline]
    pub(super) fn at(arena: &'a Arena, at: u32) -> Self {
        match arena.from(at).first_chunk() {
            Some(words) => Self(words),
            None => unreachable!("a node never crosses a bucket of the arena"),
        }
    }

    #[inline]
    fn load(self, i: usize) -> u64 {
        self.0[i].load(Ordering::Acquire)
    }

    /// Stores with release ordering: a reader that loads an address also sees what is stored there.
    #[inline]
    fn store(self, i: usize, word: u64) {
        self.0[i].store(word, Ordering::Release);
    }

    /// Returns the version to read under; `None` while the writer changes the node.
    #[inline]
    pub(super) fn version(self) -> Option<u64> {
        let version = self.load(0);
        (version & 1 == 0).then_some(version)
    }

    /// Returns whether everything read since `version` was loaded is consistent.
    #[inline]
    pub(super) fn is_unchanged(self, version: u64) -> bool {
        fence(Ordering::Acquire);
        // bug index.memtable_read_unvalidated: `self.0[0].load(Ordering::Relaxed) == version` is `true`
        self.0[0].load(Ordering::Relaxed) == version
    }

    /// Returns the version, read by the writer, which alone changes it.
    #[inline]
    pub(super) fn settled_version(self) -> u64 {
        self.0[0].load(Ordering::Relaxed)
    }

    /// Begins a change by the writer: readers retry until it ends.
    pub(super) fn begin(self) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    pub(super) fn end(self) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(version + 1, Ordering::Release);
    }

    #[inline]
    pub(super) fn meta(self) -> Meta {
        let word = self.load(1);
        Meta {
            count: (word as u8 as usize).min(SLOTS),
            key_len: (word >> 8) as usize & 0xffff,
            skip: (word >> 32) as usize & 0xffff,
            level: (word >> 48) as usize,
        }
    }

    pub(super) fn set_meta(self, meta: Meta) {
        let Meta { count, skip, level, key_len } = meta;
        let keys = count as u64 | (key_len as u64) << 8;
        self.store(1, keys | (skip as u64) << 32 | (level as u64) << 48);
    }

    pub(super) fn fences(self) -> (u32, u32) {
        let word = self.load(2);
        ((word >> 32) as u32, word as u32)
    }

    pub(super) fn set_fences(self, low: u32, high: u32) {
        self.store(2, u64::from(low) << 32 | u64::from(high));
    }

    /// Returns the next leaf (leaf) or the first child (inner node).
    pub(super) fn link(self) -> u32 {
        self.load(3) as u32
    }

    pub(super) fn set_link(self, at: u32) {
        self.store(3, u64::from(at));
    }

    #[inline]
    pub(super) fn prefix(self, slot: usize) -> u64 {
        self.load(PREFIXES + slot)
    }

    #[inline]
    pub(super) fn item(self, slot: usize) -> u64 {
        self.load(ITEMS + slot)
    }

    #[inline]
    pub(super) fn record(self, slot: usize) -> u32 {
        (self.item(slot) >> 32) as u32
    }

    /// Returns child `i` of `count + 1`.
    #[inline]
    pub(super) fn child(self, i: usize) -> u32 {
        if i == 0 { self.link() } else { self.item(i - 1) as u32 }
    }

    pub(super) fn set_slot(self, slot: usize, prefix: u64, item: u64) {
        self.store(PREFIXES + slot, prefix);
        self.store(ITEMS + slot, item);
    }

    pub(super) fn set_item(self, slot: usize, item: u64) {
        self.store(ITEMS + slot, item);
    }

    /// Inserts a key of `key_len` bytes at `slot`, shifting later slots. Called by the writer.
    pub(super) fn insert(self, slot: usize, prefix: u64, item: u64, key_len: usize) {
        let meta = self.meta();
        let is_uniform = meta.count == 0 || meta.key_len == key_len;
        // bug index.leaf_length_of_the_first_key: let (is_uniform, key_len) = (true, if meta.count == 0 { key_len } else { meta.key_len });
        let key_len = if is_uniform { key_len } else { MIXED };
        for i in (slot..meta.count).rev() {
            self.set_slot(i + 1, self.prefix(i), self.item(i));
        }
        self.set_slot(slot, prefix, item);
        self.set_meta(Meta { count: meta.count + 1, key_len, ..meta });
    }

    /// Returns the first slot with a key at or above `key`, and whether that key is `key`.
    #[inline]
    pub(super) fn lower_bound(self, arena: &Arena, meta: Meta, key: &[u8]) -> (usize, bool) {
        self.lower_bound_from(arena, meta, self.first_prefix(meta, key), key)
    }

    /// Returns the first slot with a prefix at or above that of `key`. Reads no record.
    #[inline]
    pub(super) fn first_prefix(self, meta: Meta, key: &[u8]) -> usize {
        let prefix = word_at(key, meta.skip);
        let (mut slot, mut size) = (0, meta.count);
        while size > 0 {
            let half = size / 2;
            let below = self.prefix(slot + half) < prefix;
            slot = if below { slot + half + 1 } else { slot };
            size = if below { size - half - 1 } else { half };
        }
        slot
    }

    /// Does what [`Node::lower_bound`] does, given the [`Node::first_prefix`] of `key`.
    #[inline]
    pub(super) fn lower_bound_from(
        self,
        arena: &Arena,
        meta: Meta,
        first: usize,
        key: &[u8],
    ) -> (usize, bool) {
        let (prefix, mut slot) = (word_at(key, meta.skip), first);
        while slot < meta.count && self.prefix(slot) == prefix {
            match self.compare_rest(arena, meta, slot, key) {
                Order::Less => slot += 1,
                Order::Equal => return (slot, true),
                Order::Greater => break,
            }
        }
        (slot, false)
    }

    /// Compares a slot's key with `key`, given equal prefixes.
    fn compare_rest(self, arena: &Arena, meta: Meta, slot: usize, key: &[u8]) -> Order {
        let item = self.item(slot);
        let mut skip = meta.skip + 8;
        if meta.level == 0 {
            let more = (item as u32).cmp(&((word_at(key, skip) >> 32) as u32));
            if more != Order::Equal {
                return more;
            }
            if meta.holds_whole_keys(key.len()) {
                return Order::Equal;
            }
            skip += 4;
        }
        VersionRecord::at(arena, (item >> 32) as u32).compare(key, skip)
    }

    pub(super) fn leaf_item(record: u32, key_word: u64) -> u64 {
        u64::from(record) << 32 | key_word >> 32
    }

    /// Computes `skip` from the fences and, if it changed, all prefixes. Called by the writer.
    pub(super) fn refresh(self, arena: &Arena) {
        let meta = self.meta();
        let (low, high) = self.fences();
        if low == 0 || high == 0 {
            return;
        }
        let skip = VersionRecord::at(arena, low).shared(&VersionRecord::at(arena, high));
        if skip == meta.skip {
            return;
        }
        for slot in 0..meta.count {
            let record = VersionRecord::at(arena, self.record(slot));
            let item = match meta.level {
                0 => Self::leaf_item(self.record(slot), record.key_word(skip + 8)),
                _ => self.item(slot),
            };
            self.set_slot(slot, record.key_word(skip), item);
        }
        self.set_meta(Meta { skip, ..meta });
    }
}

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

/// Starts to load a word's cache line and does not wait for it. No safe code does the same: a load
/// keeps its place in the processor until the line is there, so that only a few of them overlap.
#[inline]
fn prefetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is part of every x86_64, changes no memory and faults at no address; the
    // pointer is that of a reference.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = word;
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

    /// Starts to load the cache lines of a few words after `at`; words outside the bucket are left out.
    #[inline]
    pub(super) fn prefetch(&self, at: u32, words: &[usize]) {
        let from = self.from(at);
        words.iter().filter_map(|&i| from.get(i)).for_each(prefetch);
    }

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
