//! A store under consensus: a full device, reads that do not wait, snapshots beside garbage
//! collection, and entries that move in the log.

use crate::common::{DIR, clock, disk, leaked_of, tiny};
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_engine::{
    CachedGet, EngineView, Error, KeyRange, LogStore, Options, Pair, Replay, Result, ScanOptions,
    Snapshots, StateMachine, Store,
};
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_storage::{Passed, RegionEntries};
use stele_types::{
    CommandBuilder, CommittedEntry, EntryRecord, HardState, LogBatch, LogIndex, Mark, Record,
    RegionId, Term,
};
use stele_vfs::Vfs;

fn open(disk: &SimVfs, options: Options) -> Store {
    let vfs = Arc::new(disk.clone());
    Store::open(vfs, clock(), Path::new(DIR), options, Replay::Committed).unwrap().0
}

struct Region<'a> {
    store: &'a Store,
    id: RegionId,
    index: u64,
}

impl<'a> Region<'a> {
    fn new(store: &'a Store, id: u64, index: u64) -> Self {
        let id = RegionId(id);
        let start = Record::Mark(id, Mark::Start(LogIndex(index), Term(1)));
        store.append(&LogBatch { records: vec![start] }).unwrap();
        Self { store, id, index }
    }

    fn append(&mut self, command: CommandBuilder) -> Result<()> {
        let index = LogIndex(self.index + 1);
        let entry = EntryRecord {
            region: self.id,
            term: Term(1),
            index,
            is_command: true,
            payload: command.build().bytes().clone(),
        };
        let state = HardState { term: Term(1), vote: 1, commit: index };
        let records = vec![Record::Entry(entry), Record::HardState(self.id, state)];
        self.store.append(&LogBatch { records })?;
        self.index = index.0;
        let entries = self.store.entries(self.id, index, index.next(), usize::MAX)?;
        self.store.apply(self.id, &entries)
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let mut command = CommandBuilder::new();
        command.put(key.as_bytes(), value, 0)?;
        self.append(command)
    }

    fn delete_range(&mut self, start: &str, end: &str) -> Result<()> {
        let mut command = CommandBuilder::new();
        command.delete_range(start.as_bytes(), end.as_bytes())?;
        self.append(command)
    }

    /// Truncates checkpointed entries: no follower needs them.
    fn truncate(&self) {
        let upto = self.store.progress(self.id).unwrap().checkpointed;
        let term = self.store.term(self.id, upto).unwrap();
        let records = vec![Record::Mark(self.id, Mark::TruncatePrefix(upto, term))];
        self.store.append(&LogBatch { records }).unwrap();
    }
}

fn pairs(store: &Store, range: KeyRange) -> Vec<Pair> {
    store.view().unwrap().scan(&ScanOptions::new(range, usize::MAX)).unwrap()
}

#[test]
fn a_range_delete_between_puts_of_one_apply_hides_those_before_it() {
    let store = open(&SimVfs::default(), tiny());
    let mut region = Region::new(&store, 1, 0);
    let mut command = CommandBuilder::new();
    let key = |number: u32| format!("k{number:03}");
    for number in 0..300 {
        command.put(key(number).as_bytes(), b"before", 0).unwrap();
    }
    command.put(b"k120", b"just before", 0).unwrap();
    command.delete_range(b"k100", b"k200").unwrap();
    command.put(b"k150", b"after", 0).unwrap().delete(b"k250").unwrap();
    command.put(b"k260", b"twice", 0).unwrap().put(b"k260", b"last", 0).unwrap();
    region.append(command).unwrap();
    let kept = (0..300).filter(|&number| number == 150 || !(100..200).contains(&number));
    let kept = kept.filter(|&number| number != 250);
    let value = |number| match number {
        150 => &b"after"[..],
        260 => b"last",
        _ => b"before",
    };
    let expected: Vec<_> =
        kept.map(|number| (key(number).into_bytes(), value(number).to_vec())).collect();
    let check = || {
        let found = pairs(&store, KeyRange::all());
        let found: Vec<_> =
            found.iter().map(|pair| (pair.key.to_vec(), pair.value.to_vec())).collect();
        assert_eq!(found, expected);
    };
    check();
    store.checkpoint().unwrap();
    check();
}

