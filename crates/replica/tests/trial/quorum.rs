//! Tests of membership changes with unresponsive members.

use super::*;

fn to_learner(id: u64, store: u64) -> PeerChange {
    let peer = Peer { role: PeerRole::Learner, ..peer(id, store) };
    PeerChange { kind: ChangeKind::Add, peer }
}

fn remove(id: u64, store: u64) -> PeerChange {
    PeerChange { kind: ChangeKind::Remove, peer: peer(id, store) }
}

/// Waits until an unresponsive store counts as down.
fn wait(trial: &mut Trial) {
    for _ in 0..40 {
        trial.ticks(1);
    }
}

fn changes(trial: &mut Trial, store: u64, changes: Vec<PeerChange>) -> Result<usize, String> {
    let call = trial.admin(store, DATA, Admin::ChangePeers(changes));
    trial.ticks(10);
    match trial.reply(call) {
        Some(Reply::Done(Done::Admin { region })) => Ok(region.peers.len()),
        Some(Reply::Busy(Busy::Wait { reason })) => Err((*reason).to_owned()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn members_without_a_responsive_majority_are_refused() {
    let mut trial = Trial::new(4);
    trial.lead(DATA, 1);
    trial.isolate(4);
    wait(&mut trial);
    // Three of four current voters accept it; one of the two new voters is gone.
    let mistake = vec![to_learner(102, 2), to_learner(103, 3)];
    let refused = changes(&mut trial, 1, mistake.clone());
    assert_eq!(refused, Err("no majority of the new voters responds".to_owned()));
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    trial.heal();
    wait(&mut trial);
    assert_eq!(changes(&mut trial, 1, mistake), Ok(4));
}

#[test]
fn an_unresponsive_member_can_be_removed() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(3);
    wait(&mut trial);
    let refused = changes(&mut trial, 1, vec![remove(102, 2)]);
    assert!(refused.is_err(), "one of the two that are left is gone: {refused:?}");
    assert_eq!(changes(&mut trial, 1, vec![remove(103, 3)]), Ok(2));
}

#[test]
fn a_new_leader_changes_no_members_before_it_heard_of_them() {
    let mut trial = Trial::new(4);
    trial.lead(DATA, 2);
    trial.isolate(4);
    trial.lead(DATA, 1);
    // Store 4 does not count as down yet, and has sent nothing.
    let refused = changes(&mut trial, 1, vec![to_learner(102, 2), to_learner(103, 3)]);
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn writes_that_arrive_while_their_region_is_written_share_the_next_proposal() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.settle();
    let last = |trial: &mut Trial| trial.report(1, DATA).last.0;
    let before = last(&mut trial);
    trial.store(1).stalled = true;
    let mut writes = vec![trial.write(1, put("a", "1"))];
    trial.poll(1);
    assert_eq!(last(&mut trial), before + 1);
    for name in ["b", "c", "d"] {
        writes.push(trial.write(1, put(name, "1")));
        trial.poll(1);
    }
    assert_eq!(last(&mut trial), before + 1, "they wait for the write under way");
    trial.store(1).stalled = false;
    trial.settle();
    assert_eq!(last(&mut trial), before + 4);
    trial.settle();
    assert!(writes.iter().all(|id| trial.is_written(*id)));
}

#[test]
fn a_mebibyte_of_writes_does_not_wait_for_the_write_under_way() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.settle();
    let before = trial.report(1, DATA).last.0;
    trial.store(1).stalled = true;
    let large = "v".repeat(600 << 10);
    for name in ["a", "b", "c"] {
        trial.write(1, put(name, &large));
        trial.poll(1);
    }
    assert_eq!(trial.report(1, DATA).last.0, before + 3);
}
