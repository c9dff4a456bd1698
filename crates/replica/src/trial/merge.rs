//! Tests of the state that a store keeps of a merge that it cannot finish yet, or never will.

use super::*;
use crate::admin::{self, AdminRecord, Change};
use stele_storage::{Pair, Snapshots};

/// Returns a cluster in which store 1 follows store 2 in two regions, [, m) and [m, ), of which the
/// first is to be merged.
fn followers() -> (Trial, Region, Region) {
    let region = |id: u64, start: &'static str, end: &'static str| Region {
        id: RegionId(id),
        range: KeyRange::new(start, end),
        epoch: RegionEpoch { conf_version: 1, version: 2 },
        peers: vec![peer(id * 100 + 1, 1), peer(id * 100 + 2, 2)],
        ..Region::default()
    };
    let (source, target) = (region(3, "", "m"), region(4, "m", ""));
    let mut trial = Trial::new(0);
    trial.add_store(1, &[source.clone(), target.clone()]);
    (trial, source, target)
}

fn append(trial: &mut Trial, region: &Region, payload: Bytes, commit: u64) {
    append_all(trial, region, vec![payload], commit);
}

fn append_all(trial: &mut Trial, region: &Region, payloads: Vec<Bytes>, commit: u64) {
    let mut raft = RaftMessage::new(RaftKind::Append, Term(6));
    (raft.index, raft.log_term, raft.commit) = (LogIndex(5), Term(5), LogIndex(commit));
    let entry = |(index, payload)| RaftEntry { term: Term(6), index: LogIndex(index), payload };
    raft.entries = (6..).zip(payloads).map(entry).collect();
    let message = PeerMessage {
        from_store: StoreId(2),
        to_store: StoreId(1),
        region: region.id,
        kind: region.kind,
        range: region.range.clone(),
        epoch: region.epoch,
        from: region.peers[1],
        to: region.peers[0],
        body: Body::Raft(raft),
    };
    trial.store(1).core.step(Input::Message(message));
    trial.settle();
}

#[test]
fn a_crash_while_the_target_waits_for_its_source_loses_neither() {
    let (mut trial, source, target) = followers();
    let prepared = (LogIndex(6), Term(6));
    let merging = admin::prepare_merge(&source, &target, prepared).unwrap();
    let change = Change::PrepareMerge { target: target.id, prepared };
    let record = AdminRecord { region: source.id, change };
    let prepare = admin::command(&record, std::slice::from_ref(&merging)).unwrap();
    let (merged, gone) = admin::commit_merge(&target, &merging, prepared.0).unwrap();
    let change = Change::CommitMerge { source: source.id, prepared };
    let record = AdminRecord { region: target.id, change };
    let commit = admin::command(&record, &[merged.clone(), gone]).unwrap();

    append(&mut trial, &target, commit.bytes().clone(), 6);
    let waiting = trial.report(1, target.id);
    assert_eq!((waiting.committed, waiting.applied), (LogIndex(6), LogIndex(5)));
    // Another record makes the hard state durable.
    append(&mut trial, &source, prepare.bytes().clone(), 5);
    trial.restart(1);
    assert_eq!(trial.report(1, target.id).applied, LogIndex(5), "not without the source");
    assert_eq!(trial.report(1, source.id).region.phase, RegionPhase::Normal);

    append(&mut trial, &target, commit.bytes().clone(), 6);
    trial.ticks(2);
    assert!(trial.store(1).core.region(source.id).is_none());
    assert_eq!(trial.report(1, target.id).region, merged);
    trial.restart(1);
    assert!(trial.store(1).core.region(source.id).is_none());
    assert_eq!(trial.report(1, target.id).region, merged);
}

#[test]
fn after_a_crash_a_change_of_members_proves_that_the_one_before_it_is_committed() {
    let (mut trial, source, target) = followers();
    let prepared = (LogIndex(6), Term(6));
    let merging = admin::prepare_merge(&source, &target, prepared).unwrap();
    let (merged, gone) = admin::commit_merge(&target, &merging, prepared.0).unwrap();
    let change = Change::CommitMerge { source: source.id, prepared };
    let record = AdminRecord { region: target.id, change };
    let merge = admin::command(&record, &[merged.clone(), gone]).unwrap();
    let added = |id| PeerChange {
        kind: ChangeKind::Add,
        peer: Peer { role: PeerRole::Learner, ..peer(id, id) },
    };
    let mut payloads = vec![merge.bytes().clone()];
    let mut region = merged;
    for id in [503, 504] {
        let changes = vec![added(id)];
        region = admin::change_peers(&region, &changes).unwrap();
        let record = AdminRecord { region: target.id, change: Change::Members(changes) };
        let command = admin::command(&record, std::slice::from_ref(&region)).unwrap();
        payloads.push(command.bytes().clone());
    }
    // The merge waits for its source, so the durable commit index stays below it.
    append_all(&mut trial, &target, payloads, 7);
    trial.restart(1);
    let opened = trial.report(1, target.id);
    assert_eq!((opened.committed, opened.applied), (LogIndex(7), LogIndex(5)));
}

