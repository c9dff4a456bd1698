//! Writes to the device: each byte once, one write and one sync per batch, whole blocks.

use crate::common::*;
use std::path::Path;
use stele_log::{LogOptions, RecoverFrom, Tail};
use stele_simulated_disk::{Fault, Operation};
use stele_types::{Cause, Command, CommandBuilder, Error, LogIndex, Mark, Record, RegionId, Term};
use stele_vfs::Vfs;

fn puts(count: u64, bytes: usize) -> (Command, u64) {
    let mut builder = CommandBuilder::new();
    let mut payload = 0;
    for n in 0..count {
        let key = format!("key-{n:012}");
        builder.put(key.as_bytes(), &value(n, bytes), 0).unwrap();
        payload += (key.len() + bytes) as u64;
    }
    (builder.build(), payload)
}

#[test]
fn a_value_is_written_exactly_once_by_one_write_and_one_sync() {
    let disk = disk(1);
    disk.record_writes(true);
    let (log, _) = open(&disk);
    let marker = value(123_456, 700);
    for index in 1..=3 {
        put(&log, REGION, index, 900).unwrap();
    }
    disk.clear_events();
    let records = (1..=5).map(|region| {
        let key = format!("key-{region}");
        let bytes = if region == 3 { marker.clone() } else { value(region, 300) };
        entry(RegionId(10 + region), 1, 1, &command(&[(key.as_bytes(), &bytes)]))
    });
    log.append(&batch(records.collect())).unwrap();
    let events = disk.events();
    let kinds: Vec<Operation> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [Operation::Write, Operation::Sync], "five regions, one write, one sync");
    let mut index = 3;
    while log.stats().segments < 6 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    log.close().unwrap();
    drop(log);
    let (log, _) = open(&disk);
    log.confirm().unwrap();
    let writes = disk.events().into_iter().filter_map(|event| event.data);
    let holding = writes.filter(|data| data.windows(marker.len()).any(|part| part == marker));
    assert_eq!(holding.count(), 1, "the value's bytes appear in exactly one write");
}

#[test]
fn durable_blocks_are_never_written_again_and_writes_are_whole_blocks() {
    let disk = disk(2);
    let (log, _) = open(&disk);
    let mut durable = log.head();
    for index in 1..=60 {
        disk.clear_events();
        put(&log, REGION, index, 350).unwrap();
        if index % 5 == 0 {
            log.confirm().unwrap();
        }
        for event in disk.events().iter().filter(|event| event.cause == Some(Cause::Log)) {
            assert!(event.offset % 512 == 0 && event.bytes % 512 == 0);
            let same = event.path == segment_path(durable.file);
            assert!(!same || event.offset >= u64::from(durable.offset), "{event:?} {durable}");
        }
        durable = log.head();
    }
}

#[test]
fn foreground_bytes_stay_within_two_percent_of_the_payload() {
    for (entries, puts_each, bytes, most) in
        [(1, 32, 1024, 1.02), (1, 64, 1024, 1.02), (64, 1, 1024, 1.03), (1, 1, 16 << 10, 1.04)]
    {
        let disk = disk(3);
        let mut options = options();
        options.segment_bytes_max = 64 << 20;
        let (log, _) = open_with(&disk, options, RecoverFrom::default()).unwrap();
        let before = disk.meter().snapshot();
        let mut payload = 0;
        let mut index = 0;
        for _ in 0..40 {
            let records = (0..entries).map(|_| {
                index += 1;
                let (command, bytes) = puts(puts_each, bytes);
                payload += bytes;
                entry(REGION, index, 1, &command)
            });
            log.append(&batch(records.collect())).unwrap();
        }
        let written = disk.meter().snapshot().since(&before).bytes(Cause::Log);
        let ratio = written as f64 / payload as f64;
        println!("{entries} x {puts_each} x {bytes}: {ratio:.4}");
        assert!(ratio <= most, "{entries} x {puts_each} x {bytes}: {ratio}");
        assert!(log.region(REGION).unwrap().last == LogIndex(index));
    }
}

#[test]
fn sidecars_cost_a_few_percent() {
    let disk = disk(4);
    let mut options = options();
    options.segment_bytes_max = 1 << 20;
    let (log, _) = open_with(&disk, options, RecoverFrom::default()).unwrap();
    let (command, _) = puts(32, 1024);
    for index in 1..=200 {
        log.append(&batch(vec![entry(REGION, index, 1, &command)])).unwrap();
    }
    let meter = disk.meter().snapshot();
    let ratio = meter.bytes(Cause::Sidecar) as f64 / meter.bytes(Cause::Log) as f64;
    assert!(ratio < 0.04, "{ratio}");
}

#[test]
fn readers_go_on_while_a_sync_is_under_way() {
    let disk = disk(5);
    let (log, _) = open(&disk);
    let log = std::sync::Arc::new(log);
    put(&log, REGION, 1, 500).unwrap();
    let reader = log.clone();
    let begun = std::sync::Arc::new(std::sync::Mutex::new(0));
    let count = begun.clone();
    disk.on_stall(move |_| {
        assert_put(&reader, REGION, 1, 500);
        assert!(reader.region(REGION).unwrap().last == LogIndex(1), "not durable, not visible");
        reader.files();
        reader.stats();
        *count.lock().unwrap() += 1;
    });
    disk.inject(stele_simulated_disk::Fault::Stall { path_contains: ".seg".into(), nth: 2 })
        .unwrap();
    put(&log, REGION, 2, 500).unwrap();
    assert_eq!(*begun.lock().unwrap(), 1);
    assert_put(&log, REGION, 2, 500);
}

