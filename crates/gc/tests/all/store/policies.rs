//! Phases, sorting and its triggers; no policy loses values.

use crate::store::harness::{Random, Setup, Store, key, value};
use std::collections::BTreeSet;
use stele_gc::{Forced, GcOptions, Phase, PolicyKind, Scanned, Stage};
use stele_log::FileKind;
use stele_types::KeyRange;
use stele_vfs::Vfs;

const VALUE_BYTES: usize = 2 << 10;

fn with(change: impl FnOnce(&mut GcOptions)) -> Setup {
    let mut setup = Setup::default();
    change(&mut setup.gc);
    setup
}

#[test]
fn nezha_goes_through_its_phases_and_reads_are_right_in_each() {
    let mut store = Store::new(with(|gc| {
        gc.policy = PolicyKind::Nezha;
        gc.sort_threshold_bytes = 300 << 10;
    }));
    let mut phases = vec![store.gc.stats().phase];
    for i in 0..400u32 {
        store.put(&key(i * 7 % 200), &value(i * 7 % 200, i, VALUE_BYTES));
        store.gc.step(1 << 10).unwrap();
        let phase = store.gc.stats().phase;
        if phases.last() != Some(&phase) {
            phases.push(phase);
        }
        if i % 20 == 0 {
            store.check();
        }
    }
    store.settle();
    store.check();
    assert_eq!(phases[0], Phase::Pre);
    assert!(phases.contains(&Phase::During), "{phases:?}");
    let stats = store.gc.stats();
    assert_eq!(stats.phase, Phase::Post, "{stats:?}");
    assert!(stats.bytes.sort > 0 && stats.bytes.relocate == 0);
}

#[test]
fn settings_that_are_replaced_count_for_the_next_choice() {
    let mut store = Store::new(with(|gc| gc.policy = PolicyKind::Wisckey));
    let put = |store: &mut Store, version: u32| {
        for i in 0..150u32 {
            store.put(&key(i * 7 % 150), &value(i * 7 % 150, version, VALUE_BYTES));
        }
        store.settle();
    };
    put(&mut store, 0);
    assert_eq!(store.gc.stats().bytes.sort, 0, "this policy never sorts");
    let mut options = store.setup.gc.clone();
    options.space_amp_target = 0.5;
    assert!(store.gc.set_options(options.clone()).is_err());
    (options.policy, options.sort_threshold_bytes) = (PolicyKind::Nezha, 100 << 10);
    options.space_amp_target = GcOptions::default().space_amp_target;
    put(&mut store, 1);
    assert_eq!(store.gc.stats().bytes.sort, 0, "settings that are refused change nothing");
    store.gc.set_options(options).unwrap();
    put(&mut store, 2);
    assert!(store.gc.stats().bytes.sort > 0, "{:?}", store.gc.stats());
    store.check();
}

