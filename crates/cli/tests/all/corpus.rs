//! Stores of the oldest supported version, kept in `crates/cli/tests/stores`: every program opens them, reads all,
//! writes, and opens them again. `cargo xtask corpus` writes them.

use crate::common::run;
use crate::node_process::{Node, until};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

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

// Catalogue: 65.
#[test]
fn an_embedded_store_of_the_oldest_version_opens_is_written_and_opens_again() {
    let at = tempfile::tempdir().unwrap();
    let dir = at.path().join("embedded");
    copy(&corpus().join("embedded"), &dir);
    let expected = pairs_of("embedded.jsonl");
    assert!(expected.lines().count() > 25 && expected.contains("expires_at_s"), "{expected}");
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
        said.contains("level 3: only version 0.2.0 and later read it")
    });
    let listed = run(at.path(), &format!("ctl --cluster {} --json stores", addresses[0])).ok();
    assert!(listed.text().lines().all(|line| line.contains(r#""level":3"#)), "{listed:?}");
    let again = run(at.path(), &format!("ctl --cluster {} finalize", addresses[1])).ok();
    assert!(again.text().starts_with("there is nothing to raise"), "{again:?}");
    nodes.into_iter().for_each(|node| drop(node.stop()));
    let nodes = start(&dirs, &addresses);
    until(at.path(), &scan, |found| found == expected);
    nodes.into_iter().for_each(|node| drop(node.stop()));
}
