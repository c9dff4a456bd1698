//! Appended records are read back: by entry, locator, iterator and replay, before and after
//! reopening.

use crate::common::*;
use std::collections::BTreeMap;
use stele_log::{RecoverFrom, ReplayOp, Tail, VerifyEvent};
use stele_types::{
    CommandBuilder, EntryRecord, Error, FileId, HardState, Locator, LogIndex, Lsn, Mark, Record,
    RegionId, Term, ValueRef,
};

#[test]
fn everything_of_many_regions_survives_reopening() {
    let disk = disk(1);
    let (log, recovery) = open(&disk);
    assert_eq!(recovery.tail, Tail::Clean);
    let regions: Vec<RegionId> = (1..=40).map(RegionId).collect();
    for index in 1..=10 {
        let commands: Vec<_> = regions
            .iter()
            .map(|r| command(&[(&r.0.to_be_bytes(), &value(r.0 + index, 200))]))
            .collect();
        let mut records: Vec<Record> =
            regions.iter().zip(&commands).map(|(r, c)| entry(*r, index, 3, c)).collect();
        let state = HardState { term: Term(3), vote: index, commit: LogIndex(index - 1) };
        records.push(Record::HardState(RegionId(7), state));
        let appended = log.append(&batch(records)).unwrap();
        assert_eq!(appended.payloads.len(), regions.len());
        assert_eq!(appended.head, log.head());
    }
    assert!(log.stats().segments > 3, "{:?}", log.stats());
    let head = log.head();
    drop(log);
    let (log, recovery) = open(&disk);
    assert_eq!((recovery.head, recovery.tail), (head, Tail::Clean));
    assert!(recovery.segments_by_sidecar > 2 && recovery.segments_scanned == 1, "{recovery:?}");
    assert_eq!(log.regions(), regions);
    for region in &regions {
        let state = log.region(*region).unwrap();
        assert_eq!(
            (state.first, state.last, state.last_term),
            (LogIndex(1), LogIndex(10), Term(3))
        );
        let entries = log.entries(*region, LogIndex(1), LogIndex(11), usize::MAX).unwrap();
        for (entry, index) in entries.iter().zip(1..) {
            let expected = command(&[(&region.0.to_be_bytes(), &value(region.0 + index, 200))]);
            assert_eq!(&entry.payload, expected.bytes());
        }
        assert_eq!(entries.len(), 10);
        assert_eq!(log.entries(*region, LogIndex(3), LogIndex(11), 1).unwrap().len(), 1);
    }
    let state = HardState { term: Term(3), vote: 10, commit: LogIndex(9) };
    assert_eq!(log.region(RegionId(7)).unwrap().hard_state, state);
    let summary =
        log.verify(&mut |event| assert!(!matches!(event, VerifyEvent::Damaged(_)))).unwrap();
    assert_eq!(summary.damaged, 0);
}

#[test]
fn values_are_read_by_locator_alone_and_together() {
    let disk = disk(2);
    let (log, _) = open(&disk);
    let mut places = Vec::new();
    for index in 1..=60 {
        let appended = put(&log, REGION, index, 700).unwrap();
        let command = command(&[(format!("key-{index}").as_bytes(), &value(index, 700))]);
        places.push(command.ops().next().unwrap().locator(appended.payloads[0]).unwrap());
    }
    let before = disk_reads(&disk);
    for (locator, index) in places.iter().zip(1..) {
        assert_eq!(log.get(locator).unwrap(), value(index, 700));
    }
    let one_by_one = disk_reads(&disk) - before;
    assert_eq!(one_by_one, 60, "one read for one value");
    let mut shuffled = places.clone();
    shuffled.reverse();
    shuffled.swap(3, 40);
    let before = disk_reads(&disk);
    let values = log.get_many(&shuffled).unwrap();
    assert!(disk_reads(&disk) - before < 10, "neighbours are read together");
    for (locator, value) in shuffled.iter().zip(&values) {
        assert_eq!(&log.get(locator).unwrap(), value);
    }
    let wrong = Locator { crc: places[0].crc ^ 1, ..places[0] };
    // Rejected before memory is allocated for it.
    let endless = Locator { length: 1 << 30, ..wrong };
    let Err(Error::Corrupt { detail, .. }) = log.get(&endless) else { panic!() };
    assert!(detail.contains("after the end of its file"), "{detail}");
    assert!(log.get_many(&[endless]).is_err());
    assert!(matches!(log.get(&wrong), Err(Error::Corrupt { .. })));
    assert!(matches!(log.get_many(&[places[1], wrong]), Err(Error::Corrupt { .. })));
    let nowhere = Locator { file: FileId(999), ..places[0] };
    assert!(matches!(log.get(&nowhere), Err(Error::Missing { .. })));
}

