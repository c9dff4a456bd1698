//! The disk faults of the catalogue that affect the log: damage is reported, never served and
//! never truncated like a torn tail.

use crate::common::*;
use std::path::Path;
use stele_log::{Log, LogOptions, RecoverFrom, Tail};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{
    Cause, Error, FileId, HardState, Locator, LogIndex, Lsn, Mark, Record, RegionId, StoreId, Term,
};

/// Ten entries in one segment; returns the position of each payload, and the head.
fn ten(seed: u64) -> (SimVfs, Vec<Lsn>, Lsn) {
    let disk = disk(seed);
    let (log, _) = open(&disk);
    let places = (1..=10).map(|i| put(&log, REGION, i, 600).unwrap().payloads[0]).collect();
    let head = log.head();
    (disk, places, head)
}

fn flip(disk: &SimVfs, at: Lsn, delta: u64) {
    let (path, offset) = (segment_path(at.file), u64::from(at.offset) + delta);
    disk.inject(Fault::FlipBit { path, offset, bit: 3 }).unwrap();
}

fn fill(log: &Log, segments: usize) -> u64 {
    let mut index = log.region(REGION).map_or(0, |region| region.last.0);
    while log.stats().segments < segments {
        index += 1;
        put(log, REGION, index, 900).unwrap();
    }
    index
}

#[test]
fn fault_10_a_torn_tail_record_is_cut_and_the_log_goes_on() {
    for seed in 0..40 {
        let (disk, _, head) = ten(seed);
        let (log, _) = open(&disk);
        disk.crash_at(stele_simulated_disk::CrashPoint {
            operation: disk.operations(),
            at: stele_simulated_disk::CrashAt::Inside,
        });
        assert!(put(&log, REGION, 11, 5000).is_err());
        let disk = disk.restart(seed);
        let (log, recovery) = open(&disk);
        let last = log.region(REGION).unwrap().last;
        if last == LogIndex(10) {
            assert_eq!(log.head(), head);
            if let Tail::TornCut { from, .. } = recovery.tail {
                assert_eq!(from, head);
            }
        }
        put(&log, REGION, last.0 + 1, 700).unwrap();
        drop(log);
        let (log, recovery) = open(&disk);
        assert_eq!(recovery.tail, Tail::Clean, "a truncated batch leaves no trace");
        (1..=10).for_each(|index| assert_put(&log, REGION, index, 600));
    }
}

#[test]
fn fault_11_damage_in_the_middle_is_reported_and_never_cut() {
    for (victim, delta) in [(4, 100), (0, 0), (8, 599)] {
        let (disk, places, head) = ten(1);
        flip(&disk, places[victim], delta);
        let before = disk.file_bytes(segment_path(head.file));
        let Error::Corrupt { path, offset, .. } = refused(&disk) else { panic!() };
        assert_eq!(path, segment_path(head.file));
        assert!(offset <= u64::from(places[victim].offset));
        assert!(offset + 512 > u64::from(places[victim].offset));
        assert_eq!(disk.file_bytes(segment_path(head.file)), before, "nothing was truncated");
        flip(&disk, places[victim], delta);
        let (log, _) = open(&disk);
        (1..=10).for_each(|index| assert_put(&log, REGION, index, 600));
    }
}

#[test]
fn fault_12_a_damaged_last_record_is_uncertain_or_known_to_be_damage() {
    let (disk, places, head) = ten(2);
    let unconfirmed = disk.fork();
    flip(&unconfirmed, places[9], 50);
    let (_, recovery) = open(&unconfirmed);
    let Tail::TornCut { from, uncertain, .. } = recovery.tail else { panic!("{recovery:?}") };
    assert!(uncertain && from < head);

    let (log, _) = open(&disk);
    log.confirm().unwrap();
    assert_eq!(log.head(), head, "a confirmation takes no space");
    drop(log);
    let confirmed = disk.fork();
    flip(&confirmed, places[9], 50);
    assert!(matches!(refused(&confirmed), Error::Corrupt { .. }));
    let (log, recovery) = open(&disk);
    assert_eq!((recovery.tail, log.head()), (Tail::Clean, head));
    put(&log, REGION, 11, 600).unwrap();
    drop(log);
    (1..=11).for_each(|index| assert_put(&open(&disk).0, REGION, index, 600));
}

