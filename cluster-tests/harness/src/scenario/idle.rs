use super::three;
use crate::args::Setup;
use crate::cluster::{Cluster, process};
use crate::report::{Report, rounded};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::ListOperatorsRequest;

const PERCENT_MAX: f64 = 2.0;
/// Time limit until the placement group has balanced the regions.
const BALANCED_WITHIN: Duration = Duration::from_secs(240);
/// Number of consecutive checks, a second apart, without an operator.
const IDLE_CHECKS: u32 = 3;
/// Time until all regions hibernate: a region does after 5 seconds without a request.
const HIBERNATED_AFTER: Duration = Duration::from_secs(10);
const MEASURE: Duration = Duration::from_secs(30);
/// Keys per split, so that the log entry stays small.
const SPLIT_KEYS: usize = 25;

/// Measures the processor time of each of three nodes with a thousand regions and no requests.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let regions = setup.rounds(1_000, 200) as usize;
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let started = Instant::now();
    let keys: Vec<Bytes> = (1..regions).map(|number| format!("idle/{number:06}").into()).collect();
    for part in keys.chunks(SPLIT_KEYS) {
        let last = cluster.region_of(&part[0]).await?.region.id;
        cluster.split(last, part.to_vec()).await?;
    }
    cluster.wait_replicated(3, Duration::from_secs(120)).await?;
    report.record("split_s", rounded(started.elapsed().as_secs_f64()));
    let started = Instant::now();
    wait_balanced(&cluster).await?;
    report.record("balanced_after_s", rounded(started.elapsed().as_secs_f64()));
    tokio::time::sleep(HIBERNATED_AFTER).await;
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
    report.record("regions", cluster.regions().await?.len());
    report.record("processor_percent", percent);
    report.record("peak_memory_bytes", memory?);
    report.require(worst < PERCENT_MAX, format!("under 2 % of a processor each: {worst}"));
    Ok(())
}

/// Waits until no operator runs: a region that is moved does not hibernate.
async fn wait_balanced(cluster: &Cluster) -> Result<()> {
    let started = Instant::now();
    let mut idle_checks = 0;
    while idle_checks < IDLE_CHECKS {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = cluster
            .placement("list operators", |mut client| async move {
                client.list_operators(ListOperatorsRequest::default()).await
            })
            .await?;
        let left = answer.operators.len();
        idle_checks = if left == 0 { idle_checks + 1 } else { 0 };
        ensure!(started.elapsed() < BALANCED_WITHIN, "{left} operators after {BALANCED_WITHIN:?}");
    }
    Ok(())
}

fn times(cluster: &Cluster) -> Result<Vec<Duration>> {
    cluster.nodes.iter().map(|node| process::processor_time(node.process()?)).collect()
}
