use super::kill::{check, wait};
use super::three;
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::node::tail;
use crate::cluster::syncs::{Injection, LOG_THREADS, TracedSyncs};
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
/// Each call of [`fill`] causes a flush.
const SETTINGS: [(&str, &str); 1] = [("memtable_bytes_max", "1MiB")];
const FILL_BATCHES: usize = 8;
const FILL_PAIRS: usize = 2_000;
/// Small enough to be stored in the memtable itself.
const FILL_VALUE_BYTES: usize = 64;
const ENDED_LIMIT: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of the log sync that fails.
const LOG_NTH_MAX: u64 = 40;
/// Maximum number of the maintenance sync that fails: a flush syncs its run, then the manifest.
const MAINTENANCE_NTH_MAX: u64 = 2;
/// Part of the message of a store that has stopped.
const STOPPED_TEXT: &str = "has stopped";

/// Kind of the sync that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A sync of the log, by the thread that appends.
    Log,
    /// A maintenance sync of a run or of the manifest, while other threads append.
    Maintenance,
}

const KINDS: [Kind; 2] = [Kind::Log, Kind::Maintenance];

// Catalogue: 17.
/// Under load, the kernel fails one sync of one node, often the leader, with EIO. The store must
/// stop: no further sync and no further write by the thread that failed, the reason in the log, and
/// the end of the process, which has no other store. The other nodes continue. After a restart
/// without the failure, the three replicas are equal.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
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
        let text = format!("round {round}, {kind:?}, node {victim} (leader {leader})");
        let (threads, nth) = match kind {
            Kind::Log => (&LOG_THREADS[..], 1 + prng.below(LOG_NTH_MAX)),
            Kind::Maintenance => (&["stele-maintain"][..], 1 + prng.below(MAINTENANCE_NTH_MAX)),
        };
        let trace = setup.work().join(format!("syncs-{name}.log"));
        let process = cluster.nodes[victim].process()?;
        let attached =
            TracedSyncs::attach(process, threads, Injection::Fail { nth }, trace).await?;
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
        let verdict = checker.check(&name, &recorded).await?;
        verify::everything(&mut cluster, &ledger, 3).await?;
        println!(
            "{text}: sync of {file} failed, first put {gap:.3} s after the node ended, {} operations, {}",
            verdict.operations, verdict.result
        );
    }
    report.record("rounds", rounds);
    report.record("acknowledged_writes", ledger.acknowledged());
    report.record("gap_median_s", rounded(percentile(&gaps, 0.5)));
    report.record("gap_max_s", rounded(percentile(&gaps, 1.0)));
    check(&checker, report);
    Ok(())
}

/// Waits for the end of the node; returns the file of the failed sync.
async fn fail(cluster: &mut Cluster, victim: usize, attached: TracedSyncs) -> Result<String> {
    let node = &mut cluster.nodes[victim];
    let ended = node.wait_end(ENDED_LIMIT).await;
    let seen = attached.trace()?;
    let failed = seen.failed.context("no sync failed")?;
    let status = ended.with_context(|| format!("after {failed}"))?;
    ensure!(status.code().is_some_and(|code| code != 0), "the node ended with {status}");
    ensure!(seen.after.is_empty(), "after {failed} the thread continued with {:?}", seen.after);
    let log = tail(&node.launch.log);
    ensure!(log.contains(STOPPED_TEXT), "the log does not give the reason:\n{log}");
    // `fdatasync(9</d/00000001.seg>) = …`
    let path = failed.split('>').next().unwrap_or_default();
    Ok(path.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Returns the seconds until a put succeeds.
async fn gap(cluster: &Cluster) -> Result<f64> {
    let started = Instant::now();
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_millis(500) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    while !session.put(KEY, Bytes::from_static(b"after")).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "no put succeeded within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Writes more than the size of a memtable.
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
            ensure!(started.elapsed() < LIMIT, "no batch was written within {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(())
}
