//! The command line: its commands and their arguments.

mod backup;
mod cert;
mod ctl;
mod import;
mod restore;
mod server;

pub(crate) use backup::{Backup, BackupCommand, ListMoments, Prune, Pull, VerifyBackup};
pub(crate) use cert::{Cert, CertCommand};
pub(crate) use ctl::{
    AccessCommand, AddStore, Ctl, CtlCommand, Explain, GrantArgs, Recover, Regions, Remove, Role,
};
pub(crate) use import::{Import, RedisImport};
pub(crate) use restore::Restore;
pub(crate) use server::Server;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use stele_load::{Load, TlsFiles, size};
use stele_types::{Error, Result};
use stele_vfs::DeviceScale;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  yes: done, found, unharmed
  1  failure: not done, refused, left out in part, or damage found
  2  usage: the command line, a value or a setting can never be accepted; nothing was changed
  3  no such key: `get`, `del --get`, `put --if-present`, and `exist` if any key is missing
  4  unknown outcome: a write may or may not have taken effect; read before repeating it";

/// Command line of `stele`. The help text is the description of the package.
#[derive(Debug, Parser)]
#[command(name = "stele", version, about, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of `stele`.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node that creates a cluster, or joins one
    Server(Box<Server>),
    /// Run a cluster on this machine for experiments
    Playground(Playground),
    /// Show and change the state of a cluster
    Ctl(Ctl),
    /// Create certificates for TLS: an authority, and the nodes and clients that it signs
    Cert(Cert),
    /// Set a key; the value is durable when the command returns
    Put(Put),
    /// Print the value of a key
    Get(Get),
    /// Check which keys exist; exit code 3 if one does not
    Exist(Exist),
    /// Delete keys
    Del(Del),
    /// Add to the decimal number of a key and print the sum; a missing key counts as 0
    Incr(Incr),
    /// Append to the value of a key and print its bytes; a missing key counts as empty
    Append(Append),
    /// Print key-value pairs in key order
    Scan(Scan),
    /// Print the number of keys
    Count(Count),
    /// Print each write to keys of a cluster as it comes, one JSON object per line
    Watch(Watch),
    /// Import a directory of files or a file of JSON lines, or Redis data from a server or an RDB file; running
    /// it again resumes
    Import(Box<Import>),
    /// Export all pairs as files or as JSON lines; the inverse of import
    Export(Export),
    /// Back up a cluster while it is used; list, check and prune backups
    Backup(Backup),
    /// Restore a moment of a backup into a cluster or an embedded store, or one key
    Restore(Box<Restore>),
    /// Verify a store: all checksums, the index against the log, and reported against actual disk
    /// usage
    Verify(Verify),
    /// Print the records of a store's files without opening the store
    Inspect(Inspect),
    /// Merge, sort and collect garbage until no more space can be reclaimed
    Compact(Target),
    /// Print the sizes of a store and its space amplification
    Stats(Stats),
    /// Run a benchmark
    #[command(subcommand)]
    Bench(BenchTarget),
}

/// Benchmarks of `stele bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchTarget {
    /// Measure the storage engine with the YCSB workloads
    Engine(Bench),
    /// Measure a cluster, or another server, over the network
    Wire(stele_load::Wire),
}

/// Store to open.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
}

/// Store or cluster to use.
#[derive(Args, Debug)]
pub(crate) struct StoreOrCluster {
    /// Directory of a store
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "cluster",
        conflicts_with = "cluster"
    )]
    pub store: Option<PathBuf>,
    /// Addresses of one or more nodes of a cluster, as host:port
    #[arg(long, value_name = "ADDR", value_delimiter = ',', value_parser = node_address)]
    pub cluster: Vec<String>,
    #[command(flatten)]
    pub tls: TlsFiles,
}

impl StoreOrCluster {
    pub(crate) fn describe(&self) -> String {
        match &self.store {
            Some(dir) => format!("the store {}", dir.display()),
            None => format!("the cluster at {}", self.cluster.join(",")),
        }
    }
}

fn node_address(text: &str) -> Result<String, String> {
    match stele_types::address::to_connect(text) {
        Ok(address) => Ok(address.to_owned()),
        Err(stele_types::Error::Invalid(reason)) => Err(reason),
        Err(error) => Err(error.to_string()),
    }
}

