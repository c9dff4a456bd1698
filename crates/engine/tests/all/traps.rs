//! Failures of other systems as regression tests: titan, badger, rocksdb. Each test is named after
//! the report.

use crate::common::{DIR, Model, Random, difference, disk, open, tiny};
use std::path::Path;
use std::sync::Arc;
use stele_engine::{Db, KeyRange, Options, Order};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::ManualClock;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:03}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    Random(u64::from(n)).bytes(500)
}

fn put_all(db: &Db, model: &mut Model, keys: std::ops::Range<u32>, version: u32) {
    for n in keys {
        db.put(&key(n), &value(n + version)).unwrap();
        model.insert(key(n), value(n + version));
    }
}

fn survives(disk: &SimVfs, db: Db, model: &Model) {
    drop(db);
    for seed in 0..5 {
        let db = open(&disk.restart(seed), &tiny()).unwrap();
        assert_eq!(difference(&db, model), None, "after a power cut, seed {seed}");
    }
}

fn collect(db: &Db) {
    db.store().gc().force(stele_gc::Forced::Collect).unwrap();
}

#[test]
fn titan_81_an_old_value_is_kept_until_its_successor_is_checkpointed() {
    let disk = disk(1);
    let db = open(&disk, &Options { memtable_bytes_max: 1 << 20, ..tiny() }).unwrap();
    let mut model = Model::new();
    put_all(&db, &mut model, 0..200, 0);
    db.flush().unwrap();
    // The successors are in the memtable only.
    put_all(&db, &mut model, 0..200, 1000);
    for _ in 0..50 {
        db.maintain(64 << 10).unwrap();
    }
    assert_eq!(difference(&db, &model), None);
    survives(&disk, db, &model);
}

#[test]
fn titan_93_collection_does_not_run_ahead_of_a_flush_that_is_not_visible_yet() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    let mut model = Model::new();
    for round in 0..10 {
        put_all(&db, &mut model, 0..60, round * 100);
        // A flush advances by single slices; garbage collection runs in between.
        db.maintain(1).unwrap();
        collect(&db);
        db.maintain(1).unwrap();
        assert_eq!(difference(&db, &model), None, "round {round}");
    }
    survives(&disk, db, &model);
}

#[test]
fn titan_167_and_186_a_file_found_dead_twice_is_removed_once() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    let mut model = Model::new();
    put_all(&db, &mut model, 0..200, 0);
    put_all(&db, &mut model, 0..200, 500);
    db.compact().unwrap();
    disk.clear_events();
    for _ in 0..5 {
        collect(&db);
        db.compact().unwrap();
    }
    let unlinked: Vec<_> = disk
        .events()
        .into_iter()
        .filter(|event| event.kind == stele_simulated_disk::Operation::Unlink)
        .map(|event| event.path)
        .collect();
    let mut once = unlinked.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), unlinked.len(), "{unlinked:?}");
    assert_eq!(difference(&db, &model), None);
    survives(&disk, db, &model);
}

#[test]
fn titan_212_a_snapshot_pins_the_files_it_reads() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    let mut model = Model::new();
    put_all(&db, &mut model, 0..150, 0);
    let mut iter = db.iter(KeyRange::all(), Order::Reverse).unwrap();
    let first = iter.next().unwrap().unwrap();
    assert_eq!((first.key.to_vec(), first.value.to_vec()), (key(149), value(149)));
    let old = model.clone();
    for round in 1..4 {
        put_all(&db, &mut model, 0..150, round * 200);
        db.compact().unwrap();
    }
    let rest: Vec<_> =
        iter.map(|p| p.unwrap()).map(|p| (p.key.to_vec(), p.value.to_vec())).collect();
    assert!(rest.iter().cloned().eq(old.into_iter().rev().skip(1)));
}

#[test]
fn badger_2310_a_deleted_key_stays_deleted_when_its_tombstone_is_dropped_during_relocation() {
    for slices in 0..25 {
        let disk = disk(slices);
        let db = open(&disk, &tiny()).unwrap();
        let mut model = Model::new();
        put_all(&db, &mut model, 0..150, 0);
        db.flush().unwrap();
        for n in (0..150).step_by(2) {
            db.delete(&key(n)).unwrap();
            model.remove(&key(n));
        }
        for _ in 0..slices {
            db.maintain(2 << 10).unwrap();
        }
        db.flush().unwrap();
        db.compact().unwrap();
        assert_eq!(difference(&db, &model), None, "{slices} slices");
        survives(&disk, db, &model);
    }
}

