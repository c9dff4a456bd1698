//! Values that a store can't read.

use super::*;

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
fn a_region_at_rest_mends_too_and_rests_on() {
    let mut trial = with_value();
    trial.ticks(200);
    assert!(trial.report(2, DATA).hibernating);
    lose(&mut trial, 2);
    trial.settle();
    let asks = trial.store(2).core.next_tick_nanos();
    assert!(asks.is_none_or(|at| at <= trial.now + 1_000_000_000), "{asks:?}");
    trial.sleep(1_000_000_000);
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
    assert!(matches!(trial.refusal(cas), Some(Refusal::Busy { .. })), "{:?}", trial.reply(cas));
    trial.heal();
    trial.ticks(20);
    let cas = trial.cas(1, "a", Some("1"), "2");
    trial.ticks(2);
    assert!(matches!(trial.reply(cas), Some(Reply::Cas { succeeded: true, .. })));
}

// Catalogue: 11.
#[test]
fn a_follower_gets_a_snapshot_in_place_of_entries_that_the_leader_cannot_read() {
    let mut trial = Trial::with(3, |options| options.entry_cache_bytes_max = 0);
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
    let stranger = peer(900, 9);
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
        body: Body::Lost(vec![lost.clone()]),
    };
    let now = trial.clock();
    let mut answers = |message: PeerMessage| {
        let core = &mut trial.store(1).core;
        core.step(Input::Message(message));
        let messages = core.poll(now).unwrap().messages;
        messages.into_iter().filter(|it| matches!(it.body, Body::Found(_))).count()
    };
    assert_eq!(answers(ask(peer(102, 2), &lost)), 1);
    assert_eq!(answers(ask(stranger, &lost)), 0);
    let another = stele_storage::LostValue { crc: crc ^ 1, ..lost.clone() };
    assert_eq!(answers(ask(peer(102, 2), &another)), 0);
    let elsewhere = stele_storage::LostValue { key: Bytes::from_static(b"\x00a"), ..lost };
    assert_eq!(answers(ask(peer(102, 2), &elsewhere)), 0);
}
