//! Tests of requests of sessions, which take effect at most once although they are repeated.

use super::*;
use stele_storage::{Pair, decode_record};
use stele_types::session::RecordKey;

/// Time of the cluster at the start of a trial, in Unix seconds. The clocks of the stores are at 1.
const CLUSTER_S: u64 = 1_000_000;

fn note_cluster_time(trial: &mut Trial, unix_s: u64) {
    let stores: Vec<u64> = trial.stores.keys().copied().collect();
    for store in stores {
        trial.poll(store);
        trial.store(store).core.step(Input::ClusterTime(unix_s));
    }
}

/// Three stores of which the first leads.
fn cluster() -> Trial {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    note_cluster_time(&mut trial, CLUSTER_S);
    trial
}

fn request(number: u64) -> SessionRequest {
    SessionRequest { session: SessionId(77), number, expires_at_s: CLUSTER_S + 60 }
}

/// Sends an attempt of a session's request that changes `a`.
fn attempt_in(
    trial: &mut Trial,
    (store, region): (u64, RegionId),
    request: SessionRequest,
    change: Modification,
) -> RequestId {
    let (id, session) = (trial.request(), Some(request));
    let modify = Modify { header: trial.header(region), key: key("a"), change, session };
    trial.store(store).core.step(Input::request(id, modify));
    id
}

fn attempt(trial: &mut Trial, store: u64, number: u64, change: Modification) -> RequestId {
    attempt_in(trial, (store, DATA), request(number), change)
}

fn increment() -> Modification {
    Modification::Increment { by: 1 }
}

fn updated(trial: &Trial, id: RequestId) -> Option<&str> {
    match trial.modified(id) {
        Some(Modified::Updated { value }) => Some(std::str::from_utf8(value).unwrap()),
        _ => None,
    }
}

fn record_of(number: u64) -> Bytes {
    request(number).record_key(&key("a")).unwrap()
}

#[test]
fn a_repetition_gets_the_first_result_and_takes_no_effect() {
    let mut trial = cluster();
    let all = [1, 1, 2, 1].map(|number| attempt(&mut trial, 1, number, increment()));
    trial.settle();
    let results = all.map(|id| updated(&trial, id).unwrap().to_owned());
    assert_eq!(results, ["1", "1", "2", "1"], "in one proposal");
    trial.send_heartbeats();
    let again = attempt(&mut trial, 1, 1, increment());
    trial.settle();
    assert_eq!(updated(&trial, again), Some("1"), "applied");
    let other = SessionRequest { session: SessionId(78), ..request(1) };
    let other = attempt_in(&mut trial, (1, DATA), other, increment());
    trial.settle();
    assert_eq!(updated(&trial, other), Some("3"), "another session");
    trial.lead(DATA, 2);
    let again = attempt(&mut trial, 2, 2, increment());
    trial.settle();
    assert_eq!(updated(&trial, again), Some("2"), "another leader");
    assert_eq!(trial.value(2, "a").as_deref(), Some("3"));
}

#[test]
fn every_kind_of_change_is_repeated_without_effect() {
    let put = |value: &'static str| NewPair::Put { value: value.into(), expires_at_s: 0 };
    let expected = Some(Bytes::from_static(b"1"));
    let changes = [
        Modification::Set { new: put("1") },
        Modification::Compare { expected, new: put("2") },
        Modification::Replace { new: put("3") },
        Modification::Append { bytes: Bytes::from_static(b"4") },
        Modification::Increment { by: 1 },
        Modification::GetAndDelete,
        Modification::Set { new: NewPair::Delete },
    ];
    let mut trial = cluster();
    for (number, change) in (1..).zip(changes) {
        let first = attempt(&mut trial, 1, number, change.clone());
        trial.settle();
        let result = trial.modified(first).cloned().unwrap();
        let after = trial.value(1, "a");
        // Another client's write shows whether the repetition has an effect.
        trial.write(1, harness::put("a", "other"));
        let again = attempt(&mut trial, 1, number, change.clone());
        trial.settle();
        assert_eq!(trial.modified(again), Some(&result), "{change:?}");
        assert_eq!(trial.value(1, "a").as_deref(), Some("other"), "{change:?}");
        match after {
            Some(after) => trial.write(1, harness::put("a", &after)),
            None => trial.delete(1, "a"),
        };
        trial.settle();
    }
}

#[test]
fn the_record_is_in_the_entry_of_the_effect() {
    let mut trial = cluster();
    let before = trial.report(1, DATA).last;
    attempt(&mut trial, 1, 1, increment());
    trial.settle();
    let last = trial.report(1, DATA).last;
    assert_eq!(last, before.next(), "one entry");
    let entries = trial.store(1).engine.entries(DATA, last, last.next(), usize::MAX).unwrap();
    let command = Command::parse(entries[0].payload.clone()).unwrap();
    let ops: Vec<Op<'_>> = command.ops().collect();
    assert!(matches!(ops[0], Op::Put { key: changed, value: b"1", .. } if changed == key("a")));
    let Op::Put { key: record, value, expires_at_s, .. } = ops[1] else { panic!("{:?}", ops[1]) };
    assert_eq!((record, expires_at_s), (&record_of(1)[..], request(1).expires_at_s));
    assert_eq!(RecordKey::decode(record).unwrap().changed_key(), key("a"));
    let result = decode_record(&key("a"), &Bytes::copy_from_slice(value));
    assert_eq!(result, Some(Modified::Updated { value: Bytes::from_static(b"1") }));
}

