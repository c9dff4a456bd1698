//! Space of a store's device as its maintenance thread read it last. Pages and metrics show it without
//! a question to the device, which may hang.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_storage::Space;
use stele_types::StoreId;

#[derive(Debug)]
pub(super) struct SpaceWatch {
    store: StoreId,
    /// Replicas of the store refuse entries: there is room, but not for these.
    refuses_entries: AtomicBool,
    last: Mutex<Space>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Full(String),
    HasRoom(String),
}

impl SpaceWatch {
    pub(super) fn new(store: StoreId) -> Self {
        let refuses_entries = AtomicBool::new(false);
        Self { store, refuses_entries, last: Mutex::new(Space::default()) }
    }

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

/// Time in which the placement leader moves leaders away from a full store, with reserve.
const LEADER_MOVES_WITHIN_NANOS: u64 = 10_000_000_000;
/// Time without a refusal after which the next one is the first of others, unless the store stayed
/// full.
const REFUSALS_END_AFTER_NANOS: u64 = 60_000_000_000;

/// Writes that a store refuses because a device has no room, as long as a leader may move to a
/// store that has some.
#[derive(Debug, Default)]
pub(super) struct RoomRefusals(Mutex<Option<Refusals>>);

#[derive(Clone, Copy, Debug)]
struct Refusals {
    first_nanos: u64,
    last_nanos: u64,
}

impl RoomRefusals {
    /// Records a refusal of a store that is full, or has room for smaller writes. Returns whether its
    /// client should try again.
    pub(super) fn note(&self, now_nanos: u64, is_full: bool) -> bool {
        let mut refusals = self.0.lock();
        let goes_on = |before: &Refusals| {
            is_full || now_nanos.saturating_sub(before.last_nanos) < REFUSALS_END_AFTER_NANOS
        };
        let first_nanos = refusals.filter(goes_on).map_or(now_nanos, |before| before.first_nanos);
        *refusals = Some(Refusals { first_nanos, last_nanos: now_nanos });
        now_nanos.saturating_sub(first_nanos) < LEADER_MOVES_WITHIN_NANOS
    }
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

    #[test]
    fn a_store_that_stays_full_asks_its_writers_to_try_again_only_while_its_leaders_may_move() {
        let s = |seconds: u64| 5_000_000_000 + seconds * 1_000_000_000;
        let refusals = RoomRefusals::default();
        let tries_again = |now, is_full| refusals.note(s(now), is_full);
        assert!(tries_again(0, true) && tries_again(9, true));
        assert!(!tries_again(10, true) && !tries_again(11, false));
        // Nothing was asked of it meanwhile, and it had no room.
        assert!(!tries_again(900, true));
        assert!(!tries_again(959, false));
        // It had room in between.
        assert!(tries_again(1019, false));
        assert!(!tries_again(1030, true));
    }
}
