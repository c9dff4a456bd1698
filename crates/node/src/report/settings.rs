//! Settings of the cluster, as a node last received them.

use super::ReportAnswer;
use std::collections::BTreeMap;
use stele_types::{StoreId, Term};

/// Settings of the cluster on a node.
#[derive(Debug, Default)]
pub struct Settings {
    /// Term of the placement leader that stated them.
    term: Term,
    leases: Option<bool>,
    undetermined_writes_fail: Option<bool>,
    /// Incarnation of each store, and the value of `leases` that it received.
    sent: BTreeMap<StoreId, (u64, bool)>,
}

impl Settings {
    /// Takes the settings from an answer. Invariant: a deposed placement leader that still answers
    /// does not turn leases on again.
    pub(super) fn accept(&mut self, answer: &ReportAnswer) {
        // bug node.deposed_leader_sets: never
        if answer.term < self.term {
            return;
        }
        self.undetermined_writes_fail =
            answer.undetermined_writes_fail.or(self.undetermined_writes_fail);
        if answer.leases.is_some() {
            (self.term, self.leases) = (answer.term, answer.leases);
        }
    }

    /// Returns whether leases are on; `None` before a leader stated it: stores start without
    /// leases.
    pub fn leases(&self) -> Option<bool> {
        self.leases
    }

    /// Returns whether writes of unknown outcome are answered with an error; `None` before a leader
    /// stated it.
    pub fn undetermined_writes_fail(&self) -> Option<bool> {
        self.undetermined_writes_fail
    }

    /// Returns whether leases are on, if this incarnation of the store has not received it yet.
    pub fn take_leases_for(&mut self, store: StoreId, incarnation: u64) -> Option<bool> {
        let value = self.leases?;
        let sent = self.sent.insert(store, (incarnation, value));
        (sent != Some((incarnation, value))).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_receive_changes_and_a_deposed_placement_leader_changes_nothing() {
        let mut settings = Settings::default();
        let mut received = |term, leases, store, incarnation| {
            settings.accept(&ReportAnswer { term: Term(term), leases, ..ReportAnswer::default() });
            settings.take_leases_for(StoreId(store), incarnation)
        };
        assert_eq!(received(4, None, 1, 0), None, "a leader of an earlier version");
        assert_eq!(received(5, Some(true), 1, 0), Some(true));
        assert_eq!(received(5, Some(true), 1, 0), None, "it has it");
        assert_eq!(received(5, Some(true), 1, 1), Some(true), "it has restarted");
        assert_eq!(received(6, Some(false), 1, 1), Some(false));
        assert_eq!(received(5, Some(true), 1, 1), None, "deposed");
        assert_eq!(received(6, None, 1, 1), None);
        assert_eq!(received(6, Some(false), 2, 0), Some(false), "it has just joined");
        assert_eq!(received(6, Some(true), 2, 0), Some(true));
    }
}
