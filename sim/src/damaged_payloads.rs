//! Damage to the logs of all stores at once, also in their newest segments, while all nodes are
//! down. Each entry stays intact on one store that still has it in its log. A store opens only
//! after it has recovered all its entries, so the stores must recover from each other before any of
//! them votes.

use crate::copies::Copies;
use crate::faults::FaultSet;
use crate::helical::REPAIR_NANOS;
use crate::plan::{MS, Mode, Plan, SECOND, fork};
use crate::run::Outcome;
use crate::segments::{Name, Payload, payloads, segments};
use crate::trace::Trace;
use crate::world::{Stop, World};
use std::collections::{BTreeMap, BTreeSet};
use stele_replica::LogKept;
use stele_storage::LogStore;
use stele_types::{LogIndex, RegionId, RegionPhase};

/// Limit for forming the cluster and for the final reads.
const QUIET_NANOS: u64 = 60 * SECOND;
/// Longest delay between the start of the first store and the last.
const APART_NANOS: u64 = 2 * SECOND;

/// Result of the scenario in addition to the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamagedPayloads {
    /// Entries damaged, over all stores.
    pub damaged: u64,
    /// Damaged entries in a store's newest segment.
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

/// Returns a plan with three stores and no faults except those of this scenario.
pub fn plan(seed: u64) -> Plan {
    let mut plan = crate::helical::plan(seed);
    plan.has_damaged_payloads = true;
    plan.mode = Mode::Safety;
    plan.faults = FaultSet::default();
    // Keeps enough log that a follower that is down for long gets entries instead of a snapshot.
    plan.raft.log_kept = LogKept { entries: 2_000, pin_bytes_max: 16 << 20 };
    if fork(seed, "unflushed").below(4) > 0 {
        // Keeps most of the log out of runs.
        (plan.engine.memtable_bytes_max, plan.engine.gc.flush_interval_s) = (256 << 10, 60);
        plan.engine.checkpoint_log_bytes_max = 4 << 20;
    }
    plan
}

/// Lets clients work, stops all nodes, damages their logs, and waits until all is repaired.
pub fn play(world: &mut World) -> DamagedPayloads {
    let mut result = DamagedPayloads::default();
    world.begin_checks();
    if !world.run_until(QUIET_NANOS, |world| world.is_formed()) {
        world.fail("the cluster does not form".into());
        return result;
    }
    world.start_clients(world.plan.ops_max);
    world.run(world.plan.nanos);
    let mut prng = fork(world.plan.seed, "holes");
    let (logs, copies) = (world.logs(), world.copies());
    let how = if prng.coin() { Stop::Power } else { Stop::Kill };
    let nodes: Vec<u64> = world.nodes.keys().copied().collect();
    nodes.iter().for_each(|node| world.stop_node(*node, how));
    world.damage_entries(&logs, &copies, &mut result);
    let began = world.now;
    let waiting = |world: &World| world.slots.values().filter(|it| it.recovery.is_some()).count();
    for node in nodes {
        let before = waiting(world);
        world.start_node(node);
        // Counted immediately: recovery may end before the last node starts.
        result.waited += (waiting(world) - before) as u64;
        world.run(prng.below(APART_NANOS / 2) / MS * MS);
    }
    let stores = world.plan.stores() as usize;
    let left = REPAIR_NANOS.saturating_sub(world.now - began);
    let open = world.run_until(left, |world| world.serving().len() == stores);
    result.nanos = world.now - began;
    result.repaired = world.counts.entries_recovered;
    if !open {
        let state = world.describe_waiting();
        world.fail(format!(
            "{} stores still wait for entry copies: {result:?}{state}",
            waiting(world)
        ));
        return result;
    }
    world.clients.stop();
    world.run_until(QUIET_NANOS, |world| !world.clients.is_busy() && world.is_settled());
    world.repair("values", 0, |world| world.damaged_values());
    if world.violation.is_none() && !world.read_everything(QUIET_NANOS) {
        world.fail("some keys cannot be read".into());
    }
    if world.violation.is_none() {
        world.check_repaired();
    }
    if world.counts.failures + world.counts.replaced > 0 {
        world.fail("a store stopped because of damage that other replicas can repair".into());
    }
    result
}

#[derive(Default)]
struct Log {
    entries: BTreeSet<Name>,
    checkpointed: BTreeMap<RegionId, LogIndex>,
    /// Commit index in the durable hard state.
    committed: BTreeMap<RegionId, LogIndex>,
    /// Merging regions: their logs end when the targets commit the merge.
    merging: BTreeSet<RegionId>,
}

