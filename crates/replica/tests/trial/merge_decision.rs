//! Tests of the decision of a merge: the source is rolled back on proof that its target refused, and
//! never after a commit.

use super::*;

const SOURCE: RegionId = RegionId(3);
const TARGET: RegionId = RegionId(4);

fn touches(message: &PeerMessage, store: u64) -> bool {
    [message.from_store, message.to_store].contains(&StoreId(store))
}

fn target_lost_on_3(message: &PeerMessage) -> bool {
    message.region == TARGET && touches(message, 3)
}

fn member(kind: ChangeKind, id: u64, store: u64, role: PeerRole) -> PeerChange {
    PeerChange { kind, peer: Peer { role, ..peer(id, store) } }
}

fn change(trial: &mut Trial, changes: Vec<PeerChange>) {
    let leader = trial.leader(TARGET).unwrap();
    trial.admin(leader, TARGET, Admin::ChangePeers(changes));
    trial.ticks(10);
}

fn add_and_remove_a_learner(trial: &mut Trial) {
    for kind in [ChangeKind::Add, ChangeKind::Remove] {
        change(trial, vec![member(kind, 404, 4, PeerRole::Learner)]);
    }
}

fn leave_3(trial: &mut Trial) {
    change(trial, vec![member(ChangeKind::Remove, 403, 3, PeerRole::Voter)]);
}

/// Returns stores 1 to 3 with both regions, led from store 1.
fn cluster(options: fn(&mut Options)) -> Trial {
    let regions = neighbours();
    let mut trial = Trial::with(0, options);
    (1..=3).for_each(|store| trial.add_store(store, &regions));
    trial.lead(SOURCE, 1);
    trial.lead(TARGET, 1);
    trial
}

fn prepare(trial: &mut Trial) -> Region {
    let target = trial.report(1, TARGET).region;
    trial.admin(1, SOURCE, Admin::PrepareMerge { target });
    trial.ticks(5);
    let source = trial.report(1, SOURCE).region;
    assert!(matches!(source.phase, RegionPhase::Merging { .. }), "{source:?}");
    source
}

fn commit(trial: &mut Trial, source: &Region) -> RequestId {
    let RegionPhase::Merging { prepared, .. } = source.phase else { panic!("{source:?}") };
    let leader = trial.leader(TARGET).unwrap();
    let call = Admin::CommitMerge { source: source.clone(), prepared_index: prepared };
    let id = trial.admin(leader, TARGET, call);
    trial.ticks(5);
    id
}

fn phase(trial: &mut Trial, store: u64) -> Option<RegionPhase> {
    trial.store(store).core.region(SOURCE).map(|report| report.region.phase)
}

/// Orders the source's leader a few times to roll back, as placement does. Returns whether it did.
fn rolls_back(trial: &mut Trial, source: RegionId, call: Admin) -> bool {
    for _ in 0..4 {
        let Some(leader) = trial.leader(source) else { return false };
        trial.admin(leader, source, call.clone());
        trial.ticks(20);
        let Some(leader) = trial.leader(source) else { return false };
        if trial.report(leader, source).region.phase == RegionPhase::Normal {
            return true;
        }
    }
    false
}

/// Checks that no two regions, on any stores, own a key in normal operation.
fn check_owners(trial: &mut Trial) {
    let reports = trial.stores.values_mut().flat_map(|store| store.core.regions());
    let live = reports.map(|report| report.region);
    let live: Vec<Region> = live.filter(|region| region.phase == RegionPhase::Normal).collect();
    for one in &live {
        for other in live.iter().filter(|other| other.id != one.id) {
            let is_newer = one.epoch.version > other.epoch.version;
            let overlap = one.range.overlaps(&other.range);
            assert!(!overlap || !is_newer, "{one:?} and {other:?} own the same keys");
        }
    }
}

/// Returns a cluster in which the target refused the merge by leaving store 3, which received nothing of
/// the target since before the preparation.
fn refused_unheard_on_3() -> Trial {
    let mut trial = cluster(|_| {});
    trial.lose = target_lost_on_3;
    add_and_remove_a_learner(&mut trial);
    prepare(&mut trial);
    leave_3(&mut trial);
    trial
}

