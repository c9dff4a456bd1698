//! Entries of which only the payload is damaged: what was lost is known for certain, and a copy
//! written in its place restores the log as it was.

use crate::common::model::{Model, Random};
use crate::common::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_log::{DamageSurvey, DamagedPayload, Log, LogOptions, RecoverFrom, Tail};
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimVfs};
use stele_types::{
    EntryRecord, Error, FileId, HardState, LogIndex, Lsn, Mark, Record, RegionId, Result, Term,
    checksum::crc32c,
};

const DAMAGED_MAX: usize = 1000;

fn survey_with(disk: &SimVfs, options: &LogOptions, from: &RecoverFrom) -> Result<DamageSurvey> {
    DamageSurvey::take(Arc::new(disk.clone()), Path::new(DIR), options, from, DAMAGED_MAX)
}

fn survey(disk: &SimVfs) -> DamageSurvey {
    survey_with(disk, &options(), &RecoverFrom::default()).unwrap()
}

fn damaged_payloads(survey: &DamageSurvey) -> Vec<DamagedPayload> {
    survey.damaged_after(None).copied().collect()
}

fn flip(disk: &SimVfs, at: Lsn, delta: u64) {
    let (path, offset) = (segment_path(at.file), u64::from(at.offset) + delta);
    disk.inject(Fault::FlipBit { path, offset, bit: (delta % 8) as u8 }).unwrap();
}

fn files(disk: &SimVfs) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |path: PathBuf| (path.clone(), disk.read_file(&path).unwrap());
    disk.paths().into_iter().map(read).collect()
}

fn payload_of(index: u64, bytes: usize) -> bytes::Bytes {
    let key = format!("key-{index}");
    command(&[(key.as_bytes(), &value(index, bytes))]).bytes().clone()
}

fn ten(seed: u64) -> (SimVfs, Vec<Lsn>) {
    let disk = disk(seed);
    let (log, _) = open(&disk);
    let places = (1..=10).map(|i| put(&log, REGION, i, 600).unwrap().payloads[0]).collect();
    (disk, places)
}

fn three_in_one(seed: u64) -> (SimVfs, Lsn, Vec<Lsn>, Lsn) {
    let disk = disk(seed);
    let (log, _) = open(&disk);
    put(&log, REGION, 1, 100).unwrap();
    let begin = log.head();
    let record = |region, index, n| {
        let payload = payload_of(n, 700);
        Record::Entry(EntryRecord { region, term: Term(1), index, is_command: true, payload })
    };
    let state = HardState { term: Term(9), vote: 3, commit: LogIndex(2) };
    let records = vec![
        record(REGION, LogIndex(2), 2),
        record(REGION, LogIndex(3), 3),
        Record::HardState(REGION, state),
        Record::Mark(RegionId(2), Mark::Start(LogIndex(6), Term(1))),
        record(RegionId(2), LogIndex(7), 7),
    ];
    let places = log.append(&batch(records)).unwrap().payloads;
    let end = log.head();
    put(&log, REGION, 4, 100).unwrap();
    (disk, begin, places, end)
}

#[test]
fn fault_11_a_damaged_payload_in_the_middle_is_a_hole_whose_entry_is_known() {
    for (victim, delta) in [(0, 0), (4, 100), (8, 599)] {
        let (disk, places) = ten(1);
        flip(&disk, places[victim], delta);
        let Error::Corrupt { detail, .. } = refused(&disk) else { panic!() };
        let index = victim as u64 + 1;
        assert!(detail.contains(&format!("entry {index} of region {REGION}")), "{detail}");
        let before = files(&disk);
        let mut survey = survey(&disk);
        let found = damaged_payloads(&survey);
        assert_eq!(found.len(), 1);
        let (damaged, payload) = (found[0], payload_of(index, 600));
        assert_eq!(
            (damaged.region, damaged.index, damaged.term, damaged.at),
            (REGION, LogIndex(index), Term(1), places[victim])
        );
        assert_eq!((damaged.bytes as usize, damaged.crc), (payload.len(), crc32c(&payload)));
        for other in 1..=10 {
            let found = survey.find(REGION, LogIndex(other), Term(1)).unwrap();
            assert_eq!(found, (other != index).then(|| payload_of(other, 600)));
        }
        assert_eq!(survey.find(REGION, LogIndex(2), Term(2)).unwrap(), None);
        assert_eq!(files(&disk), before, "a survey changes nothing");
        assert!(survey.restore_payload(&damaged, &payload).unwrap() && survey.is_recovered());
        assert_eq!(survey.find(REGION, LogIndex(index), Term(1)).unwrap(), Some(payload));
        let (log, recovery) = open(&disk);
        assert_eq!(recovery.tail, Tail::Clean);
        (1..=10).for_each(|index| assert_put(&log, REGION, index, 600));
    }
}