#[test]
fn sorted_values_lie_in_key_order() {
    let mut store = Store::new(Setup::default());
    for i in 0..150u32 {
        let i = i * 37 % 150;
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    store.gc.force(Forced::SortAll).unwrap();
    store.check();
    let places: Vec<_> = (0..150).map(|i| store.locator(&key(i)).lsn()).collect();
    assert!(places.is_sorted());
    assert_eq!(store.gc.stats().phase, Phase::Post);
    let sorted = store.gc.stats().bytes.sort;
    store.gc.force(Forced::SortAll).unwrap();
    assert_eq!(store.gc.stats().bytes.sort, sorted, "what is sorted is left alone");
}

#[test]
fn scans_pay_for_sorting_the_range_they_read() {
    let mut store = Store::new(Setup { run_bytes_max: 2 << 10, ..Setup::default() });
    for i in 0..600u32 {
        let i = i * 37 % 600;
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    store.gc.force(Forced::MergeAll).unwrap();
    let range = KeyRange::new(key(100), key(150));
    let bytes = 50 * VALUE_BYTES as u64;
    let in_order = Scanned { values: 50, bytes, scattered_reads: 0 };
    for _ in 0..9 {
        store.gc.note_scan(&range, in_order);
    }
    // Half of its values are adjacent: two scans pay twice the bytes.
    let scattered = Scanned { scattered_reads: 25, ..in_order };
    for scans in 1..=2 {
        store.settle();
        assert_eq!(store.gc.stats().bytes.sort, 0, "before scan {scans}");
        store.gc.note_scan(&range, scattered);
    }
    store.settle();
    let sorted = store.gc.stats().bytes.sort;
    assert!(sorted >= bytes && sorted < 2 * bytes, "{sorted}");
    let places: Vec<_> = (100..150).map(|i| store.locator(&key(i)).lsn()).collect();
    assert!(places.is_sorted());
    store.check();
}

#[test]
fn a_sort_that_scans_paid_for_is_done_in_parts_each_in_order_when_it_is_done() {
    let (values, bytes) = (600, 600 * VALUE_BYTES as u64);
    let mut store = Store::new(with(|gc| gc.value_file_bytes_max = 256 << 10));
    for i in 0..values {
        let i = i * 37 % values;
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    store.gc.force(Forced::MergeAll).unwrap();
    let scanned = Scanned { values: u64::from(values), bytes, scattered_reads: u64::from(values) };
    store.gc.note_scan(&KeyRange::all(), scanned);
    let in_order = |store: &Store| {
        let files = store.log.files().into_iter().filter(|info| info.kind == FileKind::Sorted);
        let files: BTreeSet<_> = files.map(|info| info.file).collect();
        let places: Vec<_> = (0..values).map(|i| store.locator(&key(i))).collect();
        let sorted = places.iter().filter(|at| files.contains(&at.file)).count();
        let (parts, rest) = places.split_at(sorted);
        assert!(parts.is_sorted_by_key(|at| at.lsn()), "from the first key on");
        assert!(rest.iter().all(|at| !files.contains(&at.file)));
        sorted
    };
    let mut parts = vec![0];
    while store.gc.step(4 << 10).unwrap().stage != Stage::Idle {
        let sorted = in_order(&store);
        if parts.last() != Some(&sorted) {
            parts.push(sorted);
            store.check();
        }
        let is_between = sorted > 0 && sorted < values as usize;
        assert!(!is_between || store.gc.stats().phase == Phase::During);
    }
    assert_eq!(parts.last(), Some(&(values as usize)));
    assert!((6..=12).contains(&parts.len()), "of half a value file, a quarter of a run: {parts:?}");
    let sorted = store.gc.stats().bytes.sort;
    assert!(sorted < bytes * 11 / 10, "{sorted} bytes: each value once");
    assert_eq!(store.gc.stats().phase, Phase::Post);
}

#[test]
fn a_sort_ends_when_what_is_left_of_it_was_deleted() {
    let mut store = Store::new(with(|gc| gc.value_file_bytes_max = 256 << 10));
    let fill = |store: &mut Store| {
        for i in 0..600 {
            let i = i * 37 % 600;
            store.put(&key(i), &value(i, 0, VALUE_BYTES));
        }
        store.gc.force(Forced::MergeAll).unwrap();
        let bytes = 600 * VALUE_BYTES as u64;
        let scanned = Scanned { values: 600, bytes, scattered_reads: 600 };
        store.gc.note_scan(&KeyRange::all(), scanned);
    };
    fill(&mut store);
    while store.gc.stats().bytes.sort < 300 << 10 {
        store.gc.step(4 << 10).unwrap();
    }
    assert_eq!(store.gc.stats().phase, Phase::During);
    store.delete_range(b"", b"");
    store.gc.force(Forced::MergeAll).unwrap();
    store.settle();
    assert_eq!(store.gc.stats().phase, Phase::Pre, "nothing is left to sort");
    let before = store.gc.stats().bytes.sort;
    fill(&mut store);
    store.settle();
    assert!(store.gc.stats().bytes.sort >= before + (600 << 10), "the next one is complete");
    store.check();
}

#[test]
fn a_step_of_a_sort_reads_a_part_of_what_moves() {
    const STEP_BYTES: u64 = 16 << 10;
    let setup = with(|gc| gc.value_file_bytes_max = 8 << 20);
    let mut store = Store::new(Setup { segment_bytes_max: 8 << 20, ..setup });
    let (values, bytes) = (2000, 1 << 10);
    for i in 0..values {
        let i = i * 37 % values;
        store.put(&key(i), &value(i, 0, bytes));
    }
    store.gc.force(Forced::MergeAll).unwrap();
    let bytes = u64::from(values) * bytes as u64;
    let all = Scanned { values: u64::from(values), bytes, scattered_reads: u64::from(values) };
    store.gc.note_scan(&KeyRange::all(), all);
    let mut steps = Vec::new();
    loop {
        let before = store.vfs.meter().snapshot();
        if store.gc.step(STEP_BYTES).unwrap().stage == Stage::Idle {
            break;
        }
        steps.push(store.vfs.meter().snapshot().since(&before).read_bytes);
    }
    assert!(store.gc.stats().bytes.sort >= bytes, "all is sorted");
    let most = steps.iter().max().unwrap();
    assert!(*most <= 16 * STEP_BYTES, "a step read {most} of {bytes} bytes");
    store.check();
}

/// Updates each sixth key from `first` on, `times` times, and flushes.
fn update_each_sixth(store: &mut Store, first: u32, times: u32) {
    for _ in 0..times {
        (first..600).step_by(6).for_each(|i| store.put(&key(i), &value(i, first, VALUE_BYTES)));
        store.gc.force(Forced::MergeAll).unwrap();
    }
}

/// Scans everything often enough to pay for any sort. Returns the bytes that the sort moves.
fn sort_by_scans(store: &mut Store) -> u64 {
    let before = store.gc.stats().bytes.sort;
    let bytes = 600 * VALUE_BYTES as u64;
    let scanned = Scanned { values: 600, bytes, scattered_reads: 600 };
    (0..9).for_each(|_| store.gc.note_scan(&KeyRange::all(), scanned));
    store.settle();
    store.gc.stats().bytes.sort - before
}

fn in_random_order() -> Store {
    let mut store = Store::new(with(|gc| gc.value_file_bytes_max = 8 << 20));
    (0..600).map(|i| i * 37 % 600).for_each(|i| store.put(&key(i), &value(i, 9, VALUE_BYTES)));
    store.gc.force(Forced::MergeAll).unwrap();
    store
}

#[test]
fn values_in_key_order_stay_until_a_scan_meets_more_than_four_sorted_files() {
    let (mut store, bytes) = (in_random_order(), 600 * VALUE_BYTES as u64);
    assert!(sort_by_scans(&mut store) >= bytes);
    for first in 0..4 {
        update_each_sixth(&mut store, first, 1);
        let moved = sort_by_scans(&mut store);
        let few = bytes / 8..=bytes / 4;
        assert!(few.contains(&moved), "{moved} of {bytes} bytes for the values of {first}");
    }
    // What users write pays for a sort of everything.
    update_each_sixth(&mut store, 4, 30);
    let moved = sort_by_scans(&mut store);
    assert!(moved >= bytes, "{moved} of {bytes} bytes: a scan meets five sorted files");
    let places: Vec<_> = (0..600).map(|i| store.locator(&key(i)).lsn()).collect();
    assert!(places.is_sorted());
    store.check();
}

#[test]
fn scans_and_updates_cause_sorts_of_half_a_byte_a_byte_written() {
    let mut store = in_random_order();
    for round in 0..30 {
        update_each_sixth(&mut store, round % 6, 1);
        sort_by_scans(&mut store);
        let stats = store.gc.stats();
        let bytes_max = stats.live_bytes + stats.user_bytes / 2;
        assert!(stats.bytes.sort <= bytes_max, "{} of {bytes_max}", stats.bytes.sort);
    }
    assert!(store.gc.stats().bytes.sort >= store.gc.stats().user_bytes / 4, "it does sort");
    store.check();
}

#[test]
fn the_schedule_sorts() {
    let mut store = Store::new(with(|gc| gc.sort_interval_s = 3600));
    for i in 0..100 {
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    store.gc.force(Forced::Flush).unwrap();
    store.settle();
    let first = store.gc.stats().bytes.sort;
    store.settle();
    assert_eq!(store.gc.stats().bytes.sort, first, "once for each interval");
    for i in 0..100 {
        store.put(&key(i), &value(i, 1, VALUE_BYTES));
    }
    store.gc.force(Forced::Flush).unwrap();
    store.clock.advance_seconds(3601);
    store.settle();
    assert!(store.gc.stats().bytes.sort > first);
    store.check();
}

#[test]
fn an_idle_store_merges_its_tiers() {
    let mut store = Store::new(with(|gc| (gc.merge_idle_s, gc.discover_bytes_min) = (5, 1 << 40)));
    for round in 0..3 {
        for i in 0..100 {
            store.put(&key(100 * round + i), &value(i, round, VALUE_BYTES));
        }
        store.gc.force(Forced::Flush).unwrap();
        store.clock.advance_seconds(4);
        store.settle();
    }
    assert_eq!(store.gc.stats().tiers, 3, "each write restarts the idle time");
    store.clock.advance_seconds(1);
    store.settle();
    assert_eq!(store.gc.stats().tiers, 1);
    store.check();
}

#[test]
fn random_operations_lose_nothing_under_any_policy() {
    for (seed, policy) in [PolicyKind::Adaptive, PolicyKind::Nezha, PolicyKind::Wisckey]
        .into_iter()
        .cycle()
        .take(6)
        .enumerate()
    {
        let mut random = Random::new("random_operations", 100 + seed as u64);
        let mut store = Store::new(with(|gc| {
            gc.policy = policy;
            gc.sort_threshold_bytes = 200 << 10;
            gc.space_amp_target = 1.1 + random.below(10) as f64 / 10.0;
            gc.space_amp_hard = gc.space_amp_target + 0.2;
            gc.tiers_max = 1 + random.below(6) as usize;
        }));
        let scanned = Scanned { values: 20, bytes: 100_000, scattered_reads: 19 };
        for round in 0..600 {
            let i = random.below(150) as u32;
            let bytes = [0, 10, 100, 3000, 9000][random.below(5) as usize];
            match random.below(40) {
                0 => store.delete_range(&key(i), &key(i + 5)),
                1..=4 => store.delete(&key(i)),
                5 => store.gc.note_scan(&KeyRange::new(key(i), key(i + 20)), scanned),
                6 => store.clock.advance_seconds(100),
                7 if random.below(5) == 0 => store = store.crash(u64::from(round)),
                _ => store.put(&key(i), &value(i, round, bytes)),
            }
            for _ in 0..random.below(4) {
                store.gc.step(random.below(20_000)).unwrap();
            }
        }
        store.check();
        store.settle();
        store.check();
        for job in [Forced::Flush, Forced::MergeAll, Forced::Collect, Forced::SortAll] {
            store.gc.force(job).unwrap();
            store.check();
        }
        store.check_no_leak();
        let store = store.crash(seed as u64);
        store.check();
    }
}

#[test]
fn a_step_without_work_is_idle() {
    let store = Store::new(Setup::default());
    assert_eq!(store.gc.step(1).unwrap().stage, Stage::Idle);
    assert_eq!(store.gc.stats().phase, Phase::Pre);
    for job in [Forced::Flush, Forced::MergeAll, Forced::Collect, Forced::SortAll] {
        store.gc.force(job).unwrap();
    }
}
