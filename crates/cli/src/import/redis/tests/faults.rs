//! What an import does when the target fails, and when the source changes meanwhile.

use super::fake::{Fake, Fault};
use super::{copy, hash, is_equal, is_same, set, source, text};
use crate::Outcome;
use crate::import::redis::endpoint::{Database, Endpoint};
use crate::import::redis::lanes::{Lanes, RedisTarget};
use crate::import::redis::part::{Cutter, SourceValue, ValueKind};
use crate::import::redis::report::ImportReport;
use crate::import::redis::write::Writes;
use crate::terminal::Progress;
use bytes::Bytes;
use std::sync::Arc;
use stele_load::TlsFiles;
use tokio::task::JoinSet;

/// Sends a hash of 1,200 fields through one lane, which has all its parts before it begins.
fn send_hash(target: &Fake) {
    let endpoint = Endpoint::parse(&format!("redis://{}", target.address), &TlsFiles::default());
    let to = RedisTarget { endpoint: endpoint.unwrap(), database: None };
    let report = Arc::new(ImportReport::new(Progress::keys(None, "importing")));
    crate::runtime::small().unwrap().block_on(async {
        let mut tasks = JoinSet::new();
        let lanes = Lanes::start(1, &to, &Writes, &report, &mut tasks);
        let (database, name, kind) = (Database(0), Bytes::from("hash"), ValueKind::Hash);
        let mut cutter = Cutter::new(SourceValue { database, name, kind, expires_at_ms: None });
        for field in 0..1200 {
            let field = [format!("f{field}"), format!("v{field}")].map(Bytes::from);
            if let Some(part) = cutter.push(field) {
                lanes.send(part).await.unwrap();
            }
        }
        lanes.send(cutter.finish(None)).await.unwrap();
        drop(lanes);
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap().unwrap();
        }
    });
    assert!(report.is_whole());
}

#[test]
fn later_parts_of_a_name_are_repeated_with_the_first() {
    let (target, wanted) = (Fake::start(), Fake::start());
    let mut refused = 0;
    target.state().hook = Some(Box::new(move |_, line| {
        let is_first = line.starts_with("DEL hash");
        refused += u32::from(is_first);
        if is_first && refused < 3 { Fault::Error("TRYAGAIN no leader") } else { Fault::None }
    }));
    send_hash(&target);
    wanted.state().put(0, "hash", hash(0..1200), 0);
    is_same(&target, &wanted);
}

#[test]
fn a_first_part_of_unknown_outcome_is_not_repeated() {
    let (source, target) = (source().0, Fake::start());
    let mut expected = vec!["DEL hash-large;", "DEL hash;"];
    target.state().hook = Some(Box::new(move |_, line| {
        let before = expected.len();
        expected.retain(|begin| !line.starts_with(begin));
        match expected.len() < before {
            true => Fault::Error("UNDETERMINED the leader failed"),
            false => Fault::None,
        }
    }));
    assert_eq!(copy(&source, &target, "--connections 1").unwrap(), Outcome::Failed);
    let state = target.state();
    assert!(state.get(0, "hash").is_some(), "a whole value is repeated");
    drop(state);
    target.state().hook = None;
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    is_same(&target, &source);
}

#[test]
fn what_a_closed_connection_did_not_answer_is_sent_again() {
    let (source, target) = (Fake::start(), Fake::start());
    for name in 0..300 {
        source.state().put(0, &format!("k{name}"), text(&name.to_string()), 0);
    }
    let mut commands = 0;
    target.state().hook = Some(Box::new(move |_, line| {
        commands += u32::from(line.starts_with("SET"));
        if commands % 100 == 99 && commands < 400 { Fault::Close } else { Fault::None }
    }));
    assert_eq!(copy(&source, &target, "--connections 2").unwrap(), Outcome::Done);
    is_same(&target, &source);
}

#[test]
fn what_the_target_refuses_is_named_and_the_import_continues() {
    let (source, target) = (source().0, Fake::start());
    target.state().hook = Some(Box::new(|_, line| match line.contains("text7") {
        true => Fault::Error("ERR the value is too long"),
        false => Fault::None,
    }));
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Failed);
    let mut expected = source.state().databases.clone();
    expected.get_mut(&0).unwrap().remove(&b"text7"[..]);
    is_equal(&target.state().databases, &expected);
}

#[test]
fn a_value_that_changes_its_type_meanwhile_is_read_again() {
    let (source, target) = (source().0, Fake::start());
    source.state().hook = Some(Box::new(|state, line| {
        match line {
            "STRLEN text1" => state.put(0, "text1", set(0..2), 0),
            "PEXPIRETIME hash; HGETALL hash" => {
                state.put(0, "hash", text("now a text"), 7_000_000_000_000);
            }
            _ => {}
        }
        Fault::None
    }));
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    source.state().hook = None;
    is_same(&target, &source);
}

#[test]
fn a_name_that_vanishes_meanwhile_is_left_out() {
    let (source, target) = (source().0, Fake::start());
    source.state().page_names = 100;
    source.state().hook = Some(Box::new(|state, line| {
        for (command, name) in [("TYPE", "text2"), ("STRLEN", "text3"), ("HSCAN", "hash-large")] {
            if line.starts_with(&format!("{command} {name}")) && !line.contains(" 0 ") {
                state.databases.get_mut(&0).unwrap().remove(name.as_bytes());
            }
        }
        Fault::None
    }));
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    source.state().hook = None;
    assert!(source.state().get(0, "hash-large").is_none());
    is_same(&target, &source);
}

#[test]
fn a_large_collection_that_is_replaced_while_it_is_read_is_read_again() {
    let (source, soon_ms) = source();
    let target = Fake::start();
    let mut pages = 0;
    source.state().hook = Some(Box::new(move |state, line| {
        pages += u32::from(line.starts_with("HSCAN hash-large"));
        if pages == 2 && line.starts_with("HSCAN") {
            state.put(0, "hash-large", hash(5000..6000), soon_ms + 77);
        }
        Fault::None
    }));
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Done);
    source.state().hook = None;
    is_same(&target, &source);
}

#[test]
fn a_collection_that_never_stops_changing_is_named() {
    let (source, soon_ms) = source();
    let (target, mut changes) = (Fake::start(), 0);
    source.state().hook = Some(Box::new(move |state, line| {
        if line.starts_with("HSCAN hash-large") {
            changes += 1;
            state.put(0, "hash-large", hash(0..2000), soon_ms + changes);
        }
        Fault::None
    }));
    assert_eq!(copy(&source, &target, "").unwrap(), Outcome::Failed);
    assert!(target.state().get(0, "hash-large").is_none());
}
