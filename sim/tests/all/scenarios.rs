//! Faults of the catalogue that need a cluster and their own order of events.

use stele_replica::LogKept;
use stele_sim::faults::{Fault, FaultSet};
use stele_sim::plan::{Mode, Plan, SECOND};
use stele_sim::trace::Trace;
use stele_sim::world::{Stop, World};
use stele_simulated_disk::Fault as DiskFault;
use stele_storage::StateMachine;
use stele_types::{RegionId, RegionKind};

/// Returns a formed cluster of three nodes with one store each, without random faults, with clients
/// at work.
fn cluster(seed: u64) -> World {
    cluster_of(Plan::draw(seed, Mode::Safety))
}

fn cluster_of(mut plan: Plan) -> World {
    (plan.nodes, plan.stores_per_node) = (3, 1);
    plan.faults = FaultSet::default();
    let mut world = World::new(plan, Trace::new(false, false));
    world.begin_checks();
    world.run(40 * SECOND);
    assert_eq!(world.serving().len(), 3);
    world.start_clients(u64::from(u32::MAX));
    world
}

fn finish(mut world: World) {
    world.clients.stop();
    world.run_until(60 * SECOND, |world| !world.clients.is_busy() && world.streams.is_empty());
    world.run(10 * SECOND);
    assert!(world.read_everything(60 * SECOND), "{:?}", world.violation);
    world.check_end();
    assert_eq!(world.violation, None);
}

/// Returns the number of operations answered within `nanos`.
fn answered(world: &mut World, nanos: u64) -> u64 {
    let before = world.counts.ops;
    world.run(nanos);
    assert_eq!(world.violation, None);
    world.counts.ops - before
}

#[test]
fn fault_04_a_node_killed_for_want_of_memory_is_back_within_the_bound() {
    for seed in [21, 22] {
        let mut world = cluster(seed);
        world.run(8 * SECOND);
        world.stop_node(2, Stop::Kill);
        assert!(answered(&mut world, 2 * SECOND) > 0, "the other nodes still serve");
        world.start_node(2);
        let slot = world.slots_of(2)[0];
        let engine = world.engine(slot).expect("the store opens immediately");
        let plan = &world.plan.engine;
        let replayed = world.slots[&slot].replayed_bytes;
        // A checkpoint follows after so much log; segments being written or flushed are added.
        let bound = plan.checkpoint_log_bytes_max + 4 * plan.segment_bytes_max;
        assert!(replayed <= bound, "seed {seed}: {replayed} bytes were read, of {bound}");
        assert!(engine.stats().memory_bytes < 8 << 20);
        finish(world);
    }
}

#[test]
fn fault_37_data_goes_on_while_the_placement_group_is_unreachable() {
    let mut world = cluster(23);
    let before = answered(&mut world, 5 * SECOND);
    world.net.is_group_cut = true;
    let without = answered(&mut world, 20 * SECOND) / 4;
    assert!(without * 2 > before, "{without} operations in five seconds, {before} before");
    // The same with new leaders for all regions.
    world.stop_node(1, Stop::Kill);
    world.run(4 * SECOND);
    assert!(answered(&mut world, 5 * SECOND) > 0);
    world.start_node(1);
    world.net.is_group_cut = false;
    finish(world);
}

#[test]
fn fault_65_nodes_that_restart_one_by_one_with_other_settings_and_back_lose_nothing() {
    for seed in [24, 25] {
        let mut world = cluster(seed);
        for _ in ["there", "and back"] {
            for node in 1..=3 {
                world.leave(node, SECOND / 2, true);
                assert!(answered(&mut world, 4 * SECOND) > 0, "node {node} is down or restarting");
            }
        }
        finish(world);
    }
}

fn leading_store(world: &World) -> u64 {
    let leads = |slot: &u64| {
        let readers = world.slots[slot].readers().unwrap();
        let mut data = readers.all().into_iter().filter(|it| it.kind == RegionKind::Data);
        data.any(|it| readers.get(it.id).is_some_and(|it| it.leading_term().is_some()))
    };
    world.serving().into_iter().find(leads).unwrap()
}

fn cluster_of_six(seed: u64) -> World {
    let mut plan = Plan::draw(seed, Mode::Safety);
    (plan.nodes, plan.stores_per_node) = (3, 2);
    plan.faults = FaultSet::default();
    plan.faults.insert(Fault::StoreFails);
    let mut world = World::new(plan, Trace::new(false, false));
    world.begin_checks();
    world.run(40 * SECOND);
    assert_eq!(world.serving().len(), 6);
    world.start_clients(u64::from(u32::MAX));
    world.run(5 * SECOND);
    world
}

#[test]
fn fault_20_a_store_that_hangs_keeps_the_others_of_its_node_from_nothing() {
    for loop_hangs in [false, true] {
        let mut world = cluster_of_six(27);
        let number = leading_store(&world);
        let node = world.slots[&number].node;
        let until = world.now + 20 * SECOND;
        let slot = world.slots.get_mut(&number).unwrap();
        (slot.hangs_until, slot.loop_hangs) = (until, loop_hangs);
        let operations = slot.disk.operations();
        world.run(6 * SECOND);
        let answers = answered(&mut world, 6 * SECOND);
        assert!(answers > 0 || !loop_hangs, "the regions have another leader");
        assert_eq!(world.slots[&number].disk.operations(), operations, "its disk hangs");
        let is_alone = |slot: &u64| !world.serving().contains(slot);
        assert!(!world.slots_of(node).iter().any(is_alone), "no store of the node has stopped");
        world.run(20 * SECOND);
        finish(world);
    }
}

