//! One thread appends while another applies: a batch that waits for the device delays nothing else.

use crate::common::{DIR, clock, disk, tiny};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use stele_engine::{
    EngineView, Error, KeyRange, LogStore, Replay, ScanOptions, StateMachine, Store,
};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, HardState, LogBatch, LogIndex, Mark, Record,
    RegionId, Term,
};

const REGION: RegionId = RegionId(1);
const LEAVING: RegionId = RegionId(2);
const STALL_MAX: Duration = Duration::from_secs(10);

fn open(disk: &SimVfs) -> Store {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), tiny(), Replay::Committed).unwrap().0
}

fn records(region: RegionId, index: u64, key: &str) -> Vec<Record> {
    let mut command = CommandBuilder::new();
    command.put(key.as_bytes(), &[index as u8; 200], 0).unwrap();
    let (term, index, is_command) = (Term(1), LogIndex(index), true);
    let payload = command.build().bytes().clone();
    let state = HardState { term, vote: 1, commit: index };
    let entry = EntryRecord { region, term, index, is_command, payload };
    vec![Record::Entry(entry), Record::HardState(region, state)]
}

fn entry(store: &Store, region: RegionId, index: u64) -> Vec<CommittedEntry> {
    store.entries(region, LogIndex(index), LogIndex(index + 1), 1 << 20).unwrap()
}

fn keys(store: &Store) -> Vec<String> {
    let pairs = store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 1000)).unwrap();
    pairs.iter().map(|pair| String::from_utf8_lossy(&pair.key).into_owned()).collect()
}

/// Appends records on another thread, for which the store writes so many batches. Runs `meanwhile`
/// while the sync of the last one waits for the device, and fails if that did not finish before.
fn append_meanwhile(
    disk: &SimVfs,
    store: &Store,
    records: Vec<Record>,
    batches: u64,
    meanwhile: impl FnOnce(&Store),
) {
    let (stalled, is_stalled) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (result, is_released) = mpsc::channel();
    let released = Mutex::new(released);
    disk.on_stall(move |_| {
        stalled.send(()).unwrap();
        result.send(released.lock().recv_timeout(STALL_MAX).is_ok()).unwrap();
    });
    // Each batch is a write and a sync.
    let nth = 2 * batches;
    disk.inject(Fault::Stall { path_contains: ".seg".into(), nth }).unwrap();
    std::thread::scope(|scope| {
        let appending = scope.spawn(|| store.append(&LogBatch { records }));
        is_stalled.recv().unwrap();
        meanwhile(store);
        let _ = release.send(());
        appending.join().unwrap().unwrap();
    });
    assert!(is_released.recv().unwrap(), "another call waited for the sync of the batch");
}

#[test]
fn while_a_batch_is_in_its_sync_entries_are_applied_checkpointed_and_read() {
    let disk = disk(1);
    let store = open(&disk);
    for index in 1..=3 {
        store.append(&LogBatch { records: records(REGION, index, &format!("k{index}")) }).unwrap();
    }
    store.apply(REGION, &entry(&store, REGION, 1)).unwrap();
    let head = store.log().head();
    append_meanwhile(&disk, &store, records(REGION, 4, "k4"), 1, |store| {
        assert!(entry(store, REGION, 4).is_empty(), "an entry is readable before its sync");
        store.apply(REGION, &entry(store, REGION, 2)).unwrap();
        let view = store.view().unwrap();
        assert_eq!(view.get(b"k2").unwrap().unwrap().value, vec![2; 200]);
        store.checkpoint().unwrap();
        store.apply(REGION, &entry(store, REGION, 3)).unwrap();
        store.checkpoint().unwrap();
        assert_eq!(keys(store), ["k1", "k2", "k3"]);
        let progress = store.progress(REGION).unwrap();
        assert_eq!((progress.checkpointed, progress.persisted.0), (LogIndex(3), LogIndex(3)));
    });
    let checkpoint = store.index().checkpoint();
    assert!(checkpoint.replay_from <= head, "{} is past {head}", checkpoint.replay_from);
    assert_eq!(store.progress(REGION).unwrap().persisted.0, LogIndex(4));
    drop(store);
    let store = open(&disk.restart(1));
    assert_eq!(keys(&store), ["k1", "k2", "k3", "k4"], "the hard state commits the last entry");
}

/// Ends a region, with and without an applied entry, while its last entry is not applied.
fn end_region(mark: &Mark, is_applied: bool) {
    let place = format!("{mark:?}, applied {is_applied}");
    let disk = disk(2);
    let store = open(&disk);
    let last = if is_applied { 2 } else { 1 };
    let mut batch: Vec<Record> =
        (1..=last).flat_map(|index| records(LEAVING, index, &format!("a{index}"))).collect();
    batch.extend(records(REGION, 1, "b"));
    batch.retain(|record| !matches!(record, Record::HardState(..)));
    store.append(&LogBatch { records: batch }).unwrap();
    if is_applied {
        store.apply(LEAVING, &entry(&store, LEAVING, 1)).unwrap();
    }
    let unapplied = entry(&store, LEAVING, last);
    let ends = vec![Record::Mark(LEAVING, mark.clone())];
    // The store first truncates what the region applied.
    append_meanwhile(&disk, &store, ends, last, |store| {
        let refused = store.apply(LEAVING, &unapplied);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{place}: {refused:?}");
        store.apply(REGION, &entry(store, REGION, 1)).unwrap();
        store.checkpoint().unwrap();
        assert_eq!(store.index().checkpoint().applied.get(&LEAVING), None, "{place}");
    });
    drop(store);
    let store = open(&disk.restart(3));
    let progress = store.progress(LEAVING).unwrap();
    assert_eq!(progress.destroyed, *mark == Mark::Destroy, "{place}: {progress:?}");
    assert_eq!(progress.applied, progress.truncated.0, "{place}: {progress:?}");
    let wanted: &[&str] = if is_applied { &["a1", "b"] } else { &["b"] };
    assert_eq!(keys(&store), wanted, "{place}");
    store.append(&LogBatch { records: records(REGION, 2, "c") }).unwrap();
    store.apply(REGION, &entry(&store, REGION, 2)).unwrap();
}

#[test]
fn a_checkpoint_beside_the_batch_that_ends_a_region_does_not_hold_the_region() {
    for mark in [Mark::Destroy, Mark::Start(LogIndex(0), Term(0))] {
        end_region(&mark, false);
        end_region(&mark, true);
    }
}
