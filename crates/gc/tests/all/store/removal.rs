//! The invariant of removal, each clause alone; the order of a removal.

use crate::store::harness::{Setup, Store, key, value};
use std::sync::atomic::Ordering;
use stele_gc::{Forced, Held, Stage};
use stele_index::Direction;
use stele_simulated_disk::Operation;
use stele_types::{Cause, FileId, KeyRange, Lsn, ValueRef};

const VALUE_BYTES: usize = 4 << 10;

/// Returns a store with 60 keys written twice: once that is known, the first segments hold nothing
/// live.
fn overwritten() -> Store {
    let mut store = Store::new(Setup::default());
    for round in 0..2 {
        for i in 0..60 {
            store.put(&key(i), &value(i, round, VALUE_BYTES));
        }
        if round == 0 {
            store.gc.force(Forced::Flush).unwrap();
        }
    }
    store
}

fn oldest_segment(store: &Store) -> FileId {
    store.log.files().iter().map(|info| info.file).min().unwrap()
}

fn held(store: &Store, file: FileId) -> Option<Held> {
    store.gc.stats().files.iter().find(|state| state.id == file).unwrap().held
}

fn exists(store: &Store, file: FileId) -> bool {
    store.log.files().iter().any(|info| info.file == file)
}

#[test]
fn a_replaced_value_stays_until_a_checkpoint_covers_its_successor() {
    // titan #81: v2 is only in the memtable. If v1's segment were removed now and the memtable
    // lost, the runs would refer to nothing.
    let mut setup = Setup::default();
    setup.gc.discover_bytes_min = 1 << 40;
    let mut store = Store::new(setup);
    for round in 0..2 {
        for i in 0..60 {
            store.put(&key(i), &value(i, round, VALUE_BYTES));
        }
        if round == 0 {
            store.gc.force(Forced::Flush).unwrap();
        }
    }
    stele_gc::GcHooks::truncate(&*store.owner).unwrap();
    let file = oldest_segment(&store);
    store.settle();
    assert_eq!(held(&store, file), Some(Held::Live), "until a merge has seen its successor");
    let covered = store.index.checkpoint().replay_from.file;
    let newest = store.log.files().iter().map(|info| info.file).max().unwrap();
    assert!(newest > covered.next());
    assert_eq!(held(&store, covered.next()), Some(Held::Checkpoint));
    let store = store.crash(5);
    store.check();
    store.gc.force(Forced::MergeAll).unwrap();
    assert!(!exists(&store, file), "and no longer");
    store.check();
}

#[test]
fn a_memtable_alone_keeps_its_segments() {
    // Nothing was ever flushed: no segment is referred to by any run, and all are live.
    let mut store = Store::new(Setup::default());
    for i in 0..60 {
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    let file = oldest_segment(&store);
    assert_eq!(held(&store, file), Some(Held::Checkpoint));
    for _ in 0..20 {
        store.gc.step(u64::MAX).unwrap();
    }
    store.check();
    let store = store.crash(1);
    store.check();
}

#[test]
fn a_segment_some_log_needs_stays() {
    let store = overwritten();
    store.owner.keeps_log.store(true, Ordering::Relaxed);
    let file = oldest_segment(&store);
    store.gc.force(Forced::MergeAll).unwrap();
    store.settle();
    assert_eq!(held(&store, file), Some(Held::Raft));
    let entries = store.log.entries(
        crate::store::harness::REGION,
        stele_types::LogIndex(1),
        stele_types::LogIndex(2),
        1,
    );
    assert_eq!(entries.unwrap().len(), 1, "a follower can still be served");
    store.owner.keeps_log.store(false, Ordering::Relaxed);
    store.gc.force(Forced::MergeAll).unwrap();
    assert!(!exists(&store, file));
    store.check();
}

#[test]
fn a_long_iterator_pins_the_files_it_reads() {
    let store = overwritten();
    let before: Vec<_> = (0..60).map(|i| (key(i), value(i, 1, VALUE_BYTES))).collect();
    store.gc.force(Forced::Flush).unwrap();
    let mut iter = store.index.view().iter(KeyRange::all(), Direction::Forward).unwrap();
    let first = iter.next().unwrap().unwrap();
    store.gc.force(Forced::SortAll).unwrap();
    store.settle();
    let mut found = vec![first];
    while let Some(pair) = iter.next().unwrap() {
        found.push(pair);
    }
    let ids = found.iter().map(|(_, value, _)| match value {
        ValueRef::At(at) => at.file,
        ValueRef::Inline(_) => FileId(0),
    });
    let ids: Vec<FileId> = ids.collect();
    assert_eq!(held(&store, ids[0]), Some(Held::View));
    for ((key, at, _), (expected_key, expected)) in found.iter().zip(&before) {
        let ValueRef::At(at) = at else { panic!("inline") };
        assert_eq!(&key[..], &expected_key[..]);
        assert_eq!(&store.log.get(at).unwrap()[..], &expected[..]);
    }
    drop(iter);
    store.settle();
    assert!(!exists(&store, ids[0]), "freed when no view pins it");
    store.check();
}

#[test]
fn a_view_does_not_hold_what_died_before_it() {
    let store = overwritten();
    store.owner.keeps_log.store(true, Ordering::Relaxed);
    store.gc.force(Forced::MergeAll).unwrap();
    let file = oldest_segment(&store);
    let view = store.index.view();
    store.owner.keeps_log.store(false, Ordering::Relaxed);
    store.gc.force(Forced::SortAll).unwrap();
    assert!(!exists(&store, file));
    drop(view);
    store.settle();
    store.check();
}

#[test]
fn values_of_an_installation_in_progress_stay() {
    let store = overwritten();
    let mut writer = store.log.sorted_writer(Cause::Snapshot).unwrap();
    let at = writer.append(b"snap", Lsn::new(FileId(1), 0), 0, &[7; 100]).unwrap();
    let file = writer.finish().unwrap();
    store.gc.force(Forced::SortAll).unwrap();
    store.gc.force(Forced::Collect).unwrap();
    store.settle();
    assert_eq!(held(&store, file), Some(Held::Job));
    assert_eq!(&store.log.get(&at).unwrap()[..], &[7; 100]);
}

#[test]
fn the_manifest_knows_before_a_file_goes() {
    let store = overwritten();
    store.owner.keeps_log.store(true, Ordering::Relaxed);
    store.gc.force(Forced::MergeAll).unwrap();
    store.owner.keeps_log.store(false, Ordering::Relaxed);
    stele_gc::GcHooks::truncate(&*store.owner).unwrap();
    store.vfs.clear_events();
    let next = store.log.next_file();
    let done = store.gc.step(u64::MAX).unwrap();
    assert_eq!(done.stage, Stage::Reclaim);
    let events = store.vfs.events();
    let is_manifest = |path: &std::path::Path| path.to_string_lossy().contains("manifest-");
    let synced = events.iter().position(|e| e.kind == Operation::Sync && is_manifest(&e.path));
    let gone = |kind| kind == Operation::Rename || kind == Operation::Unlink;
    let removed =
        events.iter().position(|e| gone(e.kind) && e.path.to_string_lossy().contains("/log/"));
    assert!(synced.unwrap() < removed.unwrap(), "{events:?}");
    assert!(store.index.next_file() >= next);
    assert!(store.index.raft_from() > FileId(1));
}
