//! Runs that are damaged or missing when the index opens, and damaged manifests.

use crate::common::{Model, Op, Rng, Store, apply, contents, get, reference, small_options};
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_index::{
    Direction, Edit, IndexOptions, MergeInputs, MergeSpec, Run, RunItem, inspect_run_items,
};
use stele_simulated_disk::SimVfs;
use stele_types::{Cause, KeyRange, Result, RunId};
use stele_vfs::Vfs;

fn put(key: String, value: u32) -> Op {
    Op::Put { key: key.into_bytes(), value, expires_at_s: 0 }
}

fn key(n: u32) -> String {
    format!("key-{n:05}")
}

/// Returns two tiers, the upper one with deletes and a range that hides keys of the lower one.
fn filled(vfs: &SimVfs) -> (Store, Model) {
    let mut store = Store::open(vfs).unwrap();
    let mut model = Model::new();
    let lower = (0..300).map(|n| put(key(n), 3 * n + 1)).collect::<Vec<_>>();
    let upper = (40..80).map(|n| put(key(n), 3 * n + 2));
    let hides = Op::DeleteRange { start: key(100).into(), end: key(140).into() };
    let upper = upper.chain([hides, Op::Delete { key: key(150).into() }]).collect::<Vec<_>>();
    for ops in [lower, upper] {
        for op in &ops {
            store.apply(op);
            apply(&mut model, op);
        }
        store.publish();
        store.freeze(store.seq as usize);
        assert!(store.flush_one().unwrap());
    }
    // Damage of both copies of the last edit would look like a frame truncated by a crash.
    store.index.edit(Edit::GcState(Bytes::new())).unwrap();
    (store, model)
}

fn tolerant_options() -> IndexOptions {
    IndexOptions { open_damaged_runs: true, ..small_options() }
}

/// Returns options with which the filters and fences of runs are read when they are needed.
fn cold_options() -> IndexOptions {
    IndexOptions { index_memory_bytes_max: 0, ..tolerant_options() }
}

fn path_of(run: RunId) -> PathBuf {
    Path::new(crate::common::DIR).join(format!("{:08x}.run", run.0))
}

fn parts(vfs: &SimVfs, run: RunId) -> Vec<(&'static str, u64, u64)> {
    let mut found = Vec::new();
    inspect_run_items(vfs, &path_of(run), &mut |item| {
        if let RunItem::Footer(_, parts) = item {
            found = parts.into_iter().map(|it| (it.name, it.offset, it.bytes)).collect();
        }
    })
    .unwrap();
    assert_eq!(found.len(), 5);
    found
}

fn flip(vfs: &SimVfs, path: &Path, offset: u64) {
    let byte = vfs.read_file(path).unwrap()[offset as usize];
    vfs.corrupt(path, offset, &[byte ^ 0x20]).unwrap();
}

fn lost(run: &Arc<Run>) -> Vec<KeyRange> {
    run.scrub_blocks(0, u64::MAX).unwrap().lost.into_iter().map(|lost| lost.range).collect()
}