#[test]
fn a_refused_condition_stays_refused() {
    let mut trial = cluster();
    let replace = || Modification::Replace {
        new: NewPair::Put { value: Bytes::from_static(b"x"), expires_at_s: 0 },
    };
    let first = attempt(&mut trial, 1, 1, replace());
    trial.settle();
    assert_eq!(trial.modified(first), Some(&Modified::Unchanged { previous: None }));
    trial.write(1, put("a", "other"));
    let again = attempt(&mut trial, 1, 1, replace());
    trial.settle();
    assert_eq!(trial.modified(again), Some(&Modified::Unchanged { previous: None }));
    assert_eq!(trial.value(1, "a").as_deref(), Some("other"));
    let unfit = attempt(&mut trial, 1, 2, increment());
    trial.settle();
    trial.write(1, put("a", "1"));
    let again = attempt(&mut trial, 1, 2, increment());
    trial.settle();
    let not_a_number = Some(&Modified::Unfit(stele_types::command::Unfit::NotANumber));
    assert_eq!((trial.modified(unfit), trial.modified(again)), (not_a_number, not_a_number));
}

#[test]
fn a_repetition_finds_the_record_in_an_entry_of_an_earlier_leader_and_waits_for_it() {
    let mut trial = cluster();
    let first = attempt(&mut trial, 1, 1, increment());
    // Followers have the entry; the leader does not learn that it is committed.
    trial.lose = |message| matches!(&message.body, Body::Raft(raft) if raft.kind == RaftKind::AppendResponse);
    trial.settle();
    assert_eq!(trial.reply(first), None);
    let again = attempt(&mut trial, 1, 1, increment());
    trial.settle();
    assert_eq!(trial.reply(again), None, "the entry is not committed");
    trial.lose = |_| false;
    trial.isolate(1);
    let leader = (0..400).find_map(|_| {
        trial.ticks(1);
        trial.leader(DATA).filter(|leader| *leader != 1)
    });
    let leader = leader.unwrap();
    note_cluster_time(&mut trial, CLUSTER_S);
    trial.ticks(4);
    let again = attempt(&mut trial, leader, 1, increment());
    trial.settle();
    assert_eq!(updated(&trial, again), Some("1"));
    trial.heal();
    trial.ticks(4);
    assert_eq!(trial.value(leader, "a").as_deref(), Some("1"));
    assert!(matches!(trial.reply(first), Some(Reply::Unknown(_) | Reply::Done(_))));
}

#[test]
fn a_record_is_found_although_the_clock_of_the_node_is_far_ahead() {
    let mut trial = cluster();
    let near = SessionRequest { expires_at_s: CLUSTER_S + 5, ..request(1) };
    let first = attempt_in(&mut trial, (1, DATA), near, increment());
    trial.settle();
    // The clocks of the stores pass the deadline; the cluster's time does not.
    trial.advance((CLUSTER_S + 100) * SECOND);
    trial.lead(DATA, 1);
    note_cluster_time(&mut trial, CLUSTER_S + 4);
    let again = attempt_in(&mut trial, (1, DATA), near, increment());
    trial.settle();
    assert_eq!((updated(&trial, first), updated(&trial, again)), (Some("1"), Some("1")));
    assert_eq!(trial.value(1, "a").as_deref(), Some("1"));
}

#[test]
fn an_attempt_after_its_deadline_is_refused_and_never_executed() {
    let mut trial = cluster();
    let refused = |cluster_s| Refusal::SessionDeadline { cluster_s };
    let rows = [
        (CLUSTER_S - 1, Some(refused(CLUSTER_S))),
        (CLUSTER_S, None),
        (CLUSTER_S + session::LIFE_S_MAX, None),
        (CLUSTER_S + session::LIFE_S_MAX + 1, Some(refused(CLUSTER_S))),
    ];
    for (number, (expires_at_s, expected)) in (1..).zip(rows) {
        let request = SessionRequest { expires_at_s, ..request(number) };
        let id = attempt_in(&mut trial, (1, DATA), request, increment());
        trial.settle();
        assert_eq!(trial.refusal(id), expected.as_ref(), "{expires_at_s}");
    }
    assert_eq!(trial.value(1, "a").as_deref(), Some("2"));
    // A pair that is read for long.
    trial.store(1).engine.set_cold(true);
    trial.store(1).holds_lookups = true;
    let near = SessionRequest { expires_at_s: CLUSTER_S + 1, ..request(9) };
    let id = attempt_in(&mut trial, (1, DATA), near, increment());
    trial.settle();
    note_cluster_time(&mut trial, CLUSTER_S + 2);
    while trial.reply(id).is_none() {
        assert!(trial.answer_lookups(1));
        trial.settle();
    }
    assert_eq!(trial.refusal(id), Some(&refused(CLUSTER_S + 2)));
    assert_eq!(trial.value(1, "a").as_deref(), Some("2"));
}

