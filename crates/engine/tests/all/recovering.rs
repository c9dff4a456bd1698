//! Stores that do not open without lost log entries, until copies from other stores restore them.

use crate::common::{DIR, Random, clock, disk, mark, tiny};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{
    EngineView, Error, KeyRange, LogStore, Options, RecoveringStore, Repair, Replay, Result,
    ScanOptions, StateMachine, Store,
};
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimVfs};
use stele_storage::{LostEntry, RecoverableLog as _};
use stele_types::{
    ClusterId, CommandBuilder, CommittedEntry, EntryRecord, HardState, LogBatch, LogIndex, Mark,
    Record, RegionId, StoreId, StoreIdent, Term, TickMillis, checksum::crc32c, keyspace,
};
use stele_vfs::Vfs;

const JOURNAL: RegionId = RegionId(0);
const REGION: RegionId = RegionId(7);
const IDENT: StoreIdent = StoreIdent {
    cluster: ClusterId(77),
    store: StoreId(3),
    tick: Some(TickMillis::OF_NEW_CLUSTERS),
};

fn open(disk: &SimVfs) -> Result<Store> {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), tiny(), Replay::Committed).map(|(store, _)| store)
}

fn begin(disk: &SimVfs) -> Option<RecoveringStore> {
    RecoveringStore::begin(Arc::new(disk.clone()), Path::new(DIR), &tiny()).unwrap()
}

struct Written {
    store: Store,
    pairs: BTreeMap<Bytes, Bytes>,
    payloads: BTreeMap<(RegionId, LogIndex), Bytes>,
    last: BTreeMap<RegionId, LogIndex>,
}

impl Written {
    fn new(disk: &SimVfs) -> Self {
        let (pairs, payloads, last) = Default::default();
        Self { store: open(disk).unwrap(), pairs, payloads, last }
    }

    fn write(&mut self, region: RegionId, pairs: &[(Bytes, Bytes)]) {
        let mut records = Vec::new();
        let last = self.last.entry(region).or_insert_with(|| {
            records.push(Record::Mark(region, Mark::Start(LogIndex(0), Term(0))));
            LogIndex(0)
        });
        let mut payloads = Vec::new();
        for (key, value) in pairs {
            let mut command = CommandBuilder::new();
            command.put(key, value, 0).unwrap();
            let payload = command.build().bytes().clone();
            *last = last.next();
            let (index, term, is_command) = (*last, Term(1), true);
            self.payloads.insert((region, index), payload.clone());
            payloads.push((index, payload.clone()));
            let entry = EntryRecord { region, term, index, is_command, payload };
            records.push(Record::Entry(entry));
            self.pairs.insert(key.clone(), value.clone());
        }
        let hard_state = HardState { term: Term(1), vote: 0, commit: *last };
        records.push(Record::HardState(region, hard_state));
        self.store.append(&LogBatch { records }).unwrap();
        let entry = |(index, payload): (LogIndex, Bytes)| {
            let (term, is_command) = (Term(1), true);
            CommittedEntry { term, index, is_command, payload }
        };
        let entries: Vec<_> = payloads.into_iter().map(entry).collect();
        self.store.apply(region, &entries).unwrap();
    }

    fn lost(&self, region: RegionId, index: u64) -> LostEntry {
        let payload = &self.payloads[&(region, LogIndex(index))];
        let (bytes, crc) = (payload.len() as u32, crc32c(payload));
        LostEntry { region, index: LogIndex(index), term: Term(1), bytes, crc }
    }
}

fn pair(n: u64, bytes: usize) -> (Bytes, Bytes) {
    (Bytes::from(format!("\u{1}key-{n:04}")), Random(n).bytes(bytes).into())
}

/// Creates a store with its identity, and 30 entries of a region in 15 batches, none of it in runs.
fn written(disk: &SimVfs) -> Written {
    let mut written = Written::new(disk);
    written.write(JOURNAL, &IDENT.pairs());
    for n in (0..30).step_by(2) {
        written.write(REGION, &[pair(n, 90), pair(n + 1, 400)]);
    }
    written
}

fn damage(disk: &SimVfs, payload: &[u8], delta: usize) {
    let mut found = 0;
    for path in segments(disk) {
        let bytes = disk.read_file(&path).unwrap();
        for at in 0..bytes.len().saturating_sub(payload.len()) {
            if bytes[at..].starts_with(payload) {
                let offset = (at + delta) as u64;
                disk.inject(Fault::FlipBit { path: path.clone(), offset, bit: 5 }).unwrap();
                found += 1;
            }
        }
    }
    assert!(found > 0);
}

fn segments(disk: &SimVfs) -> Vec<PathBuf> {
    let paths = disk.paths().into_iter();
    paths.filter(|path| path.extension().is_some_and(|kind| kind == "seg")).collect()
}

