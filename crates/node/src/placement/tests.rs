use super::*;
use crate::report::Report;
use stele_placement::{Bootstrap, NodeReport, RegionReport, StoreReport, pairs};
use stele_types::{RegionId, StoreId};

const CLUSTER: ClusterId = ClusterId(7);
const NOW: Millis = Millis(1_000);

type Answered = (&'static str, Result<u64, NotDecided<&'static str>>);

fn first_pairs() -> Vec<PairChange> {
    let address = "a:1".to_owned();
    Bootstrap { cluster: CLUSTER, address, capacities_bytes: vec![1 << 30] }.pairs()
}

fn stored() -> Vec<(Bytes, Bytes)> {
    first_pairs().into_iter().filter_map(|pair| Some((pair.key, pair.value?))).collect()
}

/// A leader in term 5 with its state, after the work that its first decision needed.
fn leading() -> PlacementLeader<Answered> {
    let mut leader = PlacementLeader::new(CLUSTER, None);
    leader.lead(Some(Term(5)));
    read(&mut leader, "first");
    assert_eq!(leader.poll(NOW), Some(Work::Load(Term(5))));
    leader.loaded(Term(5), Ok(stored()), NOW, 0);
    assert_eq!(leader.poll(NOW), None);
    assert_eq!(leader.take_answers(), [("first", Ok(3))]);
    leader
}

/// Queues a decision without changes, which reads the setting `replicas`.
fn read(leader: &mut PlacementLeader<Answered>, name: &'static str) {
    leader.decide(
        |cluster, _| Ok((cluster.config().replicas() as u64, Vec::new())),
        move |decided| (name, decided.map(|(value, _)| value)),
    );
}

/// Queues a decision that sets `replicas`; its plan sees the value before.
fn set(leader: &mut PlacementLeader<Answered>, name: &'static str, value: u64) {
    leader.decide(
        move |cluster, _| {
            Ok((cluster.config().replicas() as u64, vec![pairs::setting("replicas", value)]))
        },
        move |decided| (name, decided.map(|(before, _)| before)),
    );
}

fn replicas(leader: &PlacementLeader<Answered>) -> Option<usize> {
    leader.state(leader.term()?).map(|state| state.cluster.config().replicas())
}

fn failed() -> Result<()> {
    Err(Error::Undetermined("the store stopped".into()))
}

#[test]
fn a_decision_is_answered_and_visible_after_its_proposal_is_committed() {
    let mut leader = leading();
    set(&mut leader, "set", 5);
    let changes = vec![pairs::setting("replicas", 5)];
    assert_eq!(leader.poll(NOW), Some(Work::Propose(Term(5), changes)));
    assert_eq!((replicas(&leader), leader.take_answers()), (Some(3), vec![]));
    leader.proposed(Term(4), Ok(()), NOW);
    assert_eq!((replicas(&leader), leader.take_answers()), (Some(3), vec![]), "another proposal");
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!((replicas(&leader), leader.take_answers()), (Some(5), vec![("set", Ok(3))]));
}

#[test]
fn a_decision_whose_proposal_failed_is_not_visible_and_asked_again() {
    let mut leader = leading();
    set(&mut leader, "set", 5);
    assert!(leader.poll(NOW).is_some());
    leader.proposed(Term(5), failed(), NOW);
    let [("set", Err(NotDecided::Retry(reason)))] = &leader.take_answers()[..] else {
        panic!("a lost decision was answered")
    };
    assert!(reason.contains("the store stopped"), "{reason}");
    assert_ne!(replicas(&leader), Some(5));
}

#[test]
fn decisions_wait_in_order_and_each_plan_sees_the_changes_before_it() {
    let mut leader = leading();
    set(&mut leader, "one", 5);
    set(&mut leader, "two", 1);
    read(&mut leader, "read");
    assert!(matches!(leader.poll(NOW), Some(Work::Propose(..))));
    assert_eq!(leader.poll(NOW), None, "one proposal is under way");
    leader.proposed(Term(5), Ok(()), NOW);
    assert!(matches!(leader.poll(NOW), Some(Work::Propose(..))));
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!(leader.poll(NOW), None);
    assert_eq!(leader.take_answers(), [("one", Ok(3)), ("two", Ok(5)), ("read", Ok(1))]);
}

