use super::{changed_addresses, three};
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::history::Ledger;
use crate::programs::{self, Printed};
use crate::report::Report;
use crate::verify;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_types::{Prng, RegionKind};

const VALUE_BYTES: u64 = 1_000;
const PACED_PER_S: u64 = 1_000;
/// Cost of a scan in operations; a scan reads some dozens of pairs.
const SCAN_COST: u64 = 10;
const TRIES_MAX: usize = 3;
/// Length of the run in which all nodes restart and get other addresses: it must outlast that. All
/// connections end then, so it runs without batches, see [`one`].
const MOVE_SECONDS: u64 = 90;
/// Operations per second of that run.
const MOVE_PER_S: u64 = 500;
/// Operations per second of a run without a pace, at least.
const SLOWEST_PER_S: f64 = 500.0;
/// Time limit of a run in addition to the time that its pace needs. A client that hangs is noticed then.
const RUN_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time in which client-go asks for the list of nodes again. It does so once a minute, and when the
/// placement leader that it knows does not answer a question; a client of few regions asks none.
const LIST_KNOWN_WITHIN: Duration = Duration::from_secs(62);
/// Setting of the requests in a message of client-go; with 0 each request is a call.
const BATCH_SIZE: &str = "tikv.batchsize";
const SERVED_WITHIN: Duration = Duration::from_secs(10);

/// Name; shares of reads, updates, inserts, scans and read-modify-writes; distribution of the keys.
struct Workload(&'static str, [f64; 5], &'static str);

const WORKLOADS: [Workload; 6] = [
    Workload("A", [0.5, 0.5, 0.0, 0.0, 0.0], "zipfian"),
    Workload("B", [0.95, 0.05, 0.0, 0.0, 0.0], "zipfian"),
    Workload("C", [1.0, 0.0, 0.0, 0.0, 0.0], "zipfian"),
    Workload("D", [0.95, 0.0, 0.05, 0.0, 0.0], "latest"),
    Workload("E", [0.0, 0.0, 0.05, 0.95, 0.0], "zipfian"),
    Workload("F", [0.5, 0.0, 0.0, 0.0, 0.5], "zipfian"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    Kill,
    SplitAndTransfer,
    /// Each node gets another address; meanwhile one is killed, and one restarts in order.
    RestartAndMove,
}

/// Loads and runs A to F. Then runs A, E and F again while a node is killed and restarted, and
/// while a region is split and its leadership moves. Last, one run of A goes on while a node is
/// killed, another one restarts in order, and all get other addresses. The client hides retries: its
/// errors are those a user sees.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let program = need(&setup.programs.ycsb, "--ycsb")?;
    let records: u64 = if setup.short { 2_000 } else { 100_000 };
    let operations: u64 = if setup.short { 1_000 } else { 20_000 };
    let seconds: u64 = if setup.short { 5 } else { 20 };
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    // go-ycsb's Zipf generator also draws the number after the last record, so that record is
    // loaded too.
    let settings_of_load = base(records + 1, 64);
    let load = one(&mut cluster, program, "load", &settings_of_load, Event::Nothing, &mut prng);
    let load = load.await.context("load")?;
    record_run(report, "load", &load, true);
    for workload in &WORKLOADS {
        let settings = settings(workload, records, operations);
        let printed = one(&mut cluster, program, "run", &settings, Event::Nothing, &mut prng).await;
        record_run(report, workload.0, &printed.with_context(|| workload.0)?, workload.0 != "D");
    }
    for event in [Event::Kill, Event::SplitAndTransfer] {
        for workload in WORKLOADS.iter().filter(|one| ["A", "E", "F"].contains(&one.0)) {
            let name = format!("{}_{event:?}", workload.0);
            let mut settings = settings(workload, records, PACED_PER_S * seconds);
            settings.push(("target", pace(workload).to_string()));
            let printed = one(&mut cluster, program, "run", &settings, event, &mut prng).await;
            record_run(report, &name, &printed.with_context(|| name.clone())?, true);
            cluster.wait_replicated(3, Duration::from_secs(60)).await?;
        }
    }
    let mut settings = settings(&WORKLOADS[0], records, MOVE_PER_S * MOVE_SECONDS);
    settings.push(("target", MOVE_PER_S.to_string()));
    settings.push((BATCH_SIZE, "0".to_owned()));
    let (name, event) = ("A_RestartAndMove", Event::RestartAndMove);
    let printed = one(&mut cluster, program, "run", &settings, event, &mut prng).await;
    record_run(report, name, &printed.context(name)?, true);
    let regions = cluster.regions().await?;
    let users = regions.iter().filter(|one| one.region.kind == RegionKind::Data).count();
    report.record("records", records);
    report.record("regions_in_the_end", users);
    verify::everything(&mut cluster, &Ledger::new(0), 3).await
}

