use super::*;
use crate::cluster::Bootstrap;
use crate::cluster::stores::{DrainGoal, NewStore};
use crate::store::{Liveness, NodeReport, StoreReport};
use stele_types::{Boot, KeyRange, Lineage, Peer, Region, StartId, Term};

pub(super) type Pairs = BTreeMap<Bytes, Bytes>;

fn persist(pairs: &mut Pairs, changes: &[PairChange]) {
    for change in changes {
        match &change.value {
            Some(value) => pairs.insert(change.key.clone(), value.clone()),
            None => pairs.remove(&change.key),
        };
    }
}

/// Largest number that may have been allocated before the tests.
const WATERMARK: u64 = 100;

pub(super) fn founded() -> (Pairs, Cluster) {
    let capacities_bytes = vec![1 << 30; 2];
    let bootstrap = Bootstrap { cluster: ClusterId(77), address: "n1:1".into(), capacities_bytes };
    let mut pairs = Pairs::new();
    persist(&mut pairs, &bootstrap.pairs());
    persist(&mut pairs, &[pairs::ids(WATERMARK)]);
    let cluster = load(&pairs);
    (pairs, cluster)
}

pub(super) fn load(pairs: &Pairs) -> Cluster {
    Cluster::load(pairs.clone(), Millis(0), 0).unwrap().unwrap()
}

pub(super) fn commit(pairs: &mut Pairs, cluster: &mut Cluster, changes: Vec<PairChange>) {
    persist(pairs, &changes);
    cluster.apply(&changes).unwrap();
}

fn take_ids(pairs: &mut Pairs, cluster: &mut Cluster, count: u64) -> std::ops::Range<u64> {
    let changes = cluster.plan_ids(count).unwrap();
    commit(pairs, cluster, changes);
    cluster.take_ids(count).unwrap()
}

#[test]
fn nothing_persisted_is_no_cluster_and_nonsense_is_damage() {
    assert!(Cluster::load(Pairs::new(), Millis(0), 0).unwrap().is_none());
    let (mut pairs, _) = founded();
    pairs.insert(Bytes::from_static(b"\x04s\0\0"), Bytes::new());
    assert!(Cluster::load(pairs, Millis(0), 0).is_err());
    let (mut pairs, _) = founded();
    pairs.remove(&pairs::cluster(ClusterId(1)).key);
    assert!(Cluster::load(pairs, Millis(0), 0).is_err());
}

