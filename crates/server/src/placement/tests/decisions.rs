use super::super::LostQuorum;
use super::fake::{Fault, Nodes, address, heartbeat, region, report};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::stele::control::v1 as wire;
use stele_types::{Level, Peer, PeerId, PeerRole, Region, StoreId};
use tokio::sync::Semaphore;
use tonic::Code;

#[tokio::test]
async fn the_first_leader_founds_the_state_and_the_next_one_loads_it() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let stores = nodes.node(1).list_stores(wire::ListStoresRequest::default()).await.unwrap();
    assert_eq!(stores.cluster_id, 77);
    assert_eq!(stores.stores.len(), 1);
    assert_eq!(stores.stores[0].address, address(1));
    let proposals = nodes.world.lock().proposals;
    nodes.elect(Some(2));
    let stores = nodes.node(2).list_stores(wire::ListStoresRequest::default()).await.unwrap();
    assert_eq!(stores.stores.len(), 1);
    assert_eq!(nodes.world.lock().proposals, proposals, "loading changes nothing");
}

#[tokio::test]
async fn without_a_state_a_leader_that_did_not_found_the_cluster_answers_later() {
    let nodes = Nodes::new();
    nodes.elect(Some(2));
    let status = nodes.node(2).alloc_ids(1).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn calls_are_forwarded_once_and_name_the_leader() {
    let nodes = Nodes::new();
    let forwarded = wire::RequestHeader { forwarded: true, ..Default::default() };
    let request =
        wire::AllocIdsRequest { header: Some(forwarded), ..wire::AllocIdsRequest::default() };
    let status = nodes.node(2).alloc_ids_of(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("not leader"), "{status}");
    assert_eq!(status.metadata().get("stele-leader").unwrap(), &*address(1));
    nodes.elect(None);
    let status = nodes.node(2).alloc_ids(1).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("no leader"), "{status}");
    let status = nodes.node(1).members();
    assert!(status.is_none());
}

#[tokio::test]
async fn without_a_quorum_a_refusal_states_the_voters_that_are_up() {
    let nodes = Nodes::new();
    nodes.elect(None);
    nodes.world.lock().lost_quorum = Some(LostQuorum { up: 1, voters: 2 });
    let expected = "no leader: 1 of 2 voters of region 1 is up: no quorum";
    // Of no forwarded call, and of one that fails at the node which it is forwarded to.
    let forwarded = wire::RequestHeader { forwarded: true, ..Default::default() };
    for header in [Some(forwarded), None] {
        let request = wire::AllocIdsRequest { header, ..wire::AllocIdsRequest::default() };
        let status = nodes.node(2).alloc_ids_of(request).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, expected));
    }
    let status = nodes.node(2).region_by_key(b"k").await.unwrap_err();
    assert_eq!(status.message(), expected);
    let lost = LostQuorum { up: 2, voters: 5 };
    assert_eq!(lost.to_string(), "2 of 5 voters of region 1 are up: no quorum");
}

#[test]
fn a_quorum_is_a_majority_of_the_voters_and_in_a_joint_change_of_both_configurations() {
    let region = |roles: &[PeerRole]| Region {
        peers: (1..)
            .zip(roles)
            .map(|(id, role)| Peer { id: PeerId(id), store: StoreId(id), role: *role })
            .collect(),
        ..Region::default()
    };
    use PeerRole::{DemotingVoter, IncomingVoter, Learner, Voter};
    let lost = |roles: &[PeerRole], up: &[u64]| {
        LostQuorum::of(&region(roles), |store| up.contains(&store.0))
            .map(|LostQuorum { up, voters }| (up, voters))
    };
    assert_eq!(lost(&[Voter], &[1]), None);
    assert_eq!(lost(&[Voter, Voter], &[1]), Some((1, 2)));
    assert_eq!(lost(&[Voter, Voter, Learner], &[1, 3]), Some((1, 2)), "learners have no vote");
    assert_eq!(lost(&[Voter, Voter, Voter], &[1, 3]), None);
    assert_eq!(lost(&[Voter, DemotingVoter, IncomingVoter], &[1, 3]), Some((1, 2)));
    assert_eq!(lost(&[Voter, DemotingVoter, IncomingVoter], &[1, 2]), Some((1, 2)));
    assert_eq!(lost(&[Voter, DemotingVoter, IncomingVoter], &[1, 2, 3]), None);
}

#[tokio::test]
async fn another_clusters_node_is_turned_away() {
    let nodes = Nodes::new();
    let header = Some(wire::RequestHeader { cluster_id: 5, forwarded: false });
    let request = wire::ListStoresRequest { header, ..Default::default() };
    let status = nodes.node(1).list_stores(request).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().starts_with("mismatch cluster id, need 77 but got 5"));
}

// Catalogue: 48.
#[tokio::test]
async fn numbers_are_unique_across_leaders_and_failing_proposals() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let mut seen = BTreeSet::new();
    for round in 0..60 {
        let node = 1 + round % 3;
        nodes.elect(Some(node));
        nodes.world.lock().fault = match round % 4 {
            1 => Some(Fault::Lost),
            2 => Some(Fault::Unknown),
            _ => None,
        };
        for count in [1, 3, 70] {
            let Ok(first) = nodes.node(node).alloc_ids(count).await else { continue };
            for id in first..first + u64::from(count) {
                assert!(seen.insert(id), "{id} twice, round {round}");
            }
        }
    }
    assert!(seen.len() > 3000);
}

#[tokio::test]
async fn numbers_of_moments_ascend_across_leaders() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let mut numbers = vec![0];
    for round in 0..30 {
        let node = 1 + round % 3;
        nodes.elect(Some(node));
        for _ in 0..round % 5 {
            let number = nodes.node(node).take_ids(1).await.unwrap();
            assert!(number > *numbers.last().unwrap(), "{number} after {numbers:?}");
            numbers.push(number);
        }
    }
    assert!(numbers.len() > 30);
}

