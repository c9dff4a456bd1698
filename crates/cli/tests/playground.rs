//! A playground that cannot run reports the reason immediately.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Ran, stele};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Runs a playground with empty standard input.
fn playground(arguments: &[&str], variables: &[(&str, &str)]) -> Ran {
    let mut command = stele();
    command.arg("playground").args(arguments).envs(variables.iter().copied());
    let ran = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        code: ran.status.code().unwrap_or(-1),
        out: ran.stdout,
        err: String::from_utf8_lossy(&ran.stderr).into_owned(),
    }
}

#[test]
fn a_disk_without_room_is_named_at_once_with_what_it_lacks() {
    let started = Instant::now();
    let ran = playground(&["--nodes", "3"], &[("STELE_RESERVED_BYTES", "1048576TiB")]);
    let ran = ran.fails(1, "no room for replicas");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    for node in ["n1", "n2", "n3"] {
        assert!(ran.err.contains(&format!("{node}: its disk is full: ")), "{ran:?}");
    }
    assert_eq!(ran.err.matches(" more needed").count(), 3, "{ran:?}");
    assert!(ran.err.contains("1048576.0 TiB reserved"), "{ran:?}");
}

#[test]
fn a_node_that_does_not_start_is_shown_with_the_end_of_its_log() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = playground(&["--nodes", "1", "--base-port", &port], &[]);
    let ran = ran.fails(1, "n1 ended before it was ready; the end of its log");
    let line = ran.err.lines().nth(1).unwrap();
    assert!(line.starts_with("    ") && line.contains("in use"), "{ran:?}");
}
