//! Short scans of what memory holds: they do not wait for the device.

use crate::common::{DIR, clock, disk, tiny};
use std::path::Path;
use std::sync::Arc;
use stele_engine::{
    Cached, EngineView, KeyRange, LogStore, Options, Order, Pair, Replay, ScanOptions,
    StateMachine, Store,
};
use stele_simulated_disk::{Fault, SimVfs};
use stele_storage::{Admitted, Passed};
use stele_types::{CommandBuilder, EntryRecord, LogBatch, LogIndex, Mark, Record, RegionId, Term};
use stele_vfs::Vfs;

const REGION: RegionId = RegionId(1);

fn open(disk: &SimVfs, options: Options) -> Store {
    let vfs = Arc::new(disk.clone());
    let store = Store::open(vfs, clock(), Path::new(DIR), options, Replay::Committed).unwrap().0;
    let start = Record::Mark(REGION, Mark::Start(LogIndex(0), Term(1)));
    store.append(&LogBatch { records: vec![start] }).unwrap();
    store
}

fn put(store: &Store, index: u64, key: &str, value: &[u8]) {
    let mut command = CommandBuilder::new();
    command.put(key.as_bytes(), value, 0).unwrap();
    let (index, payload) = (LogIndex(index), command.build().bytes().clone());
    let entry = EntryRecord { region: REGION, term: Term(1), index, is_command: true, payload };
    store.append(&LogBatch { records: vec![Record::Entry(entry)] }).unwrap();
    let entries = store.entries(REGION, index, index.next(), usize::MAX).unwrap();
    store.apply(REGION, &entries).unwrap();
}

/// Puts `count` keys from `k000` on, in another order than that of the keys.
fn fill(store: &Store, count: u64, value_bytes: usize) {
    for n in 0..count {
        let key = n * 71 % count;
        put(store, n + 1, &format!("k{key:03}"), &vec![key as u8; value_bytes]);
    }
}

fn options(from: &str, limit: usize, order: Order) -> ScanOptions {
    let range = match order {
        Order::Forward => KeyRange::new(from.to_owned(), ""),
        Order::Reverse => KeyRange::new("", from.to_owned()),
    };
    ScanOptions { order, ..ScanOptions::new(range, limit) }
}

fn attempt(store: &Store, options: &ScanOptions) -> Option<Vec<Pair>> {
    let (view, mut pairs) = (store.view().unwrap(), Vec::new());
    match view.scan_cached(options, &mut |_, _| true, &mut pairs).unwrap() {
        Cached::Ready(Admitted::Read(passed)) => {
            assert_eq!(passed, Passed::of(&pairs));
            Some(pairs)
        }
        Cached::Ready(Admitted::Refused) => panic!("all memory is admitted"),
        Cached::NeedsIo => None,
    }
}

/// Returns what one of as many attempts returns as are not skipped after failures.
fn in_memory(store: &Store, options: &ScanOptions) -> Option<Vec<Pair>> {
    (0..100).find_map(|_| attempt(store, options))
}

fn scan(store: &Store, options: &ScanOptions) -> Vec<Pair> {
    store.view().unwrap().scan(options).unwrap()
}

fn reads(disk: &SimVfs) -> u64 {
    disk.meter().snapshot().reads
}

