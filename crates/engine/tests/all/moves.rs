//! Key ranges that are installed, dropped and moved between regions, interrupted by a crash at
//! every operation, and again in the recovery that follows.

use crate::common::{DIR, Model, clock, disk, leaked_of, tiny};
use std::path::Path;
use std::sync::Arc;
use stele_engine::{
    EngineView, Ingest, KeyRange, LogStore, Pair, Replay, Result, ScanOptions, Snapshots,
    StateMachine, Store,
};
use stele_simulated_disk::{CrashAt, CrashPoint, SimVfs};
use stele_types::{
    CommandBuilder, EntryRecord, HardState, LogBatch, LogIndex, Mark, Record, RegionId, Term,
};

/// Source of the merge. Its number is above that of the region that takes over its keys, so that a
/// replay in order of regions would be wrong.
const SOURCE: u64 = 5;
const TARGET: u64 = 3;
const NEW_REGION: u64 = 7;
const SEED: u64 = 0x30e5;

#[derive(Clone, Debug)]
enum Step {
    Commit(u64, u64, Vec<(&'static str, Option<u8>)>),
    /// Appends entries that are never committed.
    Append(u64, std::ops::Range<u64>),
    Begin(Vec<(&'static str, &'static str)>),
    Receive(Vec<(&'static str, u8)>),
    Abort,
    Install((u64, u64)),
    Drop(Vec<(&'static str, &'static str)>),
    Destroy(u64),
    Maintain,
    Compact,
}

fn workload() -> Vec<Step> {
    use Step::*;
    vec![
        Commit(SOURCE, 1, vec![("k", Some(1)), ("l", Some(2))]),
        Commit(TARGET, 1, vec![("a", Some(3)), ("b", Some(4))]),
        Commit(SOURCE, 2, vec![("k", Some(5)), ("k2", Some(6))]),
        Begin(vec![("m", "m5"), ("n", "o"), ("x", "")]),
        Receive(vec![("m1", 7), ("n1", 8)]),
        Commit(TARGET, 2, vec![("c", Some(9)), ("b", None)]),
        Receive(vec![("n2", 10), ("x", 11), ("y", 12)]),
        Maintain,
        // A merge: from here on the target has the source's keys.
        Commit(TARGET, 3, vec![("k", Some(13)), ("l", None)]),
        Destroy(SOURCE),
        Commit(TARGET, 4, vec![("k2", Some(14))]),
        Install((40, 3)),
        Commit(NEW_REGION, 41, vec![("n2", Some(15)), ("y", None), ("z", Some(16))]),
        Append(NEW_REGION, 42..46),
        Begin(vec![("m", "m5"), ("n", "o"), ("x", "")]),
        Receive(vec![("n1", 17), ("x", 18)]),
        // Its log holds this index in another term.
        Install((43, 5)),
        Compact,
        Drop(vec![("a", "b"), ("n", "o")]),
        Destroy(NEW_REGION),
        Begin(vec![("n", "o")]),
        Receive(vec![("n7", 19)]),
        Maintain,
        // A region that returns.
        Install((50, 6)),
        Begin(vec![("n", "o")]),
        Receive(vec![("n8", 20)]),
        Abort,
        Commit(NEW_REGION, 51, vec![("n7", Some(21))]),
        Compact,
    ]
}

/// Returns a value longer than those that the index holds inline.
fn value(number: u8) -> Vec<u8> {
    vec![number; 200]
}

fn ranges(ends: &[(&'static str, &'static str)]) -> Vec<KeyRange> {
    ends.iter().map(|(start, end)| KeyRange::new(*start, *end)).collect()
}

#[derive(Clone, Debug, Default, PartialEq)]
struct State {
    pairs: Model,
    ingest: (Vec<KeyRange>, Model),
    /// End of the log of the arriving region.
    new_region: Option<(u64, u64)>,
}

fn after(state: &State, step: &Step) -> State {
    let mut next = state.clone();
    let remove = |pairs: &mut Model, range: &KeyRange| pairs.retain(|key, _| !range.contains(key));
    match step {
        Step::Commit(region, index, writes) => {
            for (key, number) in writes {
                match number {
                    Some(number) => next.pairs.insert(key.as_bytes().to_vec(), value(*number)),
                    None => next.pairs.remove(key.as_bytes()),
                };
            }
            if *region == NEW_REGION {
                next.new_region = Some((*index, 9));
            }
        }
        Step::Append(_, indexes) => next.new_region = Some((indexes.end - 1, 9)),
        Step::Begin(ends) => next.ingest = (ranges(ends), Model::new()),
        Step::Receive(pairs) => {
            let pairs = pairs.iter().map(|(key, n)| (key.as_bytes().to_vec(), value(*n)));
            next.ingest.1.extend(pairs);
        }
        Step::Abort => next.ingest = Default::default(),
        Step::Install(at) => {
            let (ranges, pairs) = std::mem::take(&mut next.ingest);
            ranges.iter().for_each(|range| remove(&mut next.pairs, range));
            next.pairs.extend(pairs);
            next.new_region = Some(*at);
        }
        Step::Drop(ends) => {
            ranges(ends).iter().for_each(|range| remove(&mut next.pairs, range));
        }
        Step::Destroy(NEW_REGION) => next.new_region = None,
        Step::Destroy(_) | Step::Maintain | Step::Compact => {}
    }
    next
}

fn entry(region: u64, index: u64, writes: &[(&str, Option<u8>)]) -> Record {
    let mut command = CommandBuilder::new();
    for (key, number) in writes {
        match number {
            Some(number) => command.put(key.as_bytes(), &value(*number), 0).unwrap(),
            None => command.delete(key.as_bytes()).unwrap(),
        };
    }
    Record::Entry(EntryRecord {
        region: RegionId(region),
        term: Term(9),
        index: LogIndex(index),
        is_command: true,
        payload: command.build().bytes().clone(),
    })
}

fn execute(store: &Store, ingest: &mut Option<Ingest>, step: &Step) -> Result<()> {
    match step {
        Step::Commit(region, index, writes) => {
            let (id, index) = (RegionId(*region), LogIndex(*index));
            let state = HardState { term: Term(9), vote: 1, commit: index };
            let records = vec![entry(*region, index.0, writes), Record::HardState(id, state)];
            store.append(&LogBatch { records })?;
            store.apply(id, &store.entries(id, index, index.next(), usize::MAX)?)
        }
        Step::Append(region, indexes) => {
            let records = indexes.clone().map(|index| entry(*region, index, &[("n9", Some(99))]));
            store.append(&LogBatch { records: records.collect() }).map(|_| ())
        }
        Step::Begin(ends) => {
            *ingest = Some(store.begin_ingest(ranges(ends))?);
            Ok(())
        }
        Step::Receive(pairs) => {
            let pair = |(key, number): &(&'static str, u8)| Pair {
                key: (*key).into(),
                value: value(*number).into(),
                expires_at_s: 0,
            };
            let pairs = pairs.iter().map(pair).collect();
            store.receive(ingest.as_mut().expect("begun"), pairs)
        }
        Step::Abort => {
            *ingest = None;
            Ok(())
        }
        Step::Install((index, term)) => {
            let ingest = ingest.take().expect("begun");
            store.install(RegionId(NEW_REGION), (LogIndex(*index), Term(*term)), ingest)
        }
        Step::Drop(ends) => store.drop_ranges(&ranges(ends)),
        Step::Destroy(region) => {
            let records = vec![Record::Mark(RegionId(*region), Mark::Destroy)];
            store.append(&LogBatch { records }).map(|_| ())
        }
        Step::Maintain => store.maintain(8 << 10).map(|_| ()),
        Step::Compact => store.compact(),
    }
}

fn open(disk: &SimVfs) -> Result<Store> {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), tiny(), Replay::Committed).map(|(store, _)| store)
}

/// Runs until the crash; returns the states before and after the interrupted step.
fn run(disk: &SimVfs) -> (State, State) {
    let mut state = State::default();
    let Ok(store) = open(disk) else { return (state.clone(), state) };
    let mut ingest = None;
    for step in workload() {
        let next = after(&state, &step);
        if let Err(error) = execute(&store, &mut ingest, &step) {
            assert!(disk.crashed(), "{step:?} failed without a crash: {error}");
            return (state, next);
        }
        state = next;
    }
    (state.clone(), state)
}

fn contents(store: &Store) -> Model {
    let pairs = store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 1000)).unwrap();
    pairs.into_iter().map(|pair| (pair.key.to_vec(), pair.value.to_vec())).collect()
}

