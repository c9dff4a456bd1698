//! Tests of writes, elections and crashes.

use super::*;

#[test]
fn a_store_alone_leads_at_once_and_keeps_what_it_wrote_over_a_crash() {
    let mut trial = Trial::new(1);
    trial.settle();
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    assert_eq!(trial.value(1, "a").as_deref(), Some("1"));
    trial.restart(1);
    trial.settle();
    let write = trial.write(1, put("b", "2"));
    trial.settle();
    assert!(trial.is_written(write));
    assert_eq!(trial.value(1, "a").as_deref(), Some("1"));
}

#[test]
fn three_stores_elect_a_leader_and_all_apply_what_it_takes() {
    let mut trial = Trial::new(3);
    let leader = trial.elect(DATA);
    let writes: Vec<_> = (0..50).map(|i| trial.write(leader, put(&format!("k{i}"), "v"))).collect();
    trial.settle();
    assert!(writes.iter().all(|id| trial.is_written(*id)));
    trial.send_heartbeats();
    for store in 1..=3 {
        assert_eq!(trial.value(store, "k49").as_deref(), Some("v"), "store {store}");
    }
    let follower = if leader == 1 { 2 } else { 1 };
    let refused = trial.write(follower, put("x", "y"));
    trial.settle();
    let expected = peer(100 + leader, leader);
    assert_eq!(trial.refusal(refused), Some(&Refusal::NotLeader { leader: Some(expected) }));
}

#[test]
fn a_write_is_not_answered_before_a_quorum_has_it() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert_eq!(trial.reply(write), None);
    trial.store(2).stalled = false;
    trial.settle();
    assert!(trial.is_written(write));
}

#[test]
fn the_leaders_own_disk_counts_only_when_it_is_done() {
    let mut trial = Trial::with(3, |options| options.commit_return = false);
    trial.lead(DATA, 1);
    trial.store(1).stalled = true;
    trial.isolate(3);
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert_eq!(trial.reply(write), None);
    trial.send_heartbeats();
    assert_eq!(trial.value(2, "a"), None, "committed by one disk of three");
    trial.heal();
    trial.ticks(3);
    trial.send_heartbeats();
    // Both followers have it: it is committed, but not applied here before it is durable here.
    assert_eq!(trial.reply(write), None);
    assert_eq!(trial.value(1, "a"), None);
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"));
    trial.store(1).stalled = false;
    trial.settle();
    assert!(trial.is_written(write));
}

// Catalogue: 29, 61.
#[test]
fn a_minority_writes_nothing_and_its_clients_get_an_unknown_outcome() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(1);
    let write = trial.write(1, put("a", "lost"));
    trial.ticks(40);
    assert_eq!(trial.unknown(write), Some(Unknown::LeadershipLost));
    let leader = trial.leader(DATA).unwrap();
    assert_ne!(leader, 1);
    let other = trial.write(leader, put("a", "kept"));
    trial.settle();
    assert!(trial.is_written(other));
    trial.heal();
    trial.ticks(20);
    for store in 1..=3 {
        assert_eq!(trial.value(store, "a").as_deref(), Some("kept"));
    }
}

// Catalogue: 3.
#[test]
fn all_stores_crash_and_everything_acknowledged_is_there() {
    let mut trial = Trial::new(3);
    let leader = trial.elect(DATA);
    for i in 0..20 {
        let write = trial.write(leader, put(&format!("k{i}"), "v"));
        trial.settle();
        assert!(trial.is_written(write));
    }
    for store in 1..=3 {
        trial.restart(store);
    }
    let leader = trial.elect(DATA);
    let write = trial.write(leader, put("after", "v"));
    trial.ticks(3);
    assert!(trial.is_written(write));
    for store in 1..=3 {
        assert_eq!(trial.value(store, "k19").as_deref(), Some("v"), "store {store}");
    }
}

// Catalogue: 24.
#[test]
fn a_vote_leaves_only_when_it_is_durable() {
    let mut trial = Trial::new(3);
    for store in 1..=3 {
        trial.store(store).stalled = true;
    }
    trial.ticks(60);
    assert_eq!(trial.leader(DATA), None);
    for store in 1..=3 {
        trial.store(store).stalled = false;
    }
    trial.elect(DATA);
}

#[test]
fn a_store_that_just_started_keeps_its_vote_as_long_as_a_lease_may_last() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(1);
    // Store 2 supported a lease; a crash loses its vote hold.
    trial.restart(2);
    trial.isolate(1);
    trial.admin(3, DATA, Admin::Campaign);
    let reader = trial.store(1).core.readers().get(DATA).unwrap();
    for _ in 0..30 {
        trial.ticks(1);
        let leads = trial.leader(DATA) != Some(1);
        assert!(
            !leads || reader.permit(&Header::default(), trial.now).is_none(),
            "two may serve reads"
        );
    }
    assert_ne!(trial.leader(DATA), Some(1));
}

