//! Levels of the cluster: what its nodes record, and what they may write. Both only grow.
//!
//! `stele ctl finalize` raises the first one. Each node then records it in its directories, which no program
//! that supports less opens again, and reports that. The second one follows when every store has recorded
//! it. So nothing of a level reaches a directory that an earlier version would open.

use crate::cluster::Cluster;
use crate::pairs::{self, PairChange};
use crate::store::{Liveness, Store, StoreState};
use crate::{Millis, NodeReport};
use std::collections::BTreeSet;
use stele_types::{Error, Level, Result};

/// Levels of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Levels {
    /// Level that every store must record: programs that support less are not part of the cluster.
    pub recorded: Level,
    /// Level that nodes may write and send; never above `recorded`.
    pub in_use: Level,
}

impl Levels {
    /// Returns the levels of a new cluster, of which all stores have recorded `level`.
    pub const fn of_new_cluster(level: Level) -> Self {
        Self { recorded: level, in_use: level }
    }
}

impl Cluster {
    /// Returns the levels.
    pub fn levels(&self) -> Levels {
        self.levels
    }

    /// Fails with `Invalid` for a node that supports less than what the stores of the cluster record.
    ///
    /// Invariant: a node that may not understand what the others write is no part of the cluster.
    /// Tests: `a_node_that_supports_less_than_the_cluster_records_is_refused`.
    pub fn check_level(&self, supported: Level, address: &str) -> Result<()> {
        let Levels { recorded, .. } = self.levels;
        // bug placement.any_level_is_heard: always
        if supported >= recorded {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "this cluster was finalized at level {recorded}, and the program of {address} supports up to level \
             {supported}: run version {} or later there",
            recorded.version().unwrap_or("of that level")
        )))
    }

    /// Plans to raise the level to the newest one that every node supports. Returns no change if there is
    /// nothing to raise. Fails with `Invalid` and the names of the nodes that stand against it.
    ///
    /// Invariant: the level is raised only if every node has lately reported that it supports it.
    /// Tests: `the_level_is_raised_only_when_all_nodes_support_it_and_report`.
    pub fn plan_finalize(&self, now: Millis) -> Result<Vec<PairChange>> {
        let of = |is_wanted: &dyn Fn(&Store) -> bool| -> BTreeSet<String> {
            self.members().filter(|store| is_wanted(store)).map(name_of).collect()
        };
        let refuse = |stores: BTreeSet<String>, text: &str| {
            let names = Vec::from_iter(stores).join(", ");
            Err(Error::invalid(format!("nothing was changed: {names} {text}")))
        };
        let is_silent = |store: &Store| {
            store.node.address.is_empty() || self.liveness(store.id, now) != Liveness::Live
        };
        let silent = of(&is_silent);
        // bug placement.finalized_without_silent_nodes: never
        if !silent.is_empty() {
            let seconds = self.config().silent_after_seconds;
            let text = format!(
                "did not report within the last {seconds} s: start the node in the new version, or remove the store"
            );
            return refuse(silent, &text);
        }
        let failed = of(&|store| store.report.has_failed);
        if !failed.is_empty() {
            return refuse(
                failed,
                "failed, and cannot record the level: repair or remove the store",
            );
        }
        let least = self.members().map(|store| store.node.level).min().unwrap_or_default();
        // bug placement.finalized_beyond_a_node: `least.min(Level::NEWEST)` is `Level::NEWEST`
        let target = least.min(Level::NEWEST);
        let Levels { recorded, in_use } = self.levels;
        if target > recorded {
            return Ok(vec![pairs::levels(Levels { recorded: target, in_use })]);
        }
        let earlier = of(&|store| store.node.level < Level::NEWEST);
        match earlier.is_empty() {
            true => Ok(Vec::new()),
            false => {
                let version = Level::NEWEST.version().unwrap_or_default();
                refuse(
                    earlier,
                    &format!("run earlier versions: run version {version} or later there"),
                )
            }
        }
    }

    /// Plans to put the recorded level to use, once every store has recorded it.
    ///
    /// Invariant: a level is in use only when every directory of the cluster records it.
    /// Tests: `a_level_is_in_use_when_every_store_has_recorded_it`.
    pub(crate) fn plan_level_in_use(&self) -> Option<PairChange> {
        let Levels { recorded, in_use } = self.levels;
        // bug placement.level_in_use_early: `self.stores_below_level().is_empty()` is `true`
        (in_use < recorded && self.stores_below_level().is_empty())
            .then(|| pairs::levels(Levels::of_new_cluster(recorded)))
    }

    /// Returns the stores that have not reported to have recorded the level of the cluster, with their
    /// nodes.
    pub fn stores_below_level(&self) -> BTreeSet<String> {
        let is_below =
            |store: &&Store| store.report.has_failed || store.report.level < self.levels.recorded;
        self.members().filter(is_below).map(name_of).collect()
    }

    fn members(&self) -> impl Iterator<Item = &Store> {
        self.stores().filter(|store| store.state != StoreState::Tombstone)
    }
}