impl Log {
    /// Returns true if the store reads this payload to open but does not request a copy of it: local
    /// records that a run refers to, and entries that it does not apply when it opens.
    fn needs(&self, payload: &Payload) -> bool {
        let (region, index, _) = payload.entry;
        let checkpointed = self.checkpointed.get(&region).copied().unwrap_or_default();
        let is_requested = self.entries.contains(&payload.entry) && index > checkpointed;
        !is_requested && (payload.is_local || !self.applies(&payload.entry))
    }

    /// Returns true if the store applies the entry when it opens, or applied it before.
    fn applies(&self, (region, index, _): &Name) -> bool {
        self.committed.get(region).is_some_and(|upto| index <= upto)
    }
}

/// Runs the scenario.
pub fn run(plan: &Plan) -> (DamagedPayloads, Outcome) {
    let mut world = World::new(plan.clone(), Trace::new(false, false));
    let result = play(&mut world);
    (result, Outcome::of(&world))
}

impl World {
    fn describe_waiting(&self) -> String {
        let mut text = String::new();
        for slot in self.slots.values() {
            let Some(recovery) = &slot.recovery else { continue };
            let (lost, asked) = (recovery.lost(), recovery.asked());
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

    /// Damages payloads of entries on every store. Every entry keeps an intact copy on a store that
    /// has it in its log. Payloads in a log's last frame are left alone: such damage looks like a
    /// write cut by power. Invariant: payloads of a merging region are left alone. A store with an
    /// intact copy may commit the merge when it opens, which ends that log before another store
    /// requests its entries.
    fn damage_entries(
        &mut self,
        logs: &BTreeMap<u64, Log>,
        copies: &Copies,
        result: &mut DamagedPayloads,
    ) {
        let mut prng = fork(self.plan.seed, "holes in entries");
        let disks: Vec<(u64, _)> =
            self.slots.values().map(|slot| (slot.number, payloads(&slot.disk))).collect();
        let mut intact: BTreeMap<Name, Vec<u64>> = BTreeMap::new();
        for (number, payloads) in &disks {
            let Some(log) = logs.get(number) else { continue };
            for payload in payloads.iter().filter(|it| log.entries.contains(&it.entry)) {
                intact.entry(payload.entry).or_default().push(*number);
            }
        }
        // Invariant: if a store applies the entry when it opens, one such store keeps it intact. A
        // store that lags may get a snapshot, which replaces its log.
        for (entry, holders) in &mut intact {
            let applies = |number: &u64| logs.get(number).is_some_and(|log| log.applies(entry));
            if holders.iter().any(applies) {
                holders.retain(applies);
            }
        }
        // Invariant: the intact copy is one that its region keeps. An entry without one is left alone.
        for payload in disks.iter().flat_map(|(_, payloads)| payloads) {
            if let Some(holders) = intact.get_mut(&payload.entry) {
                let (region, ..) = payload.entry;
                holders.retain(|slot| copies.counts_of_entry(*slot, region, &payload.keys));
            }
        }
        intact.retain(|_, holders| !holders.is_empty());
        let ends: BTreeSet<RegionId> = logs.values().flat_map(|log| log.merging.clone()).collect();
        intact.retain(|(region, ..), _| !ends.contains(region));
        let mut spared: BTreeMap<Name, u64> = BTreeMap::new();
        for (number, payloads) in disks {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let newest = segments(&slot.disk).pop();
            let before = result.newest;
            for payload in payloads.iter().filter(|payload| payload.frames_after > 0) {
                let Some(holders) = intact.get(&payload.entry) else { continue };
                let spare = || holders[prng.below(holders.len() as u64) as usize];
                let spared = *spared.entry(payload.entry).or_insert_with(spare);
                let is_newest = newest.as_ref().is_some_and(|it| payload.is_in(it));
                let is_needed = logs.get(&number).is_some_and(|log| log.needs(payload));
                if spared == number || is_needed || prng.below(4) == 0 {
                    continue;
                }
                if slot.disk.inject(payload.flip(&mut prng)).is_ok() {
                    result.damaged += 1;
                    result.newest += u64::from(is_newest);
                }
            }
            result.stores += u64::from(result.newest > before);
            slot.is_damaged = true;
        }
        self.counts.corruptions += result.damaged;
    }
}