#[test]
fn fault_12_a_batch_the_file_is_too_short_for_was_never_acknowledged() {
    let (disk, _, head) = ten(3);
    let path = segment_path(head.file);
    let mut bytes = disk.read_file(&path).unwrap();
    bytes.truncate(bytes.len() - 512);
    disk.write_file(&path, &bytes);
    let (_, recovery) = open(&disk);
    assert!(matches!(recovery.tail, Tail::TornCut { uncertain: false, .. }), "{recovery:?}");
}

#[test]
fn fault_13_a_flipped_value_is_never_served() {
    let (disk, places, _) = ten(4);
    let (log, _) = open(&disk);
    let command = command(&[(b"key-5", &value(5, 600))]);
    let locator = command.ops().next().unwrap().locator(places[4]).unwrap();
    flip(&disk, places[4], 300);
    let Err(Error::Corrupt { path, offset, .. }) = log.get(&locator) else { panic!() };
    assert_eq!((path, offset), (segment_path(locator.file), u64::from(locator.offset)));
    assert!(log.get_many(&[locator]).is_err());
    assert!(log.entries(REGION, LogIndex(5), LogIndex(6), 1000).is_err());
    assert_put(&log, REGION, 4, 600);
    let mut damages = Vec::new();
    let summary = log
        .verify(&mut |event| {
            if let stele_log::VerifyEvent::Damaged(damage) = event {
                damages.push(damage);
            }
        })
        .unwrap();
    assert_eq!((summary.damaged, damages.len()), (1, 1), "{damages:?}");
    assert!(summary.records >= 9, "verification continues after damage: {summary:?}");
    assert!(!log.poisoned());
}