#[test]
fn a_leader_of_which_the_store_lost_the_target_too_early_asks_the_other_stores_for_the_proof() {
    let mut trial = refused_unheard_on_3();
    trial.lose = |_| false;
    trial.ticks(200);
    assert!(trial.store(3).core.region(TARGET).is_none());
    trial.lead(SOURCE, 3);
    // What it received is lost, and its own store applied nothing.
    trial.restart(3);
    trial.lead(SOURCE, 3);
    assert!(rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])));
    trial.ticks(20);
    assert_eq!(trial.report(1, SOURCE).region.phase, RegionPhase::Normal);
    check_owners(&mut trial);
}

#[test]
fn a_leader_of_which_the_store_never_had_the_target_rolls_back() {
    let [a, b] = neighbours();
    let mut trial = Trial::new(0);
    (1..=2).for_each(|store| trial.add_store(store, &[a.clone(), b.clone()]));
    trial.add_store(3, std::slice::from_ref(&a));
    trial.lead(SOURCE, 1);
    trial.lose = |message| message.region == TARGET && message.to_store == StoreId(3);
    trial.lead(TARGET, 1);
    prepare(&mut trial);
    leave_3(&mut trial);
    trial.lose = |_| false;
    trial.ticks(200);
    assert!(trial.store(3).core.region(TARGET).is_none());
    trial.lead(SOURCE, 3);
    assert!(rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])));
    check_owners(&mut trial);
}

#[test]
fn a_leader_of_which_the_store_was_ordered_to_destroy_the_target_rolls_back() {
    let mut trial = refused_unheard_on_3();
    trial.admin(3, TARGET, Admin::Destroy(PeerId(403)));
    trial.ticks(5);
    trial.lose = |_| false;
    assert!(trial.store(3).core.region(TARGET).is_none());
    trial.lead(SOURCE, 3);
    assert!(rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])));
    check_owners(&mut trial);
}

/// Tells the target's replicas on stores 2 and 3, as a member of a later membership, that they are
/// gone from it.
fn say_gone(trial: &mut Trial, versions: u64) {
    for store in [2, 3] {
        let here = trial.report(store, TARGET).region;
        let RegionEpoch { conf_version, version } = here.epoch;
        let message = PeerMessage {
            from_store: StoreId(1),
            to_store: StoreId(store),
            region: TARGET,
            kind: here.kind,
            range: here.range.clone(),
            epoch: RegionEpoch { conf_version: conf_version + 6, version: version + versions },
            from: here.peers[0],
            to: here.peers[store as usize - 1],
            body: Body::Gone,
        };
        trial.store(store).core.step(Input::Message(message));
        trial.ticks(2);
        assert!(trial.store(store).core.region(TARGET).is_none());
    }
}

#[test]
fn a_replica_that_is_told_it_is_gone_after_a_change_of_range_proves_nothing() {
    for versions in [0, 2] {
        let mut trial = cluster(|_| {});
        prepare(&mut trial);
        // Nothing comes from store 1 any more: the target may have committed the merge there or not.
        trial.lose = |message| touches(message, 1);
        say_gone(&mut trial, versions);
        trial.ticks(100);
        assert_ne!(trial.leader(SOURCE), None);
        for _ in 0..2 {
            let is_refused = rolls_back(&mut trial, SOURCE, Admin::AbandonMerge(vec![]));
            // With the same range there was no commit, because that changes it.
            assert_eq!(is_refused, versions == 0, "{versions} changes of range");
            if versions == 0 {
                break;
            }
            (2..=3).for_each(|store| trial.restart(store));
            trial.ticks(100);
        }
    }
}

/// Withholds the commit index of a region from store 2, which then applies nothing of it.
fn withhold_commits_from_2(message: &mut PeerMessage, region: RegionId) {
    if message.region == region
        && message.to_store == StoreId(2)
        && let Body::Raft(raft) = &mut message.body
    {
        raft.commit = LogIndex(0);
    }
}

