use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::report::{Report, percentile, rounded};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FIRST_PUT_SECONDS_MAX: f64 = 1.0;
const LIMIT: Duration = Duration::from_secs(30);

/// Starts three processes at once; a client puts until it succeeds.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(11, 3);
    let (mut first_put, mut replicated) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut spec = three(setup, &[]);
        spec.work = setup.work().join(format!("round{round}"));
        std::fs::create_dir_all(&spec.work)?;
        let started = Instant::now();
        let mut cluster = Cluster::launch(spec)?;
        let nodes = cluster.addresses();
        let options = SessionOptions { nodes, limit: Duration::from_secs(1) };
        let mut session = Session::new(Arc::clone(&cluster.channels), options);
        while !session.put(b"first", Bytes::from_static(b"put")).await.is_done() {
            ensure!(started.elapsed() < LIMIT, "no put succeeded within {LIMIT:?}");
            cluster.check_alive()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        first_put.push(started.elapsed().as_secs_f64());
        cluster.wait_ready().await?;
        cluster.wait_replicated(3, LIMIT).await?;
        replicated.push(started.elapsed().as_secs_f64());
    }
    let median = percentile(&first_put, 0.5);
    report.record("rounds", rounds);
    report.record("first_put_median_s", rounded(median));
    report.record("first_put_max_s", rounded(percentile(&first_put, 1.0)));
    report.record("three_replicas_median_s", rounded(percentile(&replicated, 0.5)));
    report.require(median <= FIRST_PUT_SECONDS_MAX, format!("first put within 1 s: {median:.3} s"));
    Ok(())
}