#[test]
fn fault_11_and_24_damage_of_anything_but_payloads_is_no_hole() {
    let (whole, begin, places, end) = three_in_one(2);
    let is_payload = |byte: u32| {
        let bytes = payload_of(2, 700).len() as u32;
        places.iter().any(|at| (at.offset..at.offset + bytes).contains(&byte))
    };
    let body = u64::from(u32::from_le_bytes(
        whole.read_file(segment_path(begin.file)).unwrap()[begin.offset as usize..][..4]
            .try_into()
            .unwrap(),
    ));
    let frame_end = begin.offset + 24 + body as u32;
    assert!(frame_end <= end.offset);
    let others: Vec<u32> = (begin.offset..frame_end).filter(|byte| !is_payload(*byte)).collect();
    assert!(others.len() > 50, "{}", others.len());
    for (byte, with_payload) in others.iter().flat_map(|byte| [(*byte, false), (*byte, true)]) {
        let disk = whole.fork();
        flip(&disk, Lsn::new(begin.file, 0), u64::from(byte));
        if with_payload {
            flip(&disk, places[1], 40);
        }
        let before = files(&disk);
        let surveyed = survey_with(&disk, &options(), &RecoverFrom::default());
        assert!(matches!(surveyed, Err(Error::Corrupt { .. })), "byte {byte}: {surveyed:?}");
        assert!(matches!(refused(&disk), Error::Corrupt { .. }), "byte {byte}");
        assert_eq!(files(&disk), before);
    }
}

#[test]
fn fault_11_several_holes_in_one_batch_and_in_several_are_filled_one_by_one() {
    let (whole, _, places, end) = three_in_one(3);
    let log = open(&whole).0;
    put(&log, REGION, 5, 900).unwrap();
    drop(log);
    let before = files(&whole);
    let expected = [(2, places[0]), (3, places[1]), (7, places[2])];
    for backwards in [false, true] {
        let disk = whole.fork();
        expected.iter().for_each(|(n, at)| flip(&disk, *at, 10 + n));
        // The next batch has a damaged payload too.
        flip(&disk, end, 24 + 20);
        let mut survey = survey(&disk);
        let mut found = damaged_payloads(&survey);
        assert_eq!(found.len(), 4);
        let at: Vec<Lsn> = found.iter().map(|damaged| damaged.at).collect();
        assert!(expected.iter().all(|(_, place)| at.contains(place)));
        if backwards {
            found.reverse();
        }
        for (done, damaged) in found.iter().enumerate() {
            assert!(!survey.is_recovered() && damaged_payloads(&survey).len() == 4 - done);
            assert!(refused(&disk).is_damage());
            let bytes = if damaged.index == LogIndex(4) { 100 } else { 700 };
            assert!(survey.restore_payload(damaged, &payload_of(damaged.index.0, bytes)).unwrap());
            assert!(
                !survey.restore_payload(damaged, &payload_of(damaged.index.0, bytes)).unwrap(),
                "filled"
            );
        }
        assert!(survey.is_recovered());
        assert_eq!(files(&disk), before);
        open(&disk);
    }
}

