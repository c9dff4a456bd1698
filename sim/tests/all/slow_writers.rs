//! Writers wait while garbage collection of a replica lags, and garbage stays within its bound.

use stele_sim::faults::FaultSet;
use stele_sim::plan::{MS, Mode, Plan, SECOND};
use stele_sim::trace::Trace;
use stele_sim::world::World;
use stele_storage::StateMachine;
use stele_types::RegionKind;

/// Returns a formed cluster of three nodes, without random faults, of which the clients replace the same
/// few values as fast as they can.
fn cluster(seed: u64, clients: u64) -> World {
    let mut plan = Plan::draw(seed, Mode::Safety);
    (plan.nodes, plan.stores_per_node) = (3, 1);
    plan.faults = FaultSet::default();
    plan.has_slow_writers = true;
    (plan.clients, plan.groups, plan.fill_permille) = (clients, 40, 0);
    (plan.pause_nanos_max, plan.value_bytes_max) = (MS, 16_000);
    plan.way_nanos = (50_000, 150_000);
    plan.region_bytes_max = 1 << 30;
    plan.queue_bytes_max = 256 << 20;
    plan.raft.tail_bytes_max = 256 << 20;
    plan.raft.uncommitted_bytes_max = 1 << 20;
    plan.raft.append_message_bytes_max = 1 << 20;
    plan.raft.inflight_messages_max = 256;
    plan.raft.apply_bytes_max = 1 << 20;
    plan.raft.log_kept.entries = 20;
    plan.raft.log_kept.pin_bytes_max = 20_000;
    (plan.engine.segment_bytes_max, plan.engine.memtable_bytes_max) = (64 << 10, 8 << 10);
    plan.engine.inline_value_bytes_max = 16;
    plan.engine.gc.budget_ratio = 5.0;
    plan.engine.gc.space_amp_target = 2.0;
    plan.engine.gc.value_file_bytes_max = 64 << 10;
    plan.engine.gc.space_slack_bytes = 0;
    let mut world = World::new(plan, Trace::new(false, false));
    world.begin_checks();
    assert!(world.run_until(40 * SECOND, |world| world.serving().len() == 3));
    world.run(5 * SECOND);
    world.start_clients(u64::from(u32::MAX));
    world
}

fn follower(world: &World) -> u64 {
    let leads = |number: &u64| {
        let readers = world.slots[number].readers().unwrap();
        let data = readers.all().into_iter().filter(|region| region.kind == RegionKind::Data);
        let mut readers = data.filter_map(|region| readers.get(region.id));
        readers.any(|reader| reader.leading_term().is_some())
    };
    world.serving().into_iter().find(|number| !leads(number)).unwrap()
}

/// Returns what each store makes writers wait for a KiB, in nanoseconds.
fn own(world: &World, number: u64) -> u64 {
    world.slots[&number].running.as_ref().unwrap().writers.own()
}

#[test]
fn garbage_of_stores_that_lag_behind_writers_stays_within_its_bound() {
    let mut world = cluster(31, 200);
    let slow = follower(&world);
    world.slots.get_mut(&slow).unwrap().maintenance_factor = 3;
    let mut most = 0;
    for _ in 0..80 {
        world.run(50 * MS);
        let stores = world.serving();
        let bytes = stores.iter().map(|it| world.engine(*it).unwrap().stats().disk_bytes);
        most = most.max(bytes.max().unwrap());
    }
    assert_eq!(world.violation, None);
    assert!(world.counts.slowed_writes > 100, "{} writes waited", world.counts.slowed_writes);
    // Writers that do not wait fill 35 MB in this time.
    assert!(most < 16 << 20, "{most} bytes on a device");
}

#[test]
fn writers_wait_at_the_leader_while_only_a_follower_lags() {
    let mut world = cluster(32, 12);
    let slow = follower(&world);
    world.slots.get_mut(&slow).unwrap().maintenance_factor = 30;
    let mut waited = 0;
    for _ in 0..1_000 {
        let others = |world: &World| -> u64 {
            let others = world.serving().into_iter().filter(|number| *number != slow);
            others.map(|number| own(world, number)).sum()
        };
        let (before, none_lags) = (world.counts.slowed_writes, others(&world) == 0);
        world.run(5 * MS);
        if none_lags && others(&world) == 0 {
            waited += world.counts.slowed_writes - before;
        }
    }
    assert_eq!(world.violation, None);
    assert!(waited > 20, "{waited} writes waited");
}

#[test]
fn writers_do_not_wait_after_the_lag_has_ended() {
    let mut world = cluster(34, 12);
    let slow = follower(&world);
    world.slots.get_mut(&slow).unwrap().maintenance_factor = 30;
    world.run(3 * SECOND);
    assert!(world.counts.slowed_writes > 0);
    world.clients.stop();
    world.slots.get_mut(&slow).unwrap().maintenance_factor = 1;
    // Nothing is written, and maintenance catches up: the last report says so.
    let ended = |world: &mut World| world.serving().iter().all(|number| own(world, *number) == 0);
    assert!(world.run_until(30 * SECOND, ended), "a store lags without writers");
    world.run(2 * SECOND);
    world.clients.set_pause_max(200 * MS);
    world.start_clients(50);
    // No write waits until a store lags again.
    let (before, mut steps) = (world.counts.slowed_writes, 0);
    while steps < 200 && ended(&mut world) {
        assert_eq!(world.counts.slowed_writes, before);
        world.run(5 * MS);
        steps += 1;
    }
    assert!(steps > 20, "a store lags again after {} ms", 5 * steps);
    assert_eq!(world.violation, None);
}
