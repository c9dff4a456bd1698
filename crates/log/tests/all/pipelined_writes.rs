//! Long batches are written while they are encoded, in parts of any order: until the last part is
//! written no batch exists.

use crate::common::*;
use stele_log::{FileKind, Log, LogOptions, RecoverFrom};
use stele_simulated_disk::{CrashAt, CrashPoint, Event, Fault, Operation, SimVfs};
use stele_types::{Cause, Error, LogBatch, LogIndex, Record, RegionId};

const VALUE_BYTES: usize = 60_000;

fn options() -> LogOptions {
    LogOptions { segment_bytes_max: 2 << 20, ..crate::common::options() }
}

fn reopen(disk: &SimVfs) -> Log {
    open_with(disk, options(), RecoverFrom::default()).unwrap().0
}

fn long_batch(first: u64, entries: u64) -> LogBatch {
    let record = |index: u64| {
        let key = format!("key-{index}");
        entry(REGION, index, 1, &command(&[(key.as_bytes(), &value(index, VALUE_BYTES))]))
    };
    batch((first..first + entries).map(record).collect())
}

/// Returns a log with a recycled newest segment, and its last entry.
fn recycled(disk: &SimVfs) -> (Log, u64) {
    let log = reopen(disk);
    let mut last = 0;
    while log.stats().segments < 3 {
        log.append(&long_batch(last + 1, 12)).unwrap();
        last += 12;
    }
    truncate(&log, REGION, last).unwrap();
    for info in log.files() {
        if matches!(info.kind, FileKind::Segment { sealed: true, .. }) && !info.wanted_by_raft {
            log.remove(info.file).unwrap();
        }
    }
    while log.stats().recycled == 0 {
        last += 1;
        put(&log, REGION, last, VALUE_BYTES).unwrap();
    }
    (log, last)
}

fn writes(disk: &SimVfs) -> Vec<Event> {
    let events = disk.events().into_iter();
    events.filter(|event| event.cause == Some(Cause::Log)).collect()
}

fn assert_batch(log: &Log, first: u64, entries: u64) {
    (first..first + entries).for_each(|index| assert_put(log, REGION, index, VALUE_BYTES));
}

#[test]
fn a_long_batch_is_written_in_parts_each_byte_once_and_synced_after_the_last() {
    let disk = disk(21);
    let (log, last) = recycled(&disk);
    let before = log.head();
    disk.clear_events();
    let appended = log.append(&long_batch(last + 1, 20)).unwrap();
    let kinds: Vec<Operation> = disk.events().iter().map(|event| event.kind).collect();
    let (sync, parts) = kinds.split_last().unwrap();
    assert_eq!(*sync, Operation::Sync);
    assert!(parts.len() > 3 && parts.iter().all(|kind| *kind == Operation::Write), "{kinds:?}");
    let mut parts = writes(&disk);
    parts.sort_by_key(|part| part.offset);
    let mut at = u64::from(before.offset);
    for part in &parts {
        assert_eq!((part.offset, part.bytes % 512), (at, 0), "each byte is written once");
        at += part.bytes;
    }
    assert_eq!((before.file, at), (appended.head.file, u64::from(appended.head.offset)));
    assert_batch(&log, last + 1, 20);
    put(&log, REGION, last + 21, 100).unwrap();
    disk.crash_now();
    let disk = disk.restart(1);
    let log = reopen(&disk);
    assert_batch(&log, last + 1, 20);
    assert_eq!(log.verify(&mut |_| {}).unwrap().damaged, 0);
}

#[test]
fn one_long_payload_goes_in_parts_too() {
    let disk = disk(22);
    let (log, last) = recycled(&disk);
    disk.clear_events();
    put(&log, REGION, last + 1, 1_000_000).unwrap();
    assert!(writes(&disk).len() > 3);
    assert_put(&log, REGION, last + 1, 1_000_000);
    disk.crash_now();
    assert_put(&reopen(&disk.restart(1)), REGION, last + 1, 1_000_000);
}

