//! A cluster of real server processes on this machine.

pub(crate) mod certificates;
pub(crate) mod channels;
pub(crate) mod clocks;
pub(crate) mod control;
pub(crate) mod disk;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod operators;
pub(crate) mod power;
pub(crate) mod process;
pub(crate) mod syncs;

use anyhow::{Context, Result, bail, ensure};
use certificates::{ADMINISTRATOR, Certificates, node_name};
use channels::Channels;
use network::Network;
use node::{Launch, Node};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::ops::Range;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;
use stele_proto::stele::control::v1::AdmitRequest;
use stele_proto::stele::control::v1::control_client::ControlClient;
use tonic::transport::Channel;

const REPLICATED_LIMIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub stele: PathBuf,
    pub work: PathBuf,
    pub nodes: usize,
    /// Settings of all nodes: name and value.
    pub settings: Vec<(&'static str, String)>,
    /// Whether each node gets a network namespace, which can be partitioned.
    pub namespaces: bool,
    /// Store directories of nodes, by number; the others have one below `work`.
    pub stores: BTreeMap<usize, Vec<PathBuf>>,
    /// Certificates of the nodes and of the harness; `None`: no TLS.
    pub certificates: Option<Certificates>,
}

/// A running cluster; its processes end when it is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Nodes in the order of their start. The first one created the cluster.
    pub nodes: Vec<Node>,
    pub channels: Arc<Channels>,
    /// Network, if it can be partitioned. Declared after the nodes, so that it is dropped after
    /// them.
    pub network: Option<Network>,
    spec: Spec,
}

impl Cluster {
    /// Starts all nodes at once and waits until each is ready and every region has as many replicas
    /// as there are nodes, at most three.
    pub(crate) async fn start(spec: Spec) -> Result<Self> {
        let mut cluster = Self::launch(spec)?;
        if cluster.spec.certificates.is_some() {
            cluster.admit_all().await?;
        }
        cluster.wait_ready().await?;
        let replicas = cluster.nodes.len().min(3);
        cluster.wait_replicated(replicas, REPLICATED_LIMIT).await?;
        Ok(cluster)
    }

    /// Allows all nodes after the first one to join.
    async fn admit_all(&self) -> Result<()> {
        for number in 1..self.nodes.len() {
            let request = AdmitRequest {
                node: node_name(number),
                valid_s: REPLICATED_LIMIT.as_secs(),
                ..AdmitRequest::default()
            };
            let admit = |mut client: ControlClient<Channel>| {
                let request = request.clone();
                async move { client.admit(request).await }
            };
            self.placement("admit a node", admit).await?;
        }
        Ok(())
    }

    /// Starts all nodes at once without waiting.
    pub(crate) fn launch(spec: Spec) -> Result<Self> {
        let network = match spec.namespaces {
            true => Some(Network::create(spec.nodes)?),
            false => None,
        };
        let channels = Arc::new(Channels::new(administrator(&spec)?));
        let mut cluster = Self { nodes: Vec::new(), channels, network, spec };
        for _ in 0..cluster.spec.nodes {
            let launch = cluster.next_launch()?;
            cluster.nodes.push(Node::start(launch)?);
        }
        Ok(cluster)
    }

    pub(crate) fn next_launch(&self) -> Result<Launch> {
        let number = self.nodes.len();
        let (address, namespace) = match &self.network {
            Some(network) => {
                (format!("{}:2379", network.address(number)), Some(network.namespace(number)))
            }
            None => (free_address()?, None),
        };
        let setting = |(key, value): &(&str, String)| {
            (format!("STELE_{}", key.to_uppercase()), value.clone())
        };
        // Namespaces have addresses beyond loopback.
        let insecure = namespace.as_ref().map(|_| ("insecure", "true".to_owned()));
        let secured = self.spec.certificates.as_ref();
        let health = secured.map(|_| free_address()).transpose()?;
        let own = secured.map(|it| it.settings(&node_name(number))).unwrap_or_default();
        let settings = self.spec.settings.iter().chain(&insecure).chain(&own);
        let settings = settings.map(setting).collect();
        let own_stores = self.spec.stores.get(&number).cloned();
        Ok(Launch {
            stele: self.spec.stele.clone(),
            address,
            health,
            join: self.nodes.first().map(|first| first.address().to_owned()),
            stores: own_stores
                .unwrap_or_else(|| vec![self.spec.work.join(format!("store{number}"))]),
            replaced_disks: Vec::new(),
            log: self.spec.work.join(format!("node{number}.log")),
            settings,
            namespace,
        })
    }

    /// Gives a node that does not run another address of this machine, for its next start.
    pub(crate) fn change_address(&mut self, node: usize) -> Result<()> {
        ensure!(self.network.is_none(), "addresses of network namespaces are fixed");
        let node = self.nodes.get_mut(node).context("no such node")?;
        ensure!(!node.is_started(), "{} runs", node.address());
        node.launch.address = free_address()?;
        Ok(())
    }

    /// Adds a node and waits until it is ready.
    pub(crate) async fn add(&mut self, launch: Launch) -> Result<()> {
        let mut node = Node::start(launch)?;
        node.wait_ready().await?;
        self.nodes.push(node);
        Ok(())
    }

    /// Waits until every running node is ready.
    pub(crate) async fn wait_ready(&mut self) -> Result<()> {
        for node in self.nodes.iter_mut().filter(|node| node.is_started()) {
            node.wait_ready().await?;
        }
        Ok(())
    }

    /// Fails if a node ended by itself.
    pub(crate) fn check_alive(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(Node::check_alive)
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        let running = self.nodes.iter().filter(|node| node.is_started());
        running.map(|node| node.address().to_owned()).collect()
    }

    pub(crate) fn node_at(&self, address: &str) -> Result<usize> {
        let found = self.nodes.iter().position(|node| node.address() == address);
        found.with_context(|| format!("no node at {address}"))
    }
}

/// Returns what the harness connects with.
fn administrator(spec: &Spec) -> Result<Option<certificates::Tls>> {
    let Some(certificates) = &spec.certificates else { return Ok(None) };
    let now = stele_tls::UnixTime::now();
    Ok(Some(certificates.identity(Some(ADMINISTRATOR), certificates, now)?))
}

/// Ports below those that the kernel assigns to outgoing connections: otherwise a connection of
/// another node could take a port between its choice and the node's start.
const PORTS: Range<u16> = 15_000..32_000;

/// Returns an address with a free port that was not returned before, here or in another harness that still
/// runs: a node that is down for a while finds its port free.
pub(crate) fn free_address() -> Result<String> {
    static NEXT: LazyLock<AtomicU64> =
        LazyLock::new(|| AtomicU64::new(u64::from(std::process::id()) * 101));
    static TAKEN: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    for _ in PORTS {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len() as u64;
        let port = PORTS.start + turn as u16;
        let Ok(claim) = claim(port) else { continue };
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
            return Ok(address);
        }
    }
    bail!("no port of {PORTS:?} is free")
}

/// Claims a port against other harnesses, by a socket with a name that only one process can have; the end of
/// the process ends the claim. Fails if another one has it.
fn claim(port: u16) -> std::io::Result<UnixDatagram> {
    let name = format!("stele-cluster-tests-port-{port}");
    UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_claimed_once_until_the_claim_ends() {
        let port = PORTS.end;
        let first = claim(port).unwrap();
        claim(port).unwrap_err();
        claim(port + 1).unwrap();
        drop(first);
        claim(port).unwrap();
    }
}
