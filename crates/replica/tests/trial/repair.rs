//! Tests of values that a store cannot read.

use super::*;
use stele_storage::StateMachine;

fn with_value() -> Trial {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    let write = trial.write(1, put("a", "1"));
    trial.ticks(3);
    assert!(trial.is_written(write));
    trial
}

fn lose(trial: &mut Trial, store: u64) {
    trial.store(store).engine.lose(&key("a"));
    trial.store(store).core.step(Input::Damaged);
}

// Catalogue: 13.
#[test]
fn a_value_lost_here_comes_from_whichever_replica_has_it() {
    for holder in 1..=3 {
        let mut trial = with_value();
        let others = (1..=3).filter(|store| *store != holder);
        others.for_each(|store| lose(&mut trial, store));
        trial.ticks(40);
        for store in 1..=3 {
            assert_eq!(trial.value(store, "a").as_deref(), Some("1"), "{holder} has it: {store}");
        }
    }
}

#[test]
fn a_hibernating_region_is_repaired_and_stays_hibernating() {
    let mut trial = with_value();
    trial.ticks(200);
    assert!(trial.report(2, DATA).hibernating);
    lose(&mut trial, 2);
    trial.settle();
    let asks = trial.store(2).core.next_tick_nanos();
    assert!(asks.is_none_or(|at| at <= trial.now + 1_000_000_000), "{asks:?}");
    trial.advance(1_000_000_000);
    trial.settle();
    assert_eq!(trial.value(2, "a").as_deref(), Some("1"));
    assert!(trial.report(2, DATA).hibernating);
}

#[test]
fn a_comparison_with_a_value_that_cannot_be_read_is_refused_and_stops_nothing() {
    let mut trial = with_value();
    lose(&mut trial, 1);
    let cas = trial.cas(1, "a", Some("1"), "2");
    trial.isolate(1);
    trial.settle();
    match trial.busy(cas) {
        Some(Busy::Wait { reason }) => assert!(reason.contains("cannot be read"), "{reason}"),
        _ => panic!("{:?}", trial.reply(cas)),
    }
    trial.heal();
    trial.ticks(20);
    let cas = trial.cas(1, "a", Some("1"), "2");
    trial.ticks(2);
    assert!(matches!(trial.modified(cas), Some(Modified::Replaced { .. })));
}

// Catalogue: 11.
#[test]
fn a_follower_gets_a_snapshot_in_place_of_entries_that_the_leader_cannot_read() {
    let mut trial = Trial::new(3);
    trial.lead(DATA, 1);
    trial.isolate(3);
    let writes: Vec<_> = (0..5).map(|i| trial.write(1, put(&format!("k{i}"), "v"))).collect();
    trial.ticks(3);
    assert!(writes.iter().all(|id| trial.is_written(*id)));
    let last = trial.report(1, DATA).last;
    for store in [1, 2] {
        trial.store(store).engine.lose_entries(DATA, last);
    }
    trial.heal();
    trial.ticks(60);
    assert_eq!(trial.value(3, "k4").as_deref(), Some("v"));
    assert!(trial.report(3, DATA).truncated >= last);
}

#[test]
fn only_members_are_asked_and_answered() {
    let mut trial = with_value();
    let unknown = peer(900, 9);
    let to = peer(101, 1);
    let crc = checksum::crc32c(b"1");
    let lost = stele_storage::LostValue { key: key("a"), length: 1, crc };
    let region = trial.report(1, DATA).region;
    let ask = |from: Peer, lost: &stele_storage::LostValue| PeerMessage {
        from_store: from.store,
        to_store: to.store,
        region: DATA,
        kind: region.kind,
        range: region.range.clone(),
        epoch: region.epoch,
        from,
        to,
        body: Body::ValueRepairRequest(vec![lost.clone()]),
    };
    let now = trial.clock();
    let mut answers = |message: PeerMessage| {
        let core = &mut trial.store(1).core;
        core.step(Input::Message(message));
        let messages = core.poll(now).unwrap().messages;
        messages.into_iter().filter(|it| matches!(it.body, Body::ValueRepairReply(_))).count()
    };
    assert_eq!(answers(ask(peer(102, 2), &lost)), 1);
    assert_eq!(answers(ask(unknown, &lost)), 0);
    let another = stele_storage::LostValue { crc: crc ^ 1, ..lost.clone() };
    assert_eq!(answers(ask(peer(102, 2), &another)), 0);
    let elsewhere = stele_storage::LostValue { key: Bytes::from_static(b"\x00a"), ..lost };
    assert_eq!(answers(ask(peer(102, 2), &elsewhere)), 0);
}

/// A replica that applied a merge or a split may ask one that has not.
#[test]
fn the_asker_says_which_keys_are_the_regions() {
    let mut trial = with_value();
    let write = trial.write(1, put("m", "2"));
    trial.ticks(3);
    assert!(trial.is_written(write));
    let new = NewRegion { region: RegionId(10), peers: [201, 202, 203].map(PeerId).to_vec() };
    let keys = vec![Bytes::from_static(b"h")];
    trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.ticks(3);
    let (from, to) = (peer(102, 2), peer(101, 1));
    let region = trial.report(1, DATA).region;
    let lost = stele_storage::LostValue { key: key("m"), length: 1, crc: checksum::crc32c(b"2") };
    let now = trial.clock();
    let mut answers = |range: KeyRange| {
        let core = &mut trial.store(1).core;
        core.step(Input::Message(PeerMessage {
            from_store: from.store,
            to_store: to.store,
            region: DATA,
            kind: region.kind,
            range,
            epoch: region.epoch,
            from,
            to,
            body: Body::ValueRepairRequest(vec![lost.clone()]),
        }));
        let messages = core.poll(now).unwrap().messages;
        messages.into_iter().filter(|it| matches!(it.body, Body::ValueRepairReply(_))).count()
    };
    assert_eq!(answers(KeyRange::all()), 1);
    assert_eq!(answers(region.range.clone()), 0);
}

