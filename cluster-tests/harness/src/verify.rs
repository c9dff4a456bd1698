//! Verification that all replicas are equal and hold every acknowledged write.

use crate::client::{Outcome, Session, SessionOptions};
use crate::cluster::Cluster;
use crate::cluster::control::{Known, POLL};
use crate::history::Ledger;
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1 as proto;
use stele_types::RegionKind;

const SETTLED_LIMIT: Duration = Duration::from_secs(30);
const SCAN_PAIRS: u32 = 500;

/// Waits for `replicas` of every region, then compares all replicas with each other and with the
/// ledger. The caller must have stopped all writers.
pub(crate) async fn everything(
    cluster: &mut Cluster,
    ledger: &Ledger,
    replicas: usize,
) -> Result<()> {
    cluster.wait_replicated(replicas, SETTLED_LIMIT).await?;
    for known in cluster.regions().await? {
        compare_checksums(cluster, &known)
            .await
            .with_context(|| format!("region {}", known.region.id))?;
    }
    for replica in 0..replicas {
        let found = all_pairs(cluster, replica).await?;
        ledger.compare(&found).with_context(|| format!("replica {replica}"))?;
    }
    Ok(())
}

async fn compare_checksums(cluster: &Cluster, known: &Known) -> Result<()> {
    let deadline = Instant::now() + SETTLED_LIMIT;
    loop {
        let mut checksums = Vec::new();
        for peer in &known.region.peers {
            let node = cluster.node_of(peer.store).await?;
            checksums.push(checksum(cluster, node, known, peer.store.0).await);
        }
        let checksums: Result<Vec<_>> = checksums.into_iter().collect();
        match checksums {
            Ok(checksums) => {
                let mut indexes = checksums.iter().map(|one| (one.applied_index, one.version));
                let first = indexes.next().context("a region without replicas")?;
                if indexes.all(|index| index == first) {
                    let content =
                        |one: &proto::LocalChecksumResponse| (one.checksum, one.pairs, one.bytes);
                    let same = checksums.windows(2).all(|two| content(&two[0]) == content(&two[1]));
                    ensure!(same, "replicas differ: {checksums:?}");
                    return Ok(());
                }
                // The region of the placement group is written continuously.
                let late = known.region.kind == RegionKind::System && Instant::now() > deadline;
                ensure!(
                    !late && Instant::now() < deadline,
                    "no common applied index: {checksums:?}"
                );
            }
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => {}
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn checksum(
    cluster: &Cluster,
    node: usize,
    known: &Known,
    store: u64,
) -> Result<proto::LocalChecksumResponse> {
    let request = proto::LocalChecksumRequest {
        region_id: known.region.id.0,
        store_id: store,
        // Clocks may differ by hours: what expires is left out.
        expires_after_s: u64::MAX,
        ..Default::default()
    };
    Ok(cluster.control(node)?.local_checksum(request).await?.into_inner())
}

/// Returns all pairs of the ledger, read from the given replica of each region.
async fn all_pairs(cluster: &Cluster, replica: usize) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>> {
    let options = SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    let deadline = Instant::now() + SETTLED_LIMIT;
    let end = b"ledger0";
    let mut from = crate::history::LEDGER_PREFIX.as_bytes().to_vec();
    let mut pairs = Vec::new();
    while from.as_slice() < &end[..] {
        let region_end = match session.route(&from).await {
            Ok(route) => route.region.end_key,
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => continue,
        };
        let to: &[u8] =
            if region_end.is_empty() || region_end[..] > end[..] { end } else { &region_end };
        match session.scan(&from, to, SCAN_PAIRS, false, Some(replica)).await {
            Outcome::Done(page) => {
                from = match page.last() {
                    Some((last, _)) if page.len() == SCAN_PAIRS as usize => {
                        [last, &b"\0"[..]].concat()
                    }
                    _ => to.to_vec(),
                };
                pairs.extend(page);
            }
            Outcome::Refused(error) | Outcome::Ambiguous(error) => {
                if Instant::now() > deadline {
                    bail!("replica {replica} cannot be read: {error}");
                }
                tokio::time::sleep(POLL).await;
            }
        }
    }
    Ok(pairs)
}
