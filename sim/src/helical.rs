//! Damage to every replica of a cluster, in different places: one key's bytes on one store, another
//! key's on the next. Each record stays intact on one store, so nothing may be lost, and every
//! store must repair itself from the others (helical damage: Alagappan et al., FAST 2018).

use crate::check::hidden::Entries;
use crate::faults::FaultSet;
use crate::plan::{MS, Mode, Plan, SECOND, fork};
use crate::run::Outcome;
use crate::segments::{payloads, segments};
use crate::trace::Trace;
use crate::world::{DIR, Stop, World};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use stele_engine::Store;
use stele_index::{Direction, Run};
use stele_replica::LogKept;
use stele_simulated_disk::{Fault as DiskFault, SimVfs};
use stele_storage::Repair;
use stele_types::{KeyRange, ValueRef, keyspace};

const FORM_NANOS: u64 = 40 * SECOND;
/// Time for repairing all damage, if the scrub completes two passes within it.
pub const REPAIR_NANOS: u64 = 60 * SECOND;
/// Unit in which the scrub's budget counts values that are scattered over the device.
const BLOCK_BYTES: u64 = 4096;
const CHECK_NANOS: u64 = 250 * MS;
/// Limit for clearing repaired values from the list of lost values.
const FORGET_NANOS: u64 = SECOND;
/// Limit for the final reads.
const READ_NANOS: u64 = 60 * SECOND;

/// Result of the scenario in addition to the verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Helix {
    /// Values damaged, over all stores.
    pub damaged: u64,
    /// Damaged values that stores found.
    pub found: u64,
    /// Values replaced by another store's copy.
    pub repaired: u64,
    /// Virtual nanoseconds until no value was damaged.
    pub nanos: u64,
    /// Bits flipped in runs, over all stores.
    pub runs: u64,
    /// Virtual nanoseconds until all runs were intact.
    pub runs_nanos: u64,
    /// Places damaged before stores were reopened.
    pub reopened: u64,
    /// Virtual nanoseconds until all reopened runs were intact.
    pub reopened_nanos: u64,
}

/// Operations that a node misses, and its downtime.
const OPS_MISSED: u64 = 100;
const AWAY_NANOS: u64 = 3 * SECOND;
/// During repair, clients pause for longer, and some replicas apply writes later than others.
const WITHHELD_NANOS: u64 = 5 * SECOND;
const SLOWER: u64 = 10;

/// Period of seeds: of so many, one is a helix, one damages payloads in logs and one has leases off.
const ONE_IN: u64 = 20;
const LEASES_OFF: u64 = 5;
const HELIX: u64 = 10;
const DAMAGED_PAYLOADS: u64 = 15;

/// Returns the plan of a seed: periodically a scenario with damaged values or damaged entries, or a
/// cluster without leases.
pub fn plan_of(seed: u64, mode: Mode) -> Plan {
    match (mode, seed % ONE_IN) {
        (Mode::Safety, HELIX) => plan(seed),
        (Mode::Safety, DAMAGED_PAYLOADS) => crate::damaged_payloads::plan(seed),
        (_, LEASES_OFF) => Plan::draw_without_leases(seed, mode),
        _ => Plan::draw(seed, mode)
            .with_faults_of_one_store()
            .with_faults_of_hardware()
            .with_faults_of_directories()
            .with_slow_maintenance()
            .with_lost_majority()
            .with_follower()
            .with_levels(),
    }
}

/// Returns a plan with three stores that scrub continuously, and no faults except those of this
/// scenario.
pub fn plan(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed, Mode::Safety);
    plan.is_helix = true;
    (plan.nodes, plan.stores_per_node) = (3, 1);
    plan.faults = FaultSet::default();
    // A child's replicas are repaired before a snapshot of it can be made.
    plan.raft.orphaned_kept_nanos = 10 * REPAIR_NANOS;
    plan.engine.scrub_bytes_per_second_max = 64 << 10;
    plan.engine.scrub_interval_s = 5;
    plan.engine.segment_bytes_max = 64 << 10;
    plan.value_bytes_max = 4_000;
    plan.ops_max = plan.ops_max.max(800);
    plan.pause_nanos_max = 5 * MS;
    if away(&plan).is_some() {
        // Missed entries must be read from the log.
        plan.raft.log_kept = LogKept { entries: 500, pin_bytes_max: 4 << 20 };
        plan.engine.entry_cache_bytes_max = 0;
    }
    plan
}

