//! One run: a cluster forms, clients work while things go wrong, everything heals, and what must
//! hold is checked.

use crate::history;
use crate::plan::{Mode, Plan, SECOND};
use crate::trace::Trace;
use crate::world::{Counts, Stop, World};
use crate::{damaged_payloads, helical};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use stele_types::RegionPhase;

/// A cluster without faults forms within this.
const FORM_NANOS: u64 = 40 * SECOND;
/// After the faults stopped everything is settled within this.
const SETTLE_NANOS: u64 = 90 * SECOND;
/// The same where progress is what is to be shown.
const LIVENESS_NANOS: u64 = 45 * SECOND;
/// Everything is read within this.
const READ_NANOS: u64 = 60 * SECOND;
/// Operations that show that new writes succeed.
const PROBES: u64 = 40;

/// What a run is to leave beside its verdict.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Marks for a trace file.
    pub trace: bool,
    /// Every line as it happens.
    pub lines: bool,
    /// The history in the format that Porcupine reads.
    pub history: bool,
    /// With stale reads in it.
    pub plants: bool,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// In numbers.
    pub counts: Counts,
    /// Virtual nanoseconds.
    pub nanos: u64,
    /// Two runs of a seed must share it.
    pub hash: u64,
    /// What does not hold.
    pub violation: Option<String>,
    /// The last lines before it.
    pub tail: String,
    /// The trace file.
    pub perfetto: Option<String>,
    /// The history file.
    pub history: Option<String>,
    /// Groups of that history that are not linearizable.
    pub refused: Vec<String>,
}

impl Outcome {
    /// What is known of a run without more being wanted.
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

/// Runs a plan to its end, or to what does not hold. A panic is a violation too.
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
    // Whatever is broken may break again while it is dropped.
    let _ = catch_unwind(AssertUnwindSafe(move || drop(world)));
    outcome
}

fn play(world: &mut World) {
    if world.plan.has_holes {
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
        return world.fail(format!("no cluster forms:{state}"));
    }
    world.let_clients_work(world.plan.ops_max);
    world.let_things_go_wrong();
    world.run(world.plan.nanos);
    world.heal();
    world.clients.stop();
    settle(world);
    if world.plan.mode == Mode::Liveness {
        probe(world);
    }
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
}

/// Waits until nothing differs and nothing is half done.
fn settle(world: &mut World) {
    let nanos = match world.plan.mode {
        Mode::Safety => SETTLE_NANOS,
        Mode::Liveness => LIVENESS_NANOS,
    };
    // An operator waits with each damaged disk until the others have what is on it.
    let replaced = world.run_until(nanos, |world| world.damaged_disks().is_empty());
    if !replaced && world.counts.overspent == 0 {
        let (seconds, state) = (nanos / SECOND, world.describe());
        return world
            .fail(format!("a damaged disk is needed {seconds} s after the faults:{state}"));
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

/// New operations must succeed: clients that are sent elsewhere try again.
fn probe(world: &mut World) {
    let wanted = world.counts.ops + PROBES;
    world.let_clients_work(u64::from(u32::MAX));
    let done = world.run_until(LIVENESS_NANOS, |world| world.counts.ops >= wanted);
    world.clients.stop();
    world.run_until(READ_NANOS, |world| !world.clients.is_busy());
    if !done && world.counts.overspent == 0 {
        let (left, state) = (wanted - world.counts.ops, world.describe());
        world.fail(format!("{left} of {PROBES} new operations are not answered:{state}"));
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
        world.fail(format!("not everything can be read:{state}"));
    }
    let quiet = |world: &mut World| world.streams.is_empty() && world.is_settled();
    world.run_until(SETTLE_NANOS, quiet);
    if world.violation.is_none() {
        world.check_end();
    }
}

impl World {
    /// Whether every store joined, and regions have the copies that there are nodes for.
    pub(crate) fn is_formed(&mut self) -> bool {
        let stores = self.plan.stores() as usize;
        let copies = self.plan.nodes.min(3) as usize;
        let regions = self.reports_by_region();
        self.serving().len() == stores
            && regions.len() >= 2
            && regions.values().flatten().all(|(_, it)| it.region.peers.len() >= copies)
    }

    /// Whether every member of every region has applied all there is, and nothing is half done. After
    /// a power cut of all, entries wait for a leader that commits them.
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

    /// The regions of every store, in lines.
    fn describe(&mut self) -> String {
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
                 applied {} leader {:?} rests {}: {}",
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
            let Some(led) = node.member.led.as_ref().map(|lead| &lead.led) else { continue };
            for operator in led.operators.running() {
                let refusal = operator.refusal.clone().unwrap_or_default();
                let now = stele_placement::Millis(node.local(self.now) / crate::plan::MS);
                let waits = led.operators.waits_for(&led.cluster, operator.region, now);
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