#[test]
fn an_apply_with_a_malformed_command_changes_nothing() {
    let store = open(&SimVfs::default(), tiny());
    let mut region = Region::new(&store, 1, 0);
    region.put("k", b"applied").unwrap();
    let mut command = CommandBuilder::new();
    command.put(b"k", b"not applied", 0).unwrap();
    let payload = command.build().bytes().clone();
    let entry = |index| CommittedEntry {
        index: LogIndex(index),
        term: Term(1),
        is_command: true,
        payload: payload.clone(),
    };
    let mut entries = [entry(2), entry(3)];
    let record = |entry: &CommittedEntry| {
        let CommittedEntry { index, term, is_command, payload } = entry.clone();
        Record::Entry(EntryRecord { region: region.id, term, index, is_command, payload })
    };
    store.append(&LogBatch { records: entries.iter().map(record).collect() }).unwrap();
    entries[1].payload = Bytes::from_static(b"\xff malformed");
    assert!(matches!(store.apply(region.id, &entries), Err(Error::Invalid(_))));
    assert_eq!(pairs(&store, KeyRange::all())[0].value[..], b"applied"[..]);
    assert_eq!(store.progress(region.id).unwrap().applied, LogIndex(1));
}

#[test]
fn entries_of_several_regions_are_applied_in_one_call_or_none_of_them_is() {
    let store = open(&SimVfs::default(), tiny());
    let run = |id, key: &str| {
        let mut command = CommandBuilder::new();
        command.put(key.as_bytes(), b"applied", 0).unwrap();
        let (index, term, payload) = (LogIndex(1), Term(1), command.build().bytes().clone());
        let entries = vec![CommittedEntry { index, term, is_command: true, payload }];
        RegionEntries { region: RegionId(id), entries }
    };
    let mut runs = [run(1, "a"), run(2, "b")];
    let records = runs.iter().map(|RegionEntries { region, entries }| {
        let CommittedEntry { index, term, is_command, payload } = entries[0].clone();
        Record::Entry(EntryRecord { region: *region, term, index, is_command, payload })
    });
    store.append(&LogBatch { records: records.collect() }).unwrap();
    let sound =
        std::mem::replace(&mut runs[1].entries[0].payload, Bytes::from_static(b"\xff malformed"));
    assert!(matches!(store.apply_all(&runs), Err(Error::Invalid(_))));
    assert_eq!(pairs(&store, KeyRange::all()).len(), 0);
    runs[1].entries[0].payload = sound;
    store.apply_all(&runs).unwrap();
    assert_eq!(pairs(&store, KeyRange::all()).len(), 2);
    let applied = [1, 2].map(|id| store.progress(RegionId(id)).unwrap().applied);
    assert_eq!(applied, [LogIndex(1); 2]);
}

#[test]
fn a_nearly_full_device_admits_no_puts_and_takes_what_is_committed_and_deletes() {
    let capacity_bytes = Some(4 << 20);
    let disk = SimVfs::new(SimOptions { seed: 1, capacity_bytes, ..SimOptions::default() });
    let options = Options { reserved_bytes: 1 << 20, ..tiny() };
    let store = open(&disk, options.clone());
    let mut region = Region::new(&store, 1, 0);
    let value = [7; 1000];
    let mut count = 0;
    while store.admit(1000).is_ok() {
        region.put(&format!("k{count:05}"), &value).unwrap();
        count += 1;
        assert!(count < 5000, "a store larger than its device");
        store.maintain(32 << 10).unwrap();
        region.truncate();
    }
    assert!(matches!(store.admit(1000), Err(Error::NoSpace(_))));
    assert!(matches!(
        store.receive(
            &mut store.begin_ingest(vec![KeyRange::all()]).unwrap(),
            vec![pair("k", 1000)]
        ),
        Err(Error::NoSpace(_))
    ));
    assert!(count > 1000, "{count} pairs fit");
    // Entries that other replicas committed are written into the reserve.
    for number in count..count + 20 {
        region.put(&format!("k{number:05}"), &value).unwrap();
    }
    assert_eq!(pairs(&store, KeyRange::all()).len(), count + 20);
    region.delete_range("k00000", &format!("k{:05}", count * 3 / 4)).unwrap();
    store.checkpoint().unwrap();
    region.truncate();
    store.compact().unwrap();
    store.admit(100_000).expect("space was freed");
    assert_eq!(pairs(&store, KeyRange::all()).len(), count + 20 - count * 3 / 4);
    let stats = store.stats();
    assert_eq!(stats.device_bytes, 4 << 20);
    assert!(stats.device_free_bytes > 1 << 20);
}

