//! Tests of a store on RocksDB of which one thread appends and another one applies.

#![cfg(feature = "rocksdb")]
use stele_lab::designs::rocks::{RockStore, original};
use stele_storage::{EngineView, LogStore, StateMachine};
use stele_types::*;

const REGION: RegionId = RegionId(2);
const ENTRIES: u64 = 100;

fn batch(index: u64) -> LogBatch {
    let (index, term) = (LogIndex(index), Term(1));
    let mut command = CommandBuilder::new();
    command.put(&index.0.to_be_bytes(), b"value", 0).unwrap();
    let payload = command.build().bytes().clone();
    let entry = EntryRecord { region: REGION, term, index, is_command: true, payload };
    let hard_state = HardState { term, vote: 0, commit: index };
    LogBatch { records: vec![Record::Entry(entry), Record::HardState(REGION, hard_state)] }
}

#[test]
fn entries_that_are_applied_during_an_append_stay_applied() {
    let dir = tempfile::tempdir().unwrap();
    let settings = original(true);
    let store = RockStore::open(dir.path(), &settings).unwrap();
    let progress = || store.progress(REGION).unwrap();
    store.append(&batch(1)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (2..=ENTRIES).for_each(|index| store.append(&batch(index)).unwrap()));
        while progress().applied.0 < ENTRIES {
            let (from, to) = (progress().applied.next(), progress().persisted.0.next());
            let entries = store.entries(REGION, from, to, usize::MAX).unwrap();
            store.apply(REGION, &entries).unwrap();
            assert!(progress().applied.next() >= to, "{:?}, {to}", progress());
        }
    });
    let view = store.view().unwrap();
    (1..=ENTRIES).for_each(|index| assert!(view.get(&index.to_be_bytes()).unwrap().is_some()));
    drop((view, store));
    let store = RockStore::open(dir.path(), &settings).unwrap();
    assert_eq!(store.progress(REGION).unwrap().applied.0, ENTRIES);
}