/// Prepares the merge on a cluster of which stores 2 and 3 hear nothing of what the target decides, and the
/// source nothing of store 1. Returns the source as prepared.
fn prepared_unheard(trial: &mut Trial) -> Region {
    (4..=5).for_each(|store| trial.add_store(store, &[]));
    trial.lose = target_lost_on_3;
    trial.alter = |message| withhold_commits_from_2(message, TARGET);
    let source = prepare(trial);
    trial.lose =
        |message| target_lost_on_3(message) || message.region == SOURCE && touches(message, 1);
    source
}

/// Moves the target, which has decided by this request, from stores 2 and 3 to 4 and 5.
fn decided_and_moves_away(trial: &mut Trial, decision: RequestId) {
    trial.ticks(5);
    let reply = trial.reply(decision);
    assert!(matches!(reply, Some(Reply::Done(_))), "{reply:?}");
    move_to_4_and_5(trial, TARGET);
    for store in [2, 3] {
        change(trial, vec![member(ChangeKind::Remove, 400 + store, store, PeerRole::Learner)]);
    }
    trial.lose = |message| message.region == SOURCE && touches(message, 1);
    trial.ticks(300);
}

/// Returns a cluster in which store 1 committed the merge and the target moved to stores 4 and 5.
/// Stores 2 and 3 received `Gone` before they knew that the commit is one.
/// They lead the source, and hear nothing of it from store 1.
fn committed_and_moved_away() -> Trial {
    let mut trial = cluster(|_| {});
    let source = prepared_unheard(&mut trial);
    let id = commit(&mut trial, &source);
    decided_and_moves_away(&mut trial, id);
    assert!((2..=3).all(|store| trial.store(store).core.region(TARGET).is_none()));
    trial.alter = |_| {};
    trial.ticks(100);
    let stores: Vec<_> = trial.report(1, TARGET).region.peers.iter().map(|it| it.store.0).collect();
    assert_eq!((stores, phase(&mut trial, 1)), (vec![1, 4, 5], None));
    trial
}

#[test]
fn after_a_commit_no_replica_of_the_source_is_rolled_back_and_all_of_them_leave() {
    let mut trial = committed_and_moved_away();
    assert!(trial.leader(SOURCE).is_some_and(|leader| leader != 1));
    for call in [Admin::RollbackMerge(vec![]), Admin::AbandonMerge(vec![])] {
        assert!(!rolls_back(&mut trial, SOURCE, call));
        (2..=3).for_each(|store| trial.restart(store));
        trial.ticks(100);
    }
    check_owners(&mut trial);
    trial.lose = |_| false;
    trial.ticks(200);
    let left = (1..=5).filter(|store| phase(&mut trial, *store).is_some());
    assert_eq!(left.collect::<Vec<_>>(), Vec::<u64>::new());
}

#[test]
fn a_target_that_has_not_decided_refuses_by_an_entry_when_the_merge_is_abandoned() {
    let mut trial = cluster(|_| {});
    // Another store leads the target.
    trial.lead(TARGET, 2);
    let source = prepare(&mut trial);
    let before = trial.report(2, TARGET).region;
    assert!(!rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])), "nothing is decided");
    assert_eq!(trial.report(2, TARGET).region, before);
    assert!(rolls_back(&mut trial, SOURCE, Admin::AbandonMerge(vec![])));
    let epoch = RegionEpoch { conf_version: before.epoch.conf_version + 1, ..before.epoch };
    let refused = Region { epoch, ..before };
    // Invariant: every replica of the target has the refusal, and a late commit is refused.
    (1..=3).for_each(|store| assert_eq!(trial.report(store, TARGET).region, refused));
    let late = commit(&mut trial, &source);
    assert!(trial.busy(late).is_some() || trial.refusal(late).is_some(), "{:?}", trial.reply(late));
    (1..=3).for_each(|store| trial.restart(store));
    trial.ticks(100);
    (1..=3).for_each(|store| assert_eq!(trial.report(store, TARGET).region, refused));
    check_owners(&mut trial);
    // Both go on, and may be merged now.
    trial.lead(SOURCE, 1);
    trial.lead(TARGET, 1);
    let source = prepare(&mut trial);
    let id = commit(&mut trial, &source);
    assert!(matches!(trial.reply(id), Some(Reply::Done(_))), "{:?}", trial.reply(id));
}

