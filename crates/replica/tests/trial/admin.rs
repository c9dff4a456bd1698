//! Tests of membership, leadership transfer, splits and snapshots.

use super::*;
use stele_storage::StateMachine;

fn change(kind: ChangeKind, id: u64, store: u64, role: PeerRole) -> PeerChange {
    PeerChange { kind, peer: Peer { role, ..peer(id, store) } }
}

fn add(id: u64, store: u64, role: PeerRole) -> Vec<PeerChange> {
    vec![change(ChangeKind::Add, id, store, role)]
}

fn done(trial: &Trial, id: RequestId) -> Region {
    match trial.reply(id) {
        Some(Reply::Done(Done::Admin { region })) => region.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn leadership_moves_on_request() {
    let mut trial = Trial::new(3);
    trial.elect(DATA);
    for store in [3, 1, 2] {
        trial.lead(DATA, store);
        let write = trial.write(store, put("a", "1"));
        trial.settle();
        assert!(trial.is_written(write));
    }
    assert!(trial.store(2).events.iter().any(|e| matches!(e, Event::BecameLeader { .. })));
}

#[test]
fn writes_during_a_handover_wait_and_find_the_new_leader() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let transfer = trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    let write = trial.write(1, put("a", "1"));
    trial.ticks(3);
    done(&trial, transfer);
    assert_eq!(trial.refusal(write), Some(&Refusal::NotLeader { leader: Some(peer(102, 2)) }));
}

#[test]
fn a_learner_gets_a_snapshot_catches_up_and_becomes_a_voter() {
    let mut trial = Trial::new(1);
    trial.settle();
    for i in 0..20 {
        trial.write(1, put(&format!("k{i}"), "v"));
    }
    trial.settle();
    trial.add_store(2, &[]);
    let early = trial.admin(1, DATA, Admin::ChangePeers(add(102, 2, PeerRole::Voter)));
    trial.settle();
    assert!(matches!(trial.refusal(early), Some(Refusal::Invalid(_))), "{:?}", trial.reply(early));
    let learner = trial.admin(1, DATA, Admin::ChangePeers(add(102, 2, PeerRole::Learner)));
    trial.ticks(10);
    assert_eq!(done(&trial, learner).epoch.conf_version, 2);
    assert_eq!(trial.value(2, "k19").as_deref(), Some("v"));
    let voter = trial.admin(1, DATA, Admin::ChangePeers(add(102, 2, PeerRole::Voter)));
    trial.ticks(5);
    assert_eq!(done(&trial, voter).peers, [peer(101, 1), peer(102, 2)]);
    assert_eq!(trial.report(2, DATA).region.peers.len(), 2);
    trial.lead(DATA, 2);
    let write = trial.write(2, put("z", "1"));
    trial.ticks(2);
    assert!(trial.is_written(write));
    // Both keep it after a crash.
    trial.restart(1);
    trial.restart(2);
    trial.elect(DATA);
    assert_eq!(trial.value(2, "k19").as_deref(), Some("v"));
}

#[test]
fn new_members_need_no_vote_of_a_lost_one_after_a_power_cut_of_all() {
    let mut trial = Trial::new(1);
    trial.elect(DATA);
    let write = trial.write(1, put("a", "1"));
    for store in [2, 3] {
        trial.add_store(store, &[]);
        trial.admin(1, DATA, Admin::ChangePeers(add(100 + store, store, PeerRole::Learner)));
        trial.ticks(10);
    }
    let voters = [2, 3].map(|store| add(100 + store, store, PeerRole::Voter)).concat();
    let voters = trial.admin(1, DATA, Admin::ChangePeers(voters));
    trial.ticks(20);
    assert!(trial.is_written(write), "{:?}", trial.reply(voters));
    let members = trial.report(1, DATA).region;
    assert_eq!((members.is_joint(), members.peers.len()), (false, 3));
    assert!([2, 3].map(|store| trial.report(store, DATA).region) == [members.clone(), members]);
    // One is lost permanently when all lose power.
    trial.isolate(1);
    trial.restart(2);
    trial.restart(3);
    for _ in 0..100 {
        trial.ticks(1);
    }
    let leader = [2, 3]
        .map(|store| trial.report(store, DATA))
        .into_iter()
        .find(|it| it.role == Role::Leader);
    let leader = leader.expect("two of three elect one of them").peer.store.0;
    let write = trial.write(leader, put("b", "1"));
    trial.ticks(2);
    assert!(trial.is_written(write));
}

#[test]
fn fault_45_a_learner_that_was_promoted_while_it_was_cut_off_can_vote() {
    let mut trial = Trial::new(2);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.settle();
    trial.add_store(3, &[]);
    trial.admin(1, DATA, Admin::ChangePeers(add(103, 3, PeerRole::Learner)));
    trial.ticks(10);
    assert_eq!(trial.value(3, "a").as_deref(), Some("1"));
    trial.cut.extend([(1, 3), (3, 1), (2, 3), (3, 2)]);
    let promoted = trial.admin(1, DATA, Admin::ChangePeers(add(103, 3, PeerRole::Voter)));
    trial.ticks(5);
    assert_eq!(done(&trial, promoted).peers.len(), 3);
    let write = trial.write(1, put("b", "2"));
    trial.ticks(2);
    assert!(trial.is_written(write));
    let known = trial.report(3, DATA).region;
    assert_eq!(known.peer(PeerId(103)).map(|peer| peer.role), Some(PeerRole::Learner));
    // The other two need its vote when one of them is gone; it still considers itself a learner.
    trial.cut.clear();
    trial.cut.extend([(1, 2), (2, 1), (1, 3), (3, 1)]);
    for _ in 0..200 {
        trial.ticks(1);
    }
    assert_eq!(trial.leader(DATA), Some(2));
    let write = trial.write(2, put("c", "3"));
    trial.ticks(5);
    assert!(trial.is_written(write));
    assert_eq!(trial.value(3, "b").as_deref(), Some("2"));
}

// Catalogue: 44.
#[test]
fn a_replica_moves_by_a_joint_change_that_the_leader_leaves_by_itself() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.settle();
    trial.add_store(4, &[]);
    trial.admin(1, DATA, Admin::ChangePeers(add(104, 4, PeerRole::Learner)));
    trial.ticks(10);
    let swap = vec![
        change(ChangeKind::Add, 104, 4, PeerRole::Voter),
        change(ChangeKind::Add, 103, 3, PeerRole::Learner),
    ];
    let joint = trial.admin(1, DATA, Admin::ChangePeers(swap));
    trial.ticks(5);
    done(&trial, joint);
    let region = trial.report(1, DATA).region;
    assert!(!region.is_joint(), "{region:?}");
    let removed = vec![change(ChangeKind::Remove, 103, 3, PeerRole::Learner)];
    let removed = trial.admin(1, DATA, Admin::ChangePeers(removed));
    trial.ticks(5);
    done(&trial, removed);
    assert_eq!(trial.report(1, DATA).region.peers.len(), 3);
    // Its data are gone there, and it is not created again.
    trial.ticks(30);
    assert!(trial.store(3).core.region(DATA).is_none());
    assert_eq!(trial.value(3, "a"), None);
    trial.restart(3);
    trial.ticks(5);
    assert!(trial.store(3).core.region(DATA).is_none());
    assert_eq!(trial.value(4, "a").as_deref(), Some("1"));
}

