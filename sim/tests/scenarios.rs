//! Faults of the catalogue that need a cluster and their own order of events.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use stele_raftstore::LogKept;
use stele_sim::faults::FaultSet;
use stele_sim::plan::{Mode, Plan, SECOND};
use stele_sim::trace::Trace;
use stele_sim::world::{Stop, World};
use stele_storage::StorageEngine;

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

/// Reads and checks everything.
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
                world.upgrade(node, SECOND / 2);
                assert!(answered(&mut world, 4 * SECOND) > 0, "node {node} is down or restarting");
            }
        }
        finish(world);
    }
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
