//! Space of a store's device as its maintenance thread read it last. Pages and metrics show it without
//! a question to the device, which may hang.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_storage::Space;
use stele_types::StoreId;

/// Space of one store, and what is said of its changes.
#[derive(Debug)]
pub(super) struct SpaceWatch {
    store: StoreId,
    /// Replicas of the store refuse entries: there is room, but not for these.
    refuses_entries: AtomicBool,
    last: Mutex<Space>,
}

/// Change that is worth a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The store refuses puts from now on.
    Full(String),
    /// It accepts puts again.
    HasRoom(String),
}

impl SpaceWatch {
    pub(super) fn new(store: StoreId) -> Self {
        let refuses_entries = AtomicBool::new(false);
        Self { store, refuses_entries, last: Mutex::new(Space::default()) }
    }

    /// Returns the space as last read.
    pub(super) fn last(&self) -> Space {
        *self.last.lock()
    }

    /// Records whether replicas of the store refuse entries. They make the store full.
    pub(super) fn set_refuses_entries(&self, refuses_entries: bool) {
        self.refuses_entries.store(refuses_entries, Ordering::Relaxed);
    }

    /// Records what was read. Returns a change, once.
    pub(super) fn note(&self, mut space: Space) -> Option<Change> {
        space.is_full |= self.refuses_entries.load(Ordering::Relaxed);
        let before = std::mem::replace(&mut *self.last.lock(), space);
        let (store, free) = (self.store, mib(space.free_bytes));
        match (before.is_full, space.is_full) {
            (false, true) => Some(Change::Full(format!(
                "{}; delete values, remove other files from the device, or enlarge it",
                full_text(store, &space)
            ))),
            (true, false) => Some(Change::HasRoom(format!(
                "store {store} is no longer full: {free} MiB are free, and puts are accepted"
            ))),
            _ => None,
        }
    }
}

/// Returns what is said of a full store.
pub fn full_text(store: StoreId, space: &Space) -> String {
    let (free, reserve) = (mib(space.free_bytes), mib(space.reserve_bytes));
    format!(
        "store {store} is full: {free} MiB are free, of which {reserve} MiB are kept for garbage \
         collection; puts are refused, reads and deletes go on"
    )
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_logged_once() {
        let watch = SpaceWatch::new(StoreId(3));
        let space = |is_full, free_mib: u64| Space {
            is_full,
            free_bytes: free_mib << 20,
            reserve_bytes: 64 << 20,
            ..Space::default()
        };
        assert_eq!(watch.note(space(false, 900)), None);
        let Some(Change::Full(text)) = watch.note(space(true, 60)) else { panic!("not logged") };
        assert!(text.starts_with("store 3 is full: 60 MiB are free, of which 64 MiB"), "{text}");
        assert_eq!(watch.note(space(true, 50)), None);
        assert_eq!(watch.last().free_bytes, 50 << 20);
        assert!(matches!(watch.note(space(false, 200)), Some(Change::HasRoom(_))));
        assert_eq!(watch.note(space(false, 200)), None);
        watch.set_refuses_entries(true);
        assert!(matches!(watch.note(space(false, 67)), Some(Change::Full(_))));
        assert!(watch.last().is_full);
    }
}