// Catalogue: 49.
#[test]
fn terms_and_versions_that_do_not_fit_are_refused_in_order() {
    let mut trial = Trial::new(1);
    trial.settle();
    let mut send = |header: Header| {
        let id = trial.request();
        let command = put("a", "1");
        trial
            .store(1)
            .core
            .step(Input::request(id, Write { header, command, only_deletes: false }));
        trial.settle();
        trial.reply(id).cloned().unwrap()
    };
    let fits =
        Header { region: DATA, peer: Some(PeerId(101)), version: Some(1), ..Header::default() };
    assert!(matches!(send(fits), Reply::Done(Done::Written { .. })));
    let absent = Header { region: RegionId(99), ..fits };
    assert_eq!(send(absent), Reply::Refused(Refusal::RegionNotFound));
    let other = Header { peer: Some(PeerId(5)), version: Some(9), ..fits };
    let mismatch = Refusal::MismatchPeer { asked: PeerId(5), actual: PeerId(101) };
    assert_eq!(send(other), Reply::Refused(mismatch));
    let stale = send(Header { term: 3, ..fits });
    assert!(matches!(stale, Reply::Refused(Refusal::StaleTerm { .. })), "{stale:?}");
    assert!(matches!(send(Header { term: 5, ..fits }), Reply::Done(Done::Written { .. })));
    let newer = send(Header { version: Some(2), ..fits });
    assert!(
        matches!(newer, Reply::Refused(Refusal::EpochNotMatch { current }) if current.len() == 1)
    );
}

#[test]
fn requests_whose_time_is_over_are_dropped() {
    let mut trial = Trial::new(3);
    trial.elect(DATA);
    let leader = trial.leader(DATA).unwrap();
    let id = trial.request();
    let header = Header { deadline_nanos: trial.now, ..trial.header(DATA) };
    let write = Write { header, command: put("late", "1"), only_deletes: false };
    trial.store(leader).core.step(Input::request(id, write));
    trial.ticks(1);
    assert_eq!(trial.busy(id), Some(&Busy::DeadlinePassed));
    assert_eq!(trial.value(leader, "late"), None);
}

#[test]
fn missed_ticks_are_not_made_up_for() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(2);
    let term = trial.report(2, DATA).term;
    trial.advance(5_000_000_000);
    // The store resumes after a long pause and receives its leader's message before it reads the
    // clock.
    for _ in 0..40 {
        trial.poll(2);
    }
    assert_eq!(trial.report(2, DATA).role, Role::Follower);
    trial.settle();
    assert_eq!(trial.report(2, DATA).term, term);
    assert_eq!(trial.leader(DATA), Some(1));
}

#[test]
fn a_leader_says_nothing_in_a_term_that_its_disk_may_forget() {
    let mut trial = Trial::new(1);
    trial.settle();
    trial.add_store(2, &[]);
    let learner = Peer { role: PeerRole::Learner, ..peer(102, 2) };
    let add = PeerChange { kind: ChangeKind::Add, peer: learner };
    trial.admin(1, DATA, Admin::ChangePeers(vec![add]));
    trial.ticks(10);
    // The commit index that adds the learner is piggybacked on a write.
    trial.write(1, put("a", "1"));
    trial.ticks(1);
    let term = trial.report(2, DATA).term;
    // It leads again at once as the only voter; its disk is slow.
    trial.restart(1);
    trial.store(1).stalled = true;
    trial.ticks(5);
    assert_eq!(trial.report(1, DATA).role, Role::Leader);
    assert_eq!(trial.report(2, DATA).term, term);
    trial.store(1).stalled = false;
    trial.ticks(5);
    assert!(trial.report(2, DATA).term > term);
}

#[test]
fn a_leader_knows_its_followers_from_when_it_says_that_it_leads() {
    let mut trial = Trial::new(3);
    let first = trial.elect(DATA);
    let second = first % 3 + 1;
    let to = PeerId(100 + second);
    // Elected, but its first entry is not committed: it knows no follower's log.
    trial.lose = |m| matches!(&m.body, Body::Raft(r) if r.kind == RaftKind::AppendResponse);
    trial.admin(first, DATA, Admin::TransferLeader(to));
    trial.settle();
    let report = trial.report(second, DATA);
    assert_eq!((report.role, report.is_leading), (Role::Leader, false));
    assert_eq!(report.pending_peers.len(), 2);
    trial.lose = |_| false;
    trial.ticks(10);
    let report = trial.report(second, DATA);
    assert_eq!((report.role, report.is_leading), (Role::Leader, true));
    assert_eq!(report.pending_peers, []);
    assert!(!trial.report(first, DATA).is_leading);
}

#[test]
fn the_core_can_be_moved_to_a_thread() {
    fn check<T: Send>() {}
    check::<Model>();
    check::<Input<ModelEngine>>();
    check::<Outputs<ModelEngine>>();
}
