//! Sizes, and the command that makes them smaller.

use crate::Outcome;
use crate::args::{Stats, Target};
use crate::output::Output;
use crate::progress::Progress;
use crate::store::{Figures, Store, Tuning};
use serde_json::{Value, json};
use stele_types::Result;
use stele_types::size::format_bytes;

pub fn compact(target: &Target) -> Result<Outcome> {
    let store = Store::open(&target.store, &Tuning::default())?;
    let before = store.figures();
    let progress = Progress::bytes(None, "compacting");
    store.compact()?;
    drop(progress);
    let after = store.figures();
    let (from, to) = (format_bytes(before.disk_bytes), format_bytes(after.disk_bytes));
    let mut out = Output::new();
    out.line(&format!("{from} -> {to}, space-amp {:.2}", after.space_amp))?;
    out.finish()?;
    store.close()?;
    Ok(Outcome::Done)
}

pub fn stats(args: &Stats) -> Result<Outcome> {
    let store = Store::open(&args.target.store, &Tuning::default())?;
    let figures = store.figures();
    let mut out = Output::new();
    match to_json(&figures) {
        Value::Object(object) if args.json => out.json(object)?,
        _ => {
            for (name, bytes) in [
                ("live", figures.live_bytes),
                ("disk", figures.disk_bytes),
                ("memory", figures.memory_bytes),
            ] {
                out.line(&format!("{name:<10} {}", format_bytes(bytes)))?;
            }
            out.line(&format!("{:<10} {:.2}", "space-amp", figures.space_amp))?;
            out.line(&format!("{:<10} {}", "phase", figures.phase))?;
        }
    }
    out.finish()?;
    store.close()?;
    Ok(Outcome::Done)
}

fn to_json(figures: &Figures) -> Value {
    json!({
        "live_bytes": figures.live_bytes,
        "disk_bytes": figures.disk_bytes,
        "memory_bytes": figures.memory_bytes,
        "space_amp": figures.space_amp,
        "phase": figures.phase,
    })
}
