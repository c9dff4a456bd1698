//! `stele bench engine`: the YCSB workloads on an embedded store.

mod driver;
mod report;

use crate::Outcome;
use crate::args::{Bench, Policy};
use crate::store::{Store, Tuning};
use crate::terminal::Output;
use driver::{Driver, Run};
use report::Account;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_engine::PolicyKind;
use stele_load::{Records, Workload};
use stele_types::{Error, Result};

/// Time without writes after which garbage collection counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(6);
const SETTLE_SLICE_BYTES: u64 = 4 << 20;

pub(crate) fn run(args: &Bench) -> Result<Outcome> {
    args.load.check()?;
    let store = open(args)?;
    let records = Arc::new(Records::new(&args.load));
    if args.load.workload != Workload::Load && !args.load.skip_load {
        load_if_missing(args, &store, &records)?;
    }
    let before = Account::take(&store);
    let driver = Driver::new(args, &store, &records, args.load.workload);
    let run = driver.run()?;
    let after_run = Account::take(&store);
    let settle_seconds = if args.settle { settle(&store)? } else { 0.0 };
    let after = Account::take(&store);
    let report = report::Report {
        args,
        run: &run,
        foreground: after_run.since(&before),
        total: after.since(&before),
        statistics: store.statistics(),
        settle_seconds,
    };
    store.close()?;
    report.print_text();
    let mut out = Output::new();
    out.line(&report.to_json().to_string())?;
    out.finish()?;
    Ok(if run.errors == 0 { Outcome::Done } else { Outcome::Failed })
}

fn open(args: &Bench) -> Result<Store> {
    let tuning = Tuning {
        policy: match args.policy {
            Policy::Adaptive => PolicyKind::Adaptive,
            Policy::Nezha => PolicyKind::Nezha,
            Policy::Wisckey => PolicyKind::Wisckey,
        },
        background: true,
        without_repair: false,
        segment_bytes_max: args.segment_bytes,
        memtable_bytes_max: args.memtable_bytes,
        value_cache_bytes_max: args.value_cache_bytes,
    };
    Store::open_or_create(&args.target.store, &tuning)
}

/// Loads the records unless the last one, which the load inserts last, exists.
fn load_if_missing(args: &Bench, store: &Store, records: &Arc<Records>) -> Result<()> {
    if store.get(&records.key(args.load.records - 1))?.is_some() {
        return Ok(());
    }
    eprintln!("loading {} records", args.load.records);
    let run: Run = Driver::new(args, store, records, Workload::Load).run()?;
    if run.errors > 0 {
        return Err(Error::Busy(format!("{} inserts of the load failed", run.errors)));
    }
    store.flush()?;
    if args.settle {
        settle(store)?;
    }
    Ok(())
}

/// Runs maintenance until none is pending and nothing is written; returns the seconds that took.
fn settle(store: &Store) -> Result<f64> {
    let started = Instant::now();
    store.flush()?;
    let written = |store: &Store| -> u64 {
        store.statistics().written_bytes.iter().map(|(_, bytes)| bytes).sum()
    };
    let mut last = written(store);
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < IDLE_AFTER {
        let more = store.maintain(SETTLE_SLICE_BYTES)?;
        let now = written(store);
        if more || now != last {
            (last, idle_since) = (now, Instant::now());
        }
        if !more {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(started.elapsed().saturating_sub(IDLE_AFTER).as_secs_f64())
}