#[test]
fn after_a_crash_a_source_is_gone_that_a_snapshot_of_its_target_holds() {
    let (mut trial, source, target) = followers();
    let prepared = (LogIndex(6), Term(6));
    let merging = admin::prepare_merge(&source, &target, prepared).unwrap();
    let record = AdminRecord {
        region: source.id,
        change: Change::PrepareMerge { target: target.id, prepared },
    };
    let prepare = admin::command(&record, std::slice::from_ref(&merging)).unwrap();
    append(&mut trial, &source, prepare.bytes().clone(), 6);
    trial.restart(1);
    assert_eq!(trial.report(1, source.id).region, merging, "its target is as it was");

    let (merged, _) = admin::commit_merge(&target, &merging, prepared.0).unwrap();
    let header = SnapshotHeader {
        at: (LogIndex(9), Term(6)),
        leader_term: Term(6),
        from: merged.peers[1],
        to: merged.peers[0],
        bytes: 0,
        merges: None,
        region: merged.clone(),
    };
    let id = trial.request();
    trial.store(1).core.step(Input::request(id, Request::SnapshotOffered(header.clone())));
    trial.settle();
    let Some(Reply::Done(Done::SnapshotAccepted { ranges })) = trial.reply(id).cloned() else {
        panic!("{:?}", trial.reply(id));
    };
    let store = trial.store(1);
    let mut ingest = store.engine.begin_ingest(ranges).unwrap();
    let (key, value) = (keyspace::region_key(target.id), merged.encode());
    store.engine.receive(&mut ingest, vec![Pair { key, value, expires_at_s: 0 }]).unwrap();
    store.core.step(Input::SnapshotReceived { header, ingest });
    store.stalled = true;
    trial.settle();
    for _ in 0..2 {
        // The record of the source's removal never reaches the log.
        assert_eq!(trial.report(1, target.id).region, merged);
        assert!(trial.store(1).core.region(source.id).is_none());
        trial.restart(1);
    }
    trial.ticks(2);
    assert!(trial.store(1).core.region(source.id).is_none());
}

/// Returns a cluster in which stores 1 to 3 merge region 3 into region 4. Store 3 receives no
/// message of the target, neither of the merge nor of earlier changes.
fn merged_without_store_3() -> Trial {
    let regions = neighbours();
    let [source, target] = [RegionId(3), RegionId(4)];
    let mut trial = Trial::new(0);
    (1..=3).for_each(|store| trial.add_store(store, &regions));
    trial.lead(source, 1);
    trial.lead(target, 1);
    trial.lose = |message| {
        let ends = [message.from_store, message.to_store];
        message.region == RegionId(4) && ends.contains(&StoreId(3))
    };
    let learner = Peer { role: PeerRole::Learner, ..peer(404, 4) };
    for kind in [ChangeKind::Add, ChangeKind::Remove] {
        let change = Admin::ChangePeers(vec![PeerChange { kind, peer: learner }]);
        trial.admin(1, target, change);
        trial.ticks(5);
    }
    let now = trial.report(1, target).region;
    trial.admin(1, source, Admin::PrepareMerge { target: now });
    trial.ticks(5);
    let source = trial.report(1, source).region;
    let RegionPhase::Merging { prepared, .. } = source.phase else {
        panic!("{source:?} is not prepared");
    };
    trial.admin(1, target, Admin::CommitMerge { source, prepared_index: prepared });
    trial.ticks(5);
    trial
}

/// Removes the target's replica from store 3.
fn leave(trial: &mut Trial) {
    let gone =
        Admin::ChangePeers(vec![PeerChange { kind: ChangeKind::Remove, peer: peer(403, 3) }]);
    trial.admin(1, RegionId(4), gone);
    trial.ticks(5);
}

#[test]
fn a_source_leaves_where_its_target_left_before_it_heard_of_the_merge() {
    let mut trial = merged_without_store_3();
    assert!(trial.store(1).core.region(RegionId(3)).is_none());
    leave(&mut trial);
    trial.ticks(100);
    assert!(trial.store(3).core.region(RegionId(3)).is_some(), "the target here may need it");
    trial.lose = |_| false;
    trial.ticks(200);
    assert!(trial.store(3).core.region(RegionId(4)).is_none());
    assert!(trial.store(3).core.region(RegionId(3)).is_none());
    trial.restart(3);
    assert!(trial.store(3).core.region(RegionId(3)).is_none());
}

#[test]
fn a_source_stays_where_its_target_may_yet_come_with_a_log_that_takes_it_over() {
    let mut trial = merged_without_store_3();
    // Another store still knows the target from before the merge, without a peer on store 3.
    let source = trial.report(3, RegionId(3)).region;
    let RegionPhase::Merging { target, prepared, term, target_epoch } = source.phase else {
        panic!("{source:?} is not prepared");
    };
    let say = |trial: &mut Trial, of: &Region, epoch: RegionEpoch, body: Body| {
        let message = PeerMessage {
            from_store: StoreId(2),
            to_store: StoreId(3),
            region: of.id,
            kind: of.kind,
            range: of.range.clone(),
            epoch,
            from: of.peers[1],
            to: of.peers[2],
            body,
        };
        trial.store(3).core.step(Input::Message(message));
        trial.ticks(5);
    };
    let report_left = |trial: &mut Trial, left: u64| {
        let epoch = RegionEpoch { version: source.epoch.version + 1, ..source.epoch };
        let body = Body::Merged { prepared: (prepared, term), target, left: Some(left) };
        say(trial, &source, epoch, body);
    };
    let before = source.epoch.version.max(target_epoch.version);
    let gone = |trial: &mut Trial| {
        let target = trial.report(3, target).region;
        let epoch = RegionEpoch { conf_version: target.epoch.conf_version + 1, ..target.epoch };
        say(trial, &target, epoch, Body::Gone);
    };
    report_left(&mut trial, before + 1);
    assert!(trial.store(3).core.region(source.id).is_some(), "the target is here");
    trial.restart(3);
    gone(&mut trial);
    // The first message tells it the commit index again.
    (0..2).for_each(|_| report_left(&mut trial, before));
    assert_eq!(trial.report(3, source.id).region.phase, source.phase, "the target may come again");
    report_left(&mut trial, before + 1);
    assert!(trial.store(3).core.region(source.id).is_none());
}