fn pair(key: &str, bytes: usize) -> Pair {
    Pair { key: key.to_owned().into(), value: vec![9; bytes].into(), expires_at_s: 0 }
}

#[test]
fn a_device_that_is_really_full_refuses_an_append_and_nothing_is_lost() {
    let capacity_bytes = Some(1 << 20);
    let disk = SimVfs::new(SimOptions { seed: 2, capacity_bytes, ..SimOptions::default() });
    let options = Options { reserved_bytes: 128 << 10, ..tiny() };
    let store = open(&disk, options.clone());
    let mut region = Region::new(&store, 1, 0);
    let mut count = 0;
    let full = loop {
        match region.put(&format!("k{count:05}"), &[1; 3000]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        // Flushes fail at the end; the entries stay in memory and in the log.
        store.maintain(32 << 10).unwrap();
    };
    assert!(matches!(full, Error::NoSpace(_)), "{full}");
    assert_eq!(store.progress(RegionId(1)).unwrap().persisted.0, LogIndex(count));
    disk.set_capacity(Some(2 << 20));
    region.put("after", &[2; 3000]).unwrap();
    drop(store);
    let store = open(&disk.restart(1), options);
    assert_eq!(pairs(&store, KeyRange::all()).len() as u64, count + 1);
}

#[test]
fn a_cached_read_never_waits_and_never_gives_a_wrong_value() {
    let disk = disk(3);
    let store = open(&disk, tiny());
    let mut region = Region::new(&store, 1, 0);
    region.put("small", b"in the index").unwrap();
    let value: Vec<u8> = (0..5000).map(|at| (at % 251) as u8).collect();
    region.put("large", &value).unwrap();
    let get = |key: &str| store.view().unwrap().get_cached(key.as_bytes()).unwrap();
    let is_located = |key: &str| match get(key) {
        CachedGet::Ready(pair) => panic!("{pair:?} was in memory"),
        CachedGet::NeedsIo(get) => get.located.is_some(),
    };
    let value_of = |cached: CachedGet| match cached {
        CachedGet::Ready(pair) => pair.map(|pair| pair.value.to_vec()),
        CachedGet::NeedsIo(_) => None,
    };
    assert!(is_located("large"), "its file was never opened");
    assert_eq!(value_of(get("small")), Some(b"in the index".to_vec()));
    store.view().unwrap().get(b"large").unwrap();
    assert_eq!(value_of(get("large")), Some(value.clone()));
    assert_eq!(get("absent"), CachedGet::Ready(None));
    disk.set_cached(false);
    assert!(is_located("large"));
    store.flush().unwrap();
    assert!(!is_located("small"), "its block was never read");
    store.view().unwrap().get(b"small").unwrap();
    assert_eq!(value_of(get("small")), Some(b"in the index".to_vec()));
    disk.set_cached(true);
    assert_eq!(value_of(get("large")), Some(value.clone()));
    let path = Path::new(DIR).join("log").join("00000001.seg");
    let mut bytes = vec![0; disk.list(path.parent().unwrap()).unwrap()[0].bytes as usize];
    disk.open(&path, stele_vfs::Open::READ).unwrap().read_at(&mut bytes, 0).unwrap();
    let offset = bytes.windows(value.len()).position(|part| part == value).unwrap() as u64 + 9;
    disk.inject(Fault::FlipBit { path, offset, bit: 3 }).unwrap();
    assert!(is_located("large"), "damage is for a read that may wait to report");
    assert!(store.view().unwrap().get(b"large").is_err());
}

#[test]
fn incoming_pairs_outlast_collection_and_leave_nothing_when_they_are_given_up() {
    let disk = disk(4);
    let store = open(&disk, tiny());
    let mut region = Region::new(&store, 1, 0);
    let range = || vec![KeyRange::new("n", "o")];
    let mut kept = store.begin_ingest(range()).unwrap();
    let mut given_up = store.begin_ingest(range()).unwrap();
    for number in 0..60 {
        let next = |n: u32| (0..20).map(|m| pair(&format!("n{n:03}-{m:02}"), 300)).collect();
        store.receive(&mut kept, next(number)).unwrap();
        store.receive(&mut given_up, next(number)).unwrap();
        region.put(&format!("k{:02}", number % 7), &[number as u8; 3000]).unwrap();
        if number % 20 == 19 {
            store.compact().unwrap();
        }
    }
    drop(given_up);
    assert!(pairs(&store, KeyRange::new("n", "o")).is_empty());
    store.install(RegionId(2), (LogIndex(9), Term(2)), kept).unwrap();
    store.compact().unwrap();
    assert_eq!(pairs(&store, KeyRange::new("n", "o")).len(), 1200);
    let leaks = leaked_of(&disk, &store, &tiny());
    assert!(leaks.is_empty(), "{leaks:?}");
    let before = store.stats().disk_bytes;
    store.drop_ranges(&range()).unwrap();
    store.compact().unwrap();
    let left = store.stats().disk_bytes;
    assert!(left + 300_000 < before, "{left} of {before} bytes are left after a drop");
}

#[test]
fn a_directory_is_not_given_to_another_while_pairs_come_in() {
    let disk = disk(7);
    let store = open(&disk, tiny());
    let ingest = store.begin_ingest(vec![KeyRange::all()]).unwrap();
    drop(store);
    let again = || {
        let vfs = Arc::new(disk.clone());
        Store::open(vfs, clock(), Path::new(DIR), tiny(), Replay::Committed)
    };
    assert!(matches!(again(), Err(Error::Locked(_))));
    drop(ingest);
    again().unwrap();
}

#[test]
fn snapshots_are_read_from_pinned_views_while_everything_is_rewritten() {
    let disk = disk(5);
    let store = open(&disk, tiny());
    let mut region = Region::new(&store, 1, 0);
    for number in 0..300 {
        region.put(&format!("k{number:03}"), &[1; 400]).unwrap();
    }
    let views: Vec<_> = (0..6).map(|_| store.view().unwrap()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            views.into_iter().map(|view| scope.spawn(|| slices(view, &is_over))).collect();
        for round in 2..6u8 {
            for number in 0..300 {
                region.put(&format!("k{number:03}"), &[round; 400]).unwrap();
            }
            store.checkpoint().unwrap();
            region.truncate();
            store.compact().unwrap();
        }
        is_over.store(true, Ordering::Release);
        for reader in readers {
            let times = reader.join().unwrap();
            assert!(times > 0);
        }
    });
    store.compact().unwrap();
    let bytes = store.stats().disk_bytes;
    assert!(bytes < 600_000, "{bytes} bytes are left when no view pins older versions");
}