#[test]
fn badger_1090_data_whose_index_is_in_memory_only_is_not_collected() {
    let disk = disk(1);
    let db = open(&disk, &Options { memtable_bytes_max: 1 << 20, ..tiny() }).unwrap();
    let mut model = Model::new();
    put_all(&db, &mut model, 0..300, 0);
    for _ in 0..20 {
        db.maintain(1 << 20).unwrap();
    }
    assert_eq!(difference(&db, &model), None);
    survives(&disk, db, &model);
}

#[test]
fn badger_1465_a_failed_open_leaves_every_byte_as_it_was() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    let mut model = Model::new();
    put_all(&db, &mut model, 0..150, 0);
    drop(db);
    let mut failed = 0;
    for part in [".seg", ".side", ".run", "manifest", "STORE"] {
        for nth in 1..6 {
            let try_disk = disk.fork();
            try_disk.inject(Fault::ReadFails { path_contains: part.into(), nth }).unwrap();
            failed += usize::from(open(&try_disk, &tiny()).is_err());
            try_disk.clear_faults();
            let db = open(&try_disk, &tiny());
            let db =
                db.unwrap_or_else(|error| panic!("after read {nth} of {part} failed: {error}"));
            assert_eq!(difference(&db, &model), None, "after read {nth} of {part} failed");
        }
    }
    assert!(failed > 3, "{failed} opens failed");
}

#[test]
fn badger_1049_damage_in_the_middle_of_a_file_does_not_open_silently() {
    let disk = disk(1);
    let options = Options { segment_bytes_max: 1 << 20, memtable_bytes_max: 1 << 20, ..tiny() };
    let db = open(&disk, &options).unwrap();
    put_all(&db, &mut Model::new(), 0..100, 0);
    drop(db);
    let path = Path::new(DIR).join("log/00000001.seg");
    let whole = disk.read_file(&path).unwrap();
    let last = whole.windows(500).position(|part| part == value(99)).unwrap();
    for part in 1..10 {
        let damaged = disk.fork();
        let at = (last * part / 10) as u64;
        let byte = whole[at as usize] ^ 0x10;
        damaged.corrupt(&path, at, &[byte]).unwrap();
        match open(&damaged, &options) {
            Err(error) => assert!(error.is_damage(), "{error}"),
            // Padding between batches carries nothing.
            Ok(db) => assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 100),
        }
    }
}

#[test]
fn badger_1619_a_moved_value_keeps_its_time_to_live() {
    let disk = disk(1);
    let time = Arc::new(ManualClock::at(1000));
    let vfs = Arc::new(disk.clone());
    let db = Db::open_with(vfs, time.clone(), Path::new(DIR), tiny()).unwrap();
    for n in 0..150 {
        db.put_ttl(&key(n), &value(n), 100).unwrap();
    }
    let file_of = |db: &Db| db.store().index().version().live().keys().next().copied();
    db.flush().unwrap();
    let before = file_of(&db);
    db.compact().unwrap();
    assert_ne!(file_of(&db), before, "nothing was moved");
    assert_eq!(db.get_with_ttl(&key(3)).unwrap().unwrap().1, Some(100));
    time.advance_seconds(100);
    assert_eq!(db.get(&key(3)).unwrap(), None);
    assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 0);
}

#[test]
fn rocksdb_2678_collection_never_drops_a_newer_version() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    let mut model = Model::new();
    let mut random = Random(5);
    put_all(&db, &mut model, 0..100, 0);
    for round in 1..400 {
        let n = random.below(100) as u32;
        put_all(&db, &mut model, n..n + 1, round);
        db.maintain(random.pick(&[1, 500, 5000])).unwrap();
        if round % 40 == 0 {
            collect(&db);
            assert_eq!(difference(&db, &model), None, "round {round}");
        }
    }
    survives(&disk, db, &model);
}

#[test]
fn rocksdb_13090_and_13884_repair_deletes_no_values() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    let mut model = Model::new();
    put_all(&db, &mut model, 0..150, 0);
    db.compact().unwrap();
    put_all(&db, &mut model, 20..60, 300);
    db.flush().unwrap();
    drop(db);
    let values = |disk: &SimVfs| {
        let kept = |path: &&std::path::PathBuf| {
            let name = path.to_string_lossy();
            name.ends_with(".seg") || name.ends_with(".val")
        };
        disk.paths().iter().filter(kept).cloned().collect::<Vec<_>>()
    };
    let before = values(&disk);
    for path in disk.paths().iter().filter(|p| p.to_string_lossy().contains("manifest-")) {
        disk.write_file(path, b"garbage");
    }
    let db = open(&disk, &tiny()).unwrap();
    assert!(db.opened().rebuilt.is_some());
    assert!(before.iter().all(|path| values(&disk).contains(path)), "repair removed a value file");
    assert_eq!(difference(&db, &model), None);
    survives(&disk, db, &model);
}
