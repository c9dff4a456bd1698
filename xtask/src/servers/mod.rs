//! Stele and other servers on this machine: processes of each on loopback.

mod regions;
mod tikv;

pub use regions::{ctl_within, wait_for_rest};

use crate::process::within;
use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const STELE: &str = "stele";
const STARTED_WITHIN: Duration = Duration::from_secs(30);
/// Pause for elections and the first replicas.
const SETTLE: Duration = Duration::from_secs(5);

/// Servers to start.
#[derive(Debug)]
pub struct Options {
    /// Path of the `etcd` binary.
    pub etcd: Option<PathBuf>,
    /// Path of the `redis-server` binary.
    pub redis: Option<PathBuf>,
    /// Paths of the `tikv-server` binary and of its placement driver.
    pub tikv: Option<(PathBuf, PathBuf)>,
    /// Processes of each system, each with all the data.
    pub nodes: usize,
    /// Regions of Stele over which the keys of the load are spread evenly.
    pub regions: usize,
    /// Prefix of every server's command, which runs the command after it.
    pub within: Vec<String>,
    /// The cluster of Stele.
    pub stele: Stele,
}

/// Options of a cluster of Stele; the default is one store a node below the work folder, with a replica
/// of every region and evenly spread leaders.
#[derive(Debug, Default)]
pub struct Stele {
    /// Replicas of every region; `None` for one on each node.
    pub replicas: Option<usize>,
    /// Folder of the store of each node; empty for folders below the work folder.
    pub stores: Vec<PathBuf>,
    /// Further arguments of every node.
    pub arguments: Vec<String>,
    /// Settings of the cluster, set before it has regions.
    pub settings: Vec<(String, String)>,
    /// Whether leaders may be anywhere before the measurement; `measure` waits for their placement.
    pub has_uneven_leaders: bool,
    /// Whether each node also answers clients of Redis.
    pub answers_redis: bool,
}

/// Servers that are ready for a load.
#[derive(Clone, Debug, Default)]
pub struct Running {
    /// Every system as `scheme://address,address…`.
    pub urls: Vec<String>,
    /// Processes of every system: a list for each, separated by `/`.
    pub processes: String,
    /// Addresses of the nodes of Stele.
    pub addresses: Vec<String>,
    /// Addresses of the nodes of Stele for clients of Redis, if they answer them.
    pub redis_addresses: Vec<String>,
    /// Processes of the nodes of Stele.
    pub pids: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            etcd: None,
            redis: None,
            tikv: None,
            nodes: 3,
            regions: 1,
            within: Vec::new(),
            stele: Stele::default(),
        }
    }
}

/// Starts the servers with their data below `work`, passes them to `measure`, and stops them.
pub fn with_servers<T>(
    stele: &Path,
    work: &Path,
    options: &Options,
    measure: impl FnOnce(&Running) -> Result<T>,
) -> Result<T> {
    let redis_addresses = match options.stele.answers_redis {
        true => (0..options.nodes).map(|_| free_address()).collect::<Result<Vec<_>>>()?,
        false => Vec::new(),
    };
    let mut groups = vec![start_stele(stele, work, options, &redis_addresses)?];
    if let Some(etcd) = &options.etcd {
        groups.push(start_etcd(etcd, work, options)?);
    }
    if let Some(redis) = &options.redis {
        groups.push(start_redis(redis, work, options)?);
    }
    if let Some((tikv, pd)) = &options.tikv {
        groups.push(tikv::start(tikv, pd, work, options)?);
    }
    for group in &mut groups {
        group.wait_until_served()?;
    }
    let nodes = groups.iter().find(|group| group.scheme == STELE).context("no node of Stele")?;
    let addresses = nodes.addresses.clone();
    regions::arrange(stele, &addresses, options.regions, &options.stele)?;
    if !options.stele.has_uneven_leaders {
        thread::sleep(SETTLE);
    }
    let processes: Vec<String> = groups.iter().map(|group| group.pids().join(",")).collect();
    measure(&Running {
        urls: groups.iter().map(Group::url).collect(),
        processes: processes.join("/"),
        addresses,
        redis_addresses,
        pids: nodes.pids(),
    })
}

impl Running {
    /// Returns the command of `program` that measures all systems.
    pub fn load(&self, program: &Path, words: &[&str]) -> Command {
        let mut load = Command::new(program);
        load.args(words).args(self.urls.iter().flat_map(|url| ["--target", url]));
        load
    }

    /// Returns the systems but for those of a scheme.
    pub fn without(&self, scheme: &str) -> Self {
        let is_kept = |url: &&String| !url.starts_with(&format!("{scheme}://"));
        let lists = self.urls.iter().zip(self.processes.split('/'));
        let lists = lists.filter(|(url, _)| is_kept(url)).map(|(_, pids)| pids);
        Self {
            processes: lists.collect::<Vec<_>>().join("/"),
            urls: self.urls.iter().filter(is_kept).cloned().collect(),
            ..self.clone()
        }
    }
}

