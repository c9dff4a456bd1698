use super::{kill, three};
use crate::args::{Setup, need};
use crate::cluster::Cluster;
use crate::history::{Checker, Ledger, Load, LoadOptions};
use crate::report::{Report, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::StoreAction;
use stele_types::{Prng, StoreId};

const LIMIT: Duration = Duration::from_secs(90);

// Catalogue: 28.
/// Under load, a node loses its disk and returns with an empty one, which is a new store. The old
/// store is removed and its replicas are rebuilt on the new one.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(3, 1);
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let mut ledger = Ledger::new(2);
    for round in 0..rounds {
        let options = LoadOptions { writers: 2, ..LoadOptions::default() };
        let (name, nodes) = (format!("{round:04}"), cluster.addresses());
        let load = Load::start(&cluster.channels, &nodes, &options, &name, prng.draw(), &ledger);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let victim = prng.below(3) as usize;
        let took = replace(&mut cluster, victim).await;
        let took = took.with_context(|| format!("round {round}, node {victim}"))?;
        let recorded = load.stop(&mut ledger).await?;
        checker.check(&name, &recorded).await?;
        verify::everything(&mut cluster, &ledger, 3).await?;
        println!(
            "round {round}: node {victim} has a new disk, all replicas restored after {took:.3} s"
        );
        report.record("whole_again_s", rounded(took));
    }
    report.record("rounds", rounds);
    report.record("acknowledged_writes", ledger.acknowledged());
    kill::check(&checker, report);
    Ok(())
}

async fn replace(cluster: &mut Cluster, victim: usize) -> Result<f64> {
    let old = cluster.store_of(victim).await?;
    let other = cluster.nodes[(victim + 1) % 3].address().to_owned();
    let node = &mut cluster.nodes[victim];
    node.kill()?;
    for dir in &node.launch.stores {
        std::fs::remove_dir_all(dir)?;
    }
    // The node that created the cluster must join it too.
    node.launch.join = Some(other);
    let started = Instant::now();
    node.restart()?;
    node.wait_ready().await?;
    let new = newer_store(cluster, victim, old).await?;
    cluster.set_store(old, StoreAction::Remove).await?;
    loop {
        cluster.check_alive()?;
        let regions = cluster.regions().await?;
        let moved = regions
            .iter()
            .all(|one| one.region.peer_on(old).is_none() && one.region.peer_on(new).is_some());
        if moved {
            break;
        }
        ensure!(started.elapsed() < LIMIT, "store {old} was not replaced by {new}: {regions:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.wait_replicated(3, LIMIT).await?;
    Ok(started.elapsed().as_secs_f64())
}

async fn newer_store(cluster: &Cluster, node: usize, old: StoreId) -> Result<StoreId> {
    let started = Instant::now();
    loop {
        let store = cluster.store_of(node).await?;
        if store != old {
            return Ok(store);
        }
        ensure!(started.elapsed() < LIMIT, "the empty disk did not become a new store");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
