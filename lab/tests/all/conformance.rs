//! Engines on RocksDB in the conformance suite of all storage engines.

#![cfg(feature = "rocksdb")]
use std::path::PathBuf;
use stele_conformance::{self as conformance, Factory};
use stele_lab::designs::rocks::{Persistence, RockStore, Settings};
use tempfile::TempDir;

/// Factory that simulates a crash by a drop: data that RocksDB had only in memory is lost, as when
/// the process is killed.
struct RockFactory(Persistence);

impl Factory for RockFactory {
    type Engine = RockStore;
    type Disk = TempDir;

    fn disk(&self, _seed: u64) -> TempDir {
        tempfile::tempdir().unwrap()
    }

    fn open(&self, disk: &TempDir) -> stele_types::Result<RockStore> {
        RockStore::open(disk.path(), &Settings::tiny(self.0))
    }

    fn crash(&self, disk: TempDir, engine: RockStore, _seed: u64) -> TempDir {
        drop(engine);
        disk
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-lab --features rocksdb --test all conformance".into()
    }
}

fn check(persistence: Persistence) {
    let factory = RockFactory(persistence);
    assert!(conformance::run(&factory).unwrap() > 30);
    let seeds = match std::env::var("STELE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..2).collect(),
    };
    for seed in seeds {
        if let Err(failure) = conformance::random(&factory, seed, 100) {
            panic!("{failure}");
        }
    }
}

#[test]
fn original_keeps_every_law() {
    check(Persistence::Log);
}

#[test]
fn original_with_a_sync_for_every_application_keeps_every_law() {
    check(Persistence::SyncedLog);
}

#[test]
fn pasv_keeps_every_law() {
    check(Persistence::Flushes);
}

#[test]
fn lsm_raft_keeps_every_law() {
    check(Persistence::Tables);
}

#[test]
fn dwisckey_keeps_every_law() {
    check(Persistence::FlushesAndValueLog);
}

/// A drop loses data that is only in memory, so the suite's crashes are real.
#[test]
fn a_dropped_store_without_a_log_has_applied_again_from_the_raft_log() {
    use stele_storage::{EngineView, LogStore, StateMachine};
    use stele_types::*;
    let dir = tempfile::tempdir().unwrap();
    let open = || RockStore::open(dir.path(), &Settings::tiny(Persistence::Flushes)).unwrap();
    let store = open();
    let mut command = CommandBuilder::new();
    command.put(b"k", b"v", 0).unwrap();
    let payload = command.build().bytes().clone();
    let (region, term, index) = (RegionId(1), Term(1), LogIndex(1));
    let entry = EntryRecord { region, term, index, is_command: true, payload };
    store.append(&LogBatch { records: vec![Record::Entry(entry)] }).unwrap();
    let entries = store.entries(region, index, LogIndex(2), usize::MAX).unwrap();
    store.apply(region, &entries).unwrap();
    assert!(store.view().unwrap().get(b"k").unwrap().is_some());
    drop(store);
    let store = open();
    assert_eq!(store.progress(region).unwrap().applied, LogIndex(0), "it was not committed");
    assert!(store.view().unwrap().get(b"k").unwrap().is_none());
    let hard_state = HardState { term, vote: 0, commit: index };
    store.append(&LogBatch { records: vec![Record::HardState(region, hard_state)] }).unwrap();
    drop(store);
    let store = open();
    assert_eq!(store.progress(region).unwrap().applied, index);
    assert!(PathBuf::from(dir.path()).join("raft").is_dir());
    assert!(store.view().unwrap().get(b"k").unwrap().is_some());
}
