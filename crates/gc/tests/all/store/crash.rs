//! Crashes in the middle of jobs (catalogue 51), and resumption.

use crate::store::harness::{Setup, Store, key, value};
use std::path::PathBuf;
use stele_gc::{Forced, GcOptions, Phase, PolicyKind, Scanned, Stage};
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimVfs};
use stele_types::{Error, KeyRange};

const VALUE_BYTES: usize = 2 << 10;

fn setup() -> Setup {
    let gc = GcOptions {
        policy: PolicyKind::Nezha,
        sort_threshold_bytes: 100 << 10,
        value_file_bytes_max: 16 << 10,
        ..Setup::default().gc
    };
    Setup { gc, run_bytes_max: 2 << 10, ..Setup::default() }
}

fn filled() -> Store {
    let mut store = Store::new(setup());
    for i in 0..300u32 {
        let i = i * 37 % 300;
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    for i in (0..300).filter(|i| i % 3 == 0) {
        store.put(&key(i), &value(i, 1, VALUE_BYTES));
    }
    for i in 0..40 {
        store.delete(&key(i * 5));
    }
    store
}

#[test]
fn a_long_sort_goes_on_after_the_last_key() {
    let store = filled();
    for _ in 0..10_000 {
        store.gc.step(4 << 10).unwrap();
        let outputs = store.index.pending_merge().map_or(0, |pending| pending.outputs.len());
        if outputs >= 3 && store.gc.stats().bytes.sort > 100 << 10 {
            break;
        }
    }
    let pending = store.index.pending_merge().expect("a sort is in progress");
    let before = store.gc.stats().bytes.sort;
    let store = store.crash(4);
    store.check();
    let resumed = store.index.pending_merge().expect("the progress is kept");
    assert!(resumed.outputs.len() >= pending.outputs.len());
    store.settle();
    let stats = store.gc.stats();
    assert_eq!((stats.resumed, stats.phase), (1, Phase::Post), "{stats:?}");
    let live: u64 = store.model.values().map(|value| value.len() as u64).sum();
    let again = stats.bytes.sort;
    assert!(again < live, "{again} written again after {before}; {live} in all");
    store.check();
    let places: Vec<_> = store.model.keys().map(|key| store.locator(key).lsn()).collect();
    assert!(places.is_sorted(), "as one sort");
    store.gc.force(Forced::Collect).unwrap();
    store.check_no_leak();
}

#[test]
fn a_merge_whose_inputs_can_not_be_read_any_more_keeps_nothing_waiting() {
    let store = filled();
    let runs = |store: &Store| -> Vec<PathBuf> {
        store.index.version().runs().map(|run| run.path().to_path_buf()).collect()
    };
    let has_outputs = |store: &Store| {
        store.index.pending_merge().is_some_and(|pending| !pending.outputs.is_empty())
    };
    for _ in 0..10_000 {
        store.gc.step(4 << 10).unwrap();
        if has_outputs(&store) {
            break;
        }
    }
    let mut store = store.crash(4);
    assert!(has_outputs(&store), "the progress is kept");
    for path in runs(&store) {
        store.vfs.inject(Fault::FlipBit { path, offset: 10, bit: 3 }).unwrap();
    }
    while store.index.frozen_count() == 0 {
        store.put(&key(1), &value(1, 2, VALUE_BYTES));
    }
    let error = store.gc.step(4 << 10).unwrap_err();
    assert!(error.is_damage(), "{error}");
    let before = runs(&store).len();
    for _ in 0..100 {
        store.gc.step(4 << 10).unwrap();
    }
    assert!(store.index.frozen_count() == 0 && runs(&store).len() > before);
    assert_eq!(store.index.pending_merge(), None);
}

#[test]
fn a_crash_at_any_operation_of_a_round_loses_nothing() {
    crash_at_any_operation(setup(), |store| {
        store.gc.force(Forced::Flush)?;
        store.gc.force(Forced::Collect)?;
        store.gc.force(Forced::SortAll)
    });
}

#[test]
fn a_crash_at_any_operation_of_a_sort_in_parts_loses_nothing() {
    let mut setup = setup();
    setup.gc.policy = PolicyKind::Adaptive;
    setup.gc.value_file_bytes_max = 128 << 10;
    crash_at_any_operation(setup, |store| {
        store.gc.force(Forced::MergeAll)?;
        let bytes = store.model.values().map(|value| value.len() as u64).sum();
        let values = store.model.len() as u64;
        store.gc.note_scan(&KeyRange::all(), Scanned { values, bytes, scattered_reads: values });
        while store.gc.step(4 << 10)?.stage != Stage::Idle {}
        assert!(store.gc.stats().bytes.sort >= bytes, "all is sorted");
        Ok(())
    });
}

/// Runs `round` on a filled store, with a crash at every third operation.
fn crash_at_any_operation(setup: Setup, round: impl Fn(&Store) -> Result<(), Error>) {
    let filled = filled();
    let (disk, model) = (filled.vfs.fork(), filled.model.clone());
    drop(filled);
    let round = |vfs: SimVfs| -> Result<u64, Error> {
        let store = Store::open(vfs, setup.clone(), model.clone())?;
        round(&store)?;
        Ok(store.vfs.operations())
    };
    let first = disk.operations();
    let last = round(disk.fork()).unwrap();
    let mut points = 0;
    for (nth, operation) in (first..last).enumerate().filter(|(nth, _)| nth % 3 == 0) {
        let at = CrashAt::ALL[(nth / 3) % CrashAt::ALL.len()];
        let vfs = disk.fork();
        vfs.crash_at(CrashPoint { operation, at });
        let _ = round(vfs.clone());
        vfs.crash_now();
        let vfs = vfs.restart(operation);
        let store = Store::open(vfs, setup.clone(), model.clone())
            .unwrap_or_else(|error| panic!("{at:?} {operation}: {error}"));
        store.check();
        store.settle();
        store.check();
        store.gc.force(Forced::Collect).unwrap();
        store.check_no_leak();
        points += 1;
    }
    println!("{points} crash points of {}", last - first);
    assert!(points > 50);
}
