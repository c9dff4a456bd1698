//! Arguments of `stele ctl`.

use super::node_address;
use clap::{Args, Subcommand, ValueEnum};
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
    /// Allow the node with this name in its certificate to join
    Admit {
        /// Name of the node
        node: String,
        /// Time in which it may join, such as 30m, 1h or 2d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = seconds,
              conflicts_with = "store")]
        valid: u64,
        /// Bind this store, of which the directory moved for good, to the node instead
        #[arg(long = "store-id", value_name = "STORE")]
        store: Option<u64>,
    },
    /// Print a token by which nodes with certificates join; it is not shown again
    JoinToken {
        /// Time in which they may join, such as 30m, 1h or 2d
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = seconds)]
        valid: u64,
    },
    /// Keep one of two runs of a store that stopped beside each other, for good
    KeepRun {
        /// Store ID
        store: u64,
        /// Address of the node with the directory that goes on; not with --store, which names the directory
        #[arg(value_parser = node_address)]
        address: Option<String>,
    },
    /// Show or change what the clients of the cluster may do
    Access {
        #[command(subcommand)]
        command: AccessCommand,
    },
    /// Take a moment: a cut of all regions at one instant, for which their writes wait at most 200 ms
    Moment {
        /// Most attempts, each of which may pause writes: elections and splits abandon one
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4))]
        attempts: u32,
    },
    /// Print what the placement group recorded of regions, stores, settings and rights, and its operators
    Events {
        /// First entry of the placement group's log; by default the last thousand that the leader has
        #[arg(long, value_name = "INDEX", default_value_t = 0, hide_default_value = true)]
        from: u64,
        /// Go on with what comes, until a signal
        #[arg(long)]
        follow: bool,
    },
    /// Let the nodes write what only their present versions read; no earlier version can start again
    Finalize,
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

/// Commands of `stele ctl access`.
#[derive(Debug, Subcommand)]
pub(crate) enum AccessCommand {
    /// List the grants; without any, each client may read and write every key
    List,
    /// Give a client its rights, or replace them; the first grant takes all other clients' rights away
    Grant(GrantArgs),
    /// Create a token for clients without a certificate, and show it this once
    Token(GrantArgs),
    /// End the rights of a client or a token
    Revoke {
        /// Name in the client's certificate, or token:NAME
        name: String,
        /// Also end the last grant, after which each client may read and write every key
        #[arg(long)]
        turn_off: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct GrantArgs {
    /// Name in the client's certificate, or of the token
    pub name: String,
    /// Rights: read, write or both, or admin for everything
    #[arg(long, value_delimiter = ',', required = true)]
    pub role: Vec<Role>,
    /// Beginning of the keys that the rights hold for; without any, all keys
    #[arg(long)]
    pub prefix: Vec<String>,
    /// Read prefixes as hexadecimal
    #[arg(long, requires = "prefix")]
    pub hex: bool,
    /// Commands a second on each node; 0 sets no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub operations_per_second: u64,
    /// Bytes of requests and answers a second on each node; 0 sets no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub bytes_per_second: u64,
    /// Connections to each node at the same time; 0 sets no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub connections: u64,
}

/// Role of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Gets, scans and checksums
    Read,
    /// Puts and deletes; a compare-and-swap needs read too
    Write,
    /// Everything, and `stele ctl`
    Admin,
}

impl Role {
    /// Returns the bit of the role in a grant.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Admin => 4,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }
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

/// Reads a time with its unit, as seconds.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let units = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];
    let found = units.iter().find_map(|(unit, seconds)| {
        text.strip_suffix(*unit)?.parse::<u64>().ok()?.checked_mul(*seconds)
    });
    found.ok_or_else(|| "give a number with a unit: s, m, h or d".to_owned())
}
