//! Benchmarks of Stele beside other stores on the same machine and disk: real files, with every
//! sync.
//!
//! Each measurement runs in its own child process, which isolates its memory, processor time and
//! written bytes. Every run prints its settings and one JSON line per measurement.

mod amplification;
mod child;
mod disk;
mod engine;
mod index;
mod index_memory;
mod log;
mod memory;
mod placement;
mod report;
mod restart;
mod stats;

use crate::args::Args;
use anyhow::{Result, bail};

const SETTINGS: [&str; 13] = [
    "dir",
    "rounds",
    "keys",
    "stores",
    "regions",
    "values",
    "value",
    "bytes",
    "writers",
    "policies",
    "fairness",
    "stale-percent",
    "file",
];

pub(crate) const USAGE: &str = "usage: lab <name> [--quick] [--save] [--dir DIR] [--rounds N] [settings]

  index          the index alone beside lsm-tree, fjall, redb      --keys 5000000,20000000 --stores a,b
  engine         the engine beside fjall with key-value separation --values 1KiB,16KiB,256KiB --bytes 1GiB
                   --fairness bounded,unbounded,defaults (terms of space; default: the first two)
                   --stale-percent 50 (bounded: dead share from which fjall empties a file)
                   --file BYTES (size of a value file on both sides; default: a 64th of --bytes)
  log            appends beside a bare write and sync loop         --value 16KiB --bytes 1GiB
  restart        time to open after kill -9                        --bytes 12GiB --value 16KiB
  amplification  bytes written by 64 writers, by policy            --bytes 1GiB --writers 64
  memory         resident memory after many keys                   --keys 10000000 --value 1KiB
  placement      time of a round of the placement group            --regions 100000 --stores 100
  index-memory   memory of filters and fences, pinned and limited  --keys 1000000,10000000 --limit 1MiB

--save appends the JSON lines to lab/results/<name>.jsonl
--dir  directory of the stores, on the disk to measure";

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Some((name, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    if name == child::COMMAND {
        return child::serve(rest);
    }
    let args = Args::parse(rest, &["quick", "save"], &SETTINGS)?;
    match name.as_str() {
        "index" => index::run(&args),
        "engine" => engine::run(&args),
        "log" => log::run(&args),
        "restart" => restart::run(&args),
        "amplification" => amplification::run(&args),
        "memory" => memory::run(&args),
        "index-memory" => index_memory::run(&args),
        "placement" => placement::run(&args),
        other => bail!("unknown benchmark `{other}`\n\n{USAGE}"),
    }
}
