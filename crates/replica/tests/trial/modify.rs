//! Tests of read-modify-writes, and of the keys that are held while their pairs are read.

use super::*;
use stele_storage::Pair;
use stele_types::command::Unfit;

#[test]
fn comparisons_see_what_was_proposed_before_them() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let first = trial.cas(1, "a", None, "1");
    let second = trial.cas(1, "a", Some("1"), "2");
    let third = trial.cas(1, "a", Some("1"), "3");
    trial.settle();
    let pair =
        |value| Some(Pair { key: key("a"), value: Bytes::from_static(value), expires_at_s: 0 });
    assert_eq!(trial.modified(first), Some(&Modified::Replaced { previous: None }));
    assert_eq!(trial.modified(second), Some(&Modified::Replaced { previous: pair(b"1") }));
    assert_eq!(trial.modified(third), Some(&Modified::Unchanged { previous: pair(b"2") }));
    trial.send_heartbeats();
    assert_eq!(trial.value(3, "a").as_deref(), Some("2"));
}

#[test]
fn a_failed_comparison_waits_for_what_it_looked_at() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    let write = trial.write(1, put("a", "x"));
    let cas = trial.cas(1, "a", None, "y");
    trial.settle();
    assert_eq!((trial.reply(write), trial.reply(cas)), (None, None));
    trial.store(2).stalled = false;
    trial.settle();
    assert!(trial.is_written(write));
    assert!(matches!(trial.modified(cas), Some(Modified::Unchanged { .. })));
}

#[test]
fn a_comparison_lost_with_leadership_is_undetermined() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(1);
    let cas = trial.cas(1, "a", None, "y");
    let failed = trial.cas(1, "a", None, "z");
    trial.ticks(40);
    assert_eq!(trial.unknown(cas), Some(Unknown::LeadershipLost));
    // It failed on the first comparison, so it changed nothing.
    assert!(matches!(trial.refusal(failed), Some(Refusal::NotLeader { .. })));
}

/// Three stores of which the first leads, with `a` = 1. Its engine reads every value from the device,
/// and lookups wait for the test.
fn cold() -> Trial {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.write(1, put("a", "1"));
    trial.settle();
    trial.store(1).engine.set_cold(true);
    trial.store(1).holds_lookups = true;
    trial
}

fn increment(trial: &mut Trial, by: i64) -> RequestId {
    trial.modify(1, "a", Modification::Increment { by })
}

fn updated(trial: &Trial, id: RequestId) -> Option<&str> {
    match trial.modified(id) {
        Some(Modified::Updated { value }) => Some(std::str::from_utf8(value).unwrap()),
        _ => None,
    }
}

fn command(ops: impl FnOnce(&mut CommandBuilder)) -> Bytes {
    let mut builder = CommandBuilder::new();
    ops(&mut builder);
    builder.build().bytes().clone()
}

#[test]
fn requests_that_change_a_held_key_wait_in_order_and_all_others_go_on() {
    let mut trial = cold();
    let first = increment(&mut trial, 1);
    let other = trial.write(1, put("b", "1"));
    trial.settle();
    assert_eq!((trial.reply(first), trial.is_written(other)), (None, true));
    let behind = [
        increment(&mut trial, 2),
        trial.write(1, put("a", "10")),
        increment(&mut trial, 5),
        trial.write(1, command(|it| drop(it.put(&key("c"), b"1", 0).unwrap().delete(&key("a"))))),
        increment(&mut trial, 7),
        trial.write(1, command(|it| drop(it.delete_range(&key("A"), &key("b"))))),
        trial.modify(1, "a", Modification::Append { bytes: Bytes::from_static(b"9") }),
    ];
    let other = trial.write(1, command(|it| drop(it.delete_range(&key("b"), &key("c")))));
    trial.settle();
    assert!(trial.is_written(other));
    assert!(behind.iter().all(|id| trial.reply(*id).is_none()));
    assert!(trial.answer_lookups(1));
    trial.settle();
    let results = [first, behind[0], behind[2], behind[4], behind[6]];
    let results = results.map(|id| updated(&trial, id).map(str::to_owned));
    assert_eq!(results.map(Option::unwrap), ["2", "4", "15", "7", "9"]);
    assert!(trial.is_written(behind[1]) && trial.is_written(behind[3]));
    trial.send_heartbeats();
    for store in 1..=3 {
        assert_eq!(trial.value(store, "a").as_deref(), Some("9"));
        assert_eq!(trial.value(store, "c").as_deref(), Some("1"));
    }
    assert!(trial.store(1).lookups.is_empty(), "an unapplied entry has the value of the others");
}

