//! Installation of a whole range (a Raft snapshot), interrupted by a crash at every operation.

use crate::common::{DIR, clock, disk, tiny};
use std::path::Path;
use std::sync::Arc;
use stele_engine::{
    EngineView, KeyRange, LogStore, Pair, Replay, ScanOptions, Snapshots, StateMachine, Store,
    VerifyEvent,
};
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimVfs};
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, LogBatch, LogIndex, Mark, Record, RegionId, Term,
};

const REGION: RegionId = RegionId(7);
const AT: (LogIndex, Term) = (LogIndex(40), Term(3));

fn open(disk: &SimVfs) -> stele_engine::Result<Store> {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), tiny(), Replay::Committed).map(|(store, _)| store)
}

fn put(store: &Store, index: u64, term: Term, key: &str) {
    let mut command = CommandBuilder::new();
    command.put(key.as_bytes(), &[index as u8; 200], 0).unwrap();
    let payload = command.build().bytes().clone();
    let index = LogIndex(index);
    let (region, is_command) = (REGION, true);
    let entry = EntryRecord { region, term, index, is_command, payload: payload.clone() };
    store.append(&LogBatch { records: vec![Record::Entry(entry)] }).unwrap();
    store.apply(REGION, &[CommittedEntry { term, index, is_command, payload }]).unwrap();
}

#[test]
fn a_checkpoint_never_passes_an_entry_that_waits_to_be_applied() {
    let store = open(&disk(1)).unwrap();
    put(&store, 1, Term(1), "applied");
    let entry = |region: u64| EntryRecord {
        region: RegionId(region),
        term: Term(1),
        index: LogIndex(1),
        is_command: false,
        payload: vec![1; 100].into(),
    };
    let batch = LogBatch { records: vec![Record::Entry(entry(8)), Record::Entry(entry(9))] };
    store.append(&batch).unwrap();
    let first = store.entries(RegionId(8), LogIndex(1), LogIndex(2), 1).unwrap();
    let waiting = store.log().positions(RegionId(8), &first).unwrap()[0];
    put(&store, 2, Term(1), "applied later in the log");
    store.flush().unwrap();
    let checkpoint = store.index().checkpoint();
    assert_eq!(checkpoint.applied.get(&REGION), Some(&(LogIndex(2), Term(1))));
    assert!(checkpoint.replay_from <= waiting, "{} is past {waiting}", checkpoint.replay_from);
}

fn install(store: &Store) -> stele_engine::Result<()> {
    let pair =
        |n: u8| Pair { key: vec![b'n', n].into(), value: vec![n; 300].into(), expires_at_s: 0 };
    let mut ingest = store.begin_ingest(vec![KeyRange::all()])?;
    store.receive(&mut ingest, (0..20).map(pair).collect())?;
    store.install(REGION, AT, ingest)
}

fn keys(store: &Store) -> usize {
    let pairs = store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 1000)).unwrap();
    pairs.len()
}

/// Creates a store with so many pairs; returns the operations of an installation in it.
fn prepared(pairs: u64) -> (SimVfs, std::ops::Range<u64>) {
    let prepared = disk(3);
    let store = open(&prepared).unwrap();
    for n in 1..=pairs {
        put(&store, n, Term(1), &format!("old-{n}"));
    }
    store.flush().unwrap();
    drop(store);
    let whole = prepared.fork();
    let store = open(&whole).unwrap();
    let before = whole.operations();
    install(&store).unwrap();
    (prepared, before..whole.operations())
}

// Catalogue: 56.
#[test]
fn a_crash_in_an_installation_leaves_the_old_range_or_the_new_one_with_its_log() {
    let (prepared, operations) = prepared(5);
    let (mut old, mut new) = (0, 0);
    for operation in operations {
        for at in CrashAt::ALL {
            let disk = prepared.fork();
            let store = open(&disk).unwrap();
            disk.crash_at(CrashPoint { operation, at });
            let _ = install(&store);
            drop(store);
            let store = open(&disk.restart(operation)).unwrap();
            let place = format!("crash {at:?} operation {operation}");
            let progress = store.progress(REGION).unwrap();
            assert!(progress.truncated.0 <= progress.checkpointed, "{place}: {progress:?}");
            assert!(progress.checkpointed <= progress.applied, "{place}: {progress:?}");
            assert!(progress.applied <= progress.persisted.0, "{place}: {progress:?}");
            let next = progress.applied.0 + 1;
            if progress.applied == AT.0 {
                assert_eq!((keys(&store), progress.persisted), (20, AT), "{place}");
                new += 1;
            } else {
                assert_eq!((keys(&store), next), (5, 6), "{place}");
                old += 1;
            }
            put(&store, next, Term(4), "next");
        }
    }
    println!("installation: {old} crashes before it counted, {new} after");
    assert!(old > 0 && new > 0);
}

