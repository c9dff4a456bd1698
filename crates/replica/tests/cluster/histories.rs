//! Random histories: clients read and write under faults. The results must be linearizable, no term
//! has two leaders, no two stores hold a lease, replicas agree at the end, and every region works
//! again.
//!
//! `STELE_SEED`, `STELE_HISTORIES`: first seed and number of histories. `STELE_ASKED`: print the
//! result of each requested change.

use crate::clients::Clients;
use crate::liveness::{check_changes, recover};
use crate::nemesis::{Dangers, Nemesis, heal};
use crate::sim::{Backend, DATA, MS, ModelBackend, Sim, SteleBackend, seed};
use stele_replica::{Done, Refusal, Reply};

/// Steps of a history: about 20 simulated seconds.
const TURNS: u64 = 2_000;
const KEYS: [&str; 5] = ["b", "g", "m", "r", "w"];

/// Runs one history of `turns` steps; returns its number of acknowledged operations.
pub(crate) fn run<B: Backend>(backend: B, dangers: Dangers, seed: u64, turns: u64) -> u64 {
    let mut sim = Sim::with(backend, 5, &[1, 2, 3], seed, |options| {
        options.hibernate_after_ticks = 60;
        options.log_kept.entries = 20;
        options.log_kept.pin_bytes_max = 2_000;
    });
    for (rate, node) in [1000, 1050, 1090, 1000, 1020].into_iter().zip(sim.nodes.values_mut()) {
        node.rate_permille = rate;
    }
    let mut clients = Clients::new(6, &KEYS, seed);
    let mut nemesis = Nemesis::new(dangers, seed);
    for turn in 0..turns {
        if turn % 100 == 0 {
            sim.checkpoint();
        }
        clients.step(&mut sim);
        let pause = sim.prng.below(20 * MS);
        sim.run(pause);
        nemesis.step(&mut sim);
        let leases = sim.leases(DATA);
        if leases.len() > 1 {
            sim.fail(&format!("stores {leases:?} hold a lease at once"));
        }
    }
    clients.stop();
    if std::env::var("STELE_ASKED").is_ok() {
        for (what, id) in &nemesis.asked {
            println!("asked: {what}: {}", outcome(sim.replies.get(id)));
        }
    }
    end(&mut sim);
    clients.check(&mut sim);
    clients.acknowledged
}

/// Ends all faults, waits until all changes are complete and all replicas agree, and checks that
/// everything works again.
fn end<B: Backend>(sim: &mut Sim<B>) {
    heal(sim);
    for id in sim.nodes.keys().copied().collect::<Vec<_>>() {
        if !sim.is_up(id) {
            sim.start(id);
        }
    }
    recover(sim);
    sim.settle();
    check_changes(sim);
    sim.settle();
}

fn outcome(reply: Option<&Reply>) -> String {
    match reply {
        None => "never answered".to_owned(),
        Some(Reply::Done(Done::Admin { .. })) => "done".to_owned(),
        Some(Reply::Refused(Refusal::NotLeader { .. })) => "NotLeader".to_owned(),
        Some(Reply::Refused(refusal)) => format!("{refusal:?}"),
        Some(other) => format!("{other:?}"),
    }
}

fn histories(test: &str, dangers: Dangers, count: u64) {
    let (first, count) = seeds(test, count);
    let mut acknowledged = 0;
    for seed in first..first + count {
        let got = run(ModelBackend, dangers, seed, TURNS);
        println!("seed {seed}: {got}");
        acknowledged += got;
    }
    println!("{acknowledged} operations acknowledged in {count} histories");
    assert!(acknowledged > 50 * count, "too little got through to mean anything");
}

fn seeds(test: &str, usual: u64) -> (u64, u64) {
    let first = seed(test, 1);
    let usual = if std::env::var("STELE_SEED").is_ok() { 1 } else { usual };
    let asked = std::env::var("STELE_HISTORIES").ok().and_then(|text| text.parse().ok());
    (first, asked.unwrap_or(usual))
}

#[test]
fn histories_without_trouble_are_linearizable() {
    histories("histories_without_trouble", Dangers::default(), 2);
}

// Catalogue: 32.
#[test]
fn histories_over_a_bad_network_are_linearizable() {
    let dangers = Dangers { network: true, transfers: true, ..Dangers::default() };
    histories("histories_over_a_bad_network", dangers, 10);
}

// Catalogue: 1, 3, 21, 40.
#[test]
fn histories_with_crashes_pauses_and_slow_disks_are_linearizable() {
    let dangers = Dangers { members: false, ranges: false, ..Dangers::ALL };
    histories("histories_with_crashes", dangers, 10);
}

// Catalogue: 19.
#[test]
fn histories_on_devices_that_fill_up_are_linearizable() {
    let dangers = Dangers { full_disks: true, ..Dangers::ALL };
    histories("histories_on_devices_that_fill_up", dangers, 6);
}

#[test]
fn histories_with_changing_members_are_linearizable() {
    let dangers = Dangers { ranges: false, ..Dangers::ALL };
    histories("histories_with_changing_members", dangers, 10);
}

#[test]
fn histories_with_splits_and_merges_are_linearizable() {
    let dangers = Dangers { members: false, ..Dangers::ALL };
    histories("histories_with_splits_and_merges", dangers, 10);
}

#[test]
fn histories_with_everything_are_linearizable() {
    histories("histories_with_everything", Dangers::ALL, 10);
}

#[test]
fn histories_over_the_products_engine_are_linearizable() {
    let (first, count) = seeds("histories_over_the_products_engine", 2);
    for seed in first..first + count {
        let got = run(SteleBackend::default(), Dangers::ALL, seed, 400);
        println!("seed {seed}: {got}");
    }
}
