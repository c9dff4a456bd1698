//! Pairs with an expiry: when merges drop them, and by which clock.

use crate::store::harness::{Setup, Store};
use std::collections::BTreeSet;
use stele_gc::{Forced, TimeSource};
use stele_types::{Clock, RunId};

const HOUR_S: u64 = 60 * 60;
const DAY_S: u64 = 24 * HOUR_S;
const STEP_S: u64 = 10 * 60;
const PAIRS: u64 = 200;

fn key(n: u64) -> Vec<u8> {
    format!("key-{n:05}").into_bytes()
}

/// Writes pairs that expire one after the other, `step_s` apart, and merges them into one tier.
fn fill(store: &mut Store, step_s: u64) {
    let now_s = store.clock.unix_seconds();
    for n in 0..PAIRS {
        store.put_until(&key(n), &[n as u8; 100], now_s + (n + 1) * step_s);
    }
    store.put(b"lasting", &[7; 100]);
    store.gc.force(Forced::MergeAll).unwrap();
    store.settle();
    assert_eq!(store.index.version().tiers().len(), 1);
}

fn rest(store: &Store, seconds: u64) {
    for _ in 0..seconds / STEP_S {
        store.clock.advance_seconds(STEP_S);
        store.settle();
    }
}

fn left(store: &Store) -> u64 {
    (0..PAIRS).filter(|n| store.get(&key(*n)).unwrap().is_some()).count() as u64
}

#[test]
fn a_clock_that_is_ahead_drops_no_pair() {
    for time_source in [TimeSource::Own, TimeSource::Cluster] {
        for starts_ahead in [false, true] {
            let mut store = Store::new(Setup { time_source, ..Setup::default() });
            let right_s = store.clock.unix_seconds();
            fill(&mut store, HOUR_S);
            if starts_ahead {
                store.setup.unix_s = right_s + 2 * DAY_S;
                store = store.crash(1);
            } else {
                store.clock.advance_seconds(2 * DAY_S);
            }
            store.gc.note_cluster_time(right_s);
            store.settle();
            rest(&store, HOUR_S - STEP_S);
            store.gc.force(Forced::MergeAll).unwrap();
            store.gc.force(Forced::SortAll).unwrap();
            store.gc.force(Forced::Collect).unwrap();
            assert_eq!(left(&store), PAIRS, "{time_source:?}, at its start: {starts_ahead}");
            store.check();
        }
    }
}

#[test]
fn a_replica_whose_clock_stays_ahead_drops_by_the_clusters_time() {
    let setup = Setup { time_source: TimeSource::Cluster, ..Setup::default() };
    let mut store = Store::new(setup);
    let right_s = store.clock.unix_seconds();
    fill(&mut store, HOUR_S);
    store.clock.advance_seconds(DAY_S);
    store.gc.note_cluster_time(right_s);
    rest(&store, 5 * HOUR_S);
    store.gc.force(Forced::Collect).unwrap();
    // By the cluster's time, which goes on here between two notes, five pairs have expired, four of
    // them an hour ago.
    assert_eq!(left(&store), PAIRS - 4);
}

#[test]
fn a_replica_drops_no_pair_before_it_knows_the_clusters_time() {
    let setup = Setup { time_source: TimeSource::Cluster, ..Setup::default() };
    let mut store = Store::new(setup);
    fill(&mut store, 1);
    rest(&store, 9 * HOUR_S);
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(left(&store), PAIRS);
    store.gc.note_cluster_time(0);
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(left(&store), PAIRS, "0 is not a time");
    store.gc.note_cluster_time(store.clock.unix_seconds());
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(left(&store), 0);
    assert!(store.get(b"lasting").unwrap().is_some());
}

#[test]
fn a_store_at_rest_with_one_tier_drops_expired_pairs_and_rewrites_a_run_once_an_hour() {
    let mut store = Store::new(Setup::default());
    let begun_s = store.clock.unix_seconds();
    // All expire within four hours.
    fill(&mut store, 4 * HOUR_S / PAIRS);
    let runs = |store: &Store| -> BTreeSet<RunId> {
        store.index.version().runs().map(|run| run.id()).collect()
    };
    let (mut rewrites, mut before) = (0, runs(&store));
    for _ in 0..9 * HOUR_S / STEP_S {
        rest(&store, STEP_S);
        let now = runs(&store);
        rewrites += u64::from(now != before);
        before = now;
        let elapsed_s = store.clock.unix_seconds() - begun_s;
        let expired = elapsed_s / (4 * HOUR_S / PAIRS);
        assert!(left(&store) >= PAIRS.saturating_sub(expired), "a pair was dropped early");
    }
    assert_eq!(left(&store), 0);
    assert!(store.get(b"lasting").unwrap().is_some());
    let count = before.len().max(1) as u64;
    assert!((1..=6 * count + 4).contains(&rewrites), "{rewrites} rewrites of {count} runs");
}
