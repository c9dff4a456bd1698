//! Values that cannot be read, until another replica's copy replaces them.

mod scrub;

use crate::common::{DIR, disk, mark, tiny};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stele_engine::{
    EngineView, Error, KeyRange, LogStore, Options, Order, Pair, Repair, Replay, ScanOptions,
    StateMachine, Store,
};
use stele_index::{Live, RunItem, inspect_run_items};
use stele_simulated_disk::{CrashAt, CrashPoint, Fault, SimVfs};
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, FileId, HardState, LogBatch, LogIndex,
    ManualClock, Mark, Record, RegionId, Term, ValueRef, checksum::crc32c,
};
use stele_vfs::Vfs;

const REGION: RegionId = RegionId(7);
const KEYS: u64 = 40;

fn value_of(key: u64) -> Vec<u8> {
    vec![key as u8 + 1; 300 + key as usize]
}

fn key_of(key: u64) -> Bytes {
    Bytes::from(format!("key-{key:03}"))
}

struct Opened {
    store: Store,
    clock: Arc<ManualClock>,
    index: u64,
    damaged_runs: usize,
    rebuilt: Option<String>,
}

fn open(disk: &SimVfs, options: Options) -> Opened {
    let (vfs, clock) = (Arc::new(disk.clone()), Arc::new(ManualClock::at(1_000_000)));
    let (store, opened) =
        Store::open(vfs, clock.clone(), Path::new(DIR), options, Replay::Committed).unwrap();
    let index = store.progress(REGION).map_or(0, |progress| progress.applied.0);
    let (damaged_runs, rebuilt) = (opened.damaged_runs, opened.rebuilt);
    Opened { store, clock, index, damaged_runs, rebuilt }
}

impl Opened {
    fn put(&mut self, key: u64, value: &[u8]) {
        let mut command = CommandBuilder::new();
        command.put(&key_of(key), value, 0).unwrap();
        let payload = command.build().bytes().clone();
        self.index += 1;
        let (index, term, is_command) = (LogIndex(self.index), Term(1), true);
        let (region, whole) = (REGION, payload.clone());
        let entry = EntryRecord { region, term, index, is_command, payload };
        let hard_state = HardState { term, vote: 0, commit: index };
        let mut records = vec![Record::Entry(entry), Record::HardState(REGION, hard_state)];
        if self.index == 1 {
            records.insert(0, Record::Mark(REGION, Mark::Start(LogIndex(0), Term(0))));
        }
        self.store.append(&LogBatch { records }).unwrap();
        let entry = CommittedEntry { term, index, is_command, payload: whole };
        self.store.apply(REGION, &[entry]).unwrap();
    }

    fn get(&self, key: u64) -> stele_engine::Result<Option<Bytes>> {
        Ok(self.store.view()?.get(&key_of(key))?.map(|pair| pair.value))
    }

    fn maintain(&self) {
        for _ in 0..3 {
            self.store.maintain(1 << 20).unwrap();
        }
    }

    fn place(&self, disk: &SimVfs, key: u64) -> (std::path::PathBuf, u64) {
        let found = self.store.index().get(&key_of(key)).unwrap();
        let Some(stele_index::Found::Value { value: ValueRef::At(at), .. }) = found else {
            panic!("key {key} has no value in a file");
        };
        let name = format!("{:08x}.", at.file.0);
        let is_home = |path: &std::path::PathBuf| {
            let file = path.file_name().unwrap().to_string_lossy().into_owned();
            file == format!("{name}seg") || file == format!("{name}val")
        };
        (disk.paths().into_iter().find(is_home).unwrap(), u64::from(at.offset))
    }

    fn damage(&self, disk: &SimVfs, key: u64) {
        let (path, offset) = self.place(disk, key);
        disk.inject(Fault::FlipBit { path, offset: offset + key, bit: (key % 8) as u8 }).unwrap();
    }
}

fn filled(disk: &SimVfs, options: Options) -> Opened {
    let mut opened = open(disk, options);
    for key in 0..KEYS {
        opened.put(key, &value_of(key));
    }
    // Values in sorted files: damage to the newest segment prevents a store from opening.
    opened.store.compact().unwrap();
    opened
}

