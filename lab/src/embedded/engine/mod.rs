//! Engine beside fjall with key-value separation: one sync per batch of 64; puts, uniform updates,
//! gets, and a scan of all pairs in key order beside the disk's own sequential read. Written bytes
//! are reported with the occupied space, on equal terms (`fairness.rs`).

mod fairness;
mod fjall;
#[cfg(feature = "rocksdb")]
mod rocksdb;
mod space;
mod stele;
mod work;

pub(super) use stele::settle;

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::{medians, ratios};
use crate::workload::KEY_BYTES;
use anyhow::{Result, bail};
use fairness::Fairness;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use work::Work;

const BATCH_KEYS: u64 = 64;
/// Updates per loaded key.
const UPDATES_PER_KEY: u64 = 2;
/// Dead share from which fjall empties a file, with a space bound of 2.0: the largest that keeps it
/// for all distributions. At 60 it writes slightly less and sometimes exceeds the bound.
const STALE_PERCENT: u64 = 50;
/// Number of value files in the live data. Data sets are large compared with one file, so a small
/// data set gets small files.
const FILES: u64 = 64;

#[cfg(not(feature = "rocksdb"))]
const STORES: [&str; 2] = ["stele", "fjall"];
#[cfg(feature = "rocksdb")]
const STORES: [&str; 3] = ["stele", "fjall", "rocksdb"];

pub(super) trait Durable {
    /// Writes all pairs with one sync.
    fn write(&mut self, pairs: &[([u8; KEY_BYTES], &[u8])]) -> Result<()>;
    /// Flushes memory and waits until no background work is due.
    fn settle(&mut self) -> Result<()>;
    /// Compacts everything: collects garbage, and sorts values by key where the store can.
    fn compact(&mut self) -> Result<()>;
    /// Returns the length of a key's value, if present.
    fn get(&self, key: &[u8]) -> Result<Option<usize>>;
    /// Reads every pair in key order. Returns their number and the bytes of their values.
    fn scan(&self) -> Result<(u64, u64)>;
}

pub(super) fn run(args: &Args) -> Result<()> {
    let sizes = args.sizes("values", &[1 << 10, 16 << 10, 256 << 10], &[1 << 10, 16 << 10])?;
    let bytes = args.size("bytes", 1 << 30, 4 << 20)?;
    let stores = args.names("stores", &STORES, &STORES)?;
    let rounds = args.rounds(3)?;
    let stale_percent = args.size("stale-percent", STALE_PERCENT, STALE_PERCENT)?;
    let file_bytes = args.size("file", (bytes / FILES).max(1 << 20), 1 << 20)?;
    let terms = args.names("fairness", &fairness::NAMES, &fairness::USUAL)?;
    let settings = json!({
        "value_bytes": sizes, "bytes": bytes, "stores": stores, "rounds": rounds,
        "batch_keys": BATCH_KEYS, "updates_per_key": UPDATES_PER_KEY, "fairness": terms,
        "space_amp_max": fairness::SPACE_AMP_MAX, "fjall_stale_percent": stale_percent,
        "file_bytes": file_bytes,
    });
    let report = Report::start("engine", args, &settings)?;
    for value_bytes in sizes {
        for terms in &terms {
            let pairing = json!({
                "fairness": terms, "value_bytes": value_bytes, "bytes": bytes,
                "stale_percent": stale_percent, "file_bytes": file_bytes,
            });
            let mut results: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
            for round in 0..rounds {
                for store in &stores {
                    let place = scratch(args)?;
                    let one = json!({
                        "store": store, "seed": round, "dir": place.path(),
                    });
                    let result = child::measure("engine", &joined(&one, &pairing))?;
                    let shown = json!({ "store": store, "round": round });
                    report.line(&joined(&shown, &pairing), &result)?;
                    results.entry(store).or_default().push(result);
                }
            }
            compare(&report, &pairing, &results)?;
        }
    }
    Ok(())
}

fn joined(one: &Value, other: &Value) -> Value {
    let fields = [one, other].into_iter().filter_map(Value::as_object).flatten();
    fields.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn compare(report: &Report, pairing: &Value, results: &BTreeMap<&str, Vec<Value>>) -> Result<()> {
    let ours = results.get("stele").map(|rounds| medians(rounds));
    for (store, rounds) in results {
        let median = medians(rounds);
        report.line(&joined(&json!({ "median_of": store }), pairing), &median)?;
        if let Some(ours) = ours.as_ref().filter(|_| *store != "stele") {
            let shown = joined(&json!({ "stele_to": store }), pairing);
            report.line(&shown, &ratios(ours, &median))?;
        }
    }
    Ok(())
}

pub(super) fn one(settings: &Value) -> Result<Value> {
    let dir = Path::new(text(settings, "dir")?);
    let home = dir.join("store");
    std::fs::create_dir_all(&home)?;
    let fairness = Fairness::read(settings)?;
    let mut store: Box<dyn Durable> = match text(settings, "store")? {
        "stele" => Box::new(stele::Stele::open(&home, fairness)?),
        "fjall" => Box::new(fjall::Fjall::open(&home, fairness)?),
        #[cfg(feature = "rocksdb")]
        "rocksdb" => Box::new(rocksdb::RocksDb::open(&home, fairness)?),
        other => bail!("unknown store `{other}`"),
    };
    let value_bytes = number(settings, "value_bytes")?;
    let keys = (number(settings, "bytes")? / value_bytes).max(BATCH_KEYS);
    let work = Work { home, keys, value_bytes, seed: number(settings, "seed")?, fairness };
    let mut fields = work.write(store.as_mut())?;
    fields.extend(work.read(store.as_mut(), dir)?);
    Ok(fields.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect())
}
