//! Arguments of `stele playground`.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct Playground {
    /// Number of nodes, each a process of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    pub nodes: u64,
    /// Number of stores per node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    pub stores: u64,
    /// Keep the data in this directory, and use the data that it holds
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Port of the first node; the others follow. By default free ports are chosen
    #[arg(long, value_name = "N")]
    pub base_port: Option<u16>,
    /// Load data, kill a node, restart it, check all data and exit; kills only with 3 nodes or more
    #[arg(long)]
    pub demo: bool,
}