#[tokio::test]
async fn a_moment_without_an_answer_names_the_node_and_one_is_taken_at_a_time() {
    let nodes = Nodes::of_level(Level::MOMENTS);
    nodes.node(1).tick().await;
    let request = wire::TakeMomentRequest { attempts_max: 1, header: None };
    let (first, second) =
        tokio::join!(nodes.node(1).take_moment(request), nodes.node(1).take_moment(request));
    let refused = [first, second].map(Result::unwrap_err);
    assert!(refused.iter().all(|status| status.code() == Code::FailedPrecondition), "{refused:?}");
    // No process listens at the address of the fake node.
    let unanswered = format!("no moment in 1 attempt: node {} did not answer", address(1));
    for text in [&*unanswered, "a moment is being taken already"] {
        let count = refused.iter().filter(|status| status.message().starts_with(text)).count();
        assert_eq!(count, 1, "{text}: {refused:?}");
    }
    let status = nodes.node(2).take_moment(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "it does not reach the leader: {status:?}");
}

#[tokio::test]
async fn a_decision_whose_proposal_was_lost_is_not_seen_and_an_unknown_one_is_looked_up() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    nodes.world.lock().fault = Some(Fault::Lost);
    let set = |value| nodes.node(1).set_setting("replicas", value, false);
    assert_eq!(set("5").await.unwrap_err().code(), Code::Unavailable);
    let value = async || {
        let items = nodes.node(1).settings(&["replicas".to_owned()], false).await.unwrap();
        items[0].value.clone()
    };
    assert_eq!(value().await, "3");
    nodes.world.lock().fault = Some(Fault::Unknown);
    assert_eq!(set("5").await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(value().await, "5");
    assert_eq!(set("99").await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(set("x").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_setting_with_names_is_set_and_shown_by_name() {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let set = |value| nodes.node(1).set_setting("placement_mode", value, false);
    let item = set("alor").await.unwrap();
    assert_eq!((&*item.value, &*item.source), ("alor", "set"));
    assert_eq!(item.names, ["even", "leaders", "alor", "quorum"]);
    assert_eq!((&*item.minimum, &*item.maximum), ("", ""));
    assert_eq!(set("0").await.unwrap().value, "even");
    for wrong in ["fastest", "on", "4"] {
        assert!(set(wrong).await.is_err(), "{wrong}");
    }
    assert_eq!(set("4").await.unwrap_err().code(), Code::FailedPrecondition);
    let refused = set("fastest").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("one of even, leaders, alor, quorum"), "{refused}");
}

#[tokio::test]
async fn a_deposed_leader_decides_nothing_and_forgets_what_it_knew() {
    let nodes = Nodes::new();
    nodes.join(1, b"a").await;
    nodes.elect(Some(2));
    nodes.elect(Some(1));
    // Its state is of an earlier term: it must be loaded again before anything is decided.
    nodes.world.lock().pairs.insert(
        stele_placement::pairs::setting("replicas", 5).key,
        stele_placement::pairs::setting("replicas", 5).value.unwrap(),
    );
    let items = nodes.node(1).settings(&["replicas".to_owned()], false).await.unwrap();
    assert_eq!(items[0].value, "5");
    nodes.elect(Some(2));
    nodes.node(1).tick().await;
    assert!(!nodes.node(1).leads());
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_break_a_decision_in_two() {
    let gate = Arc::new(Semaphore::new(100));
    let nodes = Nodes::with_gate(Some(gate.clone()));
    nodes.node(1).tick().await;
    gate.forget_permits(usize::MAX);
    let service = nodes.node(1).clone();
    let call = tokio::spawn(async move { service.set_setting("replicas", "5", false).await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    call.abort();
    assert!(call.await.is_err());
    gate.add_permits(100);
    // The next decision waits for the previous one; then both are in memory and persisted.
    nodes.node(1).set_setting("balance", "off", false).await.unwrap();
    let names = ["replicas".to_owned(), "balance".to_owned()];
    let items = nodes.node(1).settings(&names, false).await.unwrap();
    let values: Vec<&str> = items.iter().map(|item| &*item.value).collect();
    assert_eq!(values, ["5", "0"]);
}

// Catalogue: 50.
#[tokio::test]
async fn a_store_that_the_cluster_needs_does_not_leave() {
    let nodes = Nodes::new();
    let second = nodes.join(2, b"b").await;
    let state = |store_id, action| wire::SetStoreStateRequest {
        store_id,
        action: action as i32,
        ..Default::default()
    };
    let drain = wire::StoreAction::Drain;
    let regions = vec![report(&region(1, 1, &[])), report(&region(2, 1, &[]))];
    nodes.node(1).heartbeat(heartbeat(1, 1, 1, regions)).await.unwrap();
    let status = nodes.node(1).set_store_state(state(1, drain)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "not every node has reported yet");
    nodes.node(1).heartbeat(heartbeat(2, second, 1, vec![])).await.unwrap();
    let status = nodes.node(1).set_store_state(state(1, drain)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let status = nodes.node(1).set_store_state(state(99, drain)).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    nodes.node(1).set_setting("replicas", "1", false).await.unwrap();
    let progress = nodes.node(1).set_store_state(state(1, drain)).await.unwrap();
    assert_eq!(progress.regions_left, 2);
    assert_eq!(progress.leaders_left, 2);
    assert_eq!(progress.state, wire::StoreState::Draining as i32);
    let cancel = wire::StoreAction::Cancel;
    let progress = nodes.node(1).set_store_state(state(1, cancel)).await.unwrap();
    assert_eq!(progress.state, wire::StoreState::Up as i32);
}