// Catalogue: 47.
#[test]
fn a_peer_removed_while_it_was_away_learns_that_it_is_gone() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.settle();
    trial.isolate(3);
    let demote = trial.admin(1, DATA, Admin::ChangePeers(add(103, 3, PeerRole::Learner)));
    trial.ticks(5);
    done(&trial, demote);
    let removed = vec![change(ChangeKind::Remove, 103, 3, PeerRole::Learner)];
    let removed = trial.admin(1, DATA, Admin::ChangePeers(removed));
    trial.ticks(5);
    done(&trial, removed);
    trial.heal();
    trial.ticks(40);
    assert!(trial.store(3).core.region(DATA).is_none());
    assert_eq!(trial.value(3, "a"), None);
    assert!(trial.store(3).events.contains(&Event::RegionDestroyed(DATA)));
    trial.restart(3);
    assert!(trial.store(3).core.region(DATA).is_none(), "a crash restored it");
    // It comes back under a new id.
    let back = trial.admin(1, DATA, Admin::ChangePeers(add(203, 3, PeerRole::Learner)));
    trial.ticks(10);
    done(&trial, back);
    assert_eq!(trial.value(3, "a").as_deref(), Some("1"));
    trial.restart(3);
    trial.ticks(5);
    assert_eq!(trial.value(3, "a").as_deref(), Some("1"));
}

