use super::fake::{Nodes, address, halves, heartbeat, region, report};
use stele_proto::stele::control::v1 as wire;
use stele_proto::stele::control::v1::operator_step::Step;
use stele_types::{PeerId, PeerRole, Region, StoreId};
use tonic::Code;

pub(super) async fn three_nodes() -> (Nodes, [u64; 2]) {
    let nodes = Nodes::new();
    nodes.node(1).tick().await;
    let stores = [nodes.join(2, b"b").await, nodes.join(3, b"c").await];
    let regions = vec![report(&region(1, 1, &[])), report(&region(2, 1, &[]))];
    for (node, store, regions) in [(2, stores[0], vec![]), (3, stores[1], vec![]), (1, 1, regions)]
    {
        nodes.node(1).heartbeat(heartbeat(node, store, 1, regions)).await.unwrap();
    }
    (nodes, stores)
}

#[tokio::test]
async fn joined_stores_get_numbers_once_and_members_are_told() {
    let nodes = Nodes::new();
    let first = nodes.join(2, b"same").await;
    assert_eq!(nodes.join(2, b"same").await, first);
    assert_ne!(nodes.join(2, b"other").await, first);
    let members = nodes.node(1).members().unwrap();
    assert_eq!(members.members.len(), 2);
    assert!(members.members[0].leads_placement && !members.members[1].leads_placement);
    let answer = nodes.node(1).heartbeat(heartbeat(1, 1, 1, vec![])).await.unwrap();
    assert_eq!(answer.members.len(), 2);
    let mut again = heartbeat(1, 1, 2, vec![]);
    again.members_version = answer.members_version;
    assert!(nodes.node(1).heartbeat(again).await.unwrap().members.is_empty());
}

#[tokio::test]
async fn nodes_learn_within_a_report_which_stores_slow_their_writers_and_silence_ends_it() {
    let (nodes, stores) = three_nodes().await;
    let slowdowns = async |sequence| {
        let answer = nodes.node(1).heartbeat(heartbeat(1, 1, sequence, vec![])).await.unwrap();
        let slowdown = |it: &wire::StoreSlowdown| (it.store_id, it.nanos_per_kib);
        answer.slowdowns.iter().map(slowdown).collect::<Vec<_>>()
    };
    let lags = async |sequence, nanos_per_kib| {
        let mut report = heartbeat(2, stores[0], sequence, vec![]);
        report.stores[0].slowdown_nanos_per_kib = nanos_per_kib;
        nodes.node(1).heartbeat(report).await.unwrap();
    };
    lags(2, 5000).await;
    assert_eq!(slowdowns(2).await, [(stores[0], 5000)]);
    lags(3, 0).await;
    assert!(slowdowns(3).await.is_empty());
    lags(4, 7000).await;
    assert_eq!(slowdowns(4).await, [(stores[0], 7000)]);
    nodes.clock.advance_seconds(3600);
    assert!(slowdowns(5).await.is_empty(), "its leaders wait for a store that is gone");
}

#[tokio::test]
async fn regions_grow_onto_new_nodes_step_by_step() {
    let (nodes, stores) = three_nodes().await;
    nodes.node(1).tick().await;
    let beat = |sequence, region: Region| {
        nodes.node(1).heartbeat(heartbeat(1, 1, sequence, vec![report(&region)]))
    };
    let answer = beat(2, region(2, 1, &[])).await.unwrap();
    assert_eq!(answer.interval_ms, 100);
    let step = answer.steps.iter().find(|step| step.region_id == 2).unwrap();
    let Some(Step::ChangePeers(changes)) = &step.step else { panic!("{step:?}") };
    let learner = changes.changes[0].peer.unwrap();
    assert_eq!(learner.role, PeerRole::Learner as u32);
    assert!(stores.contains(&learner.store_id) && learner.id > 2);
    let mut grown = region(2, 2, &[learner.store_id]);
    grown.peers[1].id = PeerId(learner.id);
    grown.peers[1].role = PeerRole::Learner;
    let answer = beat(3, grown.clone()).await.unwrap();
    let step = answer.steps.iter().find(|step| step.region_id == 2).unwrap();
    assert_eq!((step.index, step.conf_version), (1, 2));
    // A late report does not move the region back, nor does one of an older epoch.
    let answer = beat(2, region(2, 1, &[])).await.unwrap();
    assert!(answer.steps.iter().all(|step| step.region_id != 2 || step.index == 1));
    let known = nodes.node(1).region_by_key(b"k").await.unwrap().unwrap();
    assert_eq!(known.region, grown);
}

