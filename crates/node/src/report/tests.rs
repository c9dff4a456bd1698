use super::split::Measured;
use super::*;
use stele_placement::{OperatorId, Order};
use stele_replica::{Busy, Refusal, Reply, Role, Unknown};
use stele_storage::RangeSize;
use stele_types::{LogIndex, Peer, PeerRole, Region};

const STORE: StoreId = StoreId(1);

pub(super) fn led(id: u64) -> (StoreId, CoreReport) {
    let peer = Peer { id: PeerId(id), store: STORE, role: PeerRole::Voter };
    let region = Region { id: RegionId(id), peers: vec![peer], ..Region::default() };
    let report = CoreReport {
        region,
        peer,
        role: Role::Leader,
        is_leading: true,
        leader: Some(peer),
        term: Term(1),
        last: LogIndex(1),
        committed: LogIndex(1),
        applied: LogIndex(1),
        truncated: LogIndex(0),
        pending_peers: Vec::new(),
        down_peers: Vec::new(),
        leaderless_seconds: 0,
        lacks_room: false,
        hibernating: false,
        traffic: stele_replica::Traffic::default(),
    };
    (STORE, report)
}

/// Returns the list of all regions of a store, or of those that changed since a collection.
fn changes(since: Option<u64>, now: u64, regions: &[(StoreId, CoreReport)]) -> Changes {
    let collection = |number| Collection { incarnation: 1, number };
    let regions = regions.iter().map(|(_, report)| report.clone()).collect();
    let (since, now) = (since.map(collection), collection(now));
    Changes { since, now, regions, gone: Vec::new() }
}

fn send(reporter: &mut Reporter, regions: &[(StoreId, CoreReport)], sizes: &Sizes) -> Report {
    let now = reporter.collected(STORE).number + 1;
    reporter.collect(STORE, &changes(None, now, regions));
    reporter.report(NodeReport::default(), Vec::new(), sizes)
}

fn send_changed(reporter: &mut Reporter, changed: &[(StoreId, CoreReport)]) -> Report {
    let since = reporter.collected(STORE).number;
    reporter.collect(STORE, &changes(Some(since), since + 1, changed));
    reporter.report(NodeReport::default(), Vec::new(), &Sizes::new())
}

fn ids(report: &Report) -> Vec<u64> {
    report.regions.iter().map(|region| region.region.id.0).collect()
}

fn answer(sequence: u64) -> ReportAnswer {
    ReportAnswer { term: Term(1), sequence, ..ReportAnswer::default() }
}

fn step(operator: u64, region: u64, order: Order) -> Instruction {
    Instruction {
        operator: OperatorId(operator),
        step: 0,
        region: RegionId(region),
        epoch: RegionEpoch::default(),
        leader: Peer::default(),
        order,
    }
}

#[test]
fn a_region_is_reported_once_its_leader_knows_its_followers() {
    let mut regions = [led(5), led(6)];
    regions[1].1.is_leading = false;
    let mut reporter = Reporter::new(0, 60);
    assert_eq!(ids(&send(&mut reporter, &regions, &Sizes::new())), [5]);
}

#[test]
fn only_changes_are_reported_after_an_answer_and_everything_after_a_failure() {
    let (mut reporter, sizes) = (Reporter::new(10, 60), Sizes::new());
    let mut regions = [led(5), led(6), led(7)];
    let first = send(&mut reporter, &regions, &sizes);
    assert_eq!((ids(&first), first.is_full, first.sequence), (vec![5, 6, 7], true, 11));
    let again = send(&mut reporter, &regions, &sizes);
    assert!(again.is_full && ids(&again).len() == 3, "no answer came");
    reporter.answered(answer(12));
    regions[1].1.traffic.read_ops = 1;
    regions[2].1.term = Term(2);
    let changed = send(&mut reporter, &regions, &sizes);
    assert_eq!((ids(&changed), changed.is_full), (vec![6, 7], false));
    // The answer to an earlier report does not show that the leader knows the later one.
    reporter.answered(answer(12));
    assert_eq!(ids(&send(&mut reporter, &regions, &sizes)), [6, 7]);
    reporter.answered(ReportAnswer { all_wanted: true, ..answer(14) });
    assert_eq!(ids(&send(&mut reporter, &regions, &sizes)), [5, 6, 7]);
    reporter.answered(answer(15));
    assert_eq!(ids(&send(&mut reporter, &regions, &sizes)), [0; 0], "nothing was read since");
    reporter.failed();
    assert_eq!(ids(&send(&mut reporter, &regions, &sizes)), [5, 6, 7]);
}

