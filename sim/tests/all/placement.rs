//! Placement that follows the speed and the size of devices, and the labels of nodes.

use std::collections::BTreeMap;
use stele_replica::RegionReport;
use stele_sim::faults::{Fault, FaultSet};
use stele_sim::plan::{Mode, Plan, SECOND};
use stele_sim::trace::Trace;
use stele_sim::world::World;
use stele_types::{RegionId, RegionKind};

/// Returns a formed cluster of three nodes with several regions, without random faults, with clients
/// at work. Devices have lasting speeds.
fn cluster(seed: u64, faults: &[Fault]) -> World {
    let mut plan = Plan::draw(seed, Mode::Safety);
    (plan.nodes, plan.stores_per_node) = (3, 1);
    plan.faults = FaultSet::default();
    faults.iter().for_each(|fault| plan.faults.insert(*fault));
    (plan.region_bytes_max, plan.value_bytes_max) = (8 << 10, 1_000);
    (plan.clients, plan.groups, plan.pause_nanos_max) = (3, 4, SECOND / 10);
    plan.fill_permille = 200;
    plan.settings.retain(|(name, _)| *name != "merge_below_bytes");
    let mut world = World::new(plan, Trace::new(false, false));
    world.begin_checks();
    world.run(40 * SECOND);
    assert_eq!(world.serving().len(), 3);
    world.start_clients(u64::from(u32::MAX));
    world
}

fn led(world: &mut World) -> BTreeMap<u64, Vec<RegionId>> {
    let mut led: BTreeMap<u64, Vec<RegionId>> = BTreeMap::new();
    let leads = |(_, it): &(u64, RegionReport)| it.is_leading && it.region.kind == RegionKind::Data;
    for (slot, report) in world.reports_by_region().into_values().flatten().filter(leads) {
        led.entry(slot).or_default().push(report.region.id);
    }
    led
}

#[test]
fn a_store_that_becomes_slow_loses_its_leaders_within_five_seconds_and_gets_them_back() {
    let mut world = cluster(31, &[Fault::SlowDevice]);
    world.run(40 * SECOND);
    let before = led(&mut world);
    let (slow, regions) = before.iter().max_by_key(|(_, led)| led.len()).unwrap();
    let (slow, regions) = (*slow, regions.len());
    assert!(regions > 1, "{before:?}");
    world.slots.get_mut(&slow).unwrap().device.slow_down(10);
    let has_left = |world: &mut World| !led(world).contains_key(&slow);
    let has_left = world.run_until(5 * SECOND, has_left);
    assert!(has_left, "store {slow} leads {:?}", led(&mut world));
    world.run(20 * SECOND);
    let moves = world.counts.moves;
    world.slots.get_mut(&slow).unwrap().device.slow_down(1);
    assert!(world.run_until(150 * SECOND, |world| led(world).contains_key(&slow)));
    world.run(60 * SECOND);
    let count: usize = led(&mut world).values().map(Vec::len).sum();
    let moves = world.counts.moves - moves;
    assert!(moves <= 2 * count as u64, "{moves} moves of {count} regions");
    assert_eq!(world.violation, None);
}

#[test]
fn a_cluster_of_which_all_speeds_flip_every_twenty_seconds_moves_each_region_a_few_times() {
    let mut world = cluster(32, &[Fault::SpeedFlip]);
    world.run(20 * SECOND);
    let before = world.counts.moves;
    world.start_faults();
    world.run(100 * SECOND);
    let count: usize = led(&mut world).values().map(Vec::len).sum();
    let moves = world.counts.moves - before;
    // Five flips, and at most one move of a leader for each.
    assert!(moves <= 5 * count as u64, "{moves} moves of {count} regions");
    assert_eq!(world.violation, None);
}
