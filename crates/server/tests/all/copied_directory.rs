//! Copies of a node's directory: beside the original, instead of it, and with other stores.

use crate::common::{LIMIT, config, get, start, until};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use stele_proto::pdpb::GetRegionRequest;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{KeepRunRequest, ListStoresRequest, RequestHeader};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_server::members;
use stele_server::node::Node;
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

/// Returns the configuration of a node with directories that the operator says were moved.
fn moved(dirs: &[PathBuf], join: &[String]) -> Config {
    Config { moved_directories: dirs.to_vec(), ..config(dirs, join) }
}

/// Returns the address that the placement group knows for a store, and whether the store has failed.
async fn store_at(address: &str, id: u64) -> Option<(String, bool)> {
    let listed = control(address).list_stores(ListStoresRequest::default()).await.ok()?;
    let stores = listed.into_inner().stores;
    let found = stores.iter().find(|it| it.stats.is_some_and(|stats| stats.id == id))?;
    Some((found.address.clone(), found.stats.is_some_and(|stats| stats.failed)))
}

/// Waits until another node has refused a store of this one for its directory.
async fn until_refused(node: &Node) {
    let name = "stele_transport_closed_total{reason=\"copied_directory\"} ";
    let refused = |_: u16, body: &str| {
        let count = body.lines().find_map(|line| line.strip_prefix(name));
        count.is_some_and(|count| count.parse::<u64>().unwrap() > 0)
    };
    until(&node.ready.address, "/metrics", refused).await;
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
    copy_dir(&dirs[1], &dirs[2]);
    let Err(error) = Node::start(config(&dirs[2..], &join)).await else {
        panic!("a directory at another place starts without a word of the operator");
    };
    assert!(error.to_string().contains("--moved-directory"), "{error}");
    let copy = start(moved(&dirs[2..], &join)).await;
    until_refused(&copy).await;
    // The placement group knows the store where it was, and the node goes on.
    assert_eq!(store_at(&join[0], 2).await, Some((at_second.clone(), false)));
    until(&at_second, "/readyz", |status, _| status == 200).await;
    for node in [copy, second, first] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_copy_displaces_no_running_original_and_no_acknowledged_write_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c", "copy"].map(|name| dir.path().join(name));
    let mut nodes = vec![start(config(&dirs[..1], &[])).await];
    let join = [nodes[0].ready.address.clone()];
    for at in 1..3 {
        nodes.push(start(config(&dirs[at..at + 1], &join)).await);
    }
    let addresses: Vec<_> = nodes.iter().map(|node| node.ready.address.clone()).collect();
    put(&addresses, "before").await;
    let voters = "stele_regions{store=\"3\",role=\"replica\"} 2";
    until(&addresses[2], "/metrics", |_, body| body.lines().any(|line| line == voters)).await;
    // It becomes a voter.
    tokio::time::sleep(Duration::from_secs(1)).await;
    nodes.remove(1).stop().await;
    let c = nodes.pop().unwrap();
    copy_dir(&dirs[2], &dirs[3]);
    let keys: Vec<_> = (0..50).map(|number| format!("key {number}")).collect();
    for key in &keys {
        put(&addresses, key).await;
    }
    nodes.pop().unwrap().stop().await;
    // The copy knows A, B and C; it joins before B is back.
    let copy = start(moved(&dirs[3..], &addresses[1..])).await;
    let b = start(Config { listen: addresses[1].clone(), ..config(&dirs[1..2], &addresses[2..]) })
        .await;
    until_refused(&copy).await;
    for key in keys.iter().map(String::as_str).chain(["before"]) {
        assert_eq!(get_key(&addresses, key).await.as_deref(), Some(key), "lost");
    }
    until(&c.ready.address, "/healthz", |status, _| status == 200).await;
    for node in [copy, b, c] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_directory_neither_silences_its_node_nor_fails_the_stores_of_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "a2", "b", "copy"].map(|name| dir.path().join(name));
    let first = start(config(&dirs[..2], &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs[2..3], &join)).await;
    let until_listed = async |id, wanted: &str| {
        let started = Instant::now();
        while store_at(&join[0], id).await != Some((wanted.to_owned(), false)) {
            assert!(started.elapsed() < LIMIT, "store {id}: {:?}", store_at(&join[0], id).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    until_listed(3, &second.ready.address).await;
    second.stop().await;
    copy_dir(&dirs[1], &dirs[3]);
    // The original's list was written more often than that of the node with the copy.
    let mut known = members::read(&dirs[3]).unwrap().unwrap();
    known.write += 1_000;
    members::write(&dirs[3], &known).unwrap();
    // It has the sound store 3 and the copy of store 2, and another address.
    let config = Config { moved_directories: dirs[3..].to_vec(), ..config(&dirs[2..], &join) };
    let second = start(config).await;
    until_listed(3, &second.ready.address).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    for id in [1, 2] {
        assert_eq!(store_at(&join[0], id).await, Some((join[0].clone(), false)));
    }
    // It does not look for the other store of the original.
    let (_, status) = get(&second.ready.address, "/status").await;
    assert!(status.contains("\"failed_stores\":[]"), "{status}");
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_moved_directory_goes_on_with_the_word_of_the_operator_and_a_sole_node_without() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "b2", "a2"].map(|name| dir.path().join(name));
    let first = start(config(&dirs[..1], &[])).await;
    first.stop().await;
    copy_dir(&dirs[0], &dirs[3]);
    let first = start(config(&dirs[3..], &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs[1..2], &join)).await;
    until_replicated(&second.ready.address).await;
    second.stop().await;
    copy_dir(&dirs[1], &dirs[2]);
    let second = start(moved(&dirs[2..3], &join)).await;
    until(&second.ready.address, "/readyz", |status, body| {
        status == 200 && body.starts_with("2 of 2")
    })
    .await;
    second.stop().await;
    let second = start(config(&dirs[2..3], &join)).await;
    until(&second.ready.address, "/readyz", |status, _| status == 200).await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_of_one_parent_that_both_answer_stop_until_the_operator_keeps_one() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "copy"].map(|name| dir.path().join(name));
    let first = start(config(&dirs[..1], &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs[1..2], &join)).await;
    let at_second = second.ready.address.clone();
    until_replicated(&at_second).await;
    second.stop().await;
    copy_dir(&dirs[1], &dirs[2]);
    let is_ready = |status: u16, body: &str| status == 200 && body.starts_with("2 of 2");
    let copy = start(moved(&dirs[2..], &join)).await;
    let at_copy = copy.ready.address.clone();
    until(&at_copy, "/readyz", is_ready).await;
    // The original ended; now it is started beside its successor.
    let at = |config| Config { listen: at_second.clone(), ..config };
    let second = start(at(config(&dirs[1..2], &join))).await;
    for address in [&at_copy, &at_second] {
        until(address, "/healthz", |_, body| body.contains("stele ctl keep-run 2")).await;
    }
    // The message describes both directories, and asks the operator to keep both.
    for address in [&at_copy, &at_second] {
        let described = |_: u16, body: &str| {
            let of =
                |dir: &Path, at: &str| body.contains(&format!("{} at {at}, start ", dir.display()));
            of(&dirs[1], &at_second)
                && of(&dirs[2], &at_copy)
                && body.matches("last write 20").count() == 2
                && body.contains("keep both directories")
        };
        until(address, "/healthz", described).await;
    }
    second.stop().await;
    let Err(error) = Node::start(at(config(&dirs[1..2], &join))).await else {
        panic!("a restart makes a stopped store serve");
    };
    assert!(error.to_string().contains("stele ctl keep-run 2"), "{error}");
    assert!(error.to_string().contains(&dirs[2].display().to_string()), "{error}");
    let keep = |store_id| {
        let (cluster_id, forwarded) = (copy.ready.cluster.0, false);
        KeepRunRequest { header: Some(RequestHeader { cluster_id, forwarded }), store_id }
    };
    assert!(control(&at_copy).keep_run(keep(7)).await.is_err(), "no such store");
    control(&at_copy).keep_run(keep(2)).await.unwrap();
    until(&at_copy, "/readyz", is_ready).await;
    put(&[join[0].clone(), at_copy.clone()], "after").await;
    copy.stop().await;
    let copy = start(Config { listen: at_copy.clone(), ..config(&dirs[2..], &join) }).await;
    until(&at_copy, "/readyz", is_ready).await;
    copy.stop().await;
    first.stop().await;
}

