//! Reads that return a wrong bit while a log is opened.

use crate::common::*;
use std::path::PathBuf;
use stele_log::{Log, LogOptions, RecoverFrom, Recovery};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{Error, LogIndex, Result};

const BYTES: usize = 900 << 10;

fn open_long(disk: &SimVfs) -> Result<(Log, Recovery)> {
    let long = LogOptions { segment_bytes_max: 4 << 20, ..options() };
    open_with(disk, long, RecoverFrom::default())
}

/// Creates a log with its head in the middle of a reused segment. Recovery searches the old blocks
/// after the last batch, and then reads that batch once more. Returns the last index and the
/// segment's path.
fn in_reused_blocks(seed: u64) -> (SimVfs, u64, PathBuf) {
    let disk = disk(seed);
    let (log, _) = open_long(&disk).unwrap();
    let mut index = 0;
    while log.stats().segments < 3 {
        index += 1;
        put(&log, REGION, index, BYTES).unwrap();
    }
    truncate(&log, REGION, index).unwrap();
    for info in log.files().iter().filter(|info| !info.wanted_by_raft) {
        log.remove(info.file).unwrap();
    }
    while log.stats().recycled < 1 {
        index += 1;
        put(&log, REGION, index, BYTES).unwrap();
    }
    let path = segment_path(log.head().file);
    (disk, index, path)
}

fn flips(disk: &SimVfs, nth: u64) {
    disk.inject(Fault::ReadFlipsOnce { path_contains: ".seg".into(), nth }).unwrap();
}

#[test]
fn recovery_writes_back_only_a_copy_that_it_checked() {
    let mut refused = 0;
    for seed in 0..4 {
        let (disk, last, path) = in_reused_blocks(seed);
        let before = disk.read_file(&path).unwrap();
        // The second wrong read in succession leaves no copy that matches the checksum.
        for (nth, count) in (1..=12).flat_map(|nth| [(nth, 1), (nth, 2)]) {
            let disk = disk.fork();
            (nth..nth + count).for_each(|nth| flips(&disk, nth));
            if let Err(error) = open_long(&disk) {
                assert!(matches!(error, Error::Corrupt { .. }), "{error}");
                refused += usize::from(error.to_string().contains("two reads of the last batch"));
            }
            disk.clear_faults();
            assert!(disk.read_file(&path).unwrap() == before, "seed {seed}, read {nth}, {count}");
            disk.crash_now();
            let (log, _) = open_long(&disk.restart(seed)).unwrap();
            assert_eq!(log.region(REGION).unwrap().last, LogIndex(last), "seed {seed}, read {nth}");
            assert_put(&log, REGION, last, BYTES);
        }
    }
    assert!(refused > 0, "no second copy was wrong too");
}

#[test]
fn a_wrong_read_cuts_no_acknowledged_batch() {
    let mut opened = 0;
    for seed in 0..20 {
        let disk = disk(seed);
        let (log, _) = open_long(&disk).unwrap();
        (1..=4).for_each(|index| drop(put(&log, REGION, index, 20 << 10).unwrap()));
        drop(log);
        for nth in 1..=6 {
            let disk = disk.fork();
            flips(&disk, nth);
            let Ok((log, _)) = open_long(&disk) else { continue };
            opened += 1;
            let last = log.region(REGION).unwrap().last;
            assert_eq!(last, LogIndex(4), "seed {seed}, read {nth}");
            put(&log, REGION, 5, 100).unwrap();
        }
    }
    assert!(opened > 60, "{opened}");
}
