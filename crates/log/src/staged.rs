//! The items of a batch, recorded while it is encoded. Once the frame is durable, publishing it
//! does not read its bytes again.

use crate::format::item::{Previous, put_digest};
use crate::format::{Form, Item, Items};
use stele_types::{FileId, Lsn};

/// Capacity kept for the next batch.
const BYTES_KEPT: usize = 1 << 20;

/// The items of one frame in the form of a sidecar.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    items: Vec<u8>,
    scratch: Vec<u8>,
    previous: Previous,
}

impl Staged {
    pub fn clear(&mut self) {
        self.items.clear();
        self.previous = Previous::default();
    }

    /// Adds an item. Returns `false` for an entry that is marked as a command and is not one.
    pub fn push(&mut self, item: &Item<'_>, inline_max: usize) -> bool {
        put_digest(&mut self.items, &mut self.scratch, &mut self.previous, item, inline_max)
    }

    /// Returns the items of a frame in `segment`.
    pub fn items(&self, segment: FileId) -> Items<'_> {
        Items::new(Form::Sidecar, Lsn::new(segment, 0), &self.items)
    }

    /// Whether a frame with this body at `begin` decodes to the same items.
    pub fn agrees_with(&self, begin: Lsn, body: &[u8], inline_max: usize) -> bool {
        let mut read = Self::default();
        let mut items = Items::new(Form::Frame, begin, body);
        while let Some(item) = items.next_item() {
            if !item.is_some_and(|item| read.push(&item, inline_max)) {
                return false;
            }
        }
        read.items == self.items
    }

    pub fn shrink(&mut self) {
        self.items.shrink_to(BYTES_KEPT);
        self.scratch.shrink_to(BYTES_KEPT);
    }

    pub fn memory_bytes(&self) -> usize {
        self.items.capacity() + self.scratch.capacity()
    }
}