fn name_of(store: &Store) -> String {
    let NodeReport { version, .. } = &store.node;
    let version = if version.is_empty() { "" } else { &format!(", version {version}") };
    format!("store {} ({}{version})", store.id, store.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bootstrap, DrainGoal, StoreReport};
    use stele_types::{ClusterId, StoreId};

    fn founded() -> Cluster {
        let capacities_bytes = vec![1 << 30; 2];
        let first = Bootstrap { cluster: ClusterId(7), address: "n1:1".into(), capacities_bytes };
        let pairs = first.pairs().into_iter().filter_map(|it| Some((it.key, it.value?)));
        Cluster::load(pairs, Millis(0), 0).unwrap().unwrap()
    }

    fn report(cluster: &mut Cluster, store: u64, supported: u32, recorded: u32, now: u64) {
        let node = NodeReport {
            address: format!("n{store}:1"),
            version: format!("0.{supported}.0"),
            level: Level::new(supported),
            ..NodeReport::default()
        };
        let level = Level::new(recorded);
        let report = StoreReport { id: StoreId(store), level, ..StoreReport::default() };
        let changes = cluster.plan_heartbeat(&node, &[report]).unwrap();
        cluster.apply(&changes).unwrap();
        cluster.record_heartbeat(&node, &[report], Millis(now));
    }

    fn refusal(cluster: &Cluster, now: u64) -> String {
        cluster.plan_finalize(Millis(now)).unwrap_err().to_string()
    }

    #[test]
    fn the_level_is_raised_only_when_all_nodes_support_it_and_report() {
        let mut cluster = founded();
        report(&mut cluster, 1, 2, 1, 1_000);
        let text = refusal(&cluster, 1_000);
        assert!(text.contains("store 2 (n1:1) did not report within the last 30 s"), "{text}");
        report(&mut cluster, 2, 1, 1, 1_000);
        let text = refusal(&cluster, 1_000);
        assert!(text.contains("store 2 (n2:1, version 0.1.0) run earlier versions"), "{text}");
        assert!(text.contains("run version 0.2.0 or later there"), "{text}");
        report(&mut cluster, 2, 2, 1, 2_000);
        let text = refusal(&cluster, 31_500);
        assert!(text.contains("store 1 (n1:1, version 0.2.0) did not report"), "{text}");
        let node =
            NodeReport { address: "n1:1".into(), level: Level::NEWEST, ..Default::default() };
        let failed = StoreReport { id: StoreId(1), has_failed: true, ..StoreReport::default() };
        cluster.record_heartbeat(&node, &[failed], Millis(3_000));
        assert!(refusal(&cluster, 3_000).contains("store 1 (n1:1) failed"));
        report(&mut cluster, 1, 9, 1, 4_000);
        // Store 2 supports less than this program.
        let changes = cluster.plan_finalize(Millis(4_000)).unwrap();
        cluster.apply(&changes).unwrap();
        let expected = Levels { recorded: Level::MOMENTS, in_use: Level::OLDEST };
        assert_eq!(cluster.levels(), expected, "what both support");
        assert!(refusal(&cluster, 4_000).contains("store 2 (n2:1, version 0.2.0) run earlier"));
        report(&mut cluster, 2, Level::NEWEST.get(), 1, 5_000);
        let changes = cluster.plan_finalize(Millis(5_000)).unwrap();
        cluster.apply(&changes).unwrap();
        assert_eq!(cluster.levels().recorded, Level::NEWEST);
        assert_eq!(cluster.plan_finalize(Millis(5_000)).unwrap(), [], "nothing is left to raise");
    }

    #[test]
    fn a_level_is_in_use_when_every_store_has_recorded_it() {
        let mut cluster = founded();
        assert_eq!(cluster.plan_level_in_use(), None);
        for store in 1..=2 {
            report(&mut cluster, store, 2, 1, 1);
        }
        let changes = cluster.plan_finalize(Millis(1)).unwrap();
        cluster.apply(&changes).unwrap();
        let recorded: Vec<_> =
            changes.into_iter().filter_map(|it| Some((it.key, it.value?))).collect();
        report(&mut cluster, 1, 2, 2, 2);
        assert_eq!(cluster.plan_level_in_use(), None);
        let below = Vec::from_iter(cluster.stores_below_level());
        assert_eq!(below, ["store 2 (n2:1, version 0.2.0)"]);
        let mut without = cluster.clone();
        let lost = without.plan_state(StoreId(2), DrainGoal::Lost, Millis(99_000)).unwrap();
        without.apply(&lost).unwrap();
        assert!(without.plan_level_in_use().is_some(), "a removed store records nothing");
        report(&mut cluster, 2, 2, 2, 2);
        let in_use = cluster.plan_level_in_use().unwrap();
        cluster.apply(&[in_use]).unwrap();
        assert_eq!(cluster.levels(), Levels::of_new_cluster(Level::MOMENTS));
        assert_eq!(cluster.plan_level_in_use(), None, "once");
        // A new leader knows the level, and nothing of the stores before they report.
        let first = Bootstrap {
            cluster: ClusterId(7),
            address: "n1:1".into(),
            capacities_bytes: vec![1; 2],
        };
        let pairs = first.pairs().into_iter().filter_map(|it| Some((it.key, it.value?)));
        let loaded = Cluster::load(pairs.chain(recorded), Millis(0), 0).unwrap().unwrap();
        assert_eq!(loaded.levels(), Levels { recorded: Level::MOMENTS, in_use: Level::OLDEST });
        assert_eq!(loaded.plan_level_in_use(), None);
    }

    #[test]
    fn a_node_that_supports_less_than_the_cluster_records_is_refused() {
        let mut cluster = founded();
        assert!(
            cluster.check_level(Level::OLDEST, "n2:1").is_ok(),
            "a cluster of an earlier version"
        );
        cluster
            .apply(&[pairs::levels(Levels { recorded: Level::MOMENTS, in_use: Level::OLDEST })])
            .unwrap();
        let refused = cluster.check_level(Level::OLDEST, "n2:1").unwrap_err().to_string();
        for part in ["finalized at level 2", "n2:1", "up to level 1", "run version 0.2.0 or later"]
        {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(cluster.check_level(Level::new(3), "n2:1").is_ok());
    }

    #[test]
    fn levels_are_never_lowered() {
        let mut cluster = founded();
        for (recorded, in_use) in [(2, 2), (1, 1), (2, 1)] {
            let levels = Levels { recorded: Level::new(recorded), in_use: Level::new(in_use) };
            cluster.apply(&[pairs::levels(levels)]).unwrap();
            assert_eq!(cluster.levels(), Levels::of_new_cluster(Level::MOMENTS));
        }
    }
}
