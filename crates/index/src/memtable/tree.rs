//! A B+-tree over records, with one writer at a time and readers that take no lock.
//!
//! Readers descend by versions (optimistic lock coupling). Invariant: a reader accepts a child only
//! if the parent did not change until the child's version was loaded, and a leaf's content only if
//! the leaf did not change meanwhile. A split marks every node that it will change, topmost first,
//! before it changes any of them, so that no reader passes a parent to a child that has already
//! moved keys away. Nodes are never freed.

use super::KeyWrite;
use super::node::{Arena, Meta, NODE_WORDS, Node, SEARCHED_WORDS, SLOTS};
use super::record::{self, VersionRecord, word_at};
use bytes::Bytes;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use stele_types::lock::{Mutex, rank};

/// Attempts before a reader waits for the writer, which may be descheduled.
const ATTEMPTS: usize = 64;
/// Upper bound of the depth, never reached: 16 levels of at least 16 children.
const LEVELS_MAX: usize = 16;
/// Keys that are searched together, and writes that one hold of the writer lock covers.
const OVERLAPPING: usize = 32;
/// Words of the lines of a record with a short key and a location.
const RECORD_WORDS: [usize; 2] = [0, 7];

#[derive(Clone, Copy)]
pub(super) enum LeafTarget<'a> {
    /// The leaf that contains `key` if any does.
    Key(&'a [u8]),
    /// The leaf that contains the greatest key below the bound; `None`: the last leaf.
    Below(Option<&'a [u8]>),
}

pub(super) struct Tree {
    pub(super) arena: Arena,
    root: AtomicU32,
    writer: Mutex<(), { rank::MEMTABLE_WRITER }>,
}

/// Path from the root to a leaf: nodes and the child taken in each.
struct Path {
    nodes: [(u32, usize); LEVELS_MAX],
    depth: usize,
}

/// Where a key is in a leaf or belongs in it.
#[derive(Clone, Copy, Default)]
struct Place {
    leaf: u32,
    slot: usize,
    exists: bool,
    /// Version of the leaf that this is about.
    version: u64,
}

impl Tree {
    pub(super) fn new() -> Self {
        let arena = Arena::new();
        let root = arena.allocate(NODE_WORDS);
        Self { arena, root: AtomicU32::new(root), writer: Mutex::new(()) }
    }

    /// Adds versions in their order, each of which hides all earlier ones of its key. Returns how many
    /// keys are new. A reader that waits for the writer lock waits for at most [`OVERLAPPING`] of them.
    pub(super) fn insert(&self, writes: &[KeyWrite<'_>], epoch: u64) -> u64 {
        let mut new = 0;
        for writes in writes.chunks(OVERLAPPING) {
            let _writer = self.writer.lock();
            let mut found = [Place::default(); OVERLAPPING];
            self.find(writes, &mut found);
            for (write, place) in writes.iter().zip(&found) {
                new += u64::from(self.insert_at(write, epoch, place));
            }
        }
        new
    }

    /// Finds the places of all keys.
    fn find(&self, writes: &[KeyWrite<'_>], found: &mut [Place; OVERLAPPING]) {
        let leaves = self.leaves_of(writes, |write| write.key);
        for ((write, at), place) in writes.iter().zip(leaves).zip(found.iter_mut()) {
            let leaf = Node::at(&self.arena, at);
            let meta = leaf.meta();
            (place.leaf, place.slot) = (at, leaf.first_prefix(meta, write.key));
            if place.slot < meta.count && !meta.holds_whole_keys(write.key.len()) {
                self.arena.prefetch(leaf.record(place.slot), &[0]);
            }
        }
        for (write, place) in writes.iter().zip(found) {
            *place = self.place_in(place.leaf, place.slot, write.key);
        }
    }

    /// Returns the leaves of at most [`OVERLAPPING`] keys, level by level: the searches of a level do not
    /// depend on each other, so that their cache misses overlap. Beside a writer they may be other leaves.
    fn leaves_of<K>(&self, of: &[K], key: impl Fn(&K) -> &[u8]) -> [u32; OVERLAPPING] {
        let root = self.root.load(Ordering::Acquire);
        let mut leaves = [root; OVERLAPPING];
        for _ in 0..Node::at(&self.arena, root).meta().level {
            for (of, at) in of.iter().zip(&mut leaves) {
                let node = Node::at(&self.arena, *at);
                let (slot, exact) = node.lower_bound(&self.arena, node.meta(), key(of));
                *at = node.child(slot + usize::from(exact));
                self.arena.prefetch(*at, &SEARCHED_WORDS);
            }
        }
        leaves
    }

    /// Starts to load what searches for these keys will read. Any thread may call it: what it reads decides
    /// nothing.
    pub(super) fn prefetch(&self, keys: &[Bytes]) {
        for keys in keys.chunks(OVERLAPPING) {
            let leaves = self.leaves_of(keys, |key| key);
            for (key, at) in keys.iter().zip(leaves) {
                let leaf = Node::at(&self.arena, at);
                let meta = leaf.meta();
                let slot = leaf.first_prefix(meta, key);
                if slot < meta.count {
                    self.arena.prefetch(leaf.record(slot), &RECORD_WORDS);
                }
            }
        }
    }

    /// Returns the place of `key` in its leaf, given the slot of its prefix.
    fn place_in(&self, at: u32, first: usize, key: &[u8]) -> Place {
        let leaf = Node::at(&self.arena, at);
        let (slot, exists) = leaf.lower_bound_from(&self.arena, leaf.meta(), first, key);
        Place { leaf: at, slot, exists, version: leaf.settled_version() }
    }

    /// Adds a version at the place that was found for it. Returns whether the key is new.
    ///
    /// Invariant: a place counts only while the version of its leaf is the one it was found under. An
    /// insert before it of the same call moves slots, a split moves keys to another leaf, and the key
    /// itself may be there meanwhile. A replaced item leaves all places as they are.
    /// Test: `writes_that_change_a_leaf_together_keep_their_order`.
    fn insert_at(&self, write: &KeyWrite<'_>, epoch: u64, found: &Place) -> bool {
        let mut place = *found;
        // bug index.memtable_place_stale: never
        if Node::at(&self.arena, place.leaf).settled_version() != place.version {
            let at = self.path_to(write.key).1;
            let leaf = Node::at(&self.arena, at);
            place = self.place_in(at, leaf.first_prefix(leaf.meta(), write.key), write.key);
        }
        let leaf = Node::at(&self.arena, place.leaf);
        let (meta, slot) = (leaf.meta(), place.slot);
        let older = if place.exists { leaf.record(slot) } else { 0 };
        let record = record::write(&self.arena, epoch, write, older);
        let item = Node::leaf_item(record, word_at(write.key, meta.skip + 8));
        if place.exists {
            // One atomic word: readers see the older newest version or this one.
            leaf.set_item(slot, item);
        } else if meta.count < SLOTS {
            leaf.begin();
            leaf.insert(slot, word_at(write.key, meta.skip), item, write.key.len());
            leaf.end();
        } else {
            self.split(&self.path_to(write.key).0, place.leaf, slot, record);
        }
        !place.exists
    }

    fn path_to(&self, key: &[u8]) -> (Path, u32) {
        let mut path = Path { nodes: [(0, 0); LEVELS_MAX], depth: 0 };
        let mut at = self.root.load(Ordering::Relaxed);
        loop {
            let node = Node::at(&self.arena, at);
            let meta = node.meta();
            if meta.level == 0 {
                return (path, at);
            }
            let (slot, exact) = node.lower_bound(&self.arena, meta, key);
            let child = slot + usize::from(exact);
            path.nodes[path.depth] = (at, child);
            path.depth += 1;
            at = node.child(child);
        }
    }

    /// Inserts `record` at `slot` of a full leaf, splitting upwards as far as needed.
    fn split(&self, path: &Path, leaf: u32, slot: usize, record: u32) {
        let full =
            |depth: &usize| Node::at(&self.arena, path.nodes[*depth].0).meta().count == SLOTS;
        let splitting = (0..path.depth).rev().take_while(full).count();
        // The topmost node that changes is the parent of the topmost node that splits, if there is
        // one.
        let top = (path.depth - splitting).saturating_sub(1);
        let marked = || {
            let inner = path.nodes[top..path.depth].iter().map(|(at, _)| *at);
            inner.chain([leaf]).map(|at| Node::at(&self.arena, at))
        };
        // bug index.memtable_split_unmarked: skip
        marked().for_each(Node::begin);
        let (mut separator, mut right) = self.split_leaf(leaf, slot, record);
        let mut left = leaf;
        for &(at, child) in path.nodes[..path.depth].iter().rev() {
            let node = Node::at(&self.arena, at);
            left = at;
            if node.meta().count < SLOTS {
                self.insert_child(node, child, separator, right);
                right = 0;
                break;
            }
            (separator, right) = self.split_inner(at, child, separator, right);
        }
        if right != 0 {
            self.grow(left, separator, right);
        }
        // bug index.memtable_split_unmarked: skip
        marked().for_each(Node::end);
    }

    fn insert_child(&self, node: Node<'_>, child: usize, separator: u32, right: u32) {
        let key = VersionRecord::at(&self.arena, separator);
        let item = u64::from(separator) << 32 | u64::from(right);
        node.insert(child, key.key_word(node.meta().skip), item, key.key_len());
    }

    fn grow(&self, left: u32, separator: u32, right: u32) {
        let at = self.arena.allocate(NODE_WORDS);
        let root = Node::at(&self.arena, at);
        let level = Node::at(&self.arena, left).meta().level + 1;
        root.set_meta(Meta { count: 0, skip: 0, level, key_len: 0 });
        root.set_link(left);
        self.insert_child(root, 0, separator, right);
        self.root.store(at, Ordering::Release);
    }

    /// Moves the upper part of a leaf to a new one; returns its first record and its address.
    fn split_leaf(&self, at: u32, slot: usize, record: u32) -> (u32, u32) {
        let left = Node::at(&self.arena, at);
        let right_at = self.arena.allocate(NODE_WORDS);
        let right = Node::at(&self.arena, right_at);
        let meta = left.meta();
        // Keys inserted in ascending order fill their leaves.
        let keep = if slot == SLOTS && left.link() == 0 { SLOTS } else { SLOTS / 2 };
        let separator = if keep == SLOTS { record } else { left.record(keep) };
        self.move_upper(left, right, keep, keep, separator);
        right.set_link(left.link());
        left.set_link(right_at);
        let (node, slot) =
            if slot <= keep && keep < SLOTS { (left, slot) } else { (right, slot - keep) };
        let (skip, key) = (node.meta().skip, VersionRecord::at(&self.arena, record));
        let item = Node::leaf_item(record, key.key_word(skip + 8));
        node.insert(slot, key.key_word(skip), item, key.key_len());
        debug_assert_eq!(meta.level, 0);
        (separator, right_at)
    }

    /// Splits a full inner node around its middle separator, which moves up, and inserts a child.
    fn split_inner(&self, at: u32, child: usize, separator: u32, new: u32) -> (u32, u32) {
        let left = Node::at(&self.arena, at);
        let right_at = self.arena.allocate(NODE_WORDS);
        let right = Node::at(&self.arena, right_at);
        let keep = if child == SLOTS { SLOTS - 1 } else { SLOTS / 2 };
        let middle = left.record(keep);
        right.set_link(left.child(keep + 1));
        self.move_upper(left, right, keep, keep + 1, middle);
        if child <= keep {
            self.insert_child(left, child, separator, new);
        } else {
            self.insert_child(right, child - keep - 1, separator, new);
        }
        (middle, right_at)
    }

    /// Keeps slots below `keep` in `left`, moves those from `from` on to `right`, and sets both
    /// nodes' fences, with `separator` between them.
    fn move_upper(
        &self,
        left: Node<'_>,
        right: Node<'_>,
        keep: usize,
        from: usize,
        separator: u32,
    ) {
        let meta = left.meta();
        let (low, high) = left.fences();
        for slot in from..meta.count {
            right.set_slot(slot - from, left.prefix(slot), left.item(slot));
        }
        right.set_meta(Meta { count: meta.count - from, ..meta });
        right.set_fences(separator, high);
        right.refresh(&self.arena);
        left.set_meta(Meta { count: keep, ..meta });
        left.set_fences(low, separator);
        left.refresh(&self.arena);
    }

    #[inline]
    pub(super) fn read_leaf<R>(&self, to: LeafTarget<'_>, read: impl Fn(Node<'_>, Meta) -> R) -> R {
        self.retry(|| self.try_read_leaf(to, &read))
    }

    pub(super) fn share_below(&self, key: &[u8]) -> f64 {
        self.retry(|| {
            let (mut below, mut scale) = (0.0, 1.0);
            let choose = |node: Node<'_>, meta: Meta| {
                let (slot, exact) = node.lower_bound(&self.arena, meta, key);
                let child = slot + usize::from(exact);
                let before: f64 = (0..child).map(|i| self.weight(node, i)).sum();
                let after: f64 = (child + 1..=meta.count).map(|i| self.weight(node, i)).sum();
                let own = self.weight(node, child);
                below += scale * before / (before + own + after);
                scale *= own / (before + own + after);
                child
            };
            let slot = |leaf: Node<'_>, meta: Meta| {
                let (slot, _) = leaf.lower_bound(&self.arena, meta, key);
                slot as f64 / meta.count.max(1) as f64
            };
            let within = self.try_descend(choose, slot)?;
            Some(below + scale * within)
        })
    }

    pub(super) fn read_leaf_at<R>(&self, share: f64, read: impl Fn(Node<'_>, Meta) -> R) -> R {
        self.retry(|| {
            let mut left = share;
            let choose = |node: Node<'_>, meta: Meta| {
                let total: f64 = (0..=meta.count).map(|i| self.weight(node, i)).sum();
                left *= total;
                for child in 0..meta.count {
                    let own = self.weight(node, child);
                    if left < own {
                        left /= own;
                        return child;
                    }
                    left -= own;
                }
                left /= self.weight(node, meta.count);
                meta.count
            };
            self.try_descend(choose, &read)
        })
    }

    /// Returns a child's weight in estimates: its own count, which may change meanwhile.
    fn weight(&self, node: Node<'_>, child: usize) -> f64 {
        Node::at(&self.arena, node.child(child)).meta().count.max(1) as f64
    }

    pub(super) fn read_at<R>(&self, at: u32, read: impl Fn(Node<'_>, Meta) -> R) -> R {
        self.retry(|| {
            let node = Node::at(&self.arena, at);
            let version = node.version()?;
            let result = read(node, node.meta());
            node.is_unchanged(version).then_some(result)
        })
    }

    #[inline]
    fn retry<R>(&self, attempt: impl Fn() -> Option<R>) -> R {
        for _ in 0..ATTEMPTS {
            if let Some(result) = attempt() {
                return result;
            }
            spin_loop();
        }
        let _no_writer = self.writer.lock();
        loop {
            if let Some(result) = attempt() {
                return result;
            }
        }
    }

    #[inline]
    fn try_read_leaf<R>(
        &self,
        to: LeafTarget<'_>,
        read: impl Fn(Node<'_>, Meta) -> R,
    ) -> Option<R> {
        let choose = |node: Node<'_>, meta: Meta| match to {
            LeafTarget::Key(key) => {
                let (slot, exact) = node.lower_bound(&self.arena, meta, key);
                slot + usize::from(exact)
            }
            LeafTarget::Below(Some(bound)) => node.lower_bound(&self.arena, meta, bound).0,
            LeafTarget::Below(None) => meta.count,
        };
        self.try_descend(choose, read)
    }

    /// Descends by the children that `choose` returns. Returns `None` when the writer interfered.
    #[inline]
    fn try_descend<R>(
        &self,
        mut choose: impl FnMut(Node<'_>, Meta) -> usize,
        read: impl FnOnce(Node<'_>, Meta) -> R,
    ) -> Option<R> {
        let at = self.root.load(Ordering::Acquire);
        let mut node = Node::at(&self.arena, at);
        let mut version = node.version()?;
        // A root that split before its version was loaded has already stored its successor.
        if self.root.load(Ordering::Acquire) != at {
            return None;
        }
        loop {
            let meta = node.meta();
            if meta.level == 0 {
                let result = read(node, meta);
                return node.is_unchanged(version).then_some(result);
            }
            let child = Node::at(&self.arena, node.child(choose(node, meta)));
            let child_version = child.version()?;
            if !node.is_unchanged(version) {
                return None;
            }
            (node, version) = (child, child_version);
        }
    }
}
