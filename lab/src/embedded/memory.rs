//! Resident memory after many keys were written, read and garbage collected: what settings bound,
//! and what grows with the number of keys.

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::engine::settle;
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::rounded;
use crate::machine::resident_bytes;
use crate::workload::{key, load};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use stele_engine::{Db, Options};
use stele_types::Prng;

const BATCH_KEYS: u64 = 64;
const GETS: u64 = 200_000;
/// Number of memory samples, evenly spread over the load.
const SAMPLES: u64 = 10;

/// Measures one store with default settings.
pub(super) fn run(args: &Args) -> Result<()> {
    let keys = args.size("keys", 10_000_000, 10_000)?;
    let value_bytes = args.size("value", 1 << 10, 1 << 10)?;
    let options = Options::default();
    let settings = json!({
        "keys": keys, "value_bytes": value_bytes,
        "memtable_bytes_max": options.memtable_bytes_max,
        "block_cache_bytes_max": options.block_cache_bytes_max,
        "value_cache_bytes_max": options.value_cache_bytes_max,
        "queue_bytes_max": options.queue_bytes_max,
    });
    let report = Report::start("memory", args, &settings)?;
    let place = scratch(args)?;
    let one = json!({ "keys": keys, "value_bytes": value_bytes, "dir": place.path() });
    let result = child::measure("memory", &one)?;
    report.line(&json!({ "keys": keys, "value_bytes": value_bytes }), &result)
}

pub(super) fn one(settings: &Value) -> Result<Value> {
    let (keys, value_bytes) = (number(settings, "keys")?, number(settings, "value_bytes")?);
    let (empty, _) = resident_bytes()?;
    let db = Db::open(&Path::new(text(settings, "dir")?).join("store"), Options::default())?;
    let mut samples = Vec::new();
    let mb = |bytes: u64| rounded(bytes.saturating_sub(empty) as f64 / 1e6);
    load(&db, (keys, BATCH_KEYS), value_bytes as usize, |done| {
        if done * SAMPLES / keys > samples.len() as u64 {
            samples.push(mb(resident_bytes()?.0));
        }
        Ok(())
    })?;
    let mut random = Prng::new(2);
    for _ in 0..GETS.min(keys) {
        db.get(&key(random.below(keys)))?.context("a key is missing")?;
    }
    let after_gets = resident_bytes()?.0;
    settle(&db)?;
    let (settled, peak) = resident_bytes()?;
    let engine = db.stats().engine;
    Ok(json!({
        "during_load_mb": samples, "after_gets_mb": mb(after_gets), "settled_mb": mb(settled),
        "peak_mb": mb(peak), "counted_by_store_mb": rounded(engine.memory_bytes as f64 / 1e6),
        "disk_mb": rounded(engine.disk_bytes as f64 / 1e6),
        "settled_bytes_per_key": rounded(settled.saturating_sub(empty) as f64 / keys as f64),
    }))
}
