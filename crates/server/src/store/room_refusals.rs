//! Writes that a store refuses because a device has no room, as long as a leader may move to a store that
//! has some.

use parking_lot::Mutex;

/// Time in which the placement leader moves leaders away from a full store, with reserve.
const LEADER_MOVES_WITHIN_NANOS: u64 = 10_000_000_000;
/// Time without a refusal after which the next one is the first of others, unless the store stayed
/// full.
const REFUSALS_END_AFTER_NANOS: u64 = 60_000_000_000;

#[derive(Debug, Default)]
pub(super) struct RoomRefusals(Mutex<Option<Refusals>>);

/// Times of the first and the last refusal.
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