fn disk_reads(disk: &stele_simulated_disk::SimVfs) -> u64 {
    stele_vfs::Vfs::meter(disk).snapshot().reads
}

#[test]
fn conflicts_replace_the_suffix_and_stay_replaced() {
    let disk = disk(3);
    let (log, _) = open(&disk);
    for index in 1..=8 {
        put(&log, REGION, index, 100).unwrap();
    }
    let other = command(&[(b"other", b"a value of the new leader")]);
    log.append(&batch(vec![entry(REGION, 5, 2, &other), entry(REGION, 6, 2, &other)])).unwrap();
    let check = |log: &stele_log::Log| {
        let state = log.region(REGION).unwrap();
        assert_eq!((state.last, state.last_term), (LogIndex(6), Term(2)));
        assert_eq!(log.term(REGION, LogIndex(4)), Some(Term(1)));
        assert_eq!(log.term(REGION, LogIndex(7)), None);
        assert_put(log, REGION, 4, 100);
        let mut replayed = Vec::new();
        log.replay(&|_| LogIndex(3), &mut |entry| {
            replayed.push((entry.index.0, entry.term.0));
            Ok(())
        })
        .unwrap();
        assert_eq!(replayed, [(4, 1), (5, 2), (6, 2)]);
        let mut versions = BTreeMap::new();
        log.scan_versions(&mut |op| {
            if let ReplayOp::Put { key, .. } = op.op {
                *versions.entry(key.to_vec()).or_insert(0) += 1;
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(versions.len(), 5, "replaced entries are never restored: {versions:?}");
        assert_eq!(versions[&b"other"[..]], 2);
    };
    check(&log);
    drop(log);
    let (log, _) = open(&disk);
    check(&log);
    log.append(&batch(vec![Record::Mark(REGION, Mark::TruncateSuffix(LogIndex(3)))])).unwrap();
    assert_eq!(log.region(REGION).unwrap().last, LogIndex(2));
    drop(log);
    assert_eq!(open(&disk).0.region(REGION).unwrap().last, LogIndex(2));
}

#[test]
fn batches_that_do_not_fit_their_region_change_nothing() {
    let disk = disk(4);
    let (log, _) = open(&disk);
    put(&log, REGION, 1, 10).unwrap();
    let head = log.head();
    let c = command(&[(b"k", b"v")]);
    let junk = Record::Entry(EntryRecord {
        region: REGION,
        term: Term(1),
        index: LogIndex(2),
        is_command: true,
        payload: bytes::Bytes::from_static(b"\x01no command"),
    });
    let mark = |mark| Record::Mark(REGION, mark);
    for records in [
        vec![entry(REGION, 3, 1, &c)],
        vec![entry(REGION, 0, 1, &c)],
        vec![entry(RegionId(2), 2, 1, &c)],
        vec![entry(REGION, 2, 1, &c), entry(REGION, 4, 1, &c)],
        vec![mark(Mark::TruncatePrefix(LogIndex(2), Term(1)))],
        vec![mark(Mark::TruncateSuffix(LogIndex(0)))],
        vec![mark(Mark::Destroy), entry(REGION, 2, 1, &c)],
        vec![junk],
    ] {
        assert!(matches!(log.append(&batch(records)), Err(Error::Invalid(_))));
    }
    assert_eq!((log.head(), log.poisoned()), (head, false));
    put(&log, REGION, 2, 10).unwrap();
    truncate(&log, REGION, 1).unwrap();
    let asked = log.entries(REGION, LogIndex(1), LogIndex(3), 100);
    assert!(matches!(asked, Err(Error::Invalid(_))), "truncated entries are unavailable");
}

#[test]
fn a_batch_longer_than_a_segment_gets_one_of_its_own() {
    let disk = disk(5);
    let (log, _) = open(&disk);
    put(&log, REGION, 1, 100).unwrap();
    let at = put(&log, REGION, 2, 100_000).unwrap().payloads[0];
    let after = put(&log, REGION, 3, 100).unwrap().payloads[0];
    assert!(at.file > FileId(1) && after.file > at.file);
    drop(log);
    let (log, _) = open(&disk);
    for (index, bytes) in [(1, 100), (2, 100_000), (3, 100)] {
        assert_put(&log, REGION, index, bytes);
    }
}

#[test]
fn regions_start_are_destroyed_and_start_again() {
    let disk = disk(6);
    let (log, _) = open(&disk);
    let mark = |mark| batch(vec![Record::Mark(REGION, mark)]);
    log.append(&mark(Mark::Start(LogIndex(100), Term(5)))).unwrap();
    assert_eq!(log.region(REGION).unwrap().truncated, (LogIndex(100), Term(5)));
    put(&log, REGION, 101, 50).unwrap();
    log.append(&mark(Mark::Destroy)).unwrap();
    drop(log);
    let (log, _) = open(&disk);
    let state = log.region(REGION).unwrap();
    assert!(state.destroyed && state.last == LogIndex(100));
    assert!(put(&log, REGION, 101, 50).is_err());
    let mut left = 0;
    log.scan_versions(&mut |_| {
        left += 1;
        Ok(())
    })
    .unwrap();
    assert_eq!(left, 0, "records of a destroyed region are obsolete");
    log.append(&mark(Mark::Start(LogIndex(7), Term(1)))).unwrap();
    put(&log, REGION, 8, 50).unwrap();
    drop(log);
    assert_put(&open(&disk).0, REGION, 8, 50);
}

#[test]
fn replay_gives_operations_with_small_values_inline() {
    let disk = disk(7);
    let (log, _) = open(&disk);
    let mut builder = CommandBuilder::new();
    builder.put(b"small", b"inline", 12).unwrap();
    builder.put(b"large", &[5; 300], 0).unwrap();
    builder.delete(b"gone").unwrap();
    builder.delete_range(b"a", b"b").unwrap();
    let c = builder.build();
    log.append(&batch(vec![entry(REGION, 1, 1, &c)])).unwrap();
    for index in 2..=100 {
        put(&log, REGION, index, 400).unwrap();
    }
    let segments = log.stats().segments;
    assert!(segments > 2, "the first entry is in a sealed segment");
    drop(log);
    let (log, _) = open(&disk);
    let reads = |d: &stele_simulated_disk::SimVfs| stele_vfs::Vfs::meter(d).snapshot().read_bytes;
    let before = reads(&disk);
    let mut indexes = Vec::new();
    log.replay(&|_| LogIndex(0), &mut |entry| {
        indexes.push(entry.index.0);
        if entry.index == LogIndex(1) {
            let inline = ValueRef::Inline(bytes::Bytes::from_static(b"inline"));
            assert_eq!(
                entry.ops[0],
                ReplayOp::Put { key: b"small", value: inline, expires_at_s: 12 }
            );
            let ReplayOp::Put { value: ValueRef::At(at), .. } = &entry.ops[1] else { panic!() };
            assert_eq!(log.get(at).unwrap(), vec![5; 300]);
            assert_eq!(log.record_of(at).unwrap().version, at.lsn());
            assert_eq!(entry.ops[2], ReplayOp::Delete { key: b"gone" });
            assert_eq!(entry.ops[3], ReplayOp::DeleteRange { start: b"a", end: b"b" });
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(indexes, (1..=100).collect::<Vec<_>>());
    assert!(reads(&disk) - before < 45_000, "sidecars, not values: {}", reads(&disk) - before);
}

#[test]
fn the_iterator_walks_every_physical_record() {
    let disk = disk(8);
    let (log, _) = open(&disk);
    let mut places = Vec::new();
    for index in 1..=80 {
        places.push(put(&log, REGION, index, 300).unwrap().payloads[0]);
    }
    let mut iter = log.iter();
    assert!(!iter.valid());
    iter.seek(Lsn::default()).unwrap();
    for at in &places {
        assert!(iter.valid());
        assert_eq!(iter.at(), *at);
        assert!(matches!(iter.record(), Some(Record::Entry(e)) if e.region == REGION));
        iter.next().unwrap();
    }
    assert!(!iter.valid());
    iter.seek(places[50]).unwrap();
    assert_eq!(iter.at(), places[50]);
}

#[test]
fn recent_entries_come_from_memory() {
    let disk = disk(9);
    let mut options = options();
    options.entry_cache_bytes_max = 1 << 20;
    let (log, _) = open_with(&disk, options, RecoverFrom::default()).unwrap();
    for index in 1..=20 {
        put(&log, REGION, index, 100).unwrap();
    }
    let before = disk_reads(&disk);
    assert_eq!(log.entries(REGION, LogIndex(1), LogIndex(21), usize::MAX).unwrap().len(), 20);
    assert_eq!((disk_reads(&disk), log.stats().cache_hits), (before, 20));
}

#[test]
fn truncated_entries_give_their_memory_back() {
    let disk = disk(10);
    let (log, _) = open(&disk);
    let c = command(&[(b"k", b"v")]);
    let mut index = 0;
    for _ in 0..20 {
        let records = (0..1000).map(|_| {
            index += 1;
            entry(REGION, index, 1, &c)
        });
        log.append(&batch(records.collect())).unwrap();
    }
    let full = log.stats().memory_bytes;
    assert_eq!(log.stats().entries, 20_000);
    truncate(&log, REGION, 19_990).unwrap();
    let after = log.stats();
    assert_eq!(after.entries, 10);
    assert!(full - after.memory_bytes > 20_000 * 23, "{full} {}", after.memory_bytes);
}
