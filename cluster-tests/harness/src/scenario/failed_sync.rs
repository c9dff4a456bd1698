use super::kill::{check, wait};
use super::three;
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::node::tail;
use crate::cluster::syncs::FailingSync;
use crate::history::{Checker, LEDGER_PREFIX, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::KvPair;
use stele_types::Prng;

const KEY: &[u8] = b"failed-sync";
/// A flush whenever [`fill`] was called.
const SETTINGS: [(&str, &str); 1] = [("memtable_bytes_max", "1MiB")];
const FILL_BATCHES: usize = 8;
const FILL_PAIRS: usize = 2_000;
/// Kept in the memtable itself.
const FILL_VALUE_BYTES: usize = 64;
const ENDED_LIMIT: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(20);
/// Which of the syncs of the log's thread fails, at most.
const LOG_NTH_MAX: u64 = 40;
/// A flush syncs its run, then the manifest.
const MAINTENANCE_NTH_MAX: u64 = 2;
/// How a store says that it stopped.
const SAID: &str = "has stopped";

/// Which sync fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One of the log, while its thread appends.
    Log,
    /// One of the maintenance, of a run or of the manifest, while other threads append.
    Maintenance,
}

const KINDS: [Kind; 2] = [Kind::Log, Kind::Maintenance];

// Catalogue: 17.
/// The kernel answers one sync of one node with EIO, often the leader's, under load. The
/// store must stop: no further sync, no further write by the thread that failed, the reason in the log,
/// and the end of the process, whose only store it was. The others go on. Started again, without the
/// failure, it is one of three equal replicas.
pub async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(12, 2);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &SETTINGS)).await?;
    let mut ledger = Ledger::new(2);
    let mut gaps = Vec::new();
    for round in 0..rounds {
        let options = LoadOptions { writers: 2, ..LoadOptions::default() };
        let (name, nodes) = (format!("{round:04}"), cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        wait(&mut prng, 300, 1_000).await;
        let leader = cluster.leader_of(LEDGER_PREFIX.as_bytes()).await?;
        let victim = if prng.coin() { leader } else { (leader + 1) % cluster.nodes.len() };
        let kind = KINDS[round as usize % KINDS.len()];
        let text = format!("round {round}, {kind:?}, node {victim} of leader {leader}");
        let (thread, nth) = match kind {
            Kind::Log => ("stele-store-", 1 + prng.below(LOG_NTH_MAX)),
            Kind::Maintenance => ("stele-maintain", 1 + prng.below(MAINTENANCE_NTH_MAX)),
        };
        let trace = setup.work().join(format!("syncs-{name}.log"));
        let process = cluster.nodes[victim].process()?;
        let attached = FailingSync::attach(process, thread, nth, trace).await?;
        if kind == Kind::Maintenance {
            fill(&cluster, round).await?;
        }
        let file = fail(&mut cluster, victim, attached).await.with_context(|| text.clone())?;
        let gap = gap(&cluster).await?;
        gaps.push(gap);
        cluster.nodes[victim].restart()?;
        cluster.wait_ready().await?;
        wait(&mut prng, 300, 1_000).await;
        let recorded = load.stop(&mut ledger).await?;
        cluster.check_alive()?;
        let verdict = checker.check(&name, recorded.records).await?;
        verify::everything(&mut cluster, &ledger, 3).await?;
        println!(
            "{text}: sync of {file} failed, a put {gap:.3} s after its end, {} operations, {}",
            verdict.operations, verdict.result
        );
    }
    report.figure("rounds", rounds);
    report.figure("acknowledged_writes", ledger.acknowledged());
    report.figure("gap_median_s", rounded(percentile(&gaps, 0.5)));
    report.figure("gap_max_s", rounded(percentile(&gaps, 1.0)));
    check(&checker, report);
    Ok(())
}

/// Waits for the end of the node: the file whose sync failed.
async fn fail(cluster: &mut Cluster, victim: usize, attached: FailingSync) -> Result<String> {
    let node = &mut cluster.nodes[victim];
    let ended = node.wait_end(ENDED_LIMIT).await;
    let seen = attached.seen()?;
    let failed = seen.failed.context("no sync failed")?;
    let status = ended.with_context(|| format!("after {failed}"))?;
    ensure!(status.code().is_some_and(|code| code != 0), "it ended with {status}");
    ensure!(seen.after.is_empty(), "after {failed} it went on with {:?}", seen.after);
    let log = tail(&node.launch.log);
    ensure!(log.contains(SAID), "its log does not say why:\n{log}");
    // `fdatasync(9</d/00000001.seg>) = …`
    let path = failed.split('>').next().unwrap_or_default();
    Ok(path.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Seconds until a put succeeds.
async fn gap(cluster: &Cluster) -> Result<f64> {
    let started = Instant::now();
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_millis(500) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    while !session.put(KEY, Bytes::from_static(b"after")).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "no put in {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Writes more than a memtable takes.
async fn fill(cluster: &Cluster, round: u64) -> Result<()> {
    let options = SessionOptions { nodes: cluster.addresses(), limit: LIMIT };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    let pair = |number: usize| KvPair {
        key: format!("fill/{round:04}/{number:09}").into(),
        value: Bytes::from_static(&[7; FILL_VALUE_BYTES]),
        ..KvPair::default()
    };
    for batch in 0..FILL_BATCHES {
        let from = batch * FILL_PAIRS;
        let pairs: Vec<KvPair> = (from..from + FILL_PAIRS).map(pair).collect();
        let started = Instant::now();
        while !session.put_many(pairs.clone()).await.is_done() {
            ensure!(started.elapsed() < LIMIT, "nothing was filled in {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}