/// Returns, for half of all seeds, the node that is down and lagging when the damage is done.
fn away(plan: &Plan) -> Option<u64> {
    let mut prng = fork(plan.seed, "away");
    prng.coin().then(|| 1 + prng.below(plan.nodes))
}

/// Lets clients work, damages every store meanwhile, and waits until all is repaired.
pub fn play(world: &mut World) -> Helix {
    let mut helix = Helix::default();
    world.begin_checks();
    if !world.run_until(FORM_NANOS, |world| world.is_formed()) {
        world.fail("the cluster does not form".into());
        return helix;
    }
    world.start_clients(world.plan.ops_max);
    world.run(world.plan.nanos);
    helix.reopened = world.damage_and_reopen();
    let ops = world.plan.ops_max / 4;
    helix.reopened_nanos =
        world.repair("runs damaged before opening", ops, |world| world.damaged_runs());
    let away = away(&world.plan);
    if let Some(node) = away {
        world.stop_node(node, Stop::Kill);
        world.start_clients(OPS_MISSED);
        world.run(AWAY_NANOS);
    }
    world.clients.stop();
    let is_settled = |world: &mut World| away.is_some() || world.is_settled();
    world.run_until(READ_NANOS, |world| !world.clients.is_busy() && is_settled(world));
    helix.damaged = world.damage_values();
    away.into_iter().for_each(|node| world.start_node(node));
    // Without clients only scrub reads the damage.
    let ops = if away.is_some() { 0 } else { world.plan.ops_max / 4 };
    helix.nanos = world.repair("values", ops, |world| world.damaged_values());
    helix.runs = world.damage_runs();
    let ops = world.plan.ops_max / 4;
    helix.runs_nanos = world.repair("runs", ops, |world| world.damaged_runs());
    for number in world.serving() {
        let Some(engine) = world.engine(number) else { continue };
        let stats = engine.repair_stats();
        (helix.found, helix.repaired) =
            (helix.found + stats.found, helix.repaired + stats.repaired);
    }
    if world.violation.is_none() && !world.read_everything(READ_NANOS) {
        world.fail("some keys cannot be read".into());
    }
    if world.violation.is_none() {
        world.check_repaired();
    }
    if world.counts.failures > 0 {
        world.fail("a store stopped because of damage that other replicas can repair".into());
    }
    helix
}

/// Runs the scenario.
pub fn run(plan: &Plan) -> (Helix, Outcome) {
    let mut world = World::new(plan.clone(), Trace::new(false, false));
    let helix = play(&mut world);
    (helix, Outcome::of(&world))
}

/// Value in a file: its key, its file and the position of its bytes.
struct Place {
    key: Vec<u8>,
    path: PathBuf,
    offset: u64,
    length: u64,
}

impl World {
    /// Lets clients read the damage during repair. Returns the nanoseconds until nothing was
    /// damaged.
    pub(crate) fn repair(&mut self, what: &str, ops: u64, damaged: impl Fn(&Self) -> usize) -> u64 {
        let began = self.now;
        self.withhold_everywhere(WITHHELD_NANOS);
        self.clients.slow_down(SLOWER);
        self.start_clients(ops);
        let mut repaired = false;
        let limit_nanos = self.repair_limit_nanos();
        while !repaired && self.now - began < limit_nanos && self.violation.is_none() {
            self.run(CHECK_NANOS);
            repaired = damaged(self) == 0;
        }
        let nanos = self.now - began;
        if !repaired {
            let left = damaged(self);
            let state = self.describe_damage();
            let seconds = nanos / SECOND;
            self.fail(format!("{left} {what} are still damaged after {seconds} s:{state}"));
        }
        self.clients.stop();
        self.run_until(READ_NANOS, |world| !world.clients.is_busy() && world.is_settled());
        nanos
    }

    /// Returns the limit for repairing all damage: the time of two passes, since damage may lie before the
    /// position of the present one. Small values that lie apart cost a block each, so a pass can take longer
    /// than their bytes suggest.
    fn repair_limit_nanos(&self) -> u64 {
        let engines = self.serving().into_iter().filter_map(|number| self.engine(number));
        let bytes = engines.map(|engine| pass_bytes(&engine)).max().unwrap_or_default();
        let rate = self.plan.engine.scrub_bytes_per_second_max.max(1);
        REPAIR_NANOS.max(2 * bytes * SECOND / rate)
    }

