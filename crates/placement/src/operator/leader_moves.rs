//! Last leadership transfers by operators, so that no region is moved to and fro.

use crate::Millis;
use std::collections::{BTreeMap, VecDeque};
use stele_types::RegionId;

/// Time after a leadership transfer in which balancing moves the same region's leader no more.
pub const LEADER_PAUSE_MILLIS: u64 = 60_000;
/// Limit for the transfers that are remembered; the oldest are forgotten first.
const MOVES_MAX: usize = 1 << 16;

/// Transfers of the last minute.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaderMoves {
    last: BTreeMap<RegionId, Millis>,
    by_time: VecDeque<(Millis, RegionId)>,
}

impl LeaderMoves {
    pub(super) fn note(&mut self, region: RegionId, now: Millis) {
        while let Some((at, oldest)) = self.by_time.front().copied()
            && (now.since(at) >= LEADER_PAUSE_MILLIS || self.by_time.len() >= MOVES_MAX)
        {
            self.by_time.pop_front();
            if self.last.get(&oldest) == Some(&at) {
                self.last.remove(&oldest);
            }
        }
        self.by_time.push_back((now, region));
        self.last.insert(region, now);
    }

    /// Returns the region's last transfer if it was less than a minute ago.
    pub(super) fn last(&self, region: RegionId, now: Millis) -> Option<Millis> {
        let at = self.last.get(&region).copied();
        let is_recent = |at: &Millis| now.since(*at) < LEADER_PAUSE_MILLIS;
        // bug placement.leader_pause_ignored: return None;
        at.filter(is_recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_remembered_for_a_minute_and_the_memory_is_bounded() {
        let mut moves = LeaderMoves::default();
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
