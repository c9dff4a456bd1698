//! The model passes its own suite, and the suite catches engines that break a law.

use crate::faulty::{Bug, FaultyFactory};
use stele_conformance as conformance;
use stele_conformance::ModelFactory;

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("STELE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=count).collect(),
    }
}

#[test]
fn model_passes_every_law() {
    assert!(conformance::run(&ModelFactory).unwrap() > 30);
}

#[test]
fn model_passes_random_histories() {
    for seed in seeds(60) {
        conformance::random(&ModelFactory, seed, 150).unwrap();
    }
}

#[test]
fn every_faulty_engine_breaks_a_law() {
    for bug in Bug::ALL {
        let factory = FaultyFactory { bug };
        let failures = conformance::run(&factory).expect_err(&format!("{bug:?} was not caught"));
        assert!(failures.iter().all(|failure| !failure.detail.is_empty()));
    }
}

#[test]
fn random_histories_catch_faults_and_shrink_them() {
    for bug in Bug::ALL.into_iter().filter(|bug| bug.shows_in_histories()) {
        let factory = FaultyFactory { bug };
        let failure = (1..50)
            .find_map(|seed| conformance::random(&factory, seed, 200).err())
            .unwrap_or_else(|| panic!("{bug:?} was not caught"));
        let (_, history) = failure.detail.split_once("shortest history:").unwrap();
        assert!(history.lines().count() < 40, "{bug:?} was not shrunk: {failure}");
        assert!(failure.detail.contains("STELE_SEED="), "{failure}");
    }
}
