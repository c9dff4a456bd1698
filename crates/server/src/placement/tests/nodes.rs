//! Nodes by the names in their certificates.

use super::super::named_leader;
use super::fake::{Nodes, address, heartbeat, region, report};
use crate::access::{Origin, Principal, answer_to};
use bytes::Bytes;
use stele_proto::stele::control::v1 as wire;
use stele_tls::{ClientName, ClusterName, Identity, NodeName, token_hash};
use tonic::{Code, Status};

fn named(name: &str) -> Principal {
    let (cluster, node) = (ClusterName::new("prod").unwrap(), NodeName::new(name).unwrap());
    Principal::Known(Identity::Node { cluster, node })
}

/// Makes a call at the leader as one of the node with this name, or for it by another one.
async fn call<T>(name: &str, via: Option<&str>, call: impl Future<Output = T>) -> T {
    let via = via.map(|name| NodeName::new(name).unwrap());
    answer_to(Some(Origin { first: named(name), via, must_call_itself: false }), call).await
}

fn joining(node: usize, token: &'static [u8], join_token: &'static [u8]) -> wire::JoinRequest {
    let store = wire::NewStore { token: Bytes::from_static(token), ..Default::default() };
    let join_token = Bytes::from_static(join_token);
    wire::JoinRequest {
        address: address(node),
        stores: vec![store],
        join_token,
        ..Default::default()
    }
}

async fn admit(nodes: &Nodes, name: &str) {
    let request = wire::AdmitRequest { node: name.into(), valid_s: 60, ..Default::default() };
    let root = Principal::Known(Identity::Client(ClientName::new("root").unwrap()));
    let caller = Origin { first: root, via: None, must_call_itself: true };
    answer_to(Some(caller), nodes.node(1).admit(request)).await.unwrap();
}

/// Returns the state of a cluster of nodes n1 and n2 with stores 1 and 2.
async fn two_nodes() -> Nodes {
    let nodes = Nodes::new();
    call("n1", None, nodes.node(1).heartbeat(heartbeat(1, 1, 1, vec![]))).await.unwrap();
    admit(&nodes, "n2").await;
    let joined = call("n2", None, nodes.node(1).join(joining(2, b"2", b""))).await.unwrap();
    assert_eq!(joined.store_ids, [2]);
    nodes
}

fn denied<T>(answer: Result<T, Status>) -> String {
    let status = answer.err().expect("it is not refused");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    status.message().to_owned()
}

#[tokio::test]
async fn each_attack_of_a_node_on_the_stores_of_another_one_is_refused() {
    let nodes = two_nodes().await;
    let leader = nodes.node(1);
    let lists = || leader.members().unwrap();
    // Its first report tells the capacity of its store.
    call("n2", None, leader.heartbeat(heartbeat(2, 2, 1, vec![]))).await.unwrap();
    let before = lists();
    // The state, the address and the regions of store 1.
    let led = vec![report(&region(2, 9, &[]))];
    let text = denied(call("n2", None, leader.heartbeat(heartbeat(2, 1, 1, led))).await);
    assert!(text.contains("store 1 is one of node n1"), "{text}");
    // Beside its own store, regions that store 1 leads.
    let led = vec![report(&region(2, 9, &[]))];
    call("n2", None, leader.heartbeat(heartbeat(2, 2, 2, led))).await.unwrap();
    let request = wire::ListRegionsRequest { region_id: 2, ..Default::default() };
    let regions = leader.list_regions(request).await.unwrap().regions;
    assert!(regions.iter().all(|it| it.report_age_ms == -1), "{regions:?}");
    // The place of a store that joined.
    denied(call("n1", None, leader.join(joining(1, b"2", b""))).await);
    // Numbers for a node that is no member.
    let ids = || leader.alloc_ids_of(wire::AllocIdsRequest { count: 1, ..Default::default() });
    denied(call("n3", None, ids()).await);
    call("n2", None, ids()).await.unwrap();
    assert_eq!(lists(), before);
}