fn is_right(opened: &Opened) {
    let pairs =
        opened.store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 1000)).unwrap();
    assert_eq!(pairs.len() as u64, KEYS);
    for (key, pair) in pairs.iter().enumerate() {
        assert_eq!(pair.value, value_of(key as u64), "key {key}");
    }
}

// Catalogue: 13.
#[test]
fn a_value_that_cannot_be_read_is_replaced_by_its_copy_and_by_nothing_else() {
    let disk = disk(1);
    let opened = filled(&disk, tiny());
    opened.damage(&disk, 3);
    assert!(matches!(opened.get(3), Err(Error::Corrupt { .. })));
    opened.maintain();
    let lost = opened.store.lost_values(10);
    let expected = (key_of(3), value_of(3).len() as u32, crc32c(&value_of(3)));
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].key.clone(), lost[0].length, lost[0].crc), expected);

    let mut other = value_of(3);
    other[7] ^= 1;
    opened.store.repair_value(&key_of(3), other.into());
    opened.maintain();
    assert!(matches!(opened.get(3), Err(Error::Corrupt { .. })), "a wrong copy is not accepted");

    opened.store.repair_value(&key_of(3), value_of(3).into());
    opened.maintain();
    is_right(&opened);
    assert!(!opened.store.has_lost());
    let stats = opened.store.repair_stats();
    assert_eq!((stats.lost, stats.found, stats.repaired), (0, 1, 1));
    drop(opened);
    is_right(&open(&disk.restart(5), tiny()));
}

#[test]
fn a_repair_and_a_flush_that_wait_for_each_others_locks_both_end() {
    let (done, ended) = channel();
    let test = std::thread::spawn(move || {
        let disk = disk(9);
        let mut opened = filled(&disk, tiny());
        opened.damage(&disk, 3);
        assert!(opened.get(3).is_err());
        opened.maintain();
        opened.store.repair_value(&key_of(3), value_of(3).into());
        // A later write, so that the flush has something to freeze. Its lock is taken before that of
        // the state machine, which the repair holds while it writes the manifest.
        opened.put(100, b"another key");
        opened.store.flush().unwrap();
        let (reached, stalled) = channel();
        let (go, going) = channel::<()>();
        let going = Mutex::new(going);
        disk.on_stall(move |_| {
            reached.send(()).unwrap();
            going.lock().unwrap().recv().unwrap();
        });
        disk.inject(Fault::Stall { path_contains: "manifest".into(), nth: 1 }).unwrap();
        let store = &opened.store;
        std::thread::scope(|scope| {
            let repair = scope.spawn(|| store.maintain(1 << 20).unwrap());
            stalled.recv().unwrap();
            let flush = scope.spawn(|| store.flush().unwrap());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!repair.is_finished() && !flush.is_finished());
            go.send(()).unwrap();
            repair.join().unwrap();
            flush.join().unwrap();
        });
        assert_eq!(opened.get(3).unwrap().unwrap(), value_of(3));
        assert!(!opened.store.has_lost());
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(30));
    assert!(ended.is_ok() || test.is_finished(), "two threads wait for each other");
    test.join().unwrap();
}

#[test]
fn a_later_write_is_not_replaced_by_a_copy_of_what_it_replaced() {
    let disk = disk(2);
    let mut opened = filled(&disk, tiny());
    opened.damage(&disk, 5);
    assert!(opened.get(5).is_err());
    opened.maintain();
    assert_eq!(opened.store.lost_values(10).len(), 1);
    opened.store.repair_value(&key_of(5), value_of(5).into());
    // The copy has arrived, and the key is written before maintenance writes the copy.
    opened.put(5, b"a later value, longer than what is kept in the index: 64 bytes or more");
    let later = opened.get(5).unwrap();
    assert!(opened.store.has_lost(), "until the next slice of maintenance");
    opened.maintain();
    assert_eq!(opened.get(5).unwrap(), later);
    assert!(!opened.store.has_lost());
}