#[tokio::test]
async fn a_new_leader_asks_for_all_regions_and_knows_the_descriptors_before() {
    let (nodes, _) = three_nodes().await;
    let [left, right] = halves(2, 50);
    let reports = vec![report(&left), report(&right)];
    nodes.node(1).heartbeat(heartbeat(1, 1, 2, reports)).await.unwrap();
    nodes.node(1).tick().await;
    nodes.elect(Some(2));
    let known = nodes.node(2).region_by_key(b"z").await.unwrap().unwrap();
    assert_eq!((known.region, known.leader), (right, None));
    let mut partial = heartbeat(1, 1, 3, vec![report(&left)]);
    partial.all_regions = false;
    assert!(nodes.node(2).heartbeat(partial).await.unwrap().all_regions_wanted);
    let full = heartbeat(1, 1, 4, vec![report(&left)]);
    assert!(!nodes.node(2).heartbeat(full).await.unwrap().all_regions_wanted);
}

#[tokio::test]
async fn unknown_stores_are_refused_and_stale_peers_are_judged_by_later_membership() {
    let (nodes, stores) = three_nodes().await;
    let status = nodes.node(1).heartbeat(heartbeat(2, 99, 1, vec![])).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let later = vec![report(&region(2, 9, &[]))];
    nodes.node(1).heartbeat(heartbeat(1, 1, 2, later)).await.unwrap();
    let stray = |conf_version| wire::StrayPeer {
        store_id: stores[0],
        region_id: 2,
        peer_id: 44,
        conf_version,
        version: 1,
    };
    let mut beat = heartbeat(2, stores[0], 2, vec![]);
    beat.stray_peers = vec![stray(8), stray(9)];
    let removed = nodes.node(1).heartbeat(beat).await.unwrap().gone_peers;
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0].conf_version, 9);
}

#[tokio::test]
async fn malformed_reports_are_left_out() {
    let (nodes, _) = three_nodes().await;
    let mut cut = report(&region(2, 5, &[]));
    cut.region = cut.region.slice(1..);
    let mut no_leader = report(&region(2, 6, &[]));
    no_leader.leader_peer = 12345;
    nodes.node(1).heartbeat(heartbeat(1, 1, 2, vec![cut, no_leader])).await.unwrap();
    let known = nodes.node(1).region_by_key(b"").await.unwrap().unwrap();
    assert_eq!(known.region.epoch.conf_version, 1);
}

#[tokio::test]
async fn an_address_that_changes_is_persisted_and_silence_makes_a_store_down() {
    let (nodes, stores) = three_nodes().await;
    let mut moved = heartbeat(2, stores[0], 2, vec![]);
    moved.address = "127.0.0.1:7777".into();
    let answer = nodes.node(1).heartbeat(moved).await.unwrap();
    assert!(answer.members.iter().any(|member| member.address == "127.0.0.1:7777"));
    nodes.clock.advance_seconds(1801);
    nodes.node(1).heartbeat(heartbeat(1, 1, 3, vec![])).await.unwrap();
    let request = wire::ListStoresRequest { ids: vec![stores[0]], ..Default::default() };
    let stores_now = nodes.node(1).list_stores(request.clone()).await.unwrap().stores;
    assert!(stores_now[0].down && stores_now[0].heartbeat_age_ms > 1_800_000);
    nodes.elect(Some(3));
    let stores_now = nodes.node(3).list_stores(request).await.unwrap().stores;
    assert_eq!(stores_now[0].address, "127.0.0.1:7777");
    assert_eq!((stores_now[0].heartbeat_age_ms, stores_now[0].down), (-1, false));
}

