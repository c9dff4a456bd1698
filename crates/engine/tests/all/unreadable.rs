//! Reads that the device refuses, in a store without replicas: no other work fails because of them.

use crate::common::{DIR, Model, Random, clock, difference, disk, open, tiny};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{Db, GcOptions, Options, VerifyEvent};
use stele_index::Found;
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{Error, Locator, ValueRef};

const KEYS: u32 = 400;
const REFUSED: u32 = 7;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:03}").into_bytes()
}

fn value(n: u32, round: u32) -> Vec<u8> {
    Random(u64::from(n + round * KEYS)).bytes(700 + n as usize)
}

fn options() -> Options {
    let gc = GcOptions { discover_bytes_min: 16 << 10, ..GcOptions::default() };
    let gc = GcOptions { value_file_bytes_max: 64 << 10, ..gc };
    Options { gc, ..tiny() }
}

fn locator(db: &Db, key: &[u8]) -> Locator {
    match db.store().index().get(key).unwrap() {
        Some(Found::Value { value: ValueRef::At(at), .. }) => at,
        other => panic!("{other:?}"),
    }
}

fn path_of(disk: &SimVfs, at: &Locator) -> PathBuf {
    let name = |kind| Path::new(DIR).join(format!("log/{:08x}.{kind}", at.file.0));
    let is_there = |path: &PathBuf| disk.file_bytes(path).is_some();
    [name("val"), name("seg")].into_iter().find(is_there).unwrap()
}

/// Makes the device refuse to read the value of a key. Returns the error of the next get.
fn refuse(disk: &SimVfs, db: &Db, refused: u32) -> Error {
    let at = locator(db, &key(refused));
    let (path, offset) = (path_of(disk, &at), u64::from(at.offset));
    disk.inject(Fault::Unreadable { path, offset, bytes: u64::from(at.length) }).unwrap();
    db.get(&key(refused)).unwrap_err()
}

fn settle(db: &Db) {
    for _ in 0..10_000 {
        if !db.maintain(64 << 10).unwrap().more {
            return;
        }
    }
    panic!("no end: {:?}", db.stats().gc);
}

#[test]
fn space_returns_to_its_target_and_puts_go_on_while_a_value_cannot_be_read() {
    let disk = disk(1);
    let options = options();
    let db = open(&disk, &options).unwrap();
    (0..KEYS).for_each(|n| db.put(&key(n), &value(n, 0)).unwrap());
    db.compact().unwrap();
    let error = refuse(&disk, &db, REFUSED);
    assert!(error.is_damage(), "{error}");
    assert!(error.to_string().contains("the device cannot read it"), "{error}");
    let mut model = Model::new();
    let mut random = Random(5);
    for n in (0..KEYS).filter(|n| *n != REFUSED) {
        model.insert(key(n), value(n, 0));
    }
    for round in 1..2500 {
        let n = random.below(u64::from(KEYS)) as u32;
        if n != REFUSED {
            db.put(&key(n), &value(n, round)).unwrap();
            model.insert(key(n), value(n, round));
            db.maintain(16 << 10).unwrap();
        }
    }
    // Its neighbours in the refused sectors.
    for n in [REFUSED - 1, REFUSED + 1] {
        db.put(&key(n), &value(n, 0)).unwrap();
        model.insert(key(n), value(n, 0));
    }
    settle(&db);
    let stats = db.stats();
    let pinned = disk.file_bytes(path_of(&disk, &locator(&db, &key(REFUSED)))).unwrap();
    // The head segment and the recycled one count too.
    let spare = 2 * options.segment_bytes_max;
    let target = options.gc.space_amp_target;
    let bound = target + (pinned + spare) as f64 / stats.gc.live_bytes as f64;
    assert!(stats.gc.space_amp <= bound, "{} > {bound}: {:?}", stats.gc.space_amp, stats.gc);
    assert!(stats.gc.damaged > 0, "{:?}", stats.gc);
    assert_eq!(stats.repair.lost, 1);
    let mut damages = Vec::new();
    let mut note =
        |event| damages.extend(matches!(event, VerifyEvent::Damage { .. }).then_some(event));
    db.verify(&mut note).unwrap();
    assert!(!damages.is_empty());
    // A new value ends the damage, also for the statistics.
    db.put(&key(REFUSED), &value(REFUSED, 9)).unwrap();
    model.insert(key(REFUSED), value(REFUSED, 9));
    settle(&db);
    db.compact().unwrap();
    assert_eq!(db.stats().repair.lost, 0);
    assert_eq!(difference(&db, &model), None);
    drop(db);
    let db = open(&disk.restart(1), &options).unwrap();
    assert_eq!(difference(&db, &model), None);
}

#[test]
fn damage_that_maintenance_meets_fails_no_write() {
    let (disk, clock) = (disk(2), clock());
    let options = Options { block_cache_bytes_max: 0, ..options() };
    let vfs = Arc::new(disk.clone());
    let db = Db::open_with(vfs, clock.clone(), Path::new(DIR), options).unwrap();
    (0..KEYS).for_each(|n| db.put(&key(n), &value(n, 0)).unwrap());
    db.compact().unwrap();
    let runs = disk.paths().into_iter().filter(|path| path.extension().is_some_and(|e| e == "run"));
    runs.for_each(|path| disk.inject(Fault::Unreadable { path, offset: 0, bytes: 1 }).unwrap());
    let mut met = 0;
    for round in 1..8 {
        for n in 0..KEYS {
            db.put(&key(n), &value(n, round)).unwrap();
            if n % 8 == 0 {
                // The next job begins soon after one that failed. Writers do a part of it.
                clock.advance_seconds(2);
                met += u32::from(db.maintain(1).is_err_and(|error| error.is_damage()));
            }
        }
    }
    assert!(met > 0);
    (0..KEYS).for_each(|n| assert_eq!(db.get(&key(n)).unwrap().unwrap(), value(n, 7)));
}
