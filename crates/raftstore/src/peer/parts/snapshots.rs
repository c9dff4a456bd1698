//! Backoff of snapshots to peers that did not accept the last ones.

use std::collections::BTreeMap;
use stele_types::PeerId;

/// Limit of the backoff: at most 2^(this - 1) least pauses.
const FAILURES_MAX: u32 = 5;

/// Snapshots sent to other peers. All times are monotonic nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    waits: BTreeMap<PeerId, Wait>,
}

#[derive(Debug, Default)]
struct Wait {
    failures: u32,
    until_nanos: u64,
}

impl Snapshots {
    /// Returns whether a snapshot may be sent to a peer now.
    pub fn may_send(&self, to: PeerId, now_nanos: u64) -> bool {
        self.waits.get(&to).is_none_or(|wait| wait.until_nanos <= now_nanos)
    }

    /// Records an offer without a leader: none follows until the result of this one is known.
    pub fn note_offered(&mut self, to: PeerId) {
        self.waits.entry(to).or_default().until_nanos = u64::MAX;
    }

    /// Records that a peer received a snapshot.
    pub fn note_received(&mut self, to: PeerId) {
        self.waits.remove(&to);
    }

    /// Records a failure: the next attempt waits, twice as long each time, `least_nanos` at first.
    pub fn note_failed(&mut self, to: PeerId, now_nanos: u64, least_nanos: u64) {
        let wait = self.waits.entry(to).or_default();
        wait.failures = (wait.failures + 1).min(FAILURES_MAX);
        wait.until_nanos = now_nanos + (least_nanos << (wait.failures - 1));
    }

    /// Forgets all failures: those of another term say nothing about what peers need now.
    pub fn clear(&mut self) {
        self.waits.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_pause_up_to_a_limit() {
        let rows = [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 160), (50, 160)];
        for (failures, pause) in rows {
            let mut snapshots = Snapshots::default();
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
        let mut snapshots = Snapshots::default();
        snapshots.note_offered(PeerId(1));
        assert!(!snapshots.may_send(PeerId(1), u64::MAX - 1));
        snapshots.note_failed(PeerId(1), 100, 10);
        assert!(snapshots.may_send(PeerId(1), 110));
        snapshots.note_offered(PeerId(1));
        snapshots.clear();
        assert!(snapshots.may_send(PeerId(1), 0));
    }
}
