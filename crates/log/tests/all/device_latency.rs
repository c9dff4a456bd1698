//! Measured times of the device: one write and its sync, and reads that needed the device.

use crate::common::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stele_log::{Log, LogOptions, RecoverFrom};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{LogIndex, ManualClock, RegionId};
use stele_vfs::{DeviceTimer, RealVfs, SystemClock};

const SECOND: u64 = 1_000_000_000;

fn timed(disk: &SimVfs) -> (Log, DeviceTimer, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(100));
    let timer = DeviceTimer::new(clock.clone());
    let options = LogOptions { timer: Some(timer.clone()), ..options() };
    let (log, _) = open_with(disk, options, RecoverFrom::default()).unwrap();
    (log, timer, clock)
}

#[test]
fn the_time_of_a_write_has_no_lock_and_no_maintenance_in_it() {
    let disk = disk(1);
    let (log, timer, clock) = timed(&disk);
    let writes = || timer.times().speed(100 * SECOND).writes;
    (1..=8).for_each(|index| drop(put(&log, RegionId(2), index, 200).unwrap()));
    assert_eq!(writes(), 8);
    let mut index = 0;
    while log.stats().segments < 3 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    let before = writes();
    assert_eq!(before, 8 + index, "a new segment is no write of its own");
    let moved = log.reappend_tails(log.head().file, 1 << 20, &|_| LogIndex(u64::MAX)).unwrap();
    assert!(moved > 0 && writes() == before, "{moved}: {before} and {}", writes());
    log.confirm().unwrap();
    assert_eq!(writes(), before);
    // Another thread holds the log for five seconds.
    let reserved = log.reserve(&batch(Vec::new())).unwrap();
    let waits = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let append = scope.spawn(|| {
            waits.store(true, Ordering::Release);
            put(&log, REGION, index + 1, 100).unwrap();
        });
        while !waits.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(20));
        clock.advance_seconds(5);
        drop(reserved);
        append.join().unwrap();
    });
    assert_eq!(timer.times().write_p99_nanos(105 * SECOND), 0);
}

#[test]
fn a_write_that_takes_long_is_measured_with_the_bytes_of_its_frame() {
    let disk = disk(2);
    let (log, timer, clock) = timed(&disk);
    disk.on_stall(move |_| clock.advance_seconds(1));
    for index in 1..=8 {
        // Its first write, or its sync.
        disk.inject(Fault::Stall { path_contains: ".seg".into(), nth: 1 + index % 2 }).unwrap();
        put(&log, REGION, index, 900).unwrap();
    }
    let speed = timer.times().speed(108 * SECOND);
    assert_eq!((speed.writes, speed.write.fixed_nanos), (8, SECOND));
}

#[test]
fn reads_count_if_they_needed_the_device() {
    let disk = disk(3);
    let (log, timer, _) = timed(&disk);
    let mut places = Vec::new();
    for index in 1..=10 {
        let appended = put(&log, REGION, index, 900).unwrap();
        let entries = log.entries(REGION, LogIndex(index), LogIndex(index + 1), 0).unwrap();
        let command = stele_types::Command::parse(entries[0].payload.clone()).unwrap();
        places.push(command.ops().next().unwrap().locator(appended.payloads[0]).unwrap());
    }
    let reads = || timer.times().speed(100 * SECOND).reads;
    disk.set_cached(true);
    places.iter().for_each(|at| drop(log.get(at).unwrap()));
    assert_eq!(reads(), 0, "the page cache holds them");
    disk.set_cached(false);
    places.iter().for_each(|at| drop(log.get(at).unwrap()));
    assert_eq!(reads(), 10);
    log.read_each(&places, |_, value| drop(value.unwrap()));
    assert_eq!(reads(), 10, "requested before they were awaited");
    for at in &places {
        assert!(log.get_cached(at).unwrap().is_none());
        log.get_missed(at).unwrap();
    }
    assert_eq!(reads(), 20, "they were tried in memory");
    log.read_many_missed(&places).unwrap();
    assert_eq!(reads(), 21, "one of many that are read together");
    drop(log);
    // Nothing of a file that was not open was tried in memory, which holds it.
    disk.set_cached(true);
    for (number, at) in places.iter().cycle().take(20).enumerate() {
        let options = LogOptions { timer: Some(timer.clone()), ..options() };
        let (log, _) = open_with(&disk, options, RecoverFrom::default()).unwrap();
        match number % 2 {
            0 => drop(log.get_missed(at).unwrap()),
            _ => drop(log.read_many_missed(&[*at, places[0]]).unwrap()),
        }
    }
    assert_eq!(reads(), 21);
}

#[test]
fn a_real_file_has_the_time_of_its_own_write() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("log-times");
    // Left by an earlier run.
    let _ = std::fs::remove_dir_all(&dir);
    let timer = DeviceTimer::new(Arc::new(SystemClock::new()));
    let options =
        LogOptions { timer: Some(timer.clone()), segment_bytes_max: 1 << 20, ..options() };
    let (log, _) =
        Log::open(Arc::new(RealVfs::new()), &dir, options, RecoverFrom::default()).unwrap();
    let held = Duration::from_millis(400);
    std::thread::scope(|scope| {
        let reserved = log.reserve(&batch(Vec::new())).unwrap();
        let append = scope.spawn(|| {
            (1..=8).for_each(|index| drop(put(&log, REGION, index, 4000).unwrap()));
        });
        std::thread::sleep(held);
        drop(reserved);
        append.join().unwrap();
    });
    let speed = timer.times().speed(timer.clock().monotonic_nanos());
    assert_eq!(speed.writes, 8);
    let nanos = speed.write.nanos(4000);
    assert!(nanos > 0 && u128::from(nanos) < held.as_nanos() / 2, "{speed:?}");
    drop(log);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_measurement_is_a_synced_write_that_leaves_the_log_as_it_is() {
    let disk = disk(4);
    let (log, timer, _) = timed(&disk);
    assert!(!log.measure().unwrap(), "there is no batch to confirm");
    (1..=3).for_each(|index| drop(put(&log, REGION, index, 200).unwrap()));
    let (head, syncs) = (log.head(), log.stats().syncs);
    for count in 1..=8 {
        assert!(log.measure().unwrap());
        assert_eq!(log.stats().syncs, syncs + count);
    }
    assert_eq!(log.head(), head);
    assert_eq!(timer.times().speed(100 * SECOND).writes, 11);
    put(&log, REGION, 4, 200).unwrap();
    log.measure().unwrap();
    drop(log);
    // A crash at the end of a measurement, or in it, loses no entry.
    let (log, _) = open_with(&disk.restart(5), options(), RecoverFrom::default()).unwrap();
    put(&log, REGION, 5, 200).unwrap();
    assert_eq!(log.region(REGION).unwrap().last, LogIndex(5));
}
