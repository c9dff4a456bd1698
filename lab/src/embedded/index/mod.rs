//! Index alone beside other ordered stores: 16-byte keys in random order, 20-byte values, one
//! thread. Results are operations per second of processor time, so that background threads of a
//! store count too.

mod fjall;
mod lsm_tree;
mod redb;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod stele;

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::{medians, ratios, rounded};
use crate::machine::{Stopwatch, resident_bytes, written_bytes};
use crate::workload::key;
use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use stele_types::Prng;

const VALUE_BYTES: usize = 20;
const SCAN_PAIRS: usize = 100;
const CACHE_BYTES: usize = 256 << 20;
const MEMTABLE_BYTES: usize = 64 << 20;

#[cfg(not(feature = "rocksdb"))]
const STORES: [&str; 4] = ["stele", "lsm-tree", "fjall", "redb"];
#[cfg(feature = "rocksdb")]
const STORES: [&str; 5] = ["stele", "lsm-tree", "fjall", "redb", "rocksdb"];

trait Ordered {
    /// Sets a key; durability is not required.
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()>;
    /// Ends the load: completes all due background work.
    fn settle(&mut self) -> Result<()>;
    /// Returns the length of a key's value, if present.
    fn get(&self, key: &[u8]) -> Result<Option<usize>>;
    /// Reads up to `limit` pairs from `from` on. Returns their number and the bytes of their
    /// values.
    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)>;
}

pub(super) fn run(args: &Args) -> Result<()> {
    let sizes = args.sizes("keys", &[5_000_000, 20_000_000], &[20_000])?;
    let stores = args.names("stores", &STORES, &STORES)?;
    let rounds = args.rounds(3)?;
    let settings = json!({
        "keys": sizes, "stores": stores, "rounds": rounds, "key_bytes": crate::workload::KEY_BYTES,
        "value_bytes": VALUE_BYTES, "cache_bytes": CACHE_BYTES, "memtable_bytes": MEMTABLE_BYTES,
    });
    let report = Report::start("index", args, &settings)?;
    for keys in sizes {
        let mut results: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        for round in 0..rounds {
            for store in &stores {
                let place = scratch(args)?;
                let settings =
                    json!({ "store": store, "keys": keys, "seed": round, "dir": place.path() });
                let result = child::measure("index", &settings)?;
                let shown = json!({ "store": store, "keys": keys, "round": round });
                report.line(&shown, &result)?;
                results.entry(store).or_default().push(result);
            }
        }
        compare(&report, keys, &results)?;
    }
    Ok(())
}

fn compare(report: &Report, keys: u64, results: &BTreeMap<&str, Vec<Value>>) -> Result<()> {
    let ours = results.get("stele").map(|rounds| medians(rounds));
    for (store, rounds) in results {
        let median = medians(rounds);
        report.line(&json!({ "median_of": store, "keys": keys }), &median)?;
        if let Some(ours) = ours.as_ref().filter(|_| *store != "stele") {
            report.line(&json!({ "stele_to": store, "keys": keys }), &ratios(ours, &median))?;
        }
    }
    Ok(())
}

pub(super) fn one(settings: &Value) -> Result<Value> {
    let dir = Path::new(text(settings, "dir")?);
    let mut store: Box<dyn Ordered> = match text(settings, "store")? {
        "stele" => Box::new(stele::Stele::open(dir)?),
        "lsm-tree" => Box::new(lsm_tree::LsmTree::open(dir)?),
        "fjall" => Box::new(fjall::Fjall::open(dir)?),
        "redb" => Box::new(redb::Redb::open(dir)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::RocksDb::open(dir)?),
        other => bail!("unknown store `{other}`"),
    };
    measure(store.as_mut(), number(settings, "keys")?, number(settings, "seed")?)
}

fn measure(store: &mut dyn Ordered, keys: u64, seed: u64) -> Result<Value> {
    let gets = keys.clamp(1, 1_000_000);
    let scans = (keys / 20).clamp(1, 50_000);
    let mut value = [0x5a; VALUE_BYTES];
    let watch = Stopwatch::start()?;
    for number in 0..keys {
        value[..8].copy_from_slice(&number.to_le_bytes());
        store.insert(&key(number), &value)?;
    }
    store.settle()?;
    let insert = watch.seconds()?;

    let mut random = Prng::new(seed);
    let watch = Stopwatch::start()?;
    for _ in 0..gets {
        ensure!(store.get(&key(random.below(keys)))? == Some(VALUE_BYTES), "a key is missing");
    }
    let get = watch.seconds()?;

    let watch = Stopwatch::start()?;
    let mut scanned = 0;
    for _ in 0..scans {
        let (pairs, bytes) = store.scan(&key(random.below(keys)), SCAN_PAIRS)?;
        ensure!(bytes == pairs * VALUE_BYTES && pairs > 0, "a scan did not return all pairs");
        scanned += pairs;
    }
    let scan = watch.seconds()?;
    let rate = |count: u64, seconds: f64| rounded(count as f64 / seconds);
    Ok(json!({
        "insert_per_cpu_s": rate(keys, insert.1), "insert_per_s": rate(keys, insert.0),
        "get_per_cpu_s": rate(gets, get.1), "get_per_s": rate(gets, get.0),
        "scan_per_cpu_s": rate(scans, scan.1), "scan_per_s": rate(scans, scan.0),
        "pairs_per_scan": rounded(scanned as f64 / scans as f64),
        "written_mb": rounded(written_bytes()? as f64 / 1e6),
        "resident_peak_mb": rounded(resident_bytes()?.1 as f64 / 1e6),
    }))
}
