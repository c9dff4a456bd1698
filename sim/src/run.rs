//! One run: a cluster forms, clients work while faults happen, the faults end, and the invariants
//! are checked.

use crate::history;
use crate::plan::{Mode, Plan, SECOND};
use crate::trace::Trace;
use crate::world::{Counts, Stop, World};
use crate::{damaged_payloads, deposed, helical, lost_majority};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use stele_types::RegionPhase;

/// Limit for forming a cluster without faults.
const FORM_NANOS: u64 = 40 * SECOND;
const SETTLE_NANOS: u64 = 90 * SECOND;
const LIVENESS_NANOS: u64 = 45 * SECOND;
const READ_NANOS: u64 = 60 * SECOND;
/// Operations that show that new writes succeed.
const PROBES: u64 = 40;

/// Optional results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Record marks for a trace file.
    pub trace: bool,
    /// Print every line as it happens.
    pub lines: bool,
    /// Return the history in the format of Porcupine.
    pub history: bool,
    /// Plant stale reads in the history.
    pub plants: bool,
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Counters of the run.
    pub counts: Counts,
    /// Virtual nanoseconds.
    pub nanos: u64,
    /// Hash of all events; two runs of a seed have the same.
    pub hash: u64,
    /// Text of the first violated invariant.
    pub violation: Option<String>,
    /// Last trace lines.
    pub tail: String,
    /// Content of the trace file.
    pub perfetto: Option<String>,
    /// Content of the history file.
    pub history: Option<String>,
    /// Groups of the history that are not linearizable.
    pub refused: Vec<String>,
}

impl Outcome {
    /// Returns the outcome of a run without optional results.
    pub fn of(world: &World) -> Self {
        Self {
            counts: world.counts,
            nanos: world.now,
            hash: world.trace.hash(),
            violation: world.violation.clone(),
            tail: world.trace.tail(),
            ..Self::default()
        }
    }
}

/// Runs a plan to its end or to the first violation. A panic is a violation.
pub fn run(plan: &Plan, wanted: Wanted) -> Outcome {
    let mut world = World::new(plan.clone(), Trace::new(wanted.trace, wanted.lines));
    let caught = catch_unwind(AssertUnwindSafe(|| play(&mut world)));
    if let Err(panic) = caught {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.fail(format!("panic: {}", text.unwrap_or_default()));
    }
    let disks = world.slots.values().map(|slot| slot.disk.operations());
    let disks: Vec<u64> = disks.collect();
    disks.into_iter().for_each(|operations| world.trace.mix(operations));
    world.trace.mix(world.counts.ops);
    if wanted.plants {
        history::plant(&mut world.clients.histories);
    }
    let histories = &world.clients.histories;
    let outcome = Outcome {
        counts: world.counts,
        nanos: world.now,
        hash: world.trace.hash(),
        violation: world.violation.clone(),
        tail: world.trace.tail(),
        perfetto: wanted.trace.then(|| world.trace.perfetto()),
        history: wanted.history.then(|| history::porcupine(histories)),
        refused: if wanted.history { history::refused(histories) } else { Vec::new() },
    };
    // A broken state may panic again when it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(world)));
    outcome
}

fn play(world: &mut World) {
    if world.plan.has_damaged_payloads {
        damaged_payloads::play(world);
        return;
    }
    if world.plan.is_helix {
        helical::play(world);
        return;
    }
    world.begin_checks();
    let formed = world.run_until(FORM_NANOS, |world| world.is_formed());
    if !formed {
        let state = world.describe();
        return world.fail(format!("the cluster does not form:{state}"));
    }
    world.start_follower();
    world.start_clients(world.plan.ops_max);
    world.start_faults();
    world.begin_moments();
    world.begin_levels();
    world.begin_collections();
    world.run(world.plan.nanos);
    world.end_moments();
    world.heal();
    world.clients.stop();
    world.stop_collections();
    settle(world);
    if world.plan.mode == Mode::Liveness {
        probe(world);
        world.check_placement();
    }
    world.end_follower();
    finish(world);
    if world.plan.seed.is_multiple_of(2) {
        for node in 1..=world.plan.nodes {
            world.counts.power_cuts += 1;
            world.stop_node(node, Stop::Power);
            world.start_node(node);
        }
        settle(world);
        finish(world);
    }
    if deposed::play(world) {
        settle(world);
        finish(world);
    }
    if lost_majority::play(world) {
        settle(world);
        finish(world);
    }
}

