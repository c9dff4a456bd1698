//! Every point at which a crash can interrupt a fixed workload: before, after and inside every
//! operation of the simulated disk, and again in the recovery that follows.
//!
//! `STELE_CRASH_STRIDE=n` checks every n-th point only (default 1: all of them).

use crate::common::{Model, Random, batch, difference, disk, leaked, open, tiny};
use std::sync::atomic::{AtomicUsize, Ordering};
use stele_engine::{Db, Options};
use stele_simulated_disk::{CrashAt, CrashPoint, SimVfs};

const SEED: u64 = 0x5e1e;

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    Batch(Vec<(Vec<u8>, Option<Vec<u8>>)>),
    Flush,
    Maintain,
    Compact,
    Confirm,
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

/// Puts, overwrites, deletes, range deletes, batches, flushes, merges, relocation, sorting,
/// reclaiming and truncation, with values from nothing to half a segment.
fn workload() -> Vec<Step> {
    let mut random = Random(SEED);
    let mut steps = Vec::new();
    for round in 0..4u64 {
        for n in 0..12 {
            let size = random.pick(&[0, 10, 64, 65, 300, 2000, 6000]);
            let value = random.bytes(size);
            steps.push(Step::Put(key(random.below(20)), value));
            if n % 4 == 3 {
                steps.push(Step::Delete(key(random.below(20))));
            }
        }
        let pairs =
            (0..4).map(|n| (key(20 + n), (n != round).then(|| random.bytes(900)))).collect();
        steps.push(Step::Batch(pairs));
        steps.push(Step::Put(key(40 + round), random.bytes(20_000)));
        if round % 2 == 1 {
            let low = random.below(10);
            steps.push(Step::DeleteRange(key(low), key(low + 6)));
        }
        steps.push(Step::Flush);
        steps.push(Step::Put(key(round), random.bytes(700)));
        steps.push(Step::Maintain);
        if round >= 2 {
            steps.push(Step::Compact);
        }
        if round == 2 {
            steps.push(Step::Confirm);
        }
    }
    steps
}

fn after(model: &Model, step: &Step) -> Model {
    let mut model = model.clone();
    match step {
        Step::Put(key, value) => {
            model.insert(key.clone(), value.clone());
        }
        Step::Delete(key) => {
            model.remove(key);
        }
        Step::DeleteRange(start, end) => {
            model.retain(|key, _| key < start || key >= end);
        }
        Step::Batch(pairs) => {
            for (key, value) in pairs {
                match value {
                    Some(value) => model.insert(key.clone(), value.clone()),
                    None => model.remove(key),
                };
            }
        }
        Step::Flush | Step::Maintain | Step::Compact | Step::Confirm => {}
    }
    model
}

fn execute(db: &Db, step: &Step) -> stele_engine::Result<()> {
    match step {
        Step::Put(key, value) => db.put(key, value),
        Step::Delete(key) => db.delete(key),
        Step::DeleteRange(start, end) => db.delete_range(start, end),
        Step::Batch(pairs) => db.write(batch(pairs)?),
        Step::Flush => db.flush(),
        Step::Maintain => db.maintain(32 << 10).map(|_| ()),
        Step::Compact => db.compact(),
        Step::Confirm => db.store().log().confirm(),
    }
}

/// Runs until the crash; returns the acknowledged model, and that plus the step in flight.
fn run(disk: &SimVfs, options: &Options, steps: &[Step]) -> (Model, Model) {
    let mut model = Model::new();
    let Ok(db) = open(disk, options) else { return (model.clone(), model) };
    for step in steps {
        let next = after(&model, step);
        if execute(&db, step).is_err() {
            assert!(disk.crashed(), "{step:?} failed without a crash");
            return (model, next);
        }
        model = next;
    }
    (model.clone(), model)
}

/// Opens the store after a crash, and compares. Returns the operations that opening took.
fn recover(disk: &SimVfs, options: &Options, allowed: &(Model, Model), place: &str) -> u64 {
    let db = open(disk, options).unwrap_or_else(|error| panic!("{place}: open failed: {error}"));
    let operations = disk.operations();
    if let Some(lost) = difference(&db, &allowed.0)
        && let Some(other) = difference(&db, &allowed.1)
    {
        panic!("{place}: {lost}; or, with the step in flight done, {other}");
    }
    operations
}

/// Checks that one round of garbage collection leaves no leftover, and that every checksum holds.
fn check_clean(disk: &SimVfs, options: &Options, place: &str) {
    let db = open(disk, options).unwrap();
    db.put(b"after the crash", b"works").unwrap();
    db.compact().unwrap_or_else(|error| panic!("{place}: compact failed: {error}"));
    let leaks = leaked(disk, &db, options);
    assert!(leaks.is_empty(), "{place}: leaked {leaks:?}");
    let mut damage = Vec::new();
    db.verify(&mut |event| {
        if let stele_engine::VerifyEvent::Damage { path, detail } = event {
            damage.push(format!("{}: {detail}", path.display()));
        }
    })
    .unwrap();
    assert!(damage.is_empty(), "{place}: {damage:?}");
}

fn points(operations: u64) -> Vec<CrashPoint> {
    let places = [CrashAt::Before, CrashAt::Inside, CrashAt::After];
    (0..operations).flat_map(|operation| places.map(|at| CrashPoint { operation, at })).collect()
}

fn stride() -> usize {
    std::env::var("STELE_CRASH_STRIDE").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Runs one crash of the workload, then every crash of the recovery that follows, then a recovery
/// without a crash. Returns the number of recoveries checked.
fn crash(options: &Options, steps: &[Step], point: CrashPoint, nested: bool) -> usize {
    let place = format!("crash {:?} operation {}", point.at, point.operation);
    let disk = disk(SEED);
    disk.crash_at(point);
    let allowed = run(&disk, options, steps);
    let left = disk.restart(SEED ^ point.operation);
    let operations = recover(&left.restart(0), options, &allowed, &place);
    let mut checked = 1;
    if nested {
        for again in points(operations) {
            let place =
                format!("{place}, then {:?} operation {} of recovery", again.at, again.operation);
            let second = left.restart(0);
            second.crash_at(again);
            let _ = open(&second, options);
            recover(&second.restart(again.operation), options, &allowed, &place);
            checked += 1;
        }
    }
    check_clean(&left, options, &place);
    checked
}

fn every_crash(options: Options, nested: bool) {
    let steps = workload();
    let whole = disk(SEED);
    let (model, _) = run(&whole, &options, &steps);
    assert!(!whole.crashed() && model.len() > 10);
    let all = points(whole.operations());
    let chosen: Vec<CrashPoint> = all.iter().copied().step_by(stride()).collect();
    let (next, checked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&point) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    checked.fetch_add(crash(&options, &steps, point, nested), Ordering::Relaxed);
                }
            });
        }
    });
    println!(
        "crash points: {} operations, {} points of {}, {} recoveries checked, all recovered",
        whole.operations(),
        chosen.len(),
        all.len(),
        checked.into_inner()
    );
}

#[test]
fn every_crash_point_of_the_workload_and_of_its_recovery_loses_nothing() {
    every_crash(tiny(), true);
}

#[test]
fn every_crash_point_under_the_nezha_policy_loses_nothing() {
    let mut options = tiny();
    options.gc.policy = stele_engine::PolicyKind::Nezha;
    every_crash(options, false);
}