#[test]
fn a_read_that_failed_once_is_no_damage() {
    let disk = disk(3);
    let opened = filled(&disk, tiny());
    disk.inject(Fault::ReadFails { path_contains: "/log/".into(), nth: 1 }).unwrap();
    assert!(opened.get(4).is_err());
    assert!(opened.store.has_lost());
    opened.maintain();
    assert!(!opened.store.has_lost());
    is_right(&opened);
}

#[test]
fn a_crash_while_copies_are_written_leaves_the_lost_value_or_the_copy() {
    let prepared = disk(4);
    let opened = filled(&prepared, tiny());
    [2, 9, 30].iter().for_each(|key| opened.damage(&prepared, *key));
    drop(opened);
    let repair = |opened: &Opened| {
        let _ = opened.store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 99));
        let _ = opened.store.maintain(1 << 20);
        for lost in opened.store.lost_values(10) {
            let key = (0..KEYS).find(|key| key_of(*key) == lost.key).unwrap();
            opened.store.repair_value(&lost.key, value_of(key).into());
        }
        let _ = opened.store.maintain(1 << 20);
    };
    let whole = prepared.fork();
    let opened = open(&whole, tiny());
    let before = whole.operations();
    repair(&opened);
    is_right(&opened);
    let operations = before..whole.operations();
    drop(opened);
    let (mut old, mut new) = (0, 0);
    for (operation, at) in operations.flat_map(|it| CrashAt::ALL.map(|at| (it, at))) {
        let disk = prepared.fork();
        let opened = open(&disk, tiny());
        disk.crash_at(CrashPoint { operation, at });
        // Reads fail after the power cut.
        let found = opened.store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 99));
        assert!(found.is_err());
        repair(&opened);
        drop(opened);
        let disk = disk.restart(operation);
        let opened = open(&disk, tiny());
        let lost = [2, 9, 30].iter().filter(|key| opened.get(**key).is_err()).count();
        match lost {
            0 => new += 1,
            3 => old += 1,
            _ => panic!("{lost} of three after a crash at {operation}"),
        }
        repair(&opened);
        is_right(&opened);
        assert_eq!(crate::common::leaked_of(&disk, &opened.store, &tiny()), [""; 0]);
    }
    assert!(old > 0 && new > 0, "{old} old, {new} new");
}

#[test]
fn the_scrub_finds_latent_damage_within_its_budget() {
    let disk = disk(6);
    let options = Options { scrub_bytes_per_second_max: 4_000, ..tiny() };
    let opened = filled(&disk, options);
    [0, 21, KEYS - 1].iter().for_each(|key| opened.damage(&disk, *key));
    let key_bytes: u64 = (0..KEYS).map(|key| key_of(key).len() as u64).sum();
    let value_bytes: u64 = (0..KEYS).map(|key| value_of(key).len() as u64).sum();
    // A value may lie in three blocks.
    let longest = 3 * 4096;
    let mut seconds = 0;
    while opened.store.scrub_stats().passes == 0 {
        opened.clock.advance_seconds(1);
        seconds += 1;
        (0..5).for_each(|_| opened.maintain());
        let bytes = opened.store.scrub_stats().bytes;
        assert!(bytes <= seconds * 4_000 + longest, "{bytes} bytes in {seconds} s");
        assert!(seconds < 60);
    }
    let run_bytes: u64 = opened.store.index().version().runs().map(|run| run.meta().bytes).sum();
    let block_bytes = opened.store.scrub_stats().bytes - run_bytes - key_bytes;
    assert_eq!(block_bytes % 4096, 0, "values are read in whole blocks");
    assert!(block_bytes >= value_bytes);
    let keys: Vec<Bytes> = opened.store.lost_values(10).into_iter().map(|lost| lost.key).collect();
    assert_eq!(keys, [key_of(0), key_of(21), key_of(KEYS - 1)]);
}

#[test]
fn the_search_begins_anew_only_after_its_interval() {
    let disk = disk(7);
    let (scrub_bytes_per_second_max, scrub_interval_s) = (1 << 20, 100);
    let options = Options { scrub_bytes_per_second_max, scrub_interval_s, ..tiny() };
    let opened = filled(&disk, options);
    for _ in 0..50 {
        opened.clock.advance_seconds(1);
        opened.maintain();
    }
    assert_eq!(opened.store.scrub_stats().passes, 1);
    opened.clock.advance_seconds(60);
    opened.maintain();
    opened.clock.advance_seconds(1);
    opened.maintain();
    assert_eq!(opened.store.scrub_stats().passes, 2);
}

