use super::*;
use stele_types::{PeerId, PeerRole, RegionEpoch, RegionId, StoreId};

const AT: (LogIndex, Term) = (LogIndex(9), Term(6));

fn region(id: u64, start: &'static str, end: &'static str) -> Region {
    let peers = (1..=3).map(|store| Peer {
        id: PeerId(id * 10 + store),
        store: StoreId(store),
        role: if store == 3 { PeerRole::Learner } else { PeerRole::Voter },
    });
    Region {
        id: RegionId(id),
        range: KeyRange::new(start, end),
        epoch: RegionEpoch { conf_version: 4, version: 10 * id },
        peers: peers.collect(),
        ..Region::default()
    }
}

fn ids(region: u64) -> NewRegion {
    let peers = (1..=3).map(|store| PeerId(region * 10 + store)).collect();
    NewRegion { region: RegionId(region), peers }
}

fn keys(keys: &[&'static str]) -> Vec<Bytes> {
    keys.iter().map(|key| Bytes::from(*key)).collect()
}

#[test]
fn a_split_leaves_the_left_part_to_the_region_and_keeps_every_key() {
    let parts = split(&region(1, "b", ""), &keys(&["g", "m"]), &[ids(2), ids(3)]).unwrap();
    let ranges: Vec<_> = parts.iter().map(|part| part.range.clone()).collect();
    let range = KeyRange::new;
    assert_eq!(ranges, [range("b", "g"), range("g", "m"), range("m", "")]);
    for (part, id) in parts.iter().zip(1..) {
        assert_eq!(part.id, RegionId(id));
        assert_eq!(part.epoch, RegionEpoch { conf_version: 4, version: 12 });
        assert_eq!(part.peers, region(id, "", "").peers, "same stores and roles, new ids");
    }
}

#[test]
fn splits_that_break_the_rules_are_refused() {
    let mut system = region(1, "b", "");
    system.kind = RegionKind::System;
    let mut joint = region(1, "b", "");
    joint.peers[0].role = PeerRole::DemotingVoter;
    let long: Vec<Bytes> = vec![Bytes::from(vec![b'c'; USER_KEY_BYTES_MAX + 1])];
    let old_peer = NewRegion { peers: vec![PeerId(11), PeerId(98), PeerId(99)], ..ids(2) };
    let few = NewRegion { peers: vec![PeerId(98)], ..ids(2) };
    let whole = region(1, "b", "q");
    let refused: &[(&Region, Vec<Bytes>, Vec<NewRegion>, &str)] = &[
        (&whole, keys(&[]), vec![], "0 split keys"),
        (&whole, keys(&["c"]), vec![], "0 new regions"),
        (&whole, keys(&["b"]), vec![ids(2)], "inside"),
        (&whole, keys(&["q"]), vec![ids(2)], "inside"),
        (&whole, keys(&["z"]), vec![ids(2)], "inside"),
        (&whole, keys(&["m", "g"]), vec![ids(2), ids(3)], "ascend"),
        (&whole, keys(&["m", "m"]), vec![ids(2), ids(3)], "ascend"),
        (&whole, long, vec![ids(2)], "inside"),
        (&whole, keys(&["c"]), vec![ids(1)], "new"),
        (&whole, keys(&["c", "d"]), vec![ids(2), ids(2)], "new"),
        (&whole, keys(&["c"]), vec![old_peer], "new"),
        (&whole, keys(&["c"]), vec![few], "1 peers named"),
        (&system, keys(&["c"]), vec![ids(2)], "cannot be split"),
        (&joint, keys(&["c"]), vec![ids(2)], "between two"),
    ];
    for (region, keys, new, reason) in refused {
        let error = split(region, keys, new).unwrap_err();
        assert!(error.contains(reason), "{keys:?} {new:?}: {error}");
    }
}

#[test]
fn a_merge_goes_either_way_and_its_version_wins_over_both() {
    let (left, right) = (region(5, "a", "m"), region(2, "m", "t"));
    for (source, target) in [(&left, &right), (&right, &left)] {
        let prepared = prepare_merge(source, target, AT).unwrap();
        assert_eq!(prepared.epoch.version, source.epoch.version + 1);
        let (merged, gone) = commit_merge(target, &prepared, LogIndex(9)).unwrap();
        assert_eq!(merged.range, KeyRange::new("a", "t"));
        assert!(merged.epoch.version > prepared.epoch.version.max(target.epoch.version));
        assert_eq!((merged.id, gone.id), (target.id, source.id));
        assert_eq!(gone.phase, RegionPhase::Tombstone);
        assert_eq!(merged.peers, target.peers);
    }
}

#[test]
fn a_merge_is_refused_unless_both_sides_are_as_it_was_prepared() {
    let (left, right) = (region(1, "a", "m"), region(2, "m", "t"));
    let mut elsewhere = right.clone();
    elsewhere.peers[2].store = StoreId(9);
    let mut joint = right.clone();
    joint.peers[0].role = PeerRole::DemotingVoter;
    let far = region(3, "n", "t");
    let all = region(4, "", "");
    for target in [&elsewhere, &joint, &far, &all, &left] {
        assert!(prepare_merge(&left, target, AT).is_err(), "{target:?}");
    }
    let prepared = prepare_merge(&left, &right, AT).unwrap();
    assert!(prepare_merge(&prepared, &right, AT).is_err());
    assert!(prepare_merge(&right, &prepared, AT).is_err());
    assert!(commit_merge(&right, &left, LogIndex(9)).is_err());
    assert!(commit_merge(&right, &prepared, LogIndex(8)).is_err());
    assert!(commit_merge(&region(7, "m", "t"), &prepared, LogIndex(9)).is_err());
    let mut grown = right.clone();
    grown.range.start = Bytes::from("p");
    assert!(commit_merge(&grown, &prepared, LogIndex(9)).is_err());
    let changes: [fn(&mut RegionEpoch); 2] = [|it| it.version += 1, |it| it.conf_version += 1];
    for change in changes {
        let mut changed = right.clone();
        change(&mut changed.epoch);
        let error = commit_merge(&changed, &prepared, LogIndex(9)).unwrap_err();
        assert!(error.contains("has changed"), "{error}");
    }

    let back = rollback_merge(&prepared).unwrap();
    assert_eq!((back.phase, back.epoch.version), (RegionPhase::Normal, left.epoch.version + 2));
    assert!(rollback_merge(&back).is_err());
    assert!(commit_merge(&right, &back, LogIndex(9)).is_err());
}

#[test]
fn a_split_inside_a_redis_key_is_refused() {
    let whole = region(1, "", "");
    let header = redis_key::header_key(0, b"{tag}name").slice(1..);
    let member =
        redis_key::member_key(&redis_key::header_key(0, b"{tag}name"), 7, b"field").slice(1..);
    for inside in [&header, &member] {
        let error = split(&whole, std::slice::from_ref(inside), &[ids(2)]).unwrap_err();
        assert!(error.contains("one Redis key or tag"), "{error}");
        let border = redis_key::border(inside);
        let parts = split(&whole, std::slice::from_ref(&border), &[ids(2)]).unwrap();
        assert_eq!(parts[1].range.start, border);
    }
}