#[test]
fn fault_12_what_nothing_follows_is_a_torn_write_and_what_is_confirmed_is_a_hole() {
    let (disk, places) = ten(4);
    for victims in [vec![9], vec![8, 9]] {
        let unconfirmed = disk.fork();
        victims.iter().for_each(|victim| flip(&unconfirmed, places[*victim], 50));
        let survey = survey(&unconfirmed);
        assert!(
            survey.is_recovered() && damaged_payloads(&survey).is_empty(),
            "nothing proves that it was durable"
        );
        let (log, recovery) = open(&unconfirmed);
        assert!(matches!(recovery.tail, Tail::TornCut { uncertain: true, .. }), "{recovery:?}");
        assert_eq!(log.region(REGION).unwrap().last, LogIndex(10 - victims.len() as u64));
    }
    let (log, _) = open(&disk);
    log.confirm().unwrap();
    drop(log);
    let before = files(&disk);
    for victims in [vec![9], vec![8, 9]] {
        let disk = disk.fork();
        victims.iter().for_each(|victim| flip(&disk, places[*victim], 50));
        let mut survey = survey(&disk);
        let found = damaged_payloads(&survey);
        assert_eq!(found.len(), victims.len());
        for damaged in found {
            assert!(survey.restore_payload(&damaged, &payload_of(damaged.index.0, 600)).unwrap());
        }
        assert_eq!(files(&disk), before);
        (1..=10).for_each(|index| assert_put(&open(&disk).0, REGION, index, 600));
    }
}

#[test]
fn damage_elsewhere_leaves_nothing_to_repair() {
    let (disk, places) = ten(5);
    flip(&disk, places[3], 50);
    flip(&disk, Lsn::new(places[6].file, places[6].offset / 512 * 512), 9);
    let surveyed = survey_with(&disk, &options(), &RecoverFrom::default());
    assert!(matches!(surveyed, Err(Error::Corrupt { .. })), "{surveyed:?}");
}

// Catalogue: 11.
#[test]
fn only_the_exact_bytes_restore_a_payload() {
    let (disk, places) = ten(6);
    flip(&disk, places[3], 50);
    let mut survey = survey(&disk);
    let (damaged, payload) = (damaged_payloads(&survey)[0], payload_of(4, 600));
    let (before, operations) = (files(&disk), disk.operations());
    let mut longer = payload.to_vec();
    longer.push(0);
    let mut other = payload.to_vec();
    other[77] ^= 1;
    for wrong in [&payload[1..], &longer, &other, b""] {
        assert!(!survey.restore_payload(&damaged, wrong).unwrap());
    }
    let mut other = damaged;
    other.index = LogIndex(5);
    assert!(!survey.restore_payload(&other, &payload).unwrap(), "no such payload is damaged");
    assert_eq!((files(&disk), disk.operations()), (before, operations), "nothing was written");
    assert!(!survey.is_recovered());
    assert!(survey.restore_payload(&damaged, &payload).unwrap());
}

// Catalogue: 11, 12.
#[test]
fn a_restore_cut_by_power_leaves_damage_or_the_payload() {
    let prepared = disk(7);
    let (log, _) = open(&prepared);
    let mut places = Vec::new();
    for index in 1..=3 {
        places.push(put(&log, REGION, index, 3000).unwrap().payloads[0]);
    }
    log.confirm().unwrap();
    drop(log);
    prepared.crash_now();
    let prepared = prepared.restart(1);
    let whole = files(&prepared);
    (100..3000).step_by(512).for_each(|delta| flip(&prepared, places[2], delta));
    flip(&prepared, places[1], 700);
    let fill_all = |disk: &SimVfs| -> Result<()> {
        let mut survey = survey_with(disk, &options(), &RecoverFrom::default())?;
        for damaged in damaged_payloads(&survey) {
            assert!(survey.restore_payload(&damaged, &payload_of(damaged.index.0, 3000))?);
        }
        Ok(())
    };
    let done = prepared.fork();
    let before = done.operations();
    fill_all(&done).unwrap();
    let operations = before..done.operations();
    assert_eq!(operations.end - operations.start, 4, "a write and a sync for each");
    let (mut left, mut filled) = (0, 0);
    for seed in 0..20 {
        for (operation, at) in operations.clone().flat_map(|it| CrashAt::ALL.map(|at| (it, at))) {
            let disk = prepared.fork();
            disk.crash_at(CrashPoint { operation, at });
            let _ = fill_all(&disk);
            let disk = disk.restart(seed);
            let survey = survey(&disk);
            match damaged_payloads(&survey).len() {
                0 => filled += 1,
                _ => {
                    left += 1;
                    assert!(refused(&disk).is_damage());
                }
            }
            fill_all(&disk).unwrap();
            assert_eq!(files(&disk), whole, "{operation} {at:?} {seed}");
        }
    }
    assert!(left > 0 && filled > 0, "{left} left, {filled} restored");
}

