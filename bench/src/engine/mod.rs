//! The engine beside fjall with key-value separation: one sync per batch of 64; puts, uniform
//! updates, gets, and a scan of all pairs in key order beside the disk's own sequential read.

mod fjall;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod stele;

pub use stele::settle;

use crate::args::Args;
use crate::child::{self, number, text};
use crate::disk::{forget_cached, sequential_read_mb_s};
use crate::figures::{medians, ratios, rounded};
use crate::report::{Report, scratch};
use crate::system::{Stopwatch, written_bytes};
use crate::workload::{KEY_BYTES, Random, Values, key};
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

const BATCH_KEYS: u64 = 64;
/// Updates for each key of the load.
const UPDATES_PER_KEY: u64 = 2;
const GETS_MAX: u64 = 100_000;

#[cfg(not(feature = "rocksdb"))]
const STORES: [&str; 2] = ["stele", "fjall"];
#[cfg(feature = "rocksdb")]
const STORES: [&str; 3] = ["stele", "fjall", "rocksdb"];

/// A durable store as this benchmark uses it.
pub trait Durable {
    /// Writes all pairs with one sync.
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()>;
    /// Waits until no background work is due.
    fn settle(&mut self) -> Result<()>;
    /// Brings values into key order, where the store can.
    fn sort(&mut self) -> Result<()>;
    /// Length of the value, if the key is there.
    fn get(&self, key: &[u8]) -> Result<Option<usize>>;
    /// Reads every pair in key order; returns how many and the bytes of their values.
    fn scan(&self) -> Result<(u64, u64)>;
}

/// All value sizes and stores, rounds interleaved; medians and ratios at the end.
pub fn run(args: &Args) -> Result<()> {
    let sizes = args.sizes("values", &[1 << 10, 16 << 10, 256 << 10], &[1 << 10, 16 << 10])?;
    let bytes = args.size("bytes", 1 << 30, 4 << 20)?;
    let stores = args.names("stores", &STORES)?;
    let rounds = args.rounds(3)?;
    let settings = json!({
        "value_bytes": sizes, "bytes": bytes, "stores": stores, "rounds": rounds,
        "batch_keys": BATCH_KEYS, "updates_per_key": UPDATES_PER_KEY,
    });
    let report = Report::start("engine", args, &settings)?;
    for value_bytes in sizes {
        let mut results: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for round in 0..rounds {
            for store in &stores {
                let place = scratch(args)?;
                let settings = json!({
                    "store": store, "value_bytes": value_bytes, "bytes": bytes, "seed": round,
                    "dir": place.path(),
                });
                let result = child::measure("engine", &settings)?;
                let shown = json!({ "store": store, "value_bytes": value_bytes, "round": round });
                report.line(&shown, &result)?;
                results.entry(store).or_default().push(result);
            }
        }
        compare(&report, value_bytes, &results)?;
    }
    Ok(())
}

fn compare(report: &Report, size: u64, results: &BTreeMap<&str, Vec<Value>>) -> Result<()> {
    let ours = results.get("stele").map(|rounds| medians(rounds));
    for (store, rounds) in results {
        let median = medians(rounds);
        report.line(&json!({ "median_of": store, "value_bytes": size }), &median)?;
        if let Some(ours) = ours.as_ref().filter(|_| *store != "stele") {
            report
                .line(&json!({ "stele_to": store, "value_bytes": size }), &ratios(ours, &median))?;
        }
    }
    Ok(())
}

/// One store, one value size.
pub fn one(settings: &Value) -> Result<Value> {
    let dir = Path::new(text(settings, "dir")?);
    let home = dir.join("store");
    std::fs::create_dir_all(&home)?;
    let mut store: Box<dyn Durable> = match text(settings, "store")? {
        "stele" => Box::new(stele::Stele::open(&home)?),
        "fjall" => Box::new(fjall::Fjall::open(&home)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::RocksDb::open(&home)?),
        other => bail!("no store `{other}`"),
    };
    let value_bytes = number(settings, "value_bytes")?;
    let keys = (number(settings, "bytes")? / value_bytes).max(BATCH_KEYS);
    let work = Work { keys, value_bytes, seed: number(settings, "seed")? };
    let mut figures = work.write(store.as_mut())?;
    figures.extend(work.read(store.as_mut(), dir)?);
    Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect())
}

