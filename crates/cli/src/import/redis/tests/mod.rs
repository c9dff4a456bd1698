//! Imports from and to a server in memory.

mod fake;
mod faults;
mod files;

use super::unix_ms;
use crate::Outcome;
use crate::args::{Cli, Command};
use bytes::Bytes;
use clap::Parser;
use fake::{Data, Fake, Names};
use std::collections::{BTreeMap, BTreeSet};
use stele_types::{Error, Result};

/// Runs `stele import` with more arguments, separated by spaces.
fn import(from: &str, to: &Fake, more: &str) -> Result<Outcome> {
    let to = format!("redis://{}", to.address);
    let line = ["stele", "import", "--from", from, "--to", &to];
    let cli = Cli::try_parse_from(line.into_iter().chain(more.split_whitespace())).unwrap();
    let Command::Import(args) = cli.command else { panic!("{cli:?}") };
    crate::import::run(&args)
}

fn copy(from: &Fake, to: &Fake, more: &str) -> Result<Outcome> {
    import(&format!("redis://{}", from.address), to, more)
}

fn text(text: &str) -> Data {
    Data::Text(Bytes::copy_from_slice(text.as_bytes()))
}

fn set(members: std::ops::Range<u32>) -> Data {
    Data::Set(members.map(|member| Bytes::from(format!("m{member}"))).collect::<BTreeSet<_>>())
}

fn hash(fields: std::ops::Range<u32>) -> Data {
    let field = |field| (Bytes::from(format!("f{field}")), Bytes::from(format!("v{field}")));
    Data::Hash(fields.map(field).collect::<BTreeMap<_, _>>())
}

/// Asserts that databases are equal; names those values that are not.
#[track_caller]
fn is_equal(found: &BTreeMap<u64, Names>, expected: &BTreeMap<u64, Names>) {
    for number in 0..32 {
        let names = |all: &BTreeMap<u64, Names>| all.get(&number).cloned().unwrap_or_default();
        let (found, expected) = (names(found), names(expected));
        let all: BTreeSet<&Bytes> = found.keys().chain(expected.keys()).collect();
        let differs = all.into_iter().filter(|name| found.get(*name) != expected.get(*name));
        let differ: Vec<&Bytes> = differs.collect();
        assert!(differ.is_empty(), "{differ:?} of database {number}");
    }
}

#[track_caller]
fn is_same(found: &Fake, expected: &Fake) {
    let (found, expected) = (found.state().databases.clone(), expected.state().databases.clone());
    is_equal(&found, &expected);
}

/// Starts a source with values of all kinds that are stored.
fn source() -> (Fake, u64) {
    let (source, soon_ms) = (Fake::start(), unix_ms() + 3_600_000);
    let mut state = source.state();
    for name in 0..20 {
        state.put(0, &format!("text{name}"), text(&"x".repeat(name * 100)), 0);
    }
    state.put(0, "text-expiring", text("soon"), soon_ms);
    state.put(0, "hash", hash(0..3), 0);
    state.put(0, "hash-expiring", hash(0..512), soon_ms + 1);
    state.put(0, "hash-large", hash(0..2000), soon_ms + 2);
    state.put(3, "set", set(0..3), soon_ms + 3);
    state.put(3, "set-large", set(0..1300), 0);
    state.put(15, "last", text(""), 0);
    drop(state);
    (source, soon_ms)
}

#[test]
fn everything_is_imported_with_its_expiry_and_importing_again_changes_nothing() {
    let (source, target) = (source().0, Fake::start());
    target.state().put(0, "hash", set(0..9), 5);
    target.state().put(0, "hash-large", hash(1990..2010), 0);
    target.state().put(0, "of-target", text("stays"), 0);
    for _ in 0..2 {
        assert_eq!(copy(&source, &target, "--connections 3").unwrap(), Outcome::Done);
        let mut expected = source.state().databases.clone();
        let stays = target.state().get(0, "of-target").unwrap().clone();
        expected.get_mut(&0).unwrap().insert("of-target".into(), stays);
        is_equal(&target.state().databases, &expected);
    }
}

#[test]
fn a_comparison_finds_each_difference_and_writes_nothing() {
    let (source, soon_ms) = source();
    let target = Fake::start();
    copy(&source, &target, "").unwrap();
    assert_eq!(copy(&source, &target, "--check").unwrap(), Outcome::Done);
    let changes: [fn(&mut fake::FakeState, u64); 6] = [
        |state, _| state.put(0, "text3", text("other"), 0),
        |state, soon_ms| state.put(0, "text-expiring", text("soon"), soon_ms + 1),
        |state, _| state.databases.get_mut(&15).unwrap().clear(),
        |state, soon_ms| state.put(0, "hash-large", hash(0..1999), soon_ms + 2),
        |state, soon_ms| state.put(3, "set", hash(0..3), soon_ms + 3),
        |state, _| state.put(3, "new", text("more"), 0),
    ];
    let before = target.state().databases.clone();
    for (number, change) in changes.into_iter().enumerate() {
        change(&mut target.state(), soon_ms);
        let changed = target.state().databases.clone();
        let outcome = copy(&source, &target, "--check").unwrap();
        assert_eq!(outcome, Outcome::Failed, "change {number}");
        is_equal(&target.state().databases, &changed);
        target.state().databases = before.clone();
    }
}