// Catalogue: 11.
#[test]
fn a_restored_payload_survives_a_power_cut() {
    let (disk, places) = ten(8);
    disk.crash_now();
    let disk = disk.restart(1);
    flip(&disk, places[3], 50);
    for seed in 0..20 {
        let disk = disk.fork();
        let mut survey = survey(&disk);
        let damaged = damaged_payloads(&survey)[0];
        assert!(survey.restore_payload(&damaged, &payload_of(4, 600)).unwrap());
        disk.crash_now();
        let (log, _) = open(&disk.restart(seed));
        assert_put(&log, REGION, 4, 600);
    }
}

// Catalogue: 11, 14, 16, 17.
#[test]
fn a_restore_that_the_device_did_not_keep_is_reported_and_nothing_more_is_written() {
    let faults = [
        Fault::LoseWrite { nth: 1 },
        Fault::MisdirectWrite { nth: 1 },
        Fault::WriteFails { path_contains: ".seg".into(), nth: 1 },
        Fault::SyncFails { path_contains: ".seg".into(), nth: 1 },
    ];
    for fault in faults {
        let (disk, places) = ten(9);
        flip(&disk, places[3], 50);
        let mut survey = survey(&disk);
        let damaged = damaged_payloads(&survey)[0];
        disk.inject(fault.clone()).unwrap();
        let filled = survey.restore_payload(&damaged, &payload_of(4, 600));
        assert!(filled.is_err(), "{fault:?}");
        let operations = disk.operations();
        let again = survey.restore_payload(&damaged, &payload_of(4, 600));
        assert!(matches!(again, Err(Error::Poisoned(_))), "{fault:?}: {again:?}");
        assert_eq!(disk.operations(), operations);
    }
}

// Catalogue: 11, 15.
#[test]
fn a_wrong_read_beside_a_damaged_payload_is_not_written_back() {
    let mut failed = 0;
    for seed in 0..40 {
        let disk = disk(seed);
        let (log, _) = open(&disk);
        let payloads = [payload_of(1, 20), payload_of(2, 350)];
        let record = |n: usize| {
            let (index, payload) = (LogIndex(n as u64 + 1), payloads[n].clone());
            let (region, term, is_command) = (REGION, Term(1), true);
            Record::Entry(EntryRecord { region, term, index, is_command, payload })
        };
        let places = log.append(&batch(vec![record(0), record(1)])).unwrap().payloads;
        put(&log, REGION, 3, 10).unwrap();
        drop(log);
        let before = files(&disk);
        flip(&disk, places[0], 15);
        for nth in 1..4 {
            let disk = disk.fork();
            let mut survey = survey(&disk);
            let damaged = damaged_payloads(&survey)[0];
            disk.inject(Fault::ReadFlipsOnce { path_contains: ".seg".into(), nth }).unwrap();
            let filled = survey.restore_payload(&damaged, &payloads[0]);
            disk.clear_faults();
            if filled.is_err() {
                failed += 1;
                let mut survey = survey_with(&disk, &options(), &RecoverFrom::default()).unwrap();
                for damaged in damaged_payloads(&survey) {
                    assert!(survey.restore_payload(&damaged, &payloads[0]).unwrap());
                }
            }
            assert!(files(&disk) == before, "seed {seed}, read {nth}");
        }
    }
    assert!(failed > 0);
}

// Catalogue: 15.
#[test]
fn a_wrong_read_that_looks_like_a_damaged_payload_does_no_harm() {
    let mut surveyed = 0;
    for seed in 0..20 {
        let (disk, _) = ten(seed);
        let before = files(&disk);
        for nth in 1..5 {
            disk.inject(Fault::ReadFlipsOnce { path_contains: ".seg".into(), nth }).unwrap();
            let survey = survey_with(&disk, &options(), &RecoverFrom::default());
            disk.clear_faults();
            // A wrong read of a segment's header refuses the survey.
            let Ok(survey) = survey else { continue };
            surveyed += 1;
            assert!(survey.is_recovered() && files(&disk) == before, "seed {seed}, read {nth}");
        }
    }
    assert!(surveyed > 40, "{surveyed}");
}

