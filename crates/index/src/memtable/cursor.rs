//! A position in a memtable as of one moment.

use super::Memtable;
use super::node::SLOTS;
use super::range_deletes::Pieces;
use super::record::Record;
use super::tree::Target;
use crate::cursor::Cursor;
use crate::slot::Found;
use std::sync::Arc;
use stele_types::Result;

/// Walks a memtable as of one sequence number: the newest visible version of each key; keys under
/// a visible range delete appear as deleted. It owns its memtable and takes no lock while it moves:
/// it works on a copy of one leaf at a time. What is added meanwhile is newer and thus invisible.
pub struct MemtableCursor {
    table: Arc<Memtable>,
    at: u64,
    deletes: Option<Arc<Pieces>>,
    leaf: Leaf,
    slot: usize,
    /// The visible version stood on; 0 when the cursor is not valid.
    record: u32,
    key: Vec<u8>,
}

/// What a leaf held when it was read: its newest versions, and the leaf after it.
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
        Self { table, at, deletes, leaf: EMPTY, slot: 0, record: 0, key: Vec::new() }
    }

    fn copy(node: super::node::Node<'_>, count: usize) -> Leaf {
        let mut leaf = Leaf { count, next: node.link(), ..EMPTY };
        for (slot, head) in leaf.heads.iter_mut().enumerate().take(count) {
            *head = node.record(slot);
        }
        leaf.first = leaf.heads[0];
        leaf
    }

    /// Stands on the slot's visible version; false when it has none.
    #[inline]
    fn settle(&mut self) -> bool {
        self.record = self.table.visible(self.leaf.heads[self.slot], self.at);
        if self.record != 0 {
            Record::at(&self.table.tree.arena, self.record).key_into(&mut self.key);
        }
        self.record != 0
    }

    /// From `slot` on, to the first key with a visible version.
    fn forward(&mut self) {
        loop {
            while self.slot < self.leaf.count {
                if self.settle() {
                    return;
                }
                self.slot += 1;
            }
            if self.leaf.next == 0 {
                return self.clear();
            }
            self.leaf =
                self.table.tree.read_at(self.leaf.next, |n, meta| Self::copy(n, meta.count));
            // On a walk all records of a leaf are asked for at once: their cache misses overlap.
            for head in self.leaf.heads.iter_mut().take(self.leaf.count) {
                *head = self.table.visible(*head, self.at);
            }
            self.slot = 0;
        }
    }

    /// From the key before `slot` down, to the last one with a visible version.
    fn backward(&mut self) {
        loop {
            while self.slot > 0 {
                self.slot -= 1;
                if self.settle() {
                    return;
                }
            }
            if self.leaf.count == 0 {
                return self.clear();
            }
            let mut first = std::mem::take(&mut self.key);
            Record::at(&self.table.tree.arena, self.leaf.first).key_into(&mut first);
            self.load(Target::Below(Some(&first)), Some(&first));
            self.key = first;
            if self.slot == 0 {
                return self.clear();
            }
        }
    }

    /// Copies a leaf and places the slot at the first key at or above `bound`, or after the last.
    fn load(&mut self, to: Target<'_>, bound: Option<&[u8]>) {
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
    fn valid(&self) -> bool {
        self.record != 0
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn found(&self) -> Result<Found> {
        if self.record == 0 {
            return Ok(Found::Deleted);
        }
        let record = Record::at(&self.table.tree.arena, self.record);
        let hidden =
            self.deletes.as_ref().is_some_and(|d| d.epoch_over(&self.key) > record.epoch());
        Ok(if hidden { Found::Deleted } else { record.found() })
    }

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
        self.load(Target::Key(key), Some(key));
        self.forward();
        Ok(())
    }

    fn seek_before(&mut self, bound: Option<&[u8]>) -> Result<()> {
        self.load(Target::Below(bound), bound);
        self.backward();
        Ok(())
    }
}
