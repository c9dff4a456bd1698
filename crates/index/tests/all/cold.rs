//! An index with a limit for the memory of filters and fences.

use crate::common::{Model, Op, Store, apply, contents, get};
use stele_index::{Direction, IndexOptions, MergeInputs, MergeSpec};
use stele_simulated_disk::SimVfs;
use stele_types::{Cause, KeyRange};
use stele_vfs::Vfs;

const KEYS: u32 = 20_000;
/// Filter and fences of a tier of a quarter of the keys take more than half of this.
const LIMIT: usize = 20_000;
/// Memory of a run besides filter and fences, or with the table of their pages.
const RUN_BYTES: u64 = 2 << 10;

fn key(n: u32) -> Vec<u8> {
    format!("user{n:08}").into_bytes()
}

fn options(index_memory_bytes_max: usize, block_cache_bytes_max: usize) -> IndexOptions {
    IndexOptions {
        block_bytes: 512,
        block_cache_bytes_max,
        index_memory_bytes_max,
        ..IndexOptions::default()
    }
}

fn put(n: u32, value: u32) -> Op {
    Op::Put { key: key(n), value, expires_at_s: 0 }
}

fn flush(store: &mut Store, model: &mut Model, ops: impl Iterator<Item = Op>) {
    for op in ops {
        store.apply(&op);
        apply(model, &op);
    }
    store.publish();
    store.freeze(store.seq as usize);
    assert!(store.flush_one().unwrap());
}

/// Writes four tiers: each has a quarter of the keys, and overwrites or deletes some older ones.
fn fill(store: &mut Store) -> Model {
    let mut model = Model::new();
    for tier in 0..4 {
        let own = (0..KEYS).filter(|n| n % 4 == tier).map(|n| put(n, 3 * n + 1));
        let overwritten =
            (0..KEYS).step_by(97).filter(|n| n % 4 < tier).map(|n| put(n, 3 * n + tier));
        let deleted = (0..KEYS).step_by(89).filter(|n| n % 4 < tier);
        let deleted = deleted.map(|n| Op::Delete { key: key(n) });
        flush(store, &mut model, own.chain(overwritten).chain(deleted));
    }
    model
}

fn check(store: &Store, model: &Model) {
    let view = store.index.view();
    for n in 0..KEYS + 500 {
        assert_eq!(get(&view, &key(n)).unwrap(), model.get(&key(n)).copied(), "{n}");
        let absent = [&key(n)[..], b"x"].concat();
        assert_eq!(get(&view, &absent).unwrap(), None, "{n}");
    }
    for range in [KeyRange::all(), KeyRange::new(key(700), key(950))] {
        let expected: Vec<_> = model
            .iter()
            .filter(|(key, _)| range.contains(key))
            .map(|(k, v)| (k.clone(), *v))
            .collect();
        let mut back = contents(&view, range.clone(), Direction::Reverse).unwrap();
        back.reverse();
        assert!(
            contents(&view, range, Direction::Forward).unwrap() == expected && back == expected
        );
    }
}

/// Returns the cold reads of gets of some keys of a tier, which no other tier has.
fn cold_reads_of(store: &Store, tier: u32) -> u64 {
    let before = store.index.cold_reads().0;
    for n in (0..KEYS).filter(|n| n % 4 == tier && n % 97 != 0 && n % 89 != 0).step_by(50) {
        assert!(store.index.get(&key(n)).unwrap().is_some(), "{n}");
    }
    store.index.cold_reads().0 - before
}

fn merge_all(store: &Store) {
    let spec = MergeSpec { inputs: MergeInputs::Tiers(store.ages()), cause: Cause::Merge };
    store.finish(store.index.start_merge(spec, None, 0).unwrap()).unwrap();
    store.index.purge().unwrap();
}

#[test]
fn every_limit_gives_the_same_answers_and_is_kept() {
    for cache_bytes in [0, 1 << 20] {
        for limit in [usize::MAX, LIMIT, 0] {
            let vfs = SimVfs::default();
            let mut store = Store::open_with(&vfs, options(limit, cache_bytes)).unwrap();
            let model = fill(&mut store);
            for is_reopened in [false, true] {
                if is_reopened {
                    drop(store);
                    store = Store::open_with(&vfs, options(limit, cache_bytes)).unwrap();
                }
                check(&store, &model);
                let bytes = store.index.index_memory_bytes();
                let runs = store.index.version().runs().count() as u64;
                let all = bytes > 30_000;
                assert_eq!(all, limit == usize::MAX, "{bytes}");
                assert!(bytes <= (limit as u64).saturating_add(runs * RUN_BYTES), "{bytes}");
                assert_eq!(store.index.cold_reads().0 > 0, limit != usize::MAX);
            }
            merge_all(&store);
            check(&store, &model);
            store.check_files("after the merge");
        }
    }
}

