//! A copy of a node's directory that runs beside the original.

use crate::common::{LIMIT, config, start, until};
use std::path::Path;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::ListStoresRequest;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_server::config::Config;
use tonic::transport::{Channel, Endpoint};

fn control(address: &str) -> ControlClient<Channel> {
    ControlClient::new(Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy())
}

/// Waits until both regions have a replica on each of two nodes.
async fn until_replicated(address: &str) {
    let replicas = "stele_regions{store=\"2\",role=\"replica\"} 2";
    let started = Instant::now();
    until(address, "/metrics", |_, body| body.lines().any(|line| line == replicas)).await;
    assert!(started.elapsed() < LIMIT);
    tokio::time::sleep(Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_directory_that_runs_beside_it_is_heard_by_no_node() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "copy"].map(|name| dir.path().join(name));
    let first = start(config(&dirs[..1], &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs[1..2], &join)).await;
    let at_second = second.ready.address.clone();
    until_replicated(&at_second).await;
    second.stop().await;
    copy_dir(&dirs[1], &dirs[2]);
    let second = start(Config { listen: at_second.clone(), ..config(&dirs[1..2], &join) }).await;
    until(&at_second, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    let copy = start(config(&dirs[2..], &join)).await;
    let refused = |_: u16, body: &str| {
        let name = "stele_transport_closed_total{reason=\"copied_directory\"} ";
        let count = body.lines().find_map(|line| line.strip_prefix(name));
        count.is_some_and(|count| count.parse::<u64>().unwrap() > 0)
    };
    until(&copy.ready.address, "/metrics", refused).await;
    // The placement group knows the store where it was, and the node goes on.
    let listed = control(&join[0]).list_stores(ListStoresRequest::default()).await.unwrap();
    let stores = listed.into_inner().stores;
    let address = stores.iter().find(|it| it.stats.unwrap().id == 2).map(|it| &it.address);
    assert_eq!(address, Some(&at_second));
    until(&at_second, "/readyz", |status, _| status == 200).await;
    for node in [copy, second, first] {
        node.stop().await;
    }
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}