/// Processes of one system, killed on drop.
struct Group {
    scheme: &'static str,
    addresses: Vec<String>,
    processes: Vec<Child>,
    within: Vec<String>,
}

impl Group {
    fn new(scheme: &'static str, options: &Options, addresses: usize) -> Result<Self> {
        let addresses = (0..addresses).map(|_| free_address()).collect::<Result<_>>()?;
        Ok(Self { scheme, addresses, processes: Vec::new(), within: options.within.clone() })
    }

    fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.addresses.join(","))
    }

    fn pids(&self) -> Vec<String> {
        self.processes.iter().map(|it| it.id().to_string()).collect()
    }

    /// Starts a process that writes its output to a file of `work`.
    fn start(&mut self, work: &Path, command: &Command) -> Result<()> {
        let mut command = within(&self.within, command);
        let log = work.join(format!("{}-{}.log", self.scheme, self.processes.len() + 1));
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        self.processes.push(child);
        Ok(())
    }

    fn wait_until_served(&mut self) -> Result<()> {
        self.addresses.clone().iter().try_for_each(|address| self.wait_for(address))
    }

    fn wait_for(&mut self, address: &str) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            for process in &mut self.processes {
                ensure!(process.try_wait()?.is_none(), "a {} process has ended", self.scheme);
            }
            if started.elapsed() > STARTED_WITHIN {
                bail!("{} does not listen on {address}", self.scheme);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns an address of this machine that no server has.
pub fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn start_stele(
    binary: &Path,
    work: &Path,
    options: &Options,
    redis_addresses: &[String],
) -> Result<Group> {
    let mut group = Group::new(STELE, options, options.nodes)?;
    let addresses = group.addresses.clone();
    for (number, address) in addresses.iter().enumerate() {
        let mut node = Command::new(binary);
        let below = || work.join(format!("stele-{number}"));
        let store = options.stele.stores.get(number).cloned().unwrap_or_else(below);
        node.args(["server", "--listen", address, "--store"]).arg(store);
        node.args(&options.stele.arguments);
        if let Some(redis_address) = redis_addresses.get(number) {
            node.args(["--redis-listen", redis_address]);
        }
        if number > 0 {
            node.args(["--join", &addresses[0]]);
        }
        group.start(work, &node)?;
        if number == 0 {
            // The other nodes join the cluster that the first one bootstraps.
            group.wait_for(address)?;
        }
    }
    Ok(group)
}

fn start_etcd(binary: &Path, work: &Path, options: &Options) -> Result<Group> {
    let mut group = Group::new("etcd", options, options.nodes)?;
    let peers = (0..options.nodes).map(|_| free_address()).collect::<Result<Vec<String>>>()?;
    let cluster: Vec<String> =
        peers.iter().enumerate().map(|(at, peer)| format!("m{at}=http://{peer}")).collect();
    for (at, address) in group.addresses.clone().iter().enumerate() {
        let (client, peer) = (format!("http://{address}"), format!("http://{}", peers[at]));
        let mut node = Command::new(binary);
        node.args(["--name", &format!("m{at}"), "--data-dir"]);
        node.arg(work.join(format!("etcd-{at}")));
        node.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        node.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        node.args(["--initial-cluster", &cluster.join(","), "--initial-cluster-state", "new"]);
        // By default etcd refuses writes after 2 GiB. Its documentation names 8 GiB as the most; ten million
        // values of 1 KiB need more.
        node.args(["--quota-backend-bytes", "34359738368", "--log-level", "error"]);
        group.start(work, &node)?;
    }
    Ok(group)
}

/// Starts one primary and its replicas, each write synced. This is weaker than consensus, because
/// `WAIT` only counts.
fn start_redis(binary: &Path, work: &Path, options: &Options) -> Result<Group> {
    let mut group = Group::new("redis", options, options.nodes)?;
    let primary_port = group.addresses[0].rsplit(':').next().unwrap_or_default().to_owned();
    for (at, address) in group.addresses.clone().iter().enumerate() {
        let dir = work.join(format!("redis-{at}"));
        std::fs::create_dir_all(&dir)?;
        let port = address.rsplit(':').next().unwrap_or_default();
        let mut node = Command::new(binary);
        node.args(["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
        node.args(["--appendfsync", "always", "--dir"]).arg(dir);
        if at > 0 {
            node.args(["--replicaof", "127.0.0.1", &primary_port]);
        }
        group.start(work, &node)?;
    }
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_left_out_with_its_processes() {
        let url = |scheme: &str| format!("{scheme}://127.0.0.1:1");
        let urls = ["stele", "etcd", "redis"].map(url).to_vec();
        let all = Running { urls, processes: "1,2/3,4/5".to_owned(), ..Running::default() };
        let able = all.without("etcd");
        assert_eq!(
            (able.urls, able.processes.as_str()),
            (vec![url("stele"), url("redis")], "1,2/5")
        );
    }
}
