//! Tests of truncation on a device short of space, of followers without room, and of batches for
//! which there is none.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use stele_storage::StateMachine;

fn has_put(batch: &LogBatch) -> bool {
    batch.records.iter().any(|record| match record {
        Record::Entry(entry) if entry.region == DATA => {
            let mut puts = false;
            Command::each_op_of(&entry.payload, |op| puts |= matches!(op, Op::Put { .. }));
            puts && fuzzing::admin(&entry.payload).is_none()
        }
        _ => false,
    })
}

fn is_tombstone(batch: &LogBatch) -> bool {
    batch.records.iter().any(|record| matches!(record, Record::Mark(DATA, Mark::Destroy)))
}

impl Trial {
    fn puts(&mut self, store: u64, names: std::ops::Range<u64>) {
        for name in names {
            let write = self.write(store, put(&format!("k{name}"), &"v".repeat(100)));
            self.settle();
            assert!(self.is_written(write), "k{name}: {:?}", self.reply(write));
        }
        self.send_heartbeats();
    }

    fn checkpoint(&mut self, stores: std::ops::RangeInclusive<u64>) {
        stores.for_each(|store| self.store(store).engine.checkpoint().unwrap());
    }

    fn truncated(&mut self, store: u64) -> u64 {
        self.store(store).engine.progress(DATA).unwrap().truncated.0.0
    }

    fn last(&mut self, store: u64) -> LogIndex {
        self.report(store, DATA).last
    }
}

// Catalogue: 19.
#[test]
fn a_store_short_of_space_keeps_no_entry_that_no_live_follower_lacks() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.puts(1, 0..20);
    trial.checkpoint(1..=3);
    trial.ticks(25);
    assert!((1..=3).all(|store| trial.truncated(store) < 10), "the usual number stays");
    trial.isolate(3);
    trial.puts(1, 20..30);
    let lacks = trial.last(3).0;
    trial.checkpoint(1..=2);
    for store in 1..=2 {
        trial.store(store).engine.set_short(true);
    }
    trial.ticks(25);
    assert_eq!(trial.truncated(1), lacks, "store 3 lacks what follows");
    assert_eq!(trial.truncated(2), trial.report(2, DATA).applied.0, "a follower keeps none");
    trial.ticks(250);
    assert_eq!(trial.truncated(1), trial.report(1, DATA).applied.0, "store 3 is not live");
    trial.heal();
    trial.ticks(100);
    assert_eq!(trial.value(3, "k29"), Some("v".repeat(100)));
}

// Catalogue: 19.
#[test]
fn a_request_of_garbage_collection_truncates_hibernating_logs_without_a_write() {
    let mut trial = Trial::with(3, |options| {
        options.log_kept = LogKept { entries: 5, pin_bytes_max: 1_000 };
    });
    trial.lead(DATA, 1);
    trial.puts(1, 0..20);
    trial.ticks(150);
    trial.checkpoint(1..=3);
    assert!(trial.is_hibernating(2));
    let before = trial.truncated(2);
    trial.ticks(100);
    assert_eq!(trial.truncated(2), before, "nothing requests it");
    trial.store(2).engine.request_truncation();
    trial.ticks(25);
    assert_eq!(trial.truncated(2), trial.report(2, DATA).applied.0 - 5);
    assert_eq!(trial.truncated(1), before);
    assert!(trial.is_hibernating(2), "it woke");
}

#[test]
fn a_region_without_other_replicas_keeps_no_entries() {
    let mut trial = Trial::new(1);
    trial.settle();
    trial.puts(1, 0..80);
    trial.checkpoint(1..=1);
    let applied = trial.report(1, DATA).applied.0;
    trial.ticks(5);
    trial.puts(1, 80..81);
    assert_eq!(trial.truncated(1), applied);
}

