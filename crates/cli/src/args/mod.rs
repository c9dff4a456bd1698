//! What can be asked for on the command line.

mod bench;
mod ctl;
mod playground;
mod server;

pub use bench::{Bench, BenchWire, Distribution, Load, Policy, Workload};
pub use ctl::{AddStore, Ctl, CtlCommand, Regions};
pub use playground::Playground;
pub use server::Server;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A key-value store: a cluster of nodes, or one directory.
#[derive(Debug, Parser)]
#[command(name = "stele", version, about, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node: found a cluster, or join one
    Server(Box<Server>),
    /// Run a cluster on this machine to try things on
    Playground(Playground),
    /// Look at a cluster and change it
    Ctl(Ctl),
    /// Set a key; the value is durable when the command returns
    Put(Put),
    /// Print the value of a key
    Get(Get),
    /// Remove keys
    Del(Del),
    /// Print pairs in key order
    Scan(Scan),
    /// Count keys
    Count(Count),
    /// Bring in a folder of files or a file of JSON lines; run it again to resume
    Import(Import),
    /// Write all pairs as files or as JSON lines: the inverse of import
    Export(Export),
    /// Check every checksum, the index against the log, and reported against real space
    Verify(Verify),
    /// Show the records of a store's files without opening the store
    Inspect(Inspect),
    /// Merge, sort and collect until nothing is left to gain
    Compact(Target),
    /// Print sizes and amplification
    Stats(Stats),
    /// Measure
    #[command(subcommand)]
    Bench(BenchTarget),
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchTarget {
    /// The storage engine, with the YCSB workloads
    Engine(Bench),
    /// A cluster or another server over the wire
    Wire(BenchWire),
}

/// Which store.
#[derive(Args, Debug)]
pub struct Target {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
}

/// A store or a cluster.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub struct Place {
    /// Directory of a store
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// Nodes of a cluster, any of them
    #[arg(long, value_name = "ADDR", value_delimiter = ',')]
    pub cluster: Vec<String>,
}

#[derive(Args, Debug)]
pub struct Put {
    #[command(flatten)]
    pub place: Place,
    /// The key
    pub key: String,
    /// The value, unless --file gives it
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    pub value: Option<String>,
    /// Read the value from a file, or from standard input for `-`
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Key and value are written in hexadecimal (a value from a file is taken as it is)
    #[arg(long)]
    pub hex: bool,
    /// Let the pair cease to exist after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub ttl: Option<u64>,
}

#[derive(Args, Debug)]
pub struct Get {
    #[command(flatten)]
    pub place: Place,
    /// The key
    pub key: String,
    /// Key and value are written in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub struct Del {
    #[command(flatten)]
    pub place: Place,
    /// The keys
    #[arg(required_unless_present_any = ["start", "end", "prefix"],
          conflicts_with_all = ["start", "end", "prefix"])]
    pub keys: Vec<String>,
    #[command(flatten)]
    pub range: Range,
    /// Keys are written in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// Which keys.
#[derive(Args, Debug)]
pub struct Range {
    /// First key
    #[arg(long, value_name = "KEY")]
    pub start: Option<String>,
    /// First key that is no longer included
    #[arg(long, value_name = "KEY")]
    pub end: Option<String>,
    /// Only keys that begin so
    #[arg(long, value_name = "KEY", conflicts_with_all = ["start", "end"])]
    pub prefix: Option<String>,
}

#[derive(Args, Debug)]
pub struct Scan {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub range: Range,
    /// Most pairs printed
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// From the last key to the first
    #[arg(long)]
    pub reverse: bool,
    /// Leave values out
    #[arg(long)]
    pub keys_only: bool,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Keys and values are written in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub struct Count {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub range: Range,
    /// Keys are written in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

/// How bytes are written in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Encoding {
    /// As text; what is not UTF-8 in hexadecimal, under `key_hex` and `value_hex`
    Text,
    /// Hexadecimal
    Hex,
    /// Base64
    Base64,
}

#[derive(Args, Debug)]
pub struct Import {
    #[command(flatten)]
    pub target: Target,
    /// A folder (each file below it becomes a pair), a file of JSON lines, or `-`
    #[arg(long, value_name = "PATH")]
    pub from: PathBuf,
    /// How `key` and `value` of JSON lines are written
    #[arg(long, value_enum, default_value = "text")]
    pub encoding: Encoding,
}

#[derive(Args, Debug)]
pub struct Export {
    #[command(flatten)]
    pub target: Target,
    /// A folder, a file ending in .jsonl, or `-` for JSON lines on standard output
    #[arg(long, value_name = "PATH")]
    pub to: PathBuf,
    #[command(flatten)]
    pub range: Range,
    /// How JSON lines write keys and values
    #[arg(long, value_enum, default_value = "text")]
    pub encoding: Encoding,
}

#[derive(Args, Debug)]
pub struct Verify {
    #[command(flatten)]
    pub target: Target,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Stats {
    #[command(flatten)]
    pub target: Target,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// What to inspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Segments, sidecars, sorted value files
    Log,
    /// Index runs
    Run,
    /// The manifest
    Manifest,
    /// Identity and files
    Store,
}

#[derive(Args, Debug)]
pub struct Inspect {
    /// Which part
    #[arg(value_enum)]
    pub part: Part,
    /// A single file of that part
    #[arg(required_unless_present = "store", conflicts_with = "store")]
    pub file: Option<PathBuf>,
    /// Directory of the store: every file of that part
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
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
        assert!(parse("stele ctl --cluster a:1 stores --json").is_ok());
        assert!(parse("stele ctl --cluster a:1 move 7 1 4").is_ok());
        assert!(parse("stele ctl --cluster a:1 drain 3 --wait").is_ok());
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
