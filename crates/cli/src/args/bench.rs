//! What a benchmark can be asked for.

use super::Target;
use clap::{Args, ValueEnum};
use stele_types::{Error, Result};

/// The mix of operations: YCSB A to F, shares of updates (W) or scans (S), or only inserts.
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
    /// 90 % updates, 10 % reads
    W90,
    /// 70 % updates
    W70,
    /// 50 % updates
    W50,
    /// 30 % updates
    W30,
    /// 10 % updates
    W10,
    /// 90 % scans, 10 % updates
    S90,
    /// 70 % scans
    S70,
    /// 50 % scans
    S50,
    /// 30 % scans
    S30,
    /// 10 % scans
    S10,
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

/// What is asked for, of whatever is measured.
#[derive(Args, Clone, Debug)]
pub struct Load {
    /// Mix of operations
    #[arg(long, value_enum, default_value = "a", ignore_case = true)]
    pub workload: Workload,
    /// Records there before the measured part
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub records: u64,
    /// Operations measured; the load measures one insert for each record
    #[arg(long, default_value_t = 100_000)]
    pub operations: u64,
    /// Stop measuring after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Writers and readers
    #[arg(long, visible_alias = "clients", default_value_t = 16,
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub threads: u64,
    /// Operations a second, begun on schedule whatever the store does; latency counts from the
    /// scheduled beginning. Without it each thread begins when its last operation ended
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
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
    /// Longest scan
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub scan_length_max: u64,
    /// Percent of the updates that delete the record instead
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    pub deletes: u64,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The records are there already
    #[arg(long)]
    pub skip_load: bool,
    /// No line each second
    #[arg(long)]
    pub quiet: bool,
}

impl Load {
    /// Fails if a share is none.
    pub fn check(&self) -> Result<()> {
        let share = 0.0..=1.0;
        if !share.contains(&self.hot_records) || !share.contains(&self.hot_operations) {
            let text = "--hot-records and --hot-operations are shares from 0 to 1";
            return Err(Error::invalid(text));
        }
        crate::store::check_value_bytes(self.value_bytes)
    }
}

/// `stele bench engine`.
#[derive(Args, Debug)]
pub struct Bench {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub load: Load,
    /// Puts made durable together by one call
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub batch: u64,
    /// Garbage collection
    #[arg(long, value_enum, default_value = "adaptive")]
    pub policy: Policy,
    /// Wait until garbage collection has come to rest before the final figures
    #[arg(long)]
    pub settle: bool,
    /// Size of a log segment
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_bytes: Option<u64>,
    /// Size of a memtable
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memtable_bytes: Option<u64>,
    /// Memory for values read
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub value_cache_bytes: Option<u64>,
}

/// `stele bench wire`.
#[derive(Args, Debug)]
pub struct BenchWire {
    /// What is measured: stele://HOST:PORT,HOST:PORT or tikv://, etcd://, redis://. Several are
    /// measured in turn, round by round
    #[arg(long, value_name = "URL", required = true)]
    pub target: Vec<String>,
    #[command(flatten)]
    pub load: Load,
    /// Rounds measured for each target
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Seconds of the same load before the first round, not measured
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub warm_up: u64,
    /// Connections to each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub connections: u64,
    /// Replicas that must have a write before redis counts it
    #[arg(long, default_value_t = 1)]
    pub redis_replicas: u64,
    /// Processes of the servers on this machine, for one target after the other separated by `/`: their
    /// processor time and device bytes are counted
    #[arg(long, value_name = "PID,PID/PID,…")]
    pub pids: Option<String>,
    /// Write a page with the figures and their plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<std::path::PathBuf>,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    stele_types::size::parse_bytes(text).map_err(|error| error.to_string())
}