#[test]
fn fault_11_a_hole_in_a_sealed_segment_whose_sidecar_is_damaged_is_filled() {
    let disk = disk(11);
    let (log, _) = open(&disk);
    let mut places = vec![Lsn::default()];
    while log.stats().segments < 4 {
        let index = places.len() as u64;
        places.push(put(&log, REGION, index, 900).unwrap().payloads[0]);
    }
    drop(log);
    let before = files(&disk);
    // Also the last batch of the segment: the next segment proves that it was durable.
    let in_second = |at: &&Lsn| at.file == FileId(2);
    let (first, last) = (places.iter().position(|at| at.file == FileId(2)).unwrap(), {
        places.iter().rposition(|at| at.file == FileId(2)).unwrap()
    });
    assert!(places.iter().filter(in_second).count() > 4);
    for victim in [first, first + 2, last] {
        flip(&disk, places[victim], 300);
    }
    open(&disk);
    assert!(survey(&disk).is_recovered(), "with the sidecar, opening does not read them");
    disk.corrupt(sidecar_path(FileId(2)), 60, b"xx").unwrap();
    let Error::Corrupt { detail, .. } = refused(&disk) else { panic!() };
    assert!(detail.contains(&format!("entry {first} ")), "{detail}");
    let mut survey = survey(&disk);
    let found = damaged_payloads(&survey);
    let indices: Vec<usize> = found.iter().map(|damaged| damaged.index.0 as usize).collect();
    assert_eq!(indices, [first, first + 2, last]);
    for damaged in found {
        assert!(survey.restore_payload(&damaged, &payload_of(damaged.index.0, 900)).unwrap());
    }
    let (log, _) = open(&disk);
    (1..places.len() as u64).for_each(|index| assert_put(&log, REGION, index, 900));
    drop(log);
    assert_eq!(files(&disk), before, "the sidecar was written again too");
}

#[test]
fn damaged_payloads_beyond_what_is_held_in_memory_are_found_later() {
    let (disk, places) = ten(12);
    let before = files(&disk);
    (0..9).for_each(|victim| flip(&disk, places[victim], 50));
    let from = RecoverFrom::default();
    let vfs = Arc::new(disk.clone());
    let mut survey = DamageSurvey::take(vfs, Path::new(DIR), &options(), &from, 2).unwrap();
    let mut seen = Vec::new();
    while !survey.is_recovered() {
        let found = damaged_payloads(&survey);
        assert!((1..=2).contains(&found.len()));
        for damaged in found {
            seen.push(damaged.index.0);
            assert!(survey.restore_payload(&damaged, &payload_of(damaged.index.0, 600)).unwrap());
        }
    }
    assert_eq!(seen, (1..=9).collect::<Vec<u64>>());
    assert_eq!(files(&disk), before);
}

// Catalogue: 11.
#[test]
fn more_unrepairable_damage_than_can_be_held_is_reported() {
    let disk = disk(17);
    let (log, _) = open(&disk);
    let mut places = Vec::new();
    for index in 1..=4 {
        places.push(put(&log, REGION, index, 600).unwrap().payloads[0]);
    }
    log.append(&batch(vec![Record::Mark(REGION, Mark::Destroy)])).unwrap();
    put(&log, RegionId(2), 1, 600).unwrap();
    drop(log);
    places.iter().for_each(|at| flip(&disk, *at, 50));
    let survey_with_limit = |damaged_max| {
        let vfs = Arc::new(disk.clone());
        DamageSurvey::take(vfs, Path::new(DIR), &options(), &checkpointed(&[]), damaged_max)
    };
    assert!(survey_with_limit(4).unwrap().is_recovered());
    assert!(matches!(survey_with_limit(3), Err(Error::Corrupt { .. })));
}

#[test]
fn a_device_with_larger_blocks_takes_copies_too() {
    let (disk, places) = ten(13);
    let bytes = disk.read_file(segment_path(places[0].file)).unwrap();
    let moved = SimVfs::new(stele_simulated_disk::SimOptions {
        block_bytes: Some(4096),
        ..stele_simulated_disk::SimOptions::default()
    });
    stele_vfs::Vfs::create_dir_all(&moved, Path::new(DIR)).unwrap();
    moved.write_file(segment_path(places[0].file), &bytes);
    flip(&moved, places[3], 50);
    let mut survey = survey(&moved);
    let damaged = damaged_payloads(&survey)[0];
    assert!(survey.restore_payload(&damaged, &payload_of(4, 600)).unwrap());
    assert_eq!(moved.read_file(segment_path(places[0].file)).unwrap(), bytes);
}

