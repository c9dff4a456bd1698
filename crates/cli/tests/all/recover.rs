//! Recovery of a cluster of three of which one directory is left.

use crate::common::{Ran, run, stele, tree};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(90);

struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(dir: &Path, join: Option<&str>) -> Self {
        let mut server = stele();
        server.args(["server", "--listen", "127.0.0.1:0", "--store"]).arg(dir);
        if let Some(join) = join {
            server.args(["--join", join]);
        }
        server.stderr(Stdio::null()).stdout(Stdio::piped());
        let mut process = server.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
            Some(line.trim().strip_prefix("tikv/pd")?.split_whitespace().next()?.to_owned())
        });
        std::thread::spawn(move || lines.count());
        Self { process, address: address.unwrap() }
    }

    fn run(&self, line: &str) -> Ran {
        run(Path::new(""), &line.replace('@', &self.address))
    }

    /// Repeats a command until its result is accepted.
    fn until(&self, line: &str, accepts: impl Fn(&Ran) -> bool) -> Ran {
        let started = Instant::now();
        loop {
            let ran = self.run(line);
            if accepts(&ran) {
                return ran;
            }
            assert!(started.elapsed() < LIMIT, "{line}: {ran:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[test]
fn a_cluster_goes_on_from_the_directory_that_is_left() {
    let root = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = ["a", "b", "c"].map(|name| root.path().join(name)).to_vec();
    let first = Server::start(&dirs[0], None);
    first.until("put --cluster @ k0 v", |ran| ran.code == 0);
    let join = first.address.clone();
    let others = [&dirs[1], &dirs[2]].map(|dir| Server::start(dir, Some(&join)));
    let replicated = |ran: &Ran| {
        let has_three = |line: &str| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            row["stores"].as_array().is_some_and(|stores| stores.len() == 3)
        };
        ran.code == 0 && ran.text().lines().count() == 2 && ran.text().lines().all(has_three)
    };
    first.until("ctl --cluster @ regions --system --json", replicated);
    for key in ["k1", "k2", "k3"] {
        first.run(&format!("put --cluster @ {key} v")).ok();
    }
    // All replicas hold the keys, and each knows that they are committed.
    std::thread::sleep(Duration::from_secs(2));
    first.kill();
    others.into_iter().for_each(Server::kill);
    std::fs::remove_dir_all(&dirs[1]).unwrap();
    let left = &dirs[2];
    let before = tree(left);
    let unknown = "there is no store 777 in cluster";
    run(left, "ctl --store $ recover --lost 1,777").fails(1, unknown);
    run(left, "ctl --store $ recover --lost 3").fails(1, "is store 3, which is not lost");
    let shown = run(left, "ctl --store $ recover --lost 1,2").ok();
    assert_eq!(shown.text().matches("from the log of store 3").count(), 2, "{shown:?}");
    assert!(shown.text().contains("nothing was changed"), "{shown:?}");
    // One of three is no majority, and two are.
    let one = run(left, "ctl --store $ recover --lost 1").ok();
    assert_eq!(one.text().matches("has a majority").count(), 2, "{one:?}");
    let survey = run(left, "ctl --store $ --json recover --lost 1,2").ok();
    assert!(survey.text().starts_with("{\"cluster\":"), "{survey:?}");
    assert!(survey.text().lines().count() >= 3, "{survey:?}");
    assert!(tree(left) == before, "a dry run changed the directory");
    let other = a_node_of_another_cluster(&root.path().join("other"));
    let both = format!("ctl --store $ --store {} recover --lost 1,2", other.display());
    run(left, &both).fails(1, "recover one cluster at a time");
    run(left, "ctl --store $ recover --lost 1,2 --yes").ok();
    let members = std::fs::read_to_string(left.join("members.json")).unwrap();
    assert_eq!(members.matches("\"removed\":true").count(), 2, "{members}");
    let again = run(left, "ctl --store $ recover --lost 1,2").ok();
    assert_eq!(again.text().matches("has a majority").count(), 2, "{again:?}");
    let server = Server::start(left, None);
    let scanned = server.until("scan --cluster @ --keys-only", |ran| ran.code == 0);
    assert_eq!(scanned.text(), "k0\nk1\nk2\nk3\n");
    server.until("put --cluster @ k4 v", |ran| ran.code == 0);
    the_lost_stores_are_refused(&server, &dirs[0]);
    let removed = server.until("ctl --cluster @ recover --lost 1,2 --yes", |ran| ran.code == 0);
    assert!(removed.text().contains("no regions"), "{removed:?}");
    assert!(!removed.text().contains("is removed from the cluster"), "{removed:?}");
    server
        .run("ctl --cluster @ recover --lost 777")
        .fails(1, "there is no store 777 in this cluster");
    server.kill();
}

fn the_lost_stores_are_refused(server: &Server, dir: &Path) {
    let is_alone = || {
        let stores = server.run("ctl --cluster @ stores --json").ok();
        assert_eq!(stores.text().lines().count(), 1, "{stores:?}");
    };
    is_alone();
    let mut lost = stele();
    lost.args(["server", "--listen", "127.0.0.1:0", "--join", &server.address, "--store"]);
    let mut lost = lost.arg(dir).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    is_alone();
    lost.kill().unwrap();
    lost.wait().unwrap();
}

fn a_node_of_another_cluster(dir: &Path) -> PathBuf {
    let server = Server::start(dir, None);
    server.until("put --cluster @ k v", |ran| ran.code == 0);
    server.kill();
    dir.to_path_buf()
}

#[test]
fn the_tick_of_a_cluster_is_changed_in_its_directories() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("a");
    let set = |tick: &str| {
        run(root.path(), &format!("ctl --store {} config tick_ms {tick}", dir.display()))
    };
    let shown = |server: &Server| server.run("ctl --cluster @ config tick_ms").ok();
    let server = Server::start(&dir, None);
    assert!(shown(&server).text().contains("tick_ms  20 "), "{:?}", shown(&server));
    set("70").fails(1, "in use");
    server.kill();
    set("4").fails(2, "from 5 to 1000");
    assert!(set("70").ok().text().starts_with("the tick of 1 stores is 70 ms"));
    let server = Server::start(&dir, None);
    assert!(shown(&server).text().contains("tick_ms  70 "), "{:?}", shown(&server));
    server.until("put --cluster @ k v", |ran| ran.code == 0);
    server.kill();
}
