use super::*;
use bytes::Bytes;
use std::sync::Arc;
use stele_conformance::ModelEngine;
use stele_placement::{Bootstrap, Cluster, Millis, SYSTEM_REGION, Store, StoreState, pairs};
use stele_replica::{Now, RaftStore};
use stele_storage::{EngineView, LogStore, StateMachine};
use stele_types::{
    ClusterId, ColumnFamily, CommandBuilder, EntryRecord, HardState, LogBatch, Peer, PeerId,
    Record, RegionEpoch, StoreIdent,
};

const DATA: RegionId = RegionId(2);

fn peer(store: u64) -> Peer {
    Peer { id: PeerId(100 + store), store: StoreId(store), role: PeerRole::Voter }
}

fn region(id: u64, start: &'static str, end: &'static str, stores: &[u64]) -> Region {
    Region {
        id: RegionId(id),
        range: KeyRange::new(start, end),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        peers: stores.iter().map(|store| peer(*store)).collect(),
        ..Region::default()
    }
}

fn replica(region: &Region, store: u64, last: u64, last_term: u64, term: u64) -> SurvivingReplica {
    let last = (LogIndex(last), Term(last_term));
    let (store, region) = (StoreId(store), region.clone());
    SurvivingReplica { store, region, term: Term(term), last, committed: LogIndex(1) }
}

fn lost(stores: &[u64]) -> BTreeSet<StoreId> {
    stores.iter().copied().map(StoreId).collect()
}

fn verdict(replicas: &[SurvivingReplica], known: &[Region], gone: &[u64]) -> RegionOutcome {
    let mut planned = plan(replicas, known, &lost(gone));
    assert_eq!(planned.len(), 1);
    planned.remove(0).verdict
}

#[test]
fn the_log_of_the_latest_term_goes_on_and_of_those_the_longest() {
    let five = region(2, "", "", &[1, 2, 3, 4, 5]);
    let source = |replicas: &[SurvivingReplica]| match verdict(replicas, &[], &[1, 2, 3]) {
        RegionOutcome::GoesOn { source, stores, recovery } => {
            assert_eq!(stores, [StoreId(4), StoreId(5)]);
            assert_eq!(recovery.lost, [1, 2, 3].map(StoreId));
            (source.0, recovery.last.0.0, recovery.term.0)
        }
        other => panic!("{other:?}"),
    };
    let of = |store, last, last_term, term| replica(&five, store, last, last_term, term);
    assert_eq!(source(&[of(4, 20, 3, 9), of(5, 30, 3, 7)]), (5, 30, 9));
    // A longer log of an earlier term has entries that no majority can have confirmed since.
    assert_eq!(source(&[of(4, 20, 4, 4), of(5, 30, 3, 7)]), (4, 20, 7));
    assert_eq!(source(&[of(4, 20, 3, 3), of(5, 20, 3, 3)]), (4, 20, 3));
}

#[test]
fn a_region_waits_for_replicas_that_are_neither_lost_nor_seen() {
    let five = region(2, "", "", &[1, 2, 3, 4, 5]);
    let four = replica(&five, 4, 20, 3, 3);
    assert_eq!(
        verdict(std::slice::from_ref(&four), &[], &[1, 2, 3]),
        RegionOutcome::Unseen(vec![StoreId(5)])
    );
    assert_eq!(verdict(&[], std::slice::from_ref(&five), &[1, 2, 3, 4, 5]), RegionOutcome::Lost);
    assert_eq!(verdict(std::slice::from_ref(&four), &[], &[1, 2]), RegionOutcome::HasMajority);
    // A replica on a store that is said to be lost does not count.
    let three = replica(&five, 3, 90, 9, 9);
    assert!(matches!(
        verdict(&[three, four], &[], &[1, 2, 3, 5]),
        RegionOutcome::GoesOn { source: StoreId(4), .. }
    ));
}

#[test]
fn a_replica_that_was_removed_does_not_count() {
    let before = region(2, "", "", &[1, 2, 3]);
    let mut now = region(2, "", "", &[1, 2, 4]);
    now.epoch.conf_version = 3;
    let (removed, member) = (replica(&before, 3, 90, 9, 9), replica(&now, 4, 20, 3, 3));
    for replicas in [vec![removed.clone(), member.clone()], vec![member, removed]] {
        let planned = plan(&replicas, &[], &lost(&[1, 2]));
        assert_eq!(planned[0].region, now);
        assert_eq!(planned[0].replicas.len(), 1);
        assert!(matches!(planned[0].verdict, RegionOutcome::GoesOn { source: StoreId(4), .. }));
    }
}

