//! `stele stats` and `stele compact`.

use crate::Outcome;
use crate::args::{Stats, Target};
use crate::output::Output;
use crate::progress::Progress;
use crate::reader::Reader;
use crate::store::{Statistics, Store, Tuning};
use serde_json::{Value, json};
use stele_types::Result;
use stele_types::size::format_bytes;

pub fn compact(target: &Target) -> Result<Outcome> {
    let store = Store::open(&target.store, &Tuning::default())?;
    let before = store.statistics();
    let progress = Progress::bytes(None, "compacting");
    store.compact()?;
    drop(progress);
    let after = store.statistics();
    let (from, to) = (format_bytes(before.disk_bytes), format_bytes(after.disk_bytes));
    let mut out = Output::new();
    out.line(&format!("{from} -> {to}, space-amp {:.2}", after.space_amp))?;
    out.finish()?;
    store.close()?;
    Ok(Outcome::Done)
}

pub fn stats(args: &Stats) -> Result<Outcome> {
    let store = Reader::open(&args.target.store, &Tuning::default())?;
    let statistics = store.statistics();
    let mut out = Output::new();
    match to_json(&statistics) {
        Value::Object(object) if args.json => out.json(object)?,
        _ => {
            for (name, bytes) in [
                ("live", statistics.live_bytes),
                ("disk", statistics.disk_bytes),
                ("memory", statistics.memory_bytes),
                ("index", statistics.index_memory_bytes),
            ] {
                out.line(&format!("{name:<10} {}", format_bytes(bytes)))?;
            }
            out.line(&format!("{:<10} {:.2}", "space-amp", statistics.space_amp))?;
            out.line(&format!("{:<10} {}", "cold reads", statistics.index_cold_reads))?;
            out.line(&format!("{:<10} {}", "phase", statistics.phase))?;
        }
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn to_json(statistics: &Statistics) -> Value {
    json!({
        "live_bytes": statistics.live_bytes,
        "disk_bytes": statistics.disk_bytes,
        "memory_bytes": statistics.memory_bytes,
        "index_memory_bytes": statistics.index_memory_bytes,
        "index_cold_reads": statistics.index_cold_reads,
        "space_amp": statistics.space_amp,
        "phase": statistics.phase,
    })
}
