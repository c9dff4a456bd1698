//! Tests of the harness: it finds planted faults, minimises them, and passes correct decoders.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;
use stele_fuzz::fuzz::{Finding, Limits, Report, fuzz};
use stele_fuzz::{Bound, Target, targets};

const SMALL: Bound = Bound { bytes: 4096, per_byte: 16 };

fn run(target: &Target, runs: u64) -> Report {
    fuzz(target, &Limits { runs, time: Duration::from_secs(60), seed: 1 }, |_| {})
}

fn target(run: fn(&[u8])) -> Target {
    let seeds = || vec![vec![7; 40], b"length\x05\0\0\0after".to_vec()];
    Target { name: "planted", run, seeds, fix_checksums: None, bound: SMALL }
}

#[test]
fn a_planted_panic_is_found_and_made_small() {
    let panics = target(|input| assert!(!input.contains(&0xff), "planted"));
    let (input, finding) = run(&panics, 100_000).failed.unwrap();
    assert_eq!(input, [0xff]);
    assert!(matches!(finding, Finding::Panic(what) if what.contains("planted")));
}

#[test]
fn a_length_that_is_believed_is_found() {
    let believes = target(|input| {
        if let Some(length) = input.get(6..).and_then(|rest| rest.first_chunk()) {
            let length = u32::from_le_bytes(*length) as usize % (1 << 30);
            std::hint::black_box(vec![0u8; length]);
        }
    });
    let (input, finding) = run(&believes, 100_000).failed.unwrap();
    assert!(matches!(finding, Finding::Memory(held, bound) if held > bound), "{finding}");
    assert!(input.len() <= 12, "{input:?}");
}

#[test]
fn a_panic_that_a_runtime_catches_is_found_too() {
    let caught = target(|_| {
        let _ = std::panic::catch_unwind(|| panic!("inside a task"));
    });
    assert!(run(&caught, 10).failed.is_some());
}

#[test]
fn a_sound_decoder_is_left_alone() {
    let sound = target(|input| drop(input.to_vec()));
    let report = run(&sound, 5_000);
    assert!(report.failed.is_none() && report.runs == 5_000);
}

#[test]
fn the_same_seed_gives_the_same_inputs() {
    let inputs = |seed| {
        let mut seen = Vec::new();
        let limits = Limits { runs: 200, time: Duration::from_secs(60), seed };
        fuzz(&target(|_| {}), &limits, |input| seen.push(input.to_vec()));
        seen
    };
    assert_eq!(inputs(3), inputs(3));
    assert_ne!(inputs(3), inputs(4));
}

#[test]
fn names_of_targets_are_unique_and_every_seed_holds() {
    for (at, target) in targets::ALL.iter().enumerate() {
        assert!(targets::ALL.iter().skip(at + 1).all(|other| other.name != target.name));
        assert!(!(target.seeds)().is_empty(), "{}", target.name);
        let seeds = (target.seeds)().len() as u64;
        let report = run(target, seeds);
        assert!(report.failed.is_none(), "{}: {:?}", target.name, report.failed);
    }
}
