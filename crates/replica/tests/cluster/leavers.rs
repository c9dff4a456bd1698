//! Tests of removed replicas: whatever their store missed, they are destroyed, their pairs are
//! dropped, and their ids are never used again.

use crate::nemesis::finish_merges;
use crate::ranges::{prepare, split};
use crate::sim::{Backend, DATA, MS, ModelBackend, SECOND, Sim, SteleBackend, put};
use std::sync::Arc;
use stele_conformance::ModelEngine;
use stele_replica::*;
use stele_storage::{EngineView, LogStore, Repair, ScanOptions, StateMachine};
use stele_types::*;

fn change<B: Backend>(
    sim: &mut Sim<B>,
    region: RegionId,
    kind: ChangeKind,
    peer: (u64, u64, PeerRole),
) {
    let (id, store, role) = peer;
    let peer = Peer { id: PeerId(id), store: StoreId(store), role };
    sim.change(region, Admin::ChangePeers(vec![PeerChange { kind, peer }]));
}

fn remove<B: Backend>(sim: &mut Sim<B>, region: RegionId, store: u64) {
    let leader = sim.elect(region);
    let members = sim.report(leader, region).unwrap().region;
    let peer = *members.peer_on(StoreId(store)).unwrap();
    change(sim, region, ChangeKind::Remove, (peer.id.0, store, peer.role));
}

fn pairs<B: Backend>(sim: &mut Sim<B>, store: u64) -> usize {
    let view = sim.node(store).engine.view().unwrap();
    let ranges = Region { range: KeyRange::all(), ..Region::default() }.engine_ranges();
    let scan = |range| view.scan(&ScanOptions::new(range, usize::MAX)).unwrap().len();
    ranges.into_iter().map(scan).sum()
}

/// Checks that the store has no replica of the regions, none of their pairs and no log of them,
/// also after a restart.
#[track_caller]
fn check_gone<B: Backend>(sim: &mut Sim<B>, store: u64, regions: &[RegionId]) {
    for _ in 0..2 {
        for region in regions {
            assert!(sim.report(store, *region).is_none(), "region {region} is there");
            let progress = sim.node(store).engine.progress(*region);
            assert!(progress.is_none_or(|it| it.destroyed), "region {region} has a log");
        }
        assert_eq!(pairs(sim, store), 0, "pairs are left");
        sim.restart(store);
        sim.run(SECOND);
    }
}

/// Checks that a late message or snapshot for a removed peer does not create it again.
#[track_caller]
fn check_never_again<B: Backend>(sim: &mut Sim<B>, leader: u64, region: RegionId, gone: Peer) {
    let report = sim.report(leader, region).unwrap();
    let header = SnapshotHeader {
        region: Region { peers: [&report.region.peers[..], &[gone]].concat(), ..report.region },
        at: (report.applied, report.term),
        leader_term: report.term,
        from: report.peer,
        to: gone,
        bytes: 0,
        merges: None,
    };
    let id = sim.request();
    sim.step(gone.store.0, Input::request(id, Request::SnapshotOffered(header)));
    let reply = sim.replies.get(&id);
    assert!(matches!(reply, Some(Reply::Refused(Refusal::RegionNotFound))), "{reply:?}");
}

fn learner_removed_meanwhile<B: Backend>(backend: B) {
    let mut sim = Sim::with(backend, 4, &[1, 2, 3], 81, |_| {});
    change(&mut sim, DATA, ChangeKind::Add, (401, 4, PeerRole::Learner));
    sim.write_surely(DATA, "k", "v");
    sim.run(SECOND);
    assert_eq!(pairs(&mut sim, 4), 1);
    sim.crash(4);
    remove(&mut sim, DATA, 4);
    // No peer has a reason to send it a message: the region hibernates.
    sim.run(20 * SECOND);
    sim.start(4);
    let what = "the learner is destroyed after a probe";
    sim.run_until(10 * SECOND, what, |sim| sim.reports(4).is_empty());
    sim.run(SECOND);
    check_gone(&mut sim, 4, &[DATA]);
    let leader = sim.elect(DATA);
    let gone = Peer { id: PeerId(401), store: StoreId(4), role: PeerRole::Learner };
    check_never_again(&mut sim, leader, DATA, gone);
}

// Catalogue: 47.
#[test]
fn a_learner_removed_while_its_store_was_down_is_destroyed_when_it_returns() {
    learner_removed_meanwhile(ModelBackend);
    learner_removed_meanwhile(SteleBackend::default());
}

#[test]
fn a_learner_of_a_region_that_is_gone_everywhere_is_destroyed_when_it_returns() {
    let mut sim = Sim::with(ModelBackend, 4, &[1, 2, 3], 82, |_| {});
    let right = split(&mut sim, DATA, "m");
    change(&mut sim, DATA, ChangeKind::Add, (401, 4, PeerRole::Learner));
    sim.run(SECOND);
    sim.crash(4);
    remove(&mut sim, DATA, 4);
    prepare(&mut sim, DATA, right);
    wait_for_source_removal(&mut sim, DATA, &[1, 2, 3]);
    sim.start(4);
    sim.run_until(10 * SECOND, "it leaves", |sim| sim.reports(4).is_empty());
    sim.run(SECOND);
    check_gone(&mut sim, 4, &[DATA]);
}