fn split(trial: &mut Trial, store: u64, at: &'static str, region: u64, ids: [u64; 3]) -> RequestId {
    let new = NewRegion { region: RegionId(region), peers: ids.map(PeerId).to_vec() };
    let keys = vec![Bytes::from_static(at.as_bytes())];
    trial.admin(store, DATA, Admin::Split { keys, new_ids: vec![new] })
}

#[test]
fn a_split_makes_a_region_that_elects_on_the_same_store_at_once() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.write(1, put("m", "1"));
    let behind = {
        let asked = split(&mut trial, 1, "h", 10, [201, 202, 203]);
        let id = trial.request();
        let header = Header { version: Some(1), ..trial.header(DATA) };
        let command = put("m", "2");
        trial
            .store(1)
            .core
            .step(Input::request(id, Write { header, command, only_deletes: false }));
        trial.settle();
        let region = done(&trial, asked);
        assert_eq!((region.epoch.version, &region.range.end[..]), (2, &b"h"[..]));
        id
    };
    // The request after the split is checked against the region after it.
    match trial.refusal(behind) {
        Some(Refusal::EpochNotMatch { current }) => assert_eq!(current.len(), 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(trial.leader(RegionId(10)), Some(1));
    trial.ticks(2);
    let header = Header { region: RegionId(10), version: Some(2), ..Header::default() };
    let id = trial.request();
    let command = put("m", "3");
    trial.store(1).core.step(Input::request(id, Write { header, command, only_deletes: false }));
    trial.settle();
    assert!(trial.is_written(id));
    trial.send_heartbeats();
    for store in 1..=3 {
        assert_eq!(trial.value(store, "m").as_deref(), Some("3"));
        trial.restart(store);
    }
    trial.elect(DATA);
    trial.elect(RegionId(10));
    for store in 1..=3 {
        assert_eq!(trial.value(store, "m").as_deref(), Some("3"), "store {store}");
        assert_eq!(trial.report(store, RegionId(10)).region.epoch.version, 2);
    }
}

#[test]
fn a_follower_that_slept_through_a_split_catches_up() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(3);
    let asked = split(&mut trial, 1, "h", 10, [201, 202, 203]);
    trial.ticks(3);
    done(&trial, asked);
    trial.heal();
    trial.ticks(20);
    let report = trial.report(3, RegionId(10));
    assert_eq!(report.leader.unwrap().store, StoreId(1));
    assert_eq!(report.applied, trial.report(1, RegionId(10)).applied);
}

/// A snapshot takes store 3 past a split, and store 2 is lost: the new region has no leader that
/// could create its replica on store 3, which does not vote without it.
#[test]
fn a_region_that_a_snapshot_passed_by_is_led_again_where_another_replica_is_lost() {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    trial.write(1, put("m", "1"));
    trial.settle();
    trial.isolate(3);
    let asked = split(&mut trial, 1, "h", 10, [201, 202, 203]);
    trial.settle();
    done(&trial, asked);
    outgrow_log(&mut trial);
    trial.stores.remove(&2);
    trial.restart(1);
    trial.heal();
    assert_eq!(trial.elect(DATA), 1);
    trial.ticks(5);
    assert_eq!(trial.report(3, DATA).region.epoch.version, 2);
    assert_eq!(trial.elect(RegionId(10)), 1);
    let id = trial.request();
    let header = trial.header(RegionId(10));
    let command = put("m", "2");
    trial.store(1).core.step(Input::request(id, Write { header, command, only_deletes: false }));
    trial.ticks(2);
    assert!(trial.is_written(id));
    assert_eq!(trial.value(3, "m").as_deref(), Some("2"));
}

