use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::report::{Report, percentile, rounded};
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_types::Prng;

const KEY: &[u8] = b"failover";
const GAP_SECONDS_MAX: f64 = 2.0;
const LIMIT: Duration = Duration::from_secs(20);
/// Time limit of a call. Connections of a killed process break immediately.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// One client puts without a pause; the leader of its region is killed. The gap is the time between
/// the last put acknowledged before and the first one after.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(50, 3);
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let mut gaps = Vec::new();
    for round in 0..rounds {
        let mut session = Session::new(
            Arc::clone(&cluster.channels),
            SessionOptions { nodes: cluster.addresses(), limit: ANSWER_LIMIT },
        );
        let until = Instant::now() + Duration::from_millis(200 + prng.below(800));
        while Instant::now() < until {
            session.put(KEY, Bytes::from_static(b"before")).await;
        }
        // The placement group may have moved it meanwhile.
        let leader = cluster.leader_of(KEY).await?;
        let mut last = Instant::now();
        if session.put(KEY, Bytes::from_static(b"before")).await.is_done() {
            last = Instant::now();
        }
        cluster.nodes[leader].kill()?;
        while !session.put(KEY, Bytes::from_static(b"after")).await.is_done() {
            ensure!(
                last.elapsed() < LIMIT,
                "no put succeeded within {LIMIT:?} after round {round}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let gap = last.elapsed().as_secs_f64();
        gaps.push(gap);
        println!("round {round}: leader {leader} killed, gap {gap:.3} s");
        cluster.nodes[leader].restart()?;
        cluster.wait_ready().await?;
        cluster.wait_replicated(3, LIMIT).await?;
    }
    let p99 = percentile(&gaps, 0.99);
    report.record("rounds", rounds);
    report.record("gap_median_s", rounded(percentile(&gaps, 0.5)));
    report.record("gap_p99_s", rounded(p99));
    report.require(p99 <= GAP_SECONDS_MAX, format!("p99 of the gap within 2 s: {p99:.3} s"));
    Ok(())
}