#[test]
fn a_store_without_replicas_requests_no_copies() {
    let disk = disk(8);
    drop(filled(&disk, tiny()));
    mark(&disk, "embedded");
    let (vfs, clock) = (Arc::new(disk.clone()), Arc::new(ManualClock::at(1_000_000)));
    let (store, _) = Store::open(vfs, clock, Path::new(DIR), tiny(), Replay::All).unwrap();
    let clock = Arc::new(ManualClock::at(0));
    let opened = Opened { store, clock, index: 0, damaged_runs: 0, rebuilt: None };
    opened.damage(&disk, 1);
    assert!(opened.get(1).is_err());
    opened.maintain();
    assert!(!opened.store.has_lost());
    assert_eq!((opened.store.lost_values(9).len(), opened.store.repair_stats().lost), (0, 1));
    assert!(disk.exists(Path::new(DIR)).unwrap());
}

/// Damages bytes in the middle of a run's first block that holds keys of the test.
fn damage_run(disk: &SimVfs, opened: &Opened) {
    let version = opened.store.index().version();
    let run = version.runs().find(|run| run.meta().entries > 3).unwrap();
    let path = run.path().to_path_buf();
    disk.inject(Fault::FlipBit { path, offset: 40, bit: 3 }).unwrap();
}

fn scrubbing() -> Options {
    let (scrub_bytes_per_second_max, scrub_interval_s) = (1 << 20, 1);
    Options { scrub_bytes_per_second_max, scrub_interval_s, block_cache_bytes_max: 0, ..tiny() }
}

fn pairs_in(range: &KeyRange) -> Vec<Pair> {
    let pair = |key| Pair { key: key_of(key), value: value_of(key).into(), expires_at_s: 0 };
    (0..KEYS).map(pair).filter(|pair| range.contains(&pair.key)).collect()
}

fn seconds(opened: &Opened, count: u64) {
    for _ in 0..count {
        opened.clock.advance_seconds(1);
        opened.maintain();
    }
}

#[test]
fn what_a_damaged_block_of_a_run_held_is_not_known_until_all_of_it_is_covered() {
    let disk = disk(9);
    let opened = filled(&disk, scrubbing());
    damage_run(&disk, &opened);
    seconds(&opened, 3);
    let lost = opened.store.lost_ranges();
    assert_eq!(lost.len(), 1);
    let held = pairs_in(&lost[0]);
    assert!(held.len() > 2, "{lost:?}");
    let scan = || opened.store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 1000));
    assert!(matches!(scan(), Err(Error::Corrupt { .. })));
    let old_view = opened.store.view().unwrap();

    let middle = held[held.len() / 2].key.clone();
    let first = KeyRange { start: lost[0].start.clone(), end: middle.clone() };
    opened.store.repair_range(&first, pairs_in(&first)).unwrap();
    assert!(matches!(scan(), Err(Error::Corrupt { .. })), "half of it is not enough");
    let second = KeyRange { start: middle, end: lost[0].end.clone() };
    assert_eq!(opened.store.lost_ranges(), std::slice::from_ref(&second));
    opened.store.repair_range(&second, pairs_in(&second)).unwrap();
    is_right(&opened);
    assert!(!opened.store.has_lost());
    let old = old_view.scan(&ScanOptions::new(KeyRange::all(), 1000));
    assert!(old.is_err(), "a view from before sees neither the block nor what replaced it");
    drop(old_view);

    seconds(&opened, 3);
    is_right(&opened);
    let mut damages = Vec::new();
    opened.store.index().verify(&mut |error| damages.push(error.to_string())).unwrap();
    assert!(damages.is_empty(), "the run was not rewritten: {damages:?}");
    drop(opened);
    is_right(&open(&disk.restart(3), scrubbing()));
}