#[test]
fn a_changed_region_is_reported_until_an_answer_and_a_new_leader_gets_all() {
    let mut reporter = Reporter::new(0, 60);
    let regions = [led(5), led(6), led(7)];
    send(&mut reporter, &regions, &Sizes::new());
    reporter.answered(answer(1));
    assert_eq!(ids(&send_changed(&mut reporter, &regions[..1])), [0; 0], "listed, and the same");
    let mut changed = led(6);
    changed.1.term = Term(2);
    assert_eq!(ids(&send_changed(&mut reporter, &[changed.clone()])), [6]);
    reporter.answered(answer(2));
    assert_eq!(ids(&send_changed(&mut reporter, &[])), [6], "no list states it again");
    reporter.answered(answer(4));
    assert_eq!(ids(&send_changed(&mut reporter, &[])), [0; 0]);
    // The leader gives up the region, and leads it again, as it was.
    let mut follower = changed.clone();
    follower.1.is_leading = false;
    assert_eq!(ids(&send_changed(&mut reporter, &[follower])), [0; 0]);
    reporter.answered(answer(6));
    assert_eq!(ids(&send_changed(&mut reporter, &[changed])), [6]);
    reporter.answered(ReportAnswer { all_wanted: true, ..answer(7) });
    let full = send_changed(&mut reporter, &[]);
    assert_eq!((ids(&full), full.is_full), (vec![5, 6, 7], true));
    assert_eq!(full.regions[1].term, Term(2));
    reporter.answered(answer(8));
    reporter.failed();
    assert_eq!(ids(&send_changed(&mut reporter, &[])), [5, 6, 7]);
}

#[test]
fn a_list_of_changes_counts_only_if_it_continues_what_is_known() {
    let mut reporter = Reporter::new(0, 60);
    let mut later = led(5);
    later.1.term = Term(2);
    let first = changes(None, 1, &[led(5), led(6)]);
    let second = changes(Some(1), 2, &[later]);
    let mut term_after = |changes: &Changes| {
        reporter.collect(STORE, changes);
        reporter.failed();
        let report = reporter.report(NodeReport::default(), Vec::new(), &Sizes::new());
        (report.regions[0].term, report.regions.len())
    };
    assert_eq!(term_after(&first), (Term(1), 2));
    assert_eq!(term_after(&second), (Term(2), 2));
    assert_eq!(term_after(&first), (Term(2), 2), "a store that hangs repeats its answer");
    assert_eq!(term_after(&changes(Some(7), 8, &[led(5)])), (Term(2), 2), "it leaves lists out");
    let gone = Changes { gone: vec![RegionId(6)], ..changes(Some(1), 3, &[]) };
    assert_eq!(term_after(&gone), (Term(2), 1));
    let mut restarted = changes(None, 1, &[led(5)]);
    restarted.now.incarnation = 2;
    assert_eq!(term_after(&restarted), (Term(1), 1), "another process");
    reporter.keep_stores(&BTreeSet::new());
    reporter.failed();
    assert!(reporter.report(NodeReport::default(), Vec::new(), &Sizes::new()).regions.is_empty());
}

