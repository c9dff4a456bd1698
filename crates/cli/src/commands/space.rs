//! Space of a store, shown and reduced: `stele stats` and `stele compact`.

use crate::Outcome;
use crate::args::{Stats, Target};
use crate::reader::Reader;
use crate::store::{DiskBytes, Statistics, Store, Tuning};
use crate::terminal::{Output, Progress};
use serde_json::{Value, json};
use stele_types::Result;
use stele_types::size::format_bytes;

pub(crate) fn compact(target: &Target) -> Result<Outcome> {
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

pub(crate) fn stats(args: &Stats) -> Result<Outcome> {
    let store = Reader::open(&args.target.store, &Tuning::default())?;
    let statistics = store.statistics();
    let held_bytes = DiskBytes::of(&args.target.store)?.held_bytes;
    let mut out = Output::new();
    match to_json(&statistics, held_bytes) {
        Value::Object(object) if args.json => out.json(object)?,
        _ => {
            for (name, bytes) in [
                ("live estimate", statistics.live_bytes_estimate),
                ("disk", statistics.disk_bytes),
                ("held in reserve", held_bytes),
                ("memory", statistics.memory_bytes),
                ("index", statistics.index_memory_bytes),
            ] {
                out.line(&format!("{name:<15} {}", format_bytes(bytes)))?;
            }
            out.line(&format!("{:<15} {:.2}", "space-amp", statistics.space_amp))?;
            out.line(&format!("{:<15} {}", "cold reads", statistics.index_cold_reads))?;
            out.line(&format!("{:<15} {}", "phase", statistics.phase))?;
        }
    }
    out.finish()?;
    Ok(Outcome::Done)
}

fn to_json(statistics: &Statistics, held_bytes: u64) -> Value {
    json!({
        "live_bytes_estimate": statistics.live_bytes_estimate,
        "disk_bytes": statistics.disk_bytes,
        "reserve_held_bytes": held_bytes,
        "memory_bytes": statistics.memory_bytes,
        "index_memory_bytes": statistics.index_memory_bytes,
        "index_cold_reads": statistics.index_cold_reads,
        "space_amp": statistics.space_amp,
        "phase": statistics.phase,
    })
}