#[track_caller]
fn wait_for_source_removal<B: Backend>(sim: &mut Sim<B>, source: RegionId, stores: &[u64]) {
    sim.run_until(20 * SECOND, "the merge ends", |sim| {
        finish_merges(sim);
        stores.iter().all(|store| sim.report(*store, source).is_none())
    });
}

/// Lets stores 1 and 2 merge a region while store 3, which holds the prepared source, is down.
/// Returns the source.
fn merged_without_store_3(sim: &mut Sim<ModelBackend>) -> RegionId {
    let right = split(sim, DATA, "m");
    sim.write_surely(DATA, "a", "v");
    sim.write_surely(right, "x", "v");
    for region in [DATA, right] {
        sim.lead(region, 1);
    }
    prepare(sim, DATA, right);
    // All hold the preparation, and the leader has reported it.
    sim.run(500 * MS);
    sim.crash(3);
    wait_for_source_removal(sim, DATA, &[1, 2]);
    right
}

/// Truncates the region's log, so that a store that was down needs a snapshot.
fn truncate_log(sim: &mut Sim<ModelBackend>, region: RegionId) {
    for i in 0..200 {
        sim.write(1, region, put(&format!("b{i}"), "v"));
    }
    sim.run(SECOND);
    sim.checkpoint();
    let what = "the region truncates its log";
    sim.run_until(10 * SECOND, what, |sim| sim.report(1, region).unwrap().truncated.0 > 100);
}

#[test]
fn a_source_merged_while_its_store_was_down_ends_with_its_targets_log() {
    let mut sim = Sim::new(3, 83);
    let right = merged_without_store_3(&mut sim);
    sim.run(20 * SECOND);
    sim.start(3);
    sim.run_until(10 * SECOND, "the source ends", |sim| sim.report(3, DATA).is_none());
    sim.write_surely(right, "b", "v");
    sim.settle();
    assert_eq!(sim.value(3, "a").as_deref(), Some("v"));
}

#[test]
fn a_source_merged_while_its_store_was_down_ends_with_its_targets_snapshot() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 84, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 100 };
    });
    let right = merged_without_store_3(&mut sim);
    truncate_log(&mut sim, right);
    sim.start(3);
    sim.run_until(20 * SECOND, "the source ends", |sim| sim.report(3, DATA).is_none());
    sim.settle();
    assert_eq!(sim.value(3, "a").as_deref(), Some("v"));
}

#[test]
fn a_source_is_gone_where_a_crash_came_between_its_targets_snapshot_and_its_tombstone() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 88, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 100 };
    });
    let right = merged_without_store_3(&mut sim);
    truncate_log(&mut sim, right);
    sim.start(3);
    sim.run_until(20 * SECOND, "the snapshot is installed", |sim| {
        sim.report(3, right).is_some_and(|it| it.region.range == KeyRange::all())
    });
    sim.crash(3);
    let view = sim.node(3).engine.view().unwrap();
    let source = view.get(&keyspace::region_key(DATA)).unwrap().unwrap();
    let source = Region::decode(&source.value).unwrap();
    assert_ne!(source.phase, RegionPhase::Tombstone, "the crash was to come before");
    sim.start(3);
    let here: Vec<RegionId> = sim.reports(3).iter().map(|report| report.region.id).collect();
    assert_eq!(here, [right], "one owner of each key, as soon as it is open");
    sim.settle();
    assert!(sim.node(3).engine.progress(DATA).is_none_or(|it| it.destroyed));
    assert_eq!(sim.value(3, "a").as_deref(), Some("v"));
}

#[test]
fn a_source_merged_while_its_store_was_down_is_destroyed_where_its_target_is_gone_too() {
    let mut sim = Sim::new(3, 85);
    sim.add_store(4, &[]);
    let right = merged_without_store_3(&mut sim);
    remove(&mut sim, right, 3);
    sim.run(20 * SECOND);
    sim.start(3);
    sim.run_until(20 * SECOND, "both end", |sim| sim.reports(3).is_empty());
    sim.run(SECOND);
    check_gone(&mut sim, 3, &[DATA, right]);
    sim.settle();
}

#[test]
fn what_a_store_had_of_a_source_that_its_target_split_off_again_stays_until_that_comes() {
    let mut sim = Sim::with(ModelBackend, 3, &[1, 2, 3], 87, |options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 100 };
    });
    sim.write_surely(DATA, "g", "v");
    let right = merged_without_store_3(&mut sim);
    split(&mut sim, right, "f");
    truncate_log(&mut sim, right);
    sim.lost = |message| message.to_store == StoreId(3) && message.range.start[..] == b"f"[..];
    sim.start(3);
    sim.run_until(20 * SECOND, "the source ends", |sim| sim.report(3, DATA).is_none());
    sim.run(SECOND);
    let target = sim.report(3, right).unwrap().region;
    assert_eq!(target.range, KeyRange::new("", "f"));
    for name in ["g", "x"] {
        assert_eq!(sim.value(3, name).as_deref(), Some("v"), "{name}");
    }
    assert!(!sim.node(3).core().orphaned_ranges().is_empty());
    sim.settle();
    assert!(sim.node(3).core().orphaned_ranges().is_empty());
    for name in ["a", "g", "x"] {
        assert_eq!(sim.value(3, name).as_deref(), Some("v"), "{name}");
    }
}