#[test]
fn after_a_failed_proposal_waiting_decisions_fail_and_the_state_is_loaded_again() {
    let mut leader = leading();
    set(&mut leader, "one", 5);
    set(&mut leader, "two", 1);
    assert!(leader.poll(NOW).is_some());
    leader.proposed(Term(5), failed(), NOW);
    let answers = leader.take_answers();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|(_, it)| matches!(it, Err(NotDecided::Retry(_)))), "{answers:?}");
    assert!(leader.state(Term(5)).is_none());
    read(&mut leader, "read");
    assert_eq!(leader.poll(NOW), Some(Work::Load(Term(5))));
    // The proposal was committed after all.
    let mut pairs = stored();
    let change = pairs::setting("replicas", 5);
    pairs.extend(change.value.map(|value| (change.key, value)));
    leader.loaded(Term(5), Ok(pairs), NOW, 0);
    assert_eq!(leader.poll(NOW), None);
    assert_eq!(leader.take_answers(), [("read", Ok(5))]);
}

fn refused() -> Result<()> {
    Err(Error::Busy("the device is full".into()))
}

#[test]
fn after_a_refused_proposal_the_state_stays_and_the_next_decision_goes_on() {
    let mut leader = leading();
    set(&mut leader, "one", 5);
    set(&mut leader, "two", 1);
    assert!(leader.poll(NOW).is_some());
    leader.proposed(Term(5), refused(), NOW);
    let answers = leader.take_answers();
    assert!(matches!(&answers[..], [("one", Err(NotDecided::Retry(_)))]), "{answers:?}");
    assert_eq!(replicas(&leader), Some(3));
    let changes = vec![pairs::setting("replicas", 1)];
    assert_eq!(leader.poll(NOW), Some(Work::Propose(Term(5), changes)));
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!((replicas(&leader), leader.take_answers()), (Some(1), vec![("two", Ok(3))]));
}

#[test]
fn a_region_of_which_the_record_was_refused_is_persisted_later() {
    let mut leader = leading();
    let [_, mut region] = Bootstrap::regions();
    region.epoch.conf_version += 1;
    let record = pairs::region(&region);
    let info =
        RegionReport { leader: region.peers[0], region, term: Term(9), ..RegionReport::default() };
    let state = leader.state_mut(Term(5)).unwrap();
    state.cluster.observe(info, NOW).unwrap();
    for outcome in [refused(), refused(), Ok(())] {
        let is_last = outcome.is_ok();
        leader.tick(0);
        let Some(Work::Propose(_, changes)) = leader.poll(NOW) else { panic!("nothing is due") };
        assert!(changes.contains(&record), "{changes:?}");
        assert!(changes.contains(&pairs::term(RegionId(2), Some(Term(9)))), "{changes:?}");
        leader.proposed(Term(5), outcome, NOW);
        leader.tick(0);
        let next = leader.poll(NOW);
        assert_eq!(next.is_none(), is_last, "{next:?}");
        leader.proposed(Term(5), refused(), NOW);
    }
}

#[test]
fn the_state_of_another_term_is_never_used() {
    let mut leader = leading();
    set(&mut leader, "proposed", 5);
    assert!(leader.poll(NOW).is_some());
    read(&mut leader, "waits");
    leader.lead(Some(Term(7)));
    assert_eq!(leader.take_answers(), [("waits", Err(NotDecided::NotLeader))]);
    assert!(leader.state(Term(5)).is_none() && leader.state(Term(7)).is_none());
    read(&mut leader, "read");
    assert_eq!(leader.poll(NOW), None, "the outcome of the proposal is not known yet");
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!(leader.take_answers(), [("proposed", Err(NotDecided::NotLeader))]);
    assert_eq!(leader.poll(NOW), Some(Work::Load(Term(7))));
    // Pairs that were requested in an earlier term are not used either.
    leader.lead(Some(Term(8)));
    leader.loaded(Term(7), Ok(stored()), NOW, 0);
    assert!(leader.state(Term(8)).is_none());
}

