//! Moments of a cluster of three processes under load: with a split and a transfer meanwhile, and with a node
//! that answers nothing.

use crate::common::{Ran, run};
use crate::node_process::Node;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stele_client::{Client, messages::TakeMomentResponse};
use stele_types::Error;
use tokio::runtime::Runtime;

const LIMIT: Duration = Duration::from_secs(60);
/// Longest pause of a region.
const PAUSE_NANOS: u64 = 200_000_000;

pub(crate) struct Cluster {
    nodes: Vec<Node>,
    pub runtime: Runtime,
    pub client: Client,
}

impl Cluster {
    /// Starts three nodes, once every region has three replicas.
    pub(crate) fn start(root: &Path) -> Self {
        let mut nodes = vec![Node::start(&root.join("0"), "127.0.0.1:0", &[])];
        let join = nodes[0].address.clone();
        for number in ["1", "2"] {
            nodes.push(Node::start(&root.join(number), "127.0.0.1:0", &["--join", &join]));
        }
        let runtime = Runtime::new().unwrap();
        let addresses: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
        let client = runtime.block_on(Client::connect(&addresses)).unwrap();
        let cluster = Self { nodes, runtime, client };
        let has_three = |row: &serde_json::Value| row["stores"].as_array().unwrap().len() == 3;
        cluster.until("ctl --cluster @ regions --system --json", |rows| {
            rows.len() >= 2 && rows.iter().all(has_three)
        });
        cluster
    }

    pub(crate) fn address(&self) -> &str {
        &self.nodes[0].address
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        run(Path::new(""), &line.replace('@', &self.nodes[0].address))
    }

    /// Repeats a command until its lines are accepted; returns these.
    pub(crate) fn until(
        &self,
        line: &str,
        accepts: impl Fn(&[serde_json::Value]) -> bool,
    ) -> Vec<serde_json::Value> {
        let started = Instant::now();
        loop {
            let ran = self.run(line);
            let rows = ran.text().lines().map(|line| serde_json::from_str(line).unwrap());
            let rows: Vec<serde_json::Value> = rows.collect();
            if ran.code == 0 && accepts(&rows) {
                return rows;
            }
            assert!(started.elapsed() < LIMIT, "{line}: {ran:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Splits the data at a key; returns the regions before and after it.
    pub(crate) fn split_at(&self, key: &str) -> (u64, u64) {
        let regions = "ctl --cluster @ regions --json";
        let data = self.until(regions, |rows| !rows.is_empty());
        let id = data.last().unwrap()["region"].as_u64().unwrap();
        // The region may have another operator.
        let (started, split) = (Instant::now(), format!("ctl --cluster @ split {id} {key}"));
        let mut ran = self.run(&split);
        while ran.code != 0 && started.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(100));
            ran = self.run(&split);
        }
        ran.ok();
        let starts_here = |row: &&serde_json::Value| row["start"] == key;
        let rows = self.until(regions, |rows| rows.iter().any(|row| starts_here(&row)));
        let with = |wanted: &dyn Fn(&&serde_json::Value) -> bool| {
            rows.iter().find(wanted).unwrap()["region"].as_u64().unwrap()
        };
        (with(&|row| row["end"] == key), with(&starts_here))
    }

    fn moment(&self, attempts_max: u32) -> Result<TakeMomentResponse, Error> {
        let control = self.client.control();
        self.runtime.block_on(control.take_moment(attempts_max))
    }

    /// Returns a moment, once none of the elections and changes under way abandons it.
    fn moment_in_the_end(&self) -> TakeMomentResponse {
        let started = Instant::now();
        loop {
            match self.moment(4) {
                Ok(moment) => return moment,
                Err(error) => assert!(started.elapsed() < LIMIT, "{error}"),
            }
        }
    }
}

/// Writers of one key each, which count their writes.
struct Load {
    written: Vec<Arc<AtomicU64>>,
    stops: Arc<AtomicBool>,
}

impl Load {
    fn start(cluster: &Cluster, keys: &[&str]) -> Self {
        let stops = Arc::<AtomicBool>::default();
        let start = |key: &&str| {
            let (client, key) = (cluster.client.clone(), (*key).to_owned());
            let (count, stops) = (Arc::<AtomicU64>::default(), stops.clone());
            let written = count.clone();
            cluster.runtime.spawn(async move {
                while !stops.load(Relaxed) {
                    if client.put(key.clone(), count.load(Relaxed).to_string()).await.is_ok() {
                        count.fetch_add(1, Relaxed);
                    }
                }
            });
            written
        };
        Self { written: keys.iter().map(start).collect(), stops }
    }

