//! Appends to the log beside a bare loop that writes the same bytes and syncs, on the same disk:
//! both into growing files, and both into blocks that were written before.

use crate::args::Args;
use crate::embedded::child::{self, number, text};
use crate::embedded::disk::BareFile;
use crate::embedded::report::{Report, scratch};
use crate::embedded::stats::{medians, rounded};
use crate::machine::{Stopwatch, written_bytes};
use crate::workload::{Values, key};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use stele_log::{FileKind, Log, LogOptions, RecoverFrom};
use stele_types::{
    CommandBuilder, EntryRecord, LogBatch, LogIndex, Mark, Prng, Record, RegionId, Term,
};
use stele_vfs::RealVfs;

const BATCHES: [u64; 3] = [1, 16, 64];
const REGION: RegionId = RegionId(1);
const TERM: Term = Term(1);
const WAYS: [&str; 2] = ["log", "bare"];

/// Runs log and bare loop alternately, for each batch size, with growing files and reused blocks.
pub(super) fn run(args: &Args) -> Result<()> {
    let value_bytes = args.size("value", 16 << 10, 16 << 10)?;
    let bytes = args.size("bytes", 1 << 30, 8 << 20)?;
    let rounds = args.rounds(3)?;
    let settings = json!({
        "value_bytes": value_bytes, "bytes": bytes, "batches": BATCHES, "rounds": rounds,
    });
    let report = Report::start("log", args, &settings)?;
    for reused in [false, true] {
        for batch in BATCHES {
            let mut results: [Vec<Value>; 2] = Default::default();
            for round in 0..rounds {
                for (way, results) in WAYS.iter().zip(&mut results) {
                    let place = scratch(args)?;
                    let settings = json!({
                        "way": way, "value_bytes": value_bytes, "bytes": bytes, "batch": batch,
                        "reused": reused, "dir": place.path(),
                    });
                    let result = child::measure("log", &settings)?;
                    let shown = json!({
                        "way": way, "batch": batch, "reused": reused, "round": round,
                    });
                    report.line(&shown, &result)?;
                    results.push(result);
                }
            }
            let [log, bare] = results.each_ref().map(|rounds| medians(rounds));
            let rate = |of: &Value| of["mb_per_s"].as_f64().unwrap_or(0.0);
            let share = rounded(rate(&log) / rate(&bare));
            let medians = json!({ "log": log, "bare": bare, "log_per_bare": share });
            report.line(&json!({ "medians": true, "batch": batch, "reused": reused }), &medians)?;
        }
    }
    Ok(())
}

pub(super) fn one(settings: &Value) -> Result<Value> {
    let dir = Path::new(text(settings, "dir")?);
    let reused = settings["reused"].as_bool().context("the settings have no `reused`")?;
    let (value_bytes, batch) = (number(settings, "value_bytes")?, number(settings, "batch")?);
    let batches = (number(settings, "bytes")? / (value_bytes * batch)).max(1);
    let mut step: Box<dyn FnMut() -> Result<()>> = match text(settings, "way")? {
        "log" => {
            let mut appender = Appender::open(dir, value_bytes as usize, batch, batches)?;
            if reused {
                (0..batches).try_for_each(|_| appender.append())?;
                appender.recycle()?;
            }
            Box::new(move || appender.append())
        }
        "bare" => {
            let write_bytes = (value_bytes * batch) as usize;
            let mut bare =
                BareFile::create(dir, write_bytes, batches * write_bytes as u64, reused)?;
            Box::new(move || bare.write_and_sync())
        }
        other => bail!("unknown method `{other}`"),
    };
    let before = written_bytes()?;
    let watch = Stopwatch::start()?;
    for _ in 0..batches {
        step()?;
    }
    let (wall, processor) = watch.seconds()?;
    let payload = (batches * batch * value_bytes) as f64;
    Ok(json!({
        "mb_per_s": rounded(payload / wall / 1e6),
        "syncs_per_s": rounded(batches as f64 / wall),
        "cpu_us_per_sync": rounded(processor * 1e6 / batches as f64),
        "written_per_payload": rounded((written_bytes()? - before) as f64 / payload),
    }))
}

struct Appender {
    log: Log,
    payloads: Vec<Bytes>,
    index: LogIndex,
}

impl Appender {
    /// Opens a log with segments so small that the load fills several, which can then be reused.
    fn open(dir: &Path, value_bytes: usize, batch: u64, batches: u64) -> Result<Self> {
        let eighth = batches * batch * value_bytes as u64 / 8;
        let segment_bytes_max = LogOptions::default().segment_bytes_max.min(eighth.max(1 << 20));
        let options =
            LogOptions { segment_bytes_max, recycle_segments_max: 1024, ..LogOptions::default() };
        let vfs = Arc::new(RealVfs::new());
        let (log, _) = Log::open(vfs, &dir.join("log"), options, RecoverFrom::default())?;
        let (values, mut random) = (Values::new(batch, value_bytes), Prng::new(batch));
        let mut payloads = Vec::new();
        for number in 0..batch {
            let mut builder = CommandBuilder::new();
            builder.put(&key(number), values.any(&mut random, value_bytes), 0)?;
            payloads.push(builder.build().bytes().clone());
        }
        Ok(Self { log, payloads, index: LogIndex(0) })
    }

    fn append(&mut self) -> Result<()> {
        let mut records = Vec::with_capacity(self.payloads.len());
        for payload in &self.payloads {
            self.index = self.index.next();
            let (index, payload) = (self.index, payload.clone());
            let entry =
                EntryRecord { region: REGION, term: TERM, index, is_command: true, payload };
            records.push(Record::Entry(entry));
        }
        self.log.append(&LogBatch { records })?;
        Ok(())
    }

    /// Frees all sealed segments, so that the next appends reuse their blocks.
    fn recycle(&mut self) -> Result<()> {
        let mark = Record::Mark(REGION, Mark::TruncatePrefix(self.index, TERM));
        self.log.append(&LogBatch { records: vec![mark] })?;
        for file in self.log.files() {
            if matches!(file.kind, FileKind::Segment { sealed: true, .. }) && !file.wanted_by_raft {
                self.log.remove(file.file)?;
            }
        }
        Ok(())
    }
}
