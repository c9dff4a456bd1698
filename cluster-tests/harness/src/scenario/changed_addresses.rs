use super::{kill, three};
use crate::args::{Setup, need};
use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::control::POLL;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, percentile, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_types::Prng;

const LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// Time in which clients retry a call by default.
const WRITE_SECONDS_MAX: f64 = 20.0;

/// Every node restarts on another port, with `join` of the next one, in a ring. In even rounds all
/// nodes are killed at once, so that no node knows the new address of another. In odd rounds they
/// restart one after the other, under load. Then clients of the new addresses write, and everything is
/// compared.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(20, 2);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let mut ledger = Ledger::new(2);
    let mut first_put = Vec::new();
    for round in 0..rounds {
        let options = LoadOptions { writers: 2, ..LoadOptions::default() };
        let (name, nodes) = (format!("{round:04}"), cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        kill::wait(&mut prng, 300, 1_500).await;
        let former = cluster.addresses();
        let took = match round % 2 {
            0 => move_all(&mut cluster).await,
            _ => move_each(&mut cluster).await,
        };
        first_put.push(took.with_context(|| format!("round {round}"))?);
        let recorded = load.stop(&mut ledger).await?;
        checker.check(&name, &recorded).await?;
        ensure!(cluster.addresses().iter().all(|address| !former.contains(address)));
        known_to_the_placement_group(&cluster).await?;
        verify::everything(&mut cluster, &ledger, 3).await?;
    }
    let slowest = percentile(&first_put, 1.0);
    report.record("rounds", rounds);
    report.record("first_put_median_s", rounded(percentile(&first_put, 0.5)));
    report.record("first_put_max_s", rounded(slowest));
    report.record("acknowledged_writes", ledger.acknowledged());
    let what = format!("a put succeeds within 20 s of the last start: {slowest:.3} s");
    report.require(slowest <= WRITE_SECONDS_MAX, what);
    kill::check(&checker, report);
    Ok(())
}

/// Restarts all nodes at once; returns the seconds from the last start to the first put.
async fn move_all(cluster: &mut Cluster) -> Result<f64> {
    for node in &mut cluster.nodes {
        node.kill()?;
    }
    let number = cluster.nodes.len();
    (0..number).try_for_each(|node| cluster.change_address(node))?;
    join_in_a_ring(cluster);
    for node in &mut cluster.nodes {
        node.restart()?;
    }
    first_put(cluster).await
}

/// Restarts one node after the other; returns the longest time in seconds from a start to the first
/// put by a client of the new addresses.
async fn move_each(cluster: &mut Cluster) -> Result<f64> {
    let mut longest: f64 = 0.0;
    for node in 0..cluster.nodes.len() {
        cluster.nodes[node].stop(STOP_LIMIT).await?;
        cluster.change_address(node)?;
        join_in_a_ring(cluster);
        cluster.nodes[node].restart()?;
        longest = longest.max(first_put(cluster).await?);
    }
    Ok(longest)
}

/// Lets each node join the next one at its present address when it starts again.
pub(super) fn join_in_a_ring(cluster: &mut Cluster) {
    let addresses: Vec<String> =
        cluster.nodes.iter().map(|node| node.address().to_owned()).collect();
    for (number, node) in cluster.nodes.iter_mut().enumerate() {
        node.launch.join = addresses.get((number + 1) % addresses.len()).cloned();
    }
}

async fn first_put(cluster: &mut Cluster) -> Result<f64> {
    let started = Instant::now();
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(1) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    while !session.put(b"moved", Bytes::from_static(b"put")).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "no put succeeded within {LIMIT:?}");
        cluster.check_alive()?;
        tokio::time::sleep(POLL).await;
    }
    let took = started.elapsed().as_secs_f64();
    cluster.wait_ready().await?;
    Ok(took)
}

/// Waits until the placement group knows the address of every node.
pub(super) async fn known_to_the_placement_group(cluster: &Cluster) -> Result<()> {
    let (started, addresses) = (Instant::now(), cluster.addresses());
    loop {
        let stores = cluster.stores().await?;
        if stores.values().all(|store| addresses.contains(&store.address)) {
            return Ok(());
        }
        ensure!(started.elapsed() < LIMIT, "a store has another address: {stores:?}");
        tokio::time::sleep(POLL).await;
    }
}