#[test]
fn the_repaired_part_of_a_damaged_block_is_read_while_the_rest_of_it_is_lost() {
    let disk = disk(17);
    let opened = filled(&disk, scrubbing());
    damage_run(&disk, &opened);
    seconds(&opened, 3);
    let lost = opened.store.lost_ranges().remove(0);
    let held = pairs_in(&lost);
    let middle = held[held.len() / 2].key.clone();
    let repaired = KeyRange { start: middle.clone(), end: lost.end.clone() };
    let scan = |range: &KeyRange, order| {
        let options = ScanOptions { order, ..ScanOptions::new(range.clone(), 1000) };
        opened.store.view().unwrap().scan(&options)
    };
    assert!(scan(&repaired, Order::Forward).is_err_and(|error| error.is_damage()));
    opened.store.repair_range(&repaired, pairs_in(&repaired)).unwrap();
    let mut expected = pairs_in(&repaired);
    assert_eq!(scan(&repaired, Order::Forward).unwrap(), expected);
    expected.reverse();
    assert_eq!(scan(&repaired, Order::Reverse).unwrap(), expected);
    let absent = [&middle[..], b"-"].concat();
    assert_eq!(opened.store.view().unwrap().get(&absent).unwrap(), None);
    assert!(scan(&lost, Order::Forward).is_err_and(|error| error.is_damage()));
    assert_eq!(opened.store.lost_ranges(), [KeyRange { start: lost.start, end: middle }]);
}

#[test]
fn a_scan_that_begins_in_a_damaged_block_schedules_the_search_for_what_it_held() {
    let disk = disk(16);
    let opened = filled(&disk, Options { scrub_interval_s: 1_000_000, ..scrubbing() });
    seconds(&opened, 3);
    damage_run(&disk, &opened);
    let copy = open(&disk.fork(), scrubbing());
    seconds(&copy, 3);
    let held = copy.store.lost_ranges().remove(0);
    for order in [Order::Forward, Order::Reverse] {
        seconds(&opened, 3);
        assert_eq!(opened.store.has_lost(), order == Order::Reverse, "the next search is far away");
        let options = ScanOptions { order, ..ScanOptions::new(held.clone(), 1000) };
        let found = opened.store.view().unwrap().scan(&options);
        assert!(found.is_err_and(|error| error.is_damage()));
    }
    assert_eq!(opened.store.lost_ranges(), [held]);
}

#[test]
fn reads_in_both_directions_do_without_a_block_that_is_covered() {
    let disk = disk(10);
    let opened = filled(&disk, scrubbing());
    damage_run(&disk, &opened);
    seconds(&opened, 3);
    for range in opened.store.lost_ranges() {
        opened.store.repair_range(&range, pairs_in(&range)).unwrap();
    }
    is_right(&opened);
    let mut options = ScanOptions::new(KeyRange::all(), 1000);
    options.order = Order::Reverse;
    let backwards = opened.store.view().unwrap().scan(&options).unwrap();
    assert_eq!(backwards.len() as u64, KEYS);
    for key in 0..KEYS {
        assert_eq!(opened.get(key).unwrap().unwrap(), value_of(key));
        options.range.start = key_of(key);
        options.order = Order::Forward;
        assert_eq!(opened.store.view().unwrap().scan(&options).unwrap().len() as u64, KEYS - key);
    }
}

#[test]
fn a_damaged_footer_is_written_anew_from_memory_while_the_store_runs() {
    let disk = disk(11);
    let opened = filled(&disk, scrubbing());
    let path = {
        let version = opened.store.index().version();
        let run = version.runs().find(|run| run.meta().entries > 3).unwrap();
        run.path().to_path_buf()
    };
    let bytes = disk.file_bytes(&path).unwrap();
    disk.inject(Fault::FlipBit { path, offset: bytes - 30, bit: 1 }).unwrap();
    seconds(&opened, 4);
    is_right(&opened);
    drop(opened);
    is_right(&open(&disk.restart(4), scrubbing()));
}

#[test]
fn collection_goes_on_beside_a_record_whose_head_is_damaged() {
    let disk = disk(12);
    let opened = filled(&disk, tiny());
    let (path, offset) = opened.place(&disk, 7);
    disk.inject(Fault::FlipBit { path, offset: offset - 12, bit: 0 }).unwrap();
    opened.store.compact().unwrap();
    is_right(&opened);
}

