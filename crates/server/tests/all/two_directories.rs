//! Nodes with two directories of which one does not open: the other one serves.

use crate::common::{config, get, start, until};
use std::path::{Path, PathBuf};
use stele_proto::stele::control::v1::ListStoresRequest;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_server::config::Config;
use stele_server::node::Node;
use tonic::transport::Endpoint;

struct Two {
    _root: tempfile::TempDir,
    dirs: [PathBuf; 2],
}

impl Two {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let two = Self { dirs: ["a", "b"].map(|name| root.path().join(name)), _root: root };
        let node = start(config(&two.dirs, &[])).await;
        assert_eq!(node.ready.stores.len(), 2);
        node.stop().await;
        two
    }

    fn second(&self) -> &Path {
        &self.dirs[1]
    }

    /// Moves the second directory away, as when its disk is missing.
    fn unmount(&self) -> PathBuf {
        let away = self.second().with_extension("away");
        std::fs::rename(self.second(), &away).unwrap();
        away
    }

    async fn start_with_one(&self) -> (Node, String) {
        let node = start(config(&self.dirs, &[])).await;
        assert_eq!(node.ready.stores.len(), 1, "the first directory serves");
        let address = node.ready.address.clone();
        let text = until(&address, "/readyz", |_, body| body.starts_with("2 of 2")).await;
        let (status, _) = get(&address, "/readyz").await;
        assert_eq!(status, 503, "{text}");
        assert_eq!(get(&address, "/healthz").await.0, 200, "one store serves");
        (node, text)
    }
}

async fn failed_stores(address: &str) -> Vec<u64> {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let answer = ControlClient::new(channel).list_stores(ListStoresRequest::default()).await;
    let stores = answer.map(|answer| answer.into_inner().stores).unwrap_or_default();
    let failed = stores.iter().filter_map(|store| store.stats.filter(|stats| stats.failed));
    failed.map(|stats| stats.id).collect()
}

async fn until_failed(address: &str, wanted: &[u64]) {
    let started = std::time::Instant::now();
    while failed_stores(address).await != wanted {
        assert!(started.elapsed() < crate::common::LIMIT, "{wanted:?} are not reported as failed");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_a_file_leaves_the_other_serving_and_its_store_failed_at_once() {
    let two = Two::new().await;
    two.unmount();
    std::fs::write(two.second(), b"not a directory").unwrap();
    let (node, text) = two.start_with_one().await;
    assert!(text.contains("store 2 does not serve: stat of "), "{text}");
    assert!(text.contains("Not a directory"), "{text}");
    assert!(text.contains(&format!("--replaced-disk {}", two.second().display())), "{text}");
    assert!(text.contains("stele ctl remove-store 2"), "{text}");
    until_failed(&node.ready.address, &[2]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_or_missing_directory_where_a_store_was_is_refused_until_the_disk_is_back() {
    let two = Two::new().await;
    let away = two.unmount();
    for is_mount_point in [false, true] {
        if is_mount_point {
            std::fs::create_dir(two.second()).unwrap();
        }
        let (node, text) = two.start_with_one().await;
        assert!(text.contains("holds no store, and store 2 was there: mount its disk"), "{text}");
        assert!(text.contains("--replaced-disk"), "{text}");
        until_failed(&node.ready.address, &[2]).await;
        node.stop().await;
    }
    assert_eq!(std::fs::read_dir(two.second()).unwrap().count(), 0, "nothing is created there");
    std::fs::remove_dir(two.second()).unwrap();
    std::fs::rename(away, two.second()).unwrap();
    let node = start(config(&two.dirs, &[])).await;
    assert_eq!(node.ready.stores.len(), 2);
    until(&node.ready.address, "/readyz", |status, _| status == 200).await;
    until_failed(&node.ready.address, &[]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_disk_becomes_a_new_store_and_the_old_one_stays_failed() {
    let two = Two::new().await;
    two.unmount();
    let replaced =
        Config { replaced_disks: vec![two.second().to_path_buf()], ..config(&two.dirs, &[]) };
    let node = start(replaced).await;
    let address = node.ready.address.clone();
    let text = until(&address, "/readyz", |status, _| status == 200).await;
    assert!(text.contains("store 2 does not serve: its disk was replaced"), "{text}");
    let has_two = |_: u16, body: &str| body.contains("\"store\":3");
    until(&address, "/status", has_two).await;
    until_failed(&address, &[2]).await;
    node.stop().await;
    let node = start(config(&two.dirs, &[])).await;
    let mut stores: Vec<u64> = node.ready.stores.iter().map(|store| store.0).collect();
    stores.sort_unstable();
    assert_eq!(stores, [1, 3], "the flag is needed once");
    until_failed(&node.ready.address, &[2]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_another_cluster_or_with_a_damaged_identity_leaves_the_other_serving() {
    let two = Two::new().await;
    let away = two.unmount();
    let other = start(config(&[two.second().to_path_buf()], &[])).await;
    other.stop().await;
    let (node, text) = two.start_with_one().await;
    assert!(text.contains("it holds store 1 of cluster "), "{text}");
    assert!(text.contains("store 2 does not serve: "), "{text}");
    until_failed(&node.ready.address, &[2]).await;
    node.stop().await;
    std::fs::remove_dir_all(two.second()).unwrap();
    std::fs::rename(away, two.second()).unwrap();
    std::fs::write(two.second().join("STORE"), b"stele store\nformat 1\n").unwrap();
    let (node, text) = two.start_with_one().await;
    assert!(text.contains("store 2 does not serve: corrupt data in "), "{text}");
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_no_longer_named_is_failed_and_a_damaged_list_of_members_stops_nothing() {
    let two = Two::new().await;
    std::fs::write(two.dirs[0].join("members.json"), b"{").unwrap();
    let node = start(config(&two.dirs, &[])).await;
    assert_eq!(node.ready.stores.len(), 2);
    node.stop().await;
    let node = start(config(&two.dirs[..1], &[])).await;
    let wanted = format!("store 2 does not serve: it was in {}", two.second().display());
    until(&node.ready.address, "/readyz", |_, body| body.contains(&wanted)).await;
    until_failed(&node.ready.address, &[2]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_which_no_directory_opens_does_not_start_and_names_each() {
    let two = Two::new().await;
    for dir in &two.dirs {
        std::fs::write(dir.join("STORE"), b"?").unwrap();
    }
    let error = Node::start(config(&two.dirs, &[])).await.err().expect("nothing opens");
    let text = error.to_string();
    for dir in &two.dirs {
        assert!(text.contains(&format!("{}: ", dir.display())), "{text}");
    }
    // A new directory beside a store that does not open bootstraps no cluster.
    std::fs::remove_dir_all(two.second()).unwrap();
    assert!(Node::start(config(&two.dirs, &[])).await.is_err());
    assert!(!two.second().exists());
}
