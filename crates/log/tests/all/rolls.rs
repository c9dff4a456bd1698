//! Failures while a segment is sealed and the next one begins.

use crate::common::*;
use stele_log::{Log, LogOptions, RecoverFrom};
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_types::{Error, FileId, HardState, LogIndex, Mark, Record, RegionId, Term};
use stele_vfs::Vfs;

/// Enough that the regions which a segment begins with fill more than one chunk of its sidecar.
const REGIONS: u64 = 7_000;
const BYTES: usize = 40 << 10;

fn long() -> LogOptions {
    LogOptions { segment_bytes_max: 1 << 20, ..options() }
}

fn open_long(disk: &SimVfs) -> Log {
    open_with(disk, long(), RecoverFrom::default()).unwrap().0
}

fn many_regions(seed: u64) -> (SimVfs, Log) {
    let disk = disk(seed);
    let log = open_long(&disk);
    let state = HardState { term: Term(u64::MAX / 3), vote: u64::MAX / 5, commit: LogIndex(0) };
    let records = (1..=REGIONS).map(|id| Record::HardState(RegionId(id), state)).collect();
    log.append(&batch(records)).unwrap();
    (disk, log)
}

/// Appends until `rolls` segments were begun after the first. Returns the last index.
fn append_until(log: &Log, rolls: u64) -> u64 {
    let mut index = log.region(REGION).map_or(0, |region| region.last.0);
    while log.stats().rolls < rolls {
        index += 1;
        put(log, REGION, index, BYTES).unwrap();
    }
    index
}

fn name(file: u32) -> String {
    format!("{file:08x}.side")
}

#[test]
fn a_new_segment_whose_sidecar_cannot_be_written_takes_the_appends() {
    let faults: [fn(String) -> Fault; 2] = [
        |path_contains| Fault::NoRoomOnce { path_contains, nth: 1 },
        |path_contains| Fault::WriteFails { path_contains, nth: 1 },
    ];
    for (seed, fault) in (0..).zip(faults) {
        let (disk, log) = many_regions(seed);
        disk.inject(fault(name(2))).unwrap();
        let first = append_until(&log, 1);
        assert_eq!(log.head().file, FileId(2));
        put(&log, REGION, first + 1, BYTES).unwrap();
        let acknowledged = disk.restart(seed);
        let reopened = open_long(&acknowledged);
        (1..=first + 1).for_each(|index| assert_put(&reopened, REGION, index, BYTES));
        let last = append_until(&log, 3);
        assert!(!log.poisoned());
        assert_eq!(disk.file_bytes(sidecar_path(FileId(2))), None, "the fault was met");
        assert!(disk.file_bytes(sidecar_path(FileId(1))).is_some());
        let sealed = log.files().into_iter().find(|info| info.file == FileId(2)).unwrap();
        assert!(sealed.payload_bytes > 15 * BYTES as u64 && sealed.payload_bytes < sealed.bytes);
        drop(log);
        disk.crash_now();
        let log = open_long(&disk.restart(seed));
        (1..=last).for_each(|index| assert_put(&log, REGION, index, BYTES));
        assert_eq!(log.regions().len() as u64, REGIONS);
    }
}

#[test]
fn no_failure_of_a_sidecar_stops_the_log_or_keeps_it_from_opening() {
    let faults: [fn(String, u64) -> Fault; 3] = [
        |path_contains, nth| Fault::NoRoomOnce { path_contains, nth },
        |path_contains, nth| Fault::WriteFails { path_contains, nth },
        |path_contains, _| Fault::SyncFails { path_contains, nth: 1 },
    ];
    for fault in faults {
        for nth in 1..=4 {
            let (disk, log) = many_regions(nth);
            // The sidecar's header and its first part are written already.
            disk.inject(fault(name(1), nth.div_ceil(2))).unwrap();
            let last = append_until(&log, 2);
            put(&log, REGION, last + 1, BYTES).unwrap();
            assert!(!log.poisoned());
            assert_eq!(disk.file_bytes(sidecar_path(FileId(1))), None, "the fault was met");
            drop(log);
            disk.crash_now();
            let disk = disk.restart(nth);
            // Recovery scans the segment and tries to write its sidecar.
            disk.inject(fault(name(1), nth)).unwrap();
            let log = open_long(&disk);
            assert_eq!(disk.file_bytes(sidecar_path(FileId(1))), None, "the fault was met");
            (1..=last + 1).for_each(|index| assert_put(&log, REGION, index, BYTES));
            put(&log, REGION, last + 2, BYTES).unwrap();
            drop(log);
            let log = open_long(&disk);
            assert!(disk.file_bytes(sidecar_path(FileId(1))).is_some(), "written at last");
            assert_put(&log, REGION, last + 2, BYTES);
        }
    }
}

#[test]
fn a_new_segment_without_room_for_its_name_is_refused_and_begun_later() {
    let (disk, log) = many_regions(1);
    disk.inject(Fault::NoRoomForName { path_contains: "00000002.seg".into(), nth: 1 }).unwrap();
    let mut index = 0;
    let refused = loop {
        index += 1;
        if let Err(error) = put(&log, REGION, index, BYTES) {
            break error;
        }
    };
    assert!(matches!(refused, Error::NoSpace(_)) && !log.poisoned(), "{refused}");
    let is_free = |entry: &stele_vfs::DirEntry| entry.name.starts_with("free-");
    assert!(
        !disk.list(std::path::Path::new(DIR)).unwrap().iter().any(is_free),
        "it takes no space"
    );
    put(&log, REGION, index, BYTES).unwrap();
    drop(log);
    disk.crash_now();
    let log = open_long(&disk.restart(1));
    (1..=index).for_each(|index| assert_put(&log, REGION, index, BYTES));
}