#[test]
fn fault_26_a_store_that_fails_alone_leads_nothing_and_its_node_goes_on() {
    let mut world = cluster_of_six(28);
    let number = leading_store(&world);
    let until = world.now + 15 * SECOND;
    let slot = world.slots.get_mut(&number).unwrap();
    (slot.is_troubled, slot.fails_until) = (true, until);
    let sync = DiskFault::SyncFails { path_contains: String::new(), nth: 1 };
    slot.disk.inject(sync).unwrap();
    let ended = |world: &mut World| world.slots[&number].has_ended_loop();
    assert!(world.run_until(5 * SECOND, ended), "its next batch fails");
    world.run(5 * SECOND);
    assert!(answered(&mut world, 5 * SECOND) > 0, "the regions have another leader");
    assert_eq!(world.serving().len(), 5, "the other store of its node serves");
    let readers = world.slots[&number].readers().unwrap();
    let leads = |it: &RegionId| readers.get(*it).is_some_and(|it| it.leading_term().is_some());
    assert!(!readers.all().iter().any(|region| leads(&region.id)));
    world.run(15 * SECOND);
    assert_eq!(world.serving().len(), 6);
    finish(world);
}

#[test]
fn an_operator_waits_with_a_damaged_disk_until_the_others_have_what_is_on_it() {
    let mut plan = Plan::draw(26, Mode::Safety);
    plan.region_bytes_max = 8 << 10;
    plan.value_bytes_max = 1_000;
    // A node that was down skips the splits by snapshots.
    plan.raft.log_kept = LogKept { entries: 5, pin_bytes_max: 1_000 };
    let mut world = cluster_of(plan);
    world.stop_node(3, Stop::Kill);
    let splits = world.counts.splits;
    world.run(6 * SECOND);
    assert!(world.counts.splits > splits, "{:?}", world.counts);
    let damaged = world.slots_of(1)[0];
    world.slots.get_mut(&damaged).unwrap().is_damaged = true;
    world.clients.stop();
    world.heal();
    assert!(!world.slots[&damaged].is_gone, "store 3 lacks the regions that were split off");
    assert!(world.run_until(60 * SECOND, |world| world.slots[&damaged].is_gone));
    assert_eq!(world.counts.overspent, 0);
    world.run(60 * SECOND);
    finish(world);
}

/// Stops the clock of the node that leads the first region of user data for ten seconds and
/// isolates it, while clients keep using it. Returns the first violation.
fn stop_the_clock_of_a_leader(world: &mut World) -> Option<String> {
    world.plan.faults.insert(Fault::ClockStop);
    let leads = |world: &mut World| {
        let reports = world.reports_by_region().remove(&RegionId(2)).unwrap_or_default();
        let leading = reports.into_iter().find(|(_, report)| report.is_leading);
        leading.map(|(slot, _)| world.slots[&slot].node)
    };
    assert!(world.run_until(10 * SECOND, |world| leads(world).is_some()));
    let leader = leads(world).unwrap();
    let (now, until) = (world.now, world.now + 10 * SECOND);
    world.nodes.get_mut(&leader).unwrap().stop_clock(now, until);
    world.clients.stay_with(leader, until);
    let others: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    world.net.partition(&[leader], &others);
    world.run(10 * SECOND);
    world.net.heal();
    world.clients.stop();
    world.run_until(60 * SECOND, |world| !world.clients.is_busy() && world.streams.is_empty());
    world.run(10 * SECOND);
    if world.violation.is_none() {
        assert!(world.read_everything(60 * SECOND), "{:?}", world.violation);
        world.check_end();
    }
    world.violation.clone()
}

/// Seeds of the runs in which a leader's clock stops.
const STOPPED_SEEDS: std::ops::Range<u64> = 20..36;

fn plan_with_reads(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed, Mode::Safety);
    (plan.region_bytes_max, plan.clients, plan.groups) = (1 << 30, 7, 1);
    plan.pause_nanos_max = SECOND / 200;
    plan
}

/// Leases do not tolerate what [`Fault::ClockStop`] does: no seed has it and leases.
#[test]
fn a_clock_that_stops_makes_leases_serve_stale_reads_and_the_check_reports_them() {
    let mut stale = 0;
    for seed in STOPPED_SEEDS {
        // In some runs no client reads through the old leader after a write to the new one.
        let violation = stop_the_clock_of_a_leader(&mut cluster_of(plan_with_reads(seed)));
        let Some(violation) = violation else { continue };
        assert!(violation.contains("is not linearizable"), "seed {seed}: {violation}");
        stale += 1;
    }
    assert!(stale >= 3, "{stale} runs had stale reads");
}

#[test]
fn with_leases_turned_off_while_the_cluster_runs_a_clock_that_stops_makes_no_read_stale() {
    for seed in STOPPED_SEEDS {
        let mut world = cluster_of(plan_with_reads(seed));
        assert!(answered(&mut world, 2 * SECOND) > 0);
        let has_lease = |world: &mut World| {
            let slots = world.slots.values().filter_map(|slot| {
                let local = world.nodes[&slot.node].local(world.now);
                Some((slot.readers()?, local))
            });
            slots.into_iter().any(|(readers, local)| {
                let regions = readers.all();
                let readers = regions.iter().filter_map(|region| readers.get(region.id));
                readers.into_iter().any(|it| it.lease_left_nanos(local) > 0)
            })
        };
        assert!(world.run_until(5 * SECOND, has_lease));
        world.change_setting("leases", 0);
        assert!(world.run_until(10 * SECOND, |world| !has_lease(world)), "seed {seed}");
        let violation = stop_the_clock_of_a_leader(&mut world);
        assert_eq!(violation, None, "seed {seed}");
    }
}