    fn describe_damage(&self) -> String {
        let mut text = String::new();
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            let (lost, stats) = (engine.lost_ranges(), engine.scrub_stats());
            let error = engine.gc_stats().last_error;
            text += &format!("\n  s{number}: {stats:?}, gc {error:?}, lost {lost:?}");
            for run in engine.index().version().runs() {
                let scrubbed = run.scrub_blocks(0, u64::MAX);
                let age = run.meta().extra.age;
                text += &format!("\n    run {} of age {age}: {scrubbed:?}", run.id());
            }
            each_value(&engine, &mut |key, at| {
                if engine.log().check(at).is_err() {
                    text += &self.describe_value(key, at);
                }
            });
        }
        text
    }

    fn describe_value(&self, key: &[u8], at: &stele_types::Locator) -> String {
        let mut text = format!("\n    {:?} at {at:?}:", bytes::Bytes::copy_from_slice(key));
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            let (found, stats) = (engine.index().get(key), engine.repair_stats());
            text += &format!("\n      s{number} {stats:?}: {found:?}");
        }
        text
    }

    /// Flips bits in the runs of every store. No key is in damaged blocks of two stores: the only
    /// intact copy may depend on values that another store lost. Returns the number of flipped
    /// bits.
    fn damage_runs(&mut self) -> u64 {
        const FLIPS: u64 = 6;
        let mut prng = fork(self.plan.seed, "helix of runs");
        let mut lost_ranges: Vec<(u64, KeyRange)> = Vec::new();
        let mut flips = 0;
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            let Some(slot) = self.slots.get(&number) else { continue };
            let version = engine.index().version();
            let runs: Vec<_> = version.runs().filter(|run| run.meta().entries > 0).collect();
            let entries = Entries::of(&engine);
            for _ in 0..FLIPS {
                let Some(run) = runs.get(prng.below(runs.len() as u64) as usize) else { break };
                let path = run.path().to_path_buf();
                let bytes = run.meta().bytes;
                // Filter and fences, the parts after the blocks, are small.
                let last = if prng.coin() { bytes / 3 } else { bytes };
                let offset = bytes.saturating_sub(1 + prng.below(last.max(1)));
                let bit = prng.below(8) as u8;
                let flip = || DiskFault::FlipBit { path: path.clone(), offset, bit };
                let is_flipped = slot.disk.inject(flip()).is_ok();
                let lost =
                    run.scrub_blocks(0, u64::MAX).map(|scrubbed| scrubbed.lost).unwrap_or_default();
                let is_lost = |range: &KeyRange| {
                    lost_ranges.iter().any(|(other, it)| *other != number && it.overlaps(range))
                };
                match lost.iter().any(|lost| is_lost(&lost.range)) {
                    // A second flip of the same bit undoes the first.
                    true => drop(slot.disk.inject(flip())),
                    false => {
                        flips += u64::from(is_flipped);
                        lost_ranges.extend(lost.into_iter().map(|lost| (number, lost.range)));
                    }
                }
            }
            if let Some(hidden) = entries.hidden(&engine) {
                self.fail(format!("damage of a run of store {number} hides a key: {hidden}"));
            }
        }
        self.counts.corruptions += flips;
        flips
    }

    fn damaged_runs(&self) -> usize {
        let engines = self.serving().into_iter().filter_map(|number| self.engine(number));
        let damaged = |engine: Arc<Store>| {
            let version = engine.index().version();
            let is_damaged = |run: &&Arc<Run>| {
                run.scrub_blocks(0, u64::MAX)
                    .is_ok_and(|it| it.needs_rewrite || !it.lost.is_empty())
            };
            version.runs().filter(is_damaged).count()
        };
        engines.map(damaged).sum()
    }

    /// Damages values on every store, of no key on all of them. Returns the number of damaged
    /// values.
    fn damage_values(&mut self) -> u64 {
        let mut prng = fork(self.plan.seed, "helix");
        let (stores, copies) = (self.serving(), self.copies());
        let mut intact: BTreeMap<Vec<u8>, Option<u64>> = BTreeMap::new();
        let mut damaged = 0;
        for number in &stores {
            let Some(engine) = self.engine(*number) else { continue };
            let Some(slot) = self.slots.get(number) else { continue };
            let last = last_frame(&slot.disk);
            for place in places(&engine, &slot.disk.paths()) {
                let spare = || {
                    let counts = |slot: &&u64| copies.counts(**slot, &place.key);
                    let holders: Vec<u64> = stores.iter().filter(counts).copied().collect();
                    holders.get(prng.below(holders.len() as u64) as usize).copied()
                };
                let Some(spared) = *intact.entry(place.key.clone()).or_insert_with(spare) else {
                    continue;
                };
                // Damage to the last frame looks like a write cut by power.
                let is_last = last
                    .as_ref()
                    .is_some_and(|(path, at)| place.path == *path && place.offset >= *at);
                if spared == *number || is_last || prng.below(4) == 0 {
                    continue;
                }
                let offset = place.offset + prng.below(place.length);
                let (path, bit) = (place.path, prng.below(8) as u8);
                if slot.disk.inject(DiskFault::FlipBit { path, offset, bit }).is_ok() {
                    damaged += 1;
                }
            }
        }
        self.counts.corruptions += damaged;
        self.slots.values_mut().for_each(|slot| slot.is_damaged = true);
        damaged
    }

    pub(crate) fn damaged_values(&self) -> usize {
        let engines = self.serving().into_iter().filter_map(|number| self.engine(number));
        engines.map(|engine| damaged_in(&engine)).sum()
    }

    /// Checks the invariants of every end of a run, and that no store is damaged. Unreferenced
    /// bytes may stay damaged until garbage collection removes them.
    pub(crate) fn check_repaired(&mut self) {
        self.check_end();
        // Values overwritten during repair stay listed as lost until the next slice of maintenance.
        self.run_until(FORGET_NANOS, |world| !world.has_any_lost());
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            let left = damaged_in(&engine);
            if left > 0 || engine.has_lost() {
                let (values, ranges) = (engine.lost_values(1), engine.lost_ranges());
                self.fail(format!(
                    "store {number} still has {left} damaged values; lost: {values:?}, {ranges:?}"
                ));
            }
        }
    }

    /// Returns true if a running store lists anything as lost.
    fn has_any_lost(&self) -> bool {
        let mut engines = self.serving().into_iter().filter_map(|number| self.engine(number));
        engines.any(|engine| engine.has_lost())
    }
}