#[test]
fn a_commit_and_an_abandonment_at_once_end_as_the_targets_log_has_them() {
    for commits_first in [true, false] {
        let mut trial = cluster(|_| {});
        trial.lead(TARGET, 2);
        let source = prepare(&mut trial);
        let RegionPhase::Merging { prepared, .. } = source.phase else { panic!("{source:?}") };
        let call = Admin::CommitMerge { source, prepared_index: prepared };
        if commits_first {
            trial.admin(2, TARGET, call.clone());
        }
        trial.admin(1, SOURCE, Admin::AbandonMerge(vec![]));
        trial.settle();
        let late = trial.admin(2, TARGET, call);
        trial.ticks(5);
        match commits_first {
            true => {
                trial.ticks(100);
                assert!((1..=3).all(|store| phase(&mut trial, store).is_none()));
            }
            false => {
                assert!(!matches!(trial.reply(late), Some(Reply::Done(_))));
                assert!(rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])));
            }
        }
        check_owners(&mut trial);
    }
}

#[test]
fn a_merge_is_rolled_back_where_the_target_is_destroyed_everywhere() {
    let mut trial = cluster(|_| {});
    prepare(&mut trial);
    // The leader steps down: a replica that leads is not destroyed by an order.
    (1..=3).for_each(|store| trial.isolate(store));
    trial.ticks(100);
    for store in 1..=3 {
        trial.admin(store, TARGET, Admin::Destroy(PeerId(400 + store)));
        trial.ticks(5);
        assert!(trial.store(store).core.region(TARGET).is_none(), "on store {store}");
    }
    // As long as one store does not answer, its replica may be there, and the merge committed.
    [(1, 2), (2, 1)].into_iter().for_each(|way| _ = trial.cut.remove(&way));
    trial.elect(SOURCE);
    assert!(!rolls_back(&mut trial, SOURCE, Admin::AbandonMerge(vec![])));
    trial.heal();
    trial.ticks(100);
    assert!(
        rolls_back(&mut trial, SOURCE, Admin::AbandonMerge(vec![])),
        "no replica is left that could commit"
    );
}

#[test]
fn a_merge_is_rolled_back_where_the_target_is_merged_elsewhere_itself() {
    let mut trial = Trial::new(0);
    let [a, mut b] = neighbours();
    b.range = KeyRange::new("m", "t");
    let c = Region {
        id: RegionId(5),
        range: KeyRange::new("t", ""),
        peers: (1..=3).map(|store| peer(500 + store, store)).collect(),
        ..b.clone()
    };
    (1..=3).for_each(|store| trial.add_store(store, &[a.clone(), b.clone(), c.clone()]));
    [SOURCE, TARGET, c.id].into_iter().for_each(|region| trial.lead(region, 1));
    prepare(&mut trial);
    let into = trial.report(1, c.id).region;
    trial.admin(1, TARGET, Admin::PrepareMerge { target: into });
    trial.ticks(5);
    let middle = trial.report(1, TARGET).region;
    let RegionPhase::Merging { prepared, .. } = middle.phase else { panic!("{middle:?}") };
    trial.admin(1, c.id, Admin::CommitMerge { source: middle, prepared_index: prepared });
    trial.ticks(20);
    assert!((1..=3).all(|store| trial.store(store).core.region(TARGET).is_none()));
    (1..=3).for_each(|store| trial.restart(store));
    trial.ticks(100);
    assert!(rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])));
    check_owners(&mut trial);
}

