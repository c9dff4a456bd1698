//! Tests of a voter that was removed while it was cut off: it asks until a member of a later
//! membership tells it.

use super::*;

fn change(trial: &mut Trial, changes: Vec<PeerChange>) {
    let leader = trial.elect(DATA);
    let id = trial.admin(leader, DATA, Admin::ChangePeers(changes));
    trial.ticks(20);
    assert!(matches!(trial.reply(id), Some(Reply::Done(_))), "{:?}", trial.reply(id));
}

fn member(kind: ChangeKind, store: u64, role: PeerRole) -> PeerChange {
    PeerChange { kind, peer: Peer { role, ..peer(100 + store, store) } }
}

/// Returns a region that moved from stores 1 to 3 to stores 4 and 5 while store 3 was cut off. What
/// stores 1 and 2 know last is a membership with store 3.
fn moved_away() -> Trial {
    use ChangeKind::{Add, Remove};
    use PeerRole::{Learner, Voter};
    let mut trial = Trial::new(3);
    (4..=5).for_each(|store| trial.add_store(store, &[]));
    trial.lead(DATA, 1);
    trial.isolate(3);
    for store in [4, 5] {
        change(&mut trial, vec![member(Add, store, Learner)]);
    }
    let swap = [(4, Voter), (5, Voter), (1, Learner), (2, Learner)];
    change(&mut trial, swap.map(|(store, role)| member(Add, store, role)).to_vec());
    for store in [1, 2, 3] {
        let role = if store == 3 { Voter } else { Learner };
        change(&mut trial, vec![member(Remove, store, role)]);
    }
    assert!((1..=2).all(|store| trial.store(store).core.region(DATA).is_none()));
    let voters = [peer(101, 1), peer(102, 2), peer(103, 3)];
    assert_eq!(trial.report(3, DATA).region.peers, voters);
    trial
}

#[test]
fn a_stale_voter_is_removed_although_the_tombstones_of_all_its_members_list_it() {
    let mut trial = moved_away();
    trial.heal();
    trial.ticks(200);
    assert!(trial.store(3).core.region(DATA).is_none());
    trial.restart(3);
    trial.ticks(60);
    assert!(trial.store(3).core.region(DATA).is_none());
}

#[test]
fn a_stale_voter_stays_where_no_later_member_without_it_answers() {
    let mut trial = moved_away();
    trial.heal();
    // Tombstones that list it are no proof.
    (4..=5).for_each(|store| trial.isolate(store));
    trial.ticks(400);
    assert!(trial.store(3).core.region(DATA).is_some());
    trial.heal();
    trial.ticks(200);
    assert!(trial.store(3).core.region(DATA).is_none());
}

#[test]
fn a_stale_voter_asks_learners_too() {
    let mut trial = Trial::new(3);
    trial.add_store(4, &[]);
    trial.lead(DATA, 1);
    change(&mut trial, vec![member(ChangeKind::Add, 4, PeerRole::Learner)]);
    trial.isolate(3);
    change(&mut trial, vec![member(ChangeKind::Remove, 3, PeerRole::Voter)]);
    trial.heal();
    // The voters left are lost; only the learner knows.
    (1..=2).for_each(|store| trial.isolate(store));
    trial.ticks(300);
    assert!(trial.store(3).core.region(DATA).is_none());
    assert!(trial.store(4).core.region(DATA).is_some());
}

#[test]
fn a_stale_voter_is_removed_although_all_its_members_are_lost() {
    let mut trial = Trial::new(0);
    let [moved, other] = neighbours();
    (1..=3).for_each(|store| trial.add_store(store, &[moved.clone(), other.clone()]));
    trial.add_store(4, &[]);
    [moved.id, other.id].iter().for_each(|region| trial.lead(*region, 1));
    let change = |trial: &mut Trial, region, kind, peer| {
        trial.admin(1, region, Admin::ChangePeers(vec![PeerChange { kind, peer }]));
        trial.ticks(20);
    };
    // Store 3 knows store 4 by the other region only.
    let learner = |id| Peer { role: PeerRole::Learner, ..peer(id, 4) };
    change(&mut trial, other.id, ChangeKind::Add, learner(404));
    trial.lose = |message| message.region == RegionId(3) && message.to_store == StoreId(3);
    change(&mut trial, moved.id, ChangeKind::Add, learner(304));
    change(&mut trial, moved.id, ChangeKind::Remove, peer(303, 3));
    trial.lose = |_| false;
    (1..=2).for_each(|store| trial.isolate(store));
    trial.ticks(400);
    assert!(trial.store(3).core.region(moved.id).is_none());
    assert!(trial.store(3).core.region(other.id).is_some());
}
