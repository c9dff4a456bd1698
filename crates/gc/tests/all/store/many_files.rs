//! A store with as many files as one of several terabytes.

use crate::store::harness::{Setup, Store, key, value};
use std::time::Instant;
use stele_gc::{Forced, GcOptions, Stage};

const FILES: u32 = 16_000;
const VALUE_BYTES: usize = 3_000;
const SLICES: u32 = 1_000;

#[test]
fn an_idle_slice_looks_at_no_file_however_many_there_are() {
    let small = Setup {
        segment_bytes_max: 4 << 10,
        memtable_bytes_max: 64 << 20,
        run_bytes_max: 64 << 20,
        ..Setup::default()
    };
    let mut store = Store::new(small);
    (0..FILES).for_each(|i| store.put(&key(i), &value(i, 0, VALUE_BYTES)));
    store.settle();
    store.gc.force(Forced::Flush).unwrap();
    store.settle();
    let stats = store.gc.stats();
    assert!(stats.files.len() >= FILES as usize, "{}", stats.files.len());
    let began = Instant::now();
    for _ in 0..SLICES {
        assert_eq!(store.gc.step(1 << 20).unwrap().stage, Stage::Idle);
    }
    println!("an idle slice of {} files takes {:?}", stats.files.len(), began.elapsed() / SLICES);
    let idle = store.gc.stats();
    assert_eq!(idle.files_observed, stats.files_observed);
    assert_eq!(idle.files, stats.files);

    // A write to the head changes its size alone.
    store.put(&key(0), &value(0, 1, 100));
    let written = store.gc.stats();
    assert!(written.disk_bytes > idle.disk_bytes);
    assert!(
        written.files_observed <= idle.files_observed + u64::from(FILES) + 100,
        "a roll at most"
    );
}

#[test]
fn a_rewrite_does_not_end_the_pause_after_a_failed_job() {
    let gc = GcOptions { tiers_max: 1, ..Setup::default().gc };
    let mut store = Store::new(Setup { gc, run_bytes_max: 1 << 20, ..Setup::default() });
    for round in 0..3 {
        (0..50).for_each(|i| store.put(&key(100 * round + i), &value(i, round, 200)));
        store.gc.force(Forced::Flush).unwrap();
    }
    let runs: Vec<_> = {
        let version = store.index.version();
        version.runs().map(|run| (run.id(), run.path().to_path_buf())).collect()
    };
    assert!(runs.len() > 1, "{runs:?}");
    let ((newest, _), (oldest, path)) = (&runs[0], &runs[runs.len() - 1]);
    store.vfs.corrupt(path, 40, &[0xee; 4]).unwrap();
    let failed = (0..1_000).find_map(|_| store.gc.step(4 << 10).err());
    assert!(failed.is_some_and(|error| error.is_damage()));
    assert_eq!(store.gc.step(4 << 10).unwrap().stage, Stage::Idle, "it pauses");
    store.gc.force(Forced::Rewrite(*newest)).unwrap();
    assert!(store.index.version().runs().all(|run| run.id() != *newest), "it was rewritten");
    assert_eq!(store.gc.step(4 << 10).unwrap().stage, Stage::Idle, "it pauses still");
    // A rewrite that fails pauses too.
    assert!(store.gc.force(Forced::Rewrite(*oldest)).is_err());
    store.gc.force(Forced::Rewrite(*oldest)).unwrap();
    store.clock.advance_seconds(2);
    assert!(store.gc.force(Forced::Rewrite(*oldest)).is_err());
}
