//! Tests of splits and merges while clients write.

use crate::clients::Clients;
use crate::nemesis::{finish_merges, new_region};
use crate::sim::{Backend, DATA, MS, SECOND, Sim, put};
use bytes::Bytes;
use stele_replica::*;
use stele_types::*;

pub(crate) fn split<B: Backend>(sim: &mut Sim<B>, region: RegionId, key: &'static str) -> RegionId {
    let leader = sim.elect(region);
    let parent = sim.report(leader, region).unwrap().region;
    let new = new_region(sim, &parent);
    let id = new.region;
    let keys = vec![Bytes::from(key)];
    let after = sim.change(region, Admin::Split { keys, new_ids: vec![new] });
    assert_eq!(after.range.end, key);
    sim.elect(id);
    id
}

pub(crate) fn prepare<B: Backend>(sim: &mut Sim<B>, source: RegionId, target: RegionId) -> Region {
    let leader = sim.elect(target);
    let target = sim.report(leader, target).unwrap().region;
    sim.change(source, Admin::PrepareMerge { target })
}

fn merge<B: Backend>(sim: &mut Sim<B>, source: RegionId, target: RegionId) {
    prepare(sim, source, target);
    sim.run_until(20 * SECOND, "the merge ends", |sim| {
        finish_merges(sim);
        sim.nodes
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .into_iter()
            .all(|store| sim.report(store, source).is_none())
    });
}

#[test]
fn a_region_splits_and_merges_back_under_writes() {
    for seed in 41..45 {
        let mut sim = Sim::new(3, seed);
        let mut clients = Clients::new(5, &["c", "h", "p", "t"], seed);
        let mut busy = |sim: &mut Sim<_>, turns: u64| {
            for _ in 0..turns {
                clients.step(sim);
                sim.run(4 * MS);
            }
        };
        sim.elect(DATA);
        busy(&mut sim, 50);
        let middle = split(&mut sim, DATA, "g");
        busy(&mut sim, 50);
        let right = split(&mut sim, middle, "r");
        busy(&mut sim, 50);
        merge(&mut sim, DATA, middle);
        busy(&mut sim, 50);
        merge(&mut sim, right, middle);
        busy(&mut sim, 50);
        sim.settle();
        let left = sim.report(1, middle).unwrap().region;
        assert_eq!((left.range, sim.reports(1).len()), (KeyRange::all(), 1));
        clients.check(&mut sim);
        assert!(clients.acknowledged > 100, "{}", clients.acknowledged);
    }
}

// Catalogue: 49.
#[test]
fn requests_for_the_old_range_are_told_of_the_new_ones() {
    let mut sim = Sim::new(3, 45);
    let right = split(&mut sim, DATA, "m");
    let leader = sim.elect(DATA);
    let id = sim.request();
    let header = Header { region: DATA, version: Some(1), ..Header::default() };
    let command = put("x", "v");
    sim.step(leader, Input::request(id, Write { header, command, only_deletes: false }));
    sim.run(SECOND);
    let Some(Reply::Refused(Refusal::EpochNotMatch { current })) = sim.replies.get(&id) else {
        panic!("{:?}", sim.replies.get(&id));
    };
    let ids: Vec<RegionId> = current.iter().map(|region| region.id).collect();
    assert_eq!(ids, [DATA, right]);
}

