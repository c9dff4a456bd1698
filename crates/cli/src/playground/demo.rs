//! Automatic demonstration: data is written and read back, also while a node is down.

use super::actions::{execute, time};
use super::cluster::Cluster;
use super::prompt::PromptCommand;
use crate::terminal::print;
use bytes::Bytes;
use std::time::Instant;
use stele_client::{PutPair, ScanOptions, Verdict};
use stele_types::size::format_bytes;
use stele_types::{Error, KeyRange, RegionId, Result};

/// Number of pairs, and bytes of each value.
const PAIRS: usize = 2_000;
const VALUE_BYTES: usize = 4 << 10;
const PAIRS_DOWN: usize = 200;
/// Maximum number of rounds until all checksums are of the same index.
const CHECKSUM_ROUNDS_MAX: usize = 50;

/// Runs the demonstration; fails if any result is wrong.
pub(super) async fn run(cluster: &mut Cluster) -> Result<()> {
    load(cluster, 0..PAIRS).await?;
    read_back(cluster, PAIRS).await?;
    let nodes = cluster.nodes().list().len();
    if nodes >= 3 {
        let (_, store) = cluster.client.locate(key(0)).await?;
        let node = cluster.node_name(store);
        execute(cluster, PromptCommand::Kill { node: node.clone() }).await?;
        read_back(cluster, PAIRS).await?;
        load(cluster, PAIRS..PAIRS + PAIRS_DOWN).await?;
        execute(cluster, PromptCommand::Restart { node }).await?;
        read_back(cluster, PAIRS + PAIRS_DOWN).await?;
    }
    let replicas = compare_replicas(cluster).await?;
    let pairs = if nodes >= 3 { PAIRS + PAIRS_DOWN } else { PAIRS };
    print(&format!("ok: {pairs} pairs written and read back, {replicas} replicas identical\n"));
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
    print(&format!("loaded {count} pairs ({size}), durable on a majority  {}\n", time(started)));
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
        let text =
            format!("{right} of {count} pairs are as written; {} pairs were read", pairs.len());
        return Err(Error::Refused(text));
    }
    print(&format!("read {count} pairs back, all as written  {}\n", time(started)));
    Ok(())
}

/// Compares all replicas of all regions that hold the pairs; returns the number of replicas.
async fn compare_replicas(cluster: &mut Cluster) -> Result<usize> {
    let data = KeyRange::prefix(b"demo/");
    let rows = cluster.control.regions(&data, false).await?;
    let mut replicas = 0;
    for row in rows {
        replicas += compare(cluster, row.region.id).await?;
    }
    Ok(replicas)
}

async fn compare(cluster: &Cluster, region: RegionId) -> Result<usize> {
    let compared = cluster.control.compare_replicas(region, CHECKSUM_ROUNDS_MAX).await?;
    match compared.verdict {
        Verdict::Identical => Ok(compared.replicas.len()),
        Verdict::Different => Err(Error::Refused(format!("replicas of region {region} differ"))),
        Verdict::Moving => Err(Error::Busy(format!(
            "no common index of the replicas of region {region}: writes continue"
        ))),
    }
}
