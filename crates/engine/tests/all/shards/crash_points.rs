//! Every operation of one shard's disk as the moment of its power cut. The second shard is cut at
//! another moment, and the third when the workload ends.

use crate::common::{Random, tiny};
use crate::shards::world::{SHARDS, Step, World, by_hash, by_range, key};
use std::sync::atomic::{AtomicUsize, Ordering};
use stele_engine::{Error, Group, Partition, StoreMode};
use stele_simulated_disk::{CrashAt, CrashPoint};

const SEED: u64 = 0x5e1e;

fn workload() -> Vec<Step> {
    let mut random = Random(SEED);
    let mut steps = Vec::new();
    for round in 0..3u64 {
        for n in 0..15 {
            let size = random.pick(&[0, 10, 64, 65, 300, 2000, 6000]);
            steps.push(Step::Put(key(random.below(21)), random.bytes(size)));
            let (key, more) = (key(random.below(21)), random.bytes(80));
            match n % 5 {
                1 => steps.push(Step::PutWithMode(key, more, StoreMode::Append)),
                2 => steps.push(Step::PutWithMode(key, more, StoreMode::NoOverwrite)),
                3 => steps.push(Step::Take(key)),
                4 => steps.push(Step::Delete(key)),
                _ => {}
            }
        }
        let pairs = (0..2).map(|n| (key(n), (n != round).then(|| random.bytes(900)))).collect();
        steps.push(Step::Batch(pairs));
        match round {
            0 => steps.push(Step::DeleteRange(key(5), key(9))),
            1 => steps.push(Step::DeleteGroup(Group::of(*b"key-"))),
            _ => steps.push(Step::Compact),
        }
        steps.push(Step::Put(key(round), random.bytes(20_000)));
        steps.push(Step::Flush);
        steps.push(Step::Put(key(7 + round), random.bytes(700)));
        steps.push(Step::Maintain);
    }
    steps
}

fn stride() -> usize {
    std::env::var("STELE_CRASH_STRIDE").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn points(operations: u64) -> impl Iterator<Item = CrashPoint> {
    let places = [CrashAt::Before, CrashAt::Inside, CrashAt::After];
    (0..operations).flat_map(move |operation| places.map(|at| CrashPoint { operation, at }))
}

fn new_world(partition: &Partition) -> World {
    World::new(SEED, partition.clone(), tiny())
}

/// Cuts `shard` at `point` and another shard elsewhere, then opens the set again.
fn crash(partition: &Partition, steps: &[Step], shard: usize, point: CrashPoint, whole: &[u64]) {
    let place = format!("{partition:?}, shard {shard}, {point:?}");
    let mut world = new_world(partition);
    let mut random = Random(SEED ^ point.operation << 8 ^ shard as u64);
    let other = (shard + 1) % SHARDS;
    let at = CrashPoint { operation: random.below(whole[other] * 2), at: CrashAt::Inside };
    world.disks[shard].crash_at(point);
    world.disks[other].crash_at(at);
    if let Err(error) = world.open() {
        let is_cut = world.disks.iter().any(|disk| disk.crashed());
        assert!(is_cut && matches!(error, Error::Shard { .. }), "{place}: {error}");
    } else {
        steps.iter().for_each(|step| world.step(step));
    }
    world.cut(random.next());
    // Also what an interrupted creation left is a set, with the same call.
    world.open().unwrap_or_else(|error| panic!("{place}: open failed: {error}"));
    if let Some(difference) = world.difference() {
        panic!("{place}: {difference}");
    }
    world.step(&Step::Put(key(20), b"after the crash".to_vec()));
    assert!(world.difference().is_none(), "{place}: the set takes no writes");
}

fn every_crash(partition: Partition) {
    let steps = workload();
    let mut world = new_world(&partition);
    world.open().unwrap();
    steps.iter().for_each(|step| world.step(step));
    assert_eq!(world.difference(), None);
    assert!(world.model().len() > 3, "the workload leaves nothing");
    let whole: Vec<u64> = world.disks.iter().map(|disk| disk.operations()).collect();
    let all: Vec<(usize, CrashPoint)> = whole
        .iter()
        .enumerate()
        .flat_map(|(shard, operations)| points(*operations).map(move |point| (shard, point)))
        .collect();
    let chosen: Vec<_> = all.iter().copied().step_by(stride()).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&(shard, point)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    crash(&partition, &steps, shard, point, &whole);
                }
            });
        }
    });
    println!("crash points of shards: {whole:?} operations, {} points checked", chosen.len());
}

#[test]
fn every_crash_point_of_one_shard_loses_nothing_in_a_set_by_hash() {
    every_crash(by_hash());
}

#[test]
fn every_crash_point_of_one_shard_loses_nothing_in_a_set_by_range() {
    every_crash(by_range());
}

/// Runs an interrupted creation; returns the disks after it. Nothing was acknowledged.
fn interrupted(shard: usize, point: CrashPoint) -> World {
    let mut world = new_world(&by_hash());
    world.disks[shard].crash_at(point);
    let created = world.open();
    let is_cut = world.disks[shard].crashed();
    assert!(created.is_ok() || is_cut, "{shard} {point:?}: {created:?}");
    world.cut(point.operation);
    world
}

#[test]
fn a_creation_cut_at_any_operation_of_any_shard_is_completed_by_the_same_call() {
    for shard in 0..SHARDS {
        let mut whole = new_world(&by_hash());
        whole.open().unwrap();
        for point in points(whole.disks[shard].operations()) {
            let mut world = interrupted(shard, point);
            world.open().unwrap_or_else(|error| panic!("{shard} {point:?}: {error}"));
            for n in 0..21 {
                world.step(&Step::Put(key(n), vec![n as u8; 100]));
            }
            world.cut(point.operation + 1);
            world.open().unwrap_or_else(|error| panic!("{shard} {point:?}: {error}"));
            assert_eq!(world.difference(), None, "{shard} {point:?}");
        }
    }
}