#[test]
fn a_store_that_does_not_know_the_clusters_time_executes_no_request_of_a_session() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let is_busy = |trial: &mut Trial| {
        let id = attempt(trial, 1, 1, increment());
        trial.settle();
        matches!(trial.busy(id), Some(Busy::Wait { .. }))
    };
    assert!(is_busy(&mut trial), "no time was received");
    note_cluster_time(&mut trial, 0);
    assert!(is_busy(&mut trial), "no majority has reported");
    note_cluster_time(&mut trial, CLUSTER_S);
    trial.advance((ClusterTime::FRESH_S_MAX + 2) * SECOND);
    trial.lead(DATA, 1);
    assert!(is_busy(&mut trial), "the last time is old");
    note_cluster_time(&mut trial, CLUSTER_S);
    assert!(!is_busy(&mut trial));
    assert_eq!(trial.value(1, "a").as_deref(), Some("1"));
}

#[test]
fn attempts_wait_for_the_record_that_is_read_from_the_device() {
    let mut trial = cluster();
    attempt(&mut trial, 1, 1, increment());
    trial.settle();
    trial.store(1).engine.set_cold(true);
    trial.store(1).holds_lookups = true;
    let all = [2, 1, 2, 3].map(|number| attempt(&mut trial, 1, number, increment()));
    trial.settle();
    assert!(all.iter().all(|id| trial.reply(*id).is_none()));
    assert_eq!(trial.store(1).lookups.len(), 1);
    assert_eq!(trial.store(1).lookups[0].key, record_of(2), "the record comes first");
    for _ in 0..10 {
        trial.answer_lookups(1);
        trial.settle();
    }
    let results = all.map(|id| updated(&trial, id).unwrap().to_owned());
    assert_eq!(results, ["2", "1", "2", "3"]);
    assert_eq!(trial.value(1, "a").as_deref(), Some("3"));
}

#[test]
fn no_delete_of_the_key_or_of_a_range_deletes_the_record() {
    let mut trial = cluster();
    attempt(&mut trial, 1, 1, increment());
    trial.delete(1, "a");
    let mut range = CommandBuilder::new();
    let all = ColumnFamily::Default.engine_range(&KeyRange::all());
    range.delete_range(&all.start, &all.end).unwrap();
    trial.write(1, range.build().bytes().clone());
    let again = attempt(&mut trial, 1, 1, increment());
    trial.settle();
    assert_eq!(updated(&trial, again), Some("1"));
    assert_eq!(trial.value(1, "a"), None);
}

fn record_on(trial: &mut Trial, store: u64) -> Option<Pair> {
    trial.store(store).engine.view().unwrap().get(&record_of(1)).unwrap()
}

#[test]
fn a_repetition_after_a_split_a_merge_and_a_snapshot_gets_the_first_result() {
    let mut trial = Trial::with_store_3_behind();
    note_cluster_time(&mut trial, CLUSTER_S);
    let first = attempt(&mut trial, 1, 1, increment());
    outgrow_log(&mut trial);
    trial.heal();
    trial.ticks(20);
    assert_eq!(updated(&trial, first), Some("1"));
    assert!(record_on(&mut trial, 3).is_some(), "the snapshot has the record");
    // The key goes to the new region.
    let keys = vec![Bytes::from_static(b"A")];
    let new = NewRegion { region: RegionId(10), peers: [201, 202, 203].map(PeerId).to_vec() };
    let leader = trial.elect(DATA);
    trial.admin(leader, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.ticks(4);
    let split = trial.elect(RegionId(10));
    let again = attempt_in(&mut trial, (split, RegionId(10)), request(1), increment());
    trial.settle();
    assert_eq!(updated(&trial, again), Some("1"), "after a split");
    // It merges back.
    trial.lead(DATA, 1);
    trial.lead(RegionId(10), 1);
    let target = trial.report(1, DATA).region;
    trial.admin(1, RegionId(10), Admin::PrepareMerge { target });
    trial.ticks(5);
    let source = trial.report(1, RegionId(10)).region;
    let RegionPhase::Merging { prepared: prepared_index, .. } = source.phase else {
        panic!("{source:?} is not prepared");
    };
    trial.admin(1, DATA, Admin::CommitMerge { source, prepared_index });
    trial.ticks(10);
    assert!(trial.report(1, DATA).region.range.end.is_empty(), "merged");
    let again = attempt(&mut trial, 1, 1, increment());
    trial.settle();
    assert_eq!(updated(&trial, again), Some("1"), "after a merge");
    assert!((1..=3).all(|store| record_on(&mut trial, store).is_some()));
}
