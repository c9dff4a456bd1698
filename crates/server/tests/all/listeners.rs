//! Whole nodes in this process with listeners of their own for nodes and for administrators.

use crate::common::{LIMIT, config, free_addresses, get, start, stores, until};
use std::path::PathBuf;
use std::time::Instant;
use stele_proto::pdpb::pd_client::PdClient;
use stele_proto::pdpb::{GetAllStoresRequest, GetMembersRequest};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{AllocIdsRequest, ListStoresRequest};
use stele_server::config::Config;
use stele_server::node::Node;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

fn channel(address: &str) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

/// Addresses of a node: for clients, nodes and administrators.
#[derive(Clone)]
struct At([String; 3]);

fn addresses(nodes: usize) -> Vec<At> {
    let free = free_addresses(nodes * 3);
    let at = |three: &[String]| At([three[0].clone(), three[1].clone(), three[2].clone()]);
    free.chunks(3).map(at).collect()
}

async fn node(dir: &PathBuf, at: &At, join: &[String]) -> Node {
    let At([listen, peer_listen, admin_listen]) = at.clone();
    let of = config(std::slice::from_ref(dir), join);
    start(Config { listen, peer_listen, admin_listen, ..of }).await
}

/// Waits until PD names the addresses of `listen` alone, for members and for stores.
async fn until_clients_get(at: &[At]) {
    let mut wanted: Vec<String> = at.iter().map(|it| it.0[0].clone()).collect();
    wanted.sort_unstable();
    let began = Instant::now();
    for of in at {
        let mut pd = PdClient::new(channel(&of.0[0]));
        loop {
            let stores = pd.get_all_stores(GetAllStoresRequest::default()).await;
            let stores = stores.map(|it| it.into_inner().stores).unwrap_or_default();
            let mut found: Vec<String> = stores.into_iter().map(|store| store.address).collect();
            found.sort_unstable();
            let members = pd.get_members(GetMembersRequest::default()).await.unwrap().into_inner();
            let leads = members.leader.unwrap().name;
            let names: Vec<String> = members.members.into_iter().map(|it| it.name).collect();
            if found == wanted && names == wanted && wanted.contains(&leads) {
                break;
            }
            assert!(began.elapsed() < LIMIT, "{found:?}, {names:?}, {leads} for {wanted:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}

/// Checks that calls of nodes and of administrators are refused where clients connect, and clients where
/// nodes do.
async fn are_refused_at_the_wrong_address(at: &At) {
    let [common, peers, admins] = &at.0;
    let mut control = ControlClient::new(channel(common));
    let refused = control.list_stores(ListStoresRequest::default()).await.unwrap_err();
    assert!(refused.message().contains("`admin_listen`"), "{refused}");
    for address in [common, admins] {
        let mut control = ControlClient::new(channel(address));
        let refused = control.alloc_ids(AllocIdsRequest::default()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().contains("`peer_listen`, also in `join`"), "{refused}");
    }
    assert_eq!(get(peers, "/metrics").await.0, 421);
    assert_eq!(get(admins, "/metrics").await.0, 200);
}

async fn stop(nodes: Vec<Node>) {
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_get_the_address_of_listen_and_nodes_that_of_peer_listen() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| dir.path().join(name));
    let at = addresses(3);
    let first = node(&dirs[0], &at[0], &[]).await;
    // At once, before the first report.
    let mut pd = PdClient::new(channel(&at[0].0[0]));
    let known = loop {
        let known = pd.get_all_stores(GetAllStoresRequest::default()).await;
        match known.map(|it| it.into_inner().stores).unwrap_or_default() {
            none if none.is_empty() => tokio::task::yield_now().await,
            known => break known,
        }
    };
    assert!(known.iter().all(|store| store.address == at[0].0[0]), "{known:?}");
    let join = [at[0].0[1].clone()];
    let mut nodes = vec![first];
    for number in [1, 2] {
        nodes.push(node(&dirs[number], &at[number], &join).await);
        assert_eq!(nodes[number].ready.address, at[number].0[0]);
    }
    until_clients_get(&at).await;
    until(&at[2].0[0], "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    let listed = stores(&at[1].0[2], |listed| {
        listed.len() == 3 && listed.iter().all(|store| !store.admin_address.is_empty())
    });
    for store in listed.await {
        let named = At([store.client_address, store.address, store.admin_address]);
        assert!(at.iter().any(|it| it.0 == named.0), "{:?}", named.0);
    }
    are_refused_at_the_wrong_address(&at[1]).await;
    stop(nodes).await;

    // All nodes restart, with other addresses for nodes; those for clients stay.
    let moved: Vec<At> = addresses(3)
        .into_iter()
        .zip(&at)
        .map(|(new, of)| At([of.0[0].clone(), new.0[1].clone(), of.0[2].clone()]))
        .collect();
    let mut nodes = Vec::new();
    for number in 0..3 {
        let join = [moved[(number + 1) % 3].0[1].clone()];
        nodes.push(node(&dirs[number], &moved[number], &join).await);
    }
    until(&at[0].0[0], "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    until_clients_get(&moved).await;
    stop(nodes).await;

    // Without the settings one address serves all again.
    let mut nodes = Vec::new();
    for number in 0..3 {
        let listen = at[number].0[0].clone();
        let join = [at[(number + 1) % 3].0[0].clone()];
        let of = config(&dirs[number..=number], &join);
        nodes.push(start(Config { listen, ..of }).await);
    }
    until(&at[0].0[0], "/readyz", |status, body| status == 200 && body.starts_with("2 of 2")).await;
    until_clients_get(&at).await;
    stores(&at[0].0[0], |listed| listed.iter().all(|store| store.client_address.is_empty())).await;
    stop(nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_for_nodes_and_administrators_are_set_node_by_node() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = ["a", "b", "c"].map(|name| dir.path().join(name));
    let at = addresses(3);
    let mut nodes = Vec::new();
    for number in 0..3 {
        let listen = at[number].0[0].clone();
        let join: Vec<String> = at[..number.min(1)].iter().map(|it| it.0[0].clone()).collect();
        let of = config(&dirs[number..=number], &join);
        nodes.push(start(Config { listen, ..of }).await);
    }
    let is_ready = |status, body: &str| status == 200 && body.starts_with("2 of 2");
    // Nodes that hold copies of a region learn each other's new addresses by their messages.
    for of in &at {
        until(&of.0[0], "/readyz", is_ready).await;
    }
    for number in 0..3 {
        nodes.remove(number).stop().await;
        nodes.insert(number, node(&dirs[number], &at[number], &[]).await);
        // Nodes with the setting and without it serve each other and their clients.
        for of in &at {
            until(&of.0[0], "/readyz", is_ready).await;
        }
        until_clients_get(&at).await;
    }
    stores(&at[1].0[2], |listed| {
        listed.len() == 3 && listed.iter().all(|store| !store.admin_address.is_empty())
    })
    .await;
    are_refused_at_the_wrong_address(&at[1]).await;
    stop(nodes).await;
}