#[test]
fn the_newest_runs_are_pinned_and_older_ones_make_room() {
    let vfs = SimVfs::default();
    let mut store = Store::open_with(&vfs, options(LIMIT, 0)).unwrap();
    let (mut model, mut newest) = (Model::new(), Vec::new());
    for tier in 0..4 {
        let own = (0..KEYS).filter(|n| n % 4 == tier).map(|n| put(n, n));
        flush(&mut store, &mut model, own);
        newest.push(cold_reads_of(&store, tier));
    }
    assert_eq!(newest, [0; 4], "a flushed run is pinned");
    assert!(cold_reads_of(&store, 0) > 0, "an older one is not");
    drop(store);
    let store = Store::open_with(&vfs, options(LIMIT, 0)).unwrap();
    assert_eq!(cold_reads_of(&store, 3), 0, "opening pins the newest run");
    assert!(cold_reads_of(&store, 0) > 0);
}

#[test]
fn cold_runs_are_pinned_once_memory_is_free() {
    let vfs = SimVfs::default();
    let mut store = Store::open_with(&vfs, options(LIMIT, 0)).unwrap();
    let mut model = fill(&mut store);
    assert!(cold_reads_of(&store, 0) > 0);
    let held = store.index.view();
    let all = Op::DeleteRange { start: key(0), end: key(KEYS / 4 * 3) };
    flush(&mut store, &mut model, std::iter::once(all));
    merge_all(&store);
    let cold_reads = || {
        let before = store.index.cold_reads().0;
        for n in (KEYS / 4 * 3..KEYS).step_by(50) {
            assert_eq!(get(&store.index.view(), &key(n)).unwrap(), model.get(&key(n)).copied());
        }
        store.index.cold_reads().0 - before
    };
    assert!(cold_reads() > 0, "a view of the earlier runs has the memory");
    drop(held);
    store.index.purge().unwrap();
    assert_eq!(cold_reads(), 0, "what is left fits");
    assert!(store.index.index_memory_bytes() <= LIMIT as u64 + RUN_BYTES);
}

#[test]
fn opening_with_a_limit_reads_the_pinned_parts_and_footers_only() {
    let vfs = SimVfs::default();
    let mut store = Store::open_with(&vfs, options(usize::MAX, 0)).unwrap();
    let model = fill(&mut store);
    drop(store);
    let opened = |limit: usize| {
        let before = vfs.meter().snapshot().read_bytes;
        let store = Store::open_with(&vfs, options(limit, 0)).unwrap();
        (vfs.meter().snapshot().read_bytes - before, store.index.index_memory_bytes(), store)
    };
    let (all, all_memory, store) = opened(usize::MAX);
    drop(store);
    let (some, some_memory, store) = opened(LIMIT);
    drop(store);
    let (none, none_memory, store) = opened(0);
    assert!(none < some && some < all, "{none} {some} {all}");
    assert!(all - none >= 4 * 5000, "{none} {all}");
    assert!(none_memory < 4 * 1024 && some_memory < all_memory, "{none_memory} {some_memory}");
    assert_eq!(store.index.cold_reads(), (0, 0));
    check(&store, &model);
}

#[test]
fn an_estimate_of_a_cold_index_equals_that_of_a_pinned_one() {
    let vfs = SimVfs::default();
    let mut store = Store::open_with(&vfs, options(usize::MAX, 0)).unwrap();
    fill(&mut store);
    drop(store);
    let estimates = [usize::MAX, LIMIT, 0].map(|limit| {
        let store = Store::open_with(&vfs, options(limit, 0)).unwrap();
        let view = store.index.view();
        let range = KeyRange::new(key(100), key(KEYS - 100));
        (view.estimate(&range).unwrap(), view.middle(&range).unwrap())
    });
    assert!(estimates.iter().all(|it| *it == estimates[0]), "{estimates:?}");
}
