//! Nodes of the tree: sorted slots under a version that is odd while the writer changes them.
//!
//! ```text
//! word 0    version
//! word 1    count (bits 0-31) | skip (32-47) | level (48-55; 0 is a leaf)
//! word 2    low fence (32-63) | high fence (0-31): record addresses, 0 for no bound
//! word 3    leaf: next leaf's address; inner: first child's address
//! 32 words  prefixes: eight key bytes after the first `skip`
//! 32 words  leaf:  record address (32-63) | four more key bytes (0-31)
//!           inner: separator's record address (32-63) | child's address (0-31)
//! ```
//! Keys of a node lie in [low, high), so they share the prefix that both fences share: `skip`
//! bytes. Comparing the following bytes nearly always decides without reading a record.

use super::arena::Arena;
use super::record::{VersionRecord, word_at};
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering, fence};

pub(super) const SLOTS: usize = 32;
const PREFIXES: usize = 4;
const ITEMS: usize = PREFIXES + SLOTS;
pub(super) const NODE_WORDS: usize = ITEMS + SLOTS;

/// Content of word 1.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) count: usize,
    pub(super) skip: usize,
    pub(super) level: usize,
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

    /// Begins a change by the writer: readers retry until it ends.
    pub(super) fn begin(self) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Ends a change by the writer.
    pub(super) fn end(self) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(version + 1, Ordering::Release);
    }

    #[inline]
    pub(super) fn meta(self) -> Meta {
        let word = self.load(1);
        Meta {
            count: (word as u32 as usize).min(SLOTS),
            skip: (word >> 32) as usize & 0xffff,
            level: (word >> 48) as usize,
        }
    }

    pub(super) fn set_meta(self, meta: Meta) {
        self.store(1, meta.count as u64 | (meta.skip as u64) << 32 | (meta.level as u64) << 48);
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

    /// Inserts at `slot`, shifting later slots. Called by the writer.
    pub(super) fn insert(self, slot: usize, prefix: u64, item: u64) {
        let meta = self.meta();
        for i in (slot..meta.count).rev() {
            self.set_slot(i + 1, self.prefix(i), self.item(i));
        }
        self.set_slot(slot, prefix, item);
        self.set_meta(Meta { count: meta.count + 1, ..meta });
    }

    /// Returns the first slot with a key at or above `key`, and whether that key is `key`.
    #[inline]
    pub(super) fn lower_bound(self, arena: &Arena, meta: Meta, key: &[u8]) -> (usize, bool) {
        let prefix = word_at(key, meta.skip);
        let (mut slot, mut size) = (0, meta.count);
        while size > 0 {
            let half = size / 2;
            let below = self.prefix(slot + half) < prefix;
            slot = if below { slot + half + 1 } else { slot };
            size = if below { size - half - 1 } else { half };
        }
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
            skip += 4;
        }
        VersionRecord::at(arena, (item >> 32) as u32).compare(key, skip)
    }

    /// Encodes a leaf slot's second word.
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
