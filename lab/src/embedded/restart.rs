//! Time to open a store after its process was killed: nearly empty, and with nearly a full
//! checkpoint interval of log to replay.

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::{medians, rounded};
use crate::machine::forget_cached;
use crate::machine::resident_bytes;
use crate::workload::{Values, key, load};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::Instant;
use stele_engine::{Db, Options};
use stele_types::Prng;

const BATCH_KEYS: u64 = 64;
/// Line that a filling child prints when it has written the requested bytes.
const FULL: &str = "full";
const CHECKED_KEYS: u64 = 1000;

/// Fills, kills and opens, several times each.
pub(super) fn run(args: &Args) -> Result<()> {
    let interval = Options::default().checkpoint_log_bytes_max;
    // Just before a checkpoint, so that nearly a whole interval must be replayed.
    let usual = 3 * interval - (64 << 20);
    let bytes = args.size("bytes", usual, 16 << 20)?;
    let value_bytes = args.size("value", 16 << 10, 16 << 10)?;
    let rounds = args.rounds(3)?;
    let settings = json!({
        "bytes": bytes, "value_bytes": value_bytes, "rounds": rounds,
        "checkpoint_log_bytes_max": interval,
    });
    let report = Report::start("restart", args, &settings)?;
    for (name, bytes) in [("near-empty", 10 * value_bytes), ("full", bytes)] {
        let place = scratch(args)?;
        let dir = place.path().join("store");
        let settings = json!({ "dir": dir, "bytes": bytes, "value_bytes": value_bytes });
        let keys = fill_and_kill(&settings)?;
        let mut results = Vec::new();
        for round in 0..rounds {
            forget_cached(&dir)?;
            let open = json!({ "dir": dir, "keys": keys, "value_bytes": value_bytes });
            let result = child::measure("restart-open", &open)?;
            report.line(&json!({ "store": name, "round": round }), &result)?;
            results.push(result);
        }
        report.line(&json!({ "median_of": name }), &medians(&results))?;
    }
    Ok(())
}

/// Fills a store and kills the process. Returns the number of keys that were certainly
/// acknowledged.
fn fill_and_kill(settings: &Value) -> Result<u64> {
    let mut child = child::start("restart-fill", settings)?;
    let output = child.stdout.take().context("a child has an output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let killed = child.kill();
    child.wait()?;
    let keys =
        line.trim().strip_prefix(FULL).context("the filling child ended before it was killed")?;
    killed?;
    keys.trim().parse().context("reading the number of keys")
}

/// Writes until killed; prints [`FULL`] after the requested bytes.
pub(super) fn fill(settings: &Value) -> Result<Value> {
    let db = Db::open(Path::new(text(settings, "dir")?), Options::default())?;
    let value_bytes = number(settings, "value_bytes")?;
    let keys = number(settings, "bytes")? / value_bytes;
    load(&db, (keys, BATCH_KEYS), value_bytes as usize, |_| Ok(()))?;
    let mut output = std::io::stdout();
    writeln!(output, "{FULL} {keys}")?;
    output.flush()?;
    let (values, mut random) = (Values::new(1, value_bytes as usize), Prng::new(1));
    // Overwrites one key: the kill comes between two syncs, and the amount stays the same.
    loop {
        db.put(&key(0), values.any(&mut random, value_bytes as usize))?;
    }
}

/// Opens the store and checks acknowledged keys. Leaves the store as if killed again, so that the
/// next round opens the same state.
pub(super) fn open(settings: &Value) -> Result<Value> {
    let dir = Path::new(text(settings, "dir")?);
    let (keys, value_bytes) = (number(settings, "keys")?, number(settings, "value_bytes")?);
    let started = Instant::now();
    let db = Db::open(dir, Options { background: false, ..Options::default() })?;
    let open_s = started.elapsed().as_secs_f64();
    let mut random = Prng::new(1);
    let started = Instant::now();
    for _ in 0..keys.min(CHECKED_KEYS) {
        let value = db.get(&key(random.below(keys)))?.context("an acknowledged key is lost")?;
        ensure!(value.len() as u64 == value_bytes, "an acknowledged value is truncated");
    }
    let opened = db.opened();
    let result = json!({
        "open_s": rounded(open_s),
        "checked_s": rounded(started.elapsed().as_secs_f64()),
        "replayed_entries": opened.replayed_entries,
        "scanned_mb": rounded(opened.recovery.bytes_scanned as f64 / 1e6),
        "segments_scanned": opened.recovery.segments_scanned,
        "segments_by_sidecar": opened.recovery.segments_by_sidecar,
        "resident_mb": rounded(resident_bytes()?.0 as f64 / 1e6),
    });
    println!("{result}");
    std::process::exit(0)
}
