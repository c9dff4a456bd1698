//! Tests of regions that go on without a lost majority.

use super::*;

/// Returns the recovery of a store's replica of the region, as a caller that compared all replicas
/// that are left would request it.
fn recovery(trial: &mut Trial, store: u64, left: &[u64], lost: &[u64]) -> Admin {
    let last = trial.report(store, DATA).last;
    let last_term = trial.store(store).engine.term(DATA, last).unwrap();
    let term = left.iter().map(|it| trial.report(*it, DATA).term).max().unwrap();
    let lost = lost.iter().copied().map(StoreId).collect();
    Admin::Recover(Recovery { lost, last: (last, last_term), term, command: None })
}

fn recover(trial: &mut Trial, store: u64, left: &[u64], lost: &[u64]) -> Region {
    let call = recovery(trial, store, left, lost);
    let id = trial.admin(store, DATA, call);
    trial.settle();
    match trial.reply(id) {
        Some(Reply::Done(Done::Admin { region })) => region.clone(),
        other => panic!("{other:?}"),
    }
}

fn refused(trial: &mut Trial, store: u64, call: Admin) -> String {
    let id = trial.admin(store, DATA, call);
    trial.settle();
    match trial.refusal(id) {
        Some(Refusal::Invalid(reason)) => reason.clone(),
        _ => panic!("{:?}", trial.reply(id)),
    }
}

fn lose(trial: &mut Trial, stores: &[u64]) {
    for store in stores {
        trial.stores.remove(store);
    }
}

fn write(trial: &mut Trial, store: u64, name: &str) {
    let write = trial.write(store, put(name, "v"));
    trial.ticks(4);
    assert!(trial.is_written(write), "{name}: {:?}", trial.reply(write));
}

#[test]
fn the_last_of_three_voters_goes_on_alone_with_all_it_has() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 2);
    write(&mut trial, 2, "a");
    lose(&mut trial, &[2, 3]);
    trial.ticks(40);
    assert_eq!(trial.leader(DATA), None, "it has no majority");
    let region = recover(&mut trial, 1, &[1], &[2, 3]);
    assert_eq!(region.peers, [peer(101, 1)]);
    assert_eq!(trial.elect(DATA), 1);
    write(&mut trial, 1, "b");
    trial.restart(1);
    assert_eq!(trial.elect(DATA), 1);
    assert_eq!(trial.report(1, DATA).region.peers, [peer(101, 1)]);
    for name in ["a", "b"] {
        assert_eq!(trial.value(1, name).as_deref(), Some("v"));
    }
}

#[test]
fn the_replicas_that_are_left_agree_on_the_longest_log_of_them() {
    let mut trial = Trial::new(5);
    trial.lead(DATA, 1);
    write(&mut trial, 1, "a");
    trial.isolate(5);
    write(&mut trial, 1, "b");
    lose(&mut trial, &[1, 2, 3]);
    trial.heal();
    trial.ticks(40);
    assert_eq!(trial.leader(DATA), None);
    assert!(trial.report(4, DATA).last > trial.report(5, DATA).last);
    let region = recover(&mut trial, 4, &[4, 5], &[1, 2, 3]);
    assert_eq!(region.peers, [peer(104, 4), peer(105, 5)]);
    let leader = trial.elect(DATA);
    write(&mut trial, leader, "c");
    for (store, name) in [4, 5].into_iter().flat_map(|it| ["a", "b", "c"].map(|name| (it, name))) {
        assert_eq!(trial.value(store, name).as_deref(), Some("v"), "store {store}: {name}");
        assert_eq!(trial.report(store, DATA).region, region);
    }
    // Both count from now on.
    lose(&mut trial, &[5]);
    trial.ticks(40);
    let alone = trial.write(4, put("d", "v"));
    trial.ticks(4);
    assert!(!trial.is_written(alone));
}

#[test]
fn entries_of_the_log_that_no_majority_confirmed_count_as_committed() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    write(&mut trial, 1, "a");
    lose(&mut trial, &[2, 3]);
    let pending = trial.write(1, put("b", "v"));
    trial.ticks(60);
    assert!(!trial.is_written(pending) && trial.value(1, "b").is_none());
    recover(&mut trial, 1, &[1], &[2, 3]);
    assert_eq!(trial.elect(DATA), 1);
    assert_eq!(trial.value(1, "b").as_deref(), Some("v"));
}

#[test]
fn changes_of_members_in_the_log_take_effect_before_the_recovery() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.add_store(4, &[]);
    let learner = Peer { role: PeerRole::Learner, ..peer(104, 4) };
    let add = |peer| Admin::ChangePeers(vec![PeerChange { kind: ChangeKind::Add, peer }]);
    trial.admin(1, DATA, add(learner));
    trial.ticks(10);
    // The entry is in the log of store 1 only, when all other voters are lost.
    for other in [2, 3, 4] {
        trial.cut.insert((1, other));
    }
    trial.admin(1, DATA, add(peer(104, 4)));
    trial.settle();
    lose(&mut trial, &[2, 3]);
    trial.heal();
    trial.ticks(60);
    let region = recover(&mut trial, 1, &[1, 4], &[2, 3]);
    assert_eq!(region.peers, [peer(101, 1), peer(104, 4)]);
    let leader = trial.elect(DATA);
    write(&mut trial, leader, "a");
    assert_eq!(trial.report(4, DATA).region, region);
    assert_eq!(trial.value(4, "a").as_deref(), Some("v"));
}

