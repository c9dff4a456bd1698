//! What can be asked for on the command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A key-value store in one directory.
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
}

/// Which store.
#[derive(Args, Debug)]
pub struct Target {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
}

#[derive(Args, Debug)]
pub struct Put {
    #[command(flatten)]
    pub target: Target,
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
    pub target: Target,
    /// The key
    pub key: String,
    /// Key and value are written in hexadecimal
    #[arg(long)]
    pub hex: bool,
}

#[derive(Args, Debug)]
pub struct Del {
    #[command(flatten)]
    pub target: Target,
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
    pub target: Target,
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
    pub target: Target,
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

/// The mix of operations: YCSB A to F, or only inserts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Insert every record once
    Load,
    /// 50 % reads, 50 % updates
    A,
    /// 95 % reads, 5 % updates
    B,
    /// Reads only
    C,
    /// 95 % reads of recent records, 5 % inserts
    D,
    /// 95 % short scans, 5 % inserts
    E,
    /// 50 % reads, 50 % read-modify-writes
    F,
    /// Updates only
    Update,
}

/// Which records are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// Each with the same chance
    Uniform,
    /// A few much more often (θ 0.99), spread over the key space
    Zipfian,
    /// Recently inserted ones more often
    Latest,
    /// --hot-operations of the choices among --hot-records of the records
    Hotspot,
}

/// How values are collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// Cheapest victims first, within a budget
    Adaptive,
    /// Rewrites all values in key order at a threshold
    Nezha,
    /// Oldest files first
    Wisckey,
}

#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    pub target: Target,
    /// Mix of operations
    #[arg(long, value_enum, default_value = "a", ignore_case = true)]
    pub workload: Workload,
    /// Records in the store before the measured part
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Operations measured; the load measures one insert for each record
    #[arg(long, default_value_t = 100_000)]
    pub operations: u64,
    /// Stop measuring after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Writers and readers
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
    /// Operations a second, begun on schedule whatever the store does; latency counts from the
    /// scheduled beginning. Without it each thread begins when its last operation ended
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Puts made durable together by one call
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub batch: u64,
    /// Length of values, such as 16KiB
    #[arg(long, default_value = "1KiB", value_name = "SIZE", value_parser = size)]
    pub value_bytes: u64,
    /// Length of keys
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=8192))]
    pub key_bytes: u64,
    /// Insert in key order instead of a scattered one
    #[arg(long)]
    pub ordered: bool,
    /// Choice of records; by default that of the workload
    #[arg(long, value_enum)]
    pub distribution: Option<Distribution>,
    /// Share of the records that is hot, for --distribution hotspot
    #[arg(long, default_value_t = 0.2)]
    pub hot_records: f64,
    /// Share of the operations that goes to hot records
    #[arg(long, default_value_t = 0.8)]
    pub hot_operations: f64,
    /// Longest scan of workload E
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub scan_length_max: u64,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Garbage collection
    #[arg(long, value_enum, default_value = "adaptive")]
    pub policy: Policy,
    /// Wait until garbage collection has come to rest before the final figures
    #[arg(long)]
    pub settle: bool,
    /// The store holds the records already
    #[arg(long)]
    pub skip_load: bool,
    /// Size of a log segment
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_bytes: Option<u64>,
    /// Size of a memtable
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memtable_bytes: Option<u64>,
    /// Memory for values read
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub value_cache_bytes: Option<u64>,
    /// No line each second
    #[arg(long)]
    pub quiet: bool,
}

fn size(text: &str) -> Result<u64, String> {
    stele_types::size::parse_bytes(text).map_err(|error| error.to_string())
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
}
