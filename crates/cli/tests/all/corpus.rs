//! Stores of the oldest supported version, kept in `crates/cli/tests/stores`: every program opens them, reads all,
//! writes, and opens them again. `cargo xtask corpus` writes them.

use crate::common::run;
use crate::node_process::{Node, until};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use stele_engine::{Options, Partition, Shards};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores")
}

fn pairs_of(name: &str) -> String {
    std::fs::read_to_string(corpus().join(name)).unwrap()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Pair that the present program adds, after all others.
const ADDED: &str = "{\"key\":\"zz\",\"value\":\"new\"}\n";

/// Returns how many files of a store's log have such a name.
fn log_files(store: &Path, ending: &str) -> usize {
    let entries = std::fs::read_dir(store.join("log")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == ending)).count()
}

// Catalogue: 65.
#[test]
fn an_embedded_store_of_the_oldest_version_opens_is_written_and_opens_again() {
    let expected = pairs_of("embedded.jsonl");
    assert!(expected.lines().count() > 25 && expected.contains("expires_at_s"), "{expected}");
    open_write_and_open_again("embedded");
}

// Catalogue: 65.
#[test]
fn a_sealed_segment_of_the_oldest_version_is_read() {
    assert!(log_files(&corpus().join("sealed"), "side") > 0);
    assert!(log_files(&corpus().join("sealed"), "seg") > 1);
    open_write_and_open_again("sealed");
}

// Catalogue: 65.
#[test]
fn retained_tombstones_of_the_oldest_version_hide_what_they_delete() {
    assert!(log_files(&corpus().join("graves"), "graves") > 0);
    let expected = pairs_of("graves.jsonl");
    assert!(!expected.contains(r#""gone""#) && expected.contains(r#""gone3""#), "{expected}");
    open_write_and_open_again("graves");
}

// Catalogue: 65.
#[test]
fn shards_of_the_oldest_version_open_are_written_and_open_again() {
    let at = tempfile::tempdir().unwrap();
    let names = ["shard-0", "shard-1"];
    let dirs = names.map(|name| (at.path().join(name), Options::default()));
    let dirs = dirs.map(|(dir, options)| (dir, Options { reserved_bytes: 0, ..options }));
    names.iter().zip(&dirs).for_each(|(name, (dir, _))| copy(&corpus().join(name), dir));
    let mut expected: Vec<String> = names.map(|name| pairs_of(&format!("{name}.jsonl"))).into();
    let compare = |expected: &[String]| {
        for ((dir, _), expected) in dirs.iter().zip(expected) {
            assert_eq!(run(dir, "verify --store $ --json").ok().json()["ok"], true);
            assert_eq!(run(dir, "scan --store $ --json").ok().text(), *expected);
        }
    };
    compare(&expected);
    let open = || Shards::open(&dirs, Partition::Range(vec!["k5".into()])).unwrap();
    let shards = open();
    assert_eq!(shards.get(b"k4").unwrap().map(|value| value.len()), Some(160));
    assert_eq!((shards.get(b"k3").unwrap(), shards.get(b"k7").unwrap()), (None, None));
    assert_eq!(shards.get(b"k6").unwrap().as_deref(), Some(&b"after"[..]));
    shards.put(b"zz", b"new").unwrap();
    shards.close().unwrap();
    expected[1] += ADDED;
    compare(&expected);
    let shards = open();
    shards.compact().unwrap();
    shards.close().unwrap();
    compare(&expected);
}

/// Opens a copy of a store, compares and verifies it, adds a pair, and compares it again, also after a
/// compaction.
fn open_write_and_open_again(name: &str) {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().join(name);
    copy(&corpus().join(name), &dir);
    let expected = pairs_of(&format!("{name}.jsonl"));
    assert_eq!(run(&dir, "verify --store $ --json").ok().json()["ok"], true);
    assert_eq!(run(&dir, "scan --store $ --json").ok().text(), expected);
    run(&dir, "put --store $ zz new").ok();
    let expected = expected + ADDED;
    for line in ["compact --store $", "verify --store $ --json"] {
        run(&dir, line).ok();
        assert_eq!(run(&dir, "scan --store $ --json").ok().text(), expected, "{line}");
    }
}

/// Starts both nodes, each at a new address and in a directory that was moved.
fn start(dirs: &[PathBuf; 2], addresses: &[String; 2]) -> [Node; 2] {
    let start = |own: usize, other: usize| {
        let moved = dirs[own].to_str().unwrap();
        let more =
            ["--join", &addresses[other], "--moved-directory", moved, "--reserved-bytes", "0"];
        Node::start(&dirs[own], &addresses[own], &more)
    };
    [start(0, 1), start(1, 0)]
}

// Catalogue: 65.
#[test]
fn nodes_of_the_oldest_version_open_serve_and_are_finalized() {
    let at = tempfile::tempdir().unwrap();
    let dirs = ["node-1", "node-2"].map(|name| at.path().join(name));
    for dir in &dirs {
        copy(&corpus().join(dir.file_name().unwrap()), dir);
        assert_eq!(run(dir, "verify --store $ --json").ok().json()["ok"], true);
    }
    let free = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = free.each_ref().map(|port| port.local_addr().unwrap().to_string());
    drop(free);
    let expected = pairs_of("cluster.jsonl");
    let scan = format!("scan --cluster {} --json", addresses[0]);
    let nodes = start(&dirs, &addresses);
    until(at.path(), &scan, |found| found == expected);
    let listed = run(at.path(), &format!("ctl --cluster {} --json stores", addresses[0])).ok();
    assert!(listed.text().lines().all(|line| line.contains(r#""level":1"#)), "{listed:?}");
    run(at.path(), &format!("put --cluster {} zz new", addresses[1])).ok();
    let expected = expected + ADDED;
    nodes.into_iter().for_each(|node| drop(node.stop()));
    let nodes = start(&dirs, &addresses);
    until(at.path(), &scan, |found| found == expected);
    // A new leader waits for the reports of both.
    until(at.path(), &format!("ctl --cluster {} finalize", addresses[0]), |said| {
        said.contains("level 4: only version 0.2.0 and later read it")
    });
    let listed = run(at.path(), &format!("ctl --cluster {} --json stores", addresses[0])).ok();
    assert!(listed.text().lines().all(|line| line.contains(r#""level":4"#)), "{listed:?}");
    let again = run(at.path(), &format!("ctl --cluster {} finalize", addresses[1])).ok();
    assert!(again.text().starts_with("there is nothing to raise"), "{again:?}");
    nodes.into_iter().for_each(|node| drop(node.stop()));
    let nodes = start(&dirs, &addresses);
    until(at.path(), &scan, |found| found == expected);
    nodes.into_iter().for_each(|node| drop(node.stop()));
}
