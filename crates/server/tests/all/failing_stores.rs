//! Stores that fail or hang while their node runs.

use crate::common::{LIMIT, config, get, start, until};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{ListStoresRequest, StoreInfo};
use stele_server::config::Config;
use stele_types::{Error, StoreId};
use tonic::transport::Endpoint;

/// Returns the stores of the cluster, once the node at `address` answers or knows the leader.
async fn stores(address: &str, wanted: impl Fn(&[StoreInfo]) -> bool) -> Vec<StoreInfo> {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let mut client = ControlClient::new(channel);
    let started = Instant::now();
    loop {
        let answer = client.list_stores(ListStoresRequest::default()).await;
        match answer.map(|answer| answer.into_inner().stores) {
            Ok(stores) if wanted(&stores) => return stores,
            other => assert!(started.elapsed() < LIMIT, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

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
    let (failing, staying) = (StoreId(1), 2);
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.fail_store(failing, Error::invalid("the device failed"));
    // Without a word of the failure, the followers would hibernate on; the node itself reports to the
    // new leader.
    let is_repaired = |stores: &[StoreInfo]| {
        let failed = |store: &StoreInfo| store.stats.is_some_and(|it| it.id == 1 && it.failed);
        stores.iter().any(failed) && regions(stores, 1) == 0 && regions(stores, staying) == 2
    };
    stores(&address, is_repaired).await;
    let (status, text) = get(&address, "/healthz").await;
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("store 1 failed ") && text.contains("the device failed"), "{text}");
    let text = until(&address, "/readyz", |_, body| body.contains("store 2 serves")).await;
    assert!(text.contains("store 1 has stopped: ") && text.contains("the device failed"), "{text}");
    assert_eq!(get(&address, "/readyz").await.0, 503);
    for node in [first, second, third] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_does_not_keep_its_node_from_reporting_and_answering_for_the_other() {
    const HANGS: Duration = Duration::from_secs(8);
    let root = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| root.path().join(name));
    let node = start(config(&dirs, &[])).await;
    let address = node.ready.address.clone();
    let age_ms = |stores: &[StoreInfo], id: u64| {
        let of = |store: &&StoreInfo| store.stats.is_some_and(|stats| stats.id == id);
        stores.iter().find(of).map_or(-1, |store| store.heartbeat_age_ms)
    };
    stores(&address, |all| [1, 2].iter().all(|id| age_ms(all, *id) >= 0)).await;
    // The second store leads nothing: the placement group goes on.
    node.hang_store(StoreId(2), HANGS);
    let began = Instant::now();
    while began.elapsed() < HANGS / 2 {
        let all = stores(&address, |all| !all.is_empty()).await;
        for id in [1, 2] {
            let age_ms = age_ms(&all, id);
            assert!((0..3_000).contains(&age_ms), "store {id} was last heard {age_ms} ms ago");
        }
        let asked = Instant::now();
        for path in ["/status", "/metrics", "/readyz"] {
            assert_eq!(get(&address, path).await.0, 200);
        }
        assert!(asked.elapsed() < HANGS / 4, "{:?}", asked.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    node.stop().await;
}
