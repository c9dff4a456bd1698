//! The policies run against a synthetic store of hundreds of segments: the bytes they write and the
//! space they leave, for the workloads of the amplification budget. Prints its statistics:
//! `cargo test -p stele-gc --test all simulator -- --nocapture`.

mod model;
mod workload;

use model::{Model, Shape, Statistics};
use stele_gc::{GcOptions, PolicyKind};
use workload::{Keys, Workload};

const VALUE_16K: Shape = Shape { keys: 1 << 15, record_bytes: 16 << 10, segment_records: 128 };
const VALUE_1K: Shape = Shape { keys: 1 << 16, record_bytes: 1 << 10, segment_records: 256 };

fn run(name: &str, shape: Shape, policy: PolicyKind, keys: Keys, rounds: f64) -> Statistics {
    run_with(name, shape, GcOptions { policy, ..GcOptions::default() }, keys, rounds)
}

fn run_with(name: &str, shape: Shape, base: GcOptions, keys: Keys, rounds: f64) -> Statistics {
    let (live_bytes, policy) = (shape.keys as u64 * shape.record_bytes, base.policy);
    let options = GcOptions {
        discover_bytes_min: live_bytes / 64,
        value_file_bytes_max: shape.segment_records as u64 * shape.record_bytes,
        sort_threshold_bytes: live_bytes * 2 / 5,
        ..base
    };
    let mut model = Model::new(shape, options);
    let mut workload = Workload::new(keys, shape.keys, 7);
    let updates = (rounds * shape.keys as f64) as usize;
    let stats = model.run(&mut workload, updates);
    println!(
        "{name:<22} {policy:<9} write-amp {:.3} (settled half {:.3}): log {:.3} flush {:.3} merge \
         {:.3} relocate {:.3} sort {:.3}; space-amp now {:.3} worst {:.3} peak {:.3}",
        stats.write_amp,
        stats.write_amp_late,
        stats.log,
        stats.flush,
        stats.merge,
        stats.relocate,
        stats.sort,
        stats.space_amp,
        stats.space_amp_worst,
        stats.space_amp_peak,
        policy = format!("{policy:?}"),
    );
    stats
}

#[test]
fn adaptive_keeps_the_amplification_budget() {
    for (name, keys, rounds, write_amp_max) in [
        ("insert-only 16 KiB", Keys::None, 0.0, 1.05),
        ("uniform 16 KiB", Keys::Uniform, 6.0, 1.30),
        ("90/10 16 KiB", Keys::Hot { share: 0.1, of_updates: 0.9 }, 6.0, 1.30),
        ("zipf 0.99 16 KiB", Keys::Zipf { theta: 0.99 }, 6.0, 1.40),
    ] {
        let stats = run(name, VALUE_16K, PolicyKind::Adaptive, keys, rounds);
        assert!(stats.write_amp <= write_amp_max, "{name}: {stats:?}");
        assert!(stats.space_amp <= 2.0, "{name}: {stats:?}");
        assert!(stats.space_amp_worst <= 2.05, "{name}: {stats:?}");
    }
}

#[test]
fn small_values_keep_the_budget_too() {
    let stats = run("insert-only 1 KiB", VALUE_1K, PolicyKind::Adaptive, Keys::None, 0.0);
    assert!(stats.write_amp <= 1.15, "{stats:?}");
    let stats = run("uniform 1 KiB", VALUE_1K, PolicyKind::Adaptive, Keys::Uniform, 4.0);
    assert!(stats.space_amp <= 2.5, "{stats:?}");
    assert!(stats.write_amp <= 1.6, "{stats:?}");
}

#[test]
fn a_small_store_with_slack_moves_nothing_and_stays_within_it() {
    let live_bytes = VALUE_16K.keys as u64 * VALUE_16K.record_bytes;
    let base = GcOptions { space_slack_bytes: 12 * live_bytes, ..GcOptions::default() };
    let stats = run_with("slack 12x live", VALUE_16K, base, Keys::Uniform, 60.0);
    assert!(stats.relocate < 0.001, "{stats:?}");
    assert!(stats.write_amp <= 1.02, "{stats:?}");
    assert!(stats.space_amp_peak <= 13.1, "{stats:?}");
}

#[test]
fn the_other_policies_for_comparison() {
    let uniform = |policy| run("uniform 16 KiB", VALUE_16K, policy, Keys::Uniform, 6.0);
    let adaptive = uniform(PolicyKind::Adaptive);
    let nezha = uniform(PolicyKind::Nezha);
    let wisckey = uniform(PolicyKind::Wisckey);
    run("insert-only 16 KiB", VALUE_16K, PolicyKind::Nezha, Keys::None, 0.0);
    assert!(nezha.write_amp > 1.5 * adaptive.write_amp, "{nezha:?}");
    assert_eq!(wisckey.sort, 0.0);
    assert!(wisckey.write_amp <= 1.5, "{wisckey:?}");
}
