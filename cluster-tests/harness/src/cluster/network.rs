//! A network of namespaces that can be partitioned in any direction. Each node has a namespace; a
//! pair of virtual interfaces joins it to a bridge. To drop frames, the sender's neighbour table
//! gets a wrong hardware address for the receiver; no error is reported, as with a broken cable. To
//! slow a node, a token bucket limits what it sends: frames queue, and beyond [`QUEUE_LIMIT`] they
//! are lost.

use anyhow::{Context, Result, ensure};
use std::process::Command;

const WRONG_HARDWARE: &str = "02:ff:00:00:00:01";
/// Longest time that a frame waits in the queue of a slowed node.
const QUEUE_LIMIT: &str = "400ms";
/// Bytes that a slowed node may send at once; at least one frame of the largest size.
const BURST: &str = "8kb";

/// Messages between a node and all others that are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Both,
    From,
    To,
}

/// Namespaces and their bridge; removed when dropped.
#[derive(Debug)]
pub(crate) struct Network {
    name: String,
    subnet: String,
    nodes: usize,
}

impl Network {
    /// Creates a network of so many nodes. Needs the right to create namespaces (root).
    pub(crate) fn create(nodes: usize) -> Result<Self> {
        let process = std::process::id();
        let subnet = format!("10.{}.{}", 64 + process / 250 % 64, process % 250);
        let network = Self { name: format!("st{}", process % 100_000), subnet, nodes };
        network.make().context(
            "creating network namespaces (needs root and `ip`: apt-get install iproute2)",
        )?;
        Ok(network)
    }

    fn make(&self) -> Result<()> {
        let bridge = &self.name;
        ip(&["link", "add", bridge, "type", "bridge"])?;
        ip(&["address", "add", &format!("{}.254/24", self.subnet), "dev", bridge])?;
        ip(&["link", "set", bridge, "up"])?;
        for node in 0..self.nodes {
            let (space, outer) = (self.namespace(node), format!("{}v{node}", self.name));
            ip(&["netns", "add", &space])?;
            let pair = ["link", "add", &outer, "type", "veth", "peer", "name", "eth0"];
            ip(&[&pair[..], &["address", &hardware(node), "netns", &space]].concat())?;
            ip(&["link", "set", &outer, "master", bridge, "up"])?;
            let address = format!("{}/24", self.address(node));
            ip(&["-n", &space, "address", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
        }
        self.heal_all()
    }

    pub(crate) fn namespace(&self, node: usize) -> String {
        format!("{}n{node}", self.name)
    }

    pub(crate) fn address(&self, node: usize) -> String {
        format!("{}.{}", self.subnet, node + 1)
    }

    /// Drops the messages between a node and all others. Clients still reach it.
    pub(crate) fn isolate(&self, node: usize, direction: Direction) -> Result<()> {
        for other in (0..self.nodes).filter(|other| *other != node) {
            if direction != Direction::To {
                self.set_neighbour(node, other, WRONG_HARDWARE)?;
            }
            if direction != Direction::From {
                self.set_neighbour(other, node, WRONG_HARDWARE)?;
            }
        }
        Ok(())
    }

    /// Limits what a node sends, to other nodes and to clients.
    pub(crate) fn slow(&self, node: usize, rate_kbit: u64) -> Result<()> {
        let (space, rate) = (self.namespace(node), format!("{rate_kbit}kbit"));
        let bucket = ["tbf", "rate", &rate, "burst", BURST, "latency", QUEUE_LIMIT];
        let device = ["-n", &space, "qdisc", "replace", "dev", "eth0", "root"];
        run("tc", &[&device[..], &bucket].concat())
    }

    /// Ends the limit of a node that was slowed.
    pub(crate) fn restore_rate(&self, node: usize) -> Result<()> {
        run("tc", &["-n", &self.namespace(node), "qdisc", "del", "dev", "eth0", "root"])
    }

    pub(crate) fn heal_all(&self) -> Result<()> {
        for from in 0..self.nodes {
            for to in (0..self.nodes).filter(|to| *to != from) {
                self.set_neighbour(from, to, &hardware(to))?;
            }
        }
        Ok(())
    }

    fn set_neighbour(&self, from: usize, to: usize, hardware: &str) -> Result<()> {
        let (space, address) = (self.namespace(from), self.address(to));
        let entry = ["neighbour", "replace", &address, "lladdr", hardware, "nud", "permanent"];
        ip(&[&["-n", &space][..], &entry, &["dev", "eth0"]].concat())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Parts that were never created cannot be removed.
        for node in 0..self.nodes {
            let _ = ip(&["netns", "delete", &self.namespace(node)]);
        }
        let _ = ip(&["link", "delete", &self.name]);
    }
}

fn hardware(node: usize) -> String {
    format!("02:5e:00:00:00:{:02x}", node + 1)
}

fn ip(arguments: &[&str]) -> Result<()> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("starting {program}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), errors.trim());
    Ok(())
}