#[test]
fn a_target_without_scan_is_compared_by_the_names_of_the_source() {
    let (source, target) = (source().0, Fake::start());
    copy(&source, &target, "").unwrap();
    target.state().without.push("SCAN");
    assert_eq!(copy(&source, &target, "--check").unwrap(), Outcome::Done);
}

#[test]
fn a_server_without_pexpiretime_keeps_expiry_by_the_rest_of_the_time() {
    let (source, soon_ms) = source();
    source.state().without.push("PEXPIRETIME");
    let target = Fake::start();
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    for (name, expected) in [("text-expiring", soon_ms), ("hash-large", soon_ms + 2)] {
        let at_ms = target.state().get(0, name).unwrap().expires_at_ms.unwrap();
        assert!(at_ms.abs_diff(expected) < 1000, "{name}: {at_ms}, {expected}");
    }
    assert_eq!(copy(&source, &target, "--check").unwrap(), Outcome::Done);
}

#[test]
fn other_types_are_left_out_and_make_the_import_incomplete() {
    let (source, target) = (source().0, Fake::start());
    let expected = source.state().databases.clone();
    source.state().put(0, "queue", Data::Other("list"), 0);
    source.state().put(3, "board", Data::Other("zset"), 0);
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Failed);
    is_equal(&target.state().databases, &expected);
    assert_eq!(copy(&source, &target, "--db 15").unwrap(), Outcome::Done);
}

#[test]
fn one_database_is_imported_into_another() {
    let (source, target) = (source().0, Fake::start());
    let to = format!("redis://{}/7", target.address);
    let from = format!("redis://{}/3", source.address);
    let cli = Cli::try_parse_from(["stele", "import", "--from", &from, "--to", &to]).unwrap();
    let Command::Import(args) = cli.command else { panic!("{cli:?}") };
    assert_eq!(crate::import::run(&args).unwrap(), Outcome::Done);
    let found = target.state().databases.get(&7).cloned();
    assert_eq!(found, source.state().databases.get(&3).cloned());
    let refused = copy(&source, &target, "--db 16").unwrap_err().to_string();
    assert!(refused.contains("databases 0 to 15"), "{refused}");
}

#[test]
fn a_database_that_stele_does_not_have_is_refused_before_anything_is_written() {
    let (source, target) = (source().0, Fake::start());
    source.state().put(16, "far", text("away"), 0);
    let refused = copy(&source, &target, "").unwrap_err().to_string();
    assert!(refused.contains("database 16") && refused.contains("--db"), "{refused}");
    assert!(target.state().databases.values().all(BTreeMap::is_empty));
}

#[test]
fn a_server_that_states_no_databases_is_asked_for_each() {
    let (source, target) = (source().0, Fake::start());
    source.state().without.push("INFO");
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    is_same(&target, &source);
    let (source, target) = (Fake::start(), Fake::start());
    source.state().put(0, "a", text("x"), 0);
    source.state().without.push("INFO");
    source.state().has_one_database = true;
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    is_same(&target, &source);
    assert_eq!(copy(&source, &target, "--check").unwrap(), Outcome::Done);
}

#[test]
fn passwords_authenticate_and_a_wrong_one_is_not_printed() {
    let (source, target) = (source().0, Fake::start());
    source.state().password = Some("s3cret");
    let from = |secrets: &str| format!("redis://{secrets}{}", source.address);
    for wrong in ["", ":s3cre7@", "user:s3cre7@"] {
        let refused = import(&from(wrong), &target, "").unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
        assert!(!refused.to_string().contains("s3cre7"), "{refused}");
    }
    assert_eq!(import(&from("user:s3cret@"), &target, "").unwrap(), Outcome::Done);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret\n").unwrap();
    let option = format!("--password-file {}", file.path().display());
    assert_eq!(import(&from(""), &target, &option).unwrap(), Outcome::Done);
}

#[test]
fn a_wrong_source_or_target_is_named() {
    let target = Fake::start();
    let refused = import("/nowhere/dump.rdb", &target, "").unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store").display().to_string();
    let line = ["stele", "import", "--from", "redis://:secret@a", "--store", &store];
    let Command::Import(args) = Cli::try_parse_from(line).unwrap().command else { panic!() };
    let refused = crate::import::run(&args).unwrap_err().to_string();
    assert!(refused.contains("--to redis://") && !refused.contains("secret"), "{refused}");
    assert!(!dir.path().join("store").exists());
}
