//! Truncation of logs: entries that a checkpoint covers and no follower needs.

use super::RaftStore;
use std::ops::Bound;
use stele_storage::StorageEngine;
use stele_types::{RegionId, mutant};

/// Most regions checked in one tick.
const REGIONS_PER_TICK: usize = 16;
/// Most regions of a pass checked in one poll.
const REGIONS_PER_POLL: usize = 256;
/// Least nanoseconds from one pass over all regions to the next.
const PASS_INTERVAL_NANOS: u64 = 1_000_000_000;

/// Order in which the logs of a store are truncated.
#[derive(Debug, Default)]
pub(super) struct Truncations {
    /// Last region checked in a tick.
    last: RegionId,
    /// Garbage collection waits for a pass over all regions.
    is_requested: bool,
    /// Last region of the pass under way.
    pass: Option<RegionId>,
    /// Monotonic nanoseconds before which no pass begins.
    next_nanos: u64,
}

impl Truncations {
    /// Returns whether a pass is under way, and begins it if it is due.
    fn begin_pass(&mut self, is_short: bool, now_nanos: u64) -> Option<RegionId> {
        let is_due = (self.is_requested || is_short) && now_nanos >= self.next_nanos;
        if self.pass.is_none() && is_due {
            self.pass = Some(RegionId(0));
            self.is_requested = false;
            self.next_nanos = now_nanos + PASS_INTERVAL_NANOS;
        }
        self.pass
    }

    /// Returns the monotonic nanoseconds at which the pass under way, or the next one, goes on.
    fn due_at(&self, is_short: bool, now_nanos: u64) -> Option<u64> {
        match self.pass {
            Some(_) => Some(now_nanos),
            None => (self.is_requested || is_short).then_some(self.next_nanos),
        }
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Truncates the logs of some regions, in turn. Truncations are piggybacked on the next batch.
    pub(super) fn truncate_logs(&mut self) {
        let from = self.truncations.last;
        let last = self.truncate_after(from, REGIONS_PER_TICK, false);
        self.truncations.last = last.unwrap_or(RegionId(0));
    }

    /// Truncates the logs of all regions, hibernating ones too, when garbage collection requests it,
    /// and once a second while the store is short of space. These truncations do not wait for another
    /// batch: a store that accepts no put might write none.
    pub(super) fn truncate_all_if_due(&mut self) {
        let is_short = self.ctx.space.is_short;
        self.truncations.is_requested |= self.ctx.engine.take_truncation_request()
            && !mutant::active("raftstore.truncation_request_ignored");
        let now = self.ctx.now.monotonic_nanos;
        let Some(from) = self.truncations.begin_pass(is_short, now) else { return };
        self.truncations.pass = self.truncate_after(from, REGIONS_PER_POLL, true);
        self.ctx.batches.write_truncations();
    }

    /// Returns the monotonic nanoseconds at which a pass over all regions goes on.
    pub(super) fn truncates_at(&self) -> Option<u64> {
        self.truncations.due_at(self.ctx.space.is_short, self.ctx.now.monotonic_nanos)
    }

    /// Truncates the logs of at most `count` regions after `from`. Returns the last one; `None` when
    /// there are no more.
    fn truncate_after(&mut self, from: RegionId, count: usize, at_once: bool) -> Option<RegionId> {
        let range = self.peers.range_mut((Bound::Excluded(from), Bound::Unbounded));
        let (mut last, mut seen) = (from, 0);
        for (id, peer) in range.take(count) {
            peer.truncate_log(&mut self.ctx, at_once);
            (last, seen) = (*id, seen + 1);
        }
        (seen == count).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_begin_on_request_and_while_the_store_is_short_at_most_once_a_second() {
        const SECOND: u64 = PASS_INTERVAL_NANOS;
        // Nanoseconds, request, short; then whether a pass runs, and when the next one is due.
        let rows = [
            (0, false, false, false, None),
            (5, true, false, true, None),
            (6, true, false, false, Some(5 + SECOND)),
            (5 + SECOND, false, false, true, None),
            (6 + SECOND, false, true, false, Some(5 + 2 * SECOND)),
            (5 + 2 * SECOND, false, true, true, Some(5 + 3 * SECOND)),
        ];
        let mut truncations = Truncations::default();
        for (now, requested, short, runs, due) in rows {
            truncations.is_requested |= requested;
            assert_eq!(truncations.begin_pass(short, now).is_some(), runs, "at {now}");
            if runs {
                assert_eq!(truncations.due_at(short, now), Some(now));
            }
            truncations.pass = None;
            assert_eq!(truncations.due_at(short, now), due, "at {now}");
        }
    }
}