#[tokio::test]
async fn a_node_that_is_no_member_forwards_nothing() {
    let nodes = two_nodes().await;
    let leader = nodes.node(1);
    let join = |name, via| call(name, via, leader.join(joining(3, b"3", b"")));
    let text = denied(join("n1", Some("n9")).await);
    assert!(text.contains("node n9 has no store in this cluster"), "{text}");
    assert_eq!(join("n1", Some("n2")).await.unwrap().store_ids, [3], "a further one of node n1");
    let root = Principal::Known(Identity::Client(ClientName::new("root").unwrap()));
    let set = async |via: &str| {
        let via = Some(NodeName::new(via).unwrap());
        let caller = Origin { first: root.clone(), via, must_call_itself: false };
        answer_to(Some(caller), leader.set_setting("replicas", "5", true)).await
    };
    denied(set("n9").await);
    set("n2").await.unwrap();
}

#[tokio::test]
async fn a_change_is_decided_only_for_a_caller_that_calls_the_leader() {
    let nodes = two_nodes().await;
    let leader = nodes.node(1);
    let root = Principal::Known(Identity::Client(ClientName::new("root").unwrap()));
    let by = |first: &Principal, via: Option<&str>| Origin {
        first: first.clone(),
        via: via.map(|name| NodeName::new(name).unwrap()),
        must_call_itself: true,
    };
    let set = || leader.set_setting("replicas", "5", true);
    let admit = || {
        let request = wire::AdmitRequest { node: "n3".into(), valid_s: 60, ..Default::default() };
        leader.admit(request)
    };
    let join = || leader.join(joining(3, b"3", b""));
    let before = leader.members().unwrap();
    let refusals = [
        answer_to(Some(by(&root, Some("n2"))), set()).await.map(|_| ()),
        answer_to(Some(by(&root, Some("n2"))), admit()).await.map(|_| ()),
        answer_to(Some(by(&named("n1"), Some("n2"))), join()).await.map(|_| ()),
    ];
    for refusal in refusals {
        let refusal = refusal.unwrap_err();
        // What clients and nodes of all versions take for a refusal to follow.
        assert_eq!(refusal.code(), Code::Unavailable);
        assert!(refusal.message().contains("not leader"), "{refusal:?}");
        assert_eq!(named_leader(&refusal), Some(address(1)));
        assert_eq!(refusal.metadata().get("stele-leader").unwrap(), &*address(1));
    }
    assert_eq!(leader.members().unwrap(), before);
    let settings = leader.settings(&["replicas".to_owned()], false).await.unwrap();
    assert_eq!(settings[0].source, "default");
    answer_to(Some(by(&root, None)), set()).await.unwrap();
    answer_to(Some(by(&root, None)), admit()).await.unwrap();
    answer_to(Some(by(&named("n3"), None)), join()).await.unwrap();
}

#[tokio::test]
async fn a_node_joins_by_a_name_or_a_token_and_the_refusal_names_both() {
    let nodes = two_nodes().await;
    let leader = nodes.node(1);
    let join = async |name, token| {
        let request = joining(3, b"3", token);
        call(name, Some("n2"), leader.join(request)).await
    };
    let text = denied(join("n3", b"").await);
    assert!(text.contains("`stele ctl admit n3`") && text.contains("join-token`"), "{text}");
    let token_sha256 = Bytes::copy_from_slice(&token_hash(b"secret"));
    let request = wire::AdmitRequest { token_sha256, valid_s: 60, ..Default::default() };
    leader.admit(request.clone()).await.unwrap();
    assert!(denied(join("n3", b"other").await).contains("its token is not one of this cluster"));
    assert_eq!(join("n3", b"secret").await.unwrap().store_ids, [3]);
    let both = wire::AdmitRequest { node: "n4".into(), ..request };
    assert_eq!(leader.admit(both).await.unwrap_err().code(), Code::InvalidArgument);
    let moved = wire::AdmitRequest { node: "n2".into(), store_id: 3, ..Default::default() };
    leader.admit(moved).await.unwrap();
    call("n2", None, leader.heartbeat(heartbeat(2, 3, 1, vec![]))).await.unwrap();
    denied(call("n3", None, leader.heartbeat(heartbeat(3, 3, 1, vec![]))).await);
}