/// Reads a view in slices, repeatedly until the writer is done; returns how often.
fn slices(view: stele_engine::View, is_over: &AtomicBool) -> usize {
    let mut times = 0;
    loop {
        let last = is_over.load(Ordering::Acquire);
        let mut from = KeyRange::all();
        let mut count = 0;
        loop {
            let slice = view.scan(&ScanOptions::new(from.clone(), 64)).unwrap();
            let Some(end) = slice.last() else { break };
            assert!(slice.iter().all(|pair| pair.value == vec![1; 400]));
            count += slice.len();
            from = KeyRange::new([&end.key[..], &[0]].concat(), "");
        }
        assert_eq!(count, 300);
        times += 1;
        if last {
            return times;
        }
    }
}

#[test]
fn entries_that_are_not_checkpointed_keep_their_place_in_the_log() {
    let disk = disk(6);
    let store = open(&disk, tiny());
    let mut parent = Region::new(&store, 5, 0);
    parent.put("a", &[1; 100]).unwrap();
    let mut busy = Region::new(&store, 8, 0);
    for number in 0..150 {
        busy.put("z", &[number; 2000]).unwrap();
    }
    store.checkpoint().unwrap();
    busy.truncate();
    // The parent continues and splits, and its child overwrites the pairs it had.
    parent.put("k", &[2; 100]).unwrap();
    let mut child = Region::new(&store, 3, 5);
    child.put("k", &[3; 100]).unwrap();
    let pinned = || {
        let files = store.log().files();
        files.iter().filter(|file| file.wanted_by_raft).count()
    };
    assert!(pinned() > 3, "the parent's first entry pins the log");
    let settle = || while store.maintain(1 << 20).unwrap().more {};
    settle();
    let left = disk.restart(1);
    let found = open(&left, tiny()).view().unwrap().get(b"k").unwrap().unwrap();
    assert_eq!(found.value, vec![3; 100], "the parent's entry came after the child's");
    // After a checkpoint covers them they are re-appended, and the old segments are removed.
    store.checkpoint().unwrap();
    settle();
    assert!(pinned() <= 3, "{} segments are pinned", pinned());
    drop(store);
    let store = open(&disk.restart(2), tiny());
    assert_eq!(store.view().unwrap().get(b"k").unwrap().unwrap().value, vec![3; 100]);
    assert_eq!(store.entries(RegionId(5), LogIndex(1), LogIndex(9), 1 << 20).unwrap().len(), 2);
}

