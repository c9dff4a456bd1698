//! Long scans with values that a thread reads ahead: the same pairs, the same checks, and no
//! iterator that waits for a stopped thread.

use crate::common::{disk, open, tiny};
use stele_engine::{Db, Error, KeyRange, Options, Order, Pair, ScanOptions};
use stele_simulated_disk::{Fault, SimVfs};

const PAIRS: u32 = 6000;

fn key(n: u32) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

fn value(n: u32) -> Vec<u8> {
    // Every seventh value is inline in the index.
    if n.is_multiple_of(7) { n.to_be_bytes().repeat(9) } else { n.to_be_bytes().repeat(256) }
}

fn is_right(pair: &Pair, n: u32) -> bool {
    pair.key == key(n) && pair.value == value(n)
}

fn filled(disk: &SimVfs) -> Db {
    let options = Options { background: true, segment_bytes_max: 16 << 20, ..tiny() };
    let db = open(disk, &options).unwrap();
    for from in (0..PAIRS).step_by(100) {
        let mut batch = stele_engine::Batch::new();
        for n in from..from + 100 {
            batch.put(&key(n), &value(n)).unwrap();
        }
        db.write(batch).unwrap();
    }
    db.compact().unwrap();
    db
}

#[test]
fn a_long_scan_yields_every_pair_both_ways_and_many_scans_share_the_thread() {
    let db = filled(&disk(1));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let forward = db.iter(KeyRange::all(), Order::Forward).unwrap();
                assert_eq!(
                    forward.zip(0..).filter(|(p, n)| is_right(p.as_ref().unwrap(), *n)).count(),
                    6000
                );
                let backward = db.iter(KeyRange::all(), Order::Reverse).unwrap();
                let all = backward.zip((0..PAIRS).rev());
                assert_eq!(all.filter(|(p, n)| is_right(p.as_ref().unwrap(), *n)).count(), 6000);
                // Dropped while a slice is being read.
                assert!(
                    db.iter(KeyRange::all(), Order::Forward).unwrap().take(400).all(|p| p.is_ok())
                );
            });
        }
    });
    let all = db.scan(&ScanOptions::new(KeyRange::all(), 5500)).unwrap();
    assert!(all.len() == 5500 && all.iter().zip(0..).all(|(pair, n)| is_right(pair, n)));
}

#[test]
fn an_iterator_outlives_the_thread() {
    let db = filled(&disk(2));
    let mut early = db.iter(KeyRange::all(), Order::Forward).unwrap();
    assert!((0..500).all(|n| is_right(&early.next().unwrap().unwrap(), n)));
    db.close().unwrap();
    assert!((500..PAIRS).all(|n| is_right(&early.next().unwrap().unwrap(), n)));
    assert!(early.next().is_none());
}

#[test]
fn what_is_read_ahead_is_checked_and_read_again() {
    let disk = disk(3);
    let db = filled(&disk);
    for nth in [1, 3, 5, 6] {
        disk.inject(Fault::ReadFlipsOnce { path_contains: ".val".into(), nth }).unwrap();
        let pairs = db.iter(KeyRange::all(), Order::Forward).unwrap().zip(0..);
        assert!(pairs.filter(|(pair, n)| is_right(pair.as_ref().unwrap(), *n)).count() == 6000);
    }
    disk.inject(Fault::ReadFails { path_contains: ".val".into(), nth: 5 }).unwrap();
    let mut good = 0;
    let mut failed = None;
    for pair in db.iter(KeyRange::all(), Order::Forward).unwrap() {
        assert!(failed.is_none(), "something follows an error");
        match pair {
            Ok(pair) => {
                assert!(is_right(&pair, good));
                good += 1;
            }
            Err(error) => failed = Some(error),
        }
    }
    assert!(good > 0 && matches!(failed, Some(Error::Io { .. })), "{good} {failed:?}");
}
