//! What a playground can be told.

use clap::Args;
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct Playground {
    /// Nodes; each is a process of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=9))]
    pub nodes: u64,
    /// Stores of each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    pub stores: u64,
    /// Keep the data in this directory, and use what is there
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Port of the first node, the others follow; free ones by default
    #[arg(long, value_name = "N")]
    pub base_port: Option<u16>,
    /// Load and read data, kill a node, read again, and end
    #[arg(long)]
    pub demo: bool,
}
