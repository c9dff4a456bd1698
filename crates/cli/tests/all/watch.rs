//! `stele watch` on a fake cluster, through the built binary; and a watch of nodes that are changed and killed.

use crate::common::{run, stele};
use crate::fake::Fake;
use crate::node_process::{Node, until};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use stele_client::{
    Client, Control, OldValue, RegionRow, Watch, WatchEvent, WatchFrom, WatchOptions,
};
use stele_types::{Error, KeyRange};

pub(crate) struct Watching {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watching {
    fn start(fake: &Fake, options: &[&str]) -> Self {
        Self::at(&fake.addresses().remove(0), options)
    }

    pub(crate) fn at(address: &str, options: &[&str]) -> Self {
        let mut child = stele()
            .args(["watch", "--cluster", address])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    pub(crate) fn signal(&self) {
        // SAFETY: it sends a signal to a child that was not waited for, and touches no memory.
        let sent = unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        assert_eq!(sent, 0);
    }

    /// Waits for the end, which must be a good one. Returns what was printed for people.
    pub(crate) fn end(self) -> String {
        let (code, text) = self.ended();
        assert_eq!(code, Some(0), "{text}");
        text
    }

    /// Waits for the end. Returns the exit code, and what was printed for people.
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        drop(self.lines);
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code(), text)
    }
}

fn put(fake: &Fake, key: &str, value: &str) {
    let address = fake.addresses().remove(0);
    run(Path::new(""), &format!("put --cluster {address} {key} {value}")).ok();
}

