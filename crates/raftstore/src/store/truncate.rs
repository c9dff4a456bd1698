//! Truncation of logs: entries that a checkpoint covers and no follower needs.

use super::RaftStore;
use std::ops::Bound;
use stele_storage::StorageEngine;
use stele_types::RegionId;

/// Most regions checked in one tick.
const REGIONS_PER_TICK: usize = 16;

impl<E: StorageEngine> RaftStore<E> {
    /// Truncates the logs of some regions, in turn. Truncations are piggybacked on the next batch.
    pub(super) fn truncate_logs(&mut self) {
        let from = Bound::Excluded(self.truncated_last);
        let range = self.peers.range_mut((from, Bound::Unbounded));
        let mut last = RegionId(0);
        let mut seen = 0;
        for (id, peer) in range.take(REGIONS_PER_TICK) {
            peer.truncate_log(&mut self.ctx);
            (last, seen) = (*id, seen + 1);
        }
        self.truncated_last = if seen < REGIONS_PER_TICK { RegionId(0) } else { last };
    }
}