/// Returns a range with all pairs of the region and those around it.
fn everything() -> KeyRange {
    KeyRange::new(vec![keyspace::LOCAL], vec![keyspace::SYSTEM])
}

#[test]
fn what_a_lost_range_held_comes_from_other_replicas_and_from_the_stores_memory() {
    let mut trial = with_value();
    for name in ["b", "c"] {
        let write = trial.write(1, put(name, "2"));
        trial.ticks(3);
        assert!(trial.is_written(write));
    }
    let all = ScanOptions::new(everything(), 100);
    let before = trial.store(2).engine.view().unwrap().scan(&all).unwrap();
    trial.store(2).engine.lose_range(&everything());
    trial.store(2).core.step(Input::Damaged);
    trial.ticks(60);
    assert_eq!(trial.store(2).engine.view().unwrap().scan(&all).unwrap(), before);
    trial.restart(2);
    trial.ticks(20);
    assert_eq!(trial.value(2, "c").as_deref(), Some("2"));
}

#[test]
fn ranges_lost_in_different_places_on_every_replica_are_all_found() {
    let mut trial = with_value();
    for name in ["b", "c"] {
        let write = trial.write(1, put(name, "2"));
        trial.ticks(3);
        assert!(trial.is_written(write));
    }
    for (store, (start, end)) in [(1, ("a", "b")), (2, ("b", "c")), (3, ("c", "d"))] {
        trial.store(store).engine.lose_range(&KeyRange::new(key(start), key(end)));
        trial.store(store).core.step(Input::Damaged);
    }
    trial.ticks(40);
    for (store, name, value) in
        (1..=3).flat_map(|it| [("a", "1"), ("b", "2")].map(|(n, v)| (it, n, v)))
    {
        assert_eq!(trial.value(store, name).as_deref(), Some(value), "store {store}");
    }
}

/// Returns a range repair reply of store 2 to store 1 for the keys from a to b, as of an entry.
fn answer(trial: &mut Trial, at: LogIndex, value: &str) -> PeerMessage {
    let region = trial.report(1, DATA).region;
    let (from, to) = (peer(102, 2), peer(101, 1));
    let value = Bytes::copy_from_slice(value.as_bytes());
    let pairs = vec![stele_storage::Pair { key: key("a"), value, expires_at_s: 0 }];
    let found = RangeRepairReply { range: KeyRange::new(key("a"), key("b")), at, pairs };
    PeerMessage {
        from_store: from.store,
        to_store: to.store,
        region: DATA,
        kind: region.kind,
        range: region.range.clone(),
        epoch: region.epoch,
        from,
        to,
        body: Body::RangeRepairReply(found),
    }
}

fn show(trial: &mut Trial) -> Option<Bytes> {
    let view = trial.store(1).engine.view().unwrap();
    view.get(&key("a")).ok().flatten().map(|pair| pair.value)
}

#[test]
fn an_answer_from_before_a_write_to_the_range_is_not_taken() {
    let mut trial = with_value();
    let before = trial.report(1, DATA).applied;
    let write = trial.write(1, put("a", "2"));
    trial.ticks(3);
    assert!(trial.is_written(write));
    trial.lose = |message| matches!(message.body, Body::RangeRepairRequest(_));
    trial.store(1).engine.lose_range(&KeyRange::new(key("a"), key("b")));
    let late = answer(&mut trial, before, "1");
    trial.store(1).core.step(Input::Message(late));
    trial.ticks(1);
    assert_eq!(show(&mut trial), None, "damage was repaired with an older value");
    trial.lose = |_| false;
    trial.ticks(40);
    assert_eq!(show(&mut trial).as_deref(), Some(&b"2"[..]));
}

#[test]
fn an_answer_from_before_other_writes_is_taken() {
    let mut trial = with_value();
    let before = trial.report(1, DATA).applied;
    trial.write(1, put("b", "2"));
    trial.ticks(3);
    trial.lose = |message| matches!(message.body, Body::RangeRepairRequest(_));
    trial.store(1).engine.lose_range(&KeyRange::new(key("a"), key("b")));
    let late = answer(&mut trial, before, "1");
    trial.store(1).core.step(Input::Message(late));
    trial.ticks(1);
    assert_eq!(show(&mut trial).as_deref(), Some(&b"1"[..]));
}

#[test]
fn an_answer_ahead_of_what_is_applied_waits_until_it_is() {
    let mut trial = with_value();
    trial.lose = |message| matches!(message.body, Body::RangeRepairRequest(_));
    trial.store(1).engine.lose_range(&KeyRange::new(key("a"), key("b")));
    let next = trial.report(1, DATA).applied.next();
    let early = answer(&mut trial, next, "2");
    trial.store(1).core.step(Input::Message(early));
    trial.ticks(1);
    assert_eq!(show(&mut trial), None, "an unapplied value is visible");
    let write = trial.write(1, put("a", "2"));
    trial.ticks(3);
    assert!(trial.is_written(write));
    assert_eq!(show(&mut trial).as_deref(), Some(&b"2"[..]));
}