#[test]
fn a_new_segment_whose_name_is_in_doubt_stops_the_log_and_loses_nothing() {
    for seed in 0..16 {
        let (disk, log) = many_regions(seed);
        disk.inject(Fault::RenameFails { path_contains: "00000002.seg".into(), nth: 1 }).unwrap();
        let mut index = 0;
        while put(&log, REGION, index + 1, BYTES).is_ok() {
            index += 1;
        }
        assert!(log.poisoned(), "it may end the old segment");
        drop(log);
        disk.crash_now();
        let log = open_long(&disk.restart(seed));
        (1..=index).for_each(|index| assert_put(&log, REGION, index, BYTES));
        put(&log, REGION, index + 1, BYTES).unwrap();
    }
}

#[test]
fn a_new_segment_is_zeroes_where_the_device_has_them_and_room_for_many() {
    const SEGMENT: u64 = 16 << 10;
    let fill = |disk: &SimVfs| {
        let (log, _) = open(disk);
        (1..=60).for_each(|index| drop(put(&log, REGION, index, 900).unwrap()));
        let stats = log.stats();
        assert!(stats.rolls >= 3 && stats.recycled == 0, "{stats:?}");
        // The first batch of a segment.
        let mut last = 60;
        while log.stats().rolls == stats.rolls {
            last += 1;
            put(&log, REGION, last, 900).unwrap();
        }
        let stats = log.stats();
        let head = disk.file_bytes(segment_path(log.head().file)).unwrap();
        drop(log);
        disk.crash_now();
        let disk = disk.restart(9);
        let (log, _) = open(&disk);
        (1..=last).for_each(|index| assert_put(&log, REGION, index, 900));
        // What was removed is reused before new blocks are taken.
        truncate(&log, REGION, last).unwrap();
        log.remove(FileId(2)).unwrap();
        (last + 1..=last + 20).for_each(|index| drop(put(&log, REGION, index, 900).unwrap()));
        assert_eq!(log.stats().recycled, 1);
        (stats.zeroed == stats.rolls, stats.zeroed, head)
    };
    let (is_all, _, head) = fill(&zeroing_disk(1));
    assert!(is_all && head == SEGMENT, "{head}");
    let (_, zeroed, head) = fill(&disk(1));
    assert!(zeroed == 0 && head < SEGMENT, "{head}");
    // With less room than for many the segment grows, and the device is full later.
    let options = SimOptions { seed: 1, block_bytes: Some(512), ..SimOptions::default() };
    let capacity_bytes = Some(15 * SEGMENT);
    let small = SimVfs::new(SimOptions { writes_zeroes: true, capacity_bytes, ..options });
    assert_eq!(fill(&small).1, 0);
}

fn keys_with(log: &Log, prefix: &[u8]) -> usize {
    let mut count = 0;
    log.scan_versions(&mut |op| {
        if let stele_log::ReplayOp::Put { key, .. } = op.op {
            count += usize::from(key.starts_with(prefix));
        }
        Ok(())
    })
    .unwrap();
    count
}

#[test]
fn a_destroyed_region_is_forgotten_once_no_segment_holds_its_records() {
    const GONE: RegionId = RegionId(7);
    let disk = disk(5);
    let (log, _) = open(&disk);
    let command = command(&[(b"gone", &value(1, 100))]);
    log.append(&batch(vec![entry(GONE, 1, 1, &command)])).unwrap();
    log.append(&batch(vec![Record::Mark(GONE, Mark::Destroy)])).unwrap();
    let mut index = 0;
    let mut fill = |log: &Log, segments: usize| {
        while log.stats().segments < segments {
            index += 1;
            put(log, REGION, index, 900).unwrap();
        }
        index
    };
    let last = fill(&log, 4);
    assert!(log.region(GONE).unwrap().destroyed, "its records are there");
    assert_eq!(keys_with(&log, b"gone"), 0, "a rebuild restores nothing of it");
    drop(log);
    let (log, _) = open(&disk);
    assert!(log.region(GONE).unwrap().destroyed);
    assert_eq!(keys_with(&log, b"gone"), 0);
    truncate(&log, REGION, last).unwrap();
    log.remove(FileId(1)).unwrap();
    assert!(log.region(GONE).is_some(), "until the next segment");
    let last = fill(&log, 4);
    assert_eq!(log.regions(), [REGION]);
    assert_eq!(keys_with(&log, b"gone"), 0);
    truncate(&log, REGION, last).unwrap();
    let newest = log.head().file;
    drop(log);
    let from = RecoverFrom { raft_from: newest, ..RecoverFrom::default() };
    let (log, _) = open_with(&disk, options(), from).unwrap();
    assert_eq!(log.regions(), [REGION]);
    // It may come back.
    let start = Record::Mark(GONE, Mark::Start(LogIndex(3), Term(2)));
    log.append(&batch(vec![start])).unwrap();
    put(&log, GONE, 4, 100).unwrap();
    drop(log);
    assert_put(&open(&disk).0, GONE, 4, 100);
}
