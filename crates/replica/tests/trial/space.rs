//! Tests of a full device, limits and hibernation.

use super::*;
use stele_storage::StateMachine;

// Catalogue: 19.
#[test]
fn a_full_device_refuses_puts_and_lets_deletes_pass() {
    let mut trial = Trial::new(1);
    trial.settle();
    trial.store(1).engine.set_full(true);
    let write = trial.write(1, put("a", "1"));
    let delete = trial.delete(1, "a");
    trial.settle();
    assert_eq!(trial.busy(write), Some(&Busy::DiskFull));
    assert!(trial.is_written(delete));
}

/// Found by the simulation (seed 897).
// Catalogue: 19.
#[test]
fn a_snapshot_that_finds_no_room_is_dropped_and_another_one_taken_later() {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    trial.isolate(3);
    for i in 0..300 {
        trial.write(1, put(&format!("k{i}"), &"v".repeat(100)));
        trial.settle();
    }
    trial.store(1).engine.maintain(0).unwrap();
    trial.store(2).engine.maintain(0).unwrap();
    trial.ticks(4);
    trial.store(3).fills_up = true;
    trial.heal();
    trial.ticks(20);
    assert!(!trial.store(3).fills_up, "no snapshot came");
    assert_eq!(trial.value(3, "k299"), None);
    trial.store(3).engine.set_full(false);
    trial.ticks(200);
    assert_eq!(trial.value(3, "k299"), Some("v".repeat(100)));
}

// Catalogue: 19.
#[test]
fn a_replica_that_leaves_a_full_device_is_dropped_once_there_is_room() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.settle();
    let change = |kind, role| vec![PeerChange { kind, peer: Peer { role, ..peer(103, 3) } }];
    trial.admin(1, DATA, Admin::ChangePeers(change(ChangeKind::Add, PeerRole::Learner)));
    trial.ticks(5);
    trial.store(3).engine.set_full(true);
    trial.admin(1, DATA, Admin::ChangePeers(change(ChangeKind::Remove, PeerRole::Learner)));
    trial.ticks(40);
    assert!(trial.store(3).core.region(DATA).is_none());
    assert_eq!(trial.value(3, "a").as_deref(), Some("1"), "there was no room to drop it");
    assert!(trial.store(3).core.next_tick_nanos().is_some(), "no retry is due");
    trial.store(3).engine.set_full(false);
    trial.ticks(2);
    assert_eq!(trial.value(3, "a"), None);
}

#[test]
fn a_command_larger_than_an_entry_is_refused_at_once() {
    let mut trial = Trial::with(3, |options| options.entry_bytes_max = 500);
    trial.lead(DATA, 1);
    let large = trial.write(1, put("a", &"x".repeat(600)));
    let write = trial.write(1, put("a", &"x".repeat(300)));
    trial.settle();
    assert!(matches!(trial.refusal(large), Some(Refusal::TooLarge { bytes_max: 500, .. })));
    assert!(trial.is_written(write));
}

#[test]
fn a_quiet_region_rests_costs_nothing_and_wakes_for_a_write() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(150);
    for store in 1..=3 {
        assert!(trial.is_hibernating(store), "store {store}");
    }
    // A long silence deposes no leader.
    trial.ticks(100);
    assert_eq!(trial.leader(DATA), Some(1));
    assert!(
        trial
            .store(1)
            .core
            .readers()
            .get(DATA)
            .unwrap()
            .permit(&Header::default(), trial.now)
            .is_none()
    );
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert!(trial.is_written(write));
    trial.send_heartbeats();
    assert_eq!(trial.value(3, "a").as_deref(), Some("1"));
}

#[test]
fn followers_of_a_resting_leader_elect_another_when_its_store_is_lost() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(150);
    trial.isolate(1);
    for store in [2, 3] {
        trial.store(store).core.step(Input::StoreUnreachable(StoreId(1)));
    }
    trial.ticks(60);
    let leader = trial.leader(DATA).unwrap();
    assert_ne!(leader, 1);
    trial.heal();
    for store in [2, 3] {
        trial.store(store).core.step(Input::StoreReachable(StoreId(1)));
    }
    let write = trial.write(leader, put("a", "1"));
    trial.ticks(10);
    assert!(trial.is_written(write));
    assert_eq!(trial.value(1, "a").as_deref(), Some("1"));
}

#[test]
fn a_client_that_asks_a_resting_follower_wakes_the_region() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.ticks(150);
    let read = trial.read(2, true);
    trial.settle();
    assert!(matches!(trial.reply(read), Some(Reply::Done(Done::ReadReady { .. }))));
    assert!(!trial.report(1, DATA).hibernating);
}
