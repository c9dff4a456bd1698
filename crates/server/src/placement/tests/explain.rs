//! Explanations of placement, over the control protocol.

use super::fake::{heartbeat, region, report};
use super::reports::three_nodes;
use stele_proto::stele::control::v1 as wire;
use tonic::Code;

fn explain(region_id: u64) -> wire::ExplainRequest {
    wire::ExplainRequest { region_id, ..Default::default() }
}

/// A beat of a store with synced writes of so many microseconds.
fn measured(node: usize, store: u64, sequence: u64, micros: u64) -> wire::HeartbeatRequest {
    let mut beat = heartbeat(node, store, sequence, vec![]);
    let write = wire::OpCost { fixed_nanos: micros * 1000, picos_per_byte: 0 };
    beat.stores[0].device =
        Some(wire::DeviceSpeed { write: Some(write), writes: 100, ..Default::default() });
    beat
}

#[tokio::test]
async fn placement_shows_measured_speeds_of_all_stores() {
    let (nodes, stores) = three_nodes().await;
    nodes.node(1).heartbeat(measured(2, stores[0], 2, 500)).await.unwrap();
    nodes.node(1).heartbeat(measured(3, stores[1], 2, 4000)).await.unwrap();
    let placement = nodes.node(1).placement(wire::PlacementRequest::default()).await.unwrap();
    let speeds: Vec<(u64, u64, bool)> = placement
        .stores
        .iter()
        .map(|store| (store.store_id, store.speed_per_second, store.measured))
        .collect();
    assert_eq!(speeds, [(1, 0, false), (stores[0], 2000, true), (stores[1], 250, true)]);
    let class = |at: usize| placement.stores[at].class;
    assert_eq!(class(1) - class(2), 6, "a factor 8 is six classes");
    assert_eq!((placement.stores[0].leaders, placement.stores[1].leaders), (2, 0));
    let list = nodes.node(1).list_stores(wire::ListStoresRequest::default()).await.unwrap();
    let classes: Vec<_> = list.stores.iter().map(|store| store.class).collect();
    assert_eq!(classes, [None, Some(class(1)), Some(class(2))]);
}

#[tokio::test]
async fn a_region_is_explained_for_every_store_and_an_unknown_one_is_named() {
    let (nodes, stores) = three_nodes().await;
    let grown = region(2, 2, &[stores[0]]);
    nodes.node(1).heartbeat(heartbeat(1, 1, 2, vec![report(&grown)])).await.unwrap();
    let explained = nodes.node(1).explain(explain(2)).await.unwrap();
    let roles: Vec<_> = explained
        .stores
        .iter()
        .map(|it| (it.store.as_ref().unwrap().store_id, it.role()))
        .collect();
    use wire::StoreRole::{Candidate, Leader, Replica};
    assert_eq!(roles, [(1, Leader), (stores[0], Replica), (stores[1], Candidate)]);
    let by_key = wire::ExplainRequest { key: "any".into(), ..Default::default() };
    assert_eq!(nodes.node(1).explain(by_key).await.unwrap().region, explained.region);
    let status = nodes.node(1).explain(explain(99)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert!(status.message().contains("there is no region 99"), "{status}");
    let forwarded = wire::RequestHeader { forwarded: true, ..Default::default() };
    let request = wire::ExplainRequest { header: Some(forwarded), ..explain(2) };
    let status = nodes.node(2).explain(request).await.unwrap_err();
    assert!(status.message().contains("not leader"), "{status}");
}
