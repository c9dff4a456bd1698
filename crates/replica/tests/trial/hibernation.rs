//! Tests of replicas that miss a change while they hibernate or have no leader.

use super::*;

fn change(kind: ChangeKind, peer: Peer) -> PeerChange {
    PeerChange { kind, peer }
}

fn learner(store: u64) -> Peer {
    Peer { role: PeerRole::Learner, ..peer(100 + store, store) }
}

/// Returns a hibernating cluster: voters on stores 1 to 3, of which 1 leads, and a learner on store
/// 4.
fn hibernating() -> Trial {
    let mut trial = Trial::with(3, |options| options.hibernate_after_ticks = 20);
    trial.lead(DATA, 1);
    trial.add_store(4, &[]);
    trial.admin(1, DATA, Admin::ChangePeers(vec![change(ChangeKind::Add, learner(4))]));
    trial.ticks(80);
    (1..=4).for_each(|store| assert!(trial.is_hibernating(store), "store {store}"));
    trial
}

fn remove(trial: &mut Trial, leader: u64, gone: Peer) {
    let gone = vec![change(ChangeKind::Remove, gone)];
    let removed = trial.admin(leader, DATA, Admin::ChangePeers(gone));
    trial.ticks(60);
    assert!(matches!(trial.reply(removed), Some(Reply::Done(Done::Admin { .. }))));
}

#[test]
fn a_replica_that_was_removed_while_it_rested_and_heard_nothing_leaves() {
    let mut trial = hibernating();
    trial.isolate(4);
    remove(&mut trial, 1, learner(4));
    (1..=3).for_each(|store| assert!(trial.is_hibernating(store), "store {store}"));
    assert!(trial.is_hibernating(4), "it does not know of its removal");
    trial.heal();
    for _ in 0..5 {
        trial.ticks(20);
        (1..=3).for_each(|store| assert!(trial.is_hibernating(store), "it woke a replica"));
    }
    assert!(trial.store(4).core.region(DATA).is_none());
    assert_eq!(trial.store(4).core.next_tick_nanos(), None, "nothing is here");
}

#[test]
fn a_replica_at_rest_learns_of_its_end_from_a_store_that_the_region_left() {
    let mut trial = hibernating();
    trial.isolate(4);
    remove(&mut trial, 1, learner(4));
    remove(&mut trial, 1, peer(103, 3));
    assert!(trial.store(3).core.region(DATA).is_none());
    // Of all members that it knows only store 3 is left.
    trial.heal();
    trial.isolate(1);
    trial.isolate(2);
    trial.ticks(200);
    assert!(trial.store(4).core.region(DATA).is_none());
}

#[test]
fn a_region_that_wakes_ticks_again() {
    // No message of another replica comes in between.
    let mut trial = Trial::with(1, |options| options.hibernate_after_ticks = 20);
    trial.lead(DATA, 1);
    trial.ticks(80);
    assert!(trial.is_hibernating(1));
    trial.write(1, put("a", "1"));
    trial.ticks(10);
    assert!(!trial.is_hibernating(1));
    // Only ticks let it hibernate.
    trial.ticks(80);
    assert!(trial.is_hibernating(1));
}

#[test]
fn a_hibernating_member_is_not_woken_by_probes() {
    let mut trial = hibernating();
    trial.isolate(4);
    trial.ticks(40);
    trial.heal();
    for _ in 0..20 {
        trial.ticks(20);
        (1..=4).for_each(|store| assert!(trial.is_hibernating(store), "store {store} was woken"));
    }
    assert_eq!(trial.leader(DATA), Some(1));
}

#[test]
fn a_silent_peer_of_a_hibernating_region_is_not_down() {
    let mut trial = hibernating();
    for _ in 0..600 {
        trial.advance(SECOND);
        trial.settle();
    }
    (1..=4).for_each(|store| assert!(trial.is_hibernating(store), "store {store}"));
    // Its leader wakes, and reports before any follower could answer.
    trial.isolate(1);
    trial.write(1, put("a", "1"));
    trial.settle();
    assert!(!trial.report(1, DATA).hibernating);
    assert_eq!(trial.report(1, DATA).down_peers, []);
    trial.ticks(40);
    let down = trial.report(1, DATA).down_peers;
    assert!(down.iter().all(|(_, seconds)| *seconds < 60), "{down:?}");
}