// Catalogue: 19.
#[test]
fn a_follower_takes_no_entry_into_its_reserve_and_the_quorum_goes_on() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.puts(1, 0..3);
    trial.store(3).engine.set_full(true);
    let delete = trial.delete(1, "k0");
    trial.settle();
    trial.send_heartbeats();
    assert!(trial.is_written(delete));
    assert_eq!(trial.value(3, "k0"), None, "a delete frees space");
    trial.store(3).engine.set_full(false);
    trial.ticks(20);
    // The leader does not know when the next put leaves.
    trial.store(3).engine.set_full(true);
    let end = trial.last(3);
    trial.puts(1, 3..8);
    trial.ticks(100);
    assert_eq!(trial.last(3), end);
    assert_eq!(trial.store(3).engine.progress(DATA).unwrap().persisted.0, end);
    assert_eq!(trial.leader(DATA), Some(1), "heartbeats go on");
    let pending = trial.report(1, DATA).pending_peers;
    assert_eq!(pending, [peer(103, 3)]);
    assert!(trial.report(3, DATA).lacks_room && !trial.report(2, DATA).lacks_room);
    trial.store(3).engine.set_full(false);
    trial.ticks(20);
    assert_eq!(trial.value(3, "k7"), Some("v".repeat(100)));
    assert!(trial.report(1, DATA).pending_peers.is_empty());
    assert!(!trial.report(3, DATA).lacks_room);
}

// Catalogue: 19.
#[test]
fn a_follower_without_room_is_sent_puts_at_a_bounded_rate() {
    static SENT: AtomicUsize = AtomicUsize::new(0);
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(3).engine.set_full(true);
    trial.puts(1, 0..3);
    trial.lose = |message| {
        if let Body::Raft(raft) = &message.body
            && raft.kind == RaftKind::Append
            && message.to_store == StoreId(3)
            && !raft.entries.is_empty()
        {
            SENT.fetch_add(1, Ordering::Relaxed);
        }
        false
    };
    trial.ticks(10);
    SENT.store(0, Ordering::Relaxed);
    trial.puts(1, 3..20);
    trial.ticks(200);
    assert_eq!(SENT.load(Ordering::Relaxed), 0);
}

// Catalogue: 19.
#[test]
fn puts_that_no_quorum_has_room_for_are_refused_and_deletes_go_on() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.puts(1, 0..3);
    for store in 2..=3 {
        trial.store(store).engine.set_full(true);
    }
    // It is in the log before the leader knows. Followers take it: the deletes wait behind it.
    let first = trial.write(1, put("first", "1"));
    trial.ticks(10);
    assert!(trial.is_written(first), "{:?}", trial.reply(first));
    let second = trial.write(1, put("second", "1"));
    let delete = trial.delete(1, "k0");
    trial.ticks(5);
    assert_eq!(trial.busy(second), Some(&Busy::DiskFull));
    assert!(trial.is_written(delete));
    trial.ticks(100);
    let later = trial.write(1, put("later", "1"));
    trial.ticks(1);
    assert_eq!(trial.busy(later), Some(&Busy::DiskFull), "nothing changed");
    trial.store(2).engine.set_full(false);
    trial.ticks(15);
    trial.puts(1, 3..5);
    let kept = ["first", "second", "later", "k4"].map(|name| trial.value(1, name).is_some());
    assert_eq!(kept, [true, false, false, true]);
}

#[test]
fn of_puts_that_have_no_room_together_those_are_taken_that_have_room_alone() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(1).engine.set_room(Some(200));
    let puts = [("a", 100), ("b", 300), ("c", 100)];
    let writes = puts.map(|(name, bytes)| trial.write(1, put(name, &"v".repeat(bytes))));
    trial.settle();
    assert!(trial.is_written(writes[0]), "{:?}", trial.reply(writes[0]));
    assert_eq!(trial.busy(writes[1]), Some(&Busy::DiskFull));
    assert!(trial.is_written(writes[2]), "{:?}", trial.reply(writes[2]));
}

// Catalogue: 19.
#[test]
fn a_follower_without_room_stages_no_snapshot_until_it_has_room() {
    let mut trial = Trial::with_store_3_behind();
    trial.store(3).engine.set_full(true);
    trial.heal();
    trial.ticks(100);
    assert_eq!(trial.store(3).accepted, 0);
    trial.store(3).engine.set_full(false);
    trial.ticks(400);
    assert_eq!(trial.value(3, "b").as_deref(), Some("1"));
}