#[test]
fn a_power_cut_between_parts_leaves_the_whole_batch_or_nothing() {
    let whole = disk(23);
    let (log, last) = recycled(&whole);
    let from = whole.operations();
    log.append(&long_batch(last + 1, 20)).unwrap();
    let upto = whole.operations();
    drop(log);
    let mut torn = 0;
    for operation in from..upto {
        for (at, seed) in CrashAt::ALL.into_iter().zip(1..) {
            let disk = disk(23);
            let (log, last) = recycled(&disk);
            assert_eq!(disk.operations(), from, "the same run");
            disk.crash_at(CrashPoint { operation, at });
            let acked = log.append(&long_batch(last + 1, 20)).is_ok();
            drop(log);
            let disk = disk.restart(seed * 1000 + operation);
            let log = reopen(&disk);
            assert_put(&log, REGION, last, VALUE_BYTES);
            let found = log.region(REGION).unwrap().last.0;
            assert!(found == last + 20 || (found == last && !acked), "{found} {acked}");
            assert_batch(&log, last + 1, found - last);
            torn += u32::from(found == last);
            // The remains of the torn batch are not a trace of damage.
            put(&log, REGION, found + 1, 100).unwrap();
            drop(log);
            assert_put(&reopen(&disk), REGION, found + 1, 100);
        }
    }
    assert!(torn > 0);
}

#[test]
fn a_batch_refused_after_parts_of_it_were_written_leaves_nothing() {
    let disk = disk(24);
    let (log, last) = recycled(&disk);
    let head = log.head();
    disk.clear_events();
    let mut refused = long_batch(last + 1, 20);
    refused.records.extend(long_batch(last + 22, 1).records);
    assert!(matches!(log.append(&refused), Err(Error::Invalid(_))));
    assert!(!writes(&disk).is_empty(), "parts were in progress");
    assert_eq!((log.head(), log.region(REGION).unwrap().last), (head, LogIndex(last)));
    put(&log, REGION, last + 1, 700).unwrap();
    log.append(&long_batch(last + 2, 20)).unwrap();
    disk.crash_now();
    let log = reopen(&disk.restart(1));
    assert_put(&log, REGION, last + 1, 700);
    assert_batch(&log, last + 2, 20);
}

#[test]
fn a_part_that_fails_stops_the_log() {
    for nth in 1..=4 {
        let disk = disk(25);
        let (log, last) = recycled(&disk);
        disk.inject(Fault::WriteFails { path_contains: ".seg".into(), nth }).unwrap();
        assert!(log.append(&long_batch(last + 1, 20)).is_err());
        assert!(log.poisoned());
        assert!(matches!(put(&log, REGION, last + 1, 100), Err(Error::Poisoned(_))));
        assert_put(&log, REGION, last, VALUE_BYTES);
        drop(log);
        disk.crash_now();
        assert_put(&reopen(&disk.restart(1)), REGION, last, VALUE_BYTES);
    }
}

#[test]
fn a_lost_part_is_damage_once_something_follows() {
    for nth in 1..=4 {
        let disk = disk(26);
        let (log, last) = recycled(&disk);
        disk.inject(Fault::LoseWrite { nth }).unwrap();
        log.append(&long_batch(last + 1, 20)).unwrap();
        put(&log, REGION, last + 21, 100).unwrap();
        drop(log);
        let opened = open_with(&disk, options(), RecoverFrom::default());
        assert!(matches!(opened, Err(Error::Corrupt { .. })), "write {nth}");
    }
}

#[test]
fn a_long_batch_that_replaces_many_entries_says_so() {
    let disk = disk(27);
    let (log, last) = recycled(&disk);
    let other = RegionId(2);
    let small = |index, term| entry(other, index, term, &command(&[(b"k", b"v")]));
    log.append(&batch((1..=3000).map(|index| small(index, 1)).collect())).unwrap();
    disk.clear_events();
    // The withdrawn entries are listed, which takes more memory than estimated from the records.
    let mut records: Vec<Record> = long_batch(last + 1, 12).records;
    records.push(small(1, 2));
    records.extend(long_batch(last + 13, 1).records);
    log.append(&batch(records)).unwrap();
    assert!(writes(&disk).len() > 2);
    assert_eq!(log.region(other).unwrap().last, LogIndex(1));
    assert_batch(&log, last + 1, 13);
    disk.crash_now();
    let log = reopen(&disk.restart(1));
    assert_eq!(log.region(other).unwrap().last, LogIndex(1));
    assert_batch(&log, last + 1, 13);
}
