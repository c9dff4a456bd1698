//! Damage to the logs of all stores at once, also in their newest segments, while all are down: each
//! entry stays whole on one store that still has it in its log. No store opens before it has all its
//! entries again, and so they have to mend each other before any of them votes.

use crate::faults::FaultSet;
use crate::helical::MEND_NANOS;
use crate::plan::{MS, Mode, Plan, SECOND, fork};
use crate::run::Outcome;
use crate::segments::{Name, Payload, payloads, segments};
use crate::trace::Trace;
use crate::world::{Stop, World};
use std::collections::{BTreeMap, BTreeSet};
use stele_raftstore::LogKept;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, RegionId, RegionPhase};

/// A cluster forms within this, and everything is read.
const QUIET_NANOS: u64 = 60 * SECOND;
/// The last store starts so much later than the first, at most.
const APART_NANOS: u64 = 2 * SECOND;

/// What came of it, beside the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    /// Entries damaged, over all stores.
    pub damaged: u64,
    /// Those of them in a store's newest segment.
    pub newest: u64,
    /// Stores with damage in their newest segment.
    pub stores: u64,
    /// Lost entries that other stores' copies replaced.
    pub repaired: u64,
    /// Stores that did not open at once.
    pub waited: u64,
    /// Virtual nanoseconds until all stores were open.
    pub nanos: u64,
}

/// Three stores, and no trouble but what is done here.
pub fn plan(seed: u64) -> Plan {
    let mut plan = crate::helical::plan(seed);
    plan.has_holes = true;
    plan.mode = Mode::Safety;
    plan.faults = FaultSet::default();
    // A follower that is away for long gets entries, and those are here.
    plan.raft.log_kept = LogKept { entries: 2_000, pin_bytes_max: 16 << 20 };
    if fork(seed, "unflushed").below(4) > 0 {
        // Most of the log is in no run yet.
        (plan.engine.memtable_bytes_max, plan.engine.gc.flush_interval_s) = (256 << 10, 60);
        plan.engine.checkpoint_log_bytes_max = 4 << 20;
    }
    plan
}

/// Lets clients work, stops everything, damages it, and waits until all is mended.
pub fn play(world: &mut World) -> Holes {
    let mut holes = Holes::default();
    world.begin_checks();
    if !world.run_until(QUIET_NANOS, |world| world.is_formed()) {
        world.fail("no cluster forms".into());
        return holes;
    }
    world.let_clients_work(world.plan.ops_max);
    world.run(world.plan.nanos);
    let mut prng = fork(world.plan.seed, "holes");
    let logs = world.logs();
    let how = if prng.coin() { Stop::Power } else { Stop::Kill };
    let nodes: Vec<u64> = world.nodes.keys().copied().collect();
    nodes.iter().for_each(|node| world.stop_node(*node, how));
    world.damage_entries(&logs, &mut holes);
    let began = world.now;
    let waiting = |world: &World| world.slots.values().filter(|it| it.mending.is_some()).count();
    for node in nodes {
        let before = waiting(world);
        world.start_node(node);
        // Counted at once: it may be mended by the time that the last one starts.
        holes.waited += (waiting(world) - before) as u64;
        world.run(prng.below(APART_NANOS / 2) / MS * MS);
    }
    let stores = world.plan.stores() as usize;
    let left = MEND_NANOS.saturating_sub(world.now - began);
    let open = world.run_until(left, |world| world.serving().len() == stores);
    holes.nanos = world.now - began;
    holes.repaired = world.counts.entries_mended;
    if !open {
        let state = world.describe_waiting();
        world.fail(format!("{} stores still wait for entries: {holes:?}{state}", waiting(world)));
        return holes;
    }
    world.clients.stop();
    world.run_until(QUIET_NANOS, |world| !world.clients.is_busy() && world.is_settled());
    world.mend("values", 0, |world| world.damaged_values());
    if world.violation.is_none() && !world.read_everything(QUIET_NANOS) {
        world.fail("not everything can be read".into());
    }
    if world.violation.is_none() {
        world.check_mended();
    }
    if world.counts.failures + world.counts.replaced > 0 {
        world.fail("a store stopped for damage that others mend".into());
    }
    holes
}

/// What a store has in its log.
#[derive(Default)]
struct Log {
    entries: BTreeSet<Name>,
    checkpointed: BTreeMap<RegionId, LogIndex>,
    /// As far as its disk says.
    committed: BTreeMap<RegionId, LogIndex>,
    /// Regions whose logs end where their targets' take them over.
    merging: BTreeSet<RegionId>,
}

impl Log {
    /// Whether the store opens by this payload and would not look for a copy: what it knows of its
    /// regions, where a run leads to it.
    fn needs(&self, payload: &Payload) -> bool {
        let (region, index, _) = payload.entry;
        let checkpointed = self.checkpointed.get(&region).copied().unwrap_or_default();
        let is_looked_for = self.entries.contains(&payload.entry) && index > checkpointed;
        !is_looked_for && (payload.is_own || !self.applies(&payload.entry))
    }

