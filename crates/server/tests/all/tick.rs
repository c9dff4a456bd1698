//! Tests of whole nodes and the tick of their cluster.

use crate::common::{config, start, until};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{Options, Replay, Store};
use stele_node::start::bootstrap;
use stele_placement::Bootstrap;
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::ClusterId;
use stele_vfs::{RealVfs, SystemClock};

/// Returns the configuration of a node with this directory; 0: that of the cluster.
fn with_tick(dir: &Path, join: &[&Node], tick_ms: u64) -> Config {
    let join: Vec<String> = join.iter().map(|node| node.ready.address.clone()).collect();
    Config { tick_ms, ..config(&[dir.to_path_buf()], &join) }
}

async fn refusal(config: Config) -> String {
    Node::start(config).await.err().expect("another tick").to_string()
}

/// Waits until the node reports this tick.
async fn has_tick(node: &Node, millis: u64) {
    let line = format!("\"tick_ms\":{millis},");
    let body = until(&node.ready.address, "/status", |status, _| status == 200).await;
    assert!(body.contains(&line), "{body}");
}

/// Makes the directory that of the first store of a cluster of an earlier version.
fn of_an_earlier_version(at: &Path) -> PathBuf {
    let dir = at.join("earlier");
    let (vfs, clock) = (Arc::new(RealVfs::new()), Arc::new(SystemClock::new()));
    let (store, _) = Store::open(vfs, clock, &dir, Options::default(), Replay::Committed).unwrap();
    let store = Arc::new(store);
    let address = "127.0.0.1:1".to_owned();
    let plan = Bootstrap { cluster: ClusterId(7), address, capacities_bytes: vec![1 << 40] };
    bootstrap(std::slice::from_ref(&store), &plan, None).unwrap();
    store.close().unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_has_the_short_tick_on_every_node_and_keeps_it() {
    let at = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| at.path().join(name));
    let first = start(with_tick(&a, &[], 0)).await;
    until(&first.ready.address, "/readyz", |status, _| status == 200).await;
    let second = start(with_tick(&b, &[&first], 0)).await;
    until(&second.ready.address, "/readyz", |_, body| body.starts_with("2 of 2")).await;
    has_tick(&first, 20).await;
    has_tick(&second, 20).await;
    let text = refusal(with_tick(&c, &[&first], 50)).await;
    assert!(text.contains("has tick_ms = 20") && text.contains("has tick_ms = 50"), "{text}");
    assert!(text.contains("joins without tick_ms, and takes the tick of the cluster"), "{text}");
    second.stop().await;
    let text = refusal(with_tick(&b, &[&first], 50)).await;
    assert!(text.contains("leave tick_ms out, or set it to 20"), "{text}");
    for tick_ms in [0, 20] {
        let second = start(with_tick(&b, &[&first], tick_ms)).await;
        until(&second.ready.address, "/readyz", |_, body| body.starts_with("2 of 2")).await;
        has_tick(&second, 20).await;
        second.stop().await;
    }
    first.stop().await;
    let text = refusal(with_tick(&a, &[], 10)).await;
    assert!(text.contains("the cluster of this node has a tick of 20 ms"), "{text}");
    let first = start(with_tick(&a, &[], 0)).await;
    has_tick(&first, 20).await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_cluster_has_the_tick_that_its_first_node_states() {
    let at = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| at.path().join(name));
    let first = start(with_tick(&a, &[], 40)).await;
    let second = start(with_tick(&b, &[&first], 0)).await;
    has_tick(&second, 40).await;
    second.stop().await;
    first.stop().await;
    // Directories that are added later record it too.
    let two = Config { stores: vec![a, c.clone()], ..with_tick(&b, &[], 0) };
    let first = start(two).await;
    let has_two = |_: u16, body: &str| {
        let status: serde_json::Value = serde_json::from_str(body).unwrap();
        status["stores"].as_array().is_some_and(|stores| stores.len() == 2)
    };
    until(&first.ready.address, "/status", has_two).await;
    first.stop().await;
    let text = refusal(with_tick(&c, &[], 20)).await;
    assert!(text.contains("has a tick of 40 ms"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_an_earlier_version_keeps_its_tick_and_the_setting_of_each_node() {
    let at = tempfile::tempdir().unwrap();
    let (a, b) = (of_an_earlier_version(at.path()), at.path().join("b"));
    let first = start(with_tick(&a, &[], 0)).await;
    has_tick(&first, 50).await;
    let second = start(with_tick(&b, &[&first], 0)).await;
    until(&second.ready.address, "/readyz", |_, body| body.starts_with("2 of 2")).await;
    has_tick(&second, 50).await;
    // The first store still records none: as before, its node has the tick that it states, and the
    // others refuse it.
    let address = first.ready.address.clone();
    first.stop().await;
    let other = Config { listen: address, ..with_tick(&a, &[], 30) };
    let first = start(other).await;
    has_tick(&first, 30).await;
    let is_refused = |_: u16, body: &str| {
        let refused = "stele_transport_closed_total{reason=\"other_tick\"} ";
        let count = body.lines().find_map(|line| line.strip_prefix(refused));
        count.is_some_and(|count| count.parse::<u64>().unwrap() > 0)
    };
    until(&first.ready.address, "/metrics", is_refused).await;
    until(&second.ready.address, "/metrics", is_refused).await;
    second.stop().await;
    first.stop().await;
    let text = refusal(with_tick(&b, &[], 20)).await;
    assert!(text.contains("has a tick of 50 ms"), "{text}");
}
