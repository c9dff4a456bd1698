//! Three nodes with Redis listeners, of which one at a time is killed.

use crate::servers::{ctl_within, free_address};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const STARTED_WITHIN: Duration = Duration::from_secs(60);
const ARRANGED_WITHIN: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(200);
/// Pause after which leaders are transferred: until then they may move by themselves.
const SETTLE: Duration = Duration::from_secs(2);

/// Processes of one cluster, killed on drop.
pub(super) struct Cluster {
    stele: PathBuf,
    nodes: Vec<Node>,
    tick_ms: Option<u64>,
    data: tempfile::TempDir,
}

struct Node {
    listen: String,
    redis: String,
    process: Option<Child>,
}

/// A node that was killed, and what it led.
pub(super) struct Killed {
    at: usize,
    pub led: usize,
    pub regions: usize,
}

impl Cluster {
    /// Starts a cluster with regions that begin at `borders`, and waits for their replicas. `None` for the default
    /// tick.
    pub(super) fn start(
        stele: &Path,
        work: &Path,
        borders: &[String],
        tick_ms: Option<u64>,
    ) -> Result<Self> {
        let data = tempfile::tempdir_in(work)?;
        let mut cluster = Self { stele: stele.to_owned(), nodes: Vec::new(), tick_ms, data };
        for _ in 0..NODES {
            cluster.nodes.push(Node {
                listen: free_address()?,
                redis: free_address()?,
                process: None,
            });
        }
        for at in 0..NODES {
            cluster.start_node(at)?;
        }
        cluster.wait_for_regions(1)?;
        let first = cluster.regions()?.first().and_then(|it| it["region"].as_u64());
        let first = first.context("no region")?.to_string();
        let mut split = vec!["split", "--hex", &first];
        split.extend(borders.iter().map(String::as_str));
        cluster.ctl(&split)?;
        cluster.wait_for_regions(borders.len() + 1)?;
        Ok(cluster)
    }

    /// Returns the addresses for clients. The first node is never killed.
    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<&str> = self.nodes.iter().map(|node| node.redis.as_str()).collect();
        addresses.join(",")
    }

    /// Transfers leaders until each node leads a third of the regions, and stops balancing, which on a busy machine moves
    /// leaders to the node with the fastest writes. The node that is killed then leads a third.
    pub(super) fn spread_leaders(&self) -> Result<()> {
        self.ctl(&["config", "balance", "0"])?;
        let regions = self.regions()?.len();
        self.wait_for_regions(regions)?;
        thread::sleep(SETTLE);
        let stores = self.stores()?;
        for (at, region) in self.regions()?.iter().enumerate() {
            let (id, leader) = (region["region"].as_u64(), region["leader"].as_u64());
            let target = stores.get(at % stores.len()).map(|(store, _)| *store);
            if let (Some(id), Some(target)) = (id, target.filter(|_| leader != target)) {
                self.ctl(&["transfer-leader", &id.to_string(), &target.to_string()])?;
            }
        }
        self.wait_for_regions(regions)
    }

    /// Kills the node that leads most regions, but for the first node, to which clients are connected.
    pub(super) fn kill_leader(&mut self) -> Result<Killed> {
        let regions = self.regions()?;
        let mut led: BTreeMap<u64, usize> = BTreeMap::new();
        for leader in regions.iter().filter_map(|region| region["leader"].as_u64()) {
            *led.entry(leader).or_default() += 1;
        }
        let first = self.nodes.first().map(|node| node.listen.clone()).unwrap_or_default();
        let others = self.stores()?.into_iter().filter(|(_, address)| *address != first);
        let most = others.max_by_key(|(store, _)| led.get(store).copied().unwrap_or(0));
        let (store, address) = most.context("no other store")?;
        let at = self.nodes.iter().position(|node| node.listen == address);
        let at = at.with_context(|| format!("no node listens on {address}"))?;
        let led = led.get(&store).copied().unwrap_or(0);
        ensure!(led > 0, "no other node leads a region");
        if let Some(mut process) = self.nodes.get_mut(at).and_then(|node| node.process.take()) {
            process.kill()?;
            process.wait()?;
        }
        Ok(Killed { at, led, regions: regions.len() })
    }

    /// Starts a killed node again.
    pub(super) fn restart(&mut self, killed: &Killed) -> Result<()> {
        self.start_node(killed.at)
    }

    /// Returns the ends of what the nodes printed.
    pub(super) fn logs(&self) -> String {
        let end = |at: usize| {
            let text = std::fs::read_to_string(self.log(at)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(10)..].join("\n")
        };
        (0..self.nodes.len()).map(|at| format!("node {at}:\n{}\n", end(at))).collect()
    }

    fn log(&self, at: usize) -> PathBuf {
        self.data.path().join(format!("node-{at}.log"))
    }

    fn start_node(&mut self, at: usize) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log(at))?;
        let store = self.data.path().join(format!("store-{at}"));
        let first = self.nodes.first().map(|node| node.listen.clone()).unwrap_or_default();
        let node = self.nodes.get_mut(at).context("no such node")?;
        let mut command = Command::new(&self.stele);
        command.args(["server", "--listen", &node.listen, "--redis-listen", &node.redis]);
        // Caches of Django and cachelib are cleared by FLUSHDB.
        command.args(["--redis-flush", "true", "--store"]).arg(store);
        if at > 0 {
            command.args(["--join", &first]);
        }
        if let Some(tick_ms) = self.tick_ms {
            command.args(["--tick-ms", &tick_ms.to_string()]);
        }
        let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        let process = node.process.insert(process.context("starting a node")?);
        let started = Instant::now();
        while TcpStream::connect(&node.redis).is_err() {
            ensure!(process.try_wait()?.is_none(), "node {at} has ended");
            ensure!(started.elapsed() < STARTED_WITHIN, "node {at} does not listen");
            thread::sleep(POLL);
        }
        Ok(())
    }

    fn ctl(&self, words: &[&str]) -> Result<Vec<Value>> {
        let first = self.nodes.first().context("no node")?;
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        ctl_within(&self.stele, &first.listen, &words, ARRANGED_WITHIN)
    }

    fn regions(&self) -> Result<Vec<Value>> {
        self.ctl(&["regions"])
    }

    /// Returns the stores with the addresses of their nodes.
    fn stores(&self) -> Result<Vec<(u64, String)>> {
        let known =
            |store: &Value| Some((store["store"].as_u64()?, store["address"].as_str()?.to_owned()));
        Ok(self.ctl(&["stores"])?.iter().filter_map(known).collect())
    }

    /// Waits until this number of regions have a leader and replicas on all nodes.
    fn wait_for_regions(&self, number: usize) -> Result<()> {
        let has_all = |region: &Value| {
            region["leader"].is_u64() && region["stores"].as_array().map(Vec::len) == Some(NODES)
        };
        let started = Instant::now();
        loop {
            let regions = self.regions()?;
            if regions.len() >= number && regions.iter().all(has_all) {
                return Ok(());
            }
            ensure!(started.elapsed() < ARRANGED_WITHIN, "the regions are {regions:?}");
            thread::sleep(POLL);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in self.nodes.iter_mut().filter_map(|node| node.process.as_mut()) {
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
