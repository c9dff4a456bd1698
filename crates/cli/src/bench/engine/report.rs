//! Results of a run, from bytes actually written.

use super::driver::Run;
use crate::args::Bench;
use crate::store::{Statistics, Store};
use clap::ValueEnum;
use serde_json::{Map, Value, json};
use stele_load::process_io::ProcessIo;
use stele_load::{Summary, distribution};
use stele_types::size::format_bytes;

/// The only cause of writes in the foreground.
const FOREGROUND: &str = "log";

/// Bytes written, up to a moment or between two moments.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    causes: Vec<(&'static str, u64)>,
    io: ProcessIo,
}

impl Account {
    pub(super) fn take(store: &Store) -> Self {
        Self { causes: store.statistics().written_bytes, io: ProcessIo::now() }
    }

    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |name: &str| {
            let found = earlier.causes.iter().find(|(cause, _)| *cause == name);
            found.map_or(0, |(_, bytes)| *bytes)
        };
        let less = |&(name, bytes): &(&'static str, u64)| (name, bytes - before(name).min(bytes));
        Self {
            causes: self.causes.iter().map(less).collect(),
            io: ProcessIo {
                read_bytes: self.io.read_bytes - earlier.io.read_bytes,
                write_bytes: self.io.write_bytes - earlier.io.write_bytes,
            },
        }
    }

    fn total(&self) -> u64 {
        self.causes.iter().map(|(_, bytes)| bytes).sum()
    }

    fn foreground(&self) -> u64 {
        let log = self.causes.iter().filter(|(name, _)| *name == FOREGROUND);
        log.map(|(_, bytes)| bytes).sum()
    }

    /// Returns the bytes written per byte of payload, in total and for each cause that wrote.
    fn write_amp(&self, payload_bytes: u64) -> (f64, Vec<(&'static str, f64)>) {
        let amp = |bytes| ratio(bytes, payload_bytes);
        let wrote = self.causes.iter().filter(|(_, bytes)| *bytes > 0);
        (amp(self.total()), wrote.map(|(name, bytes)| (*name, amp(*bytes))).collect())
    }

    fn to_json(&self) -> Value {
        let causes = self.causes.iter().map(|(name, bytes)| ((*name).to_owned(), (*bytes).into()));
        Value::Object(causes.collect::<Map<String, Value>>())
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(super) fn progress_line(
    seconds: u64,
    (done, of): (u64, u64),
    throughput: f64,
    recent: &Summary,
    written: &Account,
    payload_bytes: u64,
    space_amp: f64,
) -> String {
    let (write_amp, causes) = written.write_amp(payload_bytes);
    let causes: Vec<String> = causes.iter().map(|(name, amp)| format!("{name} {amp:.2}")).collect();
    format!(
        "{seconds:>4} s {done}/{of} {throughput:>9.0} op/s  p50 {} p99 {} p999 {}  \
         write-amp {write_amp:.3} ({})  space-amp {space_amp:.2}",
        duration(recent.p50_us),
        duration(recent.p99_us),
        duration(recent.p999_us),
        causes.join(", ")
    )
}

fn duration(us: f64) -> String {
    if us >= 1000.0 { format!("{:.1} ms", us / 1000.0) } else { format!("{us:.0} µs") }
}

pub(super) struct Report<'a> {
    pub args: &'a Bench,
    pub run: &'a Run,
    pub foreground: Account,
    /// Written during the run and the wait for garbage collection after it.
    pub total: Account,
    pub statistics: Statistics,
    pub settle_seconds: f64,
}

impl Report<'_> {
    pub(super) fn print_text(&self) {
        let run = self.run;
        let all = run.latencies.all();
        let loop_kind = if self.args.load.rate.is_some() { "open" } else { "closed" };
        let (write_amp, _) = self.total.write_amp(run.payload_bytes);
        eprintln!(
            "done: {} operations, {} errors in {:.1} s, {:.0} op/s · {loop_kind} loop · fsync on · \
             p50 {} p99 {} p999 {} max {} · payload {} · write-amp {:.3} (foreground {:.3}) · \
             space-amp {:.2} of about {}",
            run.operations,
            run.errors,
            run.seconds,
            run.operations as f64 / run.seconds,
            duration(all.p50_us),
            duration(all.p99_us),
            duration(all.p999_us),
            duration(all.max_us),
            format_bytes(run.payload_bytes),
            write_amp,
            ratio(self.foreground.foreground(), run.payload_bytes),
            self.statistics.space_amp,
            format_bytes(self.statistics.live_bytes_estimate),
        );
    }

    pub(super) fn to_json(&self) -> Value {
        let run = self.run;
        let payload = run.payload_bytes;
        json!({
            "configuration": self.configuration(),
            "seconds": run.seconds,
            "settle_seconds": self.settle_seconds,
            "operations": run.operations,
            "errors": run.errors,
            "not_found": run.not_found,
            "operations_per_second": run.operations as f64 / run.seconds,
            "payload_bytes": payload,
            "read_bytes": run.read_bytes,
            "written_bytes": self.total.to_json(),
            "written_bytes_total": self.total.total(),
            "device_write_bytes": self.total.io.write_bytes,
            "device_read_bytes": self.total.io.read_bytes,
            "write_amp_foreground": ratio(self.foreground.foreground(), payload),
            "write_amp": ratio(self.total.total(), payload),
            "write_amp_device": ratio(self.total.io.write_bytes, payload),
            "space_amp": self.statistics.space_amp,
            "disk_bytes": self.statistics.disk_bytes,
            "live_bytes_estimate": self.statistics.live_bytes_estimate,
            "memory_bytes": self.statistics.memory_bytes,
            "phase": self.statistics.phase,
            "latency": run.latencies.to_json(),
        })
    }

    fn configuration(&self) -> Value {
        let args = self.args;
        json!({
            "workload": name(args.load.workload),
            "distribution": name(distribution(&args.load)),
            "records": args.load.records,
            "threads": args.load.threads,
            "rate": args.load.rate,
            "loop": if args.load.rate.is_some() { "open" } else { "closed" },
            "batch": args.batch,
            "value_bytes": args.load.value_bytes,
            "key_bytes": args.load.key_bytes,
            "ordered": args.load.ordered,
            "policy": name(args.policy),
            "settled": args.settle,
            "seed": args.load.seed,
            "fsync": true,
            "version": env!("CARGO_PKG_VERSION"),
        })
    }
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