fn check(store: &Store, allowed: &(State, State), place: &str) {
    let found = contents(store);
    let keys = |pairs: &Model| {
        let text = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            format!("{}={}", String::from_utf8_lossy(key), value[0])
        };
        pairs.iter().map(text).collect::<Vec<_>>()
    };
    let fits = |state: &State| found == state.pairs && log_fits(store, state);
    assert!(
        fits(&allowed.0) || fits(&allowed.1),
        "{place}: found {:?} and {:?}, wanted {:?} and {:?}, or {:?} and {:?}",
        keys(&found),
        store.progress(RegionId(NEW_REGION)),
        keys(&allowed.0.pairs),
        allowed.0.new_region,
        keys(&allowed.1.pairs),
        allowed.1.new_region,
    );
    for region in [SOURCE, TARGET, NEW_REGION] {
        let Some(progress) = store.progress(RegionId(region)).filter(|p| !p.destroyed) else {
            continue;
        };
        assert!(progress.truncated.0 <= progress.checkpointed, "{place}: {progress:?}");
        assert!(progress.checkpointed <= progress.applied, "{place}: {progress:?}");
        assert!(progress.applied <= progress.persisted.0, "{place}: {progress:?}");
    }
}

/// Whether the log of the arriving region ends where it should. A region that leaves or returns may
/// exist with an empty log in between.
fn log_fits(store: &Store, state: &State) -> bool {
    let Some(progress) = store.progress(RegionId(NEW_REGION)) else {
        return state.new_region.is_none();
    };
    let is_empty = progress.truncated == progress.persisted;
    match state.new_region {
        Some((index, term)) => {
            !progress.destroyed && progress.persisted == (LogIndex(index), Term(term))
        }
        None => progress.destroyed || is_empty,
    }
}