#[test]
fn a_founded_cluster_has_its_stores_and_two_regions() {
    let (_, cluster) = founded();
    assert_eq!(cluster.id(), ClusterId(77));
    assert_eq!(cluster.stores().map(|store| store.id.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(cluster.regions().len(), 2);
    assert_eq!(cluster.regions().by_key(b"any").unwrap().region.id, RegionId(2));
    assert!(cluster.regions().cover(&KeyRange::all()));
}

// Catalogue: 48.
#[test]
fn numbers_are_never_given_out_twice_across_leaders_and_crashes() {
    let (mut pairs, mut cluster) = founded();
    let mut last = 0;
    for round in 0..50 {
        for count in [130, 1, 4] {
            let ids = take_ids(&mut pairs, &mut cluster, count);
            assert!(ids.start > last, "round {round}: {ids:?} after {last}");
            last = ids.end - 1;
        }
        cluster = load(&pairs);
    }
}

#[test]
fn numbers_beyond_the_persisted_watermark_are_not_given_out() {
    let (_, mut cluster) = founded();
    assert!(!cluster.plan_ids(1).unwrap().is_empty());
    assert_eq!(cluster.take_ids(1), None);
    assert!(cluster.plan_ids(ids::IDS_PER_REQUEST_MAX + 1).is_err());
}

// Catalogue: 48.
#[test]
fn numbers_seen_in_reports_count_as_given_out() {
    let (mut pairs, mut cluster) = founded();
    let first = take_ids(&mut pairs, &mut cluster, 1).start;
    let mut report = report(RegionId(first + 5), 2);
    report.region.peers[0].id = PeerId(first + 20);
    report.leader = report.region.peers[0];
    cluster.observe(report, Millis(1)).unwrap();
    assert_eq!(take_ids(&mut pairs, &mut cluster, 1).start, first + 21);
}

#[test]
fn a_number_from_outside_never_moves_the_allocator() {
    let (mut pairs, mut cluster) = founded();
    let first = take_ids(&mut pairs, &mut cluster, 1).start;
    let changes = cluster.plan_ids(50).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    let reserved = cluster.ids_reserved();
    for outside in [first + reserved + 1, 1 << 56, u64::MAX - 1, u64::MAX] {
        let of_region = report(RegionId(outside), 2);
        let mut of_peer = report(RegionId(2), 2);
        of_peer.region.peers[0].id = PeerId(outside);
        of_peer.leader = of_peer.region.peers[0];
        let mut of_store = report(RegionId(2), 2);
        of_store.region.peers[0].store = StoreId(outside);
        of_store.leader = of_store.region.peers[0];
        for report in [of_region, of_peer, of_store] {
            let refused = cluster.observe(report, Millis(1)).unwrap_err();
            assert!(matches!(refused, StaleReport::Malformed(_)), "{refused}");
        }
        assert_eq!(cluster.ids_reserved(), reserved);
    }
    assert_eq!(cluster.take_ids(1).unwrap().start, first + 1);
    let (ids, _) = cluster.plan_join("n9:1", &[NewStore::default()]).unwrap();
    assert_eq!(ids, [StoreId(3)]);
    // A record that an earlier version made of such a report breaks nothing either.
    persist(&mut pairs, &[pairs::region(&report(RegionId(1 << 56), 9).region)]);
    let mut cluster = load(&pairs);
    assert!(take_ids(&mut pairs, &mut cluster, 1).start < 1000);
}

pub(super) fn report(id: RegionId, version: u64) -> RegionReport {
    let peer = Peer { id: PeerId(id.0), store: StoreId(1), ..Peer::default() };
    let region = Region {
        id,
        range: KeyRange::all(),
        epoch: RegionEpoch { conf_version: 1, version },
        peers: vec![peer],
        ..Region::default()
    };
    RegionReport { region, leader: peer, term: Term(5), ..RegionReport::default() }
}

#[test]
fn a_store_that_asks_again_with_its_token_gets_its_number_again() {
    let (mut pairs, mut cluster) = founded();
    let store = |token: &'static [u8]| NewStore { token: token.into(), ..NewStore::default() };
    let (ids, changes) = cluster.plan_join("n2:1", &[store(b"a"), store(b"b")]).unwrap();
    assert_eq!(ids, [StoreId(3), StoreId(4)]);
    let version = cluster.members_version();
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(cluster.members_version(), version + 1);
    let again = cluster.plan_join("n2:9", &[store(b"b"), store(b"a")]).unwrap();
    assert_eq!(again, (vec![StoreId(4), StoreId(3)], vec![]));
    let (ids, _) = cluster.plan_join("n2:1", &[store(b""), store(b"c")]).unwrap();
    assert_eq!(ids, [StoreId(5), StoreId(6)]);
    assert!(cluster.plan_join("", &[store(b"d")]).is_err());
    assert!(cluster.plan_join("n2:1", &[]).is_err());
    assert!(cluster.plan_join("n2:1", &vec![store(b""); 300]).is_err());
}

#[test]
fn a_store_that_has_just_joined_counts_as_there_before_its_first_heartbeat() {
    let (mut pairs, mut cluster) = founded();
    let (ids, changes) = cluster.plan_join("n2:1", &[NewStore::default()]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    assert!(!cluster.is_live(ids[0], Millis(0)));
    cluster.record_join(&ids, Millis(0));
    assert!(cluster.is_live(ids[0], Millis(0)));
}

#[test]
fn a_heartbeat_that_waited_for_a_decision_takes_back_no_later_one() {
    let (_, mut cluster) = founded();
    let node = |version: &str| NodeReport {
        address: "n1:1".into(),
        version: version.into(),
        ..NodeReport::default()
    };
    let report = |has_failed| StoreReport { id: StoreId(1), has_failed, ..StoreReport::default() };
    let silent = cluster.config().silent_after_seconds * 1000;
    cluster.record_heartbeat(&node("later"), &[report(true)], Millis(5_000));
    cluster.record_heartbeat(&node("earlier"), &[report(false)], Millis(3_000));
    cluster.record_join(&[StoreId(1)], Millis(2_000));
    let store = cluster.store(StoreId(1)).unwrap();
    assert_eq!((&store.node, store.report), (&node("later"), report(true)));
    assert_eq!(cluster.liveness(StoreId(1), Millis(4_900 + silent)), Liveness::Live);
}

#[test]
fn a_store_of_a_node_that_stops_is_live_and_takes_no_leaders_until_the_node_is_back() {
    let (_, mut cluster) = founded();
    let beat = |cluster: &mut Cluster, is_stopping, at| {
        let node = NodeReport { address: "n1:1".into(), is_stopping, ..NodeReport::default() };
        let report = StoreReport { id: StoreId(1), ..StoreReport::default() };
        cluster.record_heartbeat(&node, &[report], Millis(at));
        (cluster.is_live(StoreId(1), Millis(at)), cluster.is_serving(StoreId(1), Millis(at)))
    };
    assert_eq!(beat(&mut cluster, false, 5), (true, true));
    assert_eq!(beat(&mut cluster, true, 6), (true, false));
    assert_eq!(beat(&mut cluster, false, 9), (true, true));
}

#[test]
fn unknown_and_removed_stores_are_turned_away_and_change_nothing() {
    let (mut pairs, mut cluster) = founded();
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let say = |id| StoreReport { id: StoreId(id), capacity_bytes: 1 << 30, ..Default::default() };
    assert!(cluster.plan_heartbeat(&node, &[say(1), say(9)]).is_err());
    assert_eq!(cluster.store(StoreId(1)).unwrap().last_heartbeat, LastHeartbeat::default());
    assert_eq!(cluster.plan_heartbeat(&node, &[say(1), say(2)]).unwrap(), []);
    cluster.record_heartbeat(&node, &[say(1), say(2)], Millis(5));
    assert_eq!(cluster.store(StoreId(2)).unwrap().last_heartbeat, LastHeartbeat::At(Millis(5)));
    let moved = NodeReport { address: "n1:2".into(), ..node };
    let changes = cluster.plan_heartbeat(&moved, &[say(1)]).unwrap();
    assert_eq!(changes.len(), 2, "the store and the members' version");
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(load(&pairs).store(StoreId(1)).unwrap().address, "n1:2");
    let mut gone = cluster.store(StoreId(2)).unwrap().clone();
    gone.state = crate::store::StoreState::Tombstone;
    commit(&mut pairs, &mut cluster, vec![pairs::store(&gone)]);
    let refused = cluster.plan_heartbeat(&moved, &[say(2)]).unwrap_err();
    assert!(refused.to_string().contains("was removed"), "{refused}");
}

#[test]
fn the_address_for_clients_outlasts_the_placement_leader_and_ends_with_the_setting() {
    let (mut pairs, mut cluster) = founded();
    let say = |id| StoreReport { id: StoreId(id), capacity_bytes: 1 << 30, ..Default::default() };
    let of = |client_address: &str| NodeReport {
        address: "n1:1".into(),
        client_address: client_address.into(),
        ..NodeReport::default()
    };
    let version = cluster.members_version();
    let changes = cluster.plan_heartbeat(&of("c1:1"), &[say(1)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(cluster.members_version(), version + 1, "every node hears of it");
    let next = load(&pairs);
    assert_eq!((next.client_address(StoreId(1)), next.client_address(StoreId(2))), ("c1:1", ""));
    assert_eq!(next.store(StoreId(1)).unwrap().address, "n1:1");
    assert_eq!(next.plan_heartbeat(&of("c1:1"), &[say(1)]).unwrap(), []);
    let refused = next.plan_heartbeat(&of("c1"), &[say(1)]).unwrap_err().to_string();
    assert!(refused.contains("the address for clients is not host:port"), "{refused}");
    let changes = next.plan_heartbeat(&of(""), &[say(1)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(load(&pairs).client_address(StoreId(1)), "");
}

#[test]
fn a_removed_store_does_not_keep_its_node_from_reporting_the_others() {
    let (mut pairs, mut cluster) = founded();
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let say = |id| StoreReport { id: StoreId(id), capacity_bytes: 1 << 30, ..Default::default() };
    let mut gone = cluster.store(StoreId(2)).unwrap().clone();
    gone.state = crate::store::StoreState::Tombstone;
    commit(&mut pairs, &mut cluster, vec![pairs::store(&gone)]);
    let full = StoreReport { capacity_bytes: 7, ..say(2) };
    assert_eq!(cluster.plan_heartbeat(&node, &[full, say(1)]).unwrap(), []);
    cluster.record_heartbeat(&node, &[full, say(1)], Millis(5));
    assert!(cluster.is_live(StoreId(1), Millis(5)));
    assert_eq!(cluster.store(StoreId(2)).unwrap().last_heartbeat, LastHeartbeat::default());
}

#[test]
fn a_failed_store_of_a_live_node_is_lost_at_once_unless_another_node_serves_it() {
    let (_, mut cluster) = founded();
    let node = |address: &str| NodeReport { address: address.into(), ..NodeReport::default() };
    let failed = |id| StoreReport { id: StoreId(id), has_failed: true, ..StoreReport::default() };
    let fine = |id| StoreReport { id: StoreId(id), ..StoreReport::default() };
    cluster.record_heartbeat(&node("n1:1"), &[fine(1), fine(2)], Millis(5));
    // Another node had the disk before.
    assert_eq!(cluster.plan_heartbeat(&node("n2:1"), &[failed(2)]).unwrap(), []);
    cluster.record_heartbeat(&node("n2:1"), &[failed(2)], Millis(6));
    assert!(!cluster.is_lost(StoreId(2), Millis(6)), "its own node has it");
    assert_eq!(cluster.plan_heartbeat(&node("n1:1"), &[fine(1), failed(2)]).unwrap(), []);
    cluster.record_heartbeat(&node("n1:1"), &[fine(1), failed(2)], Millis(7));
    assert!(cluster.is_lost(StoreId(2), Millis(7)), "without a wait for its silence");
    assert_eq!(cluster.store(StoreId(2)).unwrap().capacity_bytes, 1 << 30);
    assert!(cluster.is_live(StoreId(1), Millis(7)), "the node serves with the other");
    // The node has another address since its restart.
    let later = Millis(8 + cluster.config().silent_after_seconds * 1000);
    cluster.record_heartbeat(&node("n1:2"), &[failed(1)], later);
    assert!(cluster.is_lost(StoreId(1), later));
}

#[test]
fn descriptors_are_written_behind_in_bounded_batches_and_come_back() {
    let (mut pairs, mut cluster) = founded();
    let mut left = report(RegionId(2), 9);
    left.region.range.end = Bytes::from_static(b"m");
    let mut right = report(RegionId(10), 9);
    right.region.range.start = Bytes::from_static(b"m");
    cluster.observe(left, Millis(1)).unwrap();
    cluster.observe(right, Millis(1)).unwrap();
    let mut batches = 0;
    loop {
        let changes = cluster.take_region_changes(1);
        if changes.is_empty() {
            break;
        }
        assert_eq!(changes.len(), 1);
        commit(&mut pairs, &mut cluster, changes);
        batches += 1;
        // A crash between two batches leaves no overlap.
        let restored = load(&pairs);
        assert!(restored.regions().in_range(&KeyRange::all()).count() <= 2);
    }
    assert_eq!(batches, 4, "two descriptors and two terms");
    let restored = load(&pairs);
    assert_eq!(restored.regions().by_key(b"z").unwrap().region.id, RegionId(10));
    assert!(restored.regions().get(RegionId(10)).unwrap().leader.is_none());
}

#[test]
fn overlaps_in_the_persisted_state_are_settled_for_the_newer_and_cleaned_up() {
    let (mut pairs, _) = founded();
    persist(&mut pairs, &[pairs::region(&report(RegionId(50), 4).region)]);
    let mut cluster = load(&pairs);
    assert_eq!(cluster.regions().by_key(b"a").unwrap().region.id, RegionId(50));
    let deleted = [pairs::no_region(RegionId(2)), pairs::term(RegionId(2), None)];
    assert_eq!(cluster.take_region_changes(1 << 20), deleted);
}

#[test]
fn a_record_that_was_proposed_before_its_region_was_merged_away_does_not_bring_it_back() {
    let (mut pairs, mut cluster) = founded();
    let part = |id, version, start: &'static [u8], end: &'static [u8]| {
        let mut part = report(RegionId(id), version);
        part.region.range = KeyRange::new(start, end);
        part
    };
    cluster.observe(part(50, 4, b"m", b""), Millis(1)).unwrap();
    let proposed = cluster.take_region_changes(1 << 20);
    // It is merged into its neighbour, which is split again; its new neighbour is not reported yet.
    cluster.observe(part(2, 6, b"", b""), Millis(2)).unwrap();
    cluster.observe(part(2, 7, b"", b"k"), Millis(3)).unwrap();
    commit(&mut pairs, &mut cluster, proposed);
    assert!(cluster.regions().get(RegionId(50)).is_none());
    let changes = cluster.take_region_changes(1 << 20);
    assert!(changes.contains(&pairs::no_region(RegionId(50))), "{changes:?}");
}

#[test]
fn what_is_persisted_of_a_region_is_the_least_that_the_next_leader_accepts() {
    let (mut pairs, mut cluster) = founded();
    let at = |conf_version, term| {
        let mut report = report(RegionId(2), 3);
        report.region.epoch.conf_version = conf_version;
        RegionReport { term: Term(term), ..report }
    };
    cluster.observe(at(4, 6), Millis(1)).unwrap();
    assert!(!cluster.regions().is_saved(RegionId(2)));
    // A change that is proposed is not persisted yet.
    let changes = cluster.take_region_changes(1 << 20);
    assert!(!cluster.regions().is_saved(RegionId(2)));
    commit(&mut pairs, &mut cluster, changes);
    assert!(cluster.regions().is_saved(RegionId(2)));
    assert!(cluster.plan_regions(&[RegionId(2)], 1 << 20).is_empty());
    // A change of the leader alone.
    cluster.observe(at(4, 7), Millis(2)).unwrap();
    let changes = cluster.plan_regions(&[RegionId(1), RegionId(2)], 1 << 20);
    assert_eq!(changes.len(), 2, "{changes:?}");
    commit(&mut pairs, &mut cluster, changes);
    assert!(cluster.regions().is_saved(RegionId(2)));
    assert!(cluster.take_region_changes(1 << 20).is_empty(), "it is not written twice");

    let mut next = load(&pairs);
    let known = next.regions().get(RegionId(2)).unwrap();
    assert_eq!((known.region.epoch.conf_version, known.term, known.leader), (4, Term(7), None));
    let deposed = next.observe(at(4, 6), Millis(3));
    assert_eq!(deposed, Err(StaleReport::Term(RegionId(2), Term(7))));
    assert!(next.observe(at(3, 8), Millis(3)).is_err());
    next.observe(at(4, 7), Millis(3)).unwrap();
    assert!(next.regions().get(RegionId(2)).unwrap().leader.is_some());
    assert!(next.regions().is_saved(RegionId(2)));
    assert!(next.regions().is_saved(RegionId(99)), "nothing is known of it");
}

#[test]
fn a_region_that_is_reported_while_its_records_are_deleted_is_persisted_again() {
    let (mut pairs, mut cluster) = founded();
    cluster.observe(report(RegionId(50), 4), Millis(1)).unwrap();
    let changes = cluster.take_region_changes(1 << 20);
    assert!(changes.contains(&pairs::no_region(RegionId(2))), "{changes:?}");
    cluster.observe(report(RegionId(2), 5), Millis(2)).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    assert!(!cluster.regions().is_saved(RegionId(2)));
    let changes = cluster.take_region_changes(1 << 20);
    commit(&mut pairs, &mut cluster, changes);
    assert!(cluster.regions().is_saved(RegionId(2)));
    assert_eq!(load(&pairs).regions().by_key(b"a").unwrap().region.id, RegionId(2));
}

#[test]
fn a_setting_changes_once_it_is_applied() {
    let (mut pairs, mut cluster) = founded();
    let changes = cluster.plan_setting("replicas", 5).unwrap();
    assert_eq!(cluster.config().replicas(), 3);
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(load(&pairs).config().replicas(), 5);
    assert!(cluster.plan_setting("replicas", 99).is_err());
}

#[test]
fn the_region_before_a_key_must_touch_the_one_that_holds_it() {
    let (_, mut cluster) = founded();
    let region = |id, start: &'static str, end: &'static str| {
        let mut report = report(RegionId(id), 5);
        report.region.range = KeyRange::new(start, end);
        report
    };
    for report in [region(10, "b", "d"), region(11, "d", "f"), region(12, "g", "")] {
        cluster.observe(report, Millis(1)).unwrap();
    }
    let before = |key: &[u8]| cluster.regions().before_key(key).map(|info| info.region.id.0);
    assert_eq!(before(b"e"), Some(10));
    assert_eq!(before(b"d"), Some(10));
    assert_eq!(before(b"c"), None);
    assert_eq!(before(b"h"), None);
    assert_eq!(before(b"f"), None);
    assert_eq!(cluster.regions().by_key(b"f"), None);
    assert!(!cluster.regions().cover(&KeyRange::new("e", "h")));
    assert!(cluster.regions().cover(&KeyRange::new("c", "f")));
    assert!(cluster.regions().cover(&KeyRange::new("g", "")));
}

#[test]
fn a_replica_is_left_behind_only_by_a_reported_later_membership_without_it() {
    let (_, mut cluster) = founded();
    let epoch = |conf_version, version| RegionEpoch { conf_version, version };
    let left =
        |cluster: &Cluster, peer, epoch| cluster.left_behind(RegionId(2), PeerId(peer), epoch);
    assert_eq!(left(&cluster, 9, epoch(0, 1)), None, "not reported yet");
    let mut news = report(RegionId(2), 3);
    news.region.epoch.conf_version = 7;
    cluster.observe(news, Millis(1)).unwrap();
    assert_eq!(left(&cluster, 9, epoch(6, 3)), Some(epoch(7, 3)));
    assert_eq!(left(&cluster, 9, epoch(7, 3)), None, "it knows as much");
    assert_eq!(left(&cluster, 9, epoch(8, 3)), None, "it knows more");
    assert_eq!(left(&cluster, 9, epoch(6, 4)), None, "it knows of a later range");
    assert_eq!(left(&cluster, 2, epoch(1, 1)), None, "it is a member");
    assert_eq!(cluster.left_behind(RegionId(99), PeerId(9), epoch(1, 1)), None);
}

#[test]
fn a_leader_that_has_not_measured_its_region_leaves_the_size_as_it_was() {
    let (_, mut cluster) = founded();
    let size = |cluster: &Cluster| cluster.regions().get(RegionId(2)).unwrap().size_bytes;
    let mut measured = report(RegionId(2), 3);
    (measured.size_bytes, measured.keys) = (500, 5);
    cluster.observe(measured, Millis(1)).unwrap();
    cluster.observe(report(RegionId(2), 3), Millis(2)).unwrap();
    assert_eq!(size(&cluster), 500);
}

#[test]
fn a_range_that_changed_keeps_the_size_of_the_regions_that_held_it_until_it_is_measured() {
    let (_, mut cluster) = founded();
    let known = |cluster: &Cluster, id| {
        let info = cluster.regions().get(RegionId(id)).unwrap();
        (info.size_bytes, info.keys, info.is_measured)
    };
    let new = |id, range: (&'static str, &'static str), version, size: (u64, u64)| {
        let mut out = report(RegionId(id), 3);
        out.region.range = KeyRange::new(range.0, range.1);
        out.region.epoch.version = version;
        (out.size_bytes, out.keys) = size;
        out
    };
    let observe = |cluster: &mut Cluster, report| cluster.observe(report, Millis(1)).unwrap();
    observe(&mut cluster, new(2, ("", ""), 5, (500, 6)));
    assert_eq!(known(&cluster, 2), (500, 6, true));
    // Both parts of a split, in either order.
    let mut other = cluster.clone();
    observe(&mut cluster, new(2, ("", "m"), 6, (0, 0)));
    observe(&mut cluster, new(7, ("m", ""), 6, (0, 0)));
    observe(&mut other, new(7, ("m", ""), 6, (0, 0)));
    observe(&mut other, new(2, ("", "m"), 6, (0, 0)));
    for cluster in [&cluster, &other] {
        assert_eq!([known(cluster, 2), known(cluster, 7)], [(250, 3, false); 2]);
    }
    // A report that repeats what is not measured changes nothing, one of a measured range does.
    observe(&mut cluster, new(7, ("m", ""), 6, (0, 0)));
    observe(&mut cluster, new(2, ("", "m"), 6, (200, 2)));
    assert_eq!((known(&cluster, 2), known(&cluster, 7)), ((200, 2, true), (250, 3, false)));
    // The source of a merge has another version and the same range. The target then holds both.
    observe(&mut cluster, new(2, ("", "m"), 7, (0, 0)));
    assert_eq!(known(&cluster, 2), (200, 2, false));
    observe(&mut cluster, new(7, ("", ""), 8, (0, 0)));
    assert_eq!(known(&cluster, 7), (450, 5, false));
    assert!(cluster.regions().get(RegionId(2)).is_none());
}

#[test]
fn a_silence_is_written_down_each_minute_and_counted_on_by_the_next_leader() {
    let (mut pairs, mut cluster) = founded();
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let beat = |cluster: &mut Cluster, store: u64, seconds: u64| {
        let report = StoreReport { id: StoreId(store), ..StoreReport::default() };
        cluster.record_heartbeat(&node, &[report], Millis(seconds * 1000));
    };
    (1..=2).for_each(|store| beat(&mut cluster, store, 0));
    assert!(cluster.plan_disconnections(Millis(29_000)).is_empty());
    // Seconds at which the silence is written, each with the seconds of the record.
    let mut written = Vec::new();
    for second in 29..2000 {
        beat(&mut cluster, 1, second);
        let changes = cluster.plan_disconnections(Millis(second * 1000));
        if !changes.is_empty() {
            assert_eq!(changes, [pairs::disconnected(StoreId(2), Some(second))]);
            commit(&mut pairs, &mut cluster, changes);
            written.push(second);
        }
    }
    let expected: Vec<u64> = (30..).step_by(60).take(31).collect();
    assert_eq!(written, expected, "until it is down after 1800 s");

    commit(&mut pairs, &mut cluster, vec![pairs::disconnected(StoreId(2), Some(1000))]);
    let mut next = Cluster::load(pairs.clone(), Millis(7_000), 6000).unwrap().unwrap();
    beat(&mut next, 1, 7);
    assert!(next.is_settled(Millis(12_000)) && !next.is_settled(Millis(11_999)));
    assert_eq!(next.liveness(StoreId(2), Millis(7_000 + 799_000)), Liveness::Disconnected);
    assert_eq!(next.liveness(StoreId(2), Millis(7_000 + 800_000)), Liveness::Down);
    beat(&mut next, 1, 66);
    assert_eq!(next.plan_disconnections(Millis(66_000)), []);
    beat(&mut next, 1, 67);
    let counted_on = next.plan_disconnections(Millis(67_000));
    assert_eq!(counted_on, [pairs::disconnected(StoreId(2), Some(1060))]);
    beat(&mut next, 2, 101);
    let back = next.plan_disconnections(Millis(101_000));
    assert!(back.contains(&pairs::disconnected(StoreId(2), None)), "{back:?}");
}

#[test]
fn the_time_without_heartbeats_does_not_follow_the_wall_clock_of_a_placement_leader() {
    let (mut pairs, mut cluster) = founded();
    commit(&mut pairs, &mut cluster, vec![pairs::disconnected(StoreId(2), Some(40))]);
    // The wall clocks of the next leaders are right, a day ahead, and at the epoch.
    for unix_seconds in [1_700_000_000, 1_700_086_400, 0] {
        let next = Cluster::load(pairs.clone(), Millis(7_000), unix_seconds).unwrap().unwrap();
        let liveness = |seconds: u64| next.liveness(StoreId(2), Millis(7_000 + seconds * 1000));
        assert_eq!(liveness(60), Liveness::Disconnected, "{unix_seconds}");
        assert_eq!(liveness(1759), Liveness::Disconnected, "{unix_seconds}");
        assert_eq!(liveness(1760), Liveness::Down, "{unix_seconds}");
    }
}

#[test]
fn the_wall_clock_time_of_an_earlier_version_is_deleted_and_counts_for_nothing() {
    let (mut pairs, _) = founded();
    let former = pairs::no_former_silence(StoreId(2));
    pairs.insert(former.key.clone(), Bytes::from_static(&[5]));
    let mut next = Cluster::load(pairs.clone(), Millis(0), 1_700_000_000).unwrap().unwrap();
    assert_eq!(next.liveness(StoreId(2), Millis(60_000)), Liveness::Disconnected);
    let changes = next.plan_disconnections(Millis(1_000));
    assert_eq!(changes, [former]);
    commit(&mut pairs, &mut next, changes);
    assert_eq!(next.plan_disconnections(Millis(1_000)), []);
}

fn node_run(address: &str, boot_nonce: u64) -> NodeReport {
    NodeReport { address: address.into(), boot_nonce, ..NodeReport::default() }
}

/// A report of store 1 in the run of this number.
fn store_run(boot_count: u64) -> StoreReport {
    StoreReport { id: StoreId(1), capacity_bytes: 1 << 30, boot_count, ..StoreReport::default() }
}

#[test]
fn a_report_of_an_earlier_run_of_a_store_takes_back_neither_state_nor_address() {
    let (mut pairs, mut cluster) = founded();
    let (old, new) = (node_run("n1:1", 9), node_run("n1:2", 4));
    let first = cluster.plan_heartbeat(&old, &[store_run(5)]).unwrap();
    assert_eq!(first, [pairs::boot(StoreId(1), Boot { count: 5, nonce: 9 })]);
    commit(&mut pairs, &mut cluster, first);
    assert_eq!(cluster.plan_heartbeat(&old, &[store_run(5)]).unwrap(), [], "once in a run");
    cluster.record_heartbeat(&old, &[store_run(5)], Millis(1));
    let moved = cluster.plan_heartbeat(&new, &[store_run(6)]).unwrap();
    commit(&mut pairs, &mut cluster, moved);
    cluster.record_heartbeat(&new, &[store_run(6)], Millis(2));
    assert_eq!(cluster.plan_heartbeat(&old, &[store_run(5)]).unwrap(), []);
    cluster.record_heartbeat(&old, &[store_run(5)], Millis(3));
    let store = cluster.store(StoreId(1)).unwrap();
    assert_eq!((&store.address[..], &store.node), ("n1:2", &new));
    assert_eq!(
        load(&pairs).run_of(StoreId(1)),
        new.run_of(&store_run(6)),
        "the next leader knows it"
    );
    // Another node, which had the disk before, reports the store as missing; the run stays known.
    let failed = StoreReport { id: StoreId(1), has_failed: true, ..StoreReport::default() };
    assert_eq!(cluster.plan_heartbeat(&node_run("n1:2", 7), &[failed]).unwrap(), []);
    cluster.record_heartbeat(&node_run("n1:2", 7), &[failed], Millis(4));
    assert!(cluster.store(StoreId(1)).unwrap().report.has_failed);
    // A node that was replaced by an earlier version states no run.
    cluster.record_heartbeat(&node_run("n1:2", 0), &[store_run(0)], Millis(5));
    assert!(!cluster.store(StoreId(1)).unwrap().report.has_failed, "it is heard");
}

#[test]
fn labels_of_a_heartbeat_are_kept_current_and_malformed_ones_are_refused() {
    let (mut pairs, mut cluster) = founded();
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let node = |labels| NodeReport { address: "n1:1".into(), labels, ..NodeReport::default() };
    let stores = [1, 2].map(|id| StoreReport { id: StoreId(id), ..StoreReport::default() });
    let new = node(Some(vec![label("rack", "a"), label("zone", "z")]));
    let changes = cluster.plan_heartbeat(&new, &stores).unwrap();
    assert_eq!(changes.len(), 3, "two stores and the members' version");
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(cluster.plan_heartbeat(&new, &stores).unwrap(), [], "once");
    // A node of an earlier version says nothing about labels.
    assert_eq!(cluster.plan_heartbeat(&node(None), &stores).unwrap(), []);
    let restored = load(&pairs);
    assert_eq!(restored.store(StoreId(2)).unwrap().labels, new.labels.clone().unwrap());
    let none = cluster.plan_heartbeat(&node(Some(Vec::new())), &stores).unwrap();
    commit(&mut pairs, &mut cluster, none);
    assert!(load(&pairs).store(StoreId(1)).unwrap().labels.is_empty());
    let many = (0..65).map(|number| label(&format!("l{number}"), "x")).collect();
    let bad = [
        vec![label("", "a")],
        vec![label("rack", &"a".repeat(2000))],
        vec![label("rack", "a"), label("rack", "b")],
        many,
    ];
    for labels in bad {
        let refused = cluster.plan_heartbeat(&node(Some(labels)), &stores).unwrap_err();
        assert!(refused.to_string().contains("label"), "{refused}");
    }
}

#[test]
fn heat_outlasts_reports_and_refused_ones_are_counted_by_the_next() {
    let (_, mut cluster) = founded();
    let report = |writes, conf_version, term| {
        let mut report = report(RegionId(2), 3);
        report.region.epoch.conf_version = conf_version;
        (report.term, report.traffic.writes) = (Term(term), writes);
        report.traffic.counted_since = 7;
        report
    };
    let writes = |cluster: &Cluster, now| {
        cluster.regions().get(RegionId(2)).unwrap().heat.at(Millis(now)).writes
    };
    cluster.observe(report(0, 1, 5), Millis(0)).unwrap();
    cluster.observe(report(60_000, 1, 5), Millis(600_000)).unwrap();
    let before = writes(&cluster, 600_000);
    assert!((680..=700).contains(&before), "{before} a second, of 60,000 in a minute");
    // A change of the members, a new term and a report without traffic keep the heat.
    cluster.observe(report(60_000, 2, 6), Millis(600_000)).unwrap();
    assert_eq!(writes(&cluster, 600_000), before);
    assert!(cluster.observe(report(90_000, 1, 6), Millis(600_000)).is_err());
    assert!(cluster.observe(report(90_000, 2, 5), Millis(600_000)).is_err());
    assert_eq!(writes(&cluster, 600_000), before);
    cluster.observe(report(120_000, 2, 6), Millis(600_000)).unwrap();
    assert!(writes(&cluster, 600_000).abs_diff(2 * before) <= 1);
    assert!(writes(&cluster, 660_000).abs_diff(before) <= 1, "it cools without reports");
}

#[test]
fn a_store_that_may_run_is_not_declared_lost() {
    let (mut pairs, mut cluster) = founded();
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let report = StoreReport { id: StoreId(2), ..StoreReport::default() };
    let declared = |cluster: &Cluster, seconds: u64| {
        cluster.plan_state(StoreId(2), DrainGoal::Lost, Millis(seconds * 1000))
    };
    // A new leader has heard nothing yet.
    assert!(declared(&cluster, 29).unwrap_err().to_string().contains("store 2 reports"));
    assert!(declared(&cluster, 30).is_ok());
    cluster.record_heartbeat(&node, &[report], Millis(40_000));
    assert!(declared(&cluster, 69).is_err());
    let failed = StoreReport { has_failed: true, ..report };
    cluster.record_heartbeat(&node, &[failed], Millis(41_000));
    assert!(declared(&cluster, 42).is_ok(), "its node says that it has stopped");
    cluster.record_heartbeat(&node, &[report], Millis(43_000));
    let changes = declared(&cluster, 73).unwrap();
    assert_eq!(changes.len(), 2, "the store and the members' version");
    commit(&mut pairs, &mut cluster, changes);
    assert!(cluster.is_lost(StoreId(2), Millis(73_000)));
    assert!(declared(&cluster, 200).unwrap_err().to_string().contains("already removed"));
    let refused = cluster.plan_heartbeat(&node, &[report]).unwrap_err();
    assert!(refused.to_string().contains("was removed"), "{refused}");
}

#[test]
fn a_store_that_runs_from_two_copies_of_its_directory_reports_from_one_node_only() {
    let (mut pairs, mut cluster) = founded();
    let first = node_run("n1:1", 7);
    let changes = cluster.plan_heartbeat(&first, &[store_run(5)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    let copy = node_run("n9:1", 8);
    let refused = load(&pairs).plan_heartbeat(&copy, &[store_run(5)]).unwrap_err().to_string();
    assert!(
        refused.contains("store 1 runs at n1:1 as start 5, and n9:1 runs another"),
        "{refused}"
    );
    assert_eq!(
        cluster.plan_heartbeat(&first, &[store_run(5)]).unwrap(),
        [],
        "it is heard as before"
    );
    assert!(cluster.plan_heartbeat(&copy, &[store_run(6)]).is_ok(), "it was moved to another node");
}

/// A report of a node that states these starts of store 1.
fn node_starts(address: &str, nonce: u64, ids: &[u128]) -> NodeReport {
    let lineage = Lineage::new(ids.iter().copied().map(StartId));
    NodeReport { lineages: [(StoreId(1), lineage)].into(), ..node_run(address, nonce) }
}

#[test]
fn the_recorded_start_of_a_store_is_replaced_only_by_one_that_came_after_it() {
    let (mut pairs, mut cluster) = founded();
    let known = node_starts("n1:1", 7, &[5, 4]);
    let changes = cluster.plan_heartbeat(&known, &[store_run(5)]).unwrap();
    assert_eq!(changes.len(), 2, "the number for earlier versions, and the starts");
    commit(&mut pairs, &mut cluster, changes);
    let after = node_starts("n9:1", 8, &[6, 5, 4]);
    for (name, report, count) in [
        ("an earlier state with a greater number", node_starts("n9:1", 8, &[9, 4]), 6),
        ("a directory of another store", node_starts("n9:1", 8, &[77]), 6),
        ("no start", node_run("n9:1", 8), 6),
    ] {
        let cluster = load(&pairs);
        let refused = cluster.plan_heartbeat(&report, &[store_run(count)]);
        assert!(refused.is_err_and(|it| it.to_string().contains("runs at n1:1")), "{name}");
    }
    let earlier = node_starts("n9:1", 8, &[4]);
    assert_eq!(cluster.plan_heartbeat(&earlier, &[store_run(4)]).unwrap(), []);
    assert_eq!(cluster.plan_heartbeat(&node_run("n1:1", 9), &[store_run(0)]).unwrap(), []);
    let changes = cluster.plan_heartbeat(&after, &[store_run(6)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    let next = load(&pairs);
    assert_eq!(next.run_of(StoreId(1)), after.run_of(&store_run(6)), "the next leader knows it");
    assert_eq!(next.store(StoreId(1)).unwrap().address, "n9:1");
    assert_eq!(next.plan_heartbeat(&known, &[store_run(5)]).unwrap(), [], "it ended");
}

#[test]
fn a_record_of_an_earlier_version_takes_the_first_starts_that_are_stated() {
    let (mut pairs, mut cluster) = founded();
    let changes = cluster.plan_heartbeat(&node_run("n1:1", 7), &[store_run(5)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    let stale = node_starts("n9:1", 8, &[1]);
    assert_eq!(cluster.plan_heartbeat(&stale, &[store_run(4)]).unwrap(), []);
    let upgraded = node_starts("n1:1", 9, &[6]);
    let changes = cluster.plan_heartbeat(&upgraded, &[store_run(6)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    assert_eq!(load(&pairs).run_of(StoreId(1)), upgraded.run_of(&store_run(6)));
}

#[test]
fn a_copied_store_does_not_keep_the_other_stores_of_its_node_from_reporting() {
    let (mut pairs, mut cluster) = founded();
    let known = node_starts("n1:1", 7, &[5, 4]);
    let changes = cluster.plan_heartbeat(&known, &[store_run(5)]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    cluster.record_heartbeat(&known, &[store_run(5)], Millis(1));
    let other = StoreReport { id: StoreId(2), capacity_bytes: 9, ..StoreReport::default() };
    let both = node_starts("n2:1", 8, &[8, 4]);
    let changes = cluster.plan_heartbeat(&both, &[store_run(6), other]).unwrap();
    commit(&mut pairs, &mut cluster, changes);
    cluster.record_heartbeat(&both, &[store_run(6), other], Millis(2));
    let address = |id| &cluster.store(StoreId(id)).unwrap().address[..];
    assert_eq!((address(1), address(2)), ("n1:1", "n2:1"));
    assert_eq!(cluster.store(StoreId(1)).unwrap().node, known);
}
