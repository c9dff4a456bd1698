//! Tests of reads and leases.

use super::*;

fn reader(trial: &mut Trial, store: u64) -> Arc<Reader> {
    trial.store(store).core.readers().get(DATA).unwrap()
}

#[test]
fn a_leader_with_a_lease_serves_reads_without_the_core() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let first = trial.leader(DATA).unwrap();
    // The transfer that made it leader was in an earlier term: the lease is valid.
    let reader = reader(&mut trial, first);
    let lease = reader.permit(&Header::default(), trial.now).unwrap();
    assert!(reader.effects(&lease, trial.now).is_some());
    assert!(reader.permit(&Header::default(), trial.now + 405_000_001).is_none());
    let follower = if first == 1 { 2 } else { 1 };
    let other = trial.store(follower).core.readers().get(DATA).unwrap();
    assert!(other.permit(&Header::default(), trial.now).is_none());
}

// Catalogue: 2.
#[test]
fn a_lease_ends_before_another_peer_can_lead() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let reader = reader(&mut trial, 1);
    trial.isolate(1);
    for _ in 0..60 {
        trial.ticks(1);
        if trial.leader(DATA) != Some(1) {
            assert!(reader.permit(&Header::default(), trial.now).is_none());
            return;
        }
    }
    panic!("no store took over");
}

#[test]
fn a_follower_that_answered_a_leader_withholds_its_vote_also_in_a_later_term() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let leads = trial.report(1, DATA);
    let reader = reader(&mut trial, 1);
    trial.isolate(1);
    // A late reply of an election that was lost long ago: Raft then has no leader.
    let mut raft = RaftMessage::new(RaftKind::RequestPreVoteResponse, leads.term.next());
    raft.reject = true;
    let late = PeerMessage {
        from_store: StoreId(2),
        to_store: StoreId(3),
        region: DATA,
        kind: leads.region.kind,
        range: leads.region.range.clone(),
        epoch: leads.region.epoch,
        from: peer(102, 2),
        to: peer(103, 3),
        body: Body::Raft(raft),
    };
    trial.store(3).core.step(Input::Message(late));
    trial.admin(2, DATA, Admin::Campaign);
    for _ in 0..40 {
        trial.ticks(1);
        let deposed = trial.leader(DATA) != Some(1);
        assert!(
            !deposed || reader.permit(&Header::default(), trial.now).is_none(),
            "two may serve reads"
        );
    }
    assert_ne!(trial.leader(DATA), Some(1));
}

/// A store without a replica answers a leader, but keeps no state of it: when a split creates the
/// replica, it may vote at once.
#[test]
fn a_store_whose_replica_has_not_begun_lends_no_lease() {
    let child = RegionId(10);
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(3).stalled = true;
    let peers = [201, 202, 203].map(PeerId).to_vec();
    let new_ids = vec![NewRegion { region: child, peers }];
    trial.admin(1, DATA, Admin::Split { keys: vec![Bytes::from_static(b"h")], new_ids });
    trial.settle();
    assert_eq!(trial.leader(child), Some(1));
    trial.ticks(4);
    let reader = trial.store(1).core.readers().get(child).unwrap();
    assert!(reader.permit(&Header::default(), trial.now).is_some(), "store 2 supported one");
    trial.cut.extend([(1, 2), (2, 1)]);
    // Store 2 has asked store 3 for its vote by then.
    trial.ticks(25);
    trial.store(3).stalled = false;
    trial.settle();
    for _ in 0..60 {
        if trial.leader(child) != Some(1) {
            assert!(reader.permit(&Header::default(), trial.now).is_none(), "two may serve reads");
            return;
        }
        trial.ticks(1);
    }
    panic!("no store took over");
}

// Catalogue: 41.
#[test]
fn ticks_that_were_missed_do_not_shorten_a_promise() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    let reader = reader(&mut trial, 1);
    // Followers are not polled for long, then receive the leader's message, then read the clock.
    let lease = 405_000_000;
    let start = trial.now;
    trial.cut.insert((1, 2));
    trial.cut.insert((1, 3));
    trial.advance(300_000_000);
    trial.settle();
    assert!(trial.now < start + lease);
    for _ in 0..40 {
        trial.ticks(1);
        let deposed = trial.leader(DATA) != Some(1);
        assert!(!deposed || reader.permit(&Header::default(), trial.now).is_none());
    }
}

#[test]
fn no_lease_counts_in_a_term_in_which_leadership_was_offered() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(4);
    assert!(reader(&mut trial, 1).permit(&Header::default(), trial.now).is_some());
    // The transfer message is lost: store 1 stays leader, but the target may still campaign later.
    trial.lose = |m| matches!(&m.body, Body::Raft(r) if r.kind == RaftKind::TimeoutNow);
    let transfer = trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    trial.settle();
    assert!(reader(&mut trial, 1).permit(&Header::default(), trial.now).is_none());
    trial.ticks(30);
    assert_eq!(trial.unknown(transfer), Some(Unknown::TransferTimedOut));
    assert_eq!(trial.leader(DATA), Some(1));
    assert!(reader(&mut trial, 1).permit(&Header::default(), trial.now).is_none());
    let read = trial.read(1, false);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
}

// Catalogue: 40.
#[test]
fn a_deposed_leader_confirms_no_read_by_answers_to_earlier_rounds() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.advance(500_000_000);
    // A round is sent; its replies are late.
    let first = trial.read(1, false);
    trial.lose = |m| matches!(&m.body, Body::Raft(r) if r.kind == RaftKind::HeartbeatResponse);
    trial.settle();
    assert_eq!(trial.reply(first), None);
    trial.lose = |_| false;
    trial.isolate(1);
    let second = trial.read(1, false);
    trial.ticks(1);
    assert_eq!(trial.reply(second), None);
    trial.ticks(40);
    assert!(matches!(trial.refusal(second), Some(Refusal::NotLeader { .. })));
}

#[test]
fn followers_serve_reads_after_asking_the_leader() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let write = trial.write(1, put("a", "1"));
    let read = trial.read(2, true);
    trial.settle();
    assert!(trial.is_written(write));
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    // The read sees what was written before it, although no heartbeat was due.
    let read = trial.read(2, true);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"));
    trial.isolate(2);
    let read = trial.read(2, true);
    trial.ticks(30);
    assert!(matches!(trial.busy(read), Some(Busy::ReadIndexNotReady)));
}

#[test]
fn a_new_leader_serves_nothing_before_its_first_entry_is_applied() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(1);
    // It can be elected, but cannot commit.
    trial.lose = |m| matches!(&m.body, Body::Raft(r) if r.kind == RaftKind::AppendResponse);
    for _ in 0..60 {
        trial.ticks(1);
        if trial.leader(DATA) != Some(1) {
            break;
        }
    }
    let leader = trial.leader(DATA).unwrap();
    assert_ne!(leader, 1);
    let read = trial.read(leader, false);
    let write = trial.write(leader, put("a", "1"));
    trial.settle();
    assert_eq!((trial.reply(read), trial.reply(write)), (None, None));
    trial.lose = |_| false;
    trial.ticks(4);
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    assert!(trial.is_written(write));
}
