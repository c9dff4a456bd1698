//! Bytes written to the device per byte of user data, with 64 writers and every write synced: in
//! the foreground (the log), and in total after background work has settled.

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::engine::settle;
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::rounded;
use crate::machine::written_bytes;
use crate::workload::{KEY_BYTES, Values, key};
use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use stele_engine::{Db, GcOptions, Options, PolicyKind};
use stele_load::{Choice, Zipf};
use stele_types::Prng;

const POLICIES: [&str; 2] = ["adaptive", "nezha"];
/// Updates per loaded key.
const UPDATES_PER_KEY: u64 = 4;
const FOREGROUND_LIMIT: f64 = 1.02;
const SPACE_LIMIT: f64 = 2.0;
const WATCH_PAUSE: Duration = Duration::from_millis(20);

/// Row of the budget that `docs/decisions/0024-victims-and-space.md` states for the adaptive
/// policy.
struct Row {
    workload: &'static str,
    value_bytes: u64,
    total_limit: f64,
}

const fn row(workload: &'static str, value_bytes: u64, total_limit: f64) -> Row {
    Row { workload, value_bytes, total_limit }
}

const ROWS: [Row; 6] = [
    row("insert", 1 << 10, 1.15),
    row("insert", 16 << 10, 1.05),
    row("uniform", 16 << 10, 1.30),
    row("update", 16 << 10, 1.30),
    row("hot", 16 << 10, 1.30),
    row("zipf", 16 << 10, 1.40),
];

pub(super) fn run(args: &Args) -> Result<()> {
    let bytes = args.size("bytes", 1 << 30, 4 << 20)?;
    let writers = args.size("writers", 64, 8)?;
    let policies = args.names("policies", &POLICIES, &POLICIES)?;
    let options = options(&policies[0..1].concat(), bytes);
    let settings = json!({
        "bytes": bytes, "writers": writers, "policies": policies,
        "updates_per_key": UPDATES_PER_KEY, "options": format!("{options:?}"),
    });
    let report = Report::start("amplification", args, &settings)?;
    for Row { workload, value_bytes, total_limit } in &ROWS {
        for policy in &policies {
            let place = scratch(args)?;
            let settings = json!({
                "workload": workload, "value_bytes": value_bytes, "policy": policy,
                "bytes": bytes, "writers": writers, "dir": place.path(),
            });
            let mut result = child::measure("amplification", &settings)?;
            let within = |name: &str, limit: f64| result[name].as_f64().is_some_and(|x| x <= limit);
            let holds = within("foreground", FOREGROUND_LIMIT)
                && within("total", *total_limit)
                && within("space_amp", SPACE_LIMIT);
            result["holds"] = Value::from(holds);
            let shown = json!({
                "workload": workload, "value_bytes": value_bytes, "policy": policy,
                "total_limit": total_limit,
            });
            report.line(&shown, &result)?;
        }
    }
    Ok(())
}

/// Returns the default options, with small files for a small data set.
fn options(policy: &str, bytes: u64) -> Options {
    let policy = match policy {
        "nezha" => PolicyKind::Nezha,
        "wisckey" => PolicyKind::Wisckey,
        _ => PolicyKind::Adaptive,
    };
    let defaults = Options::default();
    let segment_bytes_max = defaults.segment_bytes_max.min((bytes / 16).max(1 << 20));
    let gc = GcOptions {
        policy,
        value_file_bytes_max: segment_bytes_max,
        sort_threshold_bytes: GcOptions::default().sort_threshold_bytes.min(bytes / 2),
        ..GcOptions::default()
    };
    Options { segment_bytes_max, gc, ..defaults }
}