/// Returns a cluster in which region 3 took over region 4, and split off its keys again, on store 1.
/// Stores 2 and 3, which lack the commit or have not applied it, get region 3 by a snapshot from
/// after that. They are most of the source's members, and hear nothing of it from store 1.
fn split_off_again_behind_a_snapshot() -> Trial {
    let [source, target] = [TARGET, SOURCE];
    let mut trial = cluster(|options| {
        options.log_kept = LogKept { entries: 10, pin_bytes_max: 1_000 };
    });
    (4..=5).for_each(|store| trial.add_store(store, &[]));
    trial.lose = |message| message.region == SOURCE && touches(message, 3);
    trial.alter = |message| withhold_commits_from_2(message, SOURCE);
    let into = trial.report(1, target).region;
    trial.admin(1, source, Admin::PrepareMerge { target: into });
    trial.ticks(5);
    let merging = trial.report(1, source).region;
    let RegionPhase::Merging { prepared, .. } = merging.phase else { panic!("{merging:?}") };
    trial.admin(1, target, Admin::CommitMerge { source: merging, prepared_index: prepared });
    trial.ticks(5);
    assert!(trial.store(1).core.region(source).is_none());
    trial.lose = |message| {
        message.region == SOURCE && touches(message, 3)
            || message.region == TARGET && touches(message, 1)
    };
    move_to_4_and_5(&mut trial, target);
    // Stores 2 and 3 hear nothing of store 1 until it has dropped the entries that they lack.
    (2..=3).for_each(|store| trial.isolate(store));
    let at_m = Admin::Split {
        keys: vec![Bytes::from_static(b"m")],
        new_ids: vec![NewRegion { region: RegionId(9), peers: (901..=905).map(PeerId).collect() }],
    };
    trial.admin(1, target, at_m);
    trial.ticks(5);
    (0..200).for_each(|i| write(&mut trial, target, &format!("a{i}")));
    trial.store(1).engine.maintain(0).unwrap();
    trial.ticks(5);
    write(&mut trial, target, "b");
    trial.heal();
    trial.lose = |message| message.region != SOURCE && touches(message, 1) && !touches(message, 4);
    trial.ticks(100);
    let installed = trial.report(1, target).region;
    assert_eq!(installed.range, KeyRange::new("", "m"));
    (2..=3).for_each(|store| assert_eq!(trial.report(store, target).region, installed));
    trial.alter = |_| {};
    trial.ticks(100);
    trial
}

/// Makes the target's replicas on stores 4 and 5 voters, and those on stores 2 and 3 learners.
fn move_to_4_and_5(trial: &mut Trial, target: RegionId) {
    use ChangeKind::Add;
    use PeerRole::{Learner, Voter};
    let id = |store| target.0 * 100 + store;
    let mut order = |changes: Vec<PeerChange>| {
        trial.admin(1, target, Admin::ChangePeers(changes));
        trial.ticks(10);
    };
    order(vec![member(Add, id(4), 4, Learner)]);
    order(vec![member(Add, id(5), 5, Learner)]);
    let swap = [(4, Voter), (5, Voter), (2, Learner), (3, Learner)];
    order(swap.map(|(store, role)| member(Add, id(store), store, role)).to_vec());
    trial.ticks(10);
}

#[test]
fn a_snapshot_of_the_target_from_after_a_change_of_range_proves_nothing() {
    let mut trial = split_off_again_behind_a_snapshot();
    let leader = trial.elect(TARGET);
    assert_ne!(leader, 1);
    assert!(!rolls_back(&mut trial, TARGET, Admin::AbandonMerge(vec![])));
    (2..=3).for_each(|store| trial.restart(store));
    trial.elect(TARGET);
    assert!(!rolls_back(&mut trial, TARGET, Admin::AbandonMerge(vec![])), "after a restart");
    check_owners(&mut trial);
    trial.lose = |_| false;
    trial.ticks(400);
    assert!((1..=5).all(|store| trial.store(store).core.region(TARGET).is_none()));
    assert_eq!(trial.report(3, RegionId(9)).region.range, KeyRange::new("m", ""));
}