fn crash_while_leaving<B: Backend>(backend: impl Fn() -> B, moments: u64) {
    for moment in 0..moments {
        let mut sim = Sim::with(backend(), 3, &[1, 2, 3], 100 + moment, |_| {});
        sim.lead(DATA, 1);
        sim.write_surely(DATA, "k", "v");
        sim.run(SECOND);
        assert_eq!(pairs(&mut sim, 3), 1);
        sim.checkpoint();
        let gone = *sim.report(3, DATA).unwrap().region.peer_on(StoreId(3)).unwrap();
        remove(&mut sim, DATA, 3);
        sim.run(moment * MS / 16);
        sim.restart(3);
        sim.run_until(10 * SECOND, "it leaves", |sim| sim.reports(3).is_empty());
        sim.run(SECOND);
        check_gone(&mut sim, 3, &[DATA]);
        let leader = sim.elect(DATA);
        check_never_again(&mut sim, leader, DATA, gone);
        // The store may get a new peer of the region, with another id.
        change(&mut sim, DATA, ChangeKind::Add, (900, 3, PeerRole::Learner));
        sim.run(SECOND);
        assert_eq!(sim.value(3, "k").as_deref(), Some("v"), "moment {moment}");
    }
}

// Catalogue: 47, 55.
#[test]
fn a_crash_at_any_moment_of_a_destruction_leaves_nothing_of_the_replica() {
    crash_while_leaving(|| ModelBackend, 128);
    crash_while_leaving(SteleBackend::default, 32);
}

// Catalogue: 25.
#[test]
fn a_manifest_made_again_brings_no_destroyed_region_back() {
    let mut sim = Sim::with(SteleBackend::default(), 3, &[1, 2, 3], 86, |_| {});
    let right = split(&mut sim, DATA, "m");
    for name in ["a", "b", "x", "y"] {
        sim.write_surely(if name < "m" { DATA } else { right }, name, &name.repeat(200));
    }
    sim.run(SECOND);
    // Runs name the regions and their applied indexes.
    sim.checkpoint();
    sim.lead(DATA, 1);
    let gone = *sim.report(3, DATA).unwrap().region.peer_on(StoreId(3)).unwrap();
    remove(&mut sim, DATA, 3);
    sim.run_until(10 * SECOND, "it leaves", |sim| sim.report(3, DATA).is_none());
    sim.run(SECOND);
    assert_eq!(pairs(&mut sim, 3), 2);
    sim.backend.lose_manifest(3);
    sim.restart(3);
    sim.run(3 * SECOND);
    assert!(sim.report(3, DATA).is_none());
    assert!(sim.node(3).engine.progress(DATA).is_none_or(|it| it.destroyed));
    assert_eq!((sim.value(3, "a"), sim.value(3, "b")), (None, None));
    assert_eq!(sim.value(3, "x").as_deref(), Some(&*"x".repeat(200)));
    let leader = sim.elect(DATA);
    check_never_again(&mut sim, leader, DATA, gone);
    sim.settle();
}

/// Backend that keeps lost values lost when a store restarts.
struct LosingBackend;

impl Backend for LosingBackend {
    type Engine = ModelEngine;

    fn create(&mut self, _store: u64) -> Arc<ModelEngine> {
        Arc::new(ModelEngine::new())
    }

    fn crash(&mut self, _store: u64, engine: Arc<ModelEngine>, _seed: u64) -> Arc<ModelEngine> {
        let opened = engine.crash();
        engine.lost_ranges().iter().for_each(|range| opened.lose_range(range));
        Arc::new(opened)
    }
}

#[test]
fn a_store_opens_though_what_it_lost_reaches_beyond_its_regions() {
    let mut sim = Sim::with(LosingBackend, 3, &[1, 2, 3], 87, |_| {});
    let right = split(&mut sim, DATA, "m");
    for name in ["a", "b", "x", "y"] {
        sim.write_surely(if name < "m" { DATA } else { right }, name, &name.repeat(200));
    }
    sim.run(SECOND);
    sim.lead(DATA, 1);
    remove(&mut sim, DATA, 3);
    sim.run_until(10 * SECOND, "it leaves", |sim| sim.report(3, DATA).is_none());
    let lost = ColumnFamily::Default.engine_range(&KeyRange::new("b", "xx"));
    sim.node(3).engine.lose_range(&lost);
    sim.restart(3);
    sim.run_until(10 * SECOND, "all is known again", |sim| !sim.node(3).engine.has_lost());
    assert_eq!(sim.value(3, "x").as_deref(), Some(&*"x".repeat(200)));
    assert_eq!(pairs(&mut sim, 3), 2);
    sim.settle();
}