/// The leader has no entry from which to start, and the log there continues.
#[test]
fn a_sender_learns_of_an_installed_snapshot_by_offering_it_again() {
    let mut trial = Trial::with(1, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.elect(DATA);
    outgrow_log(&mut trial);
    trial.add_store(2, &[]);
    trial.snapshot_reports_fail = true;
    // Loses all acknowledgements.
    trial.lose = |message| {
        let Body::Raft(raft) = &message.body else { return false };
        raft.kind == RaftKind::AppendResponse && !raft.reject
    };
    trial.admin(1, DATA, Admin::ChangePeers(add(102, 2, PeerRole::Learner)));
    trial.ticks(40);
    assert_eq!(trial.report(2, DATA).applied, trial.report(1, DATA).last);
    trial.snapshot_reports_fail = false;
    trial.lose = |_| false;
    trial.ticks(40);
    let promoted = trial.admin(1, DATA, Admin::ChangePeers(add(102, 2, PeerRole::Voter)));
    trial.ticks(5);
    assert_eq!(done(&trial, promoted).peers, [peer(101, 1), peer(102, 2)]);
}

// Catalogue: 54.
#[test]
fn a_follower_that_lags_past_the_log_gets_a_snapshot() {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    trial.write(1, put("stays", "1"));
    trial.write(1, put("goes", "1"));
    trial.settle();
    trial.isolate(3);
    let mut builder = CommandBuilder::new();
    builder.delete(&key("goes")).unwrap();
    trial.write(1, builder.build().bytes().clone());
    for i in 0..300 {
        trial.write(1, put(&format!("k{i}"), &"v".repeat(100)));
        trial.settle();
    }
    trial.store(1).engine.maintain(0).unwrap();
    trial.store(2).engine.maintain(0).unwrap();
    trial.ticks(2);
    trial.write(1, put("last", "1"));
    trial.ticks(2);
    assert!(trial.report(1, DATA).truncated.0 > 100);
    trial.heal();
    trial.ticks(20);
    assert_eq!(trial.value(3, "last").as_deref(), Some("1"));
    assert_eq!(trial.value(3, "goes"), None);
    assert_eq!(trial.value(3, "stays").as_deref(), Some("1"));
    assert!(trial.report(3, DATA).truncated.0 > 100);
    trial.restart(3);
    trial.ticks(20);
    let write = trial.write(1, put("after", "1"));
    trial.ticks(2);
    assert!(trial.is_written(write));
    assert_eq!(trial.value(3, "after").as_deref(), Some("1"));
}

#[test]
fn followers_learn_of_a_write_with_what_is_sent_next_and_of_a_split_at_once() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    assert_eq!(trial.value(2, "a"), None, "a message of its own sent the commit index");
    let other = trial.write(1, put("b", "1"));
    trial.settle();
    assert!(trial.is_written(other));
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"));
    assert_eq!(trial.value(2, "b"), None);
    trial.send_heartbeats();
    assert_eq!(trial.value(2, "b").as_deref(), Some("1"), "no heartbeat sent the commit index");
    let asked = split(&mut trial, 1, "h", 10, [201, 202, 203]);
    trial.settle();
    done(&trial, asked);
    (1..=3).for_each(|store| assert!(trial.store(store).core.region(RegionId(10)).is_some()));
}

#[test]
fn a_snapshot_does_not_take_keys_that_another_replica_here_owns() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("m", "1"));
    trial.settle();
    trial.send_heartbeats();
    // Store 3 no longer receives messages of the parent, so it keeps its whole range.
    trial.lose = |m| m.region == DATA && m.to_store == StoreId(3);
    let asked = split(&mut trial, 1, "h", 10, [201, 202, 203]);
    trial.settle();
    done(&trial, asked);
    trial.ticks(20);
    assert_eq!(trial.leader(RegionId(10)), Some(1));
    assert!(trial.store(3).core.region(RegionId(10)).is_none());
    assert_eq!(trial.value(3, "m").as_deref(), Some("1"));
    trial.lose = |_| false;
    trial.ticks(40);
    assert_eq!(trial.report(3, RegionId(10)).leader, Some(peer(201, 1)));
    assert_eq!(trial.report(3, DATA).region.epoch.version, 2);
}