#[tokio::test]
async fn manual_operators_are_checked_listed_and_cancelled() {
    let (nodes, stores) = three_nodes().await;
    let full = region(2, 5, &stores);
    let beat = |sequence, region: &Region| {
        nodes.node(1).heartbeat(heartbeat(1, 1, sequence, vec![report(region)]))
    };
    beat(2, &full).await.unwrap();
    let transfer = |region_id, to_store| wire::TransferRequest {
        region_id,
        to_store,
        ..wire::TransferRequest::default()
    };
    let code = async |request| nodes.node(1).transfer(request).await.map_err(|s| s.code());
    assert_eq!(code(transfer(9, 1)).await, Err(Code::NotFound));
    assert_eq!(code(transfer(2, 77)).await, Err(Code::FailedPrecondition));
    let accepted = code(transfer(2, stores[0])).await.unwrap();
    assert_eq!(code(transfer(2, stores[1])).await, Err(Code::AlreadyExists));
    let steps = beat(3, &full).await.unwrap().steps;
    let to = full.peer_on(StoreId(stores[0])).unwrap().id.0;
    let expected = Step::TransferLeader(wire::TransferLeaderStep { peer_ids: vec![to] });
    assert!(steps.iter().any(|step| step.step.as_ref() == Some(&expected)), "{steps:?}");
    let cancel = wire::CancelOperatorRequest { region_id: 2, ..Default::default() };
    let cancelled = nodes.node(1).cancel_operator(cancel).await.unwrap().operator.unwrap();
    assert_eq!(cancelled.id, accepted.operator_id);
    let list = wire::ListOperatorsRequest { region_id: 2, ended: true, ..Default::default() };
    let listed = nodes.node(1).list_operators(list).await.unwrap().operators;
    assert_eq!(listed.last().unwrap().state, wire::OperatorState::Cancelled as i32);
    let split = |keys: &[&'static [u8]]| wire::SplitRequest {
        region_id: 2,
        keys: keys.iter().map(|key| bytes::Bytes::from_static(key)).collect(),
        ..wire::SplitRequest::default()
    };
    assert!(nodes.node(1).split(split(&[b"b", b"a"])).await.is_err());
    assert!(nodes.node(1).split(split(&[b""])).await.is_err());
    nodes.node(1).split(split(&[b"a", b"b"])).await.unwrap();
    let steps = beat(4, &full).await.unwrap().steps;
    let Some(Step::Split(split)) = &steps[0].step else { panic!("{steps:?}") };
    assert_eq!(split.new_regions.len(), 2);
    assert!(split.new_regions.iter().all(|new| new.peer_ids.len() == 3 && new.region_id > 2));
    let refusal = wire::OperatorOutcome {
        operator_id: steps[0].operator_id,
        region_id: 2,
        refusal: "the device is full".into(),
        ..wire::OperatorOutcome::default()
    };
    let mut beat = heartbeat(1, 1, 5, vec![]);
    beat.outcomes = vec![refusal];
    nodes.node(1).heartbeat(beat).await.unwrap();
    let list = wire::ListOperatorsRequest { region_id: 2, ..Default::default() };
    let listed = nodes.node(1).list_operators(list).await.unwrap().operators;
    assert_eq!(listed[0].detail, "the device is full");
    assert_eq!(address(1), nodes.node(1).members().unwrap().members[0].address);
}

