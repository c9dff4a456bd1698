//! `stele server` as a process: what it prints, and the signals that it obeys.

use crate::common::{run, stele, tree};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    process: Child,
    pub address: String,
    pub printed: Vec<String>,
}

impl Node {
    pub(crate) fn start(dir: &Path, listen: &str, more: &[&str]) -> Self {
        let mut server = stele();
        server.args(["server", "--listen", listen, "--store"]).arg(dir).args(more);
        server.stderr(Stdio::piped()).stdout(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut printed = Vec::new();
        for line in lines.map_while(Result::ok) {
            let is_last = line.trim_start().starts_with("safety");
            printed.push(line);
            if is_last {
                break;
            }
        }
        let address = printed.iter().find_map(|line| {
            Some(line.trim().strip_prefix("tikv/pd")?.split_whitespace().next()?.to_owned())
        });
        Self { process, address: address.unwrap(), printed }
    }

    fn safety(&self) -> &str {
        let line = self.printed.iter().find_map(|line| line.trim().strip_prefix("safety"));
        line.unwrap().trim()
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    /// Stops the node in order; returns what it wrote to its log.
    pub(crate) fn stop(mut self) -> String {
        self.signal("TERM");
        let mut log = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(self.process.wait().unwrap().success(), "{log}");
        log
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn until(dir: &Path, line: &str, wanted: impl Fn(&str) -> bool) {
    let started = Instant::now();
    loop {
        let ran = run(dir, line);
        if ran.code == 0 && wanted(ran.text()) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{ran:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_signal_that_a_node_does_not_know_does_not_end_it_and_its_log_has_no_colours() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("node");
    let node = Node::start(&dir, "127.0.0.1:0", &["--log-level", "debug"]);
    assert!(node.safety().contains("1 copy until other nodes join"), "{:?}", node.printed);
    for signal in ["USR1", "USR2"] {
        node.signal(signal);
    }
    until(&dir, &format!("count --cluster {}", node.address), |count| count.trim() == "0");
    let log = node.stop();
    assert!(log.contains(" INFO ") && log.contains("log_level = debug"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn a_restarted_member_prints_the_copies_that_the_cluster_has() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| root.path().join(name));
    let first = Node::start(&dirs[0], "127.0.0.1:0", &["--tick-ms", "20"]);
    let second = Node::start(
        &dirs[1],
        "127.0.0.1:0",
        &["--tick-ms", "20", "--join", &first.address.clone()],
    );
    assert!(second.safety().contains("no data here yet"), "{:?}", second.printed);
    let regions = format!("ctl --cluster {} --json regions", first.address);
    until(&dirs[0], &regions, |row| row.contains("\"stores\":[1,2]"));
    let (started, mut second) = (Instant::now(), second);
    let mut life = Duration::from_millis(200);
    loop {
        let address = second.address.clone();
        second.stop();
        // Without `join`: the directory knows the cluster.
        second = Node::start(&dirs[1], &address, &["--tick-ms", "20"]);
        if second.safety().contains("2 copies of the data here") {
            break;
        }
        // The new replica has not come yet, or has no vote yet.
        let is_early = ["no data here yet", "1 copy of the data here"];
        let is_early = is_early.iter().any(|text| second.safety().contains(text));
        assert!(is_early, "{:?}", second.printed);
        assert!(started.elapsed() < LIMIT, "{:?}", second.printed);
        // On a busy machine a node that lives too shortly gets neither replica nor vote.
        std::thread::sleep(life);
        life *= 2;
    }
}

#[test]
fn an_unknown_variable_ends_a_node_and_is_named() {
    let root = tempfile::tempdir().unwrap();
    let mut server = stele();
    server.args(["server", "--listen", "127.0.0.1:0", "--store"]).arg(root.path().join("node"));
    let ended = server.env("STELE_REGION_BYTES", "1GiB").output().unwrap();
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && text.contains("`STELE_REGION_BYTES`"), "{text}");
    assert!(text.contains("STELE_REGION_BYTES_MAX"), "{text}");
}

#[test]
fn a_directory_on_a_read_only_mount_can_be_read() {
    let root = tempfile::tempdir().unwrap();
    let (store, node, out) = (root.path().join("store"), root.path().join("node"), "out");
    run(&store, "put --store $ greeting hello").ok();
    let running = Node::start(&node, "127.0.0.1:0", &[]);
    until(&node, &format!("put --cluster {} greeting hello", running.address), |_| true);
    running.stop();
    let before = tree(root.path());
    // A mount in a namespace of its own, where the system allows that to this user.
    let mount = "mount --bind \"$1\" \"$1\" && mount -o remount,ro,bind \"$1\" && ! touch \"$1/x\"";
    let inside = |dir: &Path, command: &str| {
        let script = format!("{mount} 2>/dev/null && shift 1 && exec {command}");
        let mut shell = Command::new("unshare");
        shell.args(["-rm", "sh", "-c", &script, "sh"]).arg(dir);
        shell.arg(env!("CARGO_BIN_EXE_stele")).arg(dir).arg(root.path().join(out));
        shell.output()
    };
    if !inside(root.path(), "true").is_ok_and(|output| output.status.success()) {
        eprintln!("no read-only mount can be made here; only the lock of readers is tested");
        return;
    }
    for dir in [&store, &node] {
        for (command, expected) in [
            ("\"$1\" get --store \"$2\" greeting", "hello"),
            ("\"$1\" scan --store \"$2\"", "greeting"),
            ("\"$1\" verify --store \"$2\"", ""),
            ("\"$1\" stats --store \"$2\"", ""),
            ("\"$1\" export --store \"$2\" --to -", "greeting"),
        ] {
            let ran = inside(dir, command).unwrap();
            let text = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && text.contains(expected), "{command}: {ran:?}");
        }
        let refused = inside(dir, "\"$1\" put --store \"$2\" a b").unwrap();
        assert!(!refused.status.success(), "{refused:?}");
    }
    assert_eq!(tree(root.path()), before);
}