#[test]
fn fault_14_a_misdirected_write_is_found() {
    for seed in 0..20 {
        let (disk, ..) = ten(seed);
        let (log, _) = open(&disk);
        disk.inject(Fault::MisdirectWrite { nth: 1 }).unwrap();
        put(&log, REGION, 11, 600).unwrap();
        put(&log, REGION, 12, 600).unwrap();
        drop(log);
        let error = refused(&disk);
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}

#[test]
fn fault_14_a_frame_of_another_place_is_no_frame_here() {
    let (disk, places, head) = ten(5);
    let path = segment_path(head.file);
    let bytes = disk.read_file(&path).unwrap();
    let first = places[0].offset as usize / 512 * 512;
    let second = places[1].offset as usize / 512 * 512;
    assert_eq!(second - first, 1024);
    // The same bytes, one frame further on: content and checksum are those of a whole frame.
    disk.corrupt(&path, second as u64, &bytes[first..second]).unwrap();
    assert!(matches!(refused(&disk), Error::Corrupt { offset, .. } if offset == second as u64));
}

#[test]
fn fault_15_a_wrong_read_is_read_again() {
    // The wrong bit may be outside the value, in the blocks that are read with it.
    let mut retries = 0;
    for seed in 0..10 {
        let (disk, places, _) = ten(seed);
        let (log, _) = open(&disk);
        let command = command(&[(b"key-5", &value(5, 600))]);
        let locator = command.ops().next().unwrap().locator(places[4]).unwrap();
        disk.inject(Fault::ReadFlipsOnce { path_contains: ".seg".into(), nth: 1 }).unwrap();
        assert_eq!(log.get(&locator).unwrap(), value(5, 600));
        retries += log.stats().direct_retries;
    }
    assert!(retries > 0, "no read was repeated");
}

#[test]
fn fault_16_lost_writes_are_found_by_what_follows_them() {
    let (disk, ..) = ten(7);
    let (log, _) = open(&disk);
    disk.inject(Fault::LoseWrite { nth: 1 }).unwrap();
    put(&log, REGION, 11, 600).unwrap();
    put(&log, REGION, 12, 600).unwrap();
    drop(log);
    assert!(matches!(refused(&disk), Error::Corrupt { .. }));
}

#[test]
fn fault_16_a_lost_write_over_an_older_batch_breaks_the_chain() {
    // Truncated twice at the same place, with the second batch's write lost. The first batch's
    // bytes are whole and name this place; only the chain shows that they are not what was
    // acknowledged.
    let (disk, _, head) = ten(8);
    let (log, _) = open(&disk);
    put(&log, REGION, 11, 600).unwrap();
    drop(log);
    let path = segment_path(head.file);
    let old = disk.read_file(&path).unwrap()[head.offset as usize..].to_vec();
    disk.corrupt(&path, u64::from(head.offset), &[0; 1024]).unwrap();
    let (log, _) = open(&disk);
    let other = command(&[(b"other", &value(99, 600))]);
    log.append(&batch(vec![entry(REGION, 11, 1, &other)])).unwrap();
    put(&log, REGION, 12, 600).unwrap();
    drop(log);
    disk.corrupt(&path, u64::from(head.offset), &old).unwrap();
    let Error::Corrupt { offset, detail, .. } = refused(&disk) else { panic!() };
    assert!(offset > u64::from(head.offset) && detail.contains("chained"), "{detail}");
}

#[test]
fn fault_16_a_sealed_segment_that_lost_its_end_is_found() {
    let disk = disk(9);
    let (log, _) = open(&disk);
    fill(&log, 3);
    drop(log);
    let first = FileId(1);
    disk.write_file(sidecar_path(first), b"gone");
    let path = segment_path(first);
    let bytes = disk.read_file(&path).unwrap();
    disk.write_file(&path, &bytes[..bytes.len() - 1536]);
    assert!(matches!(refused(&disk), Error::Corrupt { .. }));
}

#[test]
fn fault_17_a_failed_sync_stops_the_log_for_good() {
    for seed in 0..20 {
        let (disk, ..) = ten(seed);
        let (log, _) = open(&disk);
        disk.inject(Fault::SyncFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
        assert!(matches!(put(&log, REGION, 11, 600), Err(Error::Io { .. })));
        assert!(log.poisoned());
        assert_eq!(log.region(REGION).unwrap().last, LogIndex(10), "never visible");
        for _ in 0..2 {
            assert!(matches!(put(&log, REGION, 11, 600), Err(Error::Poisoned(_))));
            assert!(matches!(log.confirm(), Err(Error::Poisoned(_))));
            assert!(matches!(log.sync(), Err(Error::Poisoned(_))));
        }
        assert!(log.sorted_writer(Cause::Sort).is_err());
        assert_put(&log, REGION, 10, 600);
        drop(log);
        // The process restarts, the machine does not: what recovery reads it must make durable.
        let (log, _) = open(&disk);
        let last = log.region(REGION).unwrap().last;
        drop(log);
        disk.crash_now();
        let (log, _) = open(&disk.restart(seed));
        assert_eq!(log.region(REGION).unwrap().last, last);
        (1..=10).for_each(|index| assert_put(&log, REGION, index, 600));
    }
}

#[test]
fn what_a_restarted_process_finds_unsynced_is_durable_before_it_counts() {
    for seed in 0..20 {
        let (disk, ..) = ten(seed);
        let (log, _) = open(&disk);
        disk.inject(Fault::SyncFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
        let _ = put(&log, REGION, 11, 600);
        drop(log);
        let (log, _) = open(&disk);
        let found = log.region(REGION).unwrap().last;
        assert_eq!(found, LogIndex(11), "the batch is readable");
        disk.crash_now();
        let (log, _) = open(&disk.restart(seed));
        assert_eq!(log.region(REGION).unwrap().last, found);
    }
}

#[test]
fn fault_18_a_failed_read_is_told_and_stops_nothing() {
    let (disk, ..) = ten(10);
    let (log, _) = open(&disk);
    disk.inject(Fault::ReadFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
    let asked = log.entries(REGION, LogIndex(5), LogIndex(6), 1000);
    assert!(matches!(asked, Err(Error::Io { .. })));
    assert!(!log.poisoned());
    assert_put(&log, REGION, 5, 600);
    put(&log, REGION, 11, 600).unwrap();
}

#[test]
fn fault_19_a_full_device_refuses_appends_and_nothing_else() {
    let disk = disk(11);
    let (log, _) = open(&disk);
    for index in 1..=25 {
        put(&log, REGION, index, 900).unwrap();
    }
    disk.inject(Fault::NoSpace { from_operation: disk.operations() }).unwrap();
    let mut refusals = 0;
    let mut last = 25;
    for _ in 0..60 {
        match put(&log, REGION, last + 1, 900) {
            Ok(_) => last += 1,
            Err(Error::NoSpace(_)) => refusals += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refusals > 0 && !log.poisoned());
    let files = log.files().len();
    (1..=last).for_each(|index| assert_put(&log, REGION, index, 900));
    assert!(matches!(
        log.sorted_writer(Cause::Sort).and_then(|mut w| {
            w.append(b"k", Lsn::default(), 0, &[1; 5000])?;
            w.finish()
        }),
        Err(Error::NoSpace(_))
    ));
    assert!(!log.poisoned());
    disk.clear_faults();
    assert_eq!(log.files().len(), files);
    put(&log, REGION, last + 1, 900).unwrap();
    drop(log);
    disk.crash_now();
    let (log, _) = open(&disk.restart(3));
    (1..=last + 1).for_each(|index| assert_put(&log, REGION, index, 900));
    fill(&log, 5);
}

#[test]
fn fault_22_a_failed_directory_sync_stops_the_log() {
    let disk = disk(12);
    let (log, _) = open(&disk);
    disk.inject(Fault::SyncDirFails { path_contains: "log".into(), nth: 1 }).unwrap();
    let refused = (1..=60).find_map(|i| put(&log, REGION, i, 900).err().map(|error| (i, error)));
    let (index, error) = refused.unwrap();
    assert!(matches!(error, Error::Io { .. }) && log.poisoned());
    drop(log);
    disk.crash_now();
    let (log, _) = open(&disk.restart(1));
    (1..index).for_each(|index| assert_put(&log, REGION, index, 900));
}

#[test]
fn fault_23_a_missing_segment_is_told_not_skipped() {
    let disk = disk(13);
    let (log, _) = open(&disk);
    fill(&log, 5);
    let segments: Vec<FileId> = log.files().iter().map(|info| info.file).collect();
    let head = log.head();
    drop(log);
    for victim in &segments[..4] {
        let disk = disk.fork();
        stele_vfs::Vfs::unlink(&disk, &segment_path(*victim)).unwrap();
        assert!(matches!(refused(&disk), Error::Missing { .. }), "without an index");
        let from = RecoverFrom { raft_from: segments[0], ..RecoverFrom::default() };
        let opened = open_with(&disk, options(), from);
        assert!(matches!(opened, Err(Error::Missing { .. })), "with one");
        let from = RecoverFrom {
            checkpoint: head,
            raft_from: segments[4],
            needed: [*victim].into(),
            ..RecoverFrom::default()
        };
        let opened = open_with(&disk, options(), from);
        assert!(matches!(opened, Err(Error::Missing { .. })), "referred to by runs");
    }
    stele_vfs::Vfs::unlink(&disk, &segment_path(segments[4])).unwrap();
    let from = RecoverFrom { checkpoint: head, raft_from: segments[0], ..RecoverFrom::default() };
    let opened = open_with(&disk, options(), from);
    assert!(matches!(opened, Err(Error::Missing { .. })), "the newest, below the checkpoint");
}

#[test]
fn fault_24_a_damaged_hard_state_is_told_and_newer_segments_carry_it() {
    let disk = disk(14);
    let (log, _) = open(&disk);
    let state = HardState { term: Term(9), vote: 3, commit: LogIndex(0) };
    let at = log.head();
    log.append(&batch(vec![Record::HardState(REGION, state)])).unwrap();
    put(&log, REGION, 1, 100).unwrap();
    let other = disk.fork();
    flip(&other, at, 26);
    assert!(matches!(refused(&other), Error::Corrupt { .. }));
    fill(&log, 3);
    let newest = log.head().file;
    let last = log.region(REGION).unwrap().last.0;
    truncate(&log, REGION, last).unwrap();
    drop(log);
    flip(&disk, at, 26);
    let from = RecoverFrom { raft_from: newest, ..RecoverFrom::default() };
    let (log, _) = open_with(&disk, options(), from).unwrap();
    assert_eq!(log.region(REGION).unwrap().hard_state, state);
}

#[test]
fn fault_27_a_recycled_segments_old_records_are_not_its_own() {
    let disk = disk(15);
    let (log, _) = open(&disk);
    let last = fill(&log, 3);
    truncate(&log, REGION, last).unwrap();
    let freed: Vec<FileId> =
        log.files().iter().filter(|info| !info.wanted_by_raft).map(|info| info.file).collect();
    assert_eq!(freed.len(), 2);
    freed.iter().for_each(|file| log.remove(*file).unwrap());
    assert_eq!(log.stats().free_segments, 2);
    let mut index = last;
    while log.stats().recycled < 2 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    put(&log, REGION, index + 1, 900).unwrap();
    let head = log.head();
    drop(log);
    // Valid old frames follow the head, intact except for the file they name.
    let (log, recovery) = open(&disk);
    assert_eq!((recovery.tail, recovery.head), (Tail::Clean, head));
    (last + 1..=index + 1).for_each(|index| assert_put(&log, REGION, index, 900));
    assert!(log.region(REGION).unwrap().last == LogIndex(index + 1));
}

#[test]
fn a_frame_of_another_position_of_the_segment_is_not_its_next_one() {
    let disk = disk(18);
    let (log, _) = open(&disk);
    put(&log, REGION, 1, 900).unwrap();
    let first = log.head();
    put(&log, REGION, 2, 900).unwrap();
    let second = log.head();
    assert_eq!(first.file, second.file);
    drop(log);
    // The second batch again, behind itself: its checksums and its salt are right there.
    let path = segment_path(second.file);
    let file = disk.read_file(&path).unwrap();
    let frame = file[first.offset as usize..second.offset as usize].to_vec();
    disk.corrupt(&path, second.offset.into(), &frame).unwrap();
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.head, second);
    assert_eq!(log.region(REGION).unwrap().last, LogIndex(2));
}

#[test]
fn fault_8_and_66_other_stores_and_newer_formats_are_refused() {
    let (disk, _, head) = ten(16);
    let mut other = options();
    other.store = StoreId(1);
    let opened = open_with(&disk, other, RecoverFrom::default());
    assert!(matches!(opened, Err(Error::WrongStore { .. })));
    let path = segment_path(head.file);
    let mut block = disk.read_file(&path).unwrap()[..48].to_vec();
    block[8] = 77;
    let crc = stele_types::checksum::crc32c(&block[..44]);
    block[44..].copy_from_slice(&crc.to_le_bytes());
    disk.corrupt(&path, 0, &block).unwrap();
    assert!(matches!(refused(&disk), Error::NewerFormat { found: 77, .. }));
}

#[test]
fn a_lost_or_damaged_sidecar_costs_a_scan_and_is_written_again() {
    let disk = disk(17);
    let (log, _) = open(&disk);
    let last = fill(&log, 4);
    drop(log);
    let whole = disk.read_file(sidecar_path(FileId(2))).unwrap();
    for damage in 0..3 {
        let disk = disk.fork();
        let path = sidecar_path(FileId(2));
        match damage {
            0 => stele_vfs::Vfs::unlink(&disk, &path).unwrap(),
            1 => disk.corrupt(&path, 60, b"xx").unwrap(),
            _ => disk.write_file(&path, &whole[..whole.len() / 2]),
        }
        let (log, recovery) = open(&disk);
        assert_eq!((recovery.segments_by_sidecar, recovery.segments_scanned), (2, 2));
        (1..=last).for_each(|index| assert_put(&log, REGION, index, 900));
        drop(log);
        assert_eq!(disk.read_file(&path).unwrap(), whole);
        assert_eq!(open(&disk).1.segments_by_sidecar, 3);
    }
}

#[test]
fn a_device_that_asks_for_larger_blocks_gets_a_new_segment() {
    let (disk, _, head) = ten(21);
    let bytes = disk.read_file(segment_path(head.file)).unwrap();
    let moved = SimVfs::new(stele_simulated_disk::SimOptions {
        block_bytes: Some(4096),
        ..stele_simulated_disk::SimOptions::default()
    });
    stele_vfs::Vfs::create_dir_all(&moved, Path::new(DIR)).unwrap();
    moved.write_file(segment_path(head.file), &bytes);
    let (log, _) = open(&moved);
    assert!(log.head().file > head.file && log.head().offset % 4096 == 0);
    put(&log, REGION, 11, 600).unwrap();
    drop(log);
    (1..=11).for_each(|index| assert_put(&open(&moved).0, REGION, index, 600));
}

#[test]
fn a_log_that_ends_before_the_checkpoint_is_refused() {
    let (disk, _, head) = ten(18);
    let from = RecoverFrom {
        checkpoint: Lsn::new(head.file, head.offset + 512),
        ..RecoverFrom::default()
    };
    assert!(matches!(open_with(&disk, options(), from), Err(Error::Missing { .. })));
    let empty = crate::common::disk(1);
    let from = RecoverFrom { checkpoint: head, ..RecoverFrom::default() };
    assert!(matches!(open_with(&empty, options(), from), Err(Error::Missing { .. })));
}

#[test]
fn a_segment_that_raft_wants_is_not_removed() {
    let disk = disk(19);
    let (log, _) = open(&disk);
    let last = fill(&log, 3);
    assert!(log.files().iter().all(|info| info.wanted_by_raft));
    for info in log.files() {
        assert!(matches!(log.remove(info.file), Err(Error::Invalid(_))));
    }
    put(&log, RegionId(2), 1, 10).unwrap();
    truncate(&log, REGION, last - 1).unwrap();
    log.append(&batch(vec![Record::Mark(REGION, Mark::Destroy)])).unwrap();
    assert!(log.files().iter().any(|info| !info.wanted_by_raft));
}

#[test]
fn leftovers_of_unfinished_work_are_removed() {
    let (disk, places, head) = ten(20);
    let left = Path::new(DIR).join("000000aa.val.tmp");
    disk.write_file(&left, b"half");
    disk.write_file(sidecar_path(FileId(0x77)), b"belongs to no segment");
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.orphans_removed, 2);
    let mut writer = log.sorted_writer(Cause::Sort).unwrap();
    let at: Locator = writer.append(b"k", places[0], 0, b"a value longer than inline").unwrap();
    writer.finish().unwrap();
    drop(log);
    assert!(open(&disk).0.get(&at).is_ok(), "without an index it may be part of the store");
    let from = RecoverFrom { checkpoint: head, raft_from: head.file, ..RecoverFrom::default() };
    let (log, recovery) = open_with(&disk, options(), from).unwrap();
    assert_eq!(recovery.orphans_removed, 1);
    assert!(log.get(&at).is_err() && log.next_file() > at.file);
}

/// Returns a value that holds, at each block boundary of its file, the header of a frame that
/// extends to the value's end.
fn full_of_headers(at: Lsn, bytes: usize) -> Vec<u8> {
    let mut value = vec![0; bytes];
    let end = at.offset as usize + bytes;
    for block in (at.offset.next_multiple_of(512) as usize..end - 24).step_by(512) {
        let words = [(end - block - 24) as u32, 7, at.file.0, block as u32, 9, 1];
        let begin = block - at.offset as usize;
        let head = &mut value[begin..begin + 24];
        head.copy_from_slice(&words.map(u32::to_le_bytes).concat());
    }
    value
}

/// Creates a log with this value in its second entry. Returns the position before it and its own.
fn second_entry(value: &[u8]) -> (SimVfs, Log, Lsn, Lsn) {
    let disk = disk(31);
    let (log, _) = open_with(&disk, long_segments(), RecoverFrom::default()).unwrap();
    put(&log, REGION, 1, 100).unwrap();
    let before = log.head();
    let command = command(&[(b"key", value)]);
    let appended = log.append(&batch(vec![entry(REGION, 2, 1, &command)])).unwrap();
    let locator = command.ops().next().unwrap().locator(appended.payloads[0]).unwrap();
    (disk, log, before, Lsn::new(locator.file, locator.offset))
}

fn long_segments() -> LogOptions {
    LogOptions { segment_bytes_max: 64 << 20, ..options() }
}

#[test]
fn a_value_full_of_heads_of_frames_costs_recovery_no_more_than_another() {
    const BYTES: usize = 24 << 20;
    let (_, _, _, value_at) = second_entry(&vec![0; BYTES]);
    for followed in [false, true] {
        let (disk, log, before, at) = second_entry(&full_of_headers(value_at, BYTES));
        assert_eq!(at, value_at, "the headers name their own positions");
        if followed {
            put(&log, REGION, 3, 100).unwrap();
        }
        drop(log);
        flip(&disk, before, 30);
        let started = std::time::Instant::now();
        let opened = open_with(&disk, long_segments(), RecoverFrom::default());
        assert!(started.elapsed().as_secs() < 20, "each header cost a read of all that follows");
        match opened {
            Err(Error::Corrupt { offset, .. }) => {
                assert!(followed);
                assert_eq!(offset, u64::from(before.offset));
            }
            Ok((_, recovery)) => {
                assert!(!followed);
                assert!(matches!(recovery.tail, Tail::TornCut { from, .. } if from == before));
            }
            Err(other) => panic!("{other}"),
        }
    }
}