#[test]
fn a_region_that_was_merged_is_not_waited_for() {
    let version = |region: Region, version| {
        let epoch = RegionEpoch { version, ..region.epoch };
        Region { epoch, ..region }
    };
    let source = version(region(2, "", "c", &[1, 2, 3]), 4);
    let target = version(region(3, "", "m", &[1, 2, 3]), 5);
    let [first, second] = [replica(&target, 3, 20, 3, 3), replica(&source, 3, 9, 3, 3)];
    // The placement group has recorded the source before the merge, or a replica is behind.
    for planned in [
        plan(std::slice::from_ref(&first), std::slice::from_ref(&source), &lost(&[1, 2])),
        plan(&[first.clone(), second.clone()], &[], &lost(&[1, 2])),
    ] {
        let ids: Vec<u64> = planned.iter().map(|it| it.region.id.0).collect();
        assert_eq!(ids, [3]);
        assert!(matches!(planned[0].verdict, RegionOutcome::GoesOn { source: StoreId(3), .. }));
    }
    // A part of its keys is elsewhere, or the other region is the older one.
    let part = version(region(3, "b", "m", &[1, 2, 3]), 5);
    let older = version(target.clone(), 4);
    for other in [part, older] {
        let planned =
            plan(&[replica(&other, 3, 20, 3, 3)], std::slice::from_ref(&source), &lost(&[1, 2]));
        assert_eq!(planned[0].verdict, RegionOutcome::Unseen(vec![StoreId(3)]));
    }
    // What is only recorded, or has no replica left, replaces nothing.
    let planned = plan(&[second], &[target], &lost(&[1, 2]));
    assert!(matches!(planned[0].verdict, RegionOutcome::GoesOn { .. }));
}

#[test]
fn keys_of_regions_without_a_replica_are_named() {
    let [a, b, c] = [region(2, "", "c", &[1]), region(3, "c", "m", &[2]), region(4, "m", "", &[1])];
    let left = [replica(&a, 1, 5, 1, 1), replica(&c, 1, 5, 1, 1)];
    let planned = plan(&left, std::slice::from_ref(&b), &lost(&[2]));
    let verdicts: Vec<_> = planned.iter().map(|it| it.verdict.clone()).collect();
    assert_eq!(
        verdicts,
        [RegionOutcome::HasMajority, RegionOutcome::Lost, RegionOutcome::HasMajority]
    );
    assert_eq!(uncovered(&planned), [KeyRange::new("c", "m")]);
    // The placement group's record may be lost too: then only the gap shows.
    assert_eq!(uncovered(&plan(&left, &[], &lost(&[2]))), [KeyRange::new("c", "m")]);
    assert_eq!(uncovered(&plan(&[], &[region(2, "", "", &[3])], &lost(&[]))), []);
}

/// Returns the engine of store 1 of a cluster of three, with an entry that is in its log only.
fn survivor() -> Arc<ModelEngine> {
    let engine = ModelEngine::new();
    let ident = StoreIdent::new(ClusterId(7), StoreId(1));
    let mut regions = Bootstrap::regions();
    for region in &mut regions {
        region.peers.extend(
            [2, 3].map(|store| Peer { id: PeerId(region.id.0 * 100 + store), ..peer(store) }),
        );
    }
    RaftStore::bootstrap(&engine, &ident, &regions).unwrap();
    let engine = Arc::new(engine);
    let mut offline = Offline::open(engine.clone(), Now::default(), 1).unwrap();
    let last = offline.replicas().into_iter().find(|it| it.region.id == DATA).unwrap().last;
    let mut command = CommandBuilder::new();
    command.put(&ColumnFamily::Default.engine_key(b"k"), b"v", 0).unwrap();
    let (index, term) = (last.0.next(), Term(last.1.0 + 1));
    let payload = command.build().bytes().clone();
    let entry = EntryRecord { region: DATA, term, index, is_command: true, payload };
    let hard_state = HardState { term, vote: 0, commit: last.0 };
    let records = vec![Record::Entry(entry), Record::HardState(DATA, hard_state)];
    engine.append(&LogBatch { records }).unwrap();
    Arc::new(engine.crash())
}

fn value(engine: &ModelEngine) -> Option<Bytes> {
    let key = ColumnFamily::Default.engine_key(b"k");
    engine.view().unwrap().get(&key).unwrap().map(|pair| pair.value)
}

