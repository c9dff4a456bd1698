//! A merge that is prepared and waits: how it is shown, cancelled, and moved meanwhile.

use super::fake::{Nodes, halves, heartbeat, report};
use super::reports::three_nodes;
use stele_proto::stele::control::v1 as wire;
use stele_proto::stele::control::v1::operator_step::Step;
use stele_types::{LogIndex, Peer, PeerId, Region, RegionPhase, StoreId, Term};
use tonic::Code;

/// Returns regions 2 and 50 on all three nodes; region 2 is prepared to merge into region 50.
fn merging_halves(stores: &[u64]) -> [Region; 2] {
    let grown = |mut region: Region| {
        let peer = |store: &u64| Peer {
            id: PeerId(region.id.0 + 10 + store),
            store: StoreId(*store),
            ..Peer::default()
        };
        region.peers.extend(stores.iter().map(peer));
        region
    };
    let [mut source, target] = halves(2, 50).map(grown);
    let (target_epoch, term) = (target.epoch, Term(5));
    let prepared = LogIndex(8);
    source.phase = RegionPhase::Merging { target: target.id, prepared, term, target_epoch };
    source.epoch.version += 1;
    [source, target]
}

/// Returns the step that abandons a merge into a region: its stores may have the proof that it refused.
fn abandon(target: &Region) -> Step {
    let target_stores = target.peers.iter().map(|peer| peer.store.0).collect();
    Step::RollbackMerge(wire::RollbackMergeStep { refuse: true, target_stores })
}

/// Reports the regions to the node that leads the placement group; the replica of region 2 on a store
/// does not respond. Returns the steps for region 2.
async fn steps_of_a_stuck_merge(
    (nodes, leader): (&Nodes, usize),
    sequence: u64,
    regions: &[Region; 2],
    silent: u64,
) -> Vec<Step> {
    let mut reports = regions.each_ref().map(report);
    let peer_id = regions[0].peer_on(StoreId(silent)).unwrap().id.0;
    reports[0].down_peers = vec![wire::DownPeer { peer_id, down_seconds: 5 }];
    let beat = heartbeat(1, 1, sequence, reports.to_vec());
    let answer = nodes.node(leader).heartbeat(beat).await.unwrap();
    let of_source = answer.steps.into_iter().filter(|step| step.region_id == 2);
    of_source.filter_map(|step| step.step).collect()
}

#[tokio::test]
async fn a_stuck_merge_is_shown_with_its_reason_and_cancelled_also_under_the_next_leader() {
    let (nodes, stores) = three_nodes().await;
    let regions = merging_halves(&stores);
    steps_of_a_stuck_merge((&nodes, 1), 2, &regions, stores[1]).await;
    nodes.node(1).tick().await;
    let list = wire::ListRegionsRequest {
        filter: wire::RegionFilter::Merging as i32,
        ..wire::ListRegionsRequest::default()
    };
    let listed = nodes.node(1).list_regions(list).await.unwrap().regions;
    assert_eq!(listed.len(), 1);
    let running = wire::ListOperatorsRequest { region_id: 2, ..Default::default() };
    let shown = nodes.node(1).list_operators(running).await.unwrap().operators;
    assert_eq!((shown.len(), shown[0].id), (1, listed[0].operator_id), "{shown:?}");
    assert!(shown[0].what.contains("merge"), "{shown:?}");
    let reason = format!("until the replica on store {} responds", stores[1]);
    assert!(shown[0].detail.contains(&reason), "{shown:?}");
    assert!(shown[0].detail.contains("`stele ctl cancel-operator 2`"), "{shown:?}");
    let cancel = || wire::CancelOperatorRequest { region_id: 2, ..Default::default() };
    let cancelled = nodes.node(1).cancel_operator(cancel()).await.unwrap().operator.unwrap();
    assert_eq!(cancelled.id, shown[0].id);
    assert_eq!(cancelled.state, wire::OperatorState::Cancelled as i32);
    // Another node leads, and knows what was committed.
    nodes.elect(Some(2));
    for (node, store) in [(2, stores[0]), (3, stores[1])] {
        nodes.node(2).heartbeat(heartbeat(node, store, 2, vec![])).await.unwrap();
    }
    steps_of_a_stuck_merge((&nodes, 2), 3, &regions, stores[1]).await;
    nodes.node(2).tick().await;
    let steps = steps_of_a_stuck_merge((&nodes, 2), 4, &regions, stores[1]).await;
    assert_eq!(steps, [abandon(&regions[1])]);
    // An administrator orders the merge after all: the preparation is used.
    let cancelled = nodes.node(2).cancel_operator(cancel()).await.unwrap();
    assert!(cancelled.operator.is_some());
    let merge = wire::MergeRequest { source_region: 2, target_region: 50, header: None };
    let again = nodes.node(2).merge(merge).await.unwrap().operator_id;
    let shown = nodes.node(2).list_operators(running).await.unwrap().operators;
    assert_eq!((shown.len(), shown[0].id), (1, again), "{shown:?}");
    assert!(!shown[0].what.contains("abandon"), "{shown:?}");
    let none = wire::CancelOperatorRequest { region_id: 77, ..Default::default() };
    let status = nodes.node(2).cancel_operator(none).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn leadership_and_members_of_a_stuck_merge_are_moved() {
    let (nodes, stores) = three_nodes().await;
    let extra = nodes.join(2, b"d").await;
    let regions = merging_halves(&stores);
    steps_of_a_stuck_merge((&nodes, 1), 2, &regions, stores[1]).await;
    let mut both = heartbeat(2, stores[0], 2, vec![]);
    both.stores.push(wire::StoreStats { id: extra, ..both.stores[0] });
    nodes.node(1).heartbeat(both).await.unwrap();
    nodes.node(1).tick().await;
    let transfer = wire::TransferRequest { region_id: 2, to_store: stores[0], header: None };
    nodes.node(1).transfer(transfer).await.unwrap();
    let steps = steps_of_a_stuck_merge((&nodes, 1), 3, &regions, stores[1]).await;
    let to = regions[0].peer_on(StoreId(stores[0])).unwrap().id.0;
    let expected = Step::TransferLeader(wire::TransferLeaderStep { peer_ids: vec![to] });
    assert_eq!(steps, [expected]);
    let cancel = wire::CancelOperatorRequest { region_id: 2, ..Default::default() };
    nodes.node(1).cancel_operator(cancel).await.unwrap();
    // A move abandons the merge first, because the members of a merging region do not change.
    let (from_store, to_store) = (stores[0], extra);
    let r#move = wire::MoveRequest { region_id: 2, from_store, to_store, header: None };
    nodes.node(1).move_replica(r#move).await.unwrap();
    let steps = steps_of_a_stuck_merge((&nodes, 1), 4, &regions, stores[1]).await;
    assert_eq!(steps, [abandon(&regions[1])]);
    let mut regions = regions;
    regions[0].phase = RegionPhase::Normal;
    regions[0].epoch.version += 1;
    let steps = steps_of_a_stuck_merge((&nodes, 1), 5, &regions, stores[1]).await;
    let [Step::ChangePeers(changes)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(changes.changes[0].peer.unwrap().store_id, extra);
}
