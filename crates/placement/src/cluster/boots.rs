//! What outlasts a change of the placement leader of each store: its last run, and its time without
//! heartbeats.
//!
//! The last run is persisted at its first report, together with the address of its node. The nodes
//! judge which run of a store they hear. This record is a second line: it takes a run only after
//! the one that it holds.
//!
//! Heartbeat times are kept in memory. While a store is disconnected, the seconds without a
//! heartbeat are persisted, once a minute until it is down; when heartbeats resume, the record is
//! deleted. A new leader counts on from the record, so a change of leaders does not restart the
//! wait before lost replicas are rebuilt.
//!
//! Invariant: only monotonic clocks decide when a store counts as down. A leader with a wall clock that
//! jumped, or that differs from its predecessor's, counts no store as down earlier. The time since the last
//! record, and the time without a leader, are not counted.
//! Test: `the_time_without_heartbeats_does_not_follow_the_wall_clock_of_a_placement_leader`.

use super::Cluster;
use crate::Millis;
use crate::pairs::{self, PairChange};
use crate::store::{LastHeartbeat, Liveness, NodeReport, Store, StoreReport, StoreState};
use stele_types::{BootOrder, Error, Result, StoreId, StoreRun};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    /// It is the recorded run, or states nothing to compare.
    Same,
    /// It comes after the recorded one.
    Later,
    /// It came before the recorded one.
    Earlier,
    /// It is a run of another directory of the store.
    Copy,
    /// The store is bound to another node.
    Foreign,
}

impl Cluster {
    /// Returns the last run of a store, in which it had its address; unknown for a store of a node of
    /// an earlier version.
    pub fn run_of(&self, store: StoreId) -> StoreRun {
        self.runs.get(&store).cloned().unwrap_or_default()
    }

    /// Plans the record of a new run of a store.
    ///
    /// Invariant: the recorded start is replaced only by one that came after it.
    pub(super) fn plan_run(&self, store: StoreId, run: &StoreRun) -> Vec<PairChange> {
        let known = self.run_of(store);
        let is_first = !known.lineage.is_known() && run.lineage.is_known();
        let states_less = known.lineage.is_known() && !run.lineage.is_known();
        let is_new = match compare(&known, run) {
            _ if states_less => false,
            Reported::Later => run.is_known(),
            // The record was written by a node of an earlier version.
            Reported::Same => is_first,
            Reported::Earlier | Reported::Copy | Reported::Foreign => false,
        };
        let boot = (is_new && run.boot.is_known()).then(|| pairs::boot(store, run.boot));
        let starts = is_new && run.lineage.is_known();
        boot.into_iter().chain(starts.then(|| pairs::starts(store, &run.lineage))).collect()
    }

    fn reported(&self, node: &NodeReport, report: &StoreReport) -> Reported {
        if self.is_foreign(report.id, node.name.as_deref()) {
            return Reported::Foreign;
        }
        let unknown = StoreRun::default();
        let known = self.runs.get(&report.id).unwrap_or(&unknown);
        let run = node.run_of(report);
        let is_silent = known.lineage.is_known() && !run.lineage.is_known();
        let reported = compare(known, &run);
        if !is_silent {
            // bug placement.earlier_boot_heard: if reported == Reported::Earlier { return Reported::Same; }
            // bug placement.copied_store_reports: if reported == Reported::Copy { return Reported::Same; }
            return reported;
        }
        // A store that stated a start and states none is heard only at its address.
        let at = self.store(report.id).map(|store| &store.address);
        let is_heard = report.has_failed || at == Some(&node.address);
        if is_heard { Reported::Same } else { Reported::Copy }
    }

    /// Whether a report comes from a process that ended since, or from another directory of the store.
    ///
    /// Invariant: of two runs of one store only one is heard.
    /// Test: `a_store_that_runs_from_two_copies_of_its_directory_reports_from_one_node_only`.
    pub(super) fn is_unheard(&self, node: &NodeReport, report: &StoreReport) -> bool {
        let reported = self.reported(node, report);
        matches!(reported, Reported::Earlier | Reported::Copy | Reported::Foreign)
    }

