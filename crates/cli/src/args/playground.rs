//! Arguments of `stele playground`.

use clap::Args;
use std::path::PathBuf;
use stele_types::{Error, Result};
use stele_vfs::DeviceScale;

#[derive(Args, Clone, Debug)]
pub(crate) struct Playground {
    /// Number of nodes, each a process of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    pub nodes: u64,
    /// Number of stores per node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    pub stores: u64,
    /// Keep the data in this directory, and use the data that it holds
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Port of the first node; the others follow. Instead of one in use, the next free one is taken. By
    /// default free ports are chosen
    #[arg(long, value_name = "N")]
    pub base_port: Option<u16>,
    /// Make the devices of a node slower, such as n3=8x; may be given for several nodes
    #[arg(long, value_name = "NODE=FACTOR", value_parser = slow_node)]
    pub slow: Vec<(String, u32)>,
    /// Load data, kill a node, restart it, check all data and exit; kills only with 3 nodes or more
    #[arg(long)]
    pub demo: bool,
}

fn slow_node(text: &str) -> Result<(String, u32)> {
    match text.split_once('=') {
        Some((node, factor)) => Ok((node.to_owned(), slow_factor(factor)?)),
        None => Err(Error::invalid("write a node and a factor, such as n3=8x")),
    }
}

/// Parses a factor such as `8x`.
pub(crate) fn slow_factor(text: &str) -> Result<u32> {
    let number = text.strip_suffix('x').unwrap_or(text).parse().ok();
    let number = number.filter(|factor| (1..=DeviceScale::FACTOR_MAX).contains(factor));
    let max = DeviceScale::FACTOR_MAX;
    number.ok_or_else(|| Error::invalid(format!("`{text}` is not a factor from 1x to {max}x")))
}
