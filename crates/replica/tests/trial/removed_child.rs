//! Tests of a split child that came by a snapshot and left before its parent's replica applies the
//! split.

use super::*;
use stele_storage::StateMachine;

const CHILD: RegionId = RegionId(10);

fn of_parent(message: &PeerMessage) -> bool {
    message.region == DATA && message.to_store == StoreId(3)
}

/// Returns a cluster in which store 3 had a replica of the child and lost it, and then gets its
/// parent's replica from before the split.
fn removed() -> Trial {
    let mut trial = Trial::new(3);
    trial.add_store(3, &[]);
    trial.isolate(3);
    trial.lead(DATA, 1);
    trial.write(1, put("m", "1"));
    trial.settle();
    let before = trial.report(1, DATA);
    let view = trial.store(1).engine.view().unwrap();
    let new = NewRegion { region: CHILD, peers: [201, 202, 203].map(PeerId).to_vec() };
    let keys = vec![Bytes::from_static(b"h")];
    trial.admin(1, DATA, Admin::Split { keys, new_ids: vec![new] });
    trial.settle();
    trial.lose = of_parent;
    trial.heal();
    trial.ticks(40);
    assert_eq!(trial.value(3, "m").as_deref(), Some("1"), "the child is there");
    let changes = [(ChangeKind::Add, PeerRole::Learner), (ChangeKind::Remove, PeerRole::Learner)];
    for (kind, role) in changes {
        let leader = trial.leader(CHILD).unwrap();
        let peer = Peer { role, ..peer(203, 3) };
        trial.admin(leader, CHILD, Admin::ChangePeers(vec![PeerChange { kind, peer }]));
        trial.ticks(40);
    }
    assert!(trial.store(3).core.region(CHILD).is_none());
    let ranges = snapshot_ranges(&before.region);
    let header = SnapshotHeader {
        region: before.region,
        at: (before.applied, before.term),
        leader_term: before.term,
        from: peer(101, 1),
        to: peer(103, 3),
        bytes: 0,
        merges: None,
    };
    assert!(trial.carry_to(1, &header, 3, &view, &ranges));
    trial.settle();
    assert_eq!(trial.report(3, DATA).region.epoch.version, 1, "before the split");
    trial
}

#[test]
fn a_split_brings_no_removed_child_back() {
    let mut trial = removed();
    trial.store(3).events.clear();
    trial.lose = |_| false;
    trial.ticks(40);
    assert_eq!(trial.report(3, DATA).region.epoch.version, 2, "after the split");
    let is_child =
        |event: &Event| matches!(event, Event::RegionCreated(region) if region.id == CHILD);
    assert!(!trial.store(3).events.iter().any(is_child), "it was back for a moment");
    for _ in 0..2 {
        assert!(trial.store(3).core.region(CHILD).is_none());
        assert_eq!(trial.value(3, "m"), None, "its pairs are dropped");
        trial.restart(3);
    }
}

#[test]
fn a_descriptor_that_a_split_wrote_over_a_tombstone_begins_no_log_at_open() {
    let mut trial = removed();
    let child = trial.report(1, CHILD).region;
    let child = Region { peers: (1..=3).map(|store| peer(200 + store, store)).collect(), ..child };
    let pair = (keyspace::region_key(CHILD), child.encode());
    write_own_pair(&trial.store(3).engine, pair);
    trial.restart(3);
    assert!(trial.store(3).core.region(CHILD).is_none());
}