/// Checks that every key has its value, or lies in a lost range and fails. Returns how many fail.
fn check_reads(store: &Store, model: &Model, context: &str) -> usize {
    let version = store.index.version();
    let ranges: Vec<KeyRange> = version.runs().flat_map(lost).collect();
    let view = store.index.view();
    let mut failed = 0;
    for n in 0..310 {
        let key = key(n).into_bytes();
        match get(&view, &key) {
            Ok(found) => assert_eq!(found, model.get(&key).copied(), "{context}: key {n}"),
            Err(error) => {
                assert!(error.is_damage(), "{context}: {error}");
                assert!(ranges.iter().any(|it| it.contains(&key)), "{context}: key {n}");
                failed += 1;
            }
        }
    }
    let mut scans = 0;
    for (from, count) in (0..310).step_by(7).flat_map(|from| [1, 5, 40].map(|count| (from, count)))
    {
        let range = KeyRange::new(key(from), key(from + count));
        let expected: Vec<_> = model
            .iter()
            .filter(|(key, _)| range.contains(key))
            .map(|(k, v)| (k.clone(), *v))
            .collect();
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut expected = expected.clone();
            if direction == Direction::Reverse {
                expected.reverse();
            }
            let is_lost = ranges.iter().any(|lost| lost.overlaps(&range));
            match contents(&view, range.clone(), direction) {
                Ok(found) => assert_eq!(found, expected, "{context}: {range:?}"),
                Err(error) => {
                    assert!(error.is_damage() && is_lost, "{context}: {range:?}: {error}");
                    scans += 1;
                }
            }
        }
    }
    assert!(failed == 0 || scans > 0, "{context}: {scans} scans and {failed} gets fail");
    match store.contents() {
        Ok(found) => assert!(ranges.is_empty() && found == *model, "{context}"),
        Err(error) => assert!(error.is_damage() && !ranges.is_empty(), "{context}: {error}"),
    }
    failed
}

/// Repairs every lost range from the model and rewrites the damaged runs.
fn repair(store: &Store, model: &Model) -> Result<()> {
    let version = store.index.version();
    for run in version.runs() {
        for lost in run.scrub_blocks(0, u64::MAX)?.lost {
            repair_range(store, model, &lost.range)?;
            store.index.mask_blocks(lost.run, &[lost.block]);
        }
    }
    drop(version);
    for id in store.opened.damaged.clone() {
        let version = store.index.version();
        let age = version.runs().find(|run| run.id() == id).unwrap().meta().extra.age;
        drop(version);
        let inputs = MergeInputs::Runs { age, runs: vec![id] };
        store.finish(store.index.start_merge(
            MergeSpec { inputs, cause: Cause::Merge },
            None,
            0,
        )?)?;
    }
    store.index.purge().map(|_| ())
}

fn repair_range(store: &Store, model: &Model, range: &KeyRange) -> Result<()> {
    let mut ingest = store.index.begin_ingest(vec![range.clone()])?;
    for (key, (value, _)) in model.iter().filter(|(key, _)| range.contains(key)) {
        ingest.add(key, reference(*value), 0)?;
    }
    store.index.install(ingest, None)
}

#[test]
fn a_run_of_which_any_part_is_damaged_opens_with_all_that_its_blocks_hold() {
    let vfs = SimVfs::default();
    let (store, model) = filled(&vfs);
    let version = store.index.version();
    let live = version.live().clone();
    let runs: Vec<RunId> = version.runs().map(|run| run.id()).collect();
    drop((version, store));
    assert!(runs.len() > 4, "{runs:?}");
    for run in runs {
        for (name, offset, bytes) in parts(&vfs, run).into_iter().filter(|it| it.2 > 0) {
            for at in [offset, offset + bytes / 2, offset + bytes - 1] {
                let context = format!("byte {at} of run {run}, in its {name}");
                let vfs = vfs.fork();
                flip(&vfs, &path_of(run), at);
                let strict = Store::open(&vfs.fork()).map(|_| ());
                let store = Store::open_with(&vfs, tolerant_options()).unwrap();
                check_reads(&store, &model, &context);
                let is_lost = store.index.version().runs().any(|run| !lost(run).is_empty());
                assert_eq!(is_lost, name == "blocks", "{context}");
                assert_eq!(*store.index.version().live(), live, "{context}");
                if name == "blocks" {
                    assert!(strict.is_ok() && store.opened.damaged.is_empty(), "{context}");
                    continue;
                }
                assert!(strict.is_err_and(|error| error.is_damage()), "{context}");
                assert_eq!(store.opened.damaged, [run], "{context}");
                repair(&store, &model).unwrap();
                store.check_files(&context);
                drop(store);
                let again = Store::open(&vfs).unwrap();
                assert_eq!(again.contents().unwrap(), model, "{context}");
                assert_eq!(*again.index.version().live(), live, "{context}");
            }
        }
    }
}

