//! What operators can ask of a cluster.

use clap::{Args, Subcommand};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Ctl {
    /// Nodes of the cluster, any of them
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true)]
    pub cluster: Vec<String>,
    /// One JSON object a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// The questions and orders.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Stores: where, how full, what they lead
    Stores,
    /// Regions: keys, replicas, leader
    Regions(Regions),
    /// Nodes and their stores
    Members,
    /// Changes under way
    Operators(Operators),
    /// One region as each of its replicas sees it
    Region {
        /// Number of the region
        id: u64,
    },
    /// Let another replica lead a region
    TransferLeader {
        /// Number of the region
        region: u64,
        /// Store of the replica that shall lead
        store: u64,
    },
    /// Split a region at keys, or where it halves
    Split(Split),
    /// Merge a region into its neighbour
    Merge {
        /// The region that goes
        source: u64,
        /// The region that takes its keys
        target: u64,
    },
    /// Move a replica to another store
    Move {
        /// Number of the region
        region: u64,
        /// Store that has the replica
        from: u64,
        /// Store that gets it
        to: u64,
    },
    /// Check a directory that shall become a store, say how its server is started, and watch it join
    AddStore(AddStore),
    /// Empty a store and take it out of the cluster for good
    RemoveStore(Leave),
    /// Empty a store that stays a member
    Drain(Leave),
    /// Take a drain or a removal back
    Cancel {
        /// Number of the store
        store: u64,
    },
    /// Compare the replicas of a region
    Checksum {
        /// Number of the region
        region: u64,
    },
    /// Show settings, or change one while the cluster runs
    Config {
        /// The setting
        key: Option<String>,
        /// Its new value
        value: Option<String>,
    },
}

#[derive(Args, Debug)]
pub struct Regions {
    /// Only regions with a replica on this store
    #[arg(long, value_name = "STORE")]
    pub store: Option<u64>,
    /// Also the placement group's own region
    #[arg(long)]
    pub system: bool,
}

#[derive(Args, Debug)]
pub struct Operators {
    /// Also those that ended lately
    #[arg(long)]
    pub ended: bool,
}

#[derive(Args, Debug)]
pub struct Split {
    /// Number of the region
    pub region: u64,
    /// First keys of the new regions
    pub keys: Vec<String>,
    /// Keys are written in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub struct AddStore {
    /// The directory, on this machine
    pub dir: PathBuf,
    /// Address that the new server listens on
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// Wait until a new store has joined and has its share, and show how far it is
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args, Debug)]
pub struct Leave {
    /// Number of the store
    pub store: u64,
    /// Wait until it is empty, and show how far it is
    #[arg(long)]
    pub wait: bool,
}
