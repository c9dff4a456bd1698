//! Identity of a directory: one process, one store, one format.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{DIR, clock, disk, open, tiny};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{Db, Error, Options};
use stele_types::StoreId;

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
    assert!(matches!(refused, Error::NewerFormat { found: 9, supported: 2, .. }), "{refused}");
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