    /// Waits until the writer of each of these keys has written again.
    fn goes_on(&self, writers: &[usize]) {
        for at in writers {
            let (before, started) = (self.written[*at].load(Relaxed), Instant::now());
            while self.written[*at].load(Relaxed) < before + 2 {
                assert!(started.elapsed() < LIMIT, "writer {at} writes nothing");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
    }
}

/// Checks that the parts of a moment hold all keys, and that it paused no region for too long.
fn check(moment: &TakeMomentResponse) {
    let parts = &moment.parts;
    assert_eq!((&*parts[0].start_key, &*parts.last().unwrap().end_key), (&b""[..], &b""[..]));
    for pair in parts.windows(2) {
        assert_eq!(pair[0].end_key, pair[1].start_key, "{moment:?}");
    }
    assert!((1..=PAUSE_NANOS).contains(&moment.longest_pause_nanos), "{moment:?}");
    let took_nanos = moment.pause_nanos + moment.seal_nanos;
    assert!(moment.pause_nanos > 0 && took_nanos >= moment.longest_pause_nanos / 2, "{moment:?}");
}

/// Checks that a later moment has all that an earlier one has: regions keep their indexes.
fn check_order(earlier: &TakeMomentResponse, later: &TakeMomentResponse) {
    check(later);
    assert!(earlier.moment < later.moment);
    for part in &earlier.parts {
        let same = later.parts.iter().find(|it| it.region_id == part.region_id);
        let last = same.map(|it| (it.term, it.last_index));
        assert!(last.is_none_or(|last| last >= (part.term, part.last_index)), "{later:?}");
    }
}

#[test]
fn moments_under_load_hold_all_keys_with_a_split_and_a_transfer_meanwhile() {
    let root = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(root.path());
    let load = Load::start(&cluster, &["a", "p", "z"]);
    load.goes_on(&[0, 1, 2]);
    let mut moments = vec![cluster.moment_in_the_end()];
    let mut take = |cluster: &Cluster| {
        let moment = cluster.moment_in_the_end();
        check_order(moments.last().unwrap(), &moment);
        moments.push(moment);
    };
    (0..10).for_each(|_| take(&cluster));
    let (before, after) = cluster.split_at("m");
    (0..5).for_each(|_| take(&cluster));
    let stores = cluster.until("ctl --cluster @ stores --json", |rows| rows.len() == 3);
    for store in &stores {
        let to = store["store"].as_u64().unwrap();
        cluster.run(&format!("ctl --cluster @ transfer-leader {after} {to}"));
        take(&cluster);
    }
    load.goes_on(&[0, 1, 2]);
    let printed = cluster.run("ctl --cluster @ --json moment").ok();
    let head: serde_json::Value =
        serde_json::from_str(printed.text().lines().next().unwrap()).unwrap();
    assert!(head["moment"].as_u64().unwrap() > moments.last().unwrap().moment, "{head}");
    let regions: Vec<u64> = printed.text().lines().skip(1).map(region_of).collect();
    assert_eq!((head["regions"].as_u64(), regions), (Some(2), vec![before, after]));
    let table = cluster.run("ctl --cluster @ moment").ok();
    assert!(table.text().contains("2 regions, paused in "), "{table:?}");
}

fn region_of(line: &str) -> u64 {
    serde_json::from_str::<serde_json::Value>(line).unwrap()["region"].as_u64().unwrap()
}

#[test]
fn a_node_that_does_not_answer_abandons_the_moment_by_name_and_writes_go_on() {
    let root = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(root.path());
    let (before, after) = cluster.split_at("m");
    // The placement group leads on the first node, which bootstrapped the cluster.
    let stores = cluster.until("ctl --cluster @ stores --json", |rows| rows.len() == 3);
    let store_at = |address: &str| {
        let row = stores.iter().find(|row| row["address"] == address).unwrap();
        row["store"].as_u64().unwrap()
    };
    let (first, last) = (store_at(&cluster.nodes[0].address), store_at(&cluster.nodes[2].address));
    let lead = |region: u64, store: u64| {
        let leads = |row: &serde_json::Value| row["region"] == region && row["leader"] == store;
        cluster.run(&format!("ctl --cluster @ transfer-leader {region} {store}"));
        cluster.until("ctl --cluster @ regions --json", |rows| rows.iter().any(leads));
    };
    lead(before, first);
    lead(after, last);
    let load = Load::start(&cluster, &["a", "z"]);
    load.goes_on(&[0, 1]);
    let moment = cluster.moment_in_the_end();
    check(&moment);
    let stopped = cluster.nodes[2].address.clone();
    cluster.nodes[2].signal("STOP");
    let refused = cluster.moment(1);
    cluster.nodes[2].signal("CONT");
    let Err(Error::Refused(reason)) = &refused else { panic!("{refused:?}") };
    assert!(reason.contains(&format!("node {stopped} did not answer")), "{reason}");
    assert!(reason.contains("start it"), "{reason}");
    load.goes_on(&[0, 1]);
    // A node that is down for good leads nothing after an election, and is needed no more.
    drop(cluster.nodes.remove(2));
    load.goes_on(&[0]);
    check_order(&moment, &cluster.moment_in_the_end());
    load.goes_on(&[0, 1]);
}
