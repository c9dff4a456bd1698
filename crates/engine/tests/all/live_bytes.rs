//! The estimate of live bytes in statistics and verification, beside the bytes that are read.
use std::path::Path;
use std::sync::Arc;
use stele_engine::{Batch, Db, Options, StateMachine};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::ManualClock;

/// Bytes that a pair takes beside key and value, at most.
const BESIDE_BYTES: u64 = 33;

fn open(disk: &SimVfs) -> Db {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let options = Options { background: false, direct_io: false, ..Options::default() };
    Db::open_with(Arc::new(disk.clone()), clock, Path::new("/store"), options).unwrap()
}

fn write(db: &Db, value_bytes: usize, keys: std::ops::Range<u32>, is_put: bool) {
    let mut batch = Batch::new();
    for n in keys {
        let key = format!("{value_bytes}/{n:06}").into_bytes();
        match is_put {
            true => batch.put(&key, &vec![7; value_bytes]).unwrap(),
            false => batch.delete(&key).unwrap(),
        };
    }
    db.write(batch).unwrap();
}

/// Returns the estimate, which statistics, page and verification share, and the bytes that a
/// verification reads, with the number of keys.
fn live(db: &Db) -> (u64, u64, u64) {
    let estimate = db.stats().engine.live_bytes_estimate;
    let of_page = StateMachine::stats(&**db.store()).live_bytes_estimate;
    let verified = db.verify(&mut |event| drop(event)).unwrap();
    assert_eq!((of_page, verified.live_bytes_estimate), (estimate, estimate));
    (estimate, verified.live_bytes, verified.keys)
}

#[test]
fn statistics_and_verification_state_one_estimate_which_counts_values_of_every_length() {
    let disk = SimVfs::new(SimOptions { seed: 1, ..SimOptions::default() });
    let mut db = open(&disk);
    for value_bytes in [1, 40, 64, 1000, 20_000] {
        write(&db, value_bytes, 0..200, true);
        // In memtables, in runs, and after a restart.
        for step in 0..3 {
            let (estimate, exact, keys) = live(&db);
            assert!(estimate >= exact, "{step}: {estimate} for {exact}");
            assert!(estimate <= exact + BESIDE_BYTES * keys, "{step}: {estimate} for {exact}");
            match step {
                0 => db.flush().unwrap(),
                _ => {
                    db.close().unwrap();
                    db = open(&disk);
                }
            }
        }
    }
    // What deletes in a memtable hide may still count.
    let (before, ..) = live(&db);
    for value_bytes in [1, 40, 64, 1000, 20_000] {
        write(&db, value_bytes, 0..150, false);
    }
    let (estimate, exact, _) = live(&db);
    assert!((exact..=before + 100_000).contains(&estimate), "{estimate} for {exact}");
    db.compact().unwrap();
    let (estimate, exact, keys) = live(&db);
    assert_eq!(keys, 250);
    assert!(estimate >= exact, "{estimate} for {exact}");
    assert!(estimate <= exact + BESIDE_BYTES * keys, "{estimate} for {exact}");
}
