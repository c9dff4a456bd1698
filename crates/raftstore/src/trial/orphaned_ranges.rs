//! Tests of the other half's pairs on a replica that missed a split.

use super::*;
use stele_storage::{Repair, StateMachine};

const CHILD: RegionId = RegionId(10);

/// Returns a cluster in which store 3 missed a split at h and more entries than the log keeps: it
/// has the only intact copy of m, which the child now owns. Messages of the child do not reach it
/// yet.
fn behind() -> Trial {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    trial.write(1, put("m", "1"));
    trial.ticks(2);
    trial.store(3).engine.maintain(0).unwrap();
    trial.isolate(3);
    let new = NewRegion { region: CHILD, peers: [201, 202, 203].map(PeerId).to_vec() };
    let keys = vec![Bytes::from_static(b"h")];
    let asked = trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.settle();
    assert!(matches!(trial.reply(asked), Some(Reply::Done(Done::Admin { .. }))));
    outgrow_log(&mut trial);
    for store in [1, 2] {
        trial.store(store).engine.lose(&key("m"));
        trial.store(store).core.step(Input::Damaged);
    }
    trial.lose = without_child;
    trial
}

fn without_child(message: &PeerMessage) -> bool {
    message.region == CHILD && message.to_store == StoreId(3)
}

/// Lets the child reach store 3 and checks that all replicas have the value that only store 3 had.
fn comes_together(trial: &mut Trial) {
    trial.lose = |_| false;
    trial.ticks(200);
    for store in 1..=3 {
        assert_eq!(trial.value(store, "m").as_deref(), Some("1"), "store {store}");
    }
    assert!(trial.store(3).core.region(CHILD).is_some());
    assert!(trial.store(3).core.orphaned_ranges().is_empty());
    trial.restart(3);
    assert!(trial.store(3).core.orphaned_ranges().is_empty());
    assert_eq!(notes(trial), 0);
}

fn notes(trial: &mut Trial) -> usize {
    let view = trial.store(3).engine.view().unwrap();
    view.scan(&ScanOptions::new(keyspace::orphaned_range_keys(), 10)).unwrap().len()
}

/// Checks that store 3 follows in the parent and still has the child's value.
fn has_orphaned_value(trial: &mut Trial) {
    assert_eq!(trial.report(3, DATA).region.epoch.version, 2);
    assert!(trial.store(3).core.region(CHILD).is_none());
    assert_eq!(trial.value(3, "m").as_deref(), Some("1"));
    assert_eq!(trial.store(3).core.orphaned_ranges(), [KeyRange::new("h", "")]);
}

#[test]
fn a_replica_behind_a_split_has_the_last_whole_copy_of_the_other_half() {
    let mut trial = behind();
    trial.heal();
    trial.ticks(20);
    has_orphaned_value(&mut trial);
    comes_together(&mut trial);
}

#[test]
fn what_is_unclaimed_outlives_a_crash() {
    let mut trial = behind();
    trial.heal();
    trial.ticks(20);
    trial.restart(3);
    trial.ticks(2);
    has_orphaned_value(&mut trial);
    comes_together(&mut trial);
}

#[test]
fn a_snapshot_of_less_waits_until_the_note_of_the_rest_is_durable() {
    let mut trial = behind();
    trial.store(3).stalled = true;
    trial.heal();
    trial.ticks(20);
    assert_eq!(trial.report(3, DATA).region.epoch.version, 1);
    trial.restart(3);
    assert_eq!(trial.value(3, "m").as_deref(), Some("1"));
    trial.ticks(20);
    has_orphaned_value(&mut trial);
    comes_together(&mut trial);
}

/// Removes store 3's peer from a region.
fn remove(trial: &mut Trial, region: RegionId, id: u64) {
    let peer = peer(id, 3);
    for (kind, role) in
        [(ChangeKind::Add, PeerRole::Learner), (ChangeKind::Remove, PeerRole::Learner)]
    {
        let leader = trial.leader(region).unwrap();
        let change = PeerChange { kind, peer: Peer { role, ..peer } };
        let asked = trial.admin(leader, region, Admin::ChangePeers(vec![change]));
        trial.ticks(5);
        assert!(matches!(trial.reply(asked), Some(Reply::Done(Done::Admin { .. }))));
    }
}

#[test]
fn a_replica_that_leaves_behind_a_split_leaves_the_other_half() {
    let reported = |trial: &mut Trial| {
        trial.heal();
        trial.ticks(40);
    };
    let placed = |trial: &mut Trial| {
        trial.admin(3, DATA, Admin::Destroy(PeerId(103)));
        trial.ticks(3);
        trial.heal();
    };
    for (how, is_reported) in [(&reported as &dyn Fn(&mut Trial), true), (&placed, false)] {
        let mut trial = behind();
        remove(&mut trial, DATA, 103);
        how(&mut trial);
        assert!(trial.store(3).core.region(DATA).is_none());
        let left = if is_reported { KeyRange::new("h", "") } else { KeyRange::all() };
        assert_eq!(trial.store(3).core.orphaned_ranges(), [left]);
        trial.restart(3);
        assert_eq!(trial.value(3, "m").as_deref(), Some("1"));
        let owner = trial.report(1, DATA).region;
        trial.store(3).core.step(Input::Owners(vec![owner]));
        trial.ticks(2);
        assert_eq!(trial.store(3).core.orphaned_ranges(), [KeyRange::new("h", "")]);
        comes_together(&mut trial);
    }
}

#[test]
fn what_no_replica_here_will_own_is_dropped_on_later_word_only() {
    let mut trial = behind();
    trial.heal();
    trial.ticks(20);
    has_orphaned_value(&mut trial);
    let child = trial.report(1, CHILD).region;
    let mut before = child.clone();
    (before.id, before.epoch.version) = (RegionId(9), 1);
    before.peers.retain(|peer| peer.store != StoreId(3));
    for owner in [child, before] {
        trial.store(3).core.step(Input::Owners(vec![owner]));
        trial.ticks(2);
        has_orphaned_value(&mut trial);
    }
    // A part is dropped, then all.
    remove(&mut trial, CHILD, 203);
    let after = trial.report(1, CHILD).region;
    let part = Region { range: KeyRange::new("h", "i"), ..after.clone() };
    trial.store(3).core.step(Input::Owners(vec![part]));
    trial.ticks(2);
    assert_eq!(trial.store(3).core.orphaned_ranges(), [KeyRange::new("i", "")]);
    assert_eq!(trial.value(3, "m").as_deref(), Some("1"));
    trial.store(3).core.step(Input::Owners(vec![after]));
    trial.ticks(2);
    assert!(trial.store(3).core.orphaned_ranges().is_empty());
    assert_eq!((trial.value(3, "m"), notes(&mut trial)), (None, 0));
}

#[test]
fn unclaimed_keys_of_which_nothing_is_known_are_not_taken_for_none() {
    let mut trial = behind();
    trial.heal();
    trial.ticks(20);
    let lost = KeyRange::new(key("h"), key("j"));
    trial.store(3).engine.lose_range(&lost);
    trial.store(3).core.step(Input::Damaged);
    trial.ticks(20);
    assert_eq!(trial.store(3).engine.lost_ranges(), [lost]);
    comes_together(&mut trial);
    trial.ticks(20);
    assert!(trial.store(3).engine.lost_ranges().is_empty());
}