/// Waits for a token in a file other than `than`.
pub(crate) fn token_in(path: &Path, than: &str) -> String {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if !text.is_empty() && text != than {
            return text;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no token in the file");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn watch_prints_lines_and_a_token_from_which_another_continues() {
    let (fake, dir) = (Fake::start(3), tempfile::tempdir().unwrap());
    let path = dir.path().join("token");
    let file = path.to_str().unwrap();
    let mut watching = Watching::start(&fake, &["k", "--save-token", file]);
    let first = token_in(&path, "");
    put(&fake, "k1", "v1");
    put(&fake, "other", "v");
    put(&fake, "k2", "v2");
    assert_eq!(watching.line(), "{\"event\":\"put\",\"key\":\"k1\",\"value\":\"v1\"}\n");
    assert_eq!(watching.line(), "{\"event\":\"put\",\"key\":\"k2\",\"value\":\"v2\"}\n");
    let saved = token_in(&path, &first);
    watching.signal();
    let printed = watching.end();
    assert!(printed.starts_with("watch1."), "{printed}");
    assert!(saved.starts_with("watch1."), "{saved}");
    put(&fake, "k1", "v3");
    for from in [printed.trim(), &format!("@{file}")] {
        let mut watching = Watching::start(&fake, &["6b", "--from", from, "--hex", "--resolved"]);
        let line = watching.line();
        assert_eq!(line, "{\"event\":\"put\",\"key_hex\":\"6b31\",\"value_hex\":\"7633\"}\n");
        assert_eq!(watching.line(), "{\"event\":\"resolved\"}\n");
        watching.signal();
        watching.end();
    }
}

#[test]
fn watch_ends_well_when_its_reader_does_and_says_what_is_wrong_with_a_token() {
    let fake = Fake::start(3);
    let mut watching = Watching::start(&fake, &["", "--resolved"]);
    assert_eq!(watching.line(), "{\"event\":\"resolved\"}\n");
    // Its next line finds the pipe closed.
    watching.end();
    let address = fake.addresses().remove(0);
    let watch = |options: &str| run(Path::new(""), &format!("watch --cluster {address} {options}"));
    watch("k --from watch1.00").fails(2, "damaged");
    watch("k --from watch9.00").fails(2, "another version");
    watch("k --from @/nowhere/token").fails(1, "/nowhere/token");
}

/// Values of each key, in the order of their writes.
type Values = BTreeMap<String, Vec<String>>;

/// Writes until it is stopped, one key after the other. A write of unknown outcome is repeated.
async fn write(client: Client, stop: Arc<AtomicBool>) -> Values {
    let mut written = Values::new();
    let mut number = 0u64;
    while !stop.load(SeqCst) {
        let (key, value) = (format!("k{:02}", number * 7 % 40), number.to_string());
        while let Err(error) = client.put(key.clone(), value.clone()).await {
            assert!(!matches!(error, Error::Invalid(_)), "{error}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        written.entry(key).or_default().push(value);
        number += 1;
    }
    written
}

async fn watched(client: &Client, from: WatchFrom) -> Watch {
    let resolved_interval = Some(Duration::from_millis(200));
    let options = WatchOptions { resolved_interval, old_values: true, ..WatchOptions::default() };
    client.watch_with(KeyRange::all(), from, options).await.unwrap()
}

/// Reads until all is resolved that was written before the end. Continues from tokens meanwhile.
async fn read(client: Client, mut watch: Watch, stop: Arc<AtomicBool>) -> Values {
    let (mut seen, mut resolved, mut events, mut old_values) = (Values::new(), 0, 0u64, 0);
    while resolved < 2 {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Put { key, value, old, .. } => {
                let key = String::from_utf8(key.to_vec()).unwrap();
                let value = String::from_utf8(value.to_vec()).unwrap();
                let values = seen.entry(key).or_default();
                // A repeated write, or one that comes again after a token.
                if values.last() != Some(&value) {
                    if let Some(old) = known(old) {
                        assert_eq!(old.as_ref(), values.last(), "before {value} of a key");
                        old_values += 1;
                    }
                    values.push(value);
                }
            }
            WatchEvent::Resolved => resolved += u32::from(stop.load(SeqCst)),
            event => panic!("{event:?}"),
        }
        events += 1;
        if events.is_multiple_of(500) {
            let token = watch.token().unwrap().to_string().parse().unwrap();
            watch = watched(&client, WatchFrom::Token(token)).await;
        }
    }
    assert!(old_values > 100, "{old_values} of {events} are known");
    seen
}

/// Returns what a key had before, if it is known.
fn known(old: OldValue) -> Option<Option<String>> {
    match old {
        OldValue::Unknown => None,
        OldValue::Absent => Some(None),
        OldValue::Present(value) => Some(Some(String::from_utf8(value.to_vec()).unwrap())),
    }
}

async fn regions(control: &Control, wanted: usize) -> Vec<RegionRow> {
    let began = Instant::now();
    loop {
        let rows = control.regions(&KeyRange::all(), false).await.unwrap_or_default();
        if rows.len() == wanted && rows.iter().all(|row| row.leader_store.is_some()) {
            return rows;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{rows:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn change(control: &Control) {
    let only = regions(control, 1).await.remove(0);
    let at = ["k10", "k20", "k30"].map(Bytes::from).to_vec();
    let began = Instant::now();
    // The region may still get its third voter.
    while let Err(error) = control.split(only.region.id, at.clone()).await {
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for row in regions(control, 4).await {
        let peers = row.region.peers.iter().map(|peer| peer.store);
        let other = peers.into_iter().find(|store| Some(*store) != row.leader_store).unwrap();
        // The balance of leaders may do the same.
        let _ = control.transfer_leader(row.region.id, other).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    for (target, left) in [(0, 3), (2, 2)] {
        let began = Instant::now();
        loop {
            let rows = control.regions(&KeyRange::all(), false).await.unwrap_or_default();
            if (1..=left).contains(&rows.len()) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{rows:?}");
            if let (Some(source), Some(target)) = (rows.get(1), rows.get(target)) {
                // One that is under way is refused; one that a change of leaders ended is ordered again.
                let _ = control.merge(source.region.id, target.region.id).await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

#[test]
fn a_watch_of_nodes_misses_no_write_through_splits_merges_transfers_and_kills() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| root.path().join(name));
    let tick = ["--tick-ms", "20"];
    let first = Node::start(&dirs[0], "127.0.0.1:0", &tick);
    let joining = [&tick[..], &["--join", &first.address]].concat();
    let mut nodes: Vec<Node> =
        dirs[1..].iter().map(|dir| Node::start(dir, "127.0.0.1:0", &joining)).collect();
    let listed = format!("ctl --cluster {} --json regions", first.address);
    until(&dirs[0], &listed, |row| row.contains("\"stores\":[1,2,3]"));
    nodes.insert(0, first);
    let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
    let (written, seen) = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let client = Client::connect(&addresses).await.unwrap();
        let (stop_writes, stop_reads) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let watch = watched(&client, WatchFrom::Now).await;
        let reads = tokio::spawn(read(client.clone(), watch, Arc::clone(&stop_reads)));
        let writes = tokio::spawn(write(client.clone(), Arc::clone(&stop_writes)));
        change(&client.control()).await;
        for at in 0..3 {
            // Dropped nodes are killed.
            let node = nodes.remove(0);
            drop(node);
            tokio::time::sleep(Duration::from_millis(800)).await;
            nodes.push(Node::start(&dirs[at], &addresses[at], &tick));
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
        stop_writes.store(true, SeqCst);
        let written = writes.await.unwrap();
        stop_reads.store(true, SeqCst);
        (written, reads.await.unwrap())
    });
    let count: usize = written.values().map(Vec::len).sum();
    println!("{count} writes");
    assert!(count > 200, "{count} writes");
    for (key, values) in &written {
        assert_eq!(seen.get(key), Some(values), "{key}");
    }
}
