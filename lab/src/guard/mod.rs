//! `lab batches`: a fixed number of rounds through one part of the product, in one thread, for
//! `cargo xtask guard`, which counts their instructions.
//!
//! Invariant: what a round does follows from the name of the batch and the number of the round. Disks are
//! in memory, time is a number, and messages are passed in order.
//! Test: `a_batch_does_what_it_names`.

mod engine;
mod redis;
mod replicas;
mod transport;

use crate::args::Args;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use stele_engine::{Replay, Store};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::{ColumnFamily, CommandBuilder, ManualClock, Prng, StoreId};

/// Rounds before those that are counted: memory is then allocated, and caches are filled.
const WARM_UP_ROUNDS: u64 = 2;
const VALUE_BYTES: usize = 1 << 10;
/// Block of the simulated devices: the log is written as past the page cache of a real one.
const BLOCK_BYTES: usize = 4096;

/// What `lab batches` runs.
trait Batch {
    /// Prepares a round; not counted.
    fn prepare(&mut self) -> Result<()>;
    /// Runs the round. Returns the number of its operations.
    fn run(&mut self) -> Result<u64>;
    /// Fails if the rounds did not do their work.
    fn check(&mut self) -> Result<()>;
}

fn open(name: &str) -> Result<Box<dyn Batch>> {
    Ok(match name {
        "core-64" => Box::new(replicas::ReplicatedPuts::new(1, 64)?),
        "core-64-dearer" => Box::new(replicas::ReplicatedPuts::dearer()?),
        "core-64-followed" => Box::new(replicas::ReplicatedPuts::followed()?),
        "core-1" => Box::new(replicas::ReplicatedPuts::new(1, 1)?),
        "core-regions" => Box::new(replicas::ReplicatedPuts::new(100, 1)?),
        "core-redis" => Box::new(redis::RedisCommands::new()?),
        "engine-put" => Box::new(engine::EnginePuts::new()?),
        "engine-get" => Box::new(engine::Gets::new()?),
        "engine-scan" => Box::new(engine::Scans::new()?),
        "engine-flush" => Box::new(engine::Flushes::new()?),
        "transport-encode" => Box::new(transport::Encoding::new()?),
        "transport-decode" => Box::new(transport::Decoding::new()?),
        _ => bail!("no batch `{name}`; `cargo xtask guard` names them"),
    })
}

/// Runs the batch that the first argument names, and prints its operations.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let (name, rest) = arguments.split_first().context("name a batch")?;
    let count = Args::parse(rest, &[], &["count"])?.size("count", 1, 1)?;
    println!("operations: {}", rounds(name, count)?);
    Ok(())
}

/// Runs the warm-up and `count` rounds. Returns the operations of the latter.
fn rounds(name: &str, count: u64) -> Result<u64> {
    let mut batch = open(name)?;
    for _ in 0..WARM_UP_ROUNDS {
        batch.prepare()?;
        batch.run()?;
    }
    let mut operations = 0;
    for _ in 0..count {
        batch.prepare()?;
        operations += counted_round(&mut *batch)?;
    }
    batch.check()?;
    Ok(operations)
}

/// Runs a round. `cargo xtask guard` counts the instructions from its beginning to its end, by its name.
#[inline(never)]
fn counted_round(batch: &mut dyn Batch) -> Result<u64> {
    black_box(batch.run())
}

/// Opens a node's store on a new disk in memory.
fn open_store(id: StoreId) -> Result<(SimVfs, Store)> {
    let disk = SimVfs::new(SimOptions {
        seed: id.0,
        block_bytes: Some(BLOCK_BYTES),
        ..SimOptions::default()
    });
    let mut options = crate::designs::stele::Design::Adaptive.options();
    options.store = Some(id);
    let clock = Arc::new(ManualClock::at(1_000_000));
    let vfs = Arc::new(disk.clone());
    let (store, _) = Store::open(vfs, clock, Path::new("/store"), options, Replay::Committed)?;
    Ok((disk, store))
}

/// Returns the user key of a record of a region, in the order of both.
fn user_key(region: u64, record: u64) -> Vec<u8> {
    format!("{region:06}{record:010}").into_bytes()
}

/// Keys and values of successive puts.
struct Source {
    prng: Prng,
    value: Vec<u8>,
}

impl Source {
    fn new() -> Self {
        let mut prng = Prng::new(1);
        let value = (0..VALUE_BYTES).map(|_| prng.draw() as u8).collect();
        Self { prng, value }
    }

    /// Returns the command that puts the next value of one of `records` records.
    fn put(&mut self, region: u64, records: u64) -> Result<Bytes> {
        let record = self.prng.below(records);
        self.put_record(region, record)
    }

    fn put_record(&mut self, region: u64, record: u64) -> Result<Bytes> {
        let part = self.prng.below(VALUE_BYTES as u64) as usize;
        self.value.rotate_left(part);
        let key = ColumnFamily::Default.engine_key(&user_key(region, record));
        let mut command = CommandBuilder::new();
        command.put(&key, &self.value, 0)?;
        Ok(command.build().bytes().clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_does_what_it_names() {
        let operations = [
            ("core-64", 64),
            ("core-64-dearer", 64),
            ("core-64-followed", 64),
            ("core-1", 1),
            ("core-regions", 100),
            ("core-redis", 64),
            ("engine-put", 64),
            ("engine-get", 256),
            ("engine-scan", 4),
            ("engine-flush", 1024),
            ("transport-encode", 64),
            ("transport-decode", 64),
        ];
        for (name, of_round) in operations {
            assert_eq!(rounds(name, 2).unwrap(), 2 * of_round, "{name}");
        }
        assert!(rounds("core-65", 1).unwrap_err().to_string().contains("no batch `core-65`"));
    }
}