fn log_files(disk: &SimVfs) -> Vec<(PathBuf, Vec<u8>)> {
    let paths = disk.paths().into_iter().filter(|path| path.starts_with("/store/log"));
    paths.map(|path| (path.clone(), disk.read_file(&path).unwrap())).collect()
}

fn is_right(store: &Store, pairs: &BTreeMap<Bytes, Bytes>) {
    let found = store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), usize::MAX)).unwrap();
    let found: BTreeMap<Bytes, Bytes> =
        found.into_iter().map(|pair| (pair.key, pair.value)).collect();
    assert_eq!(&found, pairs);
}

#[test]
fn fault_11_a_store_opens_once_its_lost_entries_are_back_and_shows_all_it_acknowledged() {
    let disk = disk(1);
    let Written { store, pairs, payloads, .. } = written(&disk);
    drop(store);
    let before = log_files(&disk);
    let lost: Vec<u64> = vec![3, 4, 17, 22];
    for index in &lost {
        damage(&disk, &payloads[&(REGION, LogIndex(*index))], 30);
    }
    let damaged = log_files(&disk);
    assert!(matches!(open(&disk), Err(Error::Corrupt { .. })));
    let mut recovering = begin(&disk).unwrap();
    assert_eq!(recovering.ident(), Some(IDENT));
    assert!(matches!(open(&disk), Err(Error::Locked { .. })), "it holds the lock");
    assert_eq!(log_files(&disk), damaged, "a survey changes nothing in the log");
    // A few at a time, cyclically.
    let mut requested = Vec::new();
    for _ in 0..4 {
        requested.extend(recovering.lost_entries(3));
    }
    let indices: Vec<u64> = requested.iter().map(|lost| lost.index.0).collect();
    assert_eq!(indices, [3, 4, 17, 22, 3, 4, 17, 22]);
    for lost in &requested[..4] {
        assert!(!recovering.is_recovered());
        let payload = &payloads[&(REGION, lost.index)];
        assert!(lost.is_copy(payload) && lost.region == REGION && lost.term == Term(1));
        let mut wrong = payload.to_vec();
        wrong[20] ^= 8;
        assert!(!recovering.restore_entry(lost, &wrong).unwrap());
        assert!(!recovering.restore_entry(&LostEntry { term: Term(2), ..*lost }, payload).unwrap());
        assert_eq!(recovering.find(lost), None);
        assert!(recovering.restore_entry(lost, payload).unwrap());
        assert_eq!(recovering.find(lost).as_ref(), Some(payload));
        assert!(!recovering.restore_entry(lost, payload).unwrap(), "it is no longer lost");
    }
    assert!(recovering.is_recovered() && recovering.lost_entries(9).is_empty());
    drop(recovering);
    assert_eq!(log_files(&disk), before);
    assert!(begin(&disk).is_none());
    is_right(&open(&disk).unwrap(), &pairs);
}

// Catalogue: 11.
#[test]
fn two_stores_that_lost_different_entries_repair_each_other() {
    let disks = [disk(2), disk(3)];
    let stores: Vec<Written> = disks.iter().map(written).collect();
    let pairs = stores[0].pairs.clone();
    for (n, written) in stores.into_iter().enumerate() {
        let Written { store, payloads, .. } = written;
        drop(store);
        for index in [5 + n as u64, 9 + n as u64] {
            damage(&disks[n], &payloads[&(REGION, LogIndex(index))], 40);
        }
    }
    let mut recovering: Vec<RecoveringStore> =
        disks.iter().map(|disk| begin(disk).unwrap()).collect();
    for (n, other) in [(0, 1), (1, 0)] {
        for lost in recovering[n].lost_entries(10) {
            let copy = recovering[other].find(&lost).unwrap();
            assert_eq!(recovering[other].find(&LostEntry { crc: lost.crc ^ 1, ..lost }), None);
            assert!(recovering[n].restore_entry(&lost, &copy).unwrap());
        }
    }
    assert!(recovering.iter().all(RecoveringStore::is_recovered));
    drop(recovering);
    disks.iter().for_each(|disk| is_right(&open(disk).unwrap(), &pairs));
}

