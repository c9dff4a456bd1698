//! Measurements of the systems: loads, gets, scans, YCSB workloads, and opening after a kill.

mod drive;
mod loads;
mod page_cache;
mod phases;
mod recovery;
mod report;
mod system;

use crate::args::Args;
use anyhow::{Context, Result, bail};
use phases::{Phase, Plan};
use report::Report;
use serde_json::json;
use system::System;

const SETTINGS: [&str; 16] = [
    "systems",
    "value",
    "bytes",
    "clients",
    "load-clients",
    "delay-ms",
    "ops",
    "scans",
    "scan-length",
    "rounds",
    "stores",
    "sort-threshold",
    "buffers",
    "cgroup",
    "page-cache",
    "dir",
];

/// Usage text of the command line.
pub const USAGE: &str = "usage: lab designs <phases> [settings]

  phases: put, get, scan, scan-of-N (of N pairs), mix-P (P percent gets, the others puts),
          scan-mix-P (P percent scans, the others puts), scan-mix-P-deletes-D (D percent of the others are deletes),
          ycsb (all six), ycsb-a .. ycsb-f, or several separated by commas; or recovery.
          Every run starts with a load, which `put` measures. Other phases start with a cold page
          cache, and may be named more than once (scan,scan-2): scans cause an engine to sort.

  --systems original,original-sync,original-raft,original-cr,original-buc,pasv,lsm-raft,dwisckey,
            nezha-nogc,nezha,stele
                    (those on RocksDB with the feature `rocksdb`; default: all but original-sync and the
                    modes of BUC-Raft)
  --value 16K       bytes of a value           --bytes 256M    bytes of loaded values
  --clients 64      closed loops               --ops N         gets, or operations of a workload
  --load-clients N  closed loops of the load (default: --clients)
  --delay-ms 0      time that a message between two stores takes
  --scan-length 100 pairs of a scan, at most in scan-mix     --scans N       scans
  --rounds 3        for each system     --stores 3      replicas
  --sort-threshold  unsorted bytes at which `nezha` sorts (default: two fifths of --bytes)
  --buffers 64M     memtables and table files; caches in proportion
  --cgroup DIR --page-cache BYTES
                    page cache of each replica's machine, limited by the memory cgroup (version 1) that
                    contains this process: for all replicas in a load, then for the leader
  --dir DIR         directory of the stores      --quick         the smallest run";

/// Runs the measurements that the command line requests.
pub fn run(arguments: &[String]) -> Result<()> {
    let Some((what, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    let args = Args::parse(rest, &["quick"], &SETTINGS).with_context(|| USAGE)?;
    if what == recovery::CHILD {
        return recovery::serve(&args);
    }
    let plan = Plan::from(&args)?;
    let systems = System::chosen(&args, &plan)?;
    let phases = if what == "recovery" { Vec::new() } else { Phase::parse(what)? };
    print_settings(what, &plan, &systems);
    let mut report = Report::default();
    for round in 0..plan.rounds {
        for at in 0..systems.len() {
            // Each system comes first in some round.
            let Some(system) = systems.get((at + round) % systems.len()) else { continue };
            let dir = tempfile::Builder::new().prefix("designs-").tempdir_in(&plan.dir)?;
            let lines = match phases.is_empty() {
                true => recovery::measure(system, &plan, dir.path())?,
                false => system.measure(&plan, &phases, dir.path())?,
            };
            report.add(system.name, round, lines);
        }
    }
    report.print_summary();
    Ok(())
}

fn print_settings(what: &str, plan: &Plan, systems: &[System]) {
    let settings: serde_json::Map<String, serde_json::Value> =
        systems.iter().map(|system| (system.name.to_owned(), json!(system.settings()))).collect();
    let line = json!({
        "measures": what,
        "group": format!(
            "{} replicas of one region in one process on one disk, a thread and a directory each; \
             messages in memory, delivered after {} ms; elections after {} ticks of 50 ms; syncs on",
            plan.stores, plan.delay.as_millis(), plan.election_ticks
        ),
        "value_bytes": plan.value_bytes,
        "keys": plan.keys,
        "clients": plan.clients,
        "load_clients": plan.load_clients,
        "delay_ms": plan.delay.as_millis() as u64,
        "ops": plan.ops,
        "scans": plan.scans,
        "scan_length": plan.scan_length,
        "buffers_bytes": plan.buffers_bytes,
        "rounds": plan.rounds,
        "dir": plan.dir,
        "processors": std::thread::available_parallelism().map_or(0, usize::from),
        "systems": settings,
    });
    println!("{line}");
}
