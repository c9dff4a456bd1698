//! `stele ctl events` of nodes that are processes: through a split, a setting, a transfer of the placement
//! group's leadership and a restart.

use crate::common::{run, stele};
use crate::node_process::{Node, until};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

struct Following {
    child: Child,
    lines: BufReader<ChildStdout>,
    last_index: u64,
}

impl Following {
    fn start(cluster: &str) -> Self {
        let mut child = stele()
            .args(["ctl", "--cluster", cluster, "--json", "events", "--follow"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines, last_index: 0 }
    }

    /// Reads up to the first line that is wanted. Events are in the order of the log.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it ended");
            let row: Value = serde_json::from_str(&line).unwrap();
            if let Some(index) = row["index"].as_u64() {
                assert!(index >= self.last_index, "{row} after {}", self.last_index);
                self.last_index = index;
            }
            if wanted(&row) {
                return row;
            }
        }
    }

    fn event(&mut self, subject: &str, what: &str) -> Value {
        self.until(|row| row["subject"] == subject && row["what"].as_str().unwrap().contains(what))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        // Fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn events_are_followed_through_a_split_a_transfer_of_the_leader_and_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| root.path().join(name));
    let first = Node::start(&dirs[0], "127.0.0.1:0", &["--tick-ms", "20"]);
    let join = ["--tick-ms", "20", "--join", &first.address];
    let others = [1, 2].map(|at| Node::start(&dirs[at], "127.0.0.1:0", &join));
    let addresses = [&first, &others[0], &others[1]].map(|node| node.address.clone());
    let ctl = |line: &str| format!("ctl --cluster {} {line}", addresses.join(","));
    let whole =
        |rows: &str| rows.lines().count() == 2 && rows.matches("\"stores\":[1,2,3]").count() == 2;
    until(root.path(), &ctl("--json regions --system"), whole);

    let mut following = Following::start(&addresses.join(","));
    following.event("cluster", "bootstrapped");
    following.event("store", "up, ");
    following.event("region", "on stores 1, 2, 3");
    // A repair may still be under way.
    until(root.path(), &ctl("split 2 m"), |_| true);
    let split = following.event("region", "m to +∞");
    assert_ne!(split["name"], "2");
    following.until(|row| row["operator"].is_u64() && row["state"] == "done");
    for store in ["2", "3"] {
        // It may lead already.
        run(Path::new(""), &ctl(&format!("transfer-leader 1 {store}")));
    }
    run(Path::new(""), &ctl("config down_after_seconds 1700")).ok();
    let set = following.event("setting", "1700");
    assert_eq!(set["name"], "down_after_seconds");

    for node in others {
        node.stop();
    }
    let mut others = vec![];
    for (dir, address) in dirs.iter().zip(&addresses).skip(1) {
        others.push(Node::start(dir, address, &["--tick-ms", "20"]));
    }
    // The nodes that have just started may have no leader yet.
    until(root.path(), &ctl("config down_after_seconds 1600"), |_| true);
    following.event("setting", "1600");

    // Without `--follow`: the last ones, and then the end.
    let from = following.last_index;
    let printed = run(Path::new(""), &ctl(&format!("events --from {from}"))).ok();
    let line = printed.text().lines().next().unwrap().to_owned();
    assert!(line.starts_with(&format!("{from} setting down_after_seconds: 1600")), "{line}");
}