/// Store 1 leads. From here on the learner on store 2 learns no commit index, and becomes the only
/// voter.
fn demoted() -> Trial {
    let mut trial = Trial::new(1);
    trial.elect(DATA);
    trial.add_store(2, &[]);
    trial.admin(1, DATA, Admin::ChangePeers(vec![change(ChangeKind::Add, learner(2))]));
    trial.ticks(20);
    assert_eq!(trial.report(2, DATA).committed, BEFORE);
    trial.alter = |message| {
        if let Body::Raft(raft) = &mut message.body
            && matches!(raft.kind, RaftKind::Append | RaftKind::Heartbeat)
        {
            raft.commit = raft.commit.min(BEFORE);
        }
    };
    // The messages that report it are lost for now.
    trial.lose = |message| matches!(message.body, Body::WakeUp);
    let swap = [change(ChangeKind::Add, peer(102, 2)), change(ChangeKind::Add, learner(1))];
    trial.admin(1, DATA, Admin::ChangePeers(swap.to_vec()));
    trial.ticks(100);
    let (old, new) = (trial.report(1, DATA), trial.report(2, DATA));
    assert_eq!((old.peer.role, new.peer.role), (PeerRole::Learner, PeerRole::Learner));
    assert_eq!((old.last, old.committed), (new.last, LogIndex(BEFORE.0 + 2)));
    assert_eq!((trial.leader(DATA), new.committed), (None, BEFORE));
    trial
}

/// The last entry before the members change.
const BEFORE: LogIndex = LogIndex(7);

#[test]
fn the_only_voter_learns_that_the_change_which_made_it_one_is_committed() {
    let mut trial = demoted();
    trial.alter = |_| {};
    trial.lose = |_| false;
    assert_eq!(trial.elect(DATA), 2);
    assert_eq!(trial.report(2, DATA).peer.role, PeerRole::Voter);
    let write = trial.write(2, put("a", "1"));
    trial.ticks(3);
    assert!(trial.is_written(write));
    assert_eq!(trial.value(1, "a").as_deref(), Some("1"));
}

fn deliver(trial: &mut Trial, body: Body) {
    let region = trial.report(1, DATA).region;
    let between = PeerMessage::between_stores(StoreId(1), StoreId(2), body);
    let (from, to) = (learner(1), peer(102, 2));
    let (kind, epoch) = (region.kind, region.epoch);
    let message = PeerMessage { region: DATA, kind, epoch, from, to, ..between };
    trial.store(2).core.step(Input::Message(message));
    trial.settle();
}

#[test]
fn no_replica_learns_that_an_entry_is_committed_which_its_log_lacks() {
    let mut trial = demoted();
    let (last, term) = (trial.report(2, DATA).last, trial.report(2, DATA).term);
    let refusal = |index: LogIndex, of: Term| {
        // Any term is possible, also for entries committed long ago.
        let mut raft = RaftMessage::new(RaftKind::RequestPreVoteResponse, Term(1));
        raft.reject = true;
        (raft.commit, raft.commit_term) = (index, of);
        raft
    };
    let merged = |prepared| Body::Merged { prepared, target: RegionId(44), left: None };
    let beyond = LogIndex(last.0 + 1);
    for entry in [(last, term.next()), (last, Term(term.0 - 1)), (beyond, term), (beyond, Term(0))]
    {
        deliver(&mut trial, Body::Raft(refusal(entry.0, entry.1)));
        deliver(&mut trial, merged(entry));
        assert_eq!(trial.report(2, DATA).committed, BEFORE, "{entry:?}");
    }
    let granted = RaftMessage { reject: false, ..refusal(last, term) };
    deliver(&mut trial, Body::Raft(granted));
    assert_eq!(trial.report(2, DATA).committed, BEFORE, "no vote was requested");
    // Messages may arrive twice, late or out of order.
    for index in [BEFORE.0 + 1, BEFORE.0 + 2, BEFORE.0, BEFORE.0 + 2] {
        let known = trial.report(2, DATA).committed;
        deliver(&mut trial, Body::Raft(refusal(LogIndex(index), term)));
        assert_eq!(trial.report(2, DATA).committed, known.max(LogIndex(index)));
    }
    assert_eq!(trial.report(2, DATA).peer.role, PeerRole::Voter);
}