// Catalogue: 11.
#[test]
fn what_lies_around_a_payload_that_begins_or_ends_with_a_block_stays_as_it_was() {
    let disk = disk(16);
    let (log, _) = open(&disk);
    let (mut index, mut begins, mut ends) = (0, Vec::new(), Vec::new());
    while begins.is_empty() || ends.is_empty() {
        index += 1;
        let pair = |n: usize| command(&[(b"k", &value(index, n))]);
        let (first, second) = (300 + index as usize * 7 % 700, 100);
        let records = vec![
            entry(REGION, 2 * index - 1, 1, &pair(first)),
            entry(REGION, 2 * index, 1, &pair(second)),
        ];
        for (at, n) in log.append(&batch(records)).unwrap().payloads.iter().zip([first, second]) {
            let payload = pair(n).bytes().clone();
            let end = at.offset as usize + payload.len();
            if at.offset.is_multiple_of(512) {
                begins.push((*at, payload));
            } else if end.is_multiple_of(512) {
                ends.push((*at, payload));
            }
        }
    }
    put(&log, REGION, 2 * index + 1, 10).unwrap();
    drop(log);
    let before = files(&disk);
    for (at, payload) in begins.iter().chain(&ends) {
        let path = sidecar_path(at.file);
        if disk.file_bytes(&path).is_some() {
            disk.corrupt(&path, 5, b"no sidecar").unwrap();
        }
        flip(&disk, *at, 9);
        let mut survey = survey(&disk);
        let damaged = damaged_payloads(&survey)[0];
        assert!(damaged.at == *at && survey.restore_payload(&damaged, payload).unwrap());
        let path = segment_path(at.file);
        assert!(disk.read_file(&path).unwrap() == before[&path], "{at}");
    }
}

fn checkpointed(pairs: &[(RegionId, u64)]) -> RecoverFrom {
    let checkpointed = pairs.iter().map(|(region, index)| (*region, LogIndex(*index))).collect();
    RecoverFrom { checkpointed: Some(checkpointed), ..RecoverFrom::default() }
}

fn replayed(log: &Log, applied: u64) -> Result<Vec<u64>> {
    let mut given = Vec::new();
    log.replay(&|_| LogIndex(applied), &mut |entry| {
        given.push(entry.index.0);
        Ok(())
    })?;
    Ok(given)
}

// Catalogue: 11.
#[test]
fn what_runs_hold_need_not_be_readable_where_replicas_have_the_values() {
    let (disk, places) = ten(14);
    (0..4).for_each(|victim| flip(&disk, places[victim], 50));
    assert!(refused(&disk).is_damage(), "without replicas this is damage");
    for upto in 0..4 {
        let from = checkpointed(&[(REGION, upto)]);
        let opened = open_with(&disk, options(), from.clone());
        assert!(matches!(opened, Err(Error::Corrupt { .. })));
        let survey = survey_with(&disk, &options(), &from).unwrap();
        let indices: Vec<u64> =
            damaged_payloads(&survey).iter().map(|damaged| damaged.index.0).collect();
        assert_eq!(indices, (upto + 1..=4).collect::<Vec<u64>>());
    }
    let from = checkpointed(&[(REGION, 4)]);
    assert!(survey_with(&disk, &options(), &from).unwrap().is_recovered());
    let (log, _) = open_with(&disk, options(), from.clone()).unwrap();
    assert_eq!(replayed(&log, 4).unwrap(), [5, 6, 7, 8, 9, 10]);
    assert!(replayed(&log, 3).is_err(), "an unreadable entry is not skipped");
    assert!(log.entries(REGION, LogIndex(4), LogIndex(5), 1).is_err());
    (5..=10).for_each(|index| assert_put(&log, REGION, index, 600));
    let mut index = 10;
    while log.stats().segments < 3 {
        index += 1;
        put(&log, REGION, index, 900).unwrap();
    }
    drop(log);
    // A sidecar would represent these entries as entries without operations.
    assert!(!stele_vfs::Vfs::exists(&disk, &sidecar_path(FileId(1))).unwrap());
    assert!(stele_vfs::Vfs::exists(&disk, &sidecar_path(FileId(2))).unwrap());
    assert!(open_with(&disk, options(), checkpointed(&[(REGION, 3)])).is_err());
    let (log, _) = open_with(&disk, options(), from).unwrap();
    assert!(!stele_vfs::Vfs::exists(&disk, &sidecar_path(FileId(1))).unwrap());
    let (idle, index) = (RegionId(3), index + 1);
    put(&log, idle, 1, 100).unwrap();
    let moved = log.reappend_tails(FileId(9), 1 << 20, &|_| LogIndex(index)).unwrap();
    assert_eq!(moved, payload_of(1, 100).len() as u64, "only readable entries");
    put(&log, REGION, index, 100).unwrap();
    truncate(&log, REGION, index - 1).unwrap();
    put(&log, REGION, index + 1, 100).unwrap();
    let first = log.files()[0];
    assert!(first.file == FileId(1) && !first.wanted_by_raft);
    log.remove(FileId(1)).unwrap();
}

