//! What the crate `raft` leaves to its application, without a notice: each test names what the crate
//! does, and shows that a replica of this crate does not.

use super::*;

fn change(trial: &mut Trial, kind: ChangeKind, peer: Peer) {
    let leader = trial.leader(DATA).unwrap();
    trial.admin(leader, DATA, Admin::ChangePeers(vec![PeerChange { kind, peer }]));
    trial.ticks(10);
}

fn learner(store: u64) -> Peer {
    Peer { role: PeerRole::Learner, ..peer(100 + store, store) }
}

#[test]
fn a_learner_that_is_told_to_campaign_does_not_become_leader() {
    let mut trial = Trial::new(2);
    trial.lead(DATA, 1);
    trial.add_store(3, &[]);
    change(&mut trial, ChangeKind::Add, learner(3));
    let before = trial.report(1, DATA).term;
    // Without a leader its pre-vote is granted: the crate does not ask for its role.
    for pair in [(1, 2), (2, 1), (1, 3), (3, 1)] {
        trial.cut.insert(pair);
    }
    trial.ticks(15);
    for _ in 0..20 {
        trial.admin(3, DATA, Admin::Campaign);
        trial.ticks(2);
        assert_eq!(trial.report(3, DATA).role, Role::Follower);
    }
    trial.heal();
    trial.ticks(40);
    assert_ne!(trial.elect(DATA), 3);
    assert!(trial.report(1, DATA).term >= before);
}

#[test]
fn a_replica_with_entries_in_flight_to_its_disk_does_not_campaign() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.write(1, put("a", "1"));
    trial.ticks(2);
    let before = trial.report(2, DATA);
    // The crate asserts that all entries of a candidate are durable: it would end the process.
    for _ in 0..5 {
        trial.admin(2, DATA, Admin::Campaign);
        trial.ticks(1);
    }
    trial.isolate(2);
    trial.ticks(100);
    let report = trial.report(2, DATA);
    assert_eq!((report.role, report.term), (Role::Follower, before.term));
    trial.store(2).stalled = false;
    trial.heal();
    trial.ticks(100);
    trial.lead(DATA, 2);
}

#[test]
fn a_leader_that_removed_itself_leads_no_more_and_answers_no_read() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    change(&mut trial, ChangeKind::Remove, peer(101, 1));
    assert!(trial.store(1).core.region(DATA).is_none(), "the crate lets it lead permanently");
    let read = trial.read(1, false);
    let write = trial.write(1, put("a", "1"));
    trial.ticks(5);
    for id in [read, write] {
        assert_eq!(trial.refusal(id), Some(&Refusal::RegionNotFound));
    }
    assert_ne!(trial.elect(DATA), 1);
}

#[test]
fn a_leader_that_became_a_learner_leads_no_more_and_answers_no_read() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    change(&mut trial, ChangeKind::Add, learner(1));
    trial.ticks(60);
    let report = trial.report(1, DATA);
    assert_eq!(report.role, Role::Follower, "the crate lets it lead permanently");
    assert_ne!(trial.elect(DATA), 1);
    let write = trial.write(1, put("a", "1"));
    trial.ticks(5);
    assert!(matches!(trial.refusal(write), Some(Refusal::NotLeader { .. })));
}

#[test]
fn a_lost_snapshot_stops_no_replica_once_its_sender_is_told() {
    let mut trial = Trial::with_store_3_behind();
    // Messages reach store 3 again, snapshots do not. The crate sends nothing more before a report.
    trial.loses_snapshots = true;
    trial.heal();
    trial.ticks(40);
    assert_eq!(trial.value(3, "b"), None);
    trial.loses_snapshots = false;
    trial.ticks(200);
    assert_eq!(trial.value(3, "b").as_deref(), Some("1"));
}

#[test]
fn a_snapshot_under_way_is_not_followed_by_another_when_the_network_breaks() {
    let mut trial = Trial::with_store_3_behind();
    trial.holds_snapshots = true;
    trial.heal();
    trial.ticks(40);
    assert_eq!(trial.held.len(), 1);
    trial.store(1).core.step(Input::StoreUnreachable(StoreId(3)));
    trial.isolate(3);
    trial.ticks(10);
    trial.heal();
    trial.ticks(100);
    assert_eq!(trial.held.len(), 1, "another one takes its place from the beginning");
    trial.holds_snapshots = false;
    let (from, snapshot) = trial.held.remove(0);
    trial.carry(from, snapshot);
    trial.ticks(40);
    assert_eq!(trial.value(3, "b").as_deref(), Some("1"));
}

#[test]
fn a_proposal_that_raft_would_forward_or_drop_is_refused() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    // The crate forwards a follower's proposal, says Ok, and the leader may drop it.
    let forwarded = trial.write(2, put("a", "1"));
    trial.ticks(5);
    assert!(matches!(trial.refusal(forwarded), Some(Refusal::NotLeader { .. })));
    // It drops proposals while it offers the leadership to a replica that does not answer.
    trial.isolate(3);
    trial.admin(1, DATA, Admin::TransferLeader(PeerId(103)));
    trial.settle();
    let waits = trial.write(1, put("b", "1"));
    trial.ticks(60);
    assert!(trial.is_written(waits), "{:?}", trial.reply(waits));
    assert_eq!((trial.value(1, "a"), trial.value(1, "b").as_deref()), (None, Some("1")));
}
