use super::*;
use crate::PairChange;
use crate::cluster::Bootstrap;
use crate::operator::plan;
use crate::region_info::DownPeer;
use crate::region_info::RegionReport;
use crate::schedule::round;
use crate::store::{NodeReport, StoreReport};
use stele_types::{ClusterId, KeyRange, LogIndex, PeerId, PeerRole, Region, Term};

const STORE: StoreId = StoreId(1);

fn bootstrap() -> Bootstrap {
    Bootstrap {
        cluster: ClusterId(7),
        address: "n1:1".into(),
        capacities_bytes: vec![1 << 30, 1 << 30],
    }
}

/// Returns a cluster of one store that leads region 2, with an operator of this kind to split it.
fn splitting(kind: Kind) -> (Cluster, Operators, OperatorId) {
    let pairs = bootstrap().pairs().into_iter().filter_map(|pair| Some((pair.key, pair.value?)));
    let mut cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
    let ids = cluster.plan_ids(10).unwrap();
    cluster.apply(&ids).unwrap();
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    cluster.record_heartbeat(
        &node,
        &[StoreReport { id: STORE, ..StoreReport::default() }],
        Millis(0),
    );
    for region in Bootstrap::regions() {
        let leader = region.peers[0];
        let report = RegionReport { region, leader, term: Term(5), ..RegionReport::default() };
        cluster.observe(report, Millis(0)).unwrap();
    }
    let info = cluster.regions().get(RegionId(2)).unwrap();
    let step = Step::Split { keys: Vec::new(), new: Vec::new() };
    let operator = plan::operator(info, kind, vec![step], "a test").unwrap();
    let mut operators = Operators::default();
    let id = operators.admit(&mut cluster, operator, Millis(0)).unwrap();
    (cluster, operators, id)
}

#[test]
fn the_same_instruction_is_repeated_after_growing_pauses_only() {
    let (mut cluster, mut operators, _) = splitting(Kind::Manual);
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let mut sent_at = Vec::new();
    for millis in (0..20_000).step_by(100) {
        let now = Millis(millis);
        cluster.record_heartbeat(
            &node,
            &[StoreReport { id: STORE, ..StoreReport::default() }],
            now,
        );
        assert!(operators.instructions(&cluster, &[StoreId(9)], now).is_empty());
        if !operators.instructions(&cluster, &[STORE], now).is_empty() {
            sent_at.push(millis);
        }
    }
    assert_eq!(sent_at, [0, 500, 1500, 3500, 7500, 11_500, 15_500, 19_500]);
}

/// Reports region 2 with another learner, as a step of a replaced operator leaves it.
fn report_another_learner(cluster: &mut Cluster) -> RegionEpoch {
    let mut region = cluster.regions().get(RegionId(2)).unwrap().region.clone();
    region.peers.push(Peer { id: PeerId(90), store: StoreId(2), role: PeerRole::Learner });
    region.epoch.conf_version += 1;
    let (leader, epoch) = (region.peers[0], region.epoch);
    let report = RegionReport { region, leader, term: Term(5), ..RegionReport::default() };
    cluster.observe(report, Millis(10)).unwrap();
    epoch
}

#[test]
fn a_split_goes_on_when_a_step_of_a_replaced_operator_changes_the_members() {
    let (mut cluster, mut operators, id) = splitting(Kind::Manual);
    assert_eq!(operators.instructions(&cluster, &[STORE], Millis(0)).len(), 1);
    let epoch = report_another_learner(&mut cluster);
    let due = operators.instructions(&cluster, &[STORE], Millis(10));
    let order = Order::Split { keys: Vec::new(), new: Vec::new() };
    assert_eq!(operators.ended().count(), 0);
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].operator, due[0].epoch, &due[0].order), (id, epoch, &order));
}

#[test]
fn a_plan_that_changes_members_ends_when_they_change_outside_it() {
    let (mut cluster, mut operators, _) = splitting(Kind::Manual);
    operators.cancel(RegionId(2), Millis(0));
    let info = cluster.regions().get(RegionId(2)).unwrap();
    let learner = Peer { id: PeerId(0), store: STORE, role: PeerRole::Learner };
    let steps = vec![Step::Split { keys: Vec::new(), new: Vec::new() }, Step::Remove(learner)];
    let operator = plan::operator(info, Kind::Manual, steps, "a test").unwrap();
    operators.running.insert(RegionId(2), operator);
    report_another_learner(&mut cluster);
    assert!(operators.instructions(&cluster, &[STORE], Millis(10)).is_empty());
    let ended = operators.ended().last().unwrap();
    assert_eq!(ended.given_up.as_deref(), Some("members changed outside this operator"));
}

