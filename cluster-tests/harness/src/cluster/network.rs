//! A network of namespaces that can be partitioned in any direction. Each node has a namespace; a
//! pair of virtual interfaces joins it to a bridge. To drop frames, the sender's neighbour table
//! gets a wrong hardware address for the receiver; no error is reported, as with a broken cable.

use anyhow::{Context, Result, ensure};
use std::process::Command;

const WRONG_HARDWARE: &str = "02:ff:00:00:00:01";

/// Namespaces and their bridge; removed when dropped.
#[derive(Debug)]
pub struct Network {
    name: String,
    subnet: String,
    nodes: usize,
}

impl Network {
    /// Creates a network of so many nodes. Needs the right to create namespaces (root).
    pub fn create(nodes: usize) -> Result<Self> {
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

    /// Returns the namespace of a node.
    pub fn namespace(&self, node: usize) -> String {
        format!("{}n{node}", self.name)
    }

    /// Returns the IP address of a node.
    pub fn address(&self, node: usize) -> String {
        format!("{}.{}", self.subnet, node + 1)
    }

    /// Drops everything that `from` sends to `to`.
    pub fn cut(&self, from: usize, to: usize) -> Result<()> {
        self.set_neighbour(from, to, WRONG_HARDWARE)
    }

    /// Ends the drop from `from` to `to`.
    pub fn heal(&self, from: usize, to: usize) -> Result<()> {
        self.set_neighbour(from, to, &hardware(to))
    }

    /// Ends all drops.
    pub fn heal_all(&self) -> Result<()> {
        for from in 0..self.nodes {
            for to in (0..self.nodes).filter(|to| *to != from) {
                self.heal(from, to)?;
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
    let output = Command::new("ip").args(arguments).output().context("starting ip")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), errors.trim());
    Ok(())
}