#[test]
fn a_value_that_is_in_an_unapplied_entry_is_taken_from_there() {
    let mut trial = cold();
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    let write = trial.write(1, put("a", "5"));
    trial.settle();
    let count = increment(&mut trial, 1);
    trial.settle();
    assert_eq!((trial.reply(write), trial.reply(count)), (None, None));
    trial.answer_lookups(1);
    trial.store(2).stalled = false;
    trial.settle();
    assert_eq!(updated(&trial, count), Some("6"));
}

#[test]
fn leadership_lost_while_a_key_is_held_refuses_all_that_wait() {
    let mut trial = cold();
    let waiting = [increment(&mut trial, 1), trial.write(1, put("a", "7"))];
    trial.settle();
    trial.lead(DATA, 2);
    let leader = Some(peer(102, 2));
    for id in waiting {
        assert_eq!(trial.refusal(id), Some(&Refusal::NotLeader { leader }));
    }
    trial.answer_lookups(1);
    trial.ticks(4);
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"), "nothing was proposed");
}

#[test]
fn a_lookup_of_an_earlier_term_counts_for_no_later_one_of_the_key() {
    let mut trial = cold();
    let refused = increment(&mut trial, 1);
    trial.settle();
    let lookup = trial.store(1).lookups.remove(0);
    let result = trial.store(1).engine.view().unwrap().get(&key("a"));
    trial.lead(DATA, 2);
    assert!(matches!(trial.refusal(refused), Some(Refusal::NotLeader { .. })));
    trial.write(2, put("a", "5"));
    trial.settle();
    trial.lead(DATA, 1);
    let count = increment(&mut trial, 1);
    trial.settle();
    trial.store(1).core.step(Input::Found { lookup, result });
    trial.settle();
    trial.answer_lookups(1);
    trial.settle();
    assert_eq!(updated(&trial, count), Some("6"));
}

#[test]
fn a_request_that_waited_for_its_key_is_checked_again() {
    let mut trial = cold();
    let version = Some(trial.report(1, DATA).region.epoch.version);
    let header = Header { version, ..trial.header(DATA) };
    let (id, change) = (trial.request(), Modification::Increment { by: 1 });
    trial
        .store(1)
        .core
        .step(Input::request(id, Modify { header, key: key("z"), change, session: None }));
    let behind = trial.request();
    let (command, only_deletes) = (put("z", "1"), false);
    trial.store(1).core.step(Input::request(behind, Write { header, command, only_deletes }));
    trial.settle();
    let peers = [201, 202, 203].map(PeerId).to_vec();
    let new_ids = vec![NewRegion { region: RegionId(10), peers }];
    let keys = vec![Bytes::from_static(b"m")];
    let split = trial.admin(1, DATA, Admin::Split { keys, new_ids });
    trial.settle();
    assert!(matches!(trial.reply(split), Some(Reply::Done(Done::Admin { .. }))), "it goes on");
    trial.answer_lookups(1);
    trial.settle();
    for id in [id, behind] {
        assert!(matches!(trial.refusal(id), Some(Refusal::EpochNotMatch { .. })));
    }
    assert_eq!(trial.value(1, "z"), None);
}

#[test]
fn a_transfer_that_ends_without_another_leader_keeps_the_key_held() {
    let mut trial = cold();
    trial.lose = |m| matches!(&m.body, Body::Raft(r) if r.kind == RaftKind::TimeoutNow);
    let count = increment(&mut trial, 1);
    trial.settle();
    trial.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    trial.settle();
    trial.answer_lookups(1);
    trial.settle();
    assert_eq!(trial.reply(count), None, "the target must have all entries");
    trial.ticks(30);
    assert_eq!((trial.leader(DATA), updated(&trial, count)), (Some(1), Some("2")));
}