/// Opens the store after a crash; returns the operations that took.
fn recover(disk: &SimVfs, allowed: &(State, State), place: &str) -> u64 {
    let store = open(disk).unwrap_or_else(|error| panic!("{place}: open failed: {error}"));
    check(&store, allowed, place);
    disk.operations()
}

/// Checks that background work changes nothing and leaves no leftover, and that every checksum
/// holds.
fn check_clean(disk: &SimVfs, allowed: &(State, State), place: &str) {
    let store = open(disk).unwrap();
    store.compact().unwrap_or_else(|error| panic!("{place}: compact failed: {error}"));
    check(&store, allowed, place);
    let leaks = leaked_of(disk, &store, &tiny());
    assert!(leaks.is_empty(), "{place}: leaked {leaks:?}");
    let report = store.verify(&mut |_| {}).unwrap();
    assert_eq!(report.damages, 0, "{place}");
}

fn points(operations: u64) -> impl Iterator<Item = CrashPoint> {
    let places = [CrashAt::Before, CrashAt::Inside, CrashAt::After];
    (0..operations).flat_map(move |operation| places.map(|at| CrashPoint { operation, at }))
}

#[test]
fn every_crash_while_ranges_move_leaves_one_side_of_the_step() {
    let whole = disk(SEED);
    let end = run(&whole);
    assert!(!whole.crashed());
    check_clean(&whole.restart(0), &end, "without a crash");
    let mut checked = 0;
    for point in points(whole.operations()) {
        let place = format!("crash {:?} operation {}", point.at, point.operation);
        let disk = disk(SEED);
        disk.crash_at(point);
        let allowed = run(&disk);
        let left = disk.restart(SEED ^ point.operation);
        let operations = recover(&left.restart(0), &allowed, &place);
        for again in points(operations).step_by(5) {
            let place = format!("{place}, then {:?} operation {}", again.at, again.operation);
            let second = left.restart(0);
            second.crash_at(again);
            drop(open(&second));
            recover(&second.restart(again.operation), &allowed, &place);
            checked += 1;
        }
        check_clean(&left, &allowed, &place);
        checked += 1;
    }
    println!("{} operations, {checked} recoveries, all recovered", whole.operations());
}
