//! Tests that reads are never stale, whichever store is paused or isolated.

use crate::clients::Clients;
use crate::sim::{DATA, MS, SECOND, Sim};
use std::sync::Arc;
use stele_replica::*;
use stele_types::PeerId;

fn reader<B: crate::sim::Backend>(sim: &mut Sim<B>, store: u64) -> Arc<Reader> {
    sim.node(store).core().readers().get(DATA).unwrap()
}

fn ask<B: crate::sim::Backend>(sim: &mut Sim<B>, store: u64, replica: bool) -> RequestId {
    let id = sim.request();
    let header = Header { region: DATA, ..Header::default() };
    sim.step(store, Input::request(id, Read { header, replica }));
    id
}

#[test]
fn a_leader_cut_off_serves_nothing_once_another_may_lead() {
    let mut sim = Sim::new(3, 21);
    sim.lead(DATA, 1);
    sim.write_surely(DATA, "k", "old");
    sim.isolate(1);
    let before = ask(&mut sim, 1, false);
    sim.run_until(10 * SECOND, "another leads", |sim| {
        sim.serving(DATA).is_some_and(|store| store != 1)
    });
    let held = reader(&mut sim, 1);
    let local = sim.local(1);
    assert!(held.permit(&Header::default(), local).is_none());
    sim.write_surely(DATA, "k", "new");
    let after = ask(&mut sim, 1, false);
    sim.run(2 * SECOND);
    assert!(!matches!(sim.replies.get(&after), Some(Reply::Done(Done::ReadReady { .. }))));
    let ready = matches!(sim.replies.get(&before), Some(Reply::Done(Done::ReadReady { .. })));
    assert!(ready, "the lease was valid when it was checked");
}

// Catalogue: 2, 40.
#[test]
fn a_leader_that_stood_still_beyond_its_lease_serves_nothing_by_it() {
    let mut sim = Sim::new(3, 22);
    sim.lead(DATA, 1);
    sim.write_surely(DATA, "k", "old");
    let held = reader(&mut sim, 1);
    let local = sim.local(1);
    let lease = held.permit(&Header::default(), local).expect("it leads");
    sim.node(1).paused_until = sim.now + 5 * SECOND;
    sim.run_until(5 * SECOND, "another leads", |sim| {
        sim.serving(DATA).is_some_and(|store| store != 1)
    });
    sim.write_surely(DATA, "k", "new");
    let local = sim.local(1);
    assert!(
        held.effects(&lease, local).is_none(),
        "a reply made before the pause is not sent after it"
    );
    assert!(held.permit(&Header::default(), local).is_none());
}

// Catalogue: 39.
#[test]
fn a_lease_outlasts_no_clock_within_the_drift_bound() {
    for (seed, rates) in [(23, [1000, 1100, 1100]), (24, [1000, 1100, 1050]), (25, [1100; 3])] {
        let mut sim = Sim::new(3, seed);
        for (node, rate) in sim.nodes.values_mut().zip(rates) {
            node.rate_permille = rate;
        }
        for round in 0..10 {
            sim.lead(DATA, 1);
            match round % 2 {
                0 => sim.isolate(1),
                _ => [2, 3].into_iter().for_each(|other| sim.net.cut_one_way(other, 1)),
            }
            for _ in 0..400 {
                sim.run(5 * MS);
                let leases = sim.leases(DATA);
                assert!(leases.len() <= 1, "{leases:?} at once");
            }
            sim.net.heal();
        }
    }
}

#[test]
fn no_lease_counts_in_a_term_in_which_leadership_was_offered() {
    let mut sim = Sim::new(3, 26);
    sim.lead(DATA, 1);
    sim.isolate(2);
    sim.admin(1, DATA, Admin::TransferLeader(PeerId(102)));
    sim.run(3 * SECOND);
    assert_eq!(sim.serving(DATA), Some(1), "the leadership transfer failed");
    let held = reader(&mut sim, 1);
    let local = sim.local(1);
    assert!(held.permit(&Header::default(), local).is_none());
    let read = ask(&mut sim, 1, false);
    sim.run(SECOND);
    assert!(
        matches!(sim.replies.get(&read), Some(Reply::Done(Done::ReadReady { .. }))),
        "a round serves"
    );
}

#[test]
fn what_a_follower_showed_the_leader_shows_too() {
    let mut sim = Sim::new(3, 27);
    sim.lead(DATA, 1);
    sim.run(SECOND);
    sim.node(1).stalled = true;
    let write = sim.write(1, DATA, crate::sim::put("k", "v"));
    sim.run(100 * MS);
    assert!(sim.is_written(write));
    let replica = ask(&mut sim, 2, true);
    sim.run(100 * MS);
    assert!(matches!(sim.replies.get(&replica), Some(Reply::Done(Done::ReadReady { .. }))));
    assert_eq!(sim.value(2, "k").as_deref(), Some("v"));
    assert_eq!(sim.value(1, "k"), None, "not applied on the leader");
    let held = reader(&mut sim, 1);
    let local = sim.local(1);
    let permit = held.permit(&Header::default(), local).unwrap();
    let effects = held.effects(&permit, local).unwrap();
    assert_eq!(effects.get(&crate::sim::key("k")).unwrap().unwrap().value, "v");
    let late = ask(&mut sim, 1, false);
    sim.run(50 * MS);
    assert!(matches!(sim.replies.get(&late), Some(Reply::Done(Done::ReadReady { .. }))));
}

#[test]
fn comparisons_beside_plain_writes_are_linearizable() {
    let mut sim = Sim::new(3, 28);
    let mut clients = Clients::new(10, &["k"], 28);
    sim.elect(DATA);
    // An election may take one second.
    for turn in 0..700 {
        clients.step(&mut sim);
        sim.run(3 * MS);
        if turn == 200 {
            let leader = sim.leader(DATA).unwrap();
            sim.restart(leader);
        }
    }
    clients.check(&mut sim);
    assert!(clients.acknowledged > 200, "{}", clients.acknowledged);
}