#[test]
fn a_joint_configuration_with_a_lost_majority_ends() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.add_store(4, &[]);
    let change = |kind, peer| PeerChange { kind, peer };
    let learner = |id: u64| Peer { role: PeerRole::Learner, ..peer(100 + id, id) };
    trial.admin(1, DATA, Admin::ChangePeers(vec![change(ChangeKind::Add, learner(4))]));
    trial.ticks(10);
    let joint = [change(ChangeKind::Add, peer(104, 4)), change(ChangeKind::Add, learner(3))];
    // The followers get the change, and nothing after it.
    trial.lose = |message| match &message.body {
        Body::Raft(raft) => raft.entries.iter().any(|it| is_leave(&it.payload)),
        _ => false,
    };
    trial.admin(1, DATA, Admin::ChangePeers(joint.to_vec()));
    trial.ticks(4);
    assert!(trial.report(4, DATA).region.is_joint());
    lose(&mut trial, &[1, 2]);
    trial.lose = |_| false;
    trial.ticks(60);
    assert_eq!(trial.leader(DATA), None);
    let ahead = |trial: &mut Trial, store| trial.report(store, DATA).last;
    let best = if ahead(&mut trial, 3) > ahead(&mut trial, 4) { 3 } else { 4 };
    let region = recover(&mut trial, best, &[3, 4], &[1, 2]);
    assert!(!region.is_joint());
    let leader = trial.elect(DATA);
    write(&mut trial, leader, "a");
    for store in [3, 4] {
        assert_eq!(trial.report(store, DATA).region.peers, [peer(103, 3), peer(104, 4)]);
    }
}

/// Returns whether an entry of the data region leaves its joint configuration.
fn is_leave(payload: &[u8]) -> bool {
    let Some(command) = fuzzing::admin(payload) else { return false };
    let key = keyspace::region_key(DATA);
    command.ops().any(|op| match op {
        Op::Put { key: put, value, .. } if *put == key[..] => {
            !Region::decode(value).unwrap().is_joint()
        }
        _ => false,
    })
}

#[test]
fn a_recovery_is_refused_beside_a_majority_and_after_a_change_of_the_log() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    write(&mut trial, 1, "a");
    let of_leader = recovery(&mut trial, 1, &[1, 2, 3], &[2, 3]);
    assert!(refused(&mut trial, 1, of_leader).contains("leads the region"));
    let one_lost = recovery(&mut trial, 2, &[1, 2, 3], &[3]);
    assert!(refused(&mut trial, 2, one_lost).contains("a majority of its voters is not lost"));
    lose(&mut trial, &[1, 3]);
    trial.ticks(40);
    let all = recovery(&mut trial, 2, &[2], &[1, 2, 3]);
    assert!(refused(&mut trial, 2, all).contains("all its peers are lost"));
    let Admin::Recover(mut other) = recovery(&mut trial, 2, &[2], &[1, 3]) else { panic!() };
    other.last.0 = LogIndex(other.last.0.0 - 1);
    let text = refused(&mut trial, 2, Admin::Recover(other));
    assert!(text.contains("compare the replicas again"), "{text}");
    assert_eq!(trial.report(2, DATA).region.peers.len(), 3, "nothing was changed");
    recover(&mut trial, 2, &[2], &[1, 3]);
    assert_eq!(trial.elect(DATA), 2);
}

#[test]
fn a_crash_during_a_recovery_leaves_the_region_before_or_after_it() {
    for is_durable in [false, true] {
        let mut trial = Trial::new(3);
        trial.lead(DATA, 1);
        write(&mut trial, 1, "a");
        lose(&mut trial, &[1, 2]);
        trial.ticks(40);
        trial.store(3).stalled = true;
        let call = recovery(&mut trial, 3, &[3], &[1, 2]);
        trial.admin(3, DATA, call);
        trial.settle();
        if is_durable {
            // The batch is written, and the store crashes before it knows.
            let store = trial.store(3);
            let batch = store.waiting.take().unwrap().batch;
            store.engine.append(&batch).unwrap();
        }
        trial.restart(3);
        trial.ticks(40);
        match is_durable {
            true => assert_eq!(trial.leader(DATA), Some(3)),
            false => {
                assert_eq!(trial.leader(DATA), None);
                assert_eq!(trial.report(3, DATA).region.peers.len(), 3);
                recover(&mut trial, 3, &[3], &[1, 2]);
            }
        }
        assert_eq!(trial.elect(DATA), 3);
        write(&mut trial, 3, "b");
        assert_eq!(trial.value(3, "a").as_deref(), Some("v"));
    }
}

#[test]
fn a_lost_replica_that_comes_back_alone_is_destroyed() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    write(&mut trial, 1, "a");
    trial.isolate(2);
    let lost = trial.stores.remove(&3).unwrap();
    trial.ticks(40);
    let call = recovery(&mut trial, 1, &[1], &[2, 3]);
    trial.admin(1, DATA, call);
    assert_eq!(trial.elect(DATA), 1);
    drop(lost);
    trial.heal();
    for _ in 0..100 {
        trial.ticks(1);
    }
    assert!(trial.store(2).core.region(DATA).is_none(), "it is no member");
    assert_eq!(trial.elect(DATA), 1);
    write(&mut trial, 1, "b");
}
