//! Faults of the device, by their number in the reliability catalogue, with the required reaction.

use crate::common::{DIR, Model, Random, clock, difference, disk, mark, open, tiny};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{
    Db, EngineView, Error, GcOptions, KeyRange, Options, Order, Repair, Replay, StateMachine,
    Store, VerifyEvent,
};
use stele_log::Tail;
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimOptions, SimVfs};
use stele_vfs::Vfs;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:03}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    Random(u64::from(n)).bytes(300 + n as usize)
}

fn filled(disk: &SimVfs, options: &Options, pairs: u32) -> (Db, Model) {
    let db = open(disk, options).unwrap();
    let mut model = Model::new();
    for n in 0..pairs {
        db.put(&key(n), &value(n)).unwrap();
        model.insert(key(n), value(n));
    }
    (db, model)
}

/// Returns options with which one segment holds everything and nothing is flushed.
fn unflushed() -> Options {
    Options { segment_bytes_max: 1 << 20, memtable_bytes_max: 1 << 20, ..tiny() }
}

fn segment(n: u32) -> PathBuf {
    Path::new(DIR).join("log").join(format!("{n:08x}.seg"))
}

fn find(disk: &SimVfs, path: &Path, value: &[u8]) -> u64 {
    let bytes = disk.read_file(path).unwrap();
    bytes.windows(value.len()).position(|part| part == value).unwrap() as u64
}

fn damages(db: &Db) -> Vec<String> {
    let mut damages = Vec::new();
    db.verify(&mut |event| {
        if let VerifyEvent::Damage { path, detail } = event {
            damages.push(format!("{} {detail}", path.display()));
        }
    })
    .unwrap();
    damages
}

#[test]
fn fault_09_a_power_cut_keeps_what_was_acknowledged() {
    for seed in 0..50 {
        let disk = disk(seed);
        let (db, model) = filled(&disk, &tiny(), 60);
        drop(db);
        let after = disk.restart(seed);
        assert_eq!(difference(&open(&after, &tiny()).unwrap(), &model), None, "seed {seed}");
    }
}

#[test]
fn fault_10_a_torn_last_batch_is_cut_and_said_so() {
    let mut cuts = 0;
    for seed in 0..50 {
        let disk = disk(seed);
        let (db, mut model) = filled(&disk, &unflushed(), 10);
        disk.crash_at(CrashPoint { operation: disk.operations(), at: CrashAt::Inside });
        assert!(db.put(b"torn", &[7; 5000]).is_err());
        drop(db);
        let after = disk.restart(seed);
        let db = open(&after, &unflushed()).unwrap();
        cuts += usize::from(matches!(db.opened().recovery.tail, Tail::TornCut { .. }));
        if db.get(b"torn").unwrap().is_some() {
            model.insert(b"torn".to_vec(), vec![7; 5000]);
        }
        assert_eq!(difference(&db, &model), None, "seed {seed}");
    }
    assert!(cuts > 10, "{cuts} torn batches in 50 power cuts");
}

#[test]
fn fault_11_damage_before_the_tail_is_reported_and_never_cut() {
    let disk = disk(1);
    let (db, model) = filled(&disk, &unflushed(), 30);
    drop(db);
    let at = find(&disk, &segment(1), &value(10));
    let before = disk.read_file(segment(1)).unwrap();
    disk.inject(Fault::FlipBit { path: segment(1), offset: at + 5, bit: 3 }).unwrap();
    let error = open(&disk, &unflushed()).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if *path == segment(1)), "{error}");
    // Nothing was truncated: with the bit flipped back, everything is present.
    disk.inject(Fault::FlipBit { path: segment(1), offset: at + 5, bit: 3 }).unwrap();
    assert_eq!(disk.read_file(segment(1)).unwrap(), before);
    assert_eq!(difference(&open(&disk, &unflushed()).unwrap(), &model), None);
}

