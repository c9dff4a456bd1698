//! Changes of the region that are proposed and not applied.

use stele_types::LogIndex;

/// Changes of the region under way.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Last proposed entry that changes the region, until it is applied.
    last: Option<LogIndex>,
    /// Last proposed entry that changes the range or the phase, until it is applied.
    barrier: Option<LogIndex>,
}

impl Changes {
    /// Records that the entry at `at` was proposed.
    pub fn note_proposed(&mut self, at: LogIndex, is_barrier: bool) {
        self.last = Some(at);
        self.barrier = is_barrier.then_some(at).or(self.barrier);
    }

    /// Records that the change at `at` is applied.
    pub fn note_applied(&mut self, at: LogIndex) {
        self.last.take_if(|last| *last <= at);
        self.barrier.take_if(|barrier| *barrier <= at);
    }

    /// Forgets all of them: another peer leads.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether a change is under way. A descriptor is derived from the applied region: two
    /// changes in flight would overwrite each other.
    pub fn is_pending(&self) -> bool {
        self.last.is_some()
    }

    /// Returns whether proposals must wait; `is_proposing` tells that a change is about to be
    /// proposed. Invariant: nothing is proposed after an entry that
    /// changes the range or the phase, so what is checked against the region now holds when it is
    /// applied.
    pub fn is_barred(&self, is_proposing: bool) -> bool {
        let is_barred = is_proposing || self.barrier.is_some();
        is_barred && !stele_types::mutant::active("raftstore.propose_behind_barrier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_pending_and_a_barrier_bars_until_each_is_applied() {
        // Proposed changes (index, whether a barrier), last applied one, whether pending, barred.
        let rows = [
            (&[][..], 0, false, false),
            (&[(5, false)], 4, true, false),
            (&[(5, false)], 5, false, false),
            (&[(5, true)], 4, true, true),
            (&[(5, true)], 6, false, false),
            (&[(5, true), (6, false)], 5, true, false),
        ];
        for (proposed, applied, is_pending, is_barred) in rows {
            let mut changes = Changes::default();
            proposed
                .iter()
                .for_each(|(at, barrier)| changes.note_proposed(LogIndex(*at), *barrier));
            changes.note_applied(LogIndex(applied));
            let found = (changes.is_pending(), changes.is_barred(false));
            assert_eq!(found, (is_pending, is_barred), "{proposed:?} applied {applied}");
            assert!(changes.is_barred(true));
            changes.clear();
            assert!(!changes.is_pending() && !changes.is_barred(false));
        }
    }
}
