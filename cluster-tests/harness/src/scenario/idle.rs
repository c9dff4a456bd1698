use super::three;
use crate::args::Setup;
use crate::cluster::{Cluster, process};
use crate::report::{Report, rounded};
use anyhow::Result;
use bytes::Bytes;
use std::time::{Duration, Instant};

const PERCENT_MAX: f64 = 2.0;
const SETTLE: Duration = Duration::from_secs(15);
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
    tokio::time::sleep(SETTLE).await;
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

fn times(cluster: &Cluster) -> Result<Vec<Duration>> {
    cluster.nodes.iter().map(|node| process::processor_time(node.process()?)).collect()
}