#[test]
fn a_run_that_is_gone_takes_only_its_own_keys_along_until_they_are_covered() {
    let vfs = SimVfs::default();
    let (store, model) = filled(&vfs);
    let version = store.index.version();
    let live = version.live().clone();
    let runs: Vec<Arc<Run>> = version.runs().cloned().collect();
    drop((version, store));
    let (mut with_ranges, mut failed) = (0, 0);
    for run in runs {
        for (cut, options) in [true, false]
            .into_iter()
            .flat_map(|cut| [(cut, tolerant_options()), (cut, cold_options())])
        {
            let vfs = vfs.fork();
            let path = path_of(run.id());
            let context = format!("run {}, cut {cut}", run.id());
            match cut {
                true => {
                    let bytes = vfs.read_file(&path).unwrap();
                    vfs.write_file(&path, &bytes[..bytes.len() / 3]);
                }
                false => vfs.unlink(&path).unwrap(),
            }
            assert!(Store::open(&vfs.fork()).is_err_and(|error| error.is_damage()), "{context}");
            let store = Store::open_with(&vfs, options).unwrap();
            assert_eq!(store.opened.damaged, [run.id()], "{context}");
            failed += check_reads(&store, &model, &context);
            if !cut {
                let found = store.index.version().runs().find(|it| it.id() == run.id()).cloned();
                let ends = [run.meta().first_key.clone(), run.meta().last_key.clone()];
                let lost = lost(&found.unwrap());
                assert!(lost.len() == 1 && ends.iter().all(|key| lost[0].contains(key)));
            }
            // Its references still count: nothing that it may reference can be removed.
            assert_eq!(*store.index.version().live(), live, "{context}");
            // What it deletes from older tiers stays deleted.
            with_ranges += usize::from(!run.meta().extra.ranges.is_empty());
            repair(&store, &model).unwrap();
            assert_eq!(check_reads(&store, &model, &context), 0, "{context}");
            store.check_files(&context);
            drop(store);
            let again = Store::open(&vfs).unwrap();
            assert_eq!(again.contents().unwrap(), model, "{context}");
            again.check_files(&context);
        }
    }
    assert!(with_ranges == 4 && failed > 100, "{with_ranges} with ranges, {failed} failed reads");
}

#[test]
fn a_range_that_newer_tiers_determine_is_read_without_the_lost_block_and_the_rest_of_it_is_not() {
    let vfs = SimVfs::default();
    let (store, model) = filled(&vfs);
    let run = store.index.version().tiers()[1].runs[0].id();
    drop(store);
    let (name, offset, bytes) = parts(&vfs, run)[0];
    assert_eq!(name, "blocks");
    flip(&vfs, &path_of(run), offset + bytes / 2);
    for options in [tolerant_options(), cold_options()] {
        let vfs = vfs.fork();
        let store = Store::open_with(&vfs, options).unwrap();
        let block = store.index.version().runs().flat_map(lost).next().unwrap();
        let held: Vec<Bytes> = model.keys().cloned().map(Bytes::from).collect();
        let held: Vec<Bytes> = held.into_iter().filter(|key| block.contains(key)).collect();
        let at = |n: usize| held[n * held.len() / 6].clone();
        assert!(held.len() >= 6, "{block:?}");
        let part = |from, to| KeyRange { start: at(from), end: at(to) };
        let parts = [
            KeyRange { start: block.start.clone(), end: at(2) },
            part(3, 4),
            part(2, 3),
            KeyRange { start: at(4), end: block.end.clone() },
        ];
        let mut left = vec![block.clone()];
        for covered in parts {
            repair_range(&store, &model, &covered).unwrap();
            store.index.cover_range(run, &covered);
            left = left.iter().flat_map(|left| left.without(&covered)).collect();
            check_parts(&store, &model, &held, &left);
        }
        assert!(left.is_empty());
        assert_eq!(store.contents().unwrap(), model);
        assert_eq!(store.index.version().runs().flat_map(lost).count(), 1, "it is still damaged");
    }
}

