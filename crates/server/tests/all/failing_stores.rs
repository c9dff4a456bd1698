//! Stores that fail while their node runs.

use crate::common::{config, get, start, stores, until};
use std::path::PathBuf;
use std::time::Duration;
use stele_proto::stele::control::v1::StoreInfo;
use stele_server::config::Config;

fn regions(stores: &[StoreInfo], store: u64) -> u64 {
    let stats = stores.iter().filter_map(|store| store.stats);
    stats.filter(|stats| stats.id == store).map(|stats| stats.region_count).sum()
}

/// The first node has two stores. The one that leads region 1 fails while the regions hibernate.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_leads_nothing_its_regions_elect_and_its_node_goes_on_with_the_other() {
    let root = tempfile::tempdir().unwrap();
    let dir = |name: &str| -> PathBuf { root.path().join(name) };
    let quiet = |dirs: &[PathBuf], join: &[String]| Config {
        hibernate_after_ms: 300,
        ..config(dirs, join)
    };
    let first = start(quiet(&[dir("a"), dir("b")], &[])).await;
    let address = first.ready.address.clone();
    let join = [address.clone()];
    let second = start(quiet(&[dir("c")], &join)).await;
    let third = start(quiet(&[dir("d")], &join)).await;
    let others = [second.ready.stores[0].0, third.ready.stores[0].0];
    let is_spread = |stores: &[StoreInfo]| others.iter().all(|id| regions(stores, *id) == 2);
    stores(&address, is_spread).await;
    // The first store bootstrapped the cluster and leads the placement group.
    let staying = 2;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Its directory is gone, as that of a device that failed.
    std::fs::rename(dir("a"), dir("away")).unwrap();
    // Without a word of the failure, the followers would hibernate on; the node itself reports to the
    // new leader.
    let is_repaired = |stores: &[StoreInfo]| {
        let failed = |store: &StoreInfo| store.stats.is_some_and(|it| it.id == 1 && it.failed);
        stores.iter().any(failed) && regions(stores, 1) == 0 && regions(stores, staying) == 2
    };
    stores(&address, is_repaired).await;
    let (status, text) = get(&address, "/healthz").await;
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("store 1 failed ") && text.contains("moved away"), "{text}");
    let text = until(&address, "/readyz", |_, body| body.contains("store 2 serves")).await;
    assert!(text.contains("store 1 has stopped: ") && text.contains("moved away"), "{text}");
    assert_eq!(get(&address, "/readyz").await.0, 503);
    for node in [first, second, third] {
        node.stop().await;
    }
}