// Catalogue: 11.
#[test]
fn what_copies_cannot_restore_is_left_to_opening() {
    let fresh = disk(4);
    assert!(begin(&fresh).is_none(), "there is no store");
    assert!(fresh.paths().is_empty());
    let whole = disk(5);
    let Written { store, payloads, pairs, .. } = written(&whole);
    let locked = RecoveringStore::begin(Arc::new(whole.clone()), Path::new(DIR), &tiny());
    assert!(matches!(locked, Err(Error::Locked { .. })));
    drop(store);
    assert!(begin(&whole).is_none(), "nothing is lost");
    damage(&whole, &payloads[&(REGION, LogIndex(6))], 30);

    let other = whole.fork();
    // The header of another batch.
    let path = segments(&other).remove(0);
    other.inject(Fault::FlipBit { path, offset: 512 * 5 + 9, bit: 1 }).unwrap();
    assert!(begin(&other).is_none());
    assert!(matches!(open(&other), Err(Error::Corrupt { .. })));

    let other = whole.fork();
    other.write_file(Path::new(DIR).join("STORE"), b"#!/bin/sh\n");
    assert!(begin(&other).is_none());
    assert!(matches!(open(&other), Err(Error::WrongStore { .. })));

    let other = whole.fork();
    let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("manifest-");
    let manifest = other.paths().into_iter().find(is_manifest).unwrap();
    other.unlink(&manifest).unwrap();
    assert!(begin(&other).is_none());
    assert!(open(&other).is_err());

    whole.inject(Fault::ReadFails { path_contains: ".seg".into(), nth: 2 }).unwrap();
    let failed = RecoveringStore::begin(Arc::new(whole.clone()), Path::new(DIR), &tiny());
    assert!(matches!(failed, Err(Error::Io { .. })));
    let mut recovering = begin(&whole).unwrap();
    let lost = recovering.lost_entries(9);
    assert_eq!(lost.len(), 1);
    assert!(recovering.restore_entry(&lost[0], &payloads[&(REGION, LogIndex(6))]).unwrap());
    drop(recovering);
    is_right(&open(&whole).unwrap(), &pairs);
}

// Catalogue: 11.
#[test]
fn a_store_knows_its_identity_before_it_opens_wherever_that_lies() {
    for (in_run, lost, inline_max) in
        [(false, false, 64), (false, true, 64), (true, false, 64), (true, false, 0)]
    {
        let disk = disk(6);
        let options = Options { inline_value_bytes_max: inline_max, ..tiny() };
        let vfs = Arc::new(disk.clone());
        let (store, _) =
            Store::open(vfs, clock(), Path::new(DIR), options.clone(), Replay::Committed).unwrap();
        let (pairs, payloads, last) = Default::default();
        let mut written = Written { store, pairs, payloads, last };
        written.write(JOURNAL, &IDENT.pairs());
        if in_run {
            written.store.checkpoint().unwrap();
        }
        (0..3).for_each(|n| written.write(REGION, &[pair(n, 300)]));
        let entry = written.lost(REGION, 2);
        let Written { store, payloads, .. } = written;
        drop(store);
        damage(&disk, &payloads[&(REGION, LogIndex(2))], 30);
        if lost {
            damage(&disk, &payloads[&(JOURNAL, LogIndex(1))], 4);
        }
        let vfs = Arc::new(disk.clone());
        let mut recovering =
            RecoveringStore::begin(vfs, Path::new(DIR), &options).unwrap().unwrap();
        assert_eq!(recovering.ident(), (!lost).then_some(IDENT), "{in_run} {inline_max}");
        assert!(recovering.lost_entries(5).contains(&entry));
    }
}

// Catalogue: 11, 13.
#[test]
fn an_entry_whose_effects_are_in_runs_keeps_no_replica_from_opening_and_its_value_is_asked_for() {
    let disk = disk(7);
    let mut written = written(&disk);
    written.store.checkpoint().unwrap();
    written.write(REGION, &[pair(50, 400)]);
    written.write(REGION, &[pair(51, 400)]);
    let Written { store, pairs, payloads, .. } = written;
    drop(store);
    damage(&disk, &payloads[&(REGION, LogIndex(4))], 200);
    let needed = disk.fork();
    damage(&needed, &payloads[&(REGION, LogIndex(31))], 200);
    let mut recovering = begin(&needed).unwrap();
    let lost = recovering.lost_entries(9);
    assert_eq!(lost.len(), 1, "entries in runs are not requested: {lost:?}");
    let alone = disk.fork();
    mark(&alone, "embedded");
    let opened = open_as(&alone, Replay::All);
    assert!(opened.is_err_and(|error| error.is_damage()), "without replicas it is damage");
    assert!(recovering.restore_entry(&lost[0], &payloads[&(REGION, LogIndex(31))]).unwrap());
    assert!(recovering.is_recovered());
    drop(recovering);
    for disk in [disk, needed] {
        assert!(begin(&disk).is_none());
        let store = open(&disk).unwrap();
        let view = store.view().unwrap();
        let (key, value) = pair(3, 400);
        for (other, value) in pairs.iter().filter(|(other, _)| **other != key) {
            assert_eq!(&view.get(other).unwrap().unwrap().value, value);
        }
        assert!(matches!(view.get(&key), Err(Error::Corrupt { .. })));
        drop(view);
        store.maintain(1 << 20).unwrap();
        assert_eq!(store.lost_values(9).len(), 1);
        store.repair_value(&key, value);
        for _ in 0..3 {
            store.maintain(1 << 20).unwrap();
        }
        is_right(&store, &pairs);
        store.compact().unwrap();
        drop(store);
        is_right(&open(&disk).unwrap(), &pairs);
    }
}

