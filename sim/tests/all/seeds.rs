//! Tests of the simulation: the same seed gives the same run, and violations are found.

use stele_sim::args::replay;
use stele_sim::faults::{Fault, FaultSet};
use stele_sim::plan::{Mode, Plan};
use stele_sim::run::{Outcome, Wanted, run};
use stele_sim::world::Counts;

fn check(plan: &Plan) -> Outcome {
    println!("{}", replay(plan));
    let outcome = run(plan, Wanted::default());
    assert_eq!(outcome.violation, None, "{}\n{}", replay(plan), outcome.tail);
    outcome
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 11] {
        let mut plan = Plan::draw(seed, Mode::Safety);
        plan.faults.insert(Fault::PowerCut);
        plan.faults.insert(Fault::Partition);
        let (one, other) = (check(&plan), check(&plan));
        assert_eq!((one.hash, one.counts), (other.hash, other.counts), "seed {seed}");
    }
}

#[test]
fn other_seeds_are_other_runs() {
    let hash = |seed| run(&Plan::draw(seed, Mode::Safety), Wanted::default()).hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn a_cluster_without_faults_serves_every_operation() {
    let mut plan = Plan::draw(5, Mode::Liveness);
    plan.faults = FaultSet::default();
    let outcome = check(&plan);
    assert!(outcome.counts.ops > 100, "{:?}", outcome.counts);
    assert_eq!((outcome.counts.ambiguous, outcome.counts.failures), (0, 0));
}

#[test]
fn moments_are_completed_and_abandoned_while_faults_happen_and_regions_split() {
    let mut counts = Counts::default();
    for seed in [23, 42, 51, 78] {
        let plan = Plan::draw(seed, Mode::Safety);
        assert!(plan.takes_moments, "seed {seed}");
        counts.add(&check(&plan).counts);
    }
    let Counts { moments, moments_begun, splits, partitions, .. } = counts;
    assert!(moments >= 10 && moments_begun >= moments + 5, "{counts:?}");
    assert!(splits > 0 && partitions > 0, "{counts:?}");
}

/// Each seed has three nodes. The ticks of the first are the shortest: a leader's lease has ended less than
/// the time of a pause ago when it is asked.
#[test]
fn a_moment_that_only_deposed_leaders_answer_is_never_complete() {
    let mut counts = Counts::default();
    for seed in seeds_of_deposed_leaders() {
        counts.add(&check(&Plan::draw(seed, Mode::Safety)).counts);
    }
    assert!(counts.moments_of_deposed >= 3, "{counts:?}");
}

fn seeds_of_deposed_leaders() -> impl Iterator<Item = u64> {
    let is_fit = |seed: &u64| {
        let plan = Plan::draw(*seed, Mode::Safety);
        plan.takes_moments && plan.nodes == 3 && plan.raft.tick_nanos == 20_000_000
    };
    (1..).filter(is_fit).take(3)
}

#[test]
fn seeds_end_without_a_violation() {
    for seed in 100..108 {
        check(&Plan::draw(seed, Mode::Safety));
    }
    for seed in 200..204 {
        check(&Plan::draw(seed, Mode::Liveness));
    }
}

/// The disk of a single voter lost the newest segment of its log.
#[test]
fn a_store_that_is_replaced_before_it_does_anything_leads_nothing() {
    check(&Plan::draw(593_937, Mode::Safety));
}

#[test]
fn a_trace_is_a_file_that_perfetto_reads() {
    let plan = Plan::draw(7, Mode::Safety);
    let outcome = run(&plan, Wanted { trace: true, ..Wanted::default() });
    let trace: serde_json::Value = serde_json::from_str(&outcome.perfetto.unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.len() > 100);
    assert!(events.iter().all(|event| event["ts"].is_number() && event["pid"].is_number()));
}
