//! Outcomes of requests: done, refused, busy, unknown.

use super::*;

#[test]
fn a_write_committed_before_its_leader_was_deposed_is_done_and_a_later_one_is_unknown() {
    let mut trial = Trial::with(3, |options| options.commit_return = false);
    trial.lead(DATA, 1);
    // The followers commit the first write while the leader's disk has not answered.
    trial.store(1).stalled = true;
    let committed = trial.write(1, put("a", "1"));
    trial.settle();
    trial.send_heartbeats();
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"), "committed by both followers");
    assert_eq!(trial.reply(committed), None);
    trial.isolate(1);
    // So large that it does not wait for the write under way.
    let lost = trial.write(1, put("b", &"1".repeat(1 << 20)));
    trial.ticks(40);
    assert_ne!(trial.leader(DATA), Some(1));
    assert_eq!(trial.unknown(lost), Some(Unknown::LeadershipLost));
    assert_eq!(trial.reply(committed), None, "it is committed, but not applied here");
    trial.store(1).stalled = false;
    trial.settle();
    assert!(trial.is_written(committed), "{:?}", trial.reply(committed));
}

#[test]
fn an_entry_that_another_leader_replaced_is_refused_for_certain() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(1);
    let replaced = trial.write(1, put("a", "replaced"));
    trial.settle();
    // Store 1 stands still: it does not notice that it lost its leadership.
    let still = trial.stores.remove(&1).unwrap();
    let leader = trial.elect(DATA);
    let kept = trial.write(leader, put("a", "kept"));
    trial.settle();
    trial.send_heartbeats();
    assert!(trial.is_written(kept));
    trial.stores.insert(1, still);
    trial.heal();
    trial.ticks(10);
    assert_eq!(trial.value(1, "a").as_deref(), Some("kept"));
    let reply = trial.reply(replaced);
    let is_known = matches!(reply, Some(Reply::Refused(Refusal::Superseded { .. })));
    assert!(is_known || matches!(reply, Some(Reply::Unknown(_))), "{reply:?}");
}

#[test]
fn a_transfer_is_done_only_if_its_target_leads() {
    let mut trial = Trial::new(5);
    trial.lead(DATA, 1);
    trial.ticks(4);
    trial.lose = |m| matches!(&m.body, Body::Raft(r) if r.kind == RaftKind::TimeoutNow);
    let transfer = trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    trial.settle();
    trial.lose = |_| false;
    // Store 1 stands still and the target is cut off: one of the others leads.
    let still = trial.stores.remove(&1).unwrap();
    trial.isolate(2);
    let leader = trial.elect(DATA);
    assert_ne!(leader, 2);
    trial.stores.insert(1, still);
    trial.heal();
    trial.ticks(5);
    let superseded = Refusal::Superseded { leader: Some(peer(100 + leader, leader)) };
    assert_eq!(trial.reply(transfer), Some(&Reply::Refused(superseded)));
    let other = trial.admin(leader, DATA, Admin::TransferLeader(PeerId(101)));
    trial.ticks(5);
    assert_eq!(trial.leader(DATA), Some(1));
    assert!(matches!(trial.reply(other), Some(Reply::Done(Done::Admin { .. }))));
}

#[test]
fn a_transfer_that_was_never_offered_ends_as_not_done() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(2);
    trial.write(1, put("a", "1"));
    trial.settle();
    // Store 2 lacks the write, so it is offered nothing.
    let transfer = trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    trial.ticks(30);
    assert_eq!(trial.leader(DATA), Some(1));
    assert!(matches!(trial.busy(transfer), Some(Busy::Wait { .. })), "{:?}", trial.reply(transfer));
}

#[test]
fn a_replica_that_leaves_answers_committed_writes_as_done_and_others_as_unknown() {
    let mut trial = Trial::with(3, |options| options.commit_return = false);
    trial.lead(DATA, 1);
    trial.store(1).stalled = true;
    let committed = trial.write(1, put("a", "1"));
    trial.settle();
    trial.send_heartbeats();
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"));
    trial.isolate(1);
    let open = trial.write(1, put("b", &"1".repeat(1 << 20)));
    trial.settle();
    assert_eq!((trial.reply(committed), trial.reply(open)), (None, None));
    trial.ticks(40);
    trial.heal();
    trial.admin(1, DATA, Admin::Destroy(PeerId(101)));
    trial.store(1).stalled = false;
    trial.ticks(10);
    assert!(trial.is_written(committed), "{:?}", trial.reply(committed));
    assert!(trial.unknown(open).is_some(), "{:?}", trial.reply(open));
}
