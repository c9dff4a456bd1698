//! Settings of the cluster on their way from the placement group to this node and its stores.

use crate::placement::{leases_of, undetermined_writes_fail_of};
use crate::stores::Stores;
use std::collections::BTreeMap;
use stele_proto::stele::control::v1::HeartbeatResponse;
use stele_raftstore::Input;
use stele_types::StoreId;

/// The settings, as this node last received them.
#[derive(Default)]
pub(super) struct ClusterSettings {
    /// Term of the placement leader that stated them.
    term: u64,
    /// `None` before a leader stated it: stores start without leases.
    leases: Option<bool>,
    /// `None` before a leader stated it.
    undetermined_writes_fail: Option<bool>,
    /// Value of `leases` that each store received.
    sent: BTreeMap<StoreId, bool>,
}

impl ClusterSettings {
    /// Takes the settings from a response. Invariant: a deposed placement leader that still answers
    /// does not turn leases on again.
    pub fn accept(&mut self, answer: &HeartbeatResponse) {
        let is_stale = answer.options_version < self.term;
        if is_stale && !stele_types::mutant::active("server.deposed_leader_sets") {
            return;
        }
        self.undetermined_writes_fail =
            undetermined_writes_fail_of(answer).or(self.undetermined_writes_fail);
        let Some(value) = leases_of(answer) else { return };
        if self.leases.is_some_and(|known| known != value) {
            tracing::info!("leases are {} from now on", if value { "on" } else { "off" });
        }
        (self.term, self.leases) = (answer.options_version, Some(value));
    }

    /// Puts the settings into force: on the node, and on the stores that have another value or none.
    pub fn apply(&mut self, stores: &Stores) {
        if let Some(fail) = self.undetermined_writes_fail {
            stores.set_undetermined_writes_fail(fail);
        }
        for store in stores.all() {
            self.send(store.id(), |leases| store.input(Input::Leases(leases)));
        }
    }

    fn send(&mut self, store: StoreId, send: impl FnOnce(bool)) {
        let Some(value) = self.leases else { return };
        if self.sent.insert(store, value) != Some(value) {
            send(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_proto::stele::control::v1::ClusterOption;

    fn answer(term: u64, value: &str) -> HeartbeatResponse {
        let option = ClusterOption { key: "leases".to_owned(), value: value.to_owned() };
        let options = if value.is_empty() { Vec::new() } else { vec![option] };
        HeartbeatResponse { options_version: term, options, ..HeartbeatResponse::default() }
    }

    #[test]
    fn stores_receive_changes_and_a_deposed_placement_leader_changes_nothing() {
        let mut setting = ClusterSettings::default();
        let mut received = |answer: &HeartbeatResponse, store| {
            let mut got = None;
            setting.accept(answer);
            setting.send(StoreId(store), |leases| got = Some(leases));
            got
        };
        assert_eq!(received(&answer(4, ""), 1), None, "a leader of an earlier version");
        assert_eq!(received(&answer(5, "1"), 1), Some(true));
        assert_eq!(received(&answer(5, "1"), 1), None, "it has it");
        assert_eq!(received(&answer(6, "0"), 1), Some(false));
        assert_eq!(received(&answer(5, "1"), 1), None, "deposed");
        assert_eq!(received(&answer(6, ""), 1), None);
        assert_eq!(received(&answer(6, "0"), 2), Some(false), "it has just joined");
        assert_eq!(received(&answer(6, "1"), 2), Some(true));
    }
}