#[test]
fn what_waits_for_a_key_ends_at_its_deadline_and_frees_the_key() {
    let mut trial = cold();
    let header = Header { deadline_nanos: trial.now + 4 * TICK, ..trial.header(DATA) };
    let (id, change) = (trial.request(), Modification::Increment { by: 1 });
    trial
        .store(1)
        .core
        .step(Input::request(id, Modify { header, key: key("a"), change, session: None }));
    let late = trial.request();
    let (command, only_deletes) = (put("a", "8"), false);
    trial.store(1).core.step(Input::request(late, Write { header, command, only_deletes }));
    let write = trial.write(1, put("a", "9"));
    trial.ticks(2);
    assert!([id, late, write].iter().all(|id| trial.reply(*id).is_none()));
    trial.ticks(3);
    assert_eq!(trial.busy(id), Some(&Busy::DeadlinePassed));
    assert_eq!(trial.busy(late), Some(&Busy::DeadlinePassed));
    assert!(trial.is_written(write));
    let count = increment(&mut trial, 1);
    trial.answer_lookups(1);
    trial.settle();
    trial.answer_lookups(1);
    trial.settle();
    assert_eq!(updated(&trial, count), Some("10"));
}

#[test]
fn a_region_with_a_held_key_stays_awake() {
    let mut trial = cold();
    trial.ticks(200);
    assert!(trial.report(1, DATA).hibernating);
    let count = increment(&mut trial, 1);
    trial.ticks(200);
    assert!(!trial.report(1, DATA).hibernating);
    trial.answer_lookups(1);
    trial.ticks(200);
    assert!(trial.report(1, DATA).hibernating);
    assert_eq!(updated(&trial, count), Some("2"));
}

#[test]
fn lookups_and_the_bytes_that_they_find_are_bounded() {
    let mut trial = Trial::with(3, |options| options.found_bytes_max = 2_500);
    trial.lead(DATA, 1);
    for name in ["a", "b", "c"] {
        trial.write(1, put(name, &"1".repeat(1000)));
    }
    trial.settle();
    trial.store(1).engine.set_cold(true);
    trial.store(1).holds_lookups = true;
    let names: Vec<String> = (0..2_049).map(|at| format!("k{at}")).collect();
    let append = || Modification::Append { bytes: Bytes::from_static(b"x") };
    let all: Vec<_> = names.iter().map(|name| trial.modify(1, name, append())).collect();
    trial.settle();
    let (last, first) = all.split_last().unwrap();
    assert!(first.iter().all(|id| trial.reply(*id).is_none()));
    assert!(matches!(trial.busy(*last), Some(Busy::Wait { .. })));
    trial.answer_lookups(1);
    trial.settle();
    assert!(first.iter().all(|id| trial.modified(*id).is_some()));
    for round in 0..2 {
        let all = ["a", "b", "c"].map(|name| trial.modify(1, name, append()));
        trial.settle();
        trial.answer_lookups(1);
        trial.settle();
        let busy = all.map(|id| matches!(trial.busy(id), Some(Busy::Wait { .. })));
        assert_eq!(busy, [false, false, true], "round {round}: bytes are free once proposed");
        assert!(all[..2].iter().all(|id| trial.modified(*id).is_some()));
    }
}

#[test]
fn a_result_that_changes_nothing_waits_for_what_it_depends_on() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.store(2).stalled = true;
    trial.store(3).stalled = true;
    trial.write(1, put("a", "one"));
    let count = trial.modify(1, "a", Modification::Increment { by: 1 });
    let absent = trial.modify(1, "b", Modification::GetAndDelete);
    trial.settle();
    assert_eq!((trial.reply(count), trial.reply(absent)), (None, None));
    trial.store(2).stalled = false;
    trial.settle();
    assert_eq!(trial.modified(count), Some(&Modified::Unfit(Unfit::NotANumber)));
    assert_eq!(trial.modified(absent), Some(&Modified::Unchanged { previous: None }));
}

#[test]
fn the_expiry_of_a_pair_stays_and_an_expired_pair_counts_as_absent() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let expires_at_s = trial.clock().unix_seconds() + 60;
    let mut number = CommandBuilder::new();
    number.put(&key("a"), b"41", expires_at_s).unwrap();
    trial.write(1, number.build().bytes().clone());
    let count = trial.modify(1, "a", Modification::Increment { by: 1 });
    trial.settle();
    assert_eq!(updated(&trial, count), Some("42"));
    let pair = trial.store(1).engine.view().unwrap().get(&key("a")).unwrap().unwrap();
    assert_eq!((&pair.value[..], pair.expires_at_s), (&b"42"[..], expires_at_s));
    trial.advance(61 * SECOND);
    trial.lead(DATA, 1);
    let count = trial.modify(1, "a", Modification::Increment { by: 1 });
    trial.settle();
    assert_eq!(updated(&trial, count), Some("1"));
    let pair = trial.store(1).engine.view().unwrap().get(&key("a")).unwrap().unwrap();
    assert_eq!(pair.expires_at_s, 0);
}
