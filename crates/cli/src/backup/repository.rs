//! `stele backup list`, `verify` and `prune`.

use super::options;
use crate::Outcome;
use crate::args::{ListMoments, Prune, VerifyBackup};
use crate::table::{self, Cell};
use crate::terminal::Output;
use serde_json::{Value, json};
use std::time::Duration;
use stele_backup::{Pruned, Report, Repository, Restorable};
use stele_tls::{UnixTime, utc};
use stele_types::size::{counted, format_bytes};
use stele_types::{MomentId, Result};

pub(super) async fn list(args: &ListMoments) -> Result<Outcome> {
    let repository = Repository::open(&args.place.to, &options()).await?;
    let rows: Vec<Vec<Cell>> = repository.moments().await?.iter().map(row).collect();
    table::print(
        &rows,
        args.json,
        "no moment: a backup has none before its first base is complete",
    )?;
    Ok(Outcome::Done)
}

fn row(moment: &Restorable) -> Vec<Cell> {
    let clocks = || moment.clocks_unix_ms.iter().map(|(_, unix_ms)| *unix_ms);
    let (latest, earliest) = (clocks().max().unwrap_or(0), clocks().min().unwrap_or(0));
    let at = utc(UnixTime::since_unix_epoch(Duration::from_millis(latest)));
    let base = moment.base;
    let size = |name, bytes: u64| table::formatted(name, format_bytes(bytes), bytes);
    vec![
        table::number("moment", moment.number.0),
        table::words_as("time", at, Value::from(latest)),
        table::number("spread_ms", latest - earliest),
        table::number("run", moment.run.0),
        table::words("restorable", if base.is_some() { "yes" } else { "no" }),
        table::maybe("pairs", base.map(|base| base.pairs)),
        size("base", base.map_or(0, |base| base.bytes)),
        size("log", moment.log_bytes),
    ]
}

pub(super) async fn verify(args: &VerifyBackup) -> Result<Outcome> {
    let repository = Repository::open(&args.place.to, &options()).await?;
    let report = repository.verify(args.deep).await?;
    print_report(args.json, &report)?;
    Ok(if report.damaged == 0 { Outcome::Done } else { Outcome::Failed })
}

fn print_report(is_json: bool, report: &Report) -> Result<()> {
    let mut out = Output::new();
    match report_json(report) {
        Value::Object(object) if is_json => out.json(object)?,
        _ => {
            report.findings.iter().try_for_each(|finding| out.line(finding))?;
            let counts = [
                counted(report.moments, "moment"),
                format!("{} restorable", report.restorable),
                counted(report.bases, "base"),
                counted(report.chunks, "chunk"),
                counted(report.log_objects, "log object"),
                format_bytes(report.stored_bytes),
                counted(report.damaged, "damaged or missing object"),
            ];
            out.line(&counts.join(", "))?;
            if report.unreferenced_chunks > 0 {
                let chunks = counted(report.unreferenced_chunks, "chunk");
                out.line(&format!("{chunks} of no base: the next prune deletes them"))?;
            }
            if report.unknown_objects > 0 {
                out.line(&counted(report.unknown_objects, "object that is none of a backup"))?;
            }
        }
    }
    out.finish()
}

fn report_json(report: &Report) -> Value {
    json!({
        "runs": report.runs,
        "moments": report.moments,
        "restorable": report.restorable,
        "bases": report.bases,
        "chunks": report.chunks,
        "unreferenced_chunks": report.unreferenced_chunks,
        "log_objects": report.log_objects,
        "stored_bytes": report.stored_bytes,
        "unknown_objects": report.unknown_objects,
        "damaged": report.damaged,
        "findings": report.findings,
    })
}

pub(super) async fn prune(args: &Prune) -> Result<Outcome> {
    let repository = Repository::open(&args.place.to, &options()).await?;
    let pruned = repository.prune(MomentId(args.keep_from), args.take_over).await?;
    print_pruned(args.json, &pruned)?;
    Ok(Outcome::Done)
}

fn print_pruned(is_json: bool, pruned: &Pruned) -> Result<()> {
    let mut out = Output::new();
    let object = json!({
        "moments": pruned.moments,
        "bases": pruned.bases,
        "log_objects": pruned.log_objects,
        "chunks": pruned.chunks,
        "bytes": pruned.bytes,
        "base_in_the_making": pruned.is_base_in_the_making,
    });
    match object {
        Value::Object(object) if is_json => out.json(object)?,
        _ => {
            let counts = [
                counted(pruned.moments, "moment"),
                counted(pruned.bases, "base"),
                counted(pruned.log_objects, "log object"),
                counted(pruned.chunks, "chunk"),
            ];
            out.line(&format!("deleted {}: {}", counts.join(", "), format_bytes(pruned.bytes)))?;
            if pruned.is_base_in_the_making {
                out.line(
                    "chunks were left: a base is being made, or its backup was killed; prune again when the next base is complete",
                )?;
            }
        }
    }
    out.finish()
}
