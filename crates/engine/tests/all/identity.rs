//! Identity of a directory: one process, one store, one format.

use crate::common::{DIR, clock, disk, open, tiny, unmark};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{
    Db, DirectoryKind, Error, Options, Partition, Replay, SetId, ShardPlace, Shards, ShardsOptions,
    Store, directory_kind,
};
use stele_simulated_disk::{CrashAt, CrashPoint, SimVfs};
use stele_types::{Level, StoreId};
use stele_vfs::Vfs;

// Catalogue: 7.
#[test]
fn the_second_opener_of_a_directory_is_refused_by_name() {
    let disk = disk(1);
    let first = open(&disk, &tiny()).unwrap();
    let second = open(&disk, &tiny());
    let message = second.unwrap_err().to_string();
    assert!(
        message.contains("/store") && message.contains("in use by another process"),
        "{message}"
    );
    first.put(b"k", b"v").unwrap();
    drop(first);
    assert_eq!(open(&disk, &tiny()).unwrap().get(b"k").unwrap().unwrap(), b"v"[..]);
}

#[test]
fn a_newer_format_is_refused_and_nothing_is_changed() {
    let disk = disk(1);
    open(&disk, &tiny()).unwrap().put(b"k", b"v").unwrap();
    let path = PathBuf::from(DIR).join("STORE");
    let old = disk.read_file(&path).unwrap();
    let body = "stele store\nformat 9\nstore 1\n";
    let text = format!("{body}crc32c {:08x}\n", stele_types::checksum::crc32c(body.as_bytes()));
    disk.write_file(&path, text.as_bytes());
    let operations = disk.operations();
    let refused = open(&disk, &tiny()).unwrap_err();
    assert!(matches!(refused, Error::NewerFormat { found: 9, supported: 3, .. }), "{refused}");
    let changes = disk.events().into_iter().filter(|event| event.operation >= operations);
    assert_eq!(changes.filter(|event| event.path != Path::new(DIR).join("LOCK")).count(), 0);
    disk.write_file(&path, &old);
    assert_eq!(open(&disk, &tiny()).unwrap().get(b"k").unwrap().unwrap(), b"v"[..]);
}

#[test]
fn another_store_and_another_program_are_refused() {
    let disk = disk(1);
    let vfs = Arc::new(disk.clone());
    let with = |store| Options { store: Some(StoreId(store)), ..tiny() };
    drop(Db::open_with(vfs.clone(), clock(), Path::new(DIR), with(7)).unwrap());
    let other = Db::open_with(vfs.clone(), clock(), Path::new(DIR), with(8)).unwrap_err();
    assert!(
        matches!(&other, Error::WrongStore { detail, .. } if detail.contains("store 7")),
        "{other}"
    );
    drop(Db::open_with(vfs, clock(), Path::new(DIR), with(7)).unwrap());
    disk.write_file(PathBuf::from(DIR).join("STORE"), b"#!/bin/sh\n");
    assert!(matches!(open(&disk, &tiny()), Err(Error::WrongStore { .. })));
    disk.write_file(
        PathBuf::from(DIR).join("STORE"),
        b"stele store\nformat 1\nstore 7\ncrc32c 0\n",
    );
    assert!(matches!(open(&disk, &tiny()), Err(Error::Corrupt { .. })));
}

fn open_node(disk: &SimVfs, options: Options) -> stele_engine::Result<Store> {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), options, Replay::Committed).map(|(store, _)| store)
}

fn kind(disk: &SimVfs) -> Option<DirectoryKind> {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    directory_kind(&vfs, Path::new(DIR)).unwrap()
}

/// Asserts that opening was refused with these words, and that nothing but the lock was touched.
#[track_caller]
fn refused<T>(disk: &SimVfs, words: &str, open: impl FnOnce() -> stele_engine::Result<T>) {
    let operations = disk.operations();
    let Err(error) = open() else { panic!("opened") };
    assert!(matches!(error, Error::WrongStore { .. }), "{error}");
    assert!(error.to_string().contains(words), "{error}");
    let changes = disk.events().into_iter().filter(|event| event.operation >= operations);
    assert_eq!(changes.filter(|event| event.path != Path::new(DIR).join("LOCK")).count(), 0);
}

#[test]
fn a_directory_of_a_node_is_no_embedded_store_and_the_other_way_round() {
    let (node, embedded) = (disk(1), disk(2));
    assert_eq!(kind(&node), None);
    let identity = Options { store: Some(StoreId(77)), ..tiny() };
    drop(open_node(&node, identity).unwrap());
    open(&embedded, &tiny()).unwrap().put(b"k", b"v").unwrap();
    assert_eq!(kind(&node), Some(DirectoryKind::Node));
    assert_eq!(kind(&embedded), Some(DirectoryKind::Embedded));
    refused(&node, "use `--cluster ADDRESS`", || open(&node, &tiny()));
    refused(&embedded, "`stele export` reads", || open_node(&embedded, tiny()));
    drop(open_node(&node, tiny()).unwrap());
    assert_eq!(open(&embedded, &tiny()).unwrap().get(b"k").unwrap().unwrap(), b"v"[..]);
}

