//! Last leadership transfers and moves of replicas by operators, so that nothing is moved to and fro.

use crate::Millis;
use std::collections::{BTreeMap, VecDeque};

/// Time after a move in which balancing does not move the same leader or replica again.
pub(crate) const MOVE_PAUSE_MILLIS: u64 = 60_000;
/// Limit for the moves that are remembered; the oldest are forgotten first.
const MOVES_MAX: usize = 1 << 16;

/// Moves of the last minute, by what moved.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentMoves<K> {
    last: BTreeMap<K, Millis>,
    by_time: VecDeque<(Millis, K)>,
}

impl<K: Copy + Ord> RecentMoves<K> {
    pub(super) fn note(&mut self, moved: K, now: Millis) {
        while let Some((at, oldest)) = self.by_time.front().copied()
            && (now.since(at) >= MOVE_PAUSE_MILLIS || self.by_time.len() >= MOVES_MAX)
        {
            self.by_time.pop_front();
            if self.last.get(&oldest) == Some(&at) {
                self.last.remove(&oldest);
            }
        }
        self.by_time.push_back((now, moved));
        self.last.insert(moved, now);
    }

    /// Returns the last move if it was less than a minute ago.
    pub(super) fn last(&self, moved: K, now: Millis) -> Option<Millis> {
        let at = self.last.get(&moved).copied();
        at.filter(|at| now.since(*at) < MOVE_PAUSE_MILLIS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::RegionId;

    #[test]
    fn a_move_is_remembered_for_a_minute_and_the_memory_is_bounded() {
        let mut moves = RecentMoves::default();
        moves.note(RegionId(7), Millis(1000));
        assert_eq!(moves.last(RegionId(7), Millis(60_999)), Some(Millis(1000)));
        assert_eq!(moves.last(RegionId(7), Millis(61_000)), None);
        moves.note(RegionId(7), Millis(50_000));
        moves.note(RegionId(8), Millis(62_000));
        assert_eq!(moves.last(RegionId(7), Millis(62_000)), Some(Millis(50_000)));
        for id in 0..2 * MOVES_MAX as u64 {
            moves.note(RegionId(id), Millis(70_000));
        }
        assert_eq!((moves.last.len(), moves.by_time.len()), (MOVES_MAX, MOVES_MAX));
    }
}
