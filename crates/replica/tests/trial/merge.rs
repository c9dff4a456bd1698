//! Tests of the state that a store keeps of a merge that it cannot finish yet, or never will.

use super::*;
use stele_storage::Pair;

/// Merge of two regions as store 2 led it alone, and two learners that the target got afterwards.
struct Merge {
    source: Region,
    target: Region,
    /// The source after it was prepared.
    merging: Region,
    /// Entries of the source, of which the last one prepares the merge.
    prepare: Vec<RaftEntry>,
    /// Entries of the target, of which the last one is the merge.
    commit: Vec<RaftEntry>,
    /// Entries of the target that add two learners after the merge.
    learners: Vec<RaftEntry>,
    /// The target after the merge.
    merged: Region,
}

impl Merge {
    fn new() -> Self {
        let region = |id: u64, start: &'static str, end: &'static str| Region {
            id: RegionId(id),
            range: KeyRange::new(start, end),
            epoch: RegionEpoch { conf_version: 1, version: 2 },
            peers: vec![peer(id * 100 + 1, 1), peer(id * 100 + 2, 2)],
            ..Region::default()
        };
        let (source, target) = (region(3, "", "m"), region(4, "m", ""));
        let mut trial = Trial::new(0);
        (1..=2).for_each(|store| trial.add_store(store, &[source.clone(), target.clone()]));
        trial.lead(source.id, 2);
        trial.lead(target.id, 2);
        trial.admin(2, source.id, Admin::PrepareMerge { target: target.clone() });
        trial.ticks(5);
        let merging = trial.report(2, source.id).region;
        let RegionPhase::Merging { prepared: prepared_index, .. } = merging.phase else {
            panic!("{merging:?} is not prepared");
        };
        let prepare = entries(&mut trial, source.id);
        trial.admin(2, target.id, Admin::CommitMerge { source: merging.clone(), prepared_index });
        trial.ticks(5);
        let merged = trial.report(2, target.id).region;
        let commit = entries(&mut trial, target.id);
        for id in [503, 504] {
            let peer = Peer { role: PeerRole::Learner, ..peer(id, id) };
            let add = PeerChange { kind: ChangeKind::Add, peer };
            trial.admin(2, target.id, Admin::ChangePeers(vec![add]));
            trial.ticks(5);
        }
        let learners = entries(&mut trial, target.id).split_off(commit.len());
        assert_eq!(learners.len(), 2);
        Self { source, target, merging, prepare, commit, learners, merged }
    }

    /// Returns a cluster in which store 1 follows store 2 in both regions, as they were before.
    fn followers(&self) -> Trial {
        let mut trial = Trial::new(0);
        trial.add_store(1, &[self.source.clone(), self.target.clone()]);
        trial
    }
}

/// Returns the entries of a region after its first state, as store 2 has them.
fn entries(trial: &mut Trial, region: RegionId) -> Vec<RaftEntry> {
    let (from, to) = (LogIndex(6), trial.report(2, region).last.next());
    let entries = trial.store(2).engine.entries(region, from, to, usize::MAX).unwrap();
    let entry = |CommittedEntry { term, index, payload, .. }| RaftEntry { term, index, payload };
    entries.into_iter().map(entry).collect()
}

/// Appends those of a region's first entries that store 1 has not committed. All but the last
/// `uncommitted` become committed.
fn append(trial: &mut Trial, region: &Region, entries: &[RaftEntry], uncommitted: u64) {
    let last = entries.last().unwrap();
    let mut raft = RaftMessage::new(RaftKind::Append, last.term);
    let committed = trial.report(1, region.id).committed;
    let (known, new) = entries.split_at((committed.0 - 5) as usize);
    (raft.index, raft.log_term) = (committed, known.last().map_or(Term(5), |last| last.term));
    raft.commit = LogIndex(last.index.0 - uncommitted);
    raft.entries = new.to_vec();
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
    let merge = Merge::new();
    let Merge { source, target, merged, .. } = &merge;
    let mut trial = merge.followers();
    append(&mut trial, target, &merge.commit, 0);
    let last = merge.commit.last().unwrap().index;
    let before = LogIndex(last.0 - 1);
    let waiting = trial.report(1, target.id);
    assert_eq!((waiting.committed, waiting.applied), (last, before));
    // Another record makes the hard state durable.
    append(&mut trial, source, &merge.prepare, 1);
    trial.restart(1);
    assert_eq!(trial.report(1, target.id).applied, before, "not without the source");
    assert_eq!(trial.report(1, source.id).region.phase, RegionPhase::Normal);

    append(&mut trial, target, &merge.commit, 0);
    trial.ticks(2);
    assert!(trial.store(1).core.region(source.id).is_none());
    assert_eq!(trial.report(1, target.id).region, *merged);
    trial.restart(1);
    assert!(trial.store(1).core.region(source.id).is_none());
    assert_eq!(trial.report(1, target.id).region, *merged);
}

#[test]
fn after_a_crash_a_change_of_members_proves_that_the_one_before_it_is_committed() {
    let merge = Merge::new();
    let mut trial = merge.followers();
    // The merge waits for its source, so the durable commit index stays below it.
    append(&mut trial, &merge.target, &[merge.commit.clone(), merge.learners.clone()].concat(), 1);
    trial.restart(1);
    let opened = trial.report(1, merge.target.id);
    let last = merge.commit.last().unwrap().index;
    assert_eq!((opened.committed, opened.applied), (last.next(), LogIndex(last.0 - 1)));
}

#[test]
fn after_a_crash_a_source_is_gone_that_a_snapshot_of_its_target_holds() {
    let merge = Merge::new();
    let Merge { source, target, merging, merged, .. } = &merge;
    let mut trial = merge.followers();
    append(&mut trial, source, &merge.prepare, 0);
    trial.restart(1);
    assert_eq!(trial.report(1, source.id).region, *merging, "its target is as it was");

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
        assert_eq!(trial.report(1, target.id).region, *merged);
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