#[test]
fn a_node_that_does_not_lead_decides_nothing() {
    let mut leader = leading();
    leader.lead(None);
    assert!(leader.state(Term(5)).is_none());
    set(&mut leader, "set", 5);
    leader.tick(0);
    assert_eq!(leader.poll(NOW), None);
    assert_eq!(leader.take_answers(), [("set", Err(NotDecided::NotLeader))]);
}

#[test]
fn only_the_node_that_bootstrapped_the_cluster_writes_the_first_pairs() {
    for bootstrap in [None, Some(first_pairs())] {
        let bootstraps = bootstrap.is_some();
        let mut leader = PlacementLeader::new(CLUSTER, bootstrap);
        leader.lead(Some(Term(2)));
        read(&mut leader, "read");
        assert_eq!(leader.poll(NOW), Some(Work::Load(Term(2))));
        leader.loaded(Term(2), Ok(Vec::new()), NOW, 0);
        let work = leader.poll(NOW);
        if !bootstraps {
            assert_eq!(work, None);
            assert!(matches!(leader.take_answers()[..], [("read", Err(NotDecided::Retry(_)))]));
            continue;
        }
        assert_eq!(work, Some(Work::Propose(Term(2), first_pairs())));
        leader.proposed(Term(2), Ok(()), NOW);
        assert_eq!(leader.poll(NOW), Some(Work::Load(Term(2))), "the state is always loaded");
        leader.loaded(Term(2), Ok(stored()), NOW, 0);
        assert_eq!(leader.poll(NOW), None);
        assert_eq!(leader.take_answers(), [("read", Ok(3))]);
    }
}

#[test]
fn a_bootstrap_that_fails_is_repeated_and_the_state_of_another_cluster_is_refused() {
    let mut leader = PlacementLeader::new(ClusterId(8), Some(first_pairs()));
    leader.lead(Some(Term(2)));
    read(&mut leader, "one");
    assert!(leader.poll(NOW).is_some());
    leader.loaded(Term(2), Ok(Vec::new()), NOW, 0);
    assert!(leader.poll(NOW).is_some());
    leader.proposed(Term(2), failed(), NOW);
    read(&mut leader, "two");
    assert_eq!(leader.poll(NOW), Some(Work::Load(Term(2))));
    leader.loaded(Term(2), Ok(stored()), NOW, 0);
    let texts: Vec<String> = leader.take_answers().iter().map(|it| format!("{it:?}")).collect();
    assert_eq!(texts.len(), 2);
    assert!(texts[0].contains("the store stopped"), "{texts:?}");
    assert!(texts[1].contains("belongs to cluster"), "{texts:?}");
}

#[test]
fn the_decisions_that_wait_are_bounded() {
    let mut leader = leading();
    for _ in 0..DECISIONS_MAX {
        read(&mut leader, "waits");
    }
    assert!(leader.take_answers().is_empty());
    read(&mut leader, "too many");
    assert!(matches!(leader.take_answers()[..], [("too many", Err(NotDecided::Retry(_)))]));
    assert_eq!(leader.poll(NOW), None);
    assert_eq!(leader.take_answers().len(), DECISIONS_MAX);
}

#[test]
fn the_periodic_work_is_queued_once_and_reserves_ids() {
    let mut leader = leading();
    set(&mut leader, "set", 5);
    leader.tick(0);
    leader.tick(0);
    assert!(leader.poll(NOW).is_some());
    leader.proposed(Term(5), Ok(()), NOW);
    let Some(Work::Propose(_, changes)) = leader.poll(NOW) else { panic!("no ids are reserved") };
    assert!(changes.iter().any(|change| change.key == pairs::ids(1).key), "{changes:?}");
    leader.tick(0);
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!(leader.poll(NOW), None, "the periodic work was queued once");
    assert!(leader.state(Term(5)).is_some_and(|state| state.cluster.ids_reserved() >= 64));
}

