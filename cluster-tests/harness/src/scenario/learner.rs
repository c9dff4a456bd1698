use super::{kill, three};
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::RegionDetailRequest;
use stele_types::Prng;

const LIMIT: Duration = Duration::from_secs(60);
/// A small memtable causes frequent checkpoints; the log is always kept from the last checkpoint
/// on.
const SETTINGS: [(&str, &str); 2] = [("pin_bytes_max", "8MiB"), ("memtable_bytes_max", "1MiB")];
/// Far more than `pin_bytes_max`.
const WRITTEN_BYTES: usize = 96 << 20;
const VALUE_BYTES: usize = 2 << 10;
const FILLERS: usize = 16;

// Catalogue: 54.
/// A node is down while more is written than the log keeps for it. It catches up by a snapshot
/// while writes continue.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let written = if setup.short { WRITTEN_BYTES / 3 } else { WRITTEN_BYTES };
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &SETTINGS)).await?;
    let mut ledger = Ledger::new(2);
    let options = LoadOptions { writers: 2, ..LoadOptions::default() };
    let nodes = cluster.addresses();
    let load = Load::start(&cluster.channels, &nodes, &options, "learner", prng.draw(), &ledger);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let leader = cluster.leader_of(b"filler").await?;
    let away = (leader + 1 + prng.below(2) as usize) % 3;
    let region = cluster.region_of(b"filler").await?.region.id.0;
    let last_before = detail(&cluster, away, region).await?.1;
    cluster.nodes[away].kill()?;
    fill(&cluster, written).await?;
    let started = Instant::now();
    cluster.nodes[away].restart()?;
    cluster.wait_ready().await?;
    cluster.wait_replicated(3, LIMIT).await?;
    let first_after = wait_for(&cluster, away, leader, region).await?;
    let took = started.elapsed().as_secs_f64();
    let recorded = load.stop(&mut ledger).await?;
    checker.check("learner", &recorded).await?;
    verify::everything(&mut cluster, &ledger, 3).await?;
    report.record("written_while_away_bytes", written);
    report.record("last_index_before", last_before);
    report.record("first_index_after", first_after);
    report.record("caught_up_s", rounded(took));
    report.record("acknowledged_writes", ledger.acknowledged());
    let by_snapshot = first_after > last_before + 1;
    report.require(by_snapshot, "the log begins after its previous end: a snapshot was installed");
    kill::check(&checker, report);
    Ok(())
}

async fn fill(cluster: &Cluster, bytes: usize) -> Result<()> {
    let fillers = (0..FILLERS).map(|filler| {
        let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
        let mut session = Session::new(Arc::clone(&cluster.channels), options);
        tokio::spawn(async move {
            let value = Bytes::from(vec![filler as u8; VALUE_BYTES]);
            let started = Instant::now();
            for number in 0..bytes / VALUE_BYTES / FILLERS {
                let key = format!("filler/{filler:02}/{number:06}");
                while !session.put(key.as_bytes(), value.clone()).await.is_done() {
                    ensure!(started.elapsed() < LIMIT, "filling takes longer than {LIMIT:?}");
                }
            }
            Ok(())
        })
    });
    for filler in fillers.collect::<Vec<_>>() {
        filler.await??;
    }
    Ok(())
}

/// Waits until the replica has applied what the leader has committed at the call; returns its first
/// index.
async fn wait_for(cluster: &Cluster, node: usize, leader: usize, region: u64) -> Result<u64> {
    let (_, _, committed) = detail(cluster, leader, region).await?;
    let started = Instant::now();
    loop {
        if let Ok((first, _, applied)) = detail(cluster, node, region).await
            && applied >= committed
        {
            return Ok(first);
        }
        ensure!(started.elapsed() < LIMIT, "not caught up within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns first, last and applied index of a node's replica.
async fn detail(cluster: &Cluster, node: usize, region: u64) -> Result<(u64, u64, u64)> {
    let request = RegionDetailRequest { region_id: region, ..Default::default() };
    let answer = cluster.control(node)?.region_detail(request).await?.into_inner();
    let replica = answer.replicas.first().context("no replica on the node")?;
    Ok((replica.first_index, replica.last_index, replica.applied_index))
}