/// Returns the newest segment, and the offset of the first payload in its last frame; `u64::MAX`
/// without one.
fn last_frame(disk: &SimVfs) -> Option<(PathBuf, u64)> {
    let newest = segments(disk).pop()?;
    let payloads = payloads(disk);
    let first = payloads.iter().find(|it| it.frames_after == 0 && it.is_in(&newest));
    let at = first.map_or(u64::MAX, |payload| payload.place().1);
    Some((newest, at))
}

fn places(engine: &Store, paths: &[PathBuf]) -> Vec<Place> {
    let mut places = Vec::new();
    each_value(engine, &mut |key, at| {
        let log = PathBuf::from(DIR).join("log");
        let names = ["seg", "val"].map(|kind| log.join(format!("{:08x}.{kind}", at.file.0)));
        if let Some(path) = paths.iter().find(|path| names.contains(path)) {
            let (offset, length) = (u64::from(at.offset), u64::from(at.length));
            places.push(Place { key: key.to_vec(), path: path.clone(), offset, length });
        }
    });
    places
}

fn damaged_in(engine: &Store) -> usize {
    let mut damaged = 0;
    each_value(engine, &mut |_, at| damaged += usize::from(engine.log().check(at).is_err()));
    damaged
}

/// Returns what a pass of the scrub costs at most: all runs, and the blocks of each value.
fn pass_bytes(engine: &Store) -> u64 {
    let mut bytes: u64 = engine.index().version().runs().map(|run| run.meta().bytes).sum();
    each_value(engine, &mut |_, at| {
        let (start, end) = (u64::from(at.offset), u64::from(at.offset) + u64::from(at.length));
        bytes += (end.div_ceil(BLOCK_BYTES) - start / BLOCK_BYTES) * BLOCK_BYTES;
    });
    bytes
}

fn each_value(engine: &Store, f: &mut dyn FnMut(&[u8], &stele_types::Locator)) {
    let range = KeyRange::new(vec![keyspace::LOCAL + 1], Vec::new());
    let Ok(mut iter) = engine.index().view().iter(range, Direction::Forward) else { return };
    while let Ok(Some((key, value, _))) = iter.next() {
        if let ValueRef::At(at) = value
            && at.length > 0
        {
            f(&key, &at);
        }
    }
}
