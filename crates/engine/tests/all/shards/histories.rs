//! Random histories of a set against a model. Disks are cut one by one at random moments, while the
//! others go on, until all are cut and the set is opened again.

use crate::common::{Random, tiny};
use crate::shards::world::{SHARDS, Step, World, by_hash, by_range, key};
use stele_engine::{Group, Options, StoreMode};
use stele_simulated_disk::{CrashAt, CrashPoint};

const HISTORIES: u64 = 60;
const OPS: usize = 200;

fn step(random: &mut Random) -> Step {
    let size = random.pick(&[0, 1, 20, 64, 65, 150, 400, 1500, 5000, 30_000]);
    match random.below(100) {
        0..=44 => Step::Put(key(random.below(21)), random.bytes(size)),
        45..=51 => {
            use StoreMode::{Append, NoOverwrite, UpdateOnly};
            let mode = random.pick(&[Append, NoOverwrite, UpdateOnly]);
            // Appends stay below their limit.
            let bytes = if mode == Append { 90 } else { size };
            Step::PutWithMode(key(random.below(21)), random.bytes(bytes), mode)
        }
        52..=54 => Step::Take(key(random.below(21))),
        55..=64 => Step::Delete(key(random.below(21))),
        65..=68 => {
            let (a, b) = (key(random.below(21)), key(random.below(21)));
            Step::DeleteRange(a.clone().min(b.clone()), a.max(b))
        }
        69..=74 => {
            let first = key(random.below(21));
            let mut pairs = vec![(first.clone(), Some(random.bytes(size)))];
            if random.below(2) == 0 {
                pairs.push((key(random.below(21)), None));
            }
            pairs.push((first, (random.below(3) > 0).then(|| random.bytes(40))));
            Step::Batch(pairs)
        }
        75 => Step::DeleteGroup(Group { prefix: *b"key-", mask: [255, 255, 255, 0] }),
        76..=81 => Step::Flush,
        82..=85 => Step::Compact,
        _ => Step::Maintain,
    }
}

fn options(random: &mut Random) -> Options {
    Options {
        inline_value_bytes_max: random.pick(&[0, 64]),
        memtable_bytes_max: random.pick(&[4 << 10, 16 << 10]),
        recycle_segments_max: random.pick(&[0, 1]),
        value_cache_bytes_max: random.pick(&[0, 128 << 10]),
        ..tiny()
    }
}

fn history(seed: u64) {
    let place = || {
        format!("replay: STELE_SEED={seed} cargo test -p stele-engine --test all shards histories")
    };
    let mut random = Random(seed);
    let partition = if random.below(2) == 0 { by_hash() } else { by_range() };
    let options = options(&mut random);
    let mut world = World::new(seed, partition, options);
    world.open().unwrap_or_else(|error| panic!("{error}; {}", place()));
    for _ in 0..OPS {
        match random.below(60) {
            // The others go on for a while, and are cut one by one or all at once.
            0..=2 => {
                let disk = &world.disks[random.below(SHARDS as u64) as usize];
                let operation = disk.operations() + random.below(12);
                let at = random.pick(&[CrashAt::Before, CrashAt::Inside, CrashAt::After]);
                disk.crash_at(CrashPoint { operation, at });
            }
            3 => reopen(&mut world, random.next(), &place()),
            _ => world.step(&step(&mut random)),
        }
    }
    reopen(&mut world, random.next(), &place());
}

fn reopen(world: &mut World, seed: u64, place: &str) {
    world.cut(seed);
    world.open().unwrap_or_else(|error| panic!("{error}; {place}"));
    if let Some(difference) = world.difference() {
        panic!("{difference}; {place}");
    }
}

#[test]
fn random_histories_with_shards_cut_at_different_moments_agree_with_the_model() {
    let env = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    if let Some(seed) = env("STELE_SEED") {
        return history(seed);
    }
    let histories = env("STELE_HISTORIES").unwrap_or(HISTORIES);
    println!("seeds 0 to {histories}; replay one with STELE_SEED=n");
    (0..histories).for_each(history);
}