/// A part of a run: its name, offset and size.
type Part = (&'static str, u64, u64);

/// Returns the runs with keys of the test: their files and parts.
fn runs_of(disk: &SimVfs, opened: &Opened) -> Vec<(PathBuf, Vec<Part>)> {
    let version = opened.store.index().version();
    let runs = version.runs().filter(|run| run.meta().entries > 0);
    let parts_of = |path: &PathBuf| {
        let mut parts = Vec::new();
        inspect_run_items(disk, path, &mut |item| {
            if let RunItem::Footer(_, found) = item {
                parts = found.into_iter().map(|it| (it.name, it.offset, it.bytes)).collect();
            }
        })
        .unwrap();
        parts
    };
    runs.map(|run| run.path().to_path_buf()).map(|path| (path.clone(), parts_of(&path))).collect()
}

fn check_reads(opened: &Opened, context: &str) -> u64 {
    let lost = opened.store.lost_ranges();
    let mut failed = 0;
    for key in 0..KEYS {
        match opened.get(key) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value_of(key)[..]), "{context}"),
            Err(error) => {
                assert!(error.is_damage(), "{context}: {error}");
                assert!(lost.iter().any(|range| range.contains(&key_of(key))), "{context}");
                failed += 1;
            }
        }
    }
    failed
}

/// Repairs the lost ranges from another replica; then the store equals one that was never damaged.
fn cover_and_check(disk: &SimVfs, opened: Opened, damaged: &Path, context: &str) {
    let live = opened.store.index().version().live().clone();
    for range in opened.store.lost_ranges() {
        opened.store.repair_range(&range, pairs_in(&range)).unwrap();
    }
    is_right(&opened);
    seconds(&opened, 4);
    is_right(&opened);
    assert!(!opened.store.has_lost(), "{context}");
    assert!(!disk.exists(damaged).unwrap(), "{context}: the damaged file is still there");
    let mut damages = Vec::new();
    opened.store.index().verify(&mut |error| damages.push(error.to_string())).unwrap();
    assert!(damages.is_empty(), "{context}: {damages:?}");
    opened.store.compact().unwrap();
    let now = opened.store.index().version().live().clone();
    let sum = |live: &BTreeMap<FileId, Live>| {
        live.values().fold((0, 0), |sum, live| (sum.0 + live.records, sum.1 + live.bytes))
    };
    assert_eq!((sum(&now).0, sum(&now).1), sum(&live), "{context}");
    assert_eq!(crate::common::leaked_of(disk, &opened.store, &scrubbing()), [""; 0], "{context}");
    drop(opened);
    let again = open(disk, scrubbing());
    assert_eq!((again.damaged_runs, again.rebuilt.clone()), (0, None), "{context}");
    is_right(&again);
}

// Catalogue: 25.
#[test]
fn a_run_whose_footer_filter_or_fences_are_damaged_opens_and_is_written_anew() {
    let disk = disk(13);
    let runs = runs_of(&disk, &filled(&disk, scrubbing()));
    assert!(!runs.is_empty());
    for (path, parts) in &runs {
        for (name, offset, bytes) in parts.iter().filter(|part| part.0 != "blocks" && part.2 > 0) {
            let context = format!("{name} of {}", path.display());
            let disk = disk.fork();
            let offset = offset + bytes / 2;
            disk.inject(Fault::FlipBit { path: path.clone(), offset, bit: 3 }).unwrap();
            assert!(open_alone(&disk).is_err_and(|error| error.is_damage()), "{context}");
            // With memory for the hash index.
            let opened = open(&disk, Options { block_cache_bytes_max: 64 << 10, ..scrubbing() });
            assert_eq!((opened.damaged_runs, opened.rebuilt.clone()), (1, None), "{context}");
            assert_eq!(check_reads(&opened, &context), 0, "{context}");
            is_right(&opened);
            cover_and_check(&disk, opened, path, &context);
        }
    }
}