// Catalogue: 11.
#[test]
fn what_was_replaced_or_left_with_its_region_need_not_be_readable() {
    let disk = disk(15);
    let (log, _) = open(&disk);
    let gone = RegionId(2);
    let mut places = Vec::new();
    for index in 1..=4 {
        places.push(put(&log, REGION, index, 600).unwrap().payloads[0]);
    }
    let other = command(&[(b"other", &value(99, 600))]);
    log.append(&batch(vec![entry(REGION, 4, 2, &other)])).unwrap();
    let left = put(&log, gone, 1, 600).unwrap().payloads[0];
    log.append(&batch(vec![Record::Mark(gone, Mark::Destroy)])).unwrap();
    put(&log, REGION, 5, 600).unwrap();
    drop(log);
    flip(&disk, places[3], 50);
    flip(&disk, left, 50);
    assert!(refused(&disk).is_damage(), "without replicas this is damage");
    let needed = disk.fork();
    flip(&needed, places[2], 50);
    let from = checkpointed(&[(REGION, 2)]);
    let survey = survey_with(&needed, &options(), &from).unwrap();
    let indices: Vec<u64> =
        damaged_payloads(&survey).iter().map(|damaged| damaged.index.0).collect();
    assert_eq!(indices, [3], "only entries in the region's log");
    assert!(open_with(&needed, options(), from.clone()).is_err());
    let (log, _) = open_with(&disk, options(), from).unwrap();
    assert_eq!(replayed(&log, 2).unwrap(), [3, 4, 5]);
    assert_eq!(log.term(REGION, LogIndex(4)), Some(Term(2)));
}

/// Random batches over several segments; returns the payload at each position.
fn random_log(random: &mut Random, disk: &SimVfs) -> BTreeMap<Lsn, bytes::Bytes> {
    let (log, _) = open(disk);
    let (mut model, mut payloads) = (Model::default(), BTreeMap::new());
    for _ in 0..60 {
        let batch = random.batch(&model, 900);
        let appended = log.append(&batch).unwrap();
        let entries = batch.records.iter().filter_map(|record| match record {
            Record::Entry(entry) => Some(entry.payload.clone()),
            _ => None,
        });
        payloads.extend(appended.payloads.into_iter().zip(entries));
        model.apply(&batch);
    }
    log.confirm().unwrap();
    assert!(log.stats().segments > 1);
    payloads
}