// Catalogue: 19.
#[test]
fn a_put_for_which_a_sole_voter_has_no_room_is_refused_and_has_no_effect_later() {
    let mut trial = Trial::new(1);
    trial.settle();
    trial.puts(1, 0..1);
    trial.store(1).refuses = has_put;
    let write = trial.write(1, put("k0", "lost"));
    trial.ticks(1);
    assert_eq!(trial.busy(write), Some(&Busy::DiskFull));
    let delete = trial.delete(1, "gone");
    trial.ticks(2);
    assert!(trial.is_written(delete), "{:?}", trial.reply(delete));
    trial.store(1).refuses = |_| false;
    trial.puts(1, 1..2);
    trial.restart(1);
    trial.ticks(5);
    assert_eq!(trial.value(1, "k0"), Some("v".repeat(100)));
    assert_eq!(trial.value(1, "k1"), Some("v".repeat(100)));
}

// Catalogue: 19.
#[test]
fn requests_to_a_sole_voter_that_cannot_write_at_all_are_refused_at_once() {
    let mut trial = Trial::new(1);
    trial.settle();
    trial.puts(1, 0..1);
    trial.store(1).full = true;
    let requests = [trial.write(1, put("a", "1")), trial.delete(1, "k0")];
    trial.ticks(2);
    let later = [trial.write(1, put("a", "1")), trial.delete(1, "k0")];
    trial.settle();
    for request in requests.into_iter().chain(later) {
        assert_eq!(trial.busy(request), Some(&Busy::DiskFull), "{request:?}");
    }
    trial.store(1).full = false;
    trial.ticks(5);
    assert_eq!(trial.value(1, "k0"), Some("v".repeat(100)));
    trial.puts(1, 1..2);
}

// Catalogue: 19.
#[test]
fn the_outcome_of_a_put_without_room_here_is_unknown_when_others_vote() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(1).refuses = has_put;
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    let write = trial.write(1, put("a", "1"));
    trial.settle();
    assert_eq!(trial.unknown(write), Some(Unknown::LeadershipLost));
    for store in 2..=3 {
        trial.store(store).stalled = false;
    }
    trial.ticks(60);
    let leader = trial.elect(DATA);
    assert_ne!(leader, 1);
    assert_eq!(trial.value(leader, "a").as_deref(), Some("1"), "the others held it");
}

// Catalogue: 19.
#[test]
fn a_replica_leaves_a_device_that_has_no_room_for_a_put_in_flight() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.puts(1, 0..1);
    trial.store(3).refuses = has_put;
    trial.puts(1, 1..2);
    let change = |kind, role| vec![PeerChange { kind, peer: Peer { role, ..peer(103, 3) } }];
    trial.admin(1, DATA, Admin::ChangePeers(change(ChangeKind::Add, PeerRole::Learner)));
    trial.ticks(5);
    trial.admin(1, DATA, Admin::ChangePeers(change(ChangeKind::Remove, PeerRole::Learner)));
    trial.ticks(200);
    assert!(trial.store(3).core.region(DATA).is_none(), "it stays");
    assert!(trial.store(3).engine.progress(DATA).is_none_or(|it| it.destroyed));
}

// Catalogue: 19.
#[test]
fn pairs_stay_until_the_tombstone_is_durable_though_a_batch_before_it_is_tried_again() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.puts(1, 0..1);
    trial.store(3).full = true;
    // The vote for another leader waits for room.
    trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    trial.ticks(1);
    trial.isolate(3);
    trial.admin(3, DATA, Admin::Destroy(PeerId(103)));
    trial.ticks(3);
    trial.store(3).refuses = is_tombstone;
    trial.store(3).full = false;
    trial.ticks(3);
    assert!(trial.store(3).engine.progress(DATA).is_some_and(|it| !it.destroyed));
    assert_eq!(trial.value(3, "k0"), Some("v".repeat(100)), "dropped before the tombstone");
    trial.store(3).refuses = |_| false;
    trial.ticks(3);
    assert_eq!(trial.value(3, "k0"), None);
}

// Catalogue: 19.
#[test]
fn hard_states_and_marks_for_which_there_is_no_room_are_written_later() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.puts(1, 0..1);
    for store in 1..=3 {
        trial.store(store).full = true;
    }
    trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    trial.ticks(3);
    for store in 1..=3 {
        trial.store(store).full = false;
    }
    trial.ticks(10);
    assert_eq!(trial.leader(DATA), Some(2));
    trial.puts(2, 1..2);
}