#[test]
fn a_report_waits_only_for_the_changes_that_it_needs() {
    let mut leader = leading();
    let report = |address: &str, store| Report {
        node: NodeReport { address: address.into(), ..NodeReport::default() },
        sequence: 1,
        stores: vec![StoreReport {
            id: StoreId(store),
            capacity_bytes: 1 << 30,
            ..StoreReport::default()
        }],
        is_full: true,
        ..Report::default()
    };
    let send = |leader: &mut PlacementLeader<Answered>, name, report| {
        leader.report(report, NOW, move |accepted| {
            let refused = |error| match error {
                NotDecided::Refused(_) => NotDecided::Refused("refused"),
                NotDecided::NotLeader => NotDecided::NotLeader,
                NotDecided::Retry(text) => NotDecided::Retry(text),
            };
            (name, accepted.map(|it| it.answer.term.0).map_err(refused))
        });
    };
    set(&mut leader, "set", 5);
    assert!(leader.poll(NOW).is_some());
    send(&mut leader, "at once", report("a:1", 1));
    send(&mut leader, "unknown store", report("a:1", 9));
    send(&mut leader, "moved", report("b:1", 1));
    let expected = [("at once", Ok(5)), ("unknown store", Err(NotDecided::Refused("refused")))];
    assert_eq!(leader.take_answers(), expected);
    leader.proposed(Term(5), Ok(()), NOW);
    assert!(matches!(leader.poll(NOW), Some(Work::Propose(..))), "the address is persisted");
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!(leader.take_answers(), [("set", Ok(3)), ("moved", Ok(5))]);
    let address =
        |state: &LeaderState| state.cluster.store(StoreId(1)).map(|it| it.address.clone());
    assert_eq!(leader.state(Term(5)).and_then(address).as_deref(), Some("b:1"));
}

#[test]
fn stores_that_join_get_the_same_ids_for_the_same_tokens() {
    let mut leader = leading();
    for name in ["one", "two"] {
        let store = stele_placement::NewStore {
            token: Bytes::from_static(b"t"),
            capacity_bytes: 1,
            ..Default::default()
        };
        leader.join(("b:1".into(), None), vec![store], NOW, move |joined| {
            let id = joined.map(|(ids, _)| ids[0].0);
            (name, id.map_err(|_| NotDecided::NotLeader))
        });
    }
    assert!(matches!(leader.poll(NOW), Some(Work::Propose(..))));
    leader.proposed(Term(5), Ok(()), NOW);
    assert_eq!(leader.poll(NOW), None, "the second join changes nothing");
    assert_eq!(leader.take_answers(), [("one", Ok(2)), ("two", Ok(2))]);
}

#[test]
fn a_decision_has_no_deadline_after_which_its_fate_would_be_unknown_in_the_same_term() {
    let changes = [stele_placement::pairs::setting("replicas", 5)];
    let write = super::proposal(Term(7), &changes).unwrap();
    assert_eq!((write.header.term, write.header.deadline_nanos), (7, 0));
}

#[test]
fn a_node_changes_nothing_of_the_stores_of_another_one() {
    let mut leader = leading();
    let named = |name: &str, store: u64| {
        let name = Some(name.to_owned());
        let node = NodeReport { name, address: "a:1".into(), ..NodeReport::default() };
        let stores = vec![StoreReport { id: StoreId(store), ..StoreReport::default() }];
        Report { node, stores, sequence: 1, ..Report::default() }
    };
    let second = stele_placement::Store { id: StoreId(2), ..Default::default() };
    let owners = [pairs::owner(StoreId(1), "n1"), pairs::store(&second)];
    leader.state_mut(Term(5)).unwrap().apply(&owners).unwrap();
    let led = leader.state(Term(5)).unwrap().cluster.regions().iter().next().unwrap().clone();
    let region = RegionReport {
        region: led.region.clone(),
        leader: led.region.peers[0],
        term: Term(900),
        ..RegionReport::default()
    };
    for (name, is_taken) in [("n2", false), ("n1", true)] {
        let store = if is_taken { 1 } else { 2 };
        let report = Report { regions: vec![region.clone()], ..named(name, store) };
        leader.report(report, NOW, |answer| {
            ("reported", answer.map(|_| 0).map_err(|_| NotDecided::NotLeader))
        });
        while let Some(work) = leader.poll(NOW) {
            let Work::Propose(term, _) = work else { panic!("{work:?}") };
            leader.proposed(term, Ok(()), NOW);
        }
        let state = leader.state(Term(5)).unwrap();
        let found = state.cluster.regions().get(region.region.id).unwrap();
        assert_eq!(found.term == Term(900), is_taken, "{name}");
    }
}
