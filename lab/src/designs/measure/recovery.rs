//! Time to open after `kill -9` during a load, and a check of acknowledged writes.

use super::drive::{Class, closed_loops};
use super::page_cache::PageCache;
use super::phases::{Measured, Plan};
use super::system::{System, store_dirs};
use crate::args::Args;
use crate::designs::harness::{Client, Cluster, Mode};
use crate::machine::forget_cached;
use crate::workload::key;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use stele_storage::StorageEngine;

/// Command of the child process that is killed.
pub(super) const CHILD: &str = "load-until-killed";
const LOADED: &str = "loaded";
/// Time of further writes after the load.
const GOES_ON: Duration = Duration::from_millis(300);
/// Number of keys checked afterwards.
const CHECKED: u64 = 1_000;

pub(super) fn measure(system: &System, plan: &Plan, dir: &Path) -> Result<Vec<Value>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["designs", CHILD]).args(plan.args.again(&["systems", "dir"]));
    command.arg("--systems").arg(system.name).arg("--dir").arg(dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("starting the child process")?;
    let output = child.stdout.take().context("the child has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    std::thread::sleep(GOES_ON);
    child.kill()?;
    child.wait()?;
    ensure!(line.trim() == LOADED, "the child process ended before it was killed");
    forget_cached(dir)?;
    system.reopen(plan, dir)
}

pub(super) fn serve(args: &Args) -> Result<()> {
    end_with_parent();
    let plan = Plan::from(args)?;
    for system in System::chosen(args, &plan)? {
        system.load(&plan)?;
    }
    Ok(())
}

/// Ends this process when its parent ends, which closes standard input.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
}

/// Loads, reports that, and puts the same keys again until killed.
pub(super) fn load_and_go_on<E: StorageEngine + 'static>(
    cluster: &Cluster<E>,
    plan: &Plan,
) -> Result<()> {
    let _cache = plan.limit_page_cache(plan.stores)?;
    let measured = Measured::new(cluster, plan, &plan.dir);
    measured.load()?;
    println!("{LOADED}");
    std::io::stdout().flush()?;
    closed_loops(cluster, plan.clients, u64::MAX, |client, op, random| {
        client.put(&key(op % plan.keys), measured.value(random))?;
        Ok(Class::Write)
    })?;
    Ok(())
}

pub(super) fn reopen<E: StorageEngine + 'static>(
    plan: &Plan,
    mode: Mode,
    dir: &Path,
    open: impl Fn(&Path) -> stele_types::Result<E>,
) -> Result<Vec<Value>> {
    let cache = plan.limit_page_cache(plan.stores)?;
    let mut engines = Vec::new();
    let mut opened_ms = Vec::new();
    let started = Instant::now();
    for dir in store_dirs(dir, plan.stores) {
        let began = Instant::now();
        engines.push(open(&dir)?);
        opened_ms.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let cluster = Cluster::start(engines, &plan.setup(mode))?;
    let mut client = Client::new(&cluster);
    let mut lost = 0;
    let mut serving_ms = None;
    for at in 0..CHECKED.min(plan.keys) {
        let number = at * plan.keys / CHECKED.min(plan.keys);
        let found = client.get(&key(number))?;
        serving_ms.get_or_insert_with(|| started.elapsed().as_secs_f64() * 1e3);
        lost += u64::from(found.is_none_or(|it| it.len() as u64 != plan.value_bytes));
    }
    cluster.stop()?;
    cache.map_or(Ok(()), PageCache::end)?;
    ensure!(lost == 0, "{lost} acknowledged keys are lost");
    let open_ms = opened_ms.iter().sum::<f64>() / opened_ms.len().max(1) as f64;
    Ok(vec![json!({
        "phase": "recovery",
        "keys": plan.keys,
        "open_ms": open_ms,
        "opened_ms": opened_ms,
        "serving_ms": serving_ms,
    })])
}
