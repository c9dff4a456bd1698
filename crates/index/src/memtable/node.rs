//! Nodes of the tree: sorted slots behind a version that is odd while the writer changes them.
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
//! Keys of a node lie in [low, high), so they share the bytes both fences share: `skip` of them.
//! Comparing what follows nearly always decides without touching a record.

use super::arena::Arena;
use super::record::{Record, word_at};
use std::cmp::Ordering as Order;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Slots of a node.
pub(super) const SLOTS: usize = 32;
const PREFIXES: usize = 4;
const ITEMS: usize = PREFIXES + SLOTS;
/// Size of a node.
pub(super) const NODE_WORDS: usize = ITEMS + SLOTS;

/// What word 1 holds.
#[derive(Clone, Copy)]
pub(super) struct Meta {
    pub(super) count: usize,
    pub(super) skip: usize,
    pub(super) level: usize,
}

/// A node's words.
#[derive(Clone, Copy)]
pub(super) struct Node<'a>(&'a [AtomicU64; NODE_WORDS]);

impl<'a> Node<'a> {
    /// The node at `at`. Every address a node ever held is a node's, so a stale one is safe too.
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

    /// Release, so that who reads an address also reads what lies there.
    #[inline]
    fn store(self, i: usize, word: u64) {
        self.0[i].store(word, Ordering::Release);
    }

    /// The version to read under; `None` while the writer is at work here.
    #[inline]
    pub(super) fn version(self) -> Option<u64> {
        let version = self.load(0);
        (version & 1 == 0).then_some(version)
    }

    /// Whether everything read since `version` was taken belongs together.
    #[inline]
    pub(super) fn unchanged(self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.0[0].load(Ordering::Relaxed) == version
            || stele_types::mutant::active("index.memtable_read_unvalidated")
    }

    /// Writer: from here on readers turn away.
    pub(super) fn begin(self) {
        let version = self.0[0].load(Ordering::Relaxed);
        self.0[0].store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Writer: the change is complete.
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

    /// Leaf: the next leaf. Inner: the first child.
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

    /// The record a slot refers to.
    #[inline]
    pub(super) fn record(self, slot: usize) -> u32 {
        (self.item(slot) >> 32) as u32
    }

    /// Child `i` of `count + 1`.
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

    /// Writer: makes room at `slot` and fills it.
    pub(super) fn insert(self, slot: usize, prefix: u64, item: u64) {
        let meta = self.meta();
        for i in (slot..meta.count).rev() {
            self.set_slot(i + 1, self.prefix(i), self.item(i));
        }
        self.set_slot(slot, prefix, item);
        self.set_meta(Meta { count: meta.count + 1, ..meta });
    }

    /// The first slot whose key is at or above `key`, and whether it is `key`.
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

    /// How a slot's key compares with `key`, given equal prefixes.
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
        Record::at(arena, (item >> 32) as u32).compare(key, skip)
    }

    /// What a leaf slot holds beside the prefix.
    pub(super) fn leaf_item(record: u32, key_word: u64) -> u64 {
        u64::from(record) << 32 | key_word >> 32
    }

    /// Writer: computes `skip` from the fences and, if it grew, all prefixes.
    pub(super) fn refresh(self, arena: &Arena) {
        let meta = self.meta();
        let (low, high) = self.fences();
        if low == 0 || high == 0 {
            return;
        }
        let skip = Record::at(arena, low).shared(&Record::at(arena, high));
        if skip == meta.skip {
            return;
        }
        for slot in 0..meta.count {
            let record = Record::at(arena, self.record(slot));
            let item = match meta.level {
                0 => Self::leaf_item(self.record(slot), record.key_word(skip + 8)),
                _ => self.item(slot),
            };
            self.set_slot(slot, record.key_word(skip), item);
        }
        self.set_meta(Meta { skip, ..meta });
    }
}