#[derive(Args, Debug)]
pub(crate) struct Put {
    #[command(flatten)]
    pub place: StoreOrCluster,
    /// Key to set
    pub key: String,
    /// Value to store; required without --file
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub value: Option<String>,
    /// Read the value from a file, or from standard input with `-`
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Read the key and the value as hexadecimal; a value from a file is not decoded
    #[arg(long)]
    pub hex: bool,
    /// Time to live: the pair expires after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub ttl: Option<u64>,
    /// Set the key only if it has no value; otherwise fail
    #[arg(long)]
    pub if_absent: bool,
    /// Set the key only if it has a value; otherwise fail
    #[arg(long, conflicts_with = "if_absent")]
    pub if_present: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Get {
    #[command(flatten)]
    pub place: StoreOrCluster,
    /// Key to read
    pub key: String,
    /// Read the key and print the value as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Exist {
    #[command(flatten)]
    pub place: StoreOrCluster,
    /// Keys to check
    #[arg(required = true)]
    pub keys: Vec<String>,
    /// Read and print the keys as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Del {
    #[command(flatten)]
    pub place: StoreOrCluster,
    /// Keys to delete
    #[arg(required_unless_present_any = ["start", "end", "prefix", "all"],
          conflicts_with_all = ["start", "end", "prefix", "all"])]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub range: Range,
    /// Delete every key
    #[arg(long, conflicts_with_all = ["start", "end", "prefix"])]
    pub all: bool,
    /// Delete every key, a range or a prefix without a question; required without a terminal
    #[arg(long)]
    pub yes: bool,
    /// Print the value that the key had; takes one key
    #[arg(long, conflicts_with_all = ["start", "end", "prefix", "all"])]
    pub get: bool,
    /// Read keys and print the value as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Incr {
    #[command(flatten)]
    pub place: StoreOrCluster,
    /// Key of the number
    pub key: String,
    /// Number to add; it may be negative
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub by: i64,
    /// Read the key as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Append {
    #[command(flatten)]
    pub place: StoreOrCluster,
    /// Key of the value
    pub key: String,
    /// Bytes to append; the value may have at most 64 KiB in all
    pub value: String,
    /// Read the key and the value as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// Range of keys.
#[derive(Args, Debug)]
pub(crate) struct Range {
    /// Start of the range, inclusive; by default the first key
    #[arg(long, value_name = "KEY")]
    pub start: Option<String>,
    /// End of the range, exclusive; by default after the last key
    #[arg(long, value_name = "KEY")]
    pub end: Option<String>,
    /// Select keys with this prefix
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
    pub prefix: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Scan {
    #[command(flatten)]
    pub place: StoreOrCluster,
    #[command(flatten)]
    pub range: Range,
    /// Maximum number of pairs to print
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print pairs from the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Print keys without values
    #[arg(long)]
    pub keys_only: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Read bounds and print keys and values as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Count {
    #[command(flatten)]
    pub place: StoreOrCluster,
    #[command(flatten)]
    pub range: Range,
    /// Read bounds as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Addresses of one or more nodes of a cluster, as host:port
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true,
          value_parser = node_address)]
    pub cluster: Vec<String>,
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Prefix of the keys; every key if it is empty
    pub prefix: String,
    /// Where to begin: `now`, a token, or `@PATH` for the token in a file
    #[arg(long, value_name = "TOKEN", default_value = "now")]
    pub from: String,
    /// Print a line whenever all writes are printed that were acknowledged before a moment, once a second
    #[arg(long)]
    pub resolved: bool,
    /// Print what each key had before; the nodes look each written key up
    #[arg(long)]
    pub old_values: bool,
    /// Write the token of the watch to this file after each batch of lines
    #[arg(long, value_name = "PATH")]
    pub save_token: Option<PathBuf>,
    /// Read the prefix and print keys and values as hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// Encoding of bytes in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    /// Text; bytes that are not UTF-8 are hexadecimal, under `key_hex` and `value_hex`
    Text,
    /// Hexadecimal
    Hex,
    /// Base64
    Base64,
}

#[derive(Args, Debug)]
pub(crate) struct Export {
    #[command(flatten)]
    pub target: Target,
    /// Directory, file ending in .jsonl, or `-` for JSON lines on standard output
    #[arg(long, value_name = "PATH")]
    pub to: PathBuf,
    #[command(flatten)]
    pub range: Range,
    /// Encoding of keys and values in JSON lines
    #[arg(long, value_enum, default_value = "text")]
    pub encoding: Encoding,
}

#[derive(Args, Debug)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub target: Target,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub target: Target,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Part of a store to inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Segments, sidecars, sorted value files and retained tombstones
    Log,
    /// Index runs
    Run,
    /// Manifests of the index
    Manifest,
    /// Identity and list of files
    Store,
}

#[derive(Args, Debug)]
pub(crate) struct Inspect {
    /// Part of the store to inspect
    #[arg(value_enum)]
    pub part: Part,
    /// Single file to inspect
    #[arg(required_unless_present = "store", conflicts_with = "store")]
    pub file: Option<PathBuf>,
    /// Directory of the store; inspects every file of the part
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
}

/// Policy of garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Collects the cheapest victims first, within a budget
    Adaptive,
    /// Rewrites all values in key order at a threshold
    Nezha,
    /// Collects the oldest files first
    Wisckey,
}

