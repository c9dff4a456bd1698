//! What a batch will add to the log, noted while it is encoded and its bytes are at hand: once the
//! frame is durable, publishing it does not go through its bytes again.

use crate::format::item::{Previous, put_digest};
use crate::format::{Form, Item, Items};
use stele_types::{FileId, Lsn};

/// Memory kept for the next batch.
const BYTES_KEPT: usize = 1 << 20;

/// The items of one frame in a sidecar's form.
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

    /// `false` when an entry is no command but says it is.
    pub fn push(&mut self, item: &Item<'_>, inline_max: usize) -> bool {
        put_digest(&mut self.items, &mut self.scratch, &mut self.previous, item, inline_max)
    }

    /// The items of a frame in `segment`.
    pub fn items(&self, segment: FileId) -> Items<'_> {
        Items::new(Form::Sidecar, Lsn::new(segment, 0), &self.items)
    }

    /// Whether the frame whose body begins at `begin` gives the same items when it is read.
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