#[test]
fn a_store_that_no_node_runs_goes_on_with_all_entries_of_its_log() {
    let engine = survivor();
    let mut offline = Offline::open(engine.clone(), Now::default(), 2).unwrap();
    assert_eq!(value(&engine), None, "no majority confirmed the entry");
    let known = offline.recorded_regions().unwrap();
    let planned = plan(&offline.replicas(), &known, &lost(&[2, 3]));
    assert_eq!(planned.len(), 2, "the placement group and the data");
    for it in &planned {
        let RegionOutcome::GoesOn { source: StoreId(1), recovery, .. } = &it.verdict else {
            panic!("{it:?}")
        };
        let region = offline.recover(it.region.id, recovery, 0).unwrap();
        assert_eq!(region.peers.len(), 1);
        let again = offline.recover(it.region.id, recovery, 0).unwrap_err().to_string();
        assert!(again.contains("leads the region") || again.contains("compare"), "{again}");
    }
    drop(offline);
    // After a restart it leads both regions.
    let engine = Arc::new(engine.crash());
    assert_eq!(value(&engine).as_deref(), Some(&b"v"[..]));
    let mut offline = Offline::open(engine, Now::default(), 3).unwrap();
    for it in offline.replicas() {
        assert_eq!(it.region.peers.len(), 1, "{it:?}");
        assert_eq!(plan(&[it], &[], &lost(&[2, 3]))[0].verdict, RegionOutcome::HasMajority);
    }
}

/// Returns a survivor of which the placement group's log holds the first pairs, and at its end, not yet
/// applied, the record of store 4.
fn survivor_of_a_placement_group() -> Arc<ModelEngine> {
    let engine = survivor();
    let mut offline = Offline::open(engine.clone(), Now::default(), 1).unwrap();
    let last =
        offline.replicas().into_iter().find(|it| it.region.id == SYSTEM_REGION).unwrap().last;
    drop(offline);
    let capacities_bytes = vec![1; 3];
    let first = Bootstrap { cluster: ClusterId(7), address: "a:1".into(), capacities_bytes };
    let joined = Store { id: StoreId(4), address: "d:1".into(), ..Store::default() };
    let (mut index, term) = (last.0, Term(last.1.0 + 1));
    let mut records = Vec::new();
    for changes in [first.pairs(), vec![pairs::store(&joined), pairs::members(2)]] {
        index = index.next();
        let mut command = CommandBuilder::new();
        for change in changes {
            command.put(&change.key, &change.value.unwrap(), 0).unwrap();
        }
        let payload = command.build().bytes().clone();
        let region = SYSTEM_REGION;
        records.push(Record::Entry(EntryRecord { region, term, index, is_command: true, payload }));
    }
    records.push(Record::HardState(SYSTEM_REGION, HardState { term, vote: 0, commit: last.0 }));
    engine.append(&LogBatch { records }).unwrap();
    Arc::new(engine.crash())
}

fn states(engine: &ModelEngine) -> (Vec<(u64, StoreState)>, u64) {
    let view = engine.view().unwrap();
    let mut pages = stele_storage::Pages::of_range(&view, pairs::state_range());
    let mut found = Vec::new();
    while let Some(page) = pages.next_page().unwrap() {
        found.extend(page.into_iter().map(|pair| (pair.key, pair.value)));
    }
    let cluster = Cluster::load(found, Millis(0), 0).unwrap().unwrap();
    let states = cluster.stores().map(|store| (store.id.0, store.state)).collect();
    (states, cluster.members_version())
}

#[test]
fn the_placement_group_goes_on_with_the_lost_stores_removed() {
    use StoreState::{Tombstone, Up};
    let engine = survivor_of_a_placement_group();
    let mut offline = Offline::open(engine.clone(), Now::default(), 2).unwrap();
    assert_eq!(offline.recorded_stores().unwrap(), lost(&[1, 2, 3, 4]), "the tail counts");
    let gone = lost(&[2, 3, 4]);
    let planned = plan(&offline.replicas(), &[], &gone);
    let it = planned.iter().find(|it| it.region.id == SYSTEM_REGION).unwrap();
    let RegionOutcome::GoesOn { recovery, .. } = &it.verdict else { panic!("{it:?}") };
    offline.recover(SYSTEM_REGION, recovery, 9).unwrap();
    drop(offline);
    let expected = vec![(1, Up), (2, Tombstone), (3, Tombstone), (4, Tombstone)];
    assert_eq!(states(&engine), (expected.clone(), 10));
    // The removal is durable with the new membership.
    let engine = Arc::new(engine.crash());
    let mut offline = Offline::open(engine.clone(), Now::default(), 3).unwrap();
    let replicas = offline.replicas();
    let system = replicas.iter().find(|it| it.region.id == SYSTEM_REGION).unwrap();
    assert_eq!(system.region.peers.len(), 1);
    assert_eq!(states(&engine), (expected, 10));
}

#[test]
fn a_store_is_surveyed_with_its_replica_of_the_placement_group() {
    let engine = survivor();
    let mut offline = Offline::open(Arc::new(engine.crash()), Now::default(), 2).unwrap();
    let replicas = offline.replicas();
    let system = replicas.iter().find(|it| it.region.id == SYSTEM_REGION).unwrap();
    assert_eq!(system.region.kind, RegionKind::System);
    assert_eq!(offline.ident().store, StoreId(1));
    let mut again = Offline::open(engine, Now::default(), 3).unwrap();
    assert_eq!(again.replicas(), replicas);
}
