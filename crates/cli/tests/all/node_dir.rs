//! Commands on the directory of a node that does not run.

use crate::common::{content, run, run_with, stele, tree};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

struct Server {
    process: Child,
    address: String,
}

impl Server {
    /// Starts a node and waits until it serves.
    fn start(dir: &Path) -> Self {
        let mut server = stele();
        server.args(["server", "--listen", "127.0.0.1:0", "--store"]).arg(dir);
        server.stderr(Stdio::null()).stdout(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            Some(line.trim().strip_prefix("tikv/pd")?.split_whitespace().next()?.to_owned())
        });
        let server = Self { process, address: address.unwrap() };
        std::thread::spawn(move || lines.count());
        let started = Instant::now();
        while server.run(dir, "count --cluster @").code != 0 {
            assert!(started.elapsed() < LIMIT);
        }
        server
    }

    fn run(&self, dir: &Path, line: &str) -> crate::common::Ran {
        run(dir, &line.replace('@', &self.address))
    }

    fn page(&self, name: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(format!("GET /{name} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn reading_commands_show_a_nodes_pairs_and_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("node");
    let server = Server::start(&dir);
    for key in ["a", "b", "c"] {
        server.run(&dir, &format!("put --cluster @ {key} value-{key}")).ok();
    }
    server.run(&dir, "put --cluster @ --ttl 1 short v").ok();
    server.run(&dir, "del --cluster @ b").ok();
    let running = run(&dir, "get --store $ a");
    running.fails(1, "is in use by another process");
    server.kill();
    std::thread::sleep(Duration::from_millis(1100));
    let before = tree(&dir);
    let verified = run(&dir, "verify --store $ --json").ok().json();
    assert_eq!((verified["ok"].clone(), verified["damages"].clone()), (true.into(), 0.into()));
    assert!(run(&dir, "stats --store $ --json").ok().json()["disk_bytes"].is_u64());
    assert_eq!(run(&dir, "get --store $ a").ok().out, b"value-a");
    run(&dir, "get --store $ b").fails(3, "key `b` not found");
    run(&dir, "get --store $ short").fails(3, "key `short` not found");
    assert_eq!(run(&dir, "exist --store $ a c").ok().text(), "a\tyes\nc\tyes\n");
    assert_eq!(run(&dir, "scan --store $").ok().text(), "a\tvalue-a\nc\tvalue-c\n");
    assert_eq!(run(&dir, "scan --store $ --reverse --limit 1 --keys-only").ok().text(), "c\n");
    assert_eq!(run(&dir, "count --store $").ok().text(), "2\n");
    let exported = run(&dir, "export --store $ --to -").ok();
    assert_eq!(exported.text().lines().count(), 2, "{exported:?}");
    assert!(run(&dir, "inspect store --store $").ok().text().contains("kind node"));
    for part in ["log", "run", "manifest"] {
        run(&dir, &format!("inspect {part} --store $")).ok();
    }
    assert!(tree(&dir) == before, "a reading command changed the directory");
    let server = Server::start(&dir);
    assert_eq!(server.run(&dir, "scan --cluster @").ok().text(), "a\tvalue-a\nc\tvalue-c\n");
    server.kill();
}

#[test]
fn commands_that_write_are_refused_on_a_nodes_directory() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("node");
    let server = Server::start(&dir);
    server.run(&dir, "put --cluster @ a value").ok();
    server.kill();
    let before = tree(&dir);
    let pairs = root.path().join("pairs.jsonl");
    std::fs::write(&pairs, "{\"key\":\"x\",\"value\":\"y\"}\n").unwrap();
    let import = format!("import --store $ --from {}", pairs.display());
    for command in [
        "put --store $ k v",
        "incr --store $ k",
        "append --store $ k v",
        "del --store $ a",
        "del --store $ --get a",
        "del --store $ --prefix a --yes",
        "compact --store $",
        "bench engine --store $ --workload A --records 10 --operations 10",
        &import,
    ] {
        let refused = run(&dir, command).fails(1, "it belongs to a node of a cluster");
        assert!(refused.err.contains("use `--cluster ADDRESS`"), "{command}: {refused:?}");
        assert_eq!(refused.err.lines().count(), 1, "{command}: {refused:?}");
        assert!(tree(&dir) == before, "`{command}` changed the directory");
    }
}

#[test]
fn reading_commands_change_nothing_in_an_embedded_store() {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    for number in 0..5 {
        let put = format!("put --store $ k{number} --file -");
        run_with(&store, &put, &content(number, 9000)).ok();
    }
    let before = tree(&store);
    for command in [
        "get --store $ k1",
        "exist --store $ k1 k2",
        "scan --store $",
        "count --store $",
        "verify --store $",
        "stats --store $",
        "export --store $ --to -",
    ] {
        run(&store, command).ok();
        assert!(tree(&store) == before, "`{command}` changed the directory");
    }
    assert_eq!(run(&store, "count --store $").ok().text(), "5\n");
    run(&store, "put --store $ k9 v").ok();
    assert_eq!(run(&store, "count --store $").ok().text(), "6\n");
}

#[test]
fn a_running_node_and_commands_on_its_directory_state_one_estimate_of_live_bytes_by_one_name() {
    const NAME: &str = "live_bytes_estimate";
    /// What a node writes about itself between two looks, at most.
    const OWN_BYTES: u64 = 64 << 10;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("node");
    let server = Server::start(&dir);
    for n in 0..4 {
        let put = format!("put --cluster {} large-{n} --file -", server.address);
        run_with(&dir, &put, &content(n, 200_000)).ok();
        // These values are in the index.
        server.run(&dir, &format!("put --cluster @ small-{n} inline")).ok();
    }
    server.run(&dir, "del --cluster @ large-0").ok();
    let status: serde_json::Value = serde_json::from_str(&server.page("status")).unwrap();
    let of_status = status["stores"][0][NAME].as_u64().unwrap();
    let metrics = server.page("metrics");
    let line = metrics.lines().find(|line| line.contains("what=\"live_estimate\"")).unwrap();
    let of_metrics = line.split_whitespace().last().unwrap().parse::<f64>().unwrap() as u64;
    server.kill();
    let stats = run(&dir, "stats --store $ --json").ok().json();
    let verified = run(&dir, "verify --store $ --json").ok().json();
    assert_eq!(stats[NAME], verified[NAME]);
    let of_stats = stats[NAME].as_u64().unwrap();
    for (other, of) in [(of_status, "status"), (of_metrics, "metrics")] {
        assert!(other.abs_diff(of_stats) <= OWN_BYTES, "{of}: {other}, offline {of_stats}");
    }
    let read = verified["live_bytes"].as_u64().unwrap();
    assert!(read >= 600_000 && of_stats >= read, "{of_stats} estimated, {read} read");
}
