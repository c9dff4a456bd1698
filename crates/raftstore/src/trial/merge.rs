//! What a store keeps of a merge that it can't finish yet.

use super::*;
use crate::admin::{self, Change, Record as AdminRecord};

/// Store 1 follows store 2 in two regions, [, m) and [m, ), of which the first is to be merged.
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
    let mut raft = RaftMessage::new(RaftKind::Append, Term(6));
    (raft.index, raft.log_term, raft.commit) = (LogIndex(5), Term(5), LogIndex(commit));
    raft.entries = vec![RaftEntry { term: Term(6), index: LogIndex(6), payload }];
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
    // Something else makes the hard state durable.
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