#[test]
fn long_batches_end_at_pages_and_short_ones_at_blocks() {
    let disk = disk(7);
    let options = || LogOptions { segment_bytes_max: 8 << 20, ..options() };
    let (log, _) = open_with(&disk, options(), RecoverFrom::default()).unwrap();
    let mut places = Vec::new();
    // Around the sizes at which payloads are checksummed in pieces, and frames are filled.
    let sizes = [100, 2047, 2048, 8191, 8192, 8193, 262_000, 263_000, 300_000];
    for (index, bytes) in (1..).zip(sizes) {
        let command = command(&[(b"key", &value(index, bytes))]);
        let records = vec![entry(REGION, index, 1, &command)];
        let before = log.head().offset;
        let appended = log.append(&batch(records)).unwrap();
        let end = appended.head.offset;
        let filled = bytes >= 262_144;
        assert_eq!(end % if filled { 4096 } else { 512 }, 0, "{bytes} bytes");
        assert!(((end - before) as usize) < bytes + 200 + if filled { 4096 } else { 512 });
        let op = command.ops().next().unwrap();
        places.push((op.locator(appended.payloads[0]).unwrap(), value(index, bytes)));
    }
    assert_eq!(log.verify(&mut |_| {}).unwrap().damaged, 0);
    disk.crash_now();
    let disk = disk.restart(1);
    let (log, recovery) = open_with(&disk, options(), RecoverFrom::default()).unwrap();
    assert_eq!(recovery.tail, Tail::Clean);
    for (at, value) in &places {
        assert_eq!(&log.get(at).unwrap(), value);
    }
    assert_eq!(log.region(REGION).unwrap().last, LogIndex(sizes.len() as u64));
    put(&log, REGION, sizes.len() as u64 + 1, 100).unwrap();
}

#[test]
fn dropped_free_segments_leave_the_device_and_the_log_goes_on() {
    let disk = disk(40);
    let (log, _) = open(&disk);
    let mut index = 0;
    while log.stats().segments < 3 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    truncate(&log, REGION, index).unwrap();
    let freed = log.files();
    freed
        .iter()
        .filter(|info| !info.wanted_by_raft)
        .for_each(|info| log.remove(info.file).unwrap());
    let free = || {
        let entries = disk.list(Path::new(DIR)).unwrap();
        let is_free = |name: &str| name.starts_with("free-");
        entries.iter().filter(|entry| is_free(&entry.name)).map(|entry| entry.bytes).sum::<u64>()
    };
    let (count, bytes) = (log.stats().free_segments, free());
    assert!(count == 2 && bytes > 0);
    assert_eq!(log.drop_free(9).unwrap(), bytes);
    assert_eq!((log.stats().free_segments, free()), (0, 0));
    let recycled = log.stats().recycled;
    for _ in 0..40 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    assert_eq!(log.stats().recycled, recycled, "there was nothing to reuse");
    // Their names may reappear after a crash: then they are free again.
    let left = disk.restart(3);
    let (log, _) = open(&left);
    assert_put(&log, REGION, index, 900);
    while log.stats().rolls < 4 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    assert_put(&log, REGION, index, 900);
}

#[test]
fn the_memory_of_a_long_batch_is_kept_for_the_next_and_goes_with_a_short_one() {
    const LONG: usize = 12 << 20;
    let options = LogOptions { segment_bytes_max: 64 << 20, ..options() };
    let (log, _) = open_with(&disk(1), options, RecoverFrom::default()).unwrap();
    put(&log, REGION, 1, 900).unwrap();
    let before = log.stats().memory_bytes;
    for index in [2, 3] {
        put(&log, REGION, index, LONG).unwrap();
        let kept = (log.stats().memory_bytes - before) as usize;
        assert!((LONG..=2 * LONG).contains(&kept), "{kept} bytes kept after batch {index}");
    }
    put(&log, REGION, 4, 900).unwrap();
    let kept = log.stats().memory_bytes - before;
    assert!(kept <= 4 << 20, "{kept} bytes kept after a short batch");
    assert_put(&log, REGION, 3, LONG);
}

#[test]
fn a_batch_that_room_was_made_for_is_written_on_a_device_that_is_full_by_then() {
    let disk = disk(1);
    let (log, _) = open(&disk);
    // Also where the batch begins a segment.
    for index in 1..=60 {
        let mark = batch(vec![Record::Mark(RegionId(9), Mark::Start(LogIndex(index), Term(1)))]);
        let reserved = log.reserve(&mark).unwrap();
        let from_operation = disk.operations();
        disk.inject(Fault::NoSpace { from_operation }).unwrap();
        reserved.append(&mark).unwrap();
        disk.clear_faults();
        put(&log, REGION, index, 900).unwrap();
    }
    assert!(log.stats().rolls > 1);
    let from_operation = disk.operations();
    disk.inject(Fault::NoSpace { from_operation }).unwrap();
    // Space reserved for a batch and not needed by it is available to others.
    let full = (61..).find(|index| put(&log, REGION, *index, 900).is_err());
    assert!(full.is_some_and(|index| index < 70), "{full:?}");
    let mark = batch(vec![Record::Mark(RegionId(9), Mark::Start(LogIndex(90), Term(1)))]);
    let refused = log.reserve(&mark);
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
}