// Catalogue: 25.
#[test]
fn a_cold_run_whose_filter_or_fences_are_damaged_loses_nothing_and_is_rewritten() {
    let disk = disk(15);
    let runs = runs_of(&disk, &filled(&disk, scrubbing()));
    for (path, parts) in &runs {
        for &(name, offset, _) in parts.iter().filter(|it| ["filter", "fences"].contains(&it.0)) {
            // No scrub: the read that finds the damage schedules the rewrite.
            let scrub_bytes_per_second_max = 0;
            let cold =
                Options { index_memory_bytes_max: 0, scrub_bytes_per_second_max, ..scrubbing() };
            for is_known in [false, true] {
                let context = format!("{name} of {}, read before {is_known}", path.display());
                let disk = disk.fork();
                let opened = open(&disk, cold.clone());
                if is_known {
                    assert_eq!(check_reads(&opened, &context), 0, "{context}");
                }
                // Not the checksum of the whole part, which no later read needs.
                disk.inject(Fault::FlipBit { path: path.clone(), offset, bit: 3 }).unwrap();
                assert_eq!((opened.damaged_runs, check_reads(&opened, &context)), (0, 0));
                assert!(!opened.store.has_lost(), "{context}");
                is_right(&opened);
                seconds(&opened, 4);
                cover_and_check(&disk, opened, path, &context);
            }
        }
    }
}

/// Opens a store without replicas that is not rebuilt from its values.
fn open_alone(disk: &SimVfs) -> stele_engine::Result<()> {
    let disk = disk.fork();
    mark(&disk, "embedded");
    let (vfs, clock) = (Arc::new(disk), Arc::new(ManualClock::at(1_000_000)));
    let options = Options { rebuild: false, ..tiny() };
    Store::open(vfs, clock, Path::new(DIR), options, Replay::All).map(|_| ())
}

// Catalogue: 25.
#[test]
fn a_run_that_is_gone_or_cut_short_at_open_is_asked_for_and_comes_back() {
    let disk = disk(14);
    let runs = runs_of(&disk, &filled(&disk, scrubbing()));
    let mut failed = 0;
    for ((path, _), bytes) in
        runs.iter().flat_map(|run| [None, Some(0), Some(900)].map(|it| (run, it)))
    {
        let context = format!("{} ends at {bytes:?}", path.display());
        let disk = disk.fork();
        let whole = disk.read_file(path).unwrap();
        match bytes {
            Some(bytes) => disk.write_file(path, &whole[..bytes.min(whole.len() / 2)]),
            None => disk.unlink(path).unwrap(),
        }
        assert!(open_alone(&disk).is_err_and(|error| error.is_damage()), "{context}");
        // No scrub: damage that opening finds is requested at once.
        let options = Options { scrub_bytes_per_second_max: 0, ..scrubbing() };
        let opened = open(&disk, options);
        assert_eq!(opened.damaged_runs, 1, "{context}");
        assert_eq!(opened.store.lost_ranges().len(), 1, "{context}");
        failed += check_reads(&opened, &context);
        let scan = opened.store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 1000));
        assert!(scan.is_err_and(|error| error.is_damage()), "{context}");
        seconds(&opened, 2);
        cover_and_check(&disk, opened, path, &context);
    }
    assert!(failed > KEYS, "{failed}");
}

#[test]
fn nothing_that_a_lost_run_refers_to_is_removed_before_it_is_covered() {
    let disk = disk(15);
    let runs = runs_of(&disk, &filled(&disk, scrubbing()));
    for (path, _) in runs {
        let disk = disk.fork();
        let whole = disk.read_file(&path).unwrap();
        disk.unlink(&path).unwrap();
        let mut opened = open(&disk, scrubbing());
        for key in 100..120 {
            opened.put(key, &value_of(key % KEYS));
        }
        let _ = opened.store.compact();
        let _ = opened.store.flush();
        seconds(&opened, 3);
        // The run file is back, and every value that it refers to still exists.
        drop(opened);
        disk.write_file(&path, &whole);
        let opened = open(&disk, scrubbing());
        assert_eq!(opened.damaged_runs, 0);
        assert_eq!(check_reads(&opened, "found again"), 0);
    }
}