// Catalogue: 11, 12.
#[test]
fn random_damage_to_payloads_is_repaired_to_the_last_byte() {
    let seed = seed();
    let mut repaired = 0;
    for round in 0..60 {
        let what = format!(
            "round {round}; STELE_SEED={seed} cargo test -p stele-log --test all damaged_payloads random_damage"
        );
        let mut random = Random(seed ^ (round << 32));
        let disk = disk(seed ^ round);
        let payloads = random_log(&mut random, &disk);
        let segments: Vec<FileId> = payloads.keys().map(|at| at.file).collect();
        for file in segments {
            if random.below(2) == 0 && disk.file_bytes(sidecar_path(file)).is_some() {
                disk.corrupt(sidecar_path(file), 5, b"no sidecar").unwrap();
            }
        }
        open_with(&disk.fork(), options(), RecoverFrom::default()).unwrap();
        let before = files(&disk);
        let victims: Vec<(Lsn, u64)> =
            payloads.iter().map(|(at, payload)| (*at, payload.len() as u64)).collect();
        for _ in 0..=random.below(12) {
            let (at, bytes) = victims[random.below(victims.len() as u64) as usize];
            for _ in 0..=random.below(3) {
                flip(&disk, at, random.below(bytes.max(1)));
            }
        }
        let mut survey = survey(&disk);
        let opens = open_with(&disk.fork(), options(), RecoverFrom::default());
        assert_eq!(opens.is_ok(), survey.is_recovered(), "{what}");
        let found = damaged_payloads(&survey);
        repaired += found.len();
        for damaged in found {
            assert!(survey.restore_payload(&damaged, &payloads[&damaged.at]).unwrap(), "{what}");
        }
        assert!(survey.is_recovered(), "{what}");
        // If a sidecar is complete, only reads meet the damage in its segment.
        for (path, bytes) in files(&disk) {
            let mut found = bytes;
            for (at, payload) in &payloads {
                let from = at.offset as usize;
                let sealed = sidecar_is_whole(&before, at.file);
                if path == segment_path(at.file) && sealed {
                    found[from..from + payload.len()].copy_from_slice(payload);
                }
            }
            let differs = found.iter().zip(&before[&path]).position(|(a, b)| a != b);
            assert!(found == before[&path], "{what}: {} at {differs:?}", path.display());
        }
        open_with(&disk, options(), RecoverFrom::default()).unwrap();
    }
    assert!(repaired > 100, "{repaired} damaged payloads; STELE_SEED={seed}");
}

fn sidecar_is_whole(files: &BTreeMap<PathBuf, Vec<u8>>, file: FileId) -> bool {
    files.get(&sidecar_path(file)).is_some_and(|bytes| !bytes[5..].starts_with(b"no sidecar"))
}

// Catalogue: 11.
#[test]
fn a_payload_is_restored_on_the_machines_own_disk() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("damaged_payloads-{}", std::process::id()));
    let _none = std::fs::remove_dir_all(&dir);
    let vfs: Arc<dyn stele_vfs::Vfs> = Arc::new(stele_vfs::RealVfs::new());
    let from = RecoverFrom::default;
    let open = || Log::open(vfs.clone(), &dir, options(), from());
    let (log, _) = open().unwrap();
    let places: Vec<Lsn> =
        (1..=5).map(|i| put(&log, REGION, i, 5000).unwrap().payloads[0]).collect();
    drop(log);
    let path = |at: Lsn| dir.join(format!("{:08x}.seg", at.file.0));
    let whole: Vec<Vec<u8>> = places.iter().map(|at| std::fs::read(path(*at)).unwrap()).collect();
    for victim in [1, 2] {
        let at = places[victim];
        let mut bytes = std::fs::read(path(at)).unwrap();
        (0..5000).step_by(700).for_each(|delta| bytes[at.offset as usize + delta] ^= 4);
        std::fs::write(path(at), bytes).unwrap();
        let sidecar = path(at).with_extension("side");
        let _none = std::fs::remove_file(sidecar);
    }
    assert!(matches!(open(), Err(Error::Corrupt { .. })));
    let mut survey =
        DamageSurvey::take(vfs.clone(), &dir, &options(), &from(), DAMAGED_MAX).unwrap();
    let found = damaged_payloads(&survey);
    assert_eq!(found.len(), 2);
    for damaged in found {
        assert!(survey.restore_payload(&damaged, &payload_of(damaged.index.0, 5000)).unwrap());
    }
    for (at, whole) in places.iter().zip(&whole) {
        assert!(std::fs::read(path(*at)).unwrap() == *whole);
    }
    let (log, _) = open().unwrap();
    (1..=5).for_each(|index| assert_put(&log, REGION, index, 5000));
    drop(log);
    std::fs::remove_dir_all(&dir).unwrap();
}
