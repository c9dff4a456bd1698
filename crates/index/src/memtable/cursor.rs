//! Cursor over a memtable at one sequence number.

use super::Memtable;
use super::node::SLOTS;
use super::range_deletes::Pieces;
use super::record::{Content, VersionRecord};
use super::tree::LeafTarget;
use crate::cursor::Cursor;
use crate::cursor::{Found, ValueSlice};
use std::ops::Range;
use std::sync::Arc;
use stele_types::Result;

/// Cursor over a memtable at one sequence number: the newest visible version of each key. Keys
/// under a visible range delete appear as deleted. It owns its memtable and takes no lock while it
/// moves: it works on a copy of one leaf at a time. Concurrent writes are newer and thus invisible.
pub(crate) struct MemtableCursor {
    table: Arc<Memtable>,
    at: u64,
    deletes: Option<Arc<Pieces>>,
    leaf: Leaf,
    slot: usize,
    /// Address of the current visible version; 0 when the cursor is not valid.
    record: u32,
    key: Vec<u8>,
    content: Content,
    /// The current value, if it is inline.
    bytes: Vec<u8>,
    expires_at_s: u64,
}

/// Copy of a leaf: its newest versions and the address of the next leaf.
#[derive(Clone, Copy)]
struct Leaf {
    heads: [u32; SLOTS],
    count: usize,
    /// A record of the first key, visible or not.
    first: u32,
    next: u32,
}

const EMPTY: Leaf = Leaf { heads: [0; SLOTS], count: 0, first: 0, next: 0 };

impl MemtableCursor {
    pub(super) fn new(table: Arc<Memtable>, at: u64, deletes: Option<Arc<Pieces>>) -> Self {
        Self {
            table,
            at,
            deletes,
            leaf: EMPTY,
            slot: 0,
            record: 0,
            key: Vec::new(),
            content: Content::Deleted,
            bytes: Vec::new(),
            expires_at_s: 0,
        }
    }

    fn copy(node: super::node::Node<'_>, count: usize) -> Leaf {
        let mut leaf = Leaf { count, next: node.link(), ..EMPTY };
        for (slot, head) in leaf.heads.iter_mut().enumerate().take(count) {
            *head = node.record(slot);
        }
        leaf.first = leaf.heads[0];
        leaf
    }

    /// Moves to the slot's visible version; returns false when it has none.
    #[inline]
    fn move_to_slot(&mut self) -> bool {
        self.record = self.table.visible(self.leaf.heads[self.slot], self.at);
        if self.record != 0 {
            let record = VersionRecord::at(&self.table.tree.arena, self.record);
            record.key_into(&mut self.key);
            (self.content, self.expires_at_s) = record.content(&mut self.bytes);
        }
        self.record != 0
    }

    /// Resolves the visible versions of some slots. Resolving them together overlaps their cache
    /// misses.
    fn resolve_visible(&mut self, slots: Range<usize>) {
        for head in self.leaf.heads.get_mut(slots).unwrap_or_default() {
            *head = self.table.visible(*head, self.at);
        }
    }

    /// Returns whether a range delete made after the current version covers its key.
    #[inline]
    fn is_hidden(&self) -> bool {
        self.deletes.as_ref().is_some_and(|deletes| {
            let record = VersionRecord::at(&self.table.tree.arena, self.record);
            deletes.epoch_over(&self.key) > record.epoch()
        })
    }

    fn forward(&mut self) {
        loop {
            while self.slot < self.leaf.count {
                if self.move_to_slot() {
                    return;
                }
                self.slot += 1;
            }
            if self.leaf.next == 0 {
                return self.clear();
            }
            self.leaf =
                self.table.tree.read_at(self.leaf.next, |n, meta| Self::copy(n, meta.count));
            self.slot = 0;
            self.resolve_visible(0..self.leaf.count);
        }
    }

    fn backward(&mut self) {
        loop {
            while self.slot > 0 {
                self.slot -= 1;
                if self.move_to_slot() {
                    return;
                }
            }
            if self.leaf.count == 0 {
                return self.clear();
            }
            let mut first = std::mem::take(&mut self.key);
            VersionRecord::at(&self.table.tree.arena, self.leaf.first).key_into(&mut first);
            self.load(LeafTarget::Below(Some(&first)), Some(&first));
            self.key = first;
            if self.slot == 0 {
                return self.clear();
            }
            self.resolve_visible(0..self.slot);
        }
    }

    /// Copies a leaf and sets the slot to the first key at or above `bound`, or past the last key.
    fn load(&mut self, to: LeafTarget<'_>, bound: Option<&[u8]>) {
        let arena = &self.table.tree.arena;
        (self.leaf, self.slot) = self.table.tree.read_leaf(to, |node, meta| {
            let slot = bound.map_or(meta.count, |key| node.lower_bound(arena, meta, key).0);
            (Self::copy(node, meta.count), slot)
        });
    }

    fn clear(&mut self) {
        self.record = 0;
        self.key.clear();
    }
}

impl Cursor for MemtableCursor {
    #[inline]
    fn valid(&self) -> bool {
        self.record != 0
    }

    #[inline]
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn found(&self) -> Result<Found> {
        let Some((value, expires_at_s)) = self.value() else { return Ok(Found::Deleted) };
        Ok(Found::Value { value: value.to_owned(), expires_at_s })
    }

    #[inline]
    fn value(&self) -> Option<(ValueSlice<'_>, u64)> {
        let value = match self.content {
            Content::Inline => ValueSlice::Inline(&self.bytes),
            Content::At(locator) => ValueSlice::At(locator),
            Content::Deleted => return None,
        };
        let shown = self.record != 0 && !self.is_hidden();
        shown.then_some((value, self.expires_at_s))
    }

    #[inline]
    fn next(&mut self) -> Result<()> {
        if self.valid() {
            self.slot += 1;
            self.forward();
        }
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        if self.valid() {
            self.backward();
        }
        Ok(())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.load(LeafTarget::Key(key), Some(key));
        self.resolve_visible(self.slot..self.leaf.count);
        self.forward();
        Ok(())
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.load(LeafTarget::Below(bound), bound);
        self.resolve_visible(0..self.slot);
        self.backward();
        Ok(())
    }
}