// Catalogue: 25.
#[test]
fn a_damaged_edit_of_the_manifest_costs_nothing_at_open() {
    let disk = disk(16);
    drop(filled(&disk, tiny()));
    let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("manifest-");
    let path = disk.paths().into_iter().find(is_manifest).unwrap();
    let bytes = disk.file_bytes(&path).unwrap();
    for offset in (0..bytes).step_by(5) {
        let disk = disk.fork();
        disk.inject(Fault::FlipBit { path: path.clone(), offset, bit: 4 }).unwrap();
        let opened = open(&disk, tiny());
        assert_eq!((opened.damaged_runs, opened.rebuilt.clone()), (0, None), "byte {offset}");
        is_right(&opened);
    }
}

#[test]
fn what_a_sort_cannot_read_is_asked_for() {
    let disk = disk(20);
    let mut opened = open(&disk, tiny());
    (0..KEYS).for_each(|key| opened.put(key, &value_of(key)));
    [3, 17].iter().for_each(|key| opened.damage(&disk, *key));
    opened.store.compact().unwrap();
    assert!(opened.store.has_lost());
    opened.maintain();
    let lost: Vec<Bytes> = opened.store.lost_values(10).into_iter().map(|lost| lost.key).collect();
    assert_eq!(lost, [key_of(3), key_of(17)]);
    [3, 17].iter().for_each(|key| opened.store.repair_value(&key_of(*key), value_of(*key).into()));
    opened.maintain();
    is_right(&opened);
}

#[test]
fn the_search_comes_to_the_values_though_new_runs_follow_each_other() {
    let disk = disk(21);
    let mut opened = filled(&disk, scrubbing());
    opened.damage(&disk, 30);
    let mut rounds = 0;
    while opened.store.scrub_stats().passes == 0 {
        rounds += 1;
        assert!(rounds < 100, "{:?}", opened.store.scrub_stats());
        opened.clock.advance_seconds(1);
        opened.put(rounds % 20, &value_of(rounds % 20));
        // At each step there is a run newer than at the step before.
        opened.store.flush().unwrap();
        opened.store.maintain(1 << 20).unwrap();
    }
    opened.maintain();
    assert_eq!(opened.store.lost_values(10)[0].key, key_of(30));
}

#[test]
fn damage_at_which_every_merge_fails_is_found_and_covered() {
    let disk = disk(22);
    let mut opened = filled(&disk, Options { scrub_interval_s: 1_000_000, ..scrubbing() });
    seconds(&opened, 3);
    assert_eq!(opened.store.scrub_stats().passes, 1);
    damage_run(&disk, &opened);
    let mut rounds = 0;
    while opened.store.maintain(1 << 20).is_ok() {
        rounds += 1;
        assert!(rounds < 1_000, "no merge reads the damaged run");
        opened.put(rounds % KEYS, &value_of(rounds % KEYS));
        opened.store.flush().unwrap();
    }
    let mut seconds = 0;
    while !opened.store.has_lost() {
        seconds += 1;
        assert!(seconds < 10, "{:?}", opened.store.scrub_stats());
        opened.clock.advance_seconds(1);
        // It fails for as long as the block is not covered.
        let _ = opened.store.maintain(1 << 20);
    }
    for lost in opened.store.lost_ranges() {
        opened.store.repair_range(&lost, pairs_in(&lost)).unwrap();
    }
    opened.maintain();
    is_right(&opened);
}

#[test]
fn a_value_that_the_device_refuses_to_read_is_requested_and_replaced_elsewhere() {
    let disk = disk(31);
    let opened = filled(&disk, tiny());
    let (path, offset) = opened.place(&disk, 5);
    disk.inject(Fault::Unreadable { path, offset, bytes: 1 }).unwrap();
    assert!(opened.get(5).unwrap_err().is_damage());
    // A scan returns what is before it, and records everything that it cannot read.
    assert!(opened.store.view().unwrap().scan(&ScanOptions::new(KeyRange::all(), 99)).is_err());
    opened.maintain();
    let lost = opened.store.lost_values(10);
    assert!(lost.iter().any(|lost| lost.key == key_of(5)), "{lost:?}");
    for lost in lost {
        let key = (0..KEYS).find(|key| key_of(*key) == lost.key).unwrap();
        opened.store.repair_value(&lost.key, value_of(key).into());
    }
    opened.maintain();
    is_right(&opened);
    assert!(!opened.store.has_lost());
}
