//! Arguments of `stele ctl`.

use super::node_address;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use stele_load::TlsFiles;

#[derive(Args, Debug)]
pub(crate) struct Ctl {
    /// Addresses of one or more nodes of the cluster, as host:port
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required_unless_present = "store",
          value_parser = node_address)]
    pub cluster: Vec<String>,
    /// Directories of nodes that do not run; for `recover`, `keep-run` and `config tick_ms`
    #[arg(long, value_name = "DIR", conflicts_with = "cluster")]
    pub store: Vec<PathBuf>,
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Print one JSON object per line instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Commands of `stele ctl`.
#[derive(Debug, Subcommand)]
pub(crate) enum CtlCommand {
    /// List the stores with their addresses, states and sizes
    Stores,
    /// List the regions with their key ranges, replicas and leaders
    Regions(Regions),
    /// List the nodes and their stores
    Members,
    /// List the running operators, which change regions
    Operators(Operators),
    /// Cancel the operator of a region; a merge that is not committed is abandoned
    CancelOperator {
        /// Region ID
        region: u64,
    },
    /// Show one region and the state of each of its replicas
    Region {
        /// Region ID
        id: u64,
    },
    /// Show measured speeds, weights, shares of the data, and planned moves
    Placement,
    /// Explain why the leader and the replicas of a region are where they are
    Explain(Explain),
    /// Transfer the leadership of a region to another replica
    TransferLeader {
        /// Region ID
        region: u64,
        /// Store of the new leader
        store: u64,
    },
    /// Split a region at the given keys, or in half by size
    Split(Split),
    /// Merge a region into its neighbour
    Merge {
        /// Region that is merged and ceases to exist
        source: u64,
        /// Neighbouring region that receives its keys
        target: u64,
    },
    /// Move a replica to another store
    Move {
        /// Region ID
        region: u64,
        /// Store that holds the replica
        from: u64,
        /// Store that receives the replica
        to: u64,
    },
    /// Check a directory for a new store and print the command that starts its server
    AddStore(AddStore),
    /// Move all replicas off a store and remove it from the cluster permanently
    RemoveStore(Remove),
    /// Move all replicas off a store, which stays a member
    Drain(Leave),
    /// Cancel the drain or removal of a store
    Cancel {
        /// Store ID
        store: u64,
    },
    /// Continue regions of which the majority is lost permanently; without --yes it only shows how
    Recover(Recover),
    /// Keep one of two runs of a store that stopped beside each other, for good
    KeepRun {
        /// Store ID
        store: u64,
        /// Address of the node with the directory that goes on; not with --store, which names the directory
        #[arg(value_parser = node_address)]
        address: Option<String>,
    },
    /// Compare the checksums of a region's replicas
    Checksum {
        /// Region ID
        region: u64,
    },
    /// Show the settings of a node, or change one while the cluster runs; with --store, the tick of its stores
    Config {
        /// Name of the setting; without it, all settings are shown
        key: Option<String>,
        /// New value; without it, the setting is shown
        value: Option<String>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Regions {
    /// List only regions with a replica on this store
    #[arg(long, value_name = "STORE")]
    pub store: Option<u64>,
    /// Include the region of the placement group
    #[arg(long)]
    pub system: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// Region ID
    #[arg(conflicts_with = "key")]
    pub region: Option<u64>,
    /// Explain the region that holds this key
    #[arg(long)]
    pub key: Option<String>,
    /// Read the key as hexadecimal
    #[arg(long, requires = "key")]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Operators {
    /// Include operators that ended recently
    #[arg(long)]
    pub ended: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Split {
    /// Region ID
    pub region: u64,
    /// Start keys of the new regions; without any, the region is split in half by size
    pub keys: Vec<String>,
    /// Read keys as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AddStore {
    /// Directory of the new store, on this machine
    pub dir: PathBuf,
    /// Address on which the new server listens
    #[arg(long, value_name = "HOST:PORT", value_parser = node_address)]
    pub listen: Option<String>,
    /// Wait until a new store has joined and is balanced, and show the progress
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Recover {
    /// Stores that are lost permanently; their nodes must never run again
    #[arg(long, value_name = "STORE", value_delimiter = ',', required = true)]
    pub lost: Vec<u64>,
    /// Output of this command with --json for directories on other machines
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,
    /// Carry out what is shown
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Leave {
    /// Store ID
    pub store: u64,
    /// Wait until the store is empty, and show the progress
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Remove {
    #[command(flatten)]
    pub leave: Leave,
    /// Remove the store without a question; required without a terminal
    #[arg(long)]
    pub yes: bool,
}