#[test]
fn a_prepared_source_takes_nothing_until_it_is_taken_back() {
    let mut sim = Sim::new(3, 46);
    let right = split(&mut sim, DATA, "m");
    sim.write_surely(DATA, "a", "old");
    let source = prepare(&mut sim, DATA, right);
    let leader = sim.elect(DATA);
    let write = sim.write(leader, DATA, put("a", "new"));
    let id = sim.request();
    let header = Header { region: DATA, ..Header::default() };
    sim.step(leader, Input::request(id, Read { header, replica: false }));
    let back = sim.admin(leader, DATA, Admin::RollbackMerge(vec![]));
    sim.run(SECOND);
    for refused in [write, id] {
        let reply = sim.replies.get(&refused);
        assert!(matches!(reply, Some(Reply::Busy(Busy::Merging))), "{reply:?}");
    }
    let reply = sim.replies.get(&back);
    assert!(matches!(reply, Some(Reply::Busy(Busy::Wait { .. }))), "undecided: {reply:?}");
    assert!(sim.leases(DATA).is_empty());

    split(&mut sim, right, "t");
    sim.run(SECOND);
    let leader = sim.elect(right);
    let RegionPhase::Merging { prepared, .. } = source.phase else { panic!("{source:?}") };
    let commit = sim.admin(leader, right, Admin::CommitMerge { source, prepared_index: prepared });
    sim.run(SECOND);
    let reply = sim.replies.get(&commit);
    assert!(matches!(reply, Some(Reply::Refused(Refusal::Invalid(_)))), "changed: {reply:?}");
    sim.change(DATA, Admin::RollbackMerge(vec![]));
    sim.write_surely(DATA, "a", "new");
    sim.settle();
}

#[test]
fn a_merge_waits_for_a_replica_that_lacks_the_log() {
    let mut sim = Sim::new(3, 47);
    let right = split(&mut sim, DATA, "m");
    sim.lead(DATA, 1);
    sim.lead(right, 2);
    sim.isolate(3);
    for i in 0..10 {
        sim.write_surely(DATA, &format!("a{i}"), "v");
    }
    prepare(&mut sim, DATA, right);
    for _ in 0..20 {
        finish_merges(&mut sim);
        sim.run(200 * MS);
    }
    assert!(sim.report(1, DATA).is_some(), "store 3 would miss the last writes");
    sim.net.heal();
    sim.run_until(20 * SECOND, "the merge ends", |sim| {
        finish_merges(sim);
        (1..=3).all(|store| sim.report(store, DATA).is_none())
    });
    sim.settle();
    assert_eq!(sim.value(3, "a9").as_deref(), Some("v"));
}

/// Returns whether a message sends region 2's commit index to store 3 and nothing else.
fn carries_commits_to_store_3(message: &PeerMessage) -> bool {
    let Body::Raft(raft) = &message.body else { return false };
    message.region == DATA && message.to_store == StoreId(3) && raft.entries.is_empty()
}

#[test]
fn a_store_takes_over_a_source_that_has_not_heard_what_is_committed() {
    let mut sim = Sim::new(3, 48);
    let right = split(&mut sim, DATA, "m");
    sim.lead(DATA, 1);
    sim.lead(right, 1);
    sim.lost = carries_commits_to_store_3;
    let target = sim.report(1, right).unwrap().region;
    let write = sim.write(1, DATA, put("a", "v"));
    sim.admin(1, DATA, Admin::PrepareMerge { target });
    sim.run(30 * MS);
    assert!(sim.is_written(write));
    assert_eq!(sim.value(3, "a"), None, "store 3 holds it and does not know");
    sim.run_until(5 * SECOND, "store 3 takes the region over", |sim| {
        finish_merges(sim);
        sim.report(3, DATA).is_none()
    });
    assert_eq!(sim.value(3, "a").as_deref(), Some("v"));
    sim.settle();
}

#[test]
fn every_store_may_crash_at_any_moment_of_a_merge() {
    for moment in 0..24 {
        let mut sim = Sim::new(3, 60 + moment);
        let right = split(&mut sim, DATA, "m");
        for name in ["a", "z"] {
            sim.write_surely(DATA, name, "old");
        }
        prepare(&mut sim, DATA, right);
        sim.run(60 * MS);
        finish_merges(&mut sim);
        sim.run(moment * MS / 4);
        for store in 1..=3 {
            sim.restart(store);
        }
        sim.run_until(30 * SECOND, "the merge ends", |sim| {
            finish_merges(sim);
            (1..=3).all(|store| sim.report(store, DATA).is_none())
        });
        sim.write_surely(right, "a", "new");
        for store in 1..=3 {
            sim.restart(store);
        }
        sim.settle();
        for store in 1..=3 {
            assert_eq!(sim.value(store, "a").as_deref(), Some("new"), "moment {moment}");
            assert_eq!(sim.value(store, "z").as_deref(), Some("old"), "moment {moment}");
        }
    }
}
