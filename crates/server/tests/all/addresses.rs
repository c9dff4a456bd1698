//! Whole nodes in this process that change their addresses, receive a wrong one, or lose the only
//! other node.

use crate::common::{LIMIT, config, free_addresses, start, until};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{ListRegionsRequest, ListStoresRequest, RequestHeader};
use stele_server::config::Config;
use stele_server::node::Node;
use stele_types::{PeerRole, Region};
use tonic::transport::{Channel, Endpoint};

fn control(address: &str) -> ControlClient<Channel> {
    ControlClient::new(Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy())
}

/// Waits until every region has this number of voters and no other peers.
pub(crate) async fn until_voters(address: &str, count: usize) {
    let started = Instant::now();
    loop {
        let request = ListRegionsRequest { system: true, ..ListRegionsRequest::default() };
        let listed = control(address).list_regions(request).await;
        let regions = listed.map(|it| it.into_inner().regions).unwrap_or_default();
        let peers = regions.iter().map(|region| {
            let bytes = &region.report.as_ref().unwrap().region;
            let peers = Region::decode(bytes).unwrap().peers;
            let voters = peers.iter().filter(|peer| peer.role == PeerRole::Voter).count();
            (peers.len(), voters)
        });
        if regions.len() >= 2 && peers.into_iter().all(|it| it == (count, count)) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{regions:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn at(dirs: &[PathBuf], listen: &str, join: &[String]) -> Config {
    Config { listen: listen.to_owned(), ..config(dirs, join) }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_on_other_ports_with_join_in_a_ring_find_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| dir.path().join(name));
    let mut nodes = vec![start(config(&dirs[..1], &[])).await];
    let join = [nodes[0].ready.address.clone()];
    for dir in dirs[1..].chunks(1) {
        nodes.push(start(config(dir, &join)).await);
    }
    until_voters(&join[0], 3).await;
    let former: Vec<String> = nodes.iter().map(|node| node.ready.address.clone()).collect();
    for node in nodes {
        node.stop().await;
    }
    let new = free_addresses(3);
    assert!(new.iter().all(|address| !former.contains(address)));
    let mut nodes = Vec::new();
    for (number, dir) in dirs.chunks(1).enumerate() {
        let next = new[(number + 1) % 3].clone();
        nodes.push(start(at(dir, &new[number], &[next])).await);
    }
    let started = Instant::now();
    for address in &new {
        until(address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    // The placement group knows the new addresses, and so do all nodes after another restart.
    let is_new = async || {
        let listed = control(&new[0]).list_stores(ListStoresRequest::default()).await;
        let stores = listed.map(|it| it.into_inner().stores).unwrap_or_default();
        stores.len() == 3 && stores.iter().all(|store| new.contains(&store.address))
    };
    while !is_new().await {
        assert!(started.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for node in nodes {
        node.stop().await;
    }
    let mut nodes = Vec::new();
    for (dir, address) in dirs.chunks(1).zip(&new) {
        nodes.push(start(at(dir, address, &[])).await);
    }
    until(&new[1], "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_join_to_a_foreign_cluster_is_refused_unless_another_seed_is_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["own", "member", "other"].map(|name| dir.path().join(name));
    let first = start(config(&dirs[..1], &[])).await;
    let own = first.ready.address.clone();
    let member = start(config(&dirs[1..2], std::slice::from_ref(&own))).await;
    member.stop().await;
    let foreign = start(config(&dirs[2..], &[])).await;
    let other = foreign.ready.address.clone();
    // One that accepts connections and never answers, and one that is down.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_address = silent.local_addr().unwrap().to_string();
    let down = free_addresses(1).remove(0);
    let wrong = config(&dirs[1..2], &[down.clone(), other.clone(), silent_address.clone()]);
    let refused = Node::start(wrong).await.err().expect("no seed is of its cluster");
    let text = refused.to_string();
    let cluster = foreign.ready.cluster;
    assert!(text.contains(&format!("{other}, a node of cluster {cluster}")), "{text}");
    assert!(text.contains("correct `join`"), "{text}");
    for join in [vec![other.clone(), own.clone()], vec![down, silent_address]] {
        let began = Instant::now();
        let node = start(config(&dirs[1..2], &join)).await;
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "it waited {took:?} for a silent seed");
        assert_eq!(node.ready.cluster, first.ready.cluster);
        node.stop().await;
    }
    // A node that serves goes on when a seed becomes one of another cluster.
    first.stop().await;
    drop(silent);
    let node = start(config(&dirs[1..2], std::slice::from_ref(&own))).await;
    foreign.stop().await;
    let foreign = start(at(&dirs[2..], &own, &[])).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    until(&node.ready.address, "/healthz", |status, body| status == 200 && body == "ok\n").await;
    node.stop().await;
    foreign.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_that_is_left_of_two_names_the_lost_quorum() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b"].map(|name| dir.path().join(name));
    let first = start(config(&dirs[..1], &[])).await;
    let join = [first.ready.address.clone()];
    let second = start(config(&dirs[1..], &join)).await;
    until_voters(&join[0], 2).await;
    let request = ListStoresRequest {
        header: Some(RequestHeader { cluster_id: second.ready.cluster.0, forwarded: false }),
        known_here: true,
        ..ListStoresRequest::default()
    };
    let known = control(&second.ready.address).list_stores(request.clone()).await.unwrap();
    assert!(known.into_inner().stores.iter().all(|it| it.heartbeat_age_ms == 0));
    first.stop().await;
    let started = Instant::now();
    let expected = "no leader: 1 of 2 voters of region 1 is up: no quorum";
    loop {
        let listed = control(&second.ready.address).list_stores(ListStoresRequest::default()).await;
        let text = listed.map_or_else(|status| status.message().to_owned(), |_| String::new());
        if text == expected {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let address = &second.ready.address;
    let lost = format!(
        "degraded\nregions 1, 2 have lost their majority: they take no reads and no writes; not \
         reached: store 1 ({}). Start their nodes again",
        join[0]
    );
    until(address, "/healthz", |status, body| status == 200 && body.starts_with(&lost)).await;
    let known = control(address).list_stores(request).await.unwrap().into_inner();
    assert_eq!(
        (known.known_here, known.no_leader.as_str()),
        (true, &expected["no leader: ".len()..])
    );
    let ages: Vec<_> = known.stores.iter().map(|it| (&it.address, it.heartbeat_age_ms)).collect();
    let [(former, age_ms), (own, 0)] = ages[..] else { panic!("{ages:?}") };
    assert!((former, own) == (&join[0], address) && age_ms >= 2_000, "{ages:?}");
    let first = start(at(&dirs[..1], &join[0], &[])).await;
    until(address, "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    until(address, "/healthz", |status, body| status == 200 && body == "ok\n").await;
    first.stop().await;
    second.stop().await;
}