/// Arguments of `stele bench engine`.
#[derive(Args, Debug)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub load: Load,
    /// Number of puts in one batch, which is written atomically
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub batch: u64,
    /// Policy of garbage collection
    #[arg(long, value_enum, default_value = "adaptive")]
    pub policy: Policy,
    /// Wait until garbage collection is idle before the final measurement
    #[arg(long)]
    pub settle: bool,
    /// Maximum size of a log segment
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_bytes: Option<u64>,
    /// Maximum size of a memtable
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memtable_bytes: Option<u64>,
    /// Maximum size of the value cache
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub value_cache_bytes: Option<u64>,
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_value_and_a_file_exclude_each_other() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("stele put --store d k v").is_ok());
        assert!(parse("stele put --store d k --file -").is_ok());
        assert!(parse("stele put --store d k").is_err());
        assert!(parse("stele put --store d k v --file f").is_err());
        assert!(parse("stele del --store d").is_err());
        assert!(parse("stele del --store d --prefix p").is_ok());
        assert!(parse("stele del --store d --all --yes").is_ok());
        assert!(parse("stele del --store d --all k").is_err());
        assert!(parse("stele del --store d --all --prefix p").is_err());
        assert!(parse("stele del --store d --get k").is_ok());
        assert!(parse("stele del --store d --get").is_err());
        assert!(parse("stele del --store d --get --prefix p").is_err());
        assert!(parse("stele incr --store d k -5").is_ok());
        assert!(parse("stele incr --store d k x").is_err());
        assert!(parse("stele append --store d k").is_err());
        assert!(parse("stele bench engine --store d --workload A --value-bytes 16k").is_ok());
    }

    #[test]
    fn keys_are_in_a_directory_or_in_a_cluster() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        let get = parse("stele get --cluster a:1,b:2 k");
        assert!(matches!(get, Ok(Command::Get(get)) if get.place.cluster == ["a:1", "b:2"]));
        assert!(parse("stele get k").is_err());
        assert!(parse("stele get --store d --cluster a:1 k").is_err());
        assert!(parse("stele ctl stores").is_err());
        assert!(parse("stele ctl recover --lost 2").is_err());
        assert!(parse("stele ctl --cluster a:1 recover").is_err());
        assert!(parse("stele ctl --cluster a:1 recover --lost 2,3 --yes").is_ok());
        assert!(parse("stele ctl --store d1 --store d2 recover --lost 2 --with f").is_ok());
        assert!(parse("stele ctl --store d --cluster a:1 recover --lost 2").is_err());
        assert!(parse("stele ctl --cluster a:1 stores --json").is_ok());
        for bad in ["a", "a:1,", "a:0", "a:1,b", "tcp://a:1", "https://localhost:1"] {
            let refused = parse(&format!("stele get --cluster {bad} k")).unwrap_err();
            let text = refused.to_string();
            assert!(
                text.contains("is not an address") && refused.exit_code() == 2,
                "{bad}: {text}"
            );
            assert!(parse(&format!("stele ctl --cluster {bad} stores")).is_err(), "{bad}");
        }
        let get = parse("stele get --cluster http://localhost:1/ k");
        assert!(matches!(get, Ok(Command::Get(get)) if get.place.cluster == ["localhost:1"]));
        assert!(parse("stele ctl --cluster a:1 remove-store 3 --yes --wait").is_ok());
        assert!(parse("stele ctl --cluster a:1 drain 3 --yes").is_err());
        assert!(parse("stele ctl --cluster a:1 keep-run 3 b").is_err());
        assert!(parse("stele ctl --cluster a:1 add-store d --listen 2379").is_err());
        assert!(parse("stele ctl --cluster a:1 move 7 1 4").is_ok());
        assert!(parse("stele ctl --cluster a:1 drain 3 --wait").is_ok());
        assert!(parse("stele watch --cluster a:1 p --from @f --resolved").is_ok());
        assert!(parse("stele watch p").is_err());
        assert!(parse("stele playground --nodes 3 --demo").is_ok());
        assert!(parse("stele playground --nodes 0").is_err());
    }

    #[test]
    fn every_setting_of_a_server_is_a_flag() {
        let line = "stele server --listen a:1 --join x:1,y:2 --join z:3 --store d1 --store d2 \
                    --region-bytes-max 64MiB";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Server(server) = cli.command else { panic!("{cli:?}") };
        let of = |key: &str| {
            let found = server.settings.0.iter().find(|(name, _)| name == key);
            found.map(|(_, text)| text.as_str())
        };
        assert_eq!(of("join"), Some("x:1,y:2,z:3"));
        assert_eq!(of("store"), Some("d1,d2"));
        assert_eq!(of("region_bytes_max"), Some("64MiB"));
        assert_eq!(of("replicas"), None);
        for setting in &stele_server::config::SETTINGS {
            let line = ["stele", "server", &setting.flag(), "1"];
            assert!(Cli::try_parse_from(line).is_ok(), "{}", setting.key);
        }
    }
}
