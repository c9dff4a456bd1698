//! Playgrounds of processes: one that cannot run reports the reason immediately, and one with a slow
//! device shows it.

use crate::common::{Ran, stele};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

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
    let arguments = ["--nodes", "1", "--base-port", &port];
    let ran = playground(&arguments, &[("STELE_TICK_MS", "9999")]);
    let ran = ran.fails(1, "n1 ended before it was ready; the end of its log");
    let line = ran.err.lines().find(|line| line.contains("5 to 1000"));
    assert!(line.is_some_and(|line| line.starts_with("    ")), "{ran:?}");
    let in_use = format!("port {port} is in use: n1 takes ");
    assert!(ran.text().starts_with(&in_use), "{ran:?}");
}

struct Prompt {
    child: Child,
    lines: Receiver<String>,
}

impl Prompt {
    fn start(arguments: &[&str]) -> Self {
        let mut command = stele();
        // Not in /tmp, which may be small: nodes keep space in reserve.
        command.arg("playground").args(arguments).env("TMPDIR", env!("CARGO_TARGET_TMPDIR"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
        });
        Self { child, lines }
    }

    /// Runs a line; returns what it prints.
    fn run(&mut self, line: &str) -> String {
        // An unknown command ends the output of the one before it.
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}\nend").unwrap();
        let mut printed = String::new();
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(120)).expect(&printed);
            if line.contains("there is no command `end`") {
                return printed;
            }
            printed = printed + &line + "\n";
        }
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_slow_node_is_shown_with_its_class_and_a_region_with_its_reasons() {
    let mut prompt = Prompt::start(&["--nodes", "3"]);
    let put = prompt.run("put a 1");
    let region = put.split("OK  region ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
    let led = prompt.run(&format!("transfer {region} n3"));
    assert!(led.contains("is led by n3"), "{led}");
    let said = prompt.run("slow n3 16x");
    assert!(said.contains("n3 takes 16 times as long"), "{said}");
    let is_shown = |line: &str| {
        line.starts_with("n3 (store") && line.contains("slower") && line.ends_with("leads nothing")
    };
    let started = Instant::now();
    let mut shown = String::new();
    while !shown.lines().any(is_shown) {
        assert!(started.elapsed() < Duration::from_secs(60), "{shown}");
        let load = prompt.run("load 2");
        assert!(load.contains("puts of 16 KiB"), "{load}");
        shown = prompt.run("placement");
    }
    let explained = prompt.run("explain a");
    for word in ["mode ", "writes ", "leader", "replica", "reason"] {
        assert!(explained.contains(word), "no `{word}`: {explained}");
    }
    let off = prompt.run("slow n3 off");
    assert!(off.contains("as fast as they are"), "{off}");
}
