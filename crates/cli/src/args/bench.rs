//! Arguments of `stele bench engine`.

use super::Target;
use clap::{Args, ValueEnum};
use stele_load::{Load, size};

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
