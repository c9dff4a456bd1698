//! Random histories of an overlay beside a plain map, and the conformance suite over views with
//! effects laid over them.

mod checks;
mod history;
mod lagging;
mod plain;

use history::History;
use lagging::LaggingFactory;
use stele_conformance as conformance;

/// Reads that the histories compare; `STELE_CASES` changes it.
const CASES: u64 = 1_000_000;

#[test]
fn effects_over_any_view_between_are_the_state_after_the_last_entry() {
    let chosen = std::env::var("STELE_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let cases = std::env::var("STELE_CASES").map_or(CASES, |cases| cases.parse().unwrap());
    let mut seed = chosen.unwrap_or(1);
    let (first, mut compared) = (seed, 0);
    while compared < cases {
        match History::new(seed).and_then(|history| checks::compare(&history, seed)) {
            Ok(reads) => compared += reads,
            Err(detail) => panic!(
                "{detail}\nreplay: STELE_SEED={seed} cargo test -p stele-storage --test all overlay"
            ),
        }
        seed += 1;
        if chosen.is_some() {
            break;
        }
    }
    println!("seeds {first} to {}: {compared} reads compared", seed - 1);
}

#[test]
fn views_with_effects_pass_every_law() {
    assert!(conformance::run(&LaggingFactory).unwrap() > 30);
}

#[test]
fn views_with_effects_pass_random_histories() {
    let seeds = match std::env::var("STELE_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=40).collect(),
    };
    for seed in seeds {
        conformance::random(&LaggingFactory, seed, 150).unwrap();
    }
}