#[test]
fn a_scan_in_memory_never_waits_and_answers_what_every_scan_does() {
    let disk = disk(1);
    let store = open(&disk, Options { memtable_bytes_max: 8 << 20, ..tiny() });
    fill(&store, 300, 700);
    let all = options("", 300, Order::Forward);
    let some = options("k100", 50, Order::Forward);
    assert_eq!(in_memory(&store, &some), None, "files were never opened");
    scan(&store, &all);
    let is_same = |store: &Store| {
        for order in [Order::Forward, Order::Reverse] {
            for (from, limit) in [("k100", 50), ("k007", 128), ("k299", 10), ("k5", 9), ("a", 9)] {
                let options = options(from, limit, order);
                assert_eq!(in_memory(store, &options), Some(scan(store, &options)), "{from}");
                let keys = ScanOptions { keys_only: true, ..options };
                assert_eq!(in_memory(store, &keys), Some(scan(store, &keys)), "{from}");
            }
        }
    };
    is_same(&store);
    assert_eq!(in_memory(&store, &options("k100", 129, Order::Forward)), None, "a long one");
    let cut = ScanOptions { bytes_max: 9000, ..some.clone() };
    assert_eq!(in_memory(&store, &cut), None, "a part of the answer");
    // Out of runs of which no block was read.
    store.flush().unwrap();
    disk.set_cached(false);
    let before = reads(&disk);
    assert_eq!((in_memory(&store, &some), reads(&disk)), (None, before));
    assert_eq!((scan(&store, &all).len(), in_memory(&store, &some)), (300, None), "the values");
    disk.set_cached(true);
    scan(&store, &all);
    is_same(&store);
    for n in 300..400 {
        put(&store, n + 1, &format!("l{n}"), &[7; 5000]);
    }
    let long = options("l", 100, Order::Forward);
    assert_eq!((scan(&store, &long).len(), in_memory(&store, &long)), (100, None));
}

#[test]
fn a_damaged_value_is_for_a_scan_that_may_wait_to_report() {
    let disk = disk(2);
    let store = open(&disk, tiny());
    (0..9_u8).for_each(|n| put(&store, u64::from(n) + 1, &format!("k{n}"), &[n + 1; 900]));
    let all = options("", 9, Order::Forward);
    assert_eq!(scan(&store, &all).len(), 9);
    assert_eq!(in_memory(&store, &all).unwrap().len(), 9);
    let path = Path::new(DIR).join("log").join("00000001.seg");
    let bytes = disk.read_file(&path).unwrap();
    let offset = bytes.windows(900).position(|part| part == [5; 900]).unwrap() as u64 + 9;
    disk.inject(Fault::FlipBit { path, offset, bit: 3 }).unwrap();
    assert_eq!(in_memory(&store, &all), None);
    assert!(store.view().unwrap().scan(&all).is_err());
}

#[test]
fn attempts_that_fail_become_rare_and_one_that_succeeds_makes_them_usual_again() {
    let disk = disk(3);
    let store = open(&disk, tiny());
    fill(&store, 20, 900);
    let all = options("", 20, Order::Forward);
    // An attempt asks for the memory of its values before it reads them.
    let attempts = |scans: usize| {
        let mut asked = 0;
        for _ in 0..scans {
            let mut admit = |_: usize, _: u64| {
                asked += 1;
                true
            };
            store.view().unwrap().scan_cached(&all, &mut admit, &mut Vec::new()).unwrap();
        }
        asked
    };
    scan(&store, &all);
    disk.set_cached(false);
    assert!((5..9).contains(&attempts(127)));
    assert_eq!(attempts(650), 10);
    disk.set_cached(true);
    attempts(65);
    assert_eq!(attempts(50), 50);
}

#[test]
fn scans_use_the_value_cache_and_evict_nothing_from_it() {
    let disk = disk(4);
    let options_of_store =
        Options { value_cache_bytes_max: 8 << 20, memtable_bytes_max: 8 << 20, ..tiny() };
    let store = open(&disk, options_of_store);
    // Too long for one read of two of them.
    fill(&store, 40, 20_000);
    let some = options("k010", 12, Order::Forward);
    let view = store.view().unwrap();
    for pair in scan(&store, &some) {
        assert_eq!(view.get(&pair.key).unwrap().unwrap(), pair);
    }
    let counts = store.value_cache_hits();
    assert_eq!(counts, (0, 12), "the scan added nothing");
    disk.set_cached(false);
    let before = reads(&disk);
    assert_eq!(in_memory(&store, &some).unwrap(), scan(&store, &some));
    assert_eq!((reads(&disk), store.value_cache_hits()), (before, (24, 12)));
    let more = options("k008", 16, Order::Forward);
    assert_eq!(scan(&store, &more).len(), 16);
    assert!((1..=4).contains(&(reads(&disk) - before)), "the other four");
    assert_eq!(store.value_cache_hits(), (36, 12), "none was added");
}
