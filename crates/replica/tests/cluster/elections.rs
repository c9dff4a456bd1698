//! Tests of elections and of the loss of a leader.

use crate::sim::{DATA, MS, SECOND, Sim, put};
use stele_replica::*;

#[test]
fn what_is_acknowledged_is_on_every_replica_once_all_have_heard() {
    let mut sim = Sim::new(3, 11);
    for i in 0..30 {
        sim.write_surely(DATA, &format!("k{i}"), &format!("v{i}"));
    }
    sim.run(SECOND);
    for store in 1..=3 {
        assert_eq!(sim.value(store, "k29").as_deref(), Some("v29"), "store {store}");
    }
    sim.settle();
}

// Catalogue: 1.
#[test]
fn a_crashed_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut sim = Sim::new(3, 12);
    for round in 0..6 {
        let name = format!("k{round}");
        sim.write_surely(DATA, &name, "kept");
        let leader = sim.leader(DATA).unwrap();
        sim.crash(leader);
        let next = sim.elect_within(DATA, 5 * SECOND);
        assert_ne!(next, leader);
        assert_eq!(sim.value(next, &name).as_deref(), Some("kept"));
        sim.start(leader);
    }
    sim.settle();
    for store in 1..=3 {
        assert_eq!(sim.value(store, "k5").as_deref(), Some("kept"));
    }
}

/// The first follower campaigns 11 ticks of 50 ms after the last heartbeat, of which the first may come at
/// once, and the second after 13. The first is refused only if the second received the heartbeat so much
/// later that its vote hold lasts.
#[test]
fn followers_replace_a_crashed_leader_in_the_order_of_their_ranks() {
    let mut sim = Sim::new(3, 20);
    let mut by_first = 0;
    for round in 0..12 {
        let crashed = 1 + round % 3;
        sim.lead(DATA, crashed);
        sim.run(SECOND + round * 7 * MS);
        let region = sim.report(crashed, DATA).unwrap().region;
        let peer_on = |store| region.peer_on(stele_types::StoreId(store)).unwrap().id;
        let followers = (1..=3).filter(|store| *store != crashed);
        let first = followers.min_by_key(|store| peer_on(*store));
        sim.crash(crashed);
        let at = sim.now;
        sim.elect_within(DATA, 14 * 50 * MS);
        by_first += u64::from(sim.serving(DATA) == first);
        assert!(sim.now - at >= 8 * 50 * MS, "round {round}: before the end of the vote holds");
        sim.start(crashed);
        sim.run(SECOND);
    }
    assert!(by_first >= 9, "{by_first} of 12");
    sim.settle();
}

// Catalogue: 29.
#[test]
fn a_minority_acknowledges_nothing() {
    let mut sim = Sim::new(5, 13);
    let leader = sim.elect(DATA);
    let friend = if leader == 1 { 2 } else { 1 };
    let others: Vec<u64> = (1..=5).filter(|id| ![leader, friend].contains(id)).collect();
    sim.net.partition(&[leader, friend], &others);
    let lost: Vec<RequestId> =
        (0..20).map(|i| sim.write(leader, DATA, put(&format!("k{i}"), "lost"))).collect();
    sim.run(3 * SECOND);
    assert!(lost.iter().all(|id| !sim.is_written(*id)));
    let next = sim.elect(DATA);
    assert!(others.contains(&next));
    sim.write_surely(DATA, "k0", "kept");
    sim.settle();
    for store in 1..=5 {
        assert_eq!(sim.value(store, "k0").as_deref(), Some("kept"));
        assert_eq!(sim.value(store, "k1"), None);
    }
}

// Catalogue: 30.
#[test]
fn a_leader_that_receives_nothing_is_replaced_within_bounds() {
    let mut sim = Sim::new(3, 14);
    let leader = sim.elect(DATA);
    for other in (1..=3).filter(|id| *id != leader) {
        sim.net.cut_one_way(other, leader);
    }
    let what = "the leader that receives nothing steps down and another leads";
    sim.run_until(6 * SECOND, what, |sim| sim.serving(DATA).is_some_and(|store| store != leader));
}

// Catalogue: 30.
#[test]
fn a_leader_that_reaches_no_peer_is_replaced_within_bounds() {
    let mut sim = Sim::new(3, 15);
    let leader = sim.elect(DATA);
    for other in (1..=3).filter(|id| *id != leader) {
        sim.net.cut_one_way(leader, other);
    }
    let what = "followers of the leader that sends nothing elect another";
    sim.run_until(6 * SECOND, what, |sim| sim.serving(DATA).is_some_and(|store| store != leader));
}

#[test]
fn a_returning_minority_does_not_depose_the_leader() {
    let mut sim = Sim::new(3, 16);
    let leader = sim.elect(DATA);
    let term = sim.report(leader, DATA).unwrap().term;
    let outside = if leader == 3 { 1 } else { 3 };
    sim.isolate(outside);
    sim.run(10 * SECOND);
    sim.net.heal();
    sim.run(3 * SECOND);
    let report = sim.report(leader, DATA).unwrap();
    assert_eq!((report.role, report.term), (Role::Leader, term));
}

// Catalogue: 31.
#[test]
fn progress_returns_after_a_flapping_link() {
    let mut sim = Sim::new(3, 17);
    for turn in 0..30 {
        match turn % 2 {
            0 => sim.isolate(1 + turn / 2 % 3),
            _ => sim.net.heal(),
        }
        sim.run(300 * MS);
    }
    sim.net.heal();
    sim.elect_within(DATA, 5 * SECOND);
    sim.write_surely(DATA, "k", "v");
    sim.settle();
}

// Catalogue: 46.
#[test]
fn leadership_goes_where_it_is_sent_and_a_lagging_receiver_times_out() {
    let mut sim = Sim::new(3, 18);
    for store in [2, 3, 1, 3] {
        sim.lead(DATA, store);
    }
    sim.isolate(2);
    let to = sim.report(3, DATA).unwrap().region.peer_on(stele_types::StoreId(2)).unwrap().id;
    let id = sim.admin(3, DATA, Admin::TransferLeader(to));
    sim.run(3 * SECOND);
    // The target may have received the offer, so it may still campaign.
    let timed_out = Reply::Unknown(Unknown::TransferTimedOut);
    assert_eq!(sim.replies.get(&id), Some(&timed_out));
    assert_eq!(sim.serving(DATA), Some(3));
    sim.write_surely(DATA, "k", "v");
}

#[test]
fn a_quiet_region_rests_and_wakes_for_a_write_or_a_lost_store() {
    let mut sim = Sim::new(3, 19);
    sim.lead(DATA, 1);
    let hibernation_probe = |sim: &mut Sim<_>| {
        (1..=3).all(|store| sim.report(store, DATA).is_some_and(|report| report.hibernating))
    };
    sim.run_until(30 * SECOND, "all rest", |sim| hibernation_probe(sim));
    // Each is probed for its membership, which wakes no replica.
    for _ in 0..50 {
        sim.run(100 * MS);
        assert!(hibernation_probe(&mut sim));
    }
    sim.write_surely(DATA, "k", "v");
    sim.run_until(30 * SECOND, "all hibernate again", |sim| hibernation_probe(sim));
    sim.crash(1);
    sim.run(20 * SECOND);
    assert_eq!(sim.leader(DATA), None, "no store noticed");
    for store in [2, 3] {
        sim.step(store, Input::StoreUnreachable(stele_types::StoreId(1)));
    }
    sim.elect_within(DATA, 5 * SECOND);
}