#[tokio::test]
async fn a_new_leader_refuses_nothing_for_want_of_reports() {
    let (nodes, stores) = three_nodes().await;
    nodes.elect(Some(2));
    let drain = || wire::SetStoreStateRequest {
        store_id: stores[1],
        action: wire::StoreAction::Drain as i32,
        header: None,
    };
    let transfer = || wire::TransferRequest { region_id: 2, to_store: 1, header: None };
    let later = [
        nodes.node(2).transfer(transfer()).await.map(drop).unwrap_err(),
        nodes.node(2).set_store_state(drain()).await.map(drop).unwrap_err(),
    ];
    for status in later {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert_eq!(status.metadata().get("stele-retry-ms").unwrap(), "200");
        assert!(status.message().contains("leader is new"), "{status}");
    }
    // After the settling time, missing knowledge is a reason to refuse.
    nodes.clock.advance_seconds(5);
    let status = nodes.node(2).transfer(transfer()).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[tokio::test]
async fn a_node_with_another_tick_neither_joins_nor_reports_and_learns_the_remedy() {
    let (nodes, stores) = three_nodes().await;
    let slower = wire::LeaseTimes { tick_nanos: 100_000_000, election_ticks_min: 10 };
    let mut request = wire::JoinRequest {
        address: address(4),
        stores: vec![wire::NewStore { token: "d".into(), capacity: 1, ..Default::default() }],
        lease_times: Some(slower),
        ..wire::JoinRequest::default()
    };
    let refused = nodes.node(1).join(request.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let [own, other] = [address(1), address(4)];
    let text = format!("{own} has tick_ms = 50 and {other} has tick_ms = 100");
    assert!(refused.message().contains(&text), "{}", refused.message());
    assert!(refused.message().contains("set tick_ms to the same value on every node"));
    assert!(refused.message().contains("joins without tick_ms, and takes the tick of the cluster"));
    let members = nodes.node(1).members().unwrap().members;
    assert_eq!(members.len(), 3, "it is not a member");
    let mut beat = heartbeat(2, stores[0], 2, vec![]);
    beat.lease_times = Some(slower);
    let refused = nodes.node(1).heartbeat(beat.clone()).await.unwrap_err();
    assert!(refused.message().contains("tick_ms = 100"), "{}", refused.message());
    let times = wire::LeaseTimes { tick_nanos: 50_000_000, election_ticks_min: 10 };
    (beat.lease_times, request.lease_times) = (Some(times), Some(times));
    nodes.node(1).heartbeat(beat).await.unwrap();
    let joined = nodes.node(1).join(request.clone()).await.unwrap();
    assert_eq!(joined.lease_times, Some(times));
    // A node of an earlier version states none, and one that takes those of the cluster.
    request.lease_times = None;
    assert_eq!(nodes.node(1).join(request).await.unwrap(), joined);
}

#[tokio::test]
async fn replies_contain_whether_leases_are_on_and_the_term_of_the_leader_that_says_so() {
    let (nodes, _) = three_nodes().await;
    let found = async |node: usize, sequence| {
        let answer = nodes.node(node).heartbeat(heartbeat(1, 1, sequence, vec![])).await.unwrap();
        (crate::placement::answer_of(&answer, 0).0.leases, answer.options_version)
    };
    let (leases, term) = found(1, 2).await;
    assert_eq!(leases, Some(true));
    nodes.node(1).set_setting("leases", "off", false).await.unwrap();
    assert_eq!(found(1, 3).await, (Some(false), term));
    nodes.elect(Some(2));
    let (leases, later) = found(2, 4).await;
    assert!(leases == Some(false) && later > term, "{leases:?} {later}");
    nodes.node(2).set_setting("leases", "1", false).await.unwrap();
    assert_eq!(found(2, 5).await, (Some(true), later));
}

#[tokio::test]
async fn replies_contain_the_clusters_time_once_most_nodes_have_reported_theirs() {
    let (nodes, stores) = three_nodes().await;
    let found = async |node, store, unix_s| {
        let beat = wire::HeartbeatRequest { unix_s, ..heartbeat(node, store, 2, vec![]) };
        let answer = nodes.node(1).heartbeat(beat).await.unwrap();
        crate::placement::answer_of(&answer, 0).0.unix_s
    };
    assert_eq!(found(1, 1, 90_000).await, 0, "one of three; it leads, and its clock is ahead");
    assert_eq!(found(2, stores[0], 1_000).await, 1_000, "the lower of two");
    nodes.clock.advance_seconds(1);
    assert_eq!(found(3, stores[1], 1_010).await, 1_010, "the middle one");
}

#[tokio::test]
async fn replies_name_an_idle_store_that_was_slow_for_a_measurement_once_a_minute() {
    let (nodes, _) = three_nodes().await;
    let mut sequence = 1;
    let mut report = async |fixed_nanos, writes| {
        sequence += 1;
        nodes.clock.advance_seconds(1);
        let mut beat = heartbeat(1, 1, sequence, vec![]);
        let write = Some(wire::OpCost { fixed_nanos, picos_per_byte: 0 });
        beat.stores[0].device = Some(wire::DeviceSpeed { write, writes, ..Default::default() });
        let answer = nodes.node(1).heartbeat(beat).await.unwrap();
        crate::placement::answer_of(&answer, 0).0.measured
    };
    // Slow writes for four seconds, then none: the store reports the estimate of its probe.
    for _ in 0..4 {
        assert_eq!(report(100_000_000, 8).await, []);
    }
    let mut asked = Vec::new();
    for second in 1..=130 {
        if report(100_000, 0).await == [StoreId(1)] {
            asked.push(second);
        }
    }
    assert_eq!(asked, [60, 120]);
}