fn base(records: u64, threads: u64) -> Vec<(&'static str, String)> {
    vec![
        ("recordcount", records.to_string()),
        ("threadcount", threads.to_string()),
        ("fieldcount", "1".to_owned()),
        ("fieldlength", VALUE_BYTES.to_string()),
    ]
}

fn settings(workload: &Workload, records: u64, operations: u64) -> Vec<(&'static str, String)> {
    let mut settings = base(records, 32);
    let names = [
        "readproportion",
        "updateproportion",
        "insertproportion",
        "scanproportion",
        "readmodifywriteproportion",
    ];
    settings.extend(names.iter().zip(workload.1).map(|(name, share)| (*name, share.to_string())));
    let operations = if scans(workload) { operations / SCAN_COST } else { operations };
    settings.push(("operationcount", operations.to_string()));
    settings.push(("requestdistribution", workload.2.to_owned()));
    settings.push(("maxscanlength", "100".to_owned()));
    settings
}

/// Returns the operations per second during an event; the run must outlast it.
fn pace(workload: &Workload) -> u64 {
    if scans(workload) { PACED_PER_S / SCAN_COST } else { PACED_PER_S }
}

/// Returns the time that a run needs at the pace of its settings, or at the slowest that is expected.
fn paced(settings: &[(&str, String)]) -> Duration {
    let number = |name: &str| -> Option<f64> {
        let value = settings.iter().find(|(it, _)| *it == name).map(|(_, value)| value.parse());
        value.and_then(Result::ok)
    };
    let operations = number("operationcount").or(number("recordcount")).unwrap_or_default();
    Duration::from_secs_f64(operations / number("target").unwrap_or(SLOWEST_PER_S))
}

fn scans(workload: &Workload) -> bool {
    workload.1[3] > 0.0
}

/// Runs a workload, and again if the client hung waiting for a connection that it does not open.
/// client-go (of 2022, with a current gRPC) hangs when all connections to a killed store are idle
/// at once: `waitConnReady` waits for a change of state that only a call would cause, and no call
/// is made (fixed in its pull request 833). Other calls then fail with "no available connections".
/// Without batches each request is a call, which connects: so it runs again without them. Meanwhile the
/// cluster must serve other clients.
async fn one(
    cluster: &mut Cluster,
    program: &Path,
    command: &str,
    settings: &[(&str, String)],
    event: Event,
    prng: &mut Prng,
) -> Result<Printed> {
    let mut settings = settings.to_vec();
    for _ in 0..TRIES_MAX {
        let printed = attempt(cluster, program, command, &settings, event, prng).await?;
        let waits = !printed.in_time && printed.errors.contains(".waitConnReady(");
        let hangs = waits || printed.errors.contains("no available connections");
        if !hangs {
            return Ok(printed);
        }
        let options = SessionOptions { nodes: cluster.addresses(), limit: SERVED_WITHIN };
        let mut session = Session::new(Arc::clone(&cluster.channels), options);
        let served = session.put(b"meanwhile", Bytes::from_static(b"served")).await;
        ensure!(served.is_done(), "go-ycsb hangs, and another client is not served either");
        println!("go-ycsb hangs on an idle connection; running it again without batches");
        settings.push((BATCH_SIZE, "0".to_owned()));
    }
    bail!("go-ycsb hung on an idle connection {TRIES_MAX} times")
}