    /// Whether the store applies an entry as soon as it opens, or did before.
    fn applies(&self, (region, index, _): &Name) -> bool {
        self.committed.get(region).is_some_and(|upto| index <= upto)
    }
}

/// A run of the scenario.
pub fn run(plan: &Plan) -> (Holes, Outcome) {
    let mut world = World::new(plan.clone(), Trace::new(false, false));
    let holes = play(&mut world);
    (holes, Outcome::of(&world))
}

impl World {
    fn describe_waiting(&self) -> String {
        let mut text = String::new();
        for slot in self.slots.values() {
            let Some(mender) = &slot.mending else { continue };
            let (lost, asked) = (mender.lost(), mender.asked());
            text += &format!("\n  s{} lost {lost:?}, asks for {asked:?}", slot.number);
            for other in self.slots.values() {
                let here = payloads(&other.disk);
                let is_it = |it: &&Payload| asked.is_some_and(|lost| it.is(&lost));
                let found: Vec<&Payload> = here.iter().filter(is_it).collect();
                let progress = other.engine().zip(asked).map(|(it, lost)| it.progress(lost.region));
                text += &format!("\n    s{} has {found:?}, {progress:?}", other.number);
            }
        }
        text
    }

    /// The entries that each store has in its log.
    fn logs(&mut self) -> BTreeMap<u64, Log> {
        let mut logs: BTreeMap<u64, Log> = BTreeMap::new();
        for (number, report) in self.reports_by_region().into_values().flatten() {
            let Some(engine) = self.engine(number) else { continue };
            let region = report.region.id;
            let log = logs.entry(number).or_default();
            let mut index = report.truncated.next();
            let progress = engine.progress(region).unwrap_or_default();
            log.checkpointed.insert(region, progress.checkpointed);
            log.committed.insert(region, progress.hard_state.commit);
            if matches!(report.region.phase, RegionPhase::Merging { .. }) {
                log.merging.insert(region);
            }
            while let Some(term) = engine.term(region, index) {
                log.entries.insert((region, index, term));
                index = index.next();
            }
        }
        logs
    }

    /// Damages the payloads of entries on every store, of none on all that have it in their logs, and
    /// of none in a log's last frame: that can't be told from a write that the power cut.
    /// Rule: nor of a region that is being merged. Whoever has it whole may take it over as soon as it opens,
    /// which is the end of that log, before it is asked for what is in it.
    fn damage_entries(&mut self, logs: &BTreeMap<u64, Log>, holes: &mut Holes) {
        let mut prng = fork(self.plan.seed, "holes in entries");
        let disks: Vec<(u64, _)> =
            self.slots.values().map(|slot| (slot.number, payloads(&slot.disk))).collect();
        let mut whole: BTreeMap<Name, Vec<u64>> = BTreeMap::new();
        for (number, payloads) in &disks {
            let Some(log) = logs.get(number) else { continue };
            for payload in payloads.iter().filter(|it| log.entries.contains(&it.entry)) {
                whole.entry(payload.entry).or_default().push(*number);
            }
        }
        // Rule: an entry stays whole where it is applied when the store opens, if there is such a store.
        // One that is behind may get a snapshot, which takes the place of its log.
        for (entry, holders) in &mut whole {
            let applies = |number: &u64| logs.get(number).is_some_and(|log| log.applies(entry));
            if holders.iter().any(applies) {
                holders.retain(applies);
            }
        }
        let ends: BTreeSet<RegionId> = logs.values().flat_map(|log| log.merging.clone()).collect();
        whole.retain(|(region, ..), _| !ends.contains(region));
        let mut spared: BTreeMap<Name, u64> = BTreeMap::new();
        for (number, payloads) in disks {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let newest = segments(&slot.disk).pop();
            let before = holes.newest;
            for payload in payloads.iter().filter(|payload| payload.frames_behind > 0) {
                let Some(holders) = whole.get(&payload.entry) else { continue };
                let spare = || holders[prng.below(holders.len() as u64) as usize];
                let spared = *spared.entry(payload.entry).or_insert_with(spare);
                let is_newest = newest.as_ref().is_some_and(|it| payload.is_in(it));
                let is_needed = logs.get(&number).is_some_and(|log| log.needs(payload));
                if spared == number || is_needed || prng.below(4) == 0 {
                    continue;
                }
                if slot.disk.inject(payload.flip(&mut prng)).is_ok() {
                    holes.damaged += 1;
                    holes.newest += u64::from(is_newest);
                }
            }
            holes.stores += u64::from(holes.newest > before);
            slot.is_damaged = true;
        }
        self.counts.corruptions += holes.damaged;
    }
}
