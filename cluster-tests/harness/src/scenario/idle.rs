use super::three;
use crate::args::Setup;
use crate::cluster::{Cluster, process};
use crate::report::{Report, rounded};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::ListOperatorsRequest;

const PERCENT_MAX: f64 = 2.0;
/// Until the placement group has moved what it wants to move.
const SETTLED_WITHIN: Duration = Duration::from_secs(240);
/// As often in a row, a second apart, no operator may be on its way.
const QUIET_SECONDS: u32 = 3;
/// A region sleeps after 5 seconds without a request.
const ASLEEP: Duration = Duration::from_secs(10);
const MEASURE: Duration = Duration::from_secs(30);
/// Keys of one split: the entry that carries it stays small.
const SPLIT_KEYS: usize = 25;

/// A thousand regions on three nodes, nobody asking for anything: processor time of each node.
pub async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let regions = setup.rounds(1_000, 200) as usize;
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let started = Instant::now();
    let keys: Vec<Bytes> = (1..regions).map(|number| format!("idle/{number:06}").into()).collect();
    for part in keys.chunks(SPLIT_KEYS) {
        let last = cluster.region_of(&part[0]).await?.region.id;
        cluster.split(last, part.to_vec()).await?;
    }
    cluster.wait_replicated(3, Duration::from_secs(120)).await?;
    report.figure("split_s", rounded(started.elapsed().as_secs_f64()));
    let started = Instant::now();
    settled(&cluster).await?;
    report.figure("balanced_after_s", rounded(started.elapsed().as_secs_f64()));
    tokio::time::sleep(ASLEEP).await;
    let before = times(&cluster)?;
    tokio::time::sleep(MEASURE).await;
    let after = times(&cluster)?;
    let percent: Vec<f64> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| {
            rounded((*after - *before).as_secs_f64() / MEASURE.as_secs_f64() * 100.0)
        })
        .collect();
    let memory: Result<Vec<u64>> =
        cluster.nodes.iter().map(|node| process::peak_memory_bytes(node.process()?)).collect();
    let worst = percent.iter().copied().fold(0.0, f64::max);
    report.figure("regions", cluster.regions().await?.len());
    report.figure("processor_percent", percent);
    report.figure("peak_memory_bytes", memory?);
    report.demand(worst < PERCENT_MAX, format!("under 2 % of a processor each: {worst}"));
    Ok(())
}

/// Waits until nothing is moved any more: a region that is moved is not at rest.
async fn settled(cluster: &Cluster) -> Result<()> {
    let started = Instant::now();
    let mut quiet = 0;
    while quiet < QUIET_SECONDS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = cluster
            .placement("list operators", |mut client| async move {
                client.list_operators(ListOperatorsRequest::default()).await
            })
            .await?;
        let left = answer.operators.len();
        quiet = if left == 0 { quiet + 1 } else { 0 };
        ensure!(started.elapsed() < SETTLED_WITHIN, "{left} operators after {SETTLED_WITHIN:?}");
    }
    Ok(())
}

fn times(cluster: &Cluster) -> Result<Vec<Duration>> {
    cluster.nodes.iter().map(|node| process::processor_time(node.process()?)).collect()
}
