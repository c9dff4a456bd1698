use super::{kill, three};
use crate::args::{Setup, need};
use crate::cluster::Cluster;
use crate::history::{Checker, Ledger, Load, LoadOptions, PREFIX_SPLITS};
use crate::report::{Report, rounded};
use crate::verify;
use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::StoreAction;
use stele_types::{Prng, StoreId};

const LIMIT: Duration = Duration::from_secs(120);

/// Two nodes join and receive their share of the replicas; two of the first three are then removed.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let mut checker = Checker::new(need(&setup.programs.porcupine, "--porcupine")?, setup.work());
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let mut ledger = Ledger::new(2);
    // Shares then follow from the number of stores alone, whatever else writes to the device.
    cluster.set_option("placement_mode", "0").await?;
    let whole = cluster.region_of(b"a").await?.region.id;
    let keys: Vec<Bytes> = PREFIX_SPLITS.iter().map(|key| Bytes::from_static(key)).collect();
    cluster.split(whole, keys).await?;
    let options = LoadOptions { writers: 2, ..LoadOptions::default() };
    let nodes = cluster.addresses();
    let load = Load::start(&cluster.channels, &nodes, &options, "resize", prng.draw(), &ledger);
    let started = Instant::now();
    for _ in 0..2 {
        let mut launch = cluster.next_launch()?;
        // A node may join through any other.
        launch.join = Some(nodes[prng.below(3) as usize].clone());
        cluster.add(launch).await?;
    }
    let counts = spread(&mut cluster).await?;
    let grown = started.elapsed().as_secs_f64();
    println!("five nodes after {grown:.3} s: replicas by store {counts:?}");

    let started = Instant::now();
    let keep = prng.below(3) as usize;
    for node in (0..3).filter(|node| *node != keep) {
        remove(&mut cluster, node).await?;
    }
    let shrunk = started.elapsed().as_secs_f64();
    let recorded = load.stop(&mut ledger).await?;
    println!("{} of {} operations took effect", recorded.done, recorded.records.len());
    checker.check("resize", &recorded).await?;
    verify::everything(&mut cluster, &ledger, 3).await?;
    report.record("grown_s", rounded(grown));
    report.record("shrunk_s", rounded(shrunk));
    report.record("replicas_at_five", counts.values().copied().collect::<Vec<u64>>());
    report.record("acknowledged_writes", ledger.acknowledged());
    kill::check(&checker, report);
    Ok(())
}

/// Waits until each of the five stores has a fair share of the replicas.
async fn spread(cluster: &mut Cluster) -> Result<BTreeMap<StoreId, u64>> {
    let started = Instant::now();
    loop {
        cluster.check_alive()?;
        let regions = cluster.regions().await?;
        let mut counts: BTreeMap<StoreId, u64> =
            cluster.stores().await?.keys().map(|store| (*store, 0)).collect();
        for peer in regions.iter().flat_map(|one| &one.region.peers) {
            *counts.entry(peer.store).or_default() += 1;
        }
        let least = counts.values().copied().min().unwrap_or_default();
        let fair = regions.len() as u64 * 3 / counts.len() as u64;
        if counts.len() == 5 && least + 2 >= fair && least > 0 {
            cluster.wait_replicated(3, LIMIT).await?;
            return Ok(counts);
        }
        if started.elapsed() >= LIMIT {
            let speeds: Vec<u64> =
                cluster.stores().await?.values().map(|store| store.speed_per_second).collect();
            bail!("not balanced after {LIMIT:?}: {counts:?}, operations a second {speeds:?}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Removes the store of a node, waits until it is empty, and stops the node.
async fn remove(cluster: &mut Cluster, node: usize) -> Result<()> {
    let store = cluster.store_of(node).await?;
    cluster.set_store(store, StoreAction::Remove).await?;
    let started = Instant::now();
    while cluster.regions().await?.iter().any(|one| one.region.peer_on(store).is_some()) {
        ensure!(started.elapsed() < LIMIT, "store {store} is not empty after {LIMIT:?}");
        cluster.check_alive()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.wait_replicated(3, LIMIT).await?;
    cluster.nodes[node].stop(Duration::from_secs(20)).await
}