/// Checks that exactly the reads of the ranges `left` fail: scans between any two of the keys that a
/// block held, and gets of these and of absent keys beside them, unless an upper tier or the filter
/// answers.
fn check_parts(store: &Store, model: &Model, held: &[Bytes], left: &[KeyRange]) {
    let view = store.index.view();
    let mut failed = 0;
    for (n, from) in held.iter().enumerate() {
        let absent = [&from[..], b"-"].concat();
        for key in [&from[..], &absent] {
            let is_left = left.iter().any(|left| left.contains(key));
            match get(&view, key) {
                Ok(found) => assert_eq!(found, model.get(key).copied(), "{from:?}"),
                Err(error) => assert!(is_left && error.is_damage(), "{from:?}: {error}"),
            }
        }
        failed += usize::from(get(&view, from).is_err());
        for to in &held[n + 1..] {
            let range = KeyRange { start: from.clone(), end: to.clone() };
            let is_left = left.iter().any(|left| left.overlaps(&range));
            let within = model.iter().filter(|(key, _)| range.contains(key));
            let mut expected: Vec<_> = within.map(|(key, value)| (key.clone(), *value)).collect();
            for direction in [Direction::Forward, Direction::Reverse] {
                match contents(&view, range.clone(), direction) {
                    Ok(found) => assert!(!is_left && found == expected, "{range:?}: {found:?}"),
                    Err(error) => assert!(is_left && error.is_damage(), "{range:?}: {error}"),
                }
                expected.reverse();
            }
        }
    }
    assert_eq!(failed > 0, !left.is_empty());
}

#[test]
fn blocks_behind_one_that_cannot_be_told_from_the_next_are_lost_and_those_before_it_are_not() {
    let vfs = SimVfs::default();
    let (store, model) = filled(&vfs);
    let version = store.index.version();
    let run = version.tiers()[1].runs[0].clone();
    drop((version, store));
    let parts = parts(&vfs, run.id());
    let (_, fences, _) = parts[1];
    let mut blocks = Vec::new();
    inspect_run_items(&vfs, &path_of(run.id()), &mut |item| {
        if let RunItem::Block { offset, .. } = item {
            blocks.push(offset);
        }
    })
    .unwrap();
    assert!(blocks.len() > 2, "{blocks:?}");
    for options in [tolerant_options(), cold_options()] {
        check_unreadable_tails(&vfs, &model, &run, &blocks, fences, &options);
    }
}

/// Damages the fences of a run and one block, for each of `blocks`, which are offsets.
fn check_unreadable_tails(
    vfs: &SimVfs,
    model: &Model,
    run: &Run,
    blocks: &[u64],
    fences: u64,
    options: &IndexOptions,
) {
    let mut before = Bytes::new();
    for block in blocks {
        let vfs = vfs.fork();
        flip(&vfs, &path_of(run.id()), fences + 2);
        flip(&vfs, &path_of(run.id()), block + 9);
        let context = format!("block at {block}");
        let mut store = Store::open_with(&vfs, options.clone()).unwrap();
        check_reads(&store, model, &context);
        if options.index_memory_bytes_max == 0 {
            assert!(store.opened.damaged.is_empty(), "{context}");
            store.opened.damaged = store.index.take_damaged_runs();
        }
        assert_eq!(store.opened.damaged, [run.id()], "{context}");
        let found = store.index.version().runs().find(|it| it.id() == run.id()).cloned().unwrap();
        let lost = lost(&found);
        assert!(lost.len() == 1 && before < lost[0].start, "{context}: {lost:?}");
        assert!(lost[0].contains(&run.meta().last_key), "{context}: {lost:?}");
        before = lost[0].start.clone();
        drop(found);
        repair(&store, model).unwrap();
        assert_eq!(check_reads(&store, model, &context), 0, "{context}");
        store.check_files(&context);
    }
}