fn open_as(disk: &SimVfs, replay: Replay) -> Result<Store> {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), tiny(), replay).map(|(store, _)| store)
}

// Catalogue: 11, 12.
#[test]
fn power_cuts_while_copies_come_in_lose_nothing() {
    let prepared = disk(8);
    let Written { store, pairs, payloads, .. } = written(&prepared);
    drop(store);
    prepared.crash_now();
    let prepared = prepared.restart(1);
    for index in [2, 3, 20] {
        damage(&prepared, &payloads[&(REGION, LogIndex(index))], 50);
    }
    let recover = |disk: &SimVfs| -> Result<()> {
        let vfs = Arc::new(disk.clone());
        let Some(mut recovering) = RecoveringStore::begin(vfs, Path::new(DIR), &tiny())? else {
            return Ok(());
        };
        for lost in recovering.lost_entries(10) {
            assert!(recovering.restore_entry(&lost, &payloads[&(REGION, lost.index)])?);
        }
        Ok(())
    };
    let whole = prepared.fork();
    let before = whole.operations();
    recover(&whole).unwrap();
    let operations = before..whole.operations();
    let (mut opened, mut refused) = (0, 0);
    for (operation, at) in operations.flat_map(|it| CrashAt::ALL.map(|at| (it, at))) {
        let disk = prepared.fork();
        disk.crash_at(CrashPoint { operation, at });
        let _ = recover(&disk);
        let disk = disk.restart(operation);
        match open(&disk.fork()) {
            Ok(store) => {
                is_right(&store, &pairs);
                opened += 1;
            }
            Err(error) => {
                assert!(error.is_damage(), "{operation} {at:?}: {error}");
                refused += 1;
            }
        }
        recover(&disk).unwrap();
        is_right(&open(&disk).unwrap(), &pairs);
    }
    assert!(opened > 0 && refused > 5, "{opened} opened, {refused} refused");
}

// Catalogue: 11.
#[test]
fn what_a_replica_has_to_read_behind_a_sidecar_comes_back_before_it_opens() {
    let disk = disk(20);
    let mut written = written(&disk);
    let descriptor: Bytes = Random(5).bytes(150).into();
    written.write(REGION, &[(keyspace::region_key(REGION), descriptor)]);
    // Two entries that are not committed yet.
    let mut records = Vec::new();
    for index in [32, 33] {
        let mut command = CommandBuilder::new();
        let (key, value) = pair(1000 + index, 200);
        command.put(&key, &value, 0).unwrap();
        let (region, index, term) = (REGION, LogIndex(index), Term(1));
        let payload = command.build().bytes().clone();
        written.payloads.insert((region, index), payload.clone());
        let entry = EntryRecord { region, index, term, is_command: true, payload };
        records.push(Record::Entry(entry));
    }
    written.store.append(&LogBatch { records }).unwrap();
    let lost: Vec<u64> = vec![31, 32, 33];
    let mut n = 100;
    while segments(&disk).len() < 3 {
        written.write(RegionId(8), &[pair(n, 900)]);
        n += 1;
    }
    let Written { store, pairs, payloads, .. } = written;
    drop(store);
    for index in &lost {
        damage(&disk, &payloads[&(REGION, LogIndex(*index))], 60);
    }
    // Users' values are recorded as lost when they are read.
    damage(&disk, &payloads[&(REGION, LogIndex(4))], 200);
    assert!(matches!(open(&disk), Err(Error::Corrupt { .. })));
    let mut recovering = begin(&disk).unwrap();
    let requested = recovering.lost_entries(9);
    assert_eq!(requested.iter().map(|lost| lost.index.0).collect::<Vec<_>>(), lost);
    for lost in &requested {
        assert!(recovering.restore_entry(lost, &payloads[&(REGION, lost.index)]).unwrap());
    }
    assert!(recovering.is_recovered());
    drop(recovering);
    let store = open(&disk).unwrap();
    let (key, value) = pair(3, 400);
    assert!(store.view().unwrap().get(&key).is_err());
    store.maintain(1 << 20).unwrap();
    store.repair_value(&key, value);
    store.maintain(1 << 20).unwrap();
    is_right(&store, &pairs);
    let found = store.entries(REGION, LogIndex(32), LogIndex(34), 1 << 20).unwrap();
    let expected = [32, 33].map(|index| payloads[&(REGION, LogIndex(index))].clone());
    assert_eq!(found.into_iter().map(|entry| entry.payload).collect::<Vec<_>>(), expected);
}