#[test]
fn what_users_scan_again_and_again_gets_sorted() {
    let disk = disk(7);
    let store = open(&disk, tiny());
    let mut region = Region::new(&store, 5, 0);
    for number in 0..200_u8 {
        let key = format!("k{:03}", u16::from(number) * 71 % 200);
        region.put(&key, &[number; 9000]).unwrap();
    }
    store.checkpoint().unwrap();
    let settle = || while store.maintain(1 << 20).unwrap().more {};
    settle();
    assert_eq!(store.gc_stats().bytes.sort, 0, "no user scanned");
    let scan_all = |keys_only: bool, by_user: bool| {
        for part in 0..20 {
            let range = KeyRange::new(format!("k{:03}", part * 10), "l");
            let view = store.view().unwrap();
            let pairs =
                view.scan(&ScanOptions { keys_only, ..ScanOptions::new(range, 10) }).unwrap();
            assert_eq!(pairs.len(), 10);
            if by_user {
                view.note_scan(&Passed::of(&pairs));
            }
        }
        settle();
    };
    (0..20).for_each(|_| scan_all(true, true));
    (0..20).for_each(|_| scan_all(false, false));
    assert_eq!(store.gc_stats().bytes.sort, 0, "no user scanned values");
    // Each scan pays a page for each of its long values.
    (0..6).for_each(|_| scan_all(false, true));
    let sorted = store.gc_stats().bytes.sort;
    assert!(sorted > 200 * 9000, "{sorted}");
    (0..20).for_each(|_| scan_all(false, true));
    assert_eq!(store.gc_stats().bytes.sort, sorted, "values in key order are not rewritten");
}

#[test]
fn a_replica_drops_expired_pairs_by_the_clusters_time() {
    let (disk, clock) = (disk(8), clock());
    let vfs = Arc::new(disk.clone());
    let opened = Store::open(vfs, clock.clone(), Path::new(DIR), tiny(), Replay::Committed);
    let store = opened.unwrap().0;
    let mut region = Region::new(&store, 5, 0);
    let mut command = CommandBuilder::new();
    command.put(b"short", &[1; 200], 1_000_010).unwrap();
    command.put(b"lasting", &[2; 200], 0).unwrap();
    region.append(command).unwrap();
    for _ in 0..12 {
        clock.advance_seconds(600);
        while store.maintain(1 << 20).unwrap().more {}
    }
    store.compact().unwrap();
    let has = |key: &[u8]| store.view().unwrap().get(key).unwrap().is_some();
    assert!(has(b"short"), "by its own clock it has expired, but that may be ahead");
    store.note_cluster_time(1_000_005);
    store.compact().unwrap();
    assert!(has(b"short"));
    store.note_cluster_time(1_000_010 + 3_600);
    store.compact().unwrap();
    assert!(!has(b"short") && has(b"lasting"));
}

#[test]
fn a_value_that_was_read_is_read_from_memory() {
    let disk = disk(8);
    let store = open(&disk, Options { value_cache_bytes_max: 1 << 20, ..tiny() });
    let mut region = Region::new(&store, 5, 0);
    region.put("k", &[1; 5000]).unwrap();
    let reads = || disk.meter().snapshot().reads;
    let before = reads();
    let get = || store.view().unwrap().get(b"k").unwrap().unwrap().value;
    assert_eq!(get(), vec![1; 5000]);
    assert_eq!((reads() - before, store.value_cache_hits()), (1, (0, 1)));
    disk.set_cached(false);
    let at_hand = store.view().unwrap().get_cached(b"k").unwrap();
    assert!(matches!(at_hand, CachedGet::Ready(Some(pair)) if pair.value == vec![1; 5000]));
    assert_eq!((reads() - before, store.value_cache_hits()), (1, (1, 1)));
    assert!(store.stats().memory_bytes > 5000);
    // The overwriting value has another location.
    region.put("k", &[2; 5000]).unwrap();
    assert_eq!(get(), vec![2; 5000]);
    assert_eq!((reads() - before, store.value_cache_hits()), (2, (1, 2)));
}