#[test]
fn a_replica_that_shrinks_by_a_snapshot_leaves_pairs_that_no_region_here_owns() {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    trial.write(1, put("m", "old"));
    trial.settle();
    trial.isolate(3);
    let asked = split(&mut trial, 1, "h", 10, [201, 202, 203]);
    trial.settle();
    done(&trial, asked);
    let id = trial.request();
    let header = trial.header(RegionId(10));
    let command = put("m", "new");
    trial.store(1).core.step(Input::request(id, Write { header, command, only_deletes: false }));
    trial.ticks(2);
    assert!(trial.is_written(id));
    outgrow_log(&mut trial);
    // The child is never created on store 3.
    trial.cut.clear();
    trial.lose = |m| m.region == RegionId(10) && m.to_store == StoreId(3);
    trial.ticks(20);
    assert_eq!(trial.report(3, DATA).region.epoch.version, 2);
    assert_eq!(trial.value(3, "a199").map(|v| v.len()), Some(100));
    assert_eq!(trial.store(3).core.orphaned_ranges(), [KeyRange::new("h", "")]);
    assert_eq!(trial.value(3, "m").as_deref(), Some("old"));
    // The child's pairs replace them.
    trial.lose = |_| false;
    trial.ticks(40);
    assert_eq!(trial.value(3, "m").as_deref(), Some("new"));
    assert!(trial.store(3).core.orphaned_ranges().is_empty());
}

type Offered = (SnapshotHeader, Vec<Vec<stele_storage::Pair>>);

/// Offers store 3 a snapshot of what store 1 has applied; it accepts.
fn offered(trial: &mut Trial) -> Offered {
    let report = trial.report(1, DATA);
    let header = SnapshotHeader {
        region: report.region.clone(),
        at: (report.applied, report.term),
        leader_term: report.term,
        from: peer(101, 1),
        to: peer(103, 3),
        bytes: 0,
        merges: None,
    };
    let id = trial.request();
    trial.store(3).core.step(Input::request(id, Request::SnapshotOffered(header.clone())));
    trial.settle();
    let Some(Reply::Done(Done::SnapshotAccepted { ranges })) = trial.reply(id) else {
        panic!("{:?}", trial.reply(id));
    };
    let ranges = ranges.clone();
    let view = trial.store(1).engine.view().unwrap();
    let pairs = |range| view.scan(&ScanOptions::new(range, usize::MAX)).unwrap();
    (header, ranges.into_iter().map(pairs).collect())
}

/// Lets store 3 receive a snapshot that it accepted.
fn receive(trial: &mut Trial, (header, parts): &Offered) {
    let store = trial.store(3);
    let mut ingest = store.engine.begin_ingest(snapshot_ranges(&header.region)).unwrap();
    parts.iter().for_each(|pairs| store.engine.receive(&mut ingest, pairs.clone()).unwrap());
    store.core.step(Input::SnapshotReceived { header: header.clone(), ingest });
    trial.settle();
}

#[test]
fn one_snapshot_of_a_region_waits_and_the_sender_of_another_is_told_to_wait() {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    // A batch of store 3 is being written: no snapshot is installed meanwhile.
    trial.store(3).stalled = true;
    trial.write(1, put("x", "1"));
    trial.settle();
    trial.isolate(3);
    outgrow_log(&mut trial);
    let lesser = offered(&mut trial);
    trial.write(1, put("b", "2"));
    trial.settle();
    let greater = offered(&mut trial);
    // Both are on their way at once. The greater one stays.
    receive(&mut trial, &greater);
    receive(&mut trial, &lesser);
    let id = trial.request();
    trial.store(3).core.step(Input::request(id, Request::SnapshotOffered(greater.0.clone())));
    trial.settle();
    let reason = "another snapshot of the region waits to be installed";
    assert_eq!(trial.busy(id), Some(&Busy::Wait { reason }));
    trial.store(3).stalled = false;
    trial.settle();
    assert_eq!(trial.report(3, DATA).applied, greater.0.at.0);
    assert_eq!(trial.value(3, "b").as_deref(), Some("2"));
    trial.heal();
    trial.ticks(20);
    assert_eq!(trial.report(3, DATA).applied, trial.report(1, DATA).applied);
}