pub(super) fn one(settings: &Value) -> Result<Value> {
    let dir = Path::new(text(settings, "dir")?).join("store");
    let (bytes, value_bytes) = (number(settings, "bytes")?, number(settings, "value_bytes")?);
    let keys = (bytes / value_bytes).max(1);
    let db = Db::open(&dir, options(text(settings, "policy")?, bytes))?;
    let writers = number(settings, "writers")?;
    let run = Run { db: &db, keys, value_bytes: value_bytes as usize, writers };
    let mut started = Instant::now();
    let mut before = written_bytes()?;
    run.write(keys, None)?;
    let workload = text(settings, "workload")?;
    let choice = match workload {
        "uniform" | "update" => Some(Choice::Uniform),
        "hot" => Some(Choice::Hotspot { records: 0.1, operations: 0.9 }),
        "zipf" => Some(Choice::Zipfian(Zipf::new(keys))),
        _ => None,
    };
    let mut pairs = keys;
    let mut loaded = db.stats().engine.written_bytes;
    if workload == "update" {
        // Only updates count; the load has settled.
        settle(&db)?;
        (started, before, pairs) = (Instant::now(), written_bytes()?, 0);
        loaded = db.stats().engine.written_bytes;
    } else {
        loaded.iter_mut().for_each(|(_, bytes)| *bytes = 0);
    }
    let mut peak_bytes = db.stats().engine.disk_bytes;
    if let Some(choice) = choice {
        peak_bytes = run.update(keys * UPDATES_PER_KEY, &choice)?;
        pairs += keys * UPDATES_PER_KEY;
    }
    let wall = started.elapsed().as_secs_f64();
    settle(&db)?;
    let written = written_bytes()? - before;
    let payload = (pairs * (value_bytes + KEY_BYTES as u64)) as f64;
    let stats = db.stats().engine;
    let by_cause: Map<String, Value> = stats
        .written_bytes
        .iter()
        .zip(&loaded)
        .map(|((cause, bytes), (_, loaded))| {
            ((*cause).to_owned(), Value::from(rounded((bytes - loaded) as f64 / payload)))
        })
        .collect();
    let live = (keys * (value_bytes + KEY_BYTES as u64)) as f64;
    let foreground = by_cause.get("log").cloned().context("no bytes counted for the log")?;
    Ok(json!({
        "foreground": foreground,
        "total": rounded(written as f64 / payload),
        "space_amp": rounded(stats.space_amp()),
        "space_amp_peak": rounded(peak_bytes as f64 / live),
        "by_cause": by_cause,
        "payload_mb": rounded(payload / 1e6),
        "put_per_s": rounded(pairs as f64 / wall),
    }))
}

struct Run<'a> {
    db: &'a Db,
    keys: u64,
    value_bytes: usize,
    writers: u64,
}

impl Run<'_> {
    /// Runs updates. Returns the most bytes that the store occupied on the device meanwhile.
    fn update(&self, pairs: u64, choice: &Choice) -> Result<u64> {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut peak = 0;
                while !done.load(Relaxed) {
                    peak = peak.max(self.db.stats().engine.disk_bytes);
                    thread::sleep(WATCH_PAUSE);
                }
                peak
            });
            let written = self.write(pairs, Some(choice));
            done.store(true, Relaxed);
            let peak =
                watch.join().map_err(|_| anyhow!("the thread that measures space panicked"))?;
            written.map(|()| peak)
        })
    }

    /// Puts `pairs` pairs with all writers: each key once in order, or keys of `choice`.
    fn write(&self, pairs: u64, choice: Option<&Choice>) -> Result<()> {
        let next = AtomicU64::new(0);
        let writer = |seed: u64| -> Result<()> {
            let mut random = Prng::new(seed);
            let values = Values::new(seed, self.value_bytes);
            loop {
                let at = next.fetch_add(1, Relaxed);
                if at >= pairs {
                    return Ok(());
                }
                let number = choice.map_or(at, |choice| choice.draw(&mut random, self.keys));
                self.db.put(&key(number), values.any(&mut random, self.value_bytes))?;
            }
        };
        thread::scope(|scope| {
            let writer = &writer;
            let threads: Vec<_> =
                (0..self.writers).map(|seed| scope.spawn(move || writer(seed))).collect();
            threads
                .into_iter()
                .try_for_each(|t| t.join().map_err(|_| anyhow!("a writer panicked"))?)
        })
    }
}