#[test]
fn a_device_that_fills_up_during_an_installation_leaves_the_old_range_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    // The log's end lies at any place in the allocated blocks of the file.
    for pairs in 1..=10 {
        let (prepared, operations) = prepared(pairs);
        for from_operation in operations {
            let disk = prepared.fork();
            let store = open(&disk).unwrap();
            disk.inject(Fault::NoSpace { from_operation }).unwrap();
            let installed = install(&store);
            disk.clear_faults();
            let (expected, next) = match installed {
                Ok(()) => (20, AT.0.0 + 1),
                Err(stele_types::Error::NoSpace(_)) => (pairs as usize, pairs + 1),
                Err(other) => panic!("full from operation {from_operation}: {other}"),
            };
            assert_eq!(keys(&store), expected, "full from operation {from_operation}");
            put(&store, next, Term(4), "next");
            (old, new) = (old + usize::from(expected < 20), new + usize::from(expected == 20));
        }
    }
    assert!(old > 0 && new > 0, "{old} {new}");
}

#[test]
fn a_mark_that_cannot_be_written_stops_the_store_and_is_made_at_the_next_open() {
    let disk = disk(5);
    let store = open(&disk).unwrap();
    put(&store, 1, Term(1), "old");
    disk.inject(Fault::WriteFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
    let stopped = install(&store);
    assert!(matches!(stopped, Err(stele_engine::Error::Poisoned(_))), "{stopped:?}");
    let start = Record::Mark(RegionId(8), Mark::Start(LogIndex(0), Term(0)));
    let refused = store.append(&LogBatch { records: vec![start] });
    assert!(matches!(refused, Err(stele_engine::Error::Poisoned(_))), "{refused:?}");
    drop(store);
    let store = open(&disk.restart(1)).unwrap();
    assert_eq!((keys(&store), store.progress(REGION).unwrap().persisted), (20, AT));
}

#[test]
fn fault_57_a_newer_snapshot_during_the_installation_of_one_misses_no_file() {
    let pair = |n: u8, fill: u8| Pair {
        key: vec![b'n', n].into(),
        value: vec![fill; 300].into(),
        expires_at_s: 0,
    };
    let (older_at, newer_at) = (AT, (LogIndex(60), Term(3)));
    for seed in 0..8 {
        let prepared = disk(seed);
        let store = open(&prepared).unwrap();
        let mut older = store.begin_ingest(vec![KeyRange::all()]).unwrap();
        store.receive(&mut older, (0..20).map(|n| pair(n, 1)).collect()).unwrap();
        // The newer one is received while the older one is in progress, and is complete before it.
        let mut newer = store.begin_ingest(vec![KeyRange::all()]).unwrap();
        store.receive(&mut newer, (5..30).map(|n| pair(n, 2)).collect()).unwrap();
        store.maintain(1 << 20).unwrap();
        store.install(REGION, older_at, older).unwrap();
        store.maintain(1 << 20).unwrap();
        if seed % 2 == 0 {
            let operation = prepared.operations() + seed;
            prepared.crash_at(CrashPoint { operation, at: CrashAt::ALL[(seed / 2 % 3) as usize] });
        }
        let installed = store.install(REGION, newer_at, newer).is_ok();
        drop(store);
        let store = open(&prepared.restart(seed)).unwrap();
        let applied = store.progress(REGION).unwrap().applied;
        assert!(applied == newer_at.0 || !installed && applied == older_at.0, "{applied}");
        let pairs = store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 99)).unwrap();
        let (count, fill) = if applied == newer_at.0 { (25, 2) } else { (20, 1) };
        assert_eq!(pairs.len(), count, "seed {seed}");
        assert!(pairs.iter().all(|pair| pair.value[..] == [fill; 300]), "seed {seed}");
        while store.maintain(1 << 20).unwrap().more {}
        assert_eq!(keys(&store), count);
        let mut damage = 0;
        store
            .verify(&mut |event| damage += usize::from(matches!(event, VerifyEvent::Damage { .. })))
            .unwrap();
        assert_eq!(damage, 0, "seed {seed}");
    }
}