async fn leader(addresses: &[String]) -> Option<(Channel, Context)> {
    let connect = |address: String| async move {
        Channel::from_shared(format!("http://{address}")).ok()?.connect().await.ok()
    };
    for address in addresses {
        let Some(channel) = connect(address.clone()).await else { continue };
        let request = GetRegionRequest { region_key: Bytes::from("k"), ..Default::default() };
        let Ok(found) = PdClient::new(channel).get_region(request).await else { continue };
        let found = found.into_inner();
        let (Some(region), Some(leader)) = (found.region, found.leader) else { continue };
        let channel = connect(addresses.get(leader.store_id as usize - 1)?.clone()).await?;
        let (region_id, region_epoch) = (region.id, region.region_epoch);
        let peer = Some(leader);
        return Some((channel, Context { region_id, region_epoch, peer, ..Context::default() }));
    }
    None
}

/// Writes a key with itself as value.
async fn put(addresses: &[String], key: &str) {
    let (started, bytes) = (Instant::now(), Bytes::from(key.to_owned()));
    while started.elapsed() < LIMIT {
        if let Some((channel, context)) = leader(addresses).await {
            let (key, value, context) = (bytes.clone(), bytes.clone(), Some(context));
            let request = RawPutRequest { context, key, value, ..Default::default() };
            let done = TikvClient::new(channel).raw_put(request).await.map(|it| it.into_inner());
            if done.is_ok_and(|done| done.region_error.is_none() && done.error.is_empty()) {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{key} is not written");
}

async fn get_key(addresses: &[String], key: &str) -> Option<String> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        if let Some((channel, context)) = leader(addresses).await {
            let (context, key) = (Some(context), Bytes::from(key.to_owned()));
            let request = RawGetRequest { context, key, ..Default::default() };
            let done = TikvClient::new(channel).raw_get(request).await.map(|it| it.into_inner());
            if let Ok(done) = done
                && done.region_error.is_none()
                && done.error.is_empty()
            {
                let value = String::from_utf8(done.value.to_vec()).unwrap();
                return (!done.not_found).then_some(value);
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{key} is not read");
}

/// Copies a directory, without the files that the store that runs in it removes meanwhile.
fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &to);
        } else if let Err(error) = std::fs::copy(entry.path(), to) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        }
    }
}
