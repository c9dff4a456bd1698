use super::three;
use crate::args::Setup;
use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::Cluster;
use crate::history::Ledger;
use crate::report::{Report, rounded};
use crate::verify;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::OperatorState;
use stele_types::{Prng, RegionId, RegionKind, StoreId};

const NODES: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit for the refusal of an impossible operator.
const REFUSED_WITHIN_S: f64 = 5.0;
const ALONE: &[u8] = b"zz/alone";

/// A region is split, its parts change leaders and stores, and all are merged into one again. After
/// each step all pairs must be present and all replicas equal.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let mut prng = Prng::new(setup.seed);
    let mut spec = three(setup, &[]);
    spec.nodes = NODES;
    let mut cluster = Cluster::start(spec).await?;
    // Only manual operators may change regions here.
    cluster.set_option("balance", "0").await?;
    let pairs = pairs(&mut prng, setup.rounds(2_000, 400));
    write(&cluster, &pairs).await?;
    for round in 0..setup.rounds(3, 1).min(3) {
        let started = Instant::now();
        split(&mut cluster, &pairs, report).await?;
        mix(&mut cluster, &pairs, &mut prng).await?;
        merge(&mut cluster, &pairs).await?;
        let took = started.elapsed().as_secs_f64();
        println!("round {round}: split, moved and merged in {took:.3} s");
        report.record("round_s", rounded(took));
    }
    report.record("pairs", pairs.len());
    Ok(())
}

/// Returns keys in order, with values of many sizes.
fn pairs(prng: &mut Prng, count: u64) -> Vec<(Bytes, Bytes)> {
    let value = |prng: &mut Prng, number: u64| {
        let length = 1 + prng.below(8 << 10) as usize;
        let byte = (prng.draw() ^ number) as u8;
        Bytes::from(vec![byte; length])
    };
    let mut pairs: Vec<(Bytes, Bytes)> = (0..count)
        .map(|number| (format!("shape/{number:06}").into(), value(prng, number)))
        .collect();
    pairs.push((Bytes::from_static(ALONE), Bytes::from_static(b"the only one")));
    pairs
}

fn session(cluster: &Cluster) -> Session {
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
    Session::new(Arc::clone(&cluster.channels), options)
}

async fn write(cluster: &Cluster, pairs: &[(Bytes, Bytes)]) -> Result<()> {
    let mut session = session(cluster);
    let deadline = Instant::now() + LIMIT;
    for (key, value) in pairs {
        while !session.put(key, value.clone()).await.is_done() {
            ensure!(Instant::now() < deadline, "not written within {LIMIT:?}");
        }
    }
    Ok(())
}

/// Fails unless each pair is present and all replicas of each region are equal.
async fn check(cluster: &mut Cluster, pairs: &[(Bytes, Bytes)], after: &str) -> Result<()> {
    let mut session = session(cluster);
    let deadline = Instant::now() + LIMIT;
    for (key, value) in pairs {
        loop {
            match session.get(key, None).await {
                Outcome::Done(Some(found)) if found == value => break,
                Outcome::Done(other) => {
                    let length = other.map(|value| value.len());
                    bail!("after {after}: {key:?} holds {length:?} bytes, not {}", value.len());
                }
                other => ensure!(Instant::now() < deadline, "after {after}: {key:?}: {other:?}"),
            }
        }
    }
    verify::everything(cluster, &Ledger::new(0), 3).await.with_context(|| format!("after {after}"))
}

async fn users(cluster: &Cluster) -> Result<Vec<(RegionId, Vec<StoreId>)>> {
    let regions = cluster.regions().await?.into_iter();
    let users = regions.filter(|one| one.region.kind == RegionKind::Data);
    Ok(users
        .map(|one| (one.region.id, one.region.peers.iter().map(|peer| peer.store).collect()))
        .collect())
}

/// Splits at keys, in half, and where a region of one key cannot be split.
async fn split(cluster: &mut Cluster, pairs: &[(Bytes, Bytes)], report: &mut Report) -> Result<()> {
    let whole = cluster.region_of(ALONE).await?.region.id;
    let at = pairs[pairs.len() / 3].0.clone();
    cluster.split(whole, vec![at.clone(), Bytes::from_static(b"zz/")]).await?;
    check(cluster, pairs, "a split at keys").await?;
    let largest = cluster.region_of(&at).await?.region.id;
    cluster.split(largest, Vec::new()).await?;
    check(cluster, pairs, "a split in half").await?;
    let alone = cluster.region_of(ALONE).await?.region.id;
    let started = Instant::now();
    let ended = cluster.try_split(alone, Vec::new()).await?;
    let took = started.elapsed().as_secs_f64();
    let is_refused = ended.state == OperatorState::Refused as i32;
    report.require(is_refused, format!("a region of one key must not be split: {ended:?}"));
    report.require(
        took < REFUSED_WITHIN_S,
        format!("an impossible split must be refused promptly: {took:.3} s"),
    );
    report.record("refused_s", rounded(took));
    Ok(())
}

/// Gives each region another leader, and a replica on the store that has none.
async fn mix(cluster: &mut Cluster, pairs: &[(Bytes, Bytes)], prng: &mut Prng) -> Result<()> {
    for (region, held) in users(cluster).await? {
        let to = held[prng.below(held.len() as u64) as usize];
        cluster.transfer(region, to).await?;
        let free: Vec<StoreId> =
            cluster.stores().await?.into_keys().filter(|store| !held.contains(store)).collect();
        let free = *free.first().with_context(|| format!("region {region} is on every store"))?;
        // Sometimes this is the leader's store.
        let from = held[prng.below(held.len() as u64) as usize];
        cluster.move_replica(region, from, free).await?;
    }
    cluster.wait_replicated(3, LIMIT).await?;
    let moved = users(cluster).await?;
    println!("moved: {moved:?}");
    check(cluster, pairs, "transfers and moves").await
}

/// Merges each region into its left neighbour, until one is left.
async fn merge(cluster: &mut Cluster, pairs: &[(Bytes, Bytes)]) -> Result<()> {
    loop {
        let regions = users(cluster).await?;
        let [first, second, ..] = &regions[..] else { break };
        cluster.merge(second.0, first.0).await?;
        let before = regions.len();
        let deadline = Instant::now() + LIMIT;
        while users(cluster).await?.len() >= before {
            ensure!(Instant::now() < deadline, "region {} still exists", second.0);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        check(cluster, pairs, "a merge").await?;
    }
    Ok(())
}
