//! Snapshots to peers: those under way, and the backoff after those that were not accepted.

use crate::messages::RangeRepairReply;
use std::collections::BTreeMap;
use stele_types::{LogIndex, PeerId};

/// Limit of the backoff: at most 2^(this - 1) least pauses.
const FAILURES_MAX: u32 = 5;

/// Snapshots sent to other peers. All times are monotonic nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct SnapshotBackoff {
    waits: BTreeMap<PeerId, Wait>,
    /// Snapshots of which the end is not reported, by peer. The term of the leader does not matter.
    under_way: BTreeMap<PeerId, u32>,
}

#[derive(Debug, Default)]
struct Wait {
    failures: u32,
    until_nanos: u64,
}

impl SnapshotBackoff {
    pub(crate) fn may_send(&self, to: PeerId, now_nanos: u64) -> bool {
        self.waits.get(&to).is_none_or(|wait| wait.until_nanos <= now_nanos)
    }

    /// Records that a snapshot is handed out; its end follows.
    pub(crate) fn note_begun(&mut self, to: PeerId) {
        *self.under_way.entry(to).or_default() += 1;
    }

    pub(crate) fn note_ended(&mut self, to: PeerId) {
        if let Some(count) = self.under_way.get_mut(&to) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&to);
            }
        }
    }

    pub(crate) fn is_under_way(&self, to: PeerId) -> bool {
        self.under_way.contains_key(&to)
    }

    /// Records an offer without a leader: none follows until the result of this one is known.
    pub(crate) fn note_offered(&mut self, to: PeerId) {
        self.waits.entry(to).or_default().until_nanos = u64::MAX;
    }

    pub(crate) fn note_received(&mut self, to: PeerId) {
        self.waits.remove(&to);
    }

    /// Records a failure: the next attempt waits, twice as long each time, `least_nanos` at first.
    pub(crate) fn note_failed(&mut self, to: PeerId, now_nanos: u64, least_nanos: u64) {
        let wait = self.waits.entry(to).or_default();
        wait.failures = (wait.failures + 1).min(FAILURES_MAX);
        wait.until_nanos = now_nanos + (least_nanos << (wait.failures - 1));
    }

    /// Forgets all failures: those of another term say nothing about what peers need now.
    pub(crate) fn clear(&mut self) {
        self.waits.clear();
    }
}

// Range repairs from other replicas that wait for their entry.

/// Most range repairs kept until this replica has applied their entry.
const RANGE_REPAIRS_MAX: usize = 8;

/// Range repairs that wait until this replica has applied their entry.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    waiting: Vec<RangeRepairReply>,
}

impl Repairs {
    /// Keeps a range repair until it can be applied. One above the limit is dropped and requested
    /// again.
    pub(crate) fn keep(&mut self, found: RangeRepairReply) {
        if self.waiting.len() < RANGE_REPAIRS_MAX {
            self.waiting.push(found);
        }
    }

    /// Removes and returns the repairs that may be applied. Invariant: none from after what is
    /// applied here. Otherwise this replica would return a state and later an older one.
    pub(crate) fn take_applied(&mut self, applied: LogIndex) -> Vec<RangeRepairReply> {
        // bug replica.cover_with_the_future: `found.at <= applied` is `true`
        self.waiting.extract_if(.., |found| found.at <= applied).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::KeyRange;

    #[test]
    fn each_failure_doubles_the_pause_up_to_a_limit() {
        let rows = [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 160), (50, 160)];
        for (failures, pause) in rows {
            let mut snapshots = SnapshotBackoff::default();
            (0..failures).for_each(|_| snapshots.note_failed(PeerId(1), 100, 10));
            assert!(snapshots.may_send(PeerId(1), 100 + pause), "{failures} failures");
            assert_eq!(snapshots.may_send(PeerId(1), 99 + pause), pause == 0, "{failures}");
            assert!(snapshots.may_send(PeerId(2), 0), "another peer");
            snapshots.note_received(PeerId(1));
            assert!(snapshots.may_send(PeerId(1), 0));
        }
    }

    #[test]
    fn an_offer_waits_for_its_result() {
        let mut snapshots = SnapshotBackoff::default();
        snapshots.note_offered(PeerId(1));
        assert!(!snapshots.may_send(PeerId(1), u64::MAX - 1));
        snapshots.note_failed(PeerId(1), 100, 10);
        assert!(snapshots.may_send(PeerId(1), 110));
        snapshots.note_offered(PeerId(1));
        snapshots.clear();
        assert!(snapshots.may_send(PeerId(1), 0));
    }

    fn found(at: u64) -> RangeRepairReply {
        RangeRepairReply { range: KeyRange::all(), at: LogIndex(at), pairs: Vec::new() }
    }

    #[test]
    fn a_repair_waits_for_its_entry_and_few_wait() {
        let mut repairs = Repairs::default();
        [7, 5, 9].into_iter().for_each(|at| repairs.keep(found(at)));
        let rows: [(u64, &[u64]); 4] = [(4, &[]), (7, &[7, 5]), (8, &[]), (9, &[9])];
        for (applied, taken) in rows {
            let repairs = repairs.take_applied(LogIndex(applied));
            let at: Vec<u64> = repairs.iter().map(|found| found.at.0).collect();
            assert_eq!(at, taken, "applied {applied}");
        }
        (0..100).for_each(|at| repairs.keep(found(at)));
        assert_eq!(repairs.take_applied(LogIndex(100)).len(), RANGE_REPAIRS_MAX);
    }
}