async fn attempt(
    cluster: &mut Cluster,
    program: &Path,
    command: &str,
    settings: &[(&str, String)],
    event: Event,
    prng: &mut Prng,
) -> Result<Printed> {
    let addresses = cluster.addresses().join(",");
    let process = programs::ycsb(program, &addresses, command, settings);
    let running = programs::start_within(process, RUN_LIMIT + paced(settings));
    tokio::time::sleep(Duration::from_millis(300 + prng.below(700))).await;
    match event {
        Event::Nothing => {}
        Event::Kill => {
            let victim = prng.below(cluster.nodes.len() as u64) as usize;
            cluster.nodes[victim].kill()?;
            tokio::time::sleep(Duration::from_millis(prng.below(1_500))).await;
            cluster.nodes[victim].restart()?;
            cluster.wait_ready().await?;
        }
        Event::SplitAndTransfer => {
            let key = Bytes::from(format!("usertable:user{}", 10 + prng.below(90)));
            let known = cluster.region_of(&key).await?;
            if known.region.range.start != key {
                cluster.split(known.region.id, vec![key.clone()]).await?;
            }
            let known = cluster.region_of(&key).await?;
            let peer = known.region.peers[prng.below(3) as usize];
            cluster.transfer(known.region.id, peer.store).await?;
        }
        Event::RestartAndMove => restart_and_move(cluster, prng).await?,
    }
    let outlasted = event == Event::Nothing || !running.is_finished();
    let printed = running.await??;
    ensure!(outlasted || !printed.succeeded, "the run ended before the event {event:?}");
    cluster.check_alive()?;
    Ok(printed)
}

/// Gives all nodes but one another address, kills a node and restarts another one in order, and then gives
/// the last one another address, too.
///
/// The client learns of moves from a node that it knows. So the last one moves when the client has asked
/// for the list again.
async fn restart_and_move(cluster: &mut Cluster, prng: &mut Prng) -> Result<()> {
    let nodes = cluster.nodes.len();
    let first = prng.below(nodes as u64) as usize;
    let mut order: Vec<usize> = (0..nodes).map(|node| (first + node) % nodes).collect();
    let last = order.pop().context("no nodes")?;
    for node in order {
        move_node(cluster, node).await?;
    }
    let moved_at = Instant::now();
    let victim = prng.below(nodes as u64) as usize;
    cluster.nodes[victim].kill()?;
    cluster.nodes[victim].restart()?;
    cluster.wait_ready().await?;
    let other = (victim + 1) % nodes;
    cluster.nodes[other].stop(STOP_LIMIT).await?;
    cluster.nodes[other].restart()?;
    cluster.wait_ready().await?;
    tokio::time::sleep(LIST_KNOWN_WITHIN.saturating_sub(moved_at.elapsed())).await;
    move_node(cluster, last).await
}

/// Restarts a node in order, with another address.
async fn move_node(cluster: &mut Cluster, node: usize) -> Result<()> {
    cluster.nodes[node].stop(STOP_LIMIT).await?;
    cluster.change_address(node)?;
    changed_addresses::join_in_a_ring(cluster);
    cluster.nodes[node].restart()?;
    cluster.wait_ready().await?;
    changed_addresses::known_to_the_placement_group(cluster).await
}

fn record_run(report: &mut Report, name: &str, printed: &Printed, all_there: bool) {
    let (errors, missing) = (printed.number("errors"), printed.number("missing"));
    println!(
        "{name}: {} operations, {:.0} per second, {errors} errors, {missing} missing",
        printed.number("operations"),
        printed.number("per_second"),
    );
    report.record(&format!("{name}_per_s"), printed.number("per_second").round());
    let fine = printed.succeeded && errors == 0.0 && printed.number("operations") > 0.0;
    report.require(fine, format!("{name} must have no errors: {}", printed.errors));
    report.require(!all_there || missing == 0.0, format!("{name}: {missing} keys are missing"));
}
