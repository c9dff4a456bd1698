//! A demonstration that needs nobody: data goes in and comes back, also while a node is down.

use super::actions::{carry_out, time};
use super::cluster::Cluster;
use super::prompt::Command;
use crate::output::say;
use bytes::Bytes;
use std::time::Instant;
use stele_client::{PutPair, ScanOptions};
use stele_types::size::format_bytes;
use stele_types::{Error, KeyRange, RegionId, Result};

/// Pairs, and bytes of each value.
const PAIRS: usize = 2_000;
const VALUE_BYTES: usize = 4 << 10;
/// Pairs written while a node is down.
const PAIRS_DOWN: usize = 200;
/// Rounds until all replicas are summed at the same index.
const SUM_ROUNDS_MAX: usize = 50;

/// Runs it; an error if anything is not as it should be.
pub async fn run(cluster: &mut Cluster) -> Result<()> {
    load(cluster, 0..PAIRS).await?;
    read_back(cluster, PAIRS).await?;
    let nodes = cluster.nodes().list().len();
    if nodes >= 3 {
        let (_, store) = cluster.client.locate(key(0)).await?;
        let node = cluster.node_name(store);
        carry_out(cluster, Command::Kill { node: node.clone() }).await?;
        read_back(cluster, PAIRS).await?;
        load(cluster, PAIRS..PAIRS + PAIRS_DOWN).await?;
        carry_out(cluster, Command::Restart { node }).await?;
        read_back(cluster, PAIRS + PAIRS_DOWN).await?;
    }
    let replicas = identical(cluster).await?;
    let pairs = if nodes >= 3 { PAIRS + PAIRS_DOWN } else { PAIRS };
    say(&format!("ok: {pairs} pairs written and read back, {replicas} replicas identical\n"));
    Ok(())
}

fn key(number: usize) -> Bytes {
    Bytes::from(format!("demo/{number:06}"))
}

fn value(number: usize) -> Bytes {
    let word = format!("value {number} ");
    Bytes::from(word.bytes().cycle().take(VALUE_BYTES).collect::<Vec<u8>>())
}

async fn load(cluster: &Cluster, numbers: std::ops::Range<usize>) -> Result<()> {
    let started = Instant::now();
    let count = numbers.len();
    let pairs = numbers.map(|number| PutPair::new(key(number), value(number))).collect();
    cluster.client.batch_put(pairs).await?;
    let size = format_bytes((count * VALUE_BYTES) as u64);
    say(&format!("loaded {count} pairs ({size}), durable on a majority  {}\n", time(started)));
    Ok(())
}

async fn read_back(cluster: &Cluster, count: usize) -> Result<()> {
    let started = Instant::now();
    let scan = cluster.client.scan(KeyRange::prefix(b"demo/"), ScanOptions::default());
    let pairs = scan.collect().await?;
    let is_same = |(number, pair): (usize, &stele_client::Pair)| {
        pair.key == key(number) && pair.value == value(number)
    };
    let right = pairs.iter().enumerate().filter(|pair| is_same(*pair)).count();
    if right != count || pairs.len() != count {
        let text = format!("{right} of {count} pairs came back as written, {} in all", pairs.len());
        return Err(Error::Refused(text));
    }
    say(&format!("read {count} pairs back, all as written  {}\n", time(started)));
    Ok(())
}

/// Compares all replicas of all regions that hold the pairs; returns how many there are.
async fn identical(cluster: &mut Cluster) -> Result<usize> {
    let data = KeyRange::prefix(b"demo/");
    let rows = cluster.control.regions(&data, false).await?;
    let mut replicas = 0;
    for row in rows {
        let stores: Vec<_> = row.region.peers.iter().map(|peer| peer.store).collect();
        replicas += stores.len();
        compare(cluster, row.region.id, &stores).await?;
    }
    Ok(replicas)
}

async fn compare(
    cluster: &Cluster,
    region: RegionId,
    stores: &[stele_types::StoreId],
) -> Result<()> {
    let mut index = 0;
    for _ in 0..SUM_ROUNDS_MAX {
        let mut sums = Vec::new();
        for store in stores {
            sums.push(cluster.control.local_checksum(region, *store, index).await?);
        }
        index = sums.iter().map(|sum| sum.applied_index).max().unwrap_or(0);
        if sums.iter().any(|sum| sum.applied_index != index) {
            continue;
        }
        let first = sums.first().map(|sum| (sum.checksum, sum.pairs));
        if sums.iter().all(|sum| Some((sum.checksum, sum.pairs)) == first) {
            return Ok(());
        }
        return Err(Error::Refused(format!("replicas of region {region} differ")));
    }
    Err(Error::Busy(format!("writes to region {region} go on")))
}