    /// Fails if all stores that a node reports run elsewhere, from other directories of theirs. Some of
    /// them do not keep the others of their node from being heard.
    pub(super) fn check_copies(&self, node: &NodeReport, reports: &[StoreReport]) -> Result<()> {
        let is_copy = |report: &&StoreReport| self.reported(node, report) == Reported::Copy;
        let mut serving = reports.iter().filter(|report| !report.has_failed).peekable();
        let refuses = serving.peek().is_some() && serving.clone().all(|report| is_copy(&report));
        // bug placement.copy_refuses_node: let refuses = serving.clone().any(|report| is_copy(&report));
        let Some(report) = serving.find(is_copy).filter(|_| refuses) else { return Ok(()) };
        let (known, run) = (self.run_of(report.id), node.run_of(report));
        let at = self.store(report.id).map(|store| store.address.clone()).unwrap_or_default();
        Err(Error::invalid(format!(
            "store {} runs at {at} as {known}, and {} runs another directory of it as {run}: stop the \
             node that has the copy, and start it without that directory",
            report.id, node.address
        )))
    }

    /// Whether a node's report comes from a process that ended since: each of its stores has reported
    /// in a later run.
    pub(crate) fn are_of_earlier_boots(&self, node: &NodeReport, reports: &[StoreReport]) -> bool {
        let mut serving = reports.iter().filter(|report| !report.has_failed).peekable();
        serving.peek().is_some() && serving.all(|report| self.is_unheard(node, report))
    }
}

fn compare(known: &StoreRun, run: &StoreRun) -> Reported {
    if known.lineage.is_known() && run.lineage.is_known() {
        let (last, this) = (known.lineage.id(), run.lineage.id());
        // A run with more starts since than it names is judged by the nodes alone.
        let named = run.lineage.ids().len() as u64;
        let is_out_of_reach = run.boot.count > known.boot.count.saturating_add(named);
        return match () {
            () if last == this => Reported::Same,
            () if run.lineage.holds(last) || is_out_of_reach => Reported::Later,
            () if known.lineage.holds(this) => Reported::Earlier,
            () => Reported::Copy,
        };
    }
    match run.boot.relative_to(&known.boot) {
        BootOrder::Same => Reported::Same,
        BootOrder::Before => Reported::Earlier,
        BootOrder::Copy => Reported::Copy,
        BootOrder::After => Reported::Later,
        BootOrder::Unknown if run.is_known() => Reported::Later,
        BootOrder::Unknown => Reported::Same,
    }
}

/// Time after which the record of a disconnected store is written again.
const RECORD_INTERVAL_S: u64 = 60;

impl Cluster {
    /// Plans the records of stores that are disconnected, or connected again. Called periodically.
    pub(crate) fn plan_disconnections(&self, now: Millis) -> Vec<PairChange> {
        let former = self.former_silences.iter().map(|store| pairs::no_former_silence(*store));
        let stores = self.stores.values();
        former.chain(stores.filter_map(|store| self.plan_disconnection(store, now))).collect()
    }

    fn plan_disconnection(&self, store: &Store, now: Millis) -> Option<PairChange> {
        let written_s = self.disconnected_s.get(&store.id).copied();
        if store.state == StoreState::Tombstone {
            return written_s.map(|_| pairs::disconnected(store.id, None));
        }
        let disconnected_s = match store.last_heartbeat {
            LastHeartbeat::At(moment) => now.seconds_since(moment),
            LastHeartbeat::NotSince { loaded, disconnected_s } => {
                now.seconds_since(loaded).saturating_add(disconnected_s)
            }
        };
        if store.liveness(&self.config, now) == Liveness::Live {
            return written_s.map(|_| pairs::disconnected(store.id, None));
        }
        let is_due = match written_s {
            None => disconnected_s >= self.config.silent_after_seconds,
            Some(written_s) => {
                written_s < self.config.down_after_seconds
                    && disconnected_s >= written_s.saturating_add(RECORD_INTERVAL_S)
            }
        };
        is_due.then(|| pairs::disconnected(store.id, Some(disconnected_s)))
    }

    pub(super) fn restore_disconnections(&mut self) {
        // bug placement.restart_down_timers: return;
        for (id, seconds) in &self.disconnected_s {
            // bug placement.silence_by_wall_clock: `*seconds` is `self.loaded_s.saturating_sub(*seconds)`
            if let Some(store) = self.stores.get_mut(id) {
                store.last_heartbeat =
                    LastHeartbeat::NotSince { loaded: self.loaded, disconnected_s: *seconds };
            }
        }
    }
}
