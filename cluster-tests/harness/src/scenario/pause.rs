use super::{kill, three};
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::Report;
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{RawGetRequest, RawGetResponse};
use stele_types::Prng;

const KEY: &[u8] = b"pause";
const READS: usize = 100;
const LIMIT: Duration = Duration::from_secs(20);

// Catalogue: 2, 40.
/// The leader is stopped (SIGSTOP) until another leads and has acknowledged a newer value. Then
/// reads with the context of its term are sent to the stopped process, and it is resumed. Each read
/// must be refused or return the newer value.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(20, 2);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let mut ledger = Ledger::new(1);
    let (mut refused, mut newer) = (0, 0);
    for round in 0..rounds {
        let options = LoadOptions { recorders: 4, writers: 1, ..LoadOptions::default() };
        let (name, nodes) = (format!("{round:04}"), cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        let answers = one_pause(&mut cluster, round, &mut prng).await;
        let answers = answers.with_context(|| format!("round {round}"))?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let recorded = load.stop(&mut ledger).await?;
        checker.check(&name, &recorded).await?;
        for answer in answers {
            match answer {
                None => refused += 1,
                Some(value) if value == text(round, "newer") => newer += 1,
                Some(value) => {
                    report.require(false, format!("round {round}: stale read of {value:?}"));
                }
            }
        }
        verify::everything(&mut cluster, &ledger, 3).await?;
    }
    report.record("rounds", rounds);
    report.record("reads_refused", refused);
    report.record("reads_of_the_newer_value", newer);
    kill::check(&checker, report);
    Ok(())
}

/// Returns the values read; `None` for a refused read.
async fn one_pause(
    cluster: &mut Cluster,
    round: u64,
    prng: &mut Prng,
) -> Result<Vec<Option<Bytes>>> {
    let nodes = cluster.addresses();
    let mut before = session(cluster, nodes.clone());
    let started = Instant::now();
    while !before.put(KEY, text(round, "older")).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "no put succeeded within {LIMIT:?}");
    }
    let leader = cluster.leader_of(KEY).await?;
    let address = cluster.nodes[leader].address().to_owned();
    let route = before.route(KEY).await?;
    tokio::time::sleep(Duration::from_millis(prng.below(300))).await;
    cluster.nodes[leader].pause()?;
    let others = nodes.into_iter().filter(|node| *node != address).collect();
    let mut after = session(cluster, others);
    let started = Instant::now();
    while !after.put(KEY, text(round, "newer")).await.is_done() {
        if started.elapsed() > LIMIT {
            cluster.nodes[leader].resume()?;
            anyhow::bail!("no other node leads {LIMIT:?} after the leader was stopped");
        }
    }
    let peer = route.region.peers.get(route.leader).copied().unwrap_or_default();
    let context = Some(route.context(&peer, false));
    let request = RawGetRequest { context, key: Bytes::from_static(KEY), ..Default::default() };
    let client = cluster.channels.tikv(&address, LIMIT)?;
    let reads: Vec<_> = (0..READS)
        .map(|_| {
            let (mut client, request) = (client.clone(), request.clone());
            tokio::spawn(async move { client.raw_get(request).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    cluster.nodes[leader].resume()?;
    let mut answers = Vec::new();
    for read in reads {
        answers.push(read.await?.ok().map(tonic::Response::into_inner).and_then(found));
    }
    Ok(answers)
}

fn found(answer: RawGetResponse) -> Option<Bytes> {
    (answer.region_error.is_none() && answer.error.is_empty()).then_some(answer.value)
}

fn session(cluster: &Cluster, nodes: Vec<String>) -> Session {
    let options = SessionOptions { nodes, limit: Duration::from_millis(500) };
    Session::new(Arc::clone(&cluster.channels), options)
}

fn text(round: u64, which: &str) -> Bytes {
    Bytes::from(format!("{which} of round {round}"))
}
