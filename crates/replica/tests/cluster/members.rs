//! Tests of membership changes while clients write.

use crate::clients::Clients;
use crate::sim::{Backend, DATA, ModelBackend, SECOND, Sim};
use stele_replica::*;
use stele_types::*;

fn change(kind: ChangeKind, id: u64, store: u64, role: PeerRole) -> PeerChange {
    PeerChange { kind, peer: Peer { id: PeerId(id), store: StoreId(store), role } }
}

fn add<B: Backend>(sim: &mut Sim<B>, id: u64, store: u64) {
    let learner = change(ChangeKind::Add, id, store, PeerRole::Learner);
    sim.change(DATA, Admin::ChangePeers(vec![learner]));
    let voter = change(ChangeKind::Add, id, store, PeerRole::Voter);
    sim.change(DATA, Admin::ChangePeers(vec![voter]));
}

fn remove<B: Backend>(sim: &mut Sim<B>, id: u64, store: u64) {
    let gone = change(ChangeKind::Remove, id, store, PeerRole::Voter);
    sim.change(DATA, Admin::ChangePeers(vec![gone]));
}

fn voters<B: Backend>(sim: &mut Sim<B>) -> Vec<u64> {
    let leader = sim.elect(DATA);
    let region = sim.report(leader, DATA).unwrap().region;
    assert!(!region.is_joint());
    let voters = region.peers.iter().filter(|peer| peer.role == PeerRole::Voter);
    let mut stores: Vec<u64> = voters.map(|peer| peer.store.0).collect();
    stores.sort();
    stores
}

#[test]
fn one_replica_becomes_three_then_five_then_three_under_writes() {
    let mut sim = Sim::with(ModelBackend, 5, &[1], 31, |_| {});
    let mut clients = Clients::new(4, &["a", "b"], 31);
    for (id, store) in [(201, 2), (202, 3), (203, 4), (204, 5)] {
        clients.step(&mut sim);
        add(&mut sim, id, store);
        for _ in 0..20 {
            clients.step(&mut sim);
            sim.run(5_000_000);
        }
    }
    assert_eq!(voters(&mut sim), [1, 2, 3, 4, 5]);
    sim.lead(DATA, 4);
    for (id, store) in [(101, 1), (202, 3)] {
        remove(&mut sim, id, store);
        clients.step(&mut sim);
        sim.run(SECOND);
    }
    assert_eq!(voters(&mut sim), [2, 4, 5]);
    sim.settle();
    for store in [1, 3] {
        assert!(sim.reports(store).is_empty(), "store {store} truncated its log");
        assert_eq!(sim.value(store, "a"), None);
    }
    clients.check(&mut sim);
}

// Catalogue: 44.
#[test]
fn a_voter_is_replaced_in_one_joint_change_that_the_leader_leaves() {
    let mut sim = Sim::with(ModelBackend, 4, &[1, 2, 3], 32, |_| {});
    sim.lead(DATA, 1);
    sim.write_surely(DATA, "k", "v");
    let learner = change(ChangeKind::Add, 301, 4, PeerRole::Learner);
    sim.change(DATA, Admin::ChangePeers(vec![learner]));
    let swap = vec![
        change(ChangeKind::Add, 301, 4, PeerRole::Voter),
        change(ChangeKind::Add, 103, 3, PeerRole::Learner),
    ];
    let joint = sim.change(DATA, Admin::ChangePeers(swap));
    assert!(joint.is_joint());
    sim.run(2 * SECOND);
    assert_eq!(voters(&mut sim), [1, 2, 4]);
    remove(&mut sim, 103, 3);
    sim.settle();
    assert_eq!(sim.value(4, "k").as_deref(), Some("v"));
    assert!(sim.reports(3).is_empty());
}

// Catalogue: 28.
#[test]
fn a_replica_that_lost_its_disk_is_replaced_by_a_new_one_with_a_new_name() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 33, |_| {});
    for i in 0..20 {
        sim.write_surely(DATA, &format!("k{i}"), "v");
    }
    sim.crash(3);
    sim.nodes.remove(&3);
    sim.elect(DATA);
    remove(&mut sim, 103, 3);
    sim.add_store(4, &[]);
    add(&mut sim, 401, 4);
    assert_eq!(voters(&mut sim), [1, 2, 4]);
    let leader = sim.elect(DATA);
    sim.crash(leader);
    let leader = sim.elect(DATA);
    assert_eq!(sim.value(leader, "k19").as_deref(), Some("v"));
    sim.write_surely(DATA, "after", "v");
    sim.settle();
}

// Catalogue: 47.
#[test]
fn a_replica_that_was_down_when_removed_is_destroyed_when_it_returns() {
    let mut sim = Sim::with(ModelBackend, 4, &[1, 2, 3], 34, |_| {});
    sim.lead(DATA, 1);
    sim.crash(3);
    remove(&mut sim, 103, 3);
    sim.write_surely(DATA, "k", "v");
    sim.start(3);
    sim.run_until(10 * SECOND, "store 3 truncates its log", |sim| sim.reports(3).is_empty());
    sim.restart(3);
    sim.run(3 * SECOND);
    assert!(sim.reports(3).is_empty(), "it stays away");
    assert_eq!(sim.leader(DATA), Some(1), "and disturbs no other store");
}