#[test]
fn fault_12_a_damaged_last_batch_is_told_from_a_torn_one_once_confirmed() {
    for confirmed in [true, false] {
        let disk = disk(1);
        let (db, _) = filled(&disk, &unflushed(), 10);
        if confirmed {
            db.close().unwrap();
        } else {
            drop(db);
        }
        let at = find(&disk, &segment(1), &value(9));
        disk.inject(Fault::FlipBit { path: segment(1), offset: at, bit: 0 }).unwrap();
        match open(&disk, &unflushed()) {
            Err(Error::Corrupt { path, .. }) => assert!(confirmed && path == segment(1)),
            Ok(db) => {
                let tail = db.opened().recovery.tail;
                assert!(!confirmed);
                assert!(matches!(tail, Tail::TornCut { uncertain: true, .. }), "{tail:?}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn fault_13_a_flipped_bit_in_a_value_is_never_served() {
    let disk = disk(1);
    let (db, model) = filled(&disk, &tiny(), 100);
    db.flush().unwrap();
    let at = find(&disk, &segment(1), &value(3));
    disk.inject(Fault::FlipBit { path: segment(1), offset: at + 100, bit: 1 }).unwrap();
    let error = db.get(&key(3)).unwrap_err();
    assert!(matches!(&error, Error::Corrupt { path, .. } if *path == segment(1)), "{error}");
    for (key, value) in model.iter().filter(|(k, _)| **k != self::key(3)) {
        assert_eq!(db.get(key).unwrap().unwrap(), value[..]);
    }
    let scan: Result<Vec<_>, _> = db.iter(KeyRange::all(), Order::Forward).unwrap().collect();
    assert!(scan.is_err_and(|error| error.is_damage()));
    let found = damages(&db);
    assert!(found.iter().any(|line| line.contains("00000001.seg")), "{found:?}");
}

#[test]
fn fault_13_a_wrong_read_of_a_good_value_is_read_again() {
    let disk = disk(1);
    let (db, _) = filled(&disk, &tiny(), 20);
    disk.inject(Fault::ReadFlipsOnce { path_contains: ".seg".into(), nth: 1 }).unwrap();
    assert_eq!(db.get(&key(3)).unwrap().unwrap(), value(3));
}

#[test]
fn fault_14_and_16_a_misdirected_or_lost_write_is_noticed_and_never_served() {
    for fault in [Fault::MisdirectWrite { nth: 1 }, Fault::LoseWrite { nth: 1 }] {
        let disk = disk(1);
        let (db, _) = filled(&disk, &unflushed(), 10);
        disk.inject(fault.clone()).unwrap();
        db.put(b"astray", &[7; 700]).unwrap();
        db.put(b"later", &[8; 700]).unwrap();
        if let Ok(read) = db.get(b"astray") {
            assert_eq!(read.as_deref(), Some(&[7; 700][..]));
        }
        drop(db);
        match open(&disk.restart(1), &unflushed()) {
            Err(error) => assert!(error.is_damage(), "{fault:?}: {error}"),
            Ok(_) => panic!("{fault:?} went unnoticed"),
        }
    }
}

#[test]
fn fault_17_a_failed_sync_stops_the_store_and_is_never_retried() {
    let disk = disk(1);
    let (db, model) = filled(&disk, &unflushed(), 10);
    disk.inject(Fault::SyncFails { path_contains: "/log/".into(), nth: 1 }).unwrap();
    assert!(matches!(db.put(b"k", b"v"), Err(Error::Io { .. } | Error::Poisoned(_))));
    let operations = disk.operations();
    assert!(matches!(db.put(b"k", b"v"), Err(Error::Poisoned(_))));
    assert!(matches!(db.delete(b"k"), Err(Error::Poisoned(_))));
    assert_eq!(disk.operations(), operations, "a stopped store touched the device");
    assert_eq!(db.get(&key(3)).unwrap().unwrap(), value(3));
    drop(db);
    let db = open(&disk.restart(1), &unflushed()).unwrap();
    for (key, value) in &model {
        assert_eq!(db.get(key).unwrap().unwrap(), value[..]);
    }
}

#[test]
fn fault_17_a_failed_sync_of_the_manifest_stops_the_store_too() {
    let disk = disk(1);
    let (db, model) = filled(&disk, &tiny(), 40);
    disk.inject(Fault::SyncFails { path_contains: "manifest".into(), nth: 1 }).unwrap();
    let flushed = db.flush().and_then(|()| db.compact());
    assert!(flushed.is_err());
    drop(db);
    assert_eq!(difference(&open(&disk.restart(3), &tiny()).unwrap(), &model), None);
}

#[test]
fn fault_17_a_failed_sync_of_the_maintenance_stops_the_store_for_good() {
    for path in [".run", "manifest"] {
        let disk = disk(1);
        let (db, model) = filled(&disk, &tiny(), 40);
        disk.inject(Fault::SyncFails { path_contains: path.into(), nth: 1 }).unwrap();
        while db.maintain(32 << 10).is_ok() {
            // Until a memtable is full, and its flush fails.
            match db.put(b"k", b"v") {
                Ok(()) => {}
                Err(error) => assert!(matches!(error, Error::Io { .. }), "{path}: {error}"),
            }
        }
        let operations = disk.operations();
        assert!(matches!(db.put(b"k", b"v"), Err(Error::Poisoned(_))), "{path}");
        assert!(matches!(db.maintain(32 << 10), Err(Error::Poisoned(_))), "{path}");
        assert_eq!(disk.operations(), operations, "{path}: a stopped store touched the device");
        assert_eq!(db.get(&key(3)).unwrap().unwrap(), value(3));
        drop(db);
        let db = open(&disk.restart(3), &tiny()).unwrap();
        for (key, value) in &model {
            assert_eq!(db.get(key).unwrap().unwrap(), value[..], "{path}");
        }
    }
}

#[test]
fn fault_18_a_failed_read_is_an_error_and_not_an_absent_key() {
    let disk = disk(1);
    let (db, _) = filled(&disk, &tiny(), 40);
    db.flush().unwrap();
    for nth in 1..3 {
        for part in [".seg", ".run"] {
            disk.inject(Fault::ReadFails { path_contains: part.into(), nth }).unwrap();
            match db.get(&key(5)) {
                Ok(found) => assert_eq!(found.unwrap(), value(5)),
                Err(error) => assert!(matches!(error, Error::Io { .. }), "{error}"),
            }
            disk.clear_faults();
        }
    }
}

#[test]
fn fault_19_a_full_device_refuses_writes_while_reads_deletes_and_collection_go_on() {
    let capacity_bytes = Some(4 << 20);
    let disk = SimVfs::new(SimOptions { seed: 1, capacity_bytes, ..SimOptions::default() });
    let options = Options { reserved_bytes: 1 << 20, ..tiny() };
    let db = open(&disk, &options).unwrap();
    let mut model = Model::new();
    let mut refused = None;
    for n in 0..9000 {
        db.maintain(32 << 10).unwrap();
        match db.put(&key(n), &value(n % 500)) {
            Ok(()) => drop(model.insert(key(n), value(n % 500))),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let refused = refused.expect("a store larger than its device");
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    assert!(model.len() > 2000, "{} pairs fit", model.len());
    assert_eq!(difference(&db, &model), None);
    for n in 0..(model.len() as u32 * 3 / 4) {
        db.delete(&key(n)).unwrap();
        model.remove(&key(n));
        // The background thread would do this in the meantime.
        db.maintain(32 << 10).unwrap();
    }
    db.compact().unwrap();
    for n in 5000..5100 {
        db.put(&key(n), &value(n % 100)).unwrap();
        model.insert(key(n), value(n % 100));
    }
    assert_eq!(difference(&db, &model), None);
    drop(db);
    assert_eq!(difference(&open(&disk.restart(1), &options).unwrap(), &model), None);
}

/// Returns the bytes that GC moves while 100 pairs of 4 KiB are overwritten repeatedly on such a
/// device.
fn moved_bytes(device_bytes: u64, space_slack_bytes: u64) -> u64 {
    let disk = disk(1);
    disk.set_capacity(Some(device_bytes));
    let gc = GcOptions { space_slack_bytes, discover_bytes_min: 0, ..tiny().gc };
    let db = open(&disk, &Options { gc, ..tiny() }).unwrap();
    let mut random = Random(1);
    for _ in 0..2_000 {
        let value = random.bytes(4 << 10);
        db.put(&key(u32::from(value[0]) % 100), &value).unwrap();
        while db.maintain(1 << 20).unwrap().more {}
    }
    db.stats().gc.bytes.relocate
}

#[test]
fn a_small_store_moves_nothing_within_its_slack_which_is_a_64th_of_its_device_at_most() {
    const MIB: u64 = 1 << 20;
    let moved = [(512 * MIB, 0), (512 * MIB, 8 * MIB), (8 * MIB, 8 * MIB)];
    let moved = moved.map(|(device, slack)| moved_bytes(device, slack));
    assert!(moved[0] > 0 && moved[1] == 0 && moved[2] > 0, "{moved:?}");
}

#[test]
fn fault_19_a_range_deleted_on_a_full_device_gives_its_space_back_at_once() {
    let capacity_bytes = Some(4 << 20);
    let disk = SimVfs::new(SimOptions { seed: 1, capacity_bytes, ..SimOptions::default() });
    let gc = GcOptions { flush_interval_s: 0, ..tiny().gc };
    let options = Options { reserved_bytes: 1 << 20, memtable_bytes_max: 1 << 20, gc, ..tiny() };
    let db = open(&disk, &options).unwrap();
    let large = vec![7; 16 << 10];
    let free_bytes = || disk.free_bytes(Path::new(DIR)).unwrap();
    let mut filled = 0;
    while free_bytes() > 1500 << 10 {
        db.put(&key(filled), &large).unwrap();
        filled += 1;
    }
    db.flush().unwrap();
    (filled..filled + 4).for_each(|n| db.put(&key(n), &large).unwrap());
    db.delete_range(&key(0), &key(filled)).unwrap();
    // No flush is due by time or by size: only the range shows that nearly everything is dead.
    for _ in 0..400 {
        db.maintain(32 << 10).unwrap();
    }
    for n in 1000..1000 + filled / 2 {
        db.put(&key(n), &large).unwrap();
    }
}

#[test]
fn fault_19_a_device_that_fills_up_in_a_write_loses_nothing_and_goes_on_after() {
    let disk = disk(1);
    let (db, mut model) = filled(&disk, &tiny(), 150);
    let from_operation = disk.operations();
    disk.inject(Fault::NoSpace { from_operation }).unwrap();
    let mut refused = 0;
    for n in 200..230 {
        match db.put(&key(n), &value(n)) {
            Ok(()) => drop(model.insert(key(n), value(n))),
            Err(Error::NoSpace(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        // Garbage collection may find no room either; it must not stop the store.
        let _ = db.maintain(64 << 10);
    }
    assert!(refused > 0);
    assert_eq!(difference(&db, &model), None);
    disk.clear_faults();
    db.put(b"room again", b"yes").unwrap();
    model.insert(b"room again".to_vec(), b"yes".to_vec());
    db.compact().unwrap();
    assert_eq!(difference(&db, &model), None);
    drop(db);
    assert_eq!(difference(&open(&disk.restart(1), &tiny()).unwrap(), &model), None);
}

#[test]
fn fault_22_names_made_before_a_power_cut_are_there_after_it() {
    // Each seed keeps another part of the names that no directory sync followed.
    for seed in 0..40 {
        let disk = disk(seed);
        let (db, model) = filled(&disk, &tiny(), 400);
        db.flush().unwrap();
        drop(db);
        let names = disk.list(&Path::new(DIR).join("log")).unwrap().len();
        assert!(names > 3, "{names} files are too few for this test");
        assert_eq!(difference(&open(&disk.restart(seed), &tiny()).unwrap(), &model), None);
    }
}

#[test]
fn fault_23_a_missing_segment_is_an_error_at_open_that_names_it() {
    let disk = disk(1);
    let (db, _) = filled(&disk, &tiny(), 300);
    db.flush().unwrap();
    drop(db);
    disk.unlink(&segment(1)).unwrap();
    let error = open(&disk, &tiny()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("00000001"), "{error}");
}

#[test]
fn fault_25_a_lost_manifest_is_made_again_from_the_runs() {
    let disk = disk(1);
    let (db, mut model) = filled(&disk, &tiny(), 120);
    db.flush().unwrap();
    db.delete(&key(7)).unwrap();
    model.remove(&key(7));
    db.compact().unwrap();
    db.put(b"small", b"inline").unwrap();
    model.insert(b"small".to_vec(), b"inline".to_vec());
    db.flush().unwrap();
    drop(db);
    for path in disk.paths().iter().filter(|p| p.to_string_lossy().contains("manifest-")) {
        disk.unlink(path).unwrap();
    }
    let db = open(&disk, &tiny()).unwrap();
    assert!(db.opened().rebuilt.is_some());
    assert_eq!(difference(&db, &model), None);
    db.compact().unwrap();
    assert_eq!(difference(&db, &model), None);
}

#[test]
fn fault_25_a_lost_run_is_missed_and_not_hidden_by_a_manifest_made_of_the_others() {
    let disk = disk(2);
    let (db, mut model) = filled(&disk, &tiny(), 60);
    db.flush().unwrap();
    let older = runs(&disk);
    for n in 100..140 {
        db.put(&key(n), &value(n)).unwrap();
        model.insert(key(n), value(n));
    }
    db.flush().unwrap();
    let newer: Vec<_> = runs(&disk).into_iter().filter(|run| !older.contains(run)).collect();
    drop(db);
    assert!(!older.is_empty() && !newer.is_empty(), "{older:?} {newer:?}");
    for run in runs(&disk) {
        let lost = disk.fork();
        lost.unlink(&run).unwrap();
        let as_replica = lost.fork();
        mark(&as_replica, "node");
        let vfs = Arc::new(as_replica);
        let (dir, options) = (Path::new(DIR), tiny());
        // A replica reports each key that it held as lost, and requests it from the others.
        let replica = Store::open(vfs, clock(), dir, options.clone(), Replay::Committed);
        let (replica, opened) = replica.unwrap();
        assert!(opened.damaged_runs == 1 && replica.has_lost(), "{run:?}");
        let view = replica.view().unwrap();
        for (key, value) in &model {
            match view.get(key) {
                Ok(found) => assert_eq!(found.unwrap().value, value[..], "{run:?}"),
                Err(error) => assert!(error.is_damage(), "{run:?}: {error}"),
            }
        }
        // An embedded store rebuilds all of it from its values, or reports the loss as well.
        match open(&lost, &options) {
            Ok(db) => assert_eq!(difference(&db, &model), None, "{run:?}"),
            Err(error) => assert!(error.is_damage(), "{error}"),
        }
    }
}

fn runs(disk: &SimVfs) -> Vec<PathBuf> {
    let is_run = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "run");
    disk.paths().into_iter().filter(is_run).collect()
}

#[test]
fn fault_25_a_lost_index_is_made_again_from_the_values() {
    let disk = disk(1);
    let options = Options { memtable_bytes_max: 64 << 10, ..tiny() };
    let (db, mut model) = filled(&disk, &options, 120);
    for n in 0..30 {
        db.put(&key(n), &value(n + 500)).unwrap();
        model.insert(key(n), value(n + 500));
    }
    db.delete_range(&key(50), &key(60)).unwrap();
    model.retain(|k, _| *k < key(50) || *k >= key(60));
    db.put(&key(55), b"after the range delete").unwrap();
    model.insert(key(55), b"after the range delete".to_vec());
    db.flush().unwrap();
    drop(db);
    for path in disk.paths().iter().filter(|p| p.to_string_lossy().contains("/index/")) {
        disk.unlink(path).unwrap();
    }
    let db = open(&disk, &options).unwrap();
    assert!(db.opened().rebuilt.is_some());
    assert_eq!(difference(&db, &model), None);
    drop(db);
    let db = open(&disk.restart(5), &options).unwrap();
    assert!(db.opened().rebuilt.is_none());
    assert_eq!(difference(&db, &model), None);
}

#[test]
fn fault_25_an_index_whose_small_values_are_nowhere_else_is_not_guessed() {
    let disk = disk(1);
    let (db, _) = filled(&disk, &tiny(), 300);
    db.put(b"small", b"is in the index").unwrap();
    for round in 0..4 {
        for n in 0..300 {
            db.put(&key(n), &value(n + round)).unwrap();
        }
        db.compact().unwrap();
    }
    let files = db.store().log().files();
    assert!(files.iter().all(|file| file.file.0 != 1), "the first segment was not removed");
    drop(db);
    for path in disk.paths().iter().filter(|p| p.to_string_lossy().contains("/index/")) {
        disk.unlink(path).unwrap();
    }
    let files = disk.paths();
    assert!(open(&disk, &tiny()).unwrap_err().is_damage());
    assert_eq!(disk.paths(), files, "a failed open changed the directory");
}

#[test]
fn fault_27_old_records_in_a_recycled_segment_never_come_back() {
    let mut recycled = 0;
    for seed in 0..30 {
        let disk = disk(seed);
        // Enough space that freed segments are kept beside so few live bytes.
        let gc = GcOptions { space_amp_target: 50.0, space_amp_hard: 50.0, ..tiny().gc };
        let options = Options { recycle_segments_max: 4, gc, ..tiny() };
        let (db, mut model) = filled(&disk, &options, 200);
        for n in 0..200 {
            db.put(&key(n), &value(n + 1)).unwrap();
            model.insert(key(n), value(n + 1));
        }
        // A compaction would keep no freed segment.
        db.store().gc().force(stele_gc::Forced::SortAll).unwrap();
        db.store().gc().force(stele_gc::Forced::Collect).unwrap();
        db.delete_range(b"", b"").unwrap();
        model.clear();
        for n in 0..40 {
            db.put(b"now", &value(n)).unwrap();
            model.insert(b"now".to_vec(), value(n));
        }
        recycled += db.stats().log.recycled;
        disk.crash_at(CrashPoint { operation: disk.operations(), at: CrashAt::Inside });
        let _ = db.put(b"now", &value(39));
        drop(db);
        let db = open(&disk.restart(seed), &options).unwrap();
        assert_eq!(difference(&db, &model), None, "seed {seed}");
    }
    assert!(recycled > 0, "no segment was recycled");
}

#[test]
fn fault_51_collection_interrupted_at_any_slice_loses_and_returns_nothing() {
    for seed in 0..30u64 {
        let disk = disk(seed);
        let (db, mut model) = filled(&disk, &tiny(), 200);
        for n in (0..200).filter(|n| n % 3 == 0) {
            db.delete(&key(n)).unwrap();
            model.remove(&key(n));
        }
        db.flush().unwrap();
        for _ in 0..seed {
            db.maintain(4 << 10).unwrap();
        }
        disk.crash_at(CrashPoint { operation: disk.operations() + seed, at: CrashAt::Inside });
        let _ = db.compact();
        drop(db);
        let db = open(&disk.restart(seed), &tiny()).unwrap();
        assert_eq!(difference(&db, &model), None, "seed {seed}");
    }
}

#[test]
fn fault_52_a_write_that_races_a_relocation_wins() {
    let disk = disk(1);
    let (db, mut model) = filled(&disk, &tiny(), 200);
    db.flush().unwrap();
    for round in 0..60u32 {
        let n = round * 7 % 200;
        db.put(&key(n), &value(n + round)).unwrap();
        model.insert(key(n), value(n + round));
        db.delete(&key((n + 50) % 200)).unwrap();
        model.remove(&key((n + 50) % 200));
        db.maintain(2 << 10).unwrap();
        if round % 20 == 19 {
            db.compact().unwrap();
        }
    }
    assert_eq!(difference(&db, &model), None);
    drop(db);
    assert_eq!(difference(&open(&disk.restart(1), &tiny()).unwrap(), &model), None);
}

#[test]
fn fault_53_a_long_iterator_pins_what_it_may_still_yield_and_frees_it_after() {
    let disk = disk(1);
    let (db, model) = filled(&disk, &tiny(), 200);
    db.flush().unwrap();
    let iter = db.iter(KeyRange::all(), Order::Forward).unwrap();
    db.delete_range(b"", b"").unwrap();
    db.compact().unwrap();
    let pinned = db.stats().engine.disk_bytes;
    assert!(pinned > 60_000, "{pinned} bytes while pinned");
    let found: Model =
        iter.map(|p| p.unwrap()).map(|p| (p.key.to_vec(), p.value.to_vec())).collect();
    assert_eq!(found, model);
    db.compact().unwrap();
    let free = Options::default().recycle_segments_max;
    let left = db.stats().engine.disk_bytes;
    assert!(left < pinned && free > 0, "{left} of {pinned} bytes are left");
    let segments = db.store().log().files().iter().filter(|f| !f.wanted_by_raft).count();
    assert_eq!(segments, 0, "dead files are still there");
}

#[test]
fn fault_06_crashes_during_recovery_are_harmless_however_often() {
    let disk = disk(1);
    let (db, model) = filled(&disk, &tiny(), 100);
    drop(db);
    let mut left = disk.restart(1);
    for round in 0..40 {
        left.crash_at(CrashPoint { operation: round / 4, at: CrashAt::ALL[round as usize % 3] });
        let _ = open(&left, &tiny());
        left = left.restart(round);
    }
    assert_eq!(difference(&open(&left, &tiny()).unwrap(), &model), None);
}

#[test]
fn fault_20_a_stalled_device_delays_and_loses_nothing() {
    let disk = disk(1);
    let time = clock();
    let vfs = Arc::new(disk.clone());
    let db = Db::open_with(vfs, time.clone(), Path::new(DIR), tiny()).unwrap();
    disk.on_stall(move |_| time.advance_seconds(3));
    disk.inject(Fault::Stall { path_contains: "/log/".into(), nth: 4 }).unwrap();
    for n in 0..5 {
        db.put(&key(n), &value(n)).unwrap();
    }
    assert_eq!(disk.stalls(), 1);
    assert_eq!(db.get(&key(1)).unwrap().unwrap(), value(1));
}