#[test]
fn a_sole_replica_of_which_the_log_was_empty_at_a_restart_still_has_its_proof() {
    let regions = neighbours().map(|mut region| {
        region.peers.retain(|peer| peer.store == StoreId(1));
        region
    });
    let mut trial = Trial::new(0);
    trial.add_store(1, &regions);
    trial.lead(SOURCE, 1);
    trial.lead(TARGET, 1);
    prepare(&mut trial);
    let new = NewRegion { region: RegionId(9), peers: vec![PeerId(901)] };
    let keys = vec![Bytes::from_static(b"x")];
    trial.admin(1, TARGET, Admin::Split { keys, new_ids: vec![new] });
    trial.ticks(5);
    write(&mut trial, TARGET, "n");
    trial.store(1).engine.checkpoint().unwrap();
    trial.store(1).engine.request_truncation();
    trial.ticks(25);
    let report = trial.report(1, TARGET);
    assert_eq!(report.truncated, report.last, "no entry is kept");
    // The split was applied by a program that keeps no record of committed merges.
    let mut later = Vec::new();
    CommittedMerges::since(report.region.epoch.version).put(&mut later);
    let pair = (keyspace::merges_key(TARGET), Bytes::from(later));
    write_own_pair(&trial.store(1).engine, pair);
    trial.restart(1);
    trial.lead(SOURCE, 1);
    assert!(rolls_back(&mut trial, SOURCE, Admin::RollbackMerge(vec![])));
    check_owners(&mut trial);
}

fn write(trial: &mut Trial, region: RegionId, name: &str) {
    let id = trial.request();
    let header = Header { region, ..Header::default() };
    let command = put(name, &"v".repeat(100));
    trial.store(1).core.step(Input::request(id, Write { header, command, only_deletes: false }));
    trial.settle();
}

/// Returns a cluster in which no proof of the decision is left on the source's stores 2 and 3. The target split,
/// or committed the merge, on store 1 alone. It moved to stores 4 and 5 by snapshots from after that,
/// and store 1 is lost.
fn proof_lost(commits: bool, sends_merges: bool) -> Trial {
    let mut trial = cluster(|_| {});
    trial.sends_no_merges = !sends_merges;
    let source = prepared_unheard(&mut trial);
    let new = NewRegion { region: RegionId(9), peers: (901..=903).map(PeerId).collect() };
    let id = match commits {
        true => commit(&mut trial, &source),
        false => {
            let keys = vec![Bytes::from_static(b"t")];
            trial.admin(1, TARGET, Admin::Split { keys, new_ids: vec![new] })
        }
    };
    decided_and_moves_away(&mut trial, id);
    let known = merges_of_target(&mut trial, 1);
    assert!(known.is_some());
    trial.stores.remove(&1);
    trial.alter = |_| {};
    trial.ticks(100);
    (2..=5).for_each(|store| trial.restart(store));
    trial.ticks(300);
    assert!((2..=3).all(|store| trial.store(store).core.region(TARGET).is_none()));
    assert!((4..=5).all(|store| trial.store(store).core.region(TARGET).is_some()));
    // What store 1 had by the log, the others have by snapshots and after a restart.
    for store in 4..=5 {
        assert_eq!(merges_of_target(&mut trial, store) == known, sends_merges, "on store {store}");
    }
    trial.elect(TARGET);
    trial.elect(SOURCE);
    trial
}

fn merges_of_target(trial: &mut Trial, store: u64) -> Option<CommittedMerges> {
    let view = trial.store(store).engine.view().unwrap();
    let pair = view.get(&keyspace::merges_key(TARGET)).unwrap();
    pair.map(|pair| CommittedMerges::decode(&pair.value).unwrap())
}

fn asks_4_and_5() -> Admin {
    Admin::RollbackMerge(vec![StoreId(4), StoreId(5)])
}

#[test]
fn a_merge_is_rolled_back_where_each_store_with_the_deciding_entry_is_lost() {
    let mut trial = proof_lost(false, true);
    assert!(rolls_back(&mut trial, SOURCE, asks_4_and_5()));
    trial.ticks(20);
    assert!((2..=3).all(|store| phase(&mut trial, store) == Some(RegionPhase::Normal)));
    check_owners(&mut trial);
}

#[test]
fn a_committed_merge_is_not_rolled_back_where_each_store_with_the_deciding_entry_is_lost() {
    let mut trial = proof_lost(true, true);
    assert!(!rolls_back(&mut trial, SOURCE, asks_4_and_5()));
    check_owners(&mut trial);
}

#[test]
fn a_snapshot_without_the_record_of_merges_proves_nothing() {
    for commits in [false, true] {
        let mut trial = proof_lost(commits, false);
        assert!(!rolls_back(&mut trial, SOURCE, asks_4_and_5()), "{commits}");
        check_owners(&mut trial);
    }
}
