//! Memory of filters and fences of the index, pinned and within a limit: resident memory, time to
//! open, gets, and the reads that the limit costs; and memory by the number of keys.

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::engine::settle;
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::rounded;
use crate::machine::forget_cached;
use crate::machine::resident_bytes;
use crate::workload::{KEY_BYTES, key, load};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use stele_engine::{Db, Options};
use stele_types::Prng;

/// One sync for many keys: loading is not measured.
const BATCH_KEYS: u64 = 4096;
/// Values of this length are kept in the index.
const VALUE_BYTES: usize = 64;
/// Limit below what the smallest store needs, and caches that it fills.
const LIMIT_BYTES: u64 = 1 << 20;
const CACHE_BYTES: usize = 16 << 20;
const MEMTABLE_BYTES: usize = 16 << 20;
const GETS: u64 = 50_000;

/// Fills a store for each number of keys and opens it in a new process, both ways.
pub(super) fn run(args: &Args) -> Result<()> {
    let usual = [1_000_000, 5_000_000, 10_000_000, 20_000_000];
    let sizes = args.sizes("keys", &usual, &[20_000, 80_000])?;
    let limit = args.size("limit", LIMIT_BYTES, 8 << 10)?;
    let settings = json!({
        "key_bytes": KEY_BYTES, "value_bytes": VALUE_BYTES, "index_memory_bytes_max": limit,
        "block_cache_bytes_max": CACHE_BYTES, "memtable_bytes_max": MEMTABLE_BYTES, "gets": GETS,
    });
    let report = Report::start("index-memory", args, &settings)?;
    let mut within = Vec::new();
    for keys in sizes {
        let place = scratch(args)?;
        let dir = place.path().join("store");
        child::measure("index-memory-fill", &json!({ "keys": keys, "dir": dir }))?;
        for (way, limit) in [("pinned", u64::MAX), ("limited", limit)] {
            forget_cached(&dir)?;
            let one = json!({ "keys": keys, "dir": dir, "limit": limit });
            let result = child::measure("index-memory-open", &one)?;
            report.line(&json!({ "keys": keys, "filters_and_fences": way }), &result)?;
            if way == "limited" {
                within.push(result["after_gets_mb"].as_f64().context("resident memory")?);
            }
        }
    }
    let (least, most) =
        within.iter().fold((f64::MAX, 0.0_f64), |(low, high), mb| (low.min(*mb), high.max(*mb)));
    let ratio = json!({ "least_mb": least, "most_mb": most, "ratio": rounded(most / least) });
    report.line(&json!({ "memory_by_keys": "limited" }), &ratio)
}

fn options(limit: u64) -> Options {
    Options {
        memtable_bytes_max: MEMTABLE_BYTES,
        block_cache_bytes_max: CACHE_BYTES,
        value_cache_bytes_max: CACHE_BYTES,
        index_memory_bytes_max: usize::try_from(limit).unwrap_or(usize::MAX),
        ..Options::default()
    }
}

pub(super) fn fill(settings: &Value) -> Result<Value> {
    let keys = number(settings, "keys")?;
    let db = Db::open(Path::new(text(settings, "dir")?), options(LIMIT_BYTES))?;
    load(&db, (keys, BATCH_KEYS), VALUE_BYTES, |_| Ok(()))?;
    settle(&db)?;
    db.close()?;
    Ok(json!({}))
}

pub(super) fn open(settings: &Value) -> Result<Value> {
    let keys = number(settings, "keys")?;
    let (empty, _) = resident_bytes()?;
    let mb = |bytes: u64| rounded(bytes.saturating_sub(empty) as f64 / 1e6);
    let started = Instant::now();
    let db = Db::open(Path::new(text(settings, "dir")?), options(number(settings, "limit")?))?;
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    let opened = (resident_bytes()?.0, db.stats().engine);
    let present = gets(&db, keys, 0)?;
    let absent = gets(&db, keys, keys)?;
    let (resident, peak) = resident_bytes()?;
    let engine = db.stats().engine;
    let index_bytes = engine.index_memory_bytes as f64;
    Ok(json!({
        "open_ms": rounded(open_ms), "after_open_mb": mb(opened.0),
        "index_after_open_mb": rounded(opened.1.index_memory_bytes as f64 / 1e6),
        "after_gets_mb": mb(resident), "peak_mb": mb(peak),
        "counted_by_store_mb": rounded(engine.memory_bytes as f64 / 1e6),
        "index_mb": rounded(index_bytes / 1e6),
        "index_bytes_per_key": rounded(index_bytes / keys as f64),
        "gets_per_s": present.0, "cold_reads_per_get": present.1,
        "absent_gets_per_s": absent.0, "cold_reads_per_absent_get": absent.1,
        "disk_mb": rounded(engine.disk_bytes as f64 / 1e6),
    }))
}

/// Gets random keys from number `first` on. Returns gets per second, and cold reads per get.
fn gets(db: &Db, keys: u64, first: u64) -> Result<(f64, f64)> {
    let mut random = Prng::new(2);
    let count = GETS.min(keys);
    let before = db.stats().engine.index_cold_reads;
    let started = Instant::now();
    for _ in 0..count {
        let found = db.get(&key(first + random.below(keys)))?.is_some();
        ensure!(found == (first == 0), "a key is missing, or one exists that was not put");
    }
    let per_s = count as f64 / started.elapsed().as_secs_f64();
    let reads = db.stats().engine.index_cold_reads - before;
    Ok((rounded(per_s), rounded(reads as f64 / count as f64)))
}