// Catalogue: 54.
#[test]
fn a_follower_that_lags_beyond_the_log_gets_a_snapshot() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 35, |options| {
        options.log_kept.entries = 10;
        options.log_kept.pin_bytes_max = 100;
    });
    sim.lead(DATA, 1);
    sim.write_surely(DATA, "gone", "v");
    sim.isolate(3);
    for i in 0..600 {
        sim.write(1, DATA, crate::sim::put(&format!("k{i}"), "v"));
    }
    let mut delete = CommandBuilder::new();
    delete.delete(&crate::sim::key("gone")).unwrap();
    let id = sim.write(1, DATA, delete.build().bytes().clone());
    sim.run(SECOND);
    assert!(sim.is_written(id));
    sim.checkpoint();
    let what = "the leader truncates its log";
    sim.run_until(20 * SECOND, what, |sim| sim.report(1, DATA).unwrap().truncated.0 > 500);
    sim.net.heal();
    sim.settle();
    assert_eq!(sim.value(3, "k599").as_deref(), Some("v"));
    assert_eq!(sim.value(3, "gone"), None);
    assert!(sim.report(3, DATA).unwrap().truncated.0 > 500, "it started from a snapshot");
}

/// Isolates store 3 while the leader, store 1, writes `count` entries of 1 KiB.
fn leave_behind<B: Backend>(sim: &mut Sim<B>, count: usize) {
    sim.lead(DATA, 1);
    sim.write_surely(DATA, "first", "v");
    sim.isolate(3);
    write_many(sim, count);
}

fn write_many<B: Backend>(sim: &mut Sim<B>, count: usize) {
    let value = "v".repeat(1 << 10);
    for i in 0..count {
        sim.write(1, DATA, crate::sim::put(&format!("k{i}"), &value));
    }
    sim.run(SECOND / 5);
}

// Catalogue: 54.
#[test]
fn a_follower_that_pins_too_much_gets_a_snapshot_though_no_checkpoint_was_due() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 37, |options| {
        options.log_kept.entries = 10;
        options.log_kept.pin_bytes_max = 100 << 10;
    });
    leave_behind(&mut sim, 80);
    sim.run(2 * SECOND);
    assert!(sim.report(1, DATA).unwrap().truncated.0 < 10, "the budget is not used up");
    write_many(&mut sim, 400);
    let what = "the leader requests a checkpoint and truncates its log";
    sim.run_until(5 * SECOND, what, |sim| sim.report(1, DATA).unwrap().truncated.0 > 400);
    sim.net.heal();
    sim.settle();
    assert_eq!(sim.value(3, "k399").map(|value| value.len()), Some(1 << 10));
    assert!(sim.report(3, DATA).unwrap().truncated.0 > 400, "it started from a snapshot");
}

// Catalogue: 59.
#[test]
fn what_follows_a_snapshot_on_its_way_is_kept_for_its_receiver() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 38, |options| {
        options.log_kept.entries = 10;
        options.log_kept.pin_bytes_max = 1 << 20;
    });
    leave_behind(&mut sim, 1_200);
    let what = "the leader truncates its log";
    sim.run_until(5 * SECOND, what, |sim| sim.report(1, DATA).unwrap().truncated.0 > 1_000);
    let sent = |sim: &Sim<_>| sim.events.iter().filter(|it| it.contains("store 1 sends")).count();
    sim.net.heal();
    sim.run_until(5 * SECOND, "a snapshot leaves", |sim| sent(sim) == 1);
    let at = sim.report(1, DATA).unwrap().applied;
    sim.node(3).paused_until = sim.now + 3 * SECOND;
    write_many(&mut sim, 300);
    sim.checkpoint();
    sim.run(2 * SECOND);
    let report = sim.report(1, DATA).unwrap();
    assert!(report.applied.0 > at.0 + 250 && report.truncated <= at, "{report:?} after {at}");
    sim.settle();
    assert_eq!(sent(&sim), 1, "the log goes on where the snapshot ends");
}

// Catalogue: 59.
#[test]
fn a_snapshot_of_what_the_log_holds_is_refused_for_entries_behind_it_were_acknowledged() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 36, |_| {});
    sim.lead(DATA, 1);
    sim.run(SECOND);
    sim.lost = |message| {
        let to_3 = message.to_store == StoreId(3);
        to_3 && matches!(&message.body, Body::Raft(raft) if raft.entries.is_empty())
    };
    for i in 0..5 {
        sim.write(1, DATA, crate::sim::put(&format!("k{i}"), "v"));
    }
    sim.run(30_000_000);
    let report = sim.report(3, DATA).unwrap();
    assert!(report.committed < report.last, "it holds more than it knows to be committed");
    let at = report.committed.next();
    let term = stele_storage::LogStore::term(&*sim.node(3).engine, DATA, at).unwrap();
    let peers = &report.region.peers;
    let header = SnapshotHeader {
        region: report.region.clone(),
        at: (at, term),
        leader_term: report.term,
        from: *peers.iter().find(|peer| peer.store == StoreId(1)).unwrap(),
        to: report.peer,
        bytes: 0,
        merges: None,
    };
    let id = sim.request();
    sim.step(3, Input::request(id, Request::SnapshotOffered(header)));
    let reply = sim.replies.get(&id);
    assert!(matches!(reply, Some(Reply::Refused(Refusal::Invalid(_)))), "{reply:?}");
    let after = sim.report(3, DATA).unwrap();
    assert_eq!((after.last, after.committed), (report.last, at));
}
