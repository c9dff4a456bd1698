//! Imports of RDB files that real servers wrote.

use super::fake::{Data, Fake, FakeState, Names};
use super::{hash, import, is_same, set, text};
use crate::Outcome;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use stele_types::Error;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rdb").join(name)
}

fn of_texts(texts: &[&'static str]) -> Data {
    Data::Set(texts.iter().map(|text| Bytes::from(*text)).collect())
}

fn of_pairs(pairs: &[(&'static str, &str)]) -> Data {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    Data::Hash(pairs.iter().map(|(field, value)| (bytes(field), bytes(value))).collect())
}

/// Fills a server as `tests/rdb/make.sh` does, without what cannot be imported.
fn expected(state: &mut FakeState) {
    let wide = "w".repeat(100);
    let compressed = "abc".repeat(1000);
    let texts = [
        ("text", "plain"),
        ("text:empty", ""),
        ("text:int8", "-7"),
        ("text:int16", "12345"),
        ("text:int32", "1234567890"),
        ("text:int64", "123456789012"),
        ("text:compressed", compressed.as_str()),
    ];
    texts.into_iter().for_each(|(name, value)| state.put(0, name, text(value), 0));
    state.put(0, "text:expiring", text("soon"), 4_102_444_800_123);
    state.put(0, "hash:small", of_pairs(&[("f1", "v1"), ("f2", "v2"), ("n", "42")]), 0);
    state.put(0, "hash:large", hash(0..600), 0);
    state.put(0, "hash:wide", of_pairs(&[("f", wide.as_str())]), 0);
    state.put(0, "hash:expiring", of_pairs(&[("f", "v")]), 4_102_444_800_456);
    state.put(0, "set:ints", of_texts(&["1", "2", "3", "-5"]), 0);
    state.put(0, "set:wide-ints", of_texts(&["1", "12345678901"]), 0);
    state.put(0, "set:small", of_texts(&["a", "b", "c"]), 0);
    state.put(0, "set:large", set(0..700), 0);
    state.put(3, "other", text("of database 3"), 0);
    state.put(15, "last", of_texts(&["member"]), 0);
    state.put(0, "hash:fields", of_pairs(&[("f1", "v1"), ("f2", "v2")]), 0);
    state.put(0, "hash:fields-wide", of_pairs(&[("f1", "v1"), ("f2", wide.as_str())]), 0);
}

#[track_caller]
fn is_imported(name: &str) {
    let (target, wanted) = (Fake::start(), Fake::start());
    expected(&mut wanted.state());
    let from = file(name).display().to_string();
    for _ in 0..2 {
        assert_eq!(import(&from, &target, "").unwrap(), Outcome::Failed, "lists are not stored");
        is_same(&target, &wanted);
    }
    // What is not stored is in the first database.
    for database in [3, 15] {
        let check = format!("--check --db {database}");
        assert_eq!(import(&from, &target, &check).unwrap(), Outcome::Done);
        target.state().databases.get_mut(&database).unwrap().clear();
        assert_eq!(import(&from, &target, &check).unwrap(), Outcome::Failed);
    }
}

#[test]
fn a_file_of_redis_6_2_is_imported() {
    is_imported("redis-6.2.5.rdb");
}

#[test]
fn a_file_of_redis_7_0_is_imported() {
    is_imported("redis-7.0.15.rdb");
}

#[test]
fn a_file_of_redis_8_2_is_imported() {
    is_imported("redis-8.2.3.rdb");
}

#[test]
fn a_file_of_valkey_9_1_is_imported() {
    is_imported("valkey-9.1.2.rdb");
}

#[test]
fn nothing_is_written_of_a_damaged_file() {
    let bytes = std::fs::read(file("redis-7.0.15.rdb")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.rdb");
    let target = Fake::start();
    let mut flipped = bytes.clone();
    let last = flipped.len() - 20;
    flipped[last] ^= 1;
    for damaged in [&flipped[..], &bytes[..bytes.len() / 2], &bytes[..bytes.len() - 1]] {
        std::fs::write(&path, damaged).unwrap();
        let refused = import(&path.display().to_string(), &target, "").unwrap_err();
        assert!(matches!(refused, Error::Refused(_)), "{refused:?}");
        assert!(refused.to_string().contains("damaged.rdb: it is damaged at byte"), "{refused}");
        assert!(target.state().databases.values().all(Names::is_empty));
    }
}

#[test]
fn expired_values_are_left_out() {
    let expired = b"REDIS0009\xfc\x01\0\0\0\0\0\0\0\0\x01a\x01x\0\x01b\x01y\xff\0\0\0\0\0\0\0\0";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dump.rdb");
    std::fs::write(&path, expired).unwrap();
    let target = Fake::start();
    assert_eq!(import(&path.display().to_string(), &target, "").unwrap(), Outcome::Done);
    assert!(target.state().get(0, "a").is_none());
    assert!(target.state().get(0, "b").is_some());
}