type Figures = Vec<(&'static str, f64)>;

struct Work {
    keys: u64,
    value_bytes: u64,
    seed: u64,
}

impl Work {
    fn payload(&self, pairs: u64) -> f64 {
        (pairs * (self.value_bytes + KEY_BYTES as u64)) as f64
    }

    fn write(&self, store: &mut dyn Durable) -> Result<Figures> {
        let mut values = Values::new(self.seed, self.value_bytes as usize);
        let mut random = Random::new(self.seed);
        let before = written_bytes()?;
        let watch = Stopwatch::start()?;
        self.batches(store, &mut values, self.keys, &mut |at| at)?;
        let put = watch.seconds()?;
        store.settle()?;
        let loaded = written_bytes()? - before;

        let updates = self.keys * UPDATES_PER_KEY;
        let watch = Stopwatch::start()?;
        self.batches(store, &mut values, updates, &mut |_| random.below(self.keys))?;
        let update = watch.seconds()?;
        store.settle()?;
        let total = written_bytes()? - before;
        Ok(vec![
            ("put_per_s", rounded(self.keys as f64 / put.0)),
            ("put_per_cpu_s", rounded(self.keys as f64 / put.1)),
            ("put_mb_per_s", rounded(self.payload(self.keys) / put.0 / 1e6)),
            ("update_per_s", rounded(updates as f64 / update.0)),
            ("load_written_per_payload", rounded(loaded as f64 / self.payload(self.keys))),
            ("written_per_payload", rounded(total as f64 / self.payload(self.keys + updates))),
            ("written_mb", rounded(total as f64 / 1e6)),
        ])
    }

    fn batches(
        &self,
        store: &mut dyn Durable,
        values: &mut Values,
        pairs: u64,
        choose: &mut dyn FnMut(u64) -> u64,
    ) -> Result<()> {
        let mut at = 0;
        while at < pairs {
            let count = BATCH_KEYS.min(pairs - at);
            let chosen: Vec<_> = (at..at + count)
                .map(|at| (key(choose(at)), values.next_range(self.value_bytes as usize)))
                .collect();
            let batch: Vec<_> =
                chosen.iter().map(|(key, range)| (*key, values.get(range.clone()))).collect();
            store.write(&batch)?;
            at += count;
        }
        Ok(())
    }

    fn read(&self, store: &mut dyn Durable, dir: &Path) -> Result<Figures> {
        let value_bytes = self.value_bytes as usize;
        let mut random = Random::new(self.seed + 1);
        forget_cached(dir)?;
        let gets = self.keys.min(GETS_MAX);
        let watch = Stopwatch::start()?;
        for _ in 0..gets {
            let found = store.get(&key(random.below(self.keys)))?;
            ensure!(found == Some(value_bytes), "a key is missing");
        }
        let get = watch.seconds()?;
        store.sort()?;
        store.settle()?;
        let disk = sequential_read_mb_s(dir, self.keys * self.value_bytes)?;
        forget_cached(dir)?;
        let started = Instant::now();
        let (pairs, bytes) = store.scan()?;
        let scan = bytes as f64 / 1e6 / started.elapsed().as_secs_f64();
        ensure!(
            (pairs, bytes) == (self.keys, self.keys * self.value_bytes),
            "a scan lost something"
        );
        Ok(vec![
            ("get_per_s", rounded(gets as f64 / get.0)),
            ("get_per_cpu_s", rounded(gets as f64 / get.1)),
            ("scan_mb_per_s", rounded(scan)),
            ("disk_mb_per_s", rounded(disk)),
            ("scan_per_disk", rounded(scan / disk)),
        ])
    }
}