#[test]
fn a_size_that_was_measured_is_reported_although_the_region_did_not_change() {
    let mut reporter = Reporter::new(0, 60);
    send(&mut reporter, &[led(5), led(6)], &Sizes::new());
    reporter.answered(answer(1));
    let mut splitter = split::Splitter::default();
    let limits = split::Limits { bytes_max: u64::MAX, ops_max: 0 };
    let now = std::time::Duration::ZERO;
    let mut report = |splitter: &mut split::Splitter| {
        reporter.note_sizes(splitter.take_changed());
        let report = reporter.report(NodeReport::default(), Vec::new(), splitter.sizes());
        reporter.answered(answer(report.sequence));
        report.regions.iter().map(|it| (it.region.id.0, it.size_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(report(&mut splitter), []);
    splitter.measured(&led(6).1.region, RangeSize { bytes: 70, keys: 1 }, limits, now);
    assert_eq!(report(&mut splitter), [(6, 70)]);
    splitter.measured(&led(6).1.region, RangeSize { bytes: 70, keys: 1 }, limits, now);
    assert_eq!(report(&mut splitter), []);
    splitter.retain(|_| false);
    assert_eq!(report(&mut splitter), [(6, 0)]);
}

#[test]
fn traffic_is_reported_as_totals_so_that_a_lost_report_loses_none() {
    let (mut reporter, sizes) = (Reporter::new(0, 60), Sizes::new());
    let mut regions = [led(5)];
    let node = NodeReport { started_at: 77, ..NodeReport::default() };
    let mut send = |regions: &[(StoreId, CoreReport)], is_answered: bool| {
        let now = reporter.collected(STORE).number + 1;
        reporter.collect(STORE, &changes(None, now, regions));
        let report = reporter.report(node.clone(), Vec::new(), &sizes);
        if is_answered {
            reporter.answered(answer(report.sequence));
        }
        report.regions.first().map(|region| region.traffic)
    };
    let mut traffic = Traffic { counted_since: 77, ..Traffic::default() };
    assert_eq!(send(&regions, true), Some(traffic));
    assert_eq!(send(&regions, true), None, "an idle region is not reported again");
    regions[0].1.traffic.read_ops = 3;
    regions[0].1.traffic.read_bytes = 3000;
    (traffic.reads, traffic.read_bytes) = (3, 3000);
    assert_eq!(send(&regions, false), Some(traffic));
    regions[0].1.traffic.write_ops = 2;
    regions[0].1.traffic.write_bytes = 200;
    (traffic.writes, traffic.written_bytes) = (2, 200);
    assert_eq!(send(&regions, false), Some(traffic), "the report before got no answer");
    assert_eq!(send(&regions, true), Some(traffic));
    assert_eq!(send(&regions, true), None);
}

#[test]
fn a_size_is_reported_only_for_the_version_that_was_measured() {
    let mut reporter = Reporter::new(0, 60);
    let mut regions = [led(5)];
    let size = |version| Measured { version, size: RangeSize { bytes: 0, keys: 2 } };
    let mut report = |regions: &[_], sizes: &Sizes| {
        let region = send(&mut reporter, regions, sizes).regions.remove(0);
        ((region.size_bytes, region.keys), reporter.has_unmeasured())
    };
    assert_eq!(report(&regions, &Sizes::new()), ((0, 0), true));
    let sizes = Sizes::from([(RegionId(5), size(0))]);
    assert_eq!(report(&regions, &sizes), ((1, 2), false), "an empty region was measured");
    regions[0].1.region.epoch.version = 1;
    assert_eq!(report(&regions, &sizes), ((0, 0), true));
}

#[test]
fn peers_without_a_leader_for_long_are_reported_with_the_epoch_that_they_know() {
    let mut reporter = Reporter::new(0, 60);
    let mut regions = [led(5), led(6)];
    (regions[0].1.leaderless_seconds, regions[1].1.leaderless_seconds) = (59, 60);
    regions[1].1.region.epoch.conf_version = 4;
    let stale = send(&mut reporter, &regions, &Sizes::new()).stale_peers;
    let epoch = RegionEpoch { conf_version: 4, version: 0 };
    let expected = StalePeer { store: STORE, region: RegionId(6), peer: PeerId(6), epoch };
    assert_eq!(stale, [expected]);
    let call = expected.destroy();
    assert_eq!((call.header.region, call.call), (RegionId(6), Admin::Destroy(PeerId(6))));
}

#[test]
fn a_step_runs_once_at_a_time_and_its_refusal_is_reported_until_it_is_answered() {
    let mut reporter = Reporter::new(0, 60);
    let transfer = || step(3, 5, Order::RollbackMerge(Vec::new()));
    send(&mut reporter, &[], &Sizes::new());
    let answer = |sequence| ReportAnswer { steps: vec![transfer()], ..answer(sequence) };
    assert_eq!(reporter.answered(answer(1)).0, [transfer()]);
    assert_eq!(reporter.answered(answer(1)).0, [], "it runs");
    let obstacle = Obstacle { reason: "full".into(), is_final: true };
    let key = StepKey::of(&transfer());
    reporter.ended(key, 0, Err(obstacle));
    let refused =
        Refused { operator: OperatorId(3), step: 0, reason: "full".into(), is_final: true };
    for _ in 0..2 {
        let report = send(&mut reporter, &[], &Sizes::new());
        assert_eq!(report.refusals, std::slice::from_ref(&refused));
    }
    // A refusal that came after the report stays.
    reporter.refuse(Refused { step: 1, ..refused.clone() });
    assert_eq!(reporter.answered(answer(3)).0, [transfer()], "it starts again");
    reporter.ended(key, 0, Ok(()));
    assert_eq!(send(&mut reporter, &[], &Sizes::new()).refusals, [Refused { step: 1, ..refused }]);
}

#[test]
fn a_step_is_carried_out_only_in_the_epoch_that_it_was_made_for() {
    let region = led(5).1.region;
    let prepare = step(3, 5, Order::PrepareMerge(led(6).1.region));
    let steps::Execution::Request(call) = steps::execution(&prepare, Some(&region)).unwrap() else {
        panic!("not a request")
    };
    assert_eq!(call, Admin::PrepareMerge { target: led(6).1.region });
    let request = steps::request(&region, call);
    assert_eq!((request.header.region, request.header.version), (RegionId(5), Some(0)));
    let mut later = region.clone();
    later.epoch.conf_version = 1;
    for known in [None, Some(&later)] {
        let obstacle = steps::execution(&prepare, known).unwrap_err();
        assert!(!obstacle.is_final, "{obstacle:?}");
    }
    let middle = step(3, 5, Order::Split { keys: Vec::new(), new: Vec::new() });
    let split = steps::execution(&middle, Some(&region)).unwrap();
    assert!(matches!(split, steps::Execution::Split { .. }));
    let Admin::Split { new_ids, .. } = steps::split_request(10, &region, vec!["b".into(); 2])
    else {
        panic!("not a split")
    };
    let numbers: Vec<_> = new_ids.iter().map(|new| (new.region.0, new.peers[0].0)).collect();
    assert_eq!(numbers, [(10, 11), (12, 13)]);
}

#[test]
fn only_an_invalid_step_is_refused_permanently_and_an_unknown_outcome_is_no_refusal() {
    let is_final = |reply| steps::outcome(reply).unwrap_err().is_final;
    assert!(is_final(Reply::Refused(Refusal::Invalid("no".into()))));
    assert!(!is_final(Reply::Refused(Refusal::NotLeader { leader: None })));
    assert!(!is_final(Reply::Busy(Busy::Merging)));
    let unknown = Unknown::LeadershipLost;
    assert_eq!(steps::outcome(Reply::Unknown(unknown)), Ok(Some(unknown)));
    let done = stele_replica::Done::Admin { region: Region::default() };
    assert_eq!(steps::outcome(Reply::Done(done)), Ok(None));
}