/// Waits until all replicas agree and no operation is pending.
fn settle(world: &mut World) {
    let nanos = match world.plan.mode {
        Mode::Safety => SETTLE_NANOS,
        Mode::Liveness => LIVENESS_NANOS,
    };
    // The operator keeps a damaged disk until the other stores have what is on it.
    let replaced = world.run_until(nanos, |world| world.disks_to_replace().is_empty());
    if !replaced && world.counts.overspent == 0 {
        let (seconds, state) = (nanos / SECOND, world.describe());
        return world
            .fail(format!("a damaged disk is still needed {seconds} s after the faults:{state}"));
    }
    let settled = world.run_until(nanos, |world| !world.clients.is_busy() && world.is_settled());
    if settled {
        return;
    }
    let text = format!("not settled {} s after the faults:{}", nanos / SECOND, world.describe());
    match world.counts.overspent {
        0 => world.fail(text),
        _ => world.trace.note(world.now, 0, 0, || text),
    }
}

/// Requires new operations to succeed: redirected clients retry.
fn probe(world: &mut World) {
    let wanted = world.counts.ops + PROBES;
    world.start_clients(u64::from(u32::MAX));
    let done = world.run_until(LIVENESS_NANOS, |world| world.counts.ops >= wanted);
    world.clients.stop();
    world.run_until(READ_NANOS, |world| !world.clients.is_busy());
    if !done && world.counts.overspent == 0 {
        let (left, state) = (wanted - world.counts.ops, world.describe());
        world.fail(format!("{left} of {PROBES} new operations were not answered:{state}"));
    }
}

fn finish(world: &mut World) {
    if world.violation.is_some() {
        return;
    }
    if world.counts.overspent > 0 && !world.is_settled() {
        return world.check_running_once();
    }
    if !world.read_everything(READ_NANOS) {
        let state = world.describe();
        world.fail(format!("some keys cannot be read:{state}"));
    }
    if !world.sweep_everything(READ_NANOS) {
        world.fail("sweepers find dead members again and again".to_owned());
    }
    world.wait_until_quiet();
    if world.violation.is_none() {
        world.check_end();
    }
}

impl World {
    /// Returns true if every store joined and every region has as many replicas as nodes allow.
    pub(crate) fn is_formed(&mut self) -> bool {
        let stores = self.plan.stores() as usize;
        let copies = self.plan.nodes.min(3) as usize;
        let regions = self.reports_by_region();
        self.serving().len() == stores
            && regions.len() >= 2
            && regions.values().flatten().all(|(_, it)| it.region.peers.len() >= copies)
    }

    /// Waits until no snapshot is under way and all replicas agree. Invariant: only then are the files
    /// of a store compared with what it references. A running reception owns files that nothing else
    /// references.
    pub(crate) fn wait_until_quiet(&mut self) {
        self.run_until(SETTLE_NANOS, |world| world.streams.is_empty() && world.is_settled());
    }

    /// Returns true if every member of every region has applied its whole log and no change is
    /// pending. After a power cut of all nodes, entries wait for a leader that commits them.
    pub(crate) fn is_settled(&mut self) -> bool {
        self.reports_by_region().values().all(|reports| {
            let states: BTreeSet<String> = reports
                .iter()
                .map(|(_, it)| format!("{:?} {} {}", it.region, it.applied, it.last))
                .collect();
            let Some((_, first)) = reports.first() else { return true };
            let region = &first.region;
            states.len() == 1
                && first.applied == first.last
                && reports.len() == region.peers.len()
                && region.phase == RegionPhase::Normal
                && !region.is_joint()
        })
    }

    pub(crate) fn describe(&mut self) -> String {
        let mut text = String::new();
        for slot in self.slots.values() {
            if let Some(failed) = &slot.failed {
                text += &format!("\n  s{} failed: {failed}", slot.number);
            }
        }
        for (number, report) in self.reports_by_region().into_values().flatten() {
            let region = &report.region;
            let peers: Vec<String> = region
                .peers
                .iter()
                .map(|peer| format!("{}@{}{:?}", peer.id, peer.store, peer.role))
                .collect();
            text += &format!(
                "\n  s{number} region {} [{:?}, {:?}) {:?} {:?} {:?} term {} last {} committed {} \
                 applied {} leader {:?} hibernating {}: {}",
                region.id,
                region.range.start,
                region.range.end,
                region.phase,
                region.epoch,
                report.role,
                report.term,
                report.last,
                report.committed,
                report.applied,
                report.leader.map(|leader| leader.store.0),
                report.hibernating,
                peers.join(" ")
            );
        }
        for node in self.nodes.values() {
            let Some(leader_state) = node.member.leader_state() else { continue };
            for operator in leader_state.operators.running() {
                let refusal = operator.refusal.clone().unwrap_or_default();
                let now = stele_placement::Millis(node.local(self.now) / crate::plan::MS);
                let waits =
                    leader_state.operators.wait_reason(&leader_state.cluster, operator.region, now);
                let waits = waits.unwrap_or_default();
                text += &format!(
                    "\n  node {} operator {operator}, {} steps done, {refusal}, waits for {waits}",
                    node.id, operator.done
                );
            }
        }
        text
    }
}
