//! Directories that are moved away, or lose their lock, while their node runs.

use crate::addresses::until_voters;
use crate::common::{LIMIT, config, get, start, until};
use std::path::PathBuf;
use std::time::Instant;
use stele_proto::stele::control::v1::ListStoresRequest;
use stele_proto::stele::control::v1::control_client::ControlClient;
use tonic::transport::Endpoint;

/// Waits until `wanted` accepts whether a store has failed, and how many replicas it has.
async fn until_store(address: &str, id: u64, wanted: impl Fn(bool, u64) -> bool) {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let mut client = ControlClient::new(channel);
    let started = Instant::now();
    loop {
        let answer = client.list_stores(ListStoresRequest::default()).await;
        let stores = answer.map(|answer| answer.into_inner().stores).unwrap_or_default();
        let stats = stores.iter().filter_map(|store| store.stats).find(|stats| stats.id == id);
        if stats.is_some_and(|stats| wanted(stats.failed, stats.region_count)) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{stores:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_which_the_directory_is_moved_away_stops_and_its_replicas_are_rebuilt() {
    let root = tempfile::tempdir().unwrap();
    let dir = |name: &str| -> PathBuf { root.path().join(name) };
    let first = start(config(&[dir("a"), dir("b")], &[])).await;
    let address = first.ready.address.clone();
    let join = [address.clone()];
    let others = [start(config(&[dir("c")], &join)).await, start(config(&[dir("d")], &join)).await];
    // Of fewer voters too few would be left.
    until_voters(&address, 3).await;
    // The first store bootstrapped the cluster and has its regions; the second is empty.
    until(&address, "/readyz", |status, _| status == 200).await;
    std::fs::rename(dir("a"), dir("away")).unwrap();
    let moved = Instant::now();
    let text = until(&address, "/readyz", |_, body| body.contains("store 1 has stopped")).await;
    assert!(moved.elapsed().as_secs() < 10, "{:?}", moved.elapsed());
    assert!(text.contains("moved away or deleted while the store ran"), "{text}");
    assert!(text.contains("move it back") && text.contains("store 2 serves"), "{text}");
    let elsewhere = others[0].ready.address.clone();
    until_store(&elsewhere, 1, |failed, regions| failed && regions == 0).await;
    until_store(&elsewhere, 2, |_, regions| regions == 2).await;
    // Without its lock another process could open the directory.
    std::fs::remove_file(dir("b").join("LOCK")).unwrap();
    let text = until(&address, "/readyz", |_, body| body.contains("store 2 has stopped")).await;
    assert!(text.contains("its `LOCK` was moved away or deleted"), "{text}");
    for node in others.into_iter().chain([first]) {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_store_states_its_file_system() {
    let root = tempfile::tempdir().unwrap();
    let node = start(config(&[root.path().join("a")], &[])).await;
    let address = node.ready.address.clone();
    until(&address, "/readyz", |status, _| status == 200).await;
    let (_, body) = get(&address, "/status").await;
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    let of = &status["stores"][0]["file_system"];
    assert!(of["name"].as_str().is_some_and(|name| name != "unknown"), "{body}");
    assert!(["direct", "buffered"].contains(&of["mode"].as_str().unwrap()), "{body}");
    assert!(of["block_bytes"].as_u64().is_some_and(|bytes| bytes >= 512), "{body}");
    assert!(of["warnings"].is_array() && of["can_reserve_space"].is_boolean(), "{body}");
    let (_, metrics) = get(&address, "/metrics").await;
    let line = format!("\nstele_file_system{{store=\"1\",name={}", of["name"]);
    assert_eq!(metrics.matches(&line).count(), 1, "{metrics}");
    assert_eq!(metrics.matches("\nstele_file_system_warnings{store=\"1\"} ").count(), 1);
    node.stop().await;
}
