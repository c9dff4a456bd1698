//! Tests of the other half's pairs on a replica that missed a split.

use super::*;
use stele_storage::{Repair, StateMachine};

const CHILD: RegionId = RegionId(10);
/// Ticks for which orphaned pairs are kept.
const KEPT_TICKS: u64 = 400;

/// Returns a cluster in which store 3 missed a split at h and more entries than the log keeps: it
/// has the only intact copy of m, which the child now owns. Messages of the child do not reach it
/// yet.
fn behind() -> Trial {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
        options.orphaned_kept_nanos = KEPT_TICKS * TICK;
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
fn a_replica_that_is_removed_behind_a_split_leaves_nothing() {
    let reported = |trial: &mut Trial| {
        trial.heal();
        trial.ticks(40);
    };
    let placed = |trial: &mut Trial| {
        trial.admin(3, DATA, Admin::Destroy(PeerId(103)));
        trial.ticks(3);
    };
    for how in [&reported as &dyn Fn(&mut Trial), &placed] {
        let mut trial = behind();
        remove(&mut trial, DATA, 103);
        assert_eq!(trial.value(3, "m").as_deref(), Some("1"));
        how(&mut trial);
        assert!(trial.store(3).core.region(DATA).is_none());
        assert!(trial.store(3).core.orphaned_ranges().is_empty());
        assert_eq!(trial.value(3, "m"), None);
    }
}

#[test]
fn orphaned_pairs_are_dropped_when_their_time_is_over() {
    let mut trial = behind();
    trial.heal();
    trial.ticks(20);
    has_orphaned_value(&mut trial);
    trial.ticks(KEPT_TICKS - 20);
    has_orphaned_value(&mut trial);
    trial.ticks(20);
    assert!(trial.store(3).core.orphaned_ranges().is_empty());
    assert_eq!(trial.value(3, "m"), None);
    assert!(trial.value(3, "a199").is_some());
}

#[test]
fn opening_drops_orphaned_pairs_and_the_records_of_them_of_earlier_versions() {
    let mut trial = behind();
    trial.heal();
    trial.ticks(20);
    has_orphaned_value(&mut trial);
    let region = trial.report(3, DATA).region;
    let mut record = vec![keyspace::LOCAL, b'u'];
    record.extend([region.id.0.to_be_bytes(), 1u64.to_be_bytes()].concat());
    let record = Bytes::from(record);
    let has_record =
        |trial: &mut Trial| trial.store(3).engine.view().unwrap().get(&record).unwrap().is_some();
    let pair = (record.clone(), Region { range: KeyRange::all(), ..region }.encode());
    write_own_pair(&trial.store(3).engine, pair);
    assert!(has_record(&mut trial));
    trial.restart(3);
    assert!(!has_record(&mut trial));
    assert!(trial.store(3).core.orphaned_ranges().is_empty());
    assert_eq!(trial.value(3, "m"), None);
    trial.ticks(20);
    trial.write(1, put("b", "2"));
    trial.ticks(20);
    assert_eq!(trial.value(3, "b").as_deref(), Some("2"));
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