#[test]
fn what_can_never_be_done_ends_an_order_at_once_with_the_leaders_words() {
    let (_, mut operators, id) = splitting(Kind::Manual);
    operators.note_refusal(id, 0, "busy".into(), false, Millis(10));
    assert_eq!(operators.running().count(), 1);
    operators.note_refusal(id, 0, "one key only".into(), true, Millis(20));
    assert_eq!(operators.running().count(), 0);
    let ended = operators.ended().last().unwrap();
    assert_eq!((ended.at, ended.given_up.as_deref()), (Millis(20), Some("one key only")));
    // A scheduler would plan the same again at once: its operator stays until its timeout.
    let (_, mut operators, id) = splitting(Kind::Balance);
    operators.note_refusal(id, 0, "one key only".into(), true, Millis(20));
    assert_eq!(operators.running().count(), 1);
}

fn report(cluster: &mut Cluster, region: Region, down: Vec<DownPeer>) {
    let leader = region.peers[0];
    let report = RegionReport { region, leader, term: Term(5), down, ..RegionReport::default() };
    cluster.observe(report, Millis(20)).unwrap();
}

/// Returns a cluster in which region 2 is prepared to merge into region 9, and the operator that the
/// schedulers started to finish that.
fn merging() -> (Cluster, Operators, Region) {
    let (mut cluster, mut operators, _) = splitting(Kind::Manual);
    operators.cancel(RegionId(2), Millis(0));
    let whole = cluster.regions().get(RegionId(2)).unwrap().region.clone();
    let later = |by| RegionEpoch { version: whole.epoch.version + by, ..whole.epoch };
    let target = Region {
        id: RegionId(9),
        range: KeyRange::new("m", ""),
        epoch: later(1),
        peers: vec![Peer { id: PeerId(91), ..whole.peers[0] }],
        ..whole.clone()
    };
    let (prepared, term, target_epoch) = (LogIndex(8), Term(5), target.epoch);
    let phase = RegionPhase::Merging { target: target.id, prepared, term, target_epoch };
    let range = KeyRange::new("", "m");
    let source = Region { range, epoch: later(2), phase, ..whole.clone() };
    report(&mut cluster, source.clone(), Vec::new());
    report(&mut cluster, target, Vec::new());
    round(&mut cluster, &mut operators, Millis(20));
    assert_eq!(steps(&operators), [Step::CommitMerge(RegionId(9))]);
    (cluster, operators, source)
}

/// Cancels the merge of region 2, as an administrator does; returns the committed changes.
fn cancel_merge(cluster: &mut Cluster, operators: &mut Operators) -> Vec<PairChange> {
    let changes = cluster.plan_cancelled_merge(RegionId(2)).unwrap();
    cluster.apply(&changes).unwrap();
    assert!(operators.cancel(RegionId(2), Millis(30)));
    changes
}

fn rolled_back(source: &Region) -> Region {
    let epoch = RegionEpoch { version: source.epoch.version + 1, ..source.epoch };
    Region { phase: RegionPhase::Normal, epoch, ..source.clone() }
}

fn hear(cluster: &mut Cluster, now: Millis) {
    let node = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
    let store = StoreReport { id: STORE, ..StoreReport::default() };
    cluster.record_heartbeat(&node, &[store], now);
}

fn report_measured(cluster: &mut Cluster, region: &Region, now: Millis) {
    let (region, leader, term) = (region.clone(), region.peers[0], Term(6));
    let size_bytes = 1 << 20;
    let report = RegionReport { region, leader, term, size_bytes, ..RegionReport::default() };
    cluster.observe(report, now).unwrap();
}

fn steps(operators: &Operators) -> Vec<Step> {
    operators.of(RegionId(2)).map(|operator| operator.steps.clone()).unwrap_or_default()
}