#[test]
fn a_cold_run_with_a_damaged_filter_or_fences_is_complete_and_a_rewrite_repairs_it() {
    let vfs = SimVfs::default();
    let (store, model) = filled(&vfs);
    let runs: Vec<RunId> = store.index.version().runs().map(|run| run.id()).collect();
    drop(store);
    for run in runs {
        for (name, offset, bytes) in parts(&vfs, run) {
            if !["fences", "filter"].contains(&name) || bytes == 0 {
                continue;
            }
            let context = format!("{name} of run {run}");
            let vfs = vfs.fork();
            flip(&vfs, &path_of(run), offset + bytes / 2);
            // A store without replicas opens too: the data is complete.
            let options = IndexOptions { open_damaged_runs: false, ..cold_options() };
            let mut store = Store::open_with(&vfs, options).unwrap();
            assert_eq!(check_reads(&store, &model, &context), 0, "{context}");
            store.opened.damaged = store.index.take_damaged_runs();
            assert_eq!(store.opened.damaged, [run], "{context}");
            assert!(store.index.take_damaged_runs().is_empty(), "{context}");
            repair(&store, &model).unwrap();
            store.check_files(&context);
            drop(store);
            assert_eq!(Store::open(&vfs).unwrap().contents().unwrap(), model, "{context}");
        }
    }
}

/// `SEED=n cargo test -p stele-index --test all damage any_flips` replays one seed.
#[test]
fn any_flips_in_runs_and_manifest_cost_no_more_than_reads_until_they_are_repaired() {
    let only = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let vfs = SimVfs::default();
    let (store, model) = filled(&vfs);
    let live = store.index.version().live().clone();
    drop(store);
    let (mut opened, mut refused, mut reads) = (0, 0, 0);
    for seed in only.map_or(1..400u64, |seed| seed..seed + 1) {
        let context = format!("SEED={seed}");
        let (vfs, mut rng) = (vfs.fork(), Rng(seed * 7919));
        let files: Vec<PathBuf> = vfs.paths();
        for _ in 0..1 + rng.below(5) {
            let path = &files[rng.below(files.len() as u64) as usize];
            let at = rng.below(vfs.file_bytes(path).unwrap());
            flip(&vfs, path, at);
        }
        let options = if seed % 3 == 0 { cold_options() } else { tolerant_options() };
        let store = match Store::open_with(&vfs, options) {
            Ok(store) => store,
            Err(error) => {
                // Both copies of an edit are damaged.
                assert!(error.is_damage(), "{context}: {error}");
                refused += 1;
                continue;
            }
        };
        opened += 1;
        reads += check_reads(&store, &model, &context);
        assert_eq!(*store.index.version().live(), live, "{context}");
        let damaged: Vec<RunId> = {
            let version = store.index.version();
            let wants = |run: &&Arc<Run>| {
                run.scrub_blocks(0, u64::MAX)
                    .is_ok_and(|it| it.needs_rewrite || !it.lost.is_empty())
            };
            version.runs().filter(wants).map(|run| run.id()).collect()
        };
        assert!(store.opened.damaged.iter().all(|run| damaged.contains(run)), "{context}");
        let store = Store { opened: stele_index::Opened { damaged, ..store.opened }, ..store };
        repair(&store, &model).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(check_reads(&store, &model, &context), 0, "{context}");
        store.check_files(&context);
        drop(store);
        assert_eq!(Store::open(&vfs).unwrap().contents().unwrap(), model, "{context}");
    }
    println!("{opened} opened, {refused} refused, {reads} reads failed until repaired");
    assert!(only.is_some() || (opened > 20 * refused && reads > 100), "{opened} {refused} {reads}");
}