#[test]
fn directories_without_a_mark_are_recognised_by_their_identity() {
    let (node, embedded, shard) = (disk(1), disk(2), disk(3));
    let random = Options { store: Some(StoreId(0x9e37_79b9_7f4a_7c15)), ..tiny() };
    drop(open_node(&node, random.clone()).unwrap());
    drop(open(&embedded, &Options { store: Some(StoreId(1)), ..tiny() }).unwrap());
    let vfs: Arc<dyn Vfs> = Arc::new(shard.clone());
    let place = |dir: &str| ShardPlace { vfs: vfs.clone(), dir: dir.into(), options: tiny() };
    let options = ShardsOptions::new(Partition::Hash, SetId(1));
    drop(Shards::open_with(vec![place("/other"), place(DIR)], clock(), options).unwrap());
    [&node, &embedded, &shard].into_iter().for_each(unmark);
    assert_eq!(kind(&node), Some(DirectoryKind::Node));
    assert_eq!(kind(&embedded), Some(DirectoryKind::Embedded));
    assert_eq!(kind(&shard), Some(DirectoryKind::Embedded), "the second shard is store 2");
    refused(&node, "use `--cluster ADDRESS`", || open(&node, &tiny()));
    refused(&embedded, "`stele export` reads", || open_node(&embedded, tiny()));
    drop(open_node(&node, tiny()).unwrap());
    drop(open(&embedded, &tiny()).unwrap());
    // A caller that chose the identity itself knows the directory.
    drop(open(&node, &random).unwrap());
}

#[test]
fn settings_out_of_bounds_are_named_before_anything_is_made() {
    let disk = disk(1);
    let bad = open(&disk, &Options { memtable_bytes_max: 1, ..tiny() }).unwrap_err().to_string();
    assert!(bad.contains("memtable_bytes_max is 1"), "{bad}");
    assert_eq!(disk.operations(), 0);
}

#[test]
fn new_stores_have_identities_that_no_client_knows() {
    let identities: Vec<StoreId> =
        (1..20).map(|seed| open(&disk(seed), &tiny()).unwrap().store().id()).collect();
    assert!(identities.iter().all(|id| id.0 > 1 << 32), "{identities:?}");
    let distinct: std::collections::BTreeSet<_> = identities.iter().collect();
    assert_eq!(distinct.len(), identities.len());
    let disk = disk(7);
    let id = open(&disk, &tiny()).unwrap().store().id();
    assert_eq!(open(&disk, &tiny()).unwrap().store().id(), id, "it stays");
}

fn store_file(disk: &SimVfs) -> String {
    String::from_utf8(disk.read_file(Path::new(DIR).join("STORE")).unwrap()).unwrap()
}

/// The first lines are those that the versions before levels wrote; they read up to format 2.
#[test]
fn a_level_is_durable_when_it_is_recorded_and_is_never_lowered() {
    let options = Options { store: Some(StoreId(77)), ..tiny() };
    for seed in 0..20 {
        let disk = disk(seed);
        let store = open_node(&disk, options.clone()).unwrap();
        assert_eq!(store.level(), Level::OLDEST);
        let before = store_file(&disk);
        assert!(
            before.starts_with("stele store\nformat 2\nkind node\nstore 77\ncrc32c "),
            "{before}"
        );
        store.record_level(Level::OLDEST).unwrap();
        assert_eq!(store_file(&disk), before, "nothing is written for the oldest level");
        store.record_level(Level::MOMENTS).unwrap();
        store.record_level(Level::OLDEST).unwrap();
        assert_eq!(store.level(), Level::MOMENTS);
        disk.crash_now();
        let disk = disk.restart(seed);
        let of_level =
            "stele store\nformat 3\nkind node\nstore 77\nlevel 2\nversion 0.2.0\ncrc32c ";
        assert!(store_file(&disk).starts_with(of_level), "{}", store_file(&disk));
        assert_eq!(open_node(&disk, options.clone()).unwrap().level(), Level::MOMENTS);
    }
    let embedded = Store::open(Arc::new(disk(1)), clock(), Path::new(DIR), tiny(), Replay::All);
    assert!(embedded.unwrap().0.record_level(Level::MOMENTS).is_err());
}

#[test]
fn a_crash_while_a_level_is_recorded_leaves_the_former_one_or_the_new_one() {
    let options = Options { store: Some(StoreId(77)), ..tiny() };
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let disk = disk(seed);
        let store = open_node(&disk, options.clone()).unwrap();
        let after = disk.operations() + seed % 6;
        disk.crash_at(CrashPoint { operation: after, at: CrashAt::Inside });
        let _ = store.record_level(Level::MOMENTS);
        disk.crash_now();
        let disk = disk.restart(seed);
        found.insert(open_node(&disk, options.clone()).unwrap().level());
    }
    assert_eq!(found.len(), 2);
}

// Catalogue: 66.
#[test]
fn a_directory_of_a_higher_level_is_refused_with_the_version_that_it_needs() {
    let disk = disk(1);
    let options = Options { store: Some(StoreId(77)), ..tiny() };
    let store = open_node(&disk, options.clone()).unwrap();
    assert!(store.record_level(Level::new(Level::NEWEST.get() + 1)).is_err());
    drop(store);
    let body = "stele store\nformat 3\nkind node\nstore 77\nlevel 9\nversion 0.9.0\n";
    let text = format!("{body}crc32c {:08x}\n", stele_types::checksum::crc32c(body.as_bytes()));
    disk.write_file(PathBuf::from(DIR).join("STORE"), text.as_bytes());
    let operations = disk.operations();
    let refused = open_node(&disk, options).unwrap_err();
    assert!(matches!(refused, Error::NewerLevel { .. }), "{refused}");
    let newest = format!("up to {}", Level::NEWEST);
    for part in ["level 9", &newest, "run version 0.9.0 or later"] {
        assert!(refused.to_string().contains(part), "{refused}");
    }
    let changes = disk.events().into_iter().filter(|event| event.operation >= operations);
    assert_eq!(changes.filter(|event| event.path != Path::new(DIR).join("LOCK")).count(), 0);
}