#[test]
fn a_merge_that_is_cancelled_is_abandoned_and_not_finished() {
    let (mut cluster, mut operators, source) = merging();
    cancel_merge(&mut cluster, &mut operators);
    round(&mut cluster, &mut operators, Millis(40));
    assert_eq!(steps(&operators), [Step::AbandonMerge]);
    let due = operators.instructions(&cluster, &[STORE], Millis(50));
    // The target's stores may have the proof that it refused.
    let order = Order::AbandonMerge(vec![STORE]);
    assert_eq!((due.len(), &due[0].order), (1, &order));
    report(&mut cluster, rolled_back(&source), Vec::new());
    operators.advance(&cluster, Millis(60));
    assert_eq!(operators.ended().last().unwrap().given_up, None);
    assert!(!operators.has_operator(source.id));
    // An administrator orders a merge again: it is finished.
    let changes = cluster.plan_merge_again(source.id);
    cluster.apply(&changes).unwrap();
    let version = source.epoch.version + 2;
    let again = Region { epoch: RegionEpoch { version, ..source.epoch }, ..source };
    report(&mut cluster, again, Vec::new());
    round(&mut cluster, &mut operators, Millis(70));
    assert_eq!(steps(&operators), [Step::CommitMerge(RegionId(9))]);
}

#[test]
fn a_cancelled_merge_stays_cancelled_when_the_placement_leader_changes() {
    let (mut before, mut operators, source) = merging();
    let mut pairs = bootstrap().pairs();
    pairs.extend(before.plan_ids(10).unwrap());
    pairs.extend(before.plan_regions(&[source.id, RegionId(9)], 1 << 20));
    pairs.extend(cancel_merge(&mut before, &mut operators));
    let target = before.regions().get(RegionId(9)).unwrap().region.clone();
    // The next leader has no operators, and only what was committed.
    let pairs = pairs.into_iter().filter_map(|pair| Some((pair.key, pair.value?)));
    let mut cluster = Cluster::load(pairs, Millis(0), 0).unwrap().unwrap();
    let ids = cluster.plan_ids(100).unwrap();
    cluster.apply(&ids).unwrap();
    let mut operators = Operators::default();
    hear(&mut cluster, Millis(10));
    report(&mut cluster, source.clone(), Vec::new());
    report(&mut cluster, target.clone(), Vec::new());
    round(&mut cluster, &mut operators, Millis(20));
    assert_eq!(steps(&operators), [Step::AbandonMerge]);
    // The regions are small: a scheduler would merge them.
    let changes = cluster.plan_setting("merge_below_bytes", 1 << 30).unwrap();
    cluster.apply(&changes).unwrap();
    cluster.note_full_report("n1:1");
    let (source, mut target) = (rolled_back(&source), target);
    target.epoch.conf_version += 1;
    for (millis, expected) in [(20, 0), (60_000, 0), (700_000, 1)] {
        let now = Millis(millis);
        hear(&mut cluster, now);
        report_measured(&mut cluster, &source, now);
        report_measured(&mut cluster, &target, now);
        operators.advance(&cluster, now);
        let due = cluster.plan_cancelled_merges(now);
        cluster.apply(&due).unwrap();
        cluster.note_cancelled_merges(now);
        round(&mut cluster, &mut operators, now);
        assert_eq!(operators.count(&[Kind::Merge]), expected, "at {millis} ms");
    }
}

#[test]
fn leaders_and_replicas_of_both_regions_of_a_stuck_merge_can_be_moved() {
    for region in [2, 9].map(RegionId) {
        let (mut cluster, mut operators, _) = merging();
        let info = cluster.regions().get(region).unwrap();
        let steps = vec![Step::Transfer(info.region.peers[0])];
        let operator = plan::operator(info, Kind::Manual, steps, "ordered").unwrap();
        let admitted = operators.admit(&mut cluster, operator, Millis(30));
        assert!(admitted.is_ok(), "region {region}: {admitted:?}");
        assert_eq!(operators.of(region).map(|operator| operator.kind), Some(Kind::Manual));
    }
}

#[test]
fn a_merge_that_waits_for_a_replica_says_which_and_how_to_abandon_it() {
    let (mut cluster, operators, source) = merging();
    assert_eq!(operators.wait_reason(&cluster, source.id, Millis(30)), None);
    let down = vec![DownPeer { peer: source.peers[0].id, seconds: 5 }];
    report(&mut cluster, source.clone(), down);
    let reason = operators.wait_reason(&cluster, source.id, Millis(30)).unwrap();
    for part in ["store 1 responds", "1800 s", "`stele ctl cancel-operator 2` abandons"] {
        assert!(reason.contains(part), "{reason}");
    }
}
