//! Gets that need the device: what was found in memory is not searched again, and many are read together.

use crate::common::{DIR, clock, disk, open, tiny};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stele_engine::{CachedGet, Db, EngineView, Options, Pair, PendingGet, Result};
use stele_index::Found;
use stele_simulated_disk::{Fault, SimVfs};
use stele_storage::{Admitted, Cached, GotAdmitted};
use stele_types::{Locator, ValueRef};
use stele_vfs::{FileLayer, Open, Vfs, VfsFile, VfsLayer};

/// Calls of the files of values and of the index. The page cache holds the index, and the values on request.
#[derive(Debug, Default)]
struct Calls {
    holds_values: AtomicBool,
    attempts: AtomicU64,
    requests: AtomicU64,
    reads: AtomicU64,
    of_index: AtomicU64,
}

impl Calls {
    /// Returns the attempts to read a value without waiting, the requests and the reads of the device, and
    /// the reads of the index, since the last call.
    fn take(&self) -> [u64; 4] {
        let calls = [&self.attempts, &self.requests, &self.reads, &self.of_index];
        calls.map(|calls| calls.swap(0, Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct CountedVfs(SimVfs, Arc<Calls>);

impl VfsLayer for CountedVfs {
    fn below(&self) -> &dyn Vfs {
        &self.0
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        let is_index = path.to_string_lossy().ends_with(".run");
        Ok(Arc::new(CountedFile { file: self.0.open(path, how)?, calls: self.1.clone(), is_index }))
    }
}

#[derive(Debug)]
struct CountedFile {
    file: Arc<dyn VfsFile>,
    calls: Arc<Calls>,
    is_index: bool,
}

impl CountedFile {
    fn count(&self, of_values: &AtomicU64) {
        let count = if self.is_index { &self.calls.of_index } else { of_values };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl FileLayer for CountedFile {
    fn below(&self) -> &dyn VfsFile {
        &*self.file
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.count(&self.calls.reads);
        self.file.read_at(buffer, offset)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool> {
        self.count(&self.calls.attempts);
        let is_held = self.is_index || self.calls.holds_values.load(Ordering::Relaxed);
        Ok(is_held && self.file.read_cached_at(buffer, offset)?)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        self.count(&self.calls.requests);
        self.file.will_read(offset, bytes);
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

fn value(n: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at as u64 * 7 + n) as u8).collect()
}

fn pending(view: &impl EngineView, n: u64) -> PendingGet {
    match view.get_cached(&key(n)).unwrap() {
        CachedGet::Ready(pair) => panic!("key {n} is in memory: {pair:?}"),
        CachedGet::NeedsIo(get) => get,
    }
}

fn read(view: &impl EngineView, gets: Vec<PendingGet>) -> Vec<Option<Pair>> {
    let got = view.get_many(gets, &mut |_, _| true);
    got.into_iter().map(|got| got.unwrap().read().unwrap()).collect()
}

const LONG: usize = 20 << 10;

#[test]
fn a_cold_get_searches_the_index_once_and_reads_once() {
    let (disk, calls) = (disk(1), Arc::new(Calls::default()));
    let counted = Arc::new(CountedVfs(disk.clone(), calls.clone()));
    let options = Options { block_cache_bytes_max: 0, ..tiny() };
    let db = Db::open_with(counted, clock(), Path::new(DIR), options).unwrap();
    for n in 0..200 {
        db.put(&key(n), &value(n, LONG)).unwrap();
    }
    db.compact().unwrap();
    disk.set_cached(true);
    (0..200).for_each(|n| drop(db.get(&key(n)).unwrap().unwrap()));
    let view = db.view().unwrap();
    calls.take();
    assert!(pending(&view, 7).located.is_some());
    let [.., one_search] = calls.take();
    assert!(one_search > 0, "the index is not read from its files");
    let get = pending(&view, 7);
    assert_eq!(read(&view, vec![get])[0].as_ref().unwrap().value, value(7, LONG));
    assert_eq!(calls.take(), [1, 0, 1, one_search]);

    // Every fifth: the others between them are not read along.
    let keys: Vec<u64> = (0..200).step_by(5).collect();
    let gets: Vec<PendingGet> = keys.iter().map(|n| pending(&view, *n)).collect();
    let [attempts, _, _, searches] = calls.take();
    let pairs = read(&view, gets);
    assert!(
        keys.iter().zip(&pairs).all(|(n, pair)| pair.as_ref().unwrap().value == value(*n, LONG))
    );
    assert_eq!((attempts, calls.take()), (40, [0, 39, 40, 0]), "{searches} reads of the index");
    // Existence needs no value.
    assert!(matches!(view.get_meta_cached(&key(9)), Ok(Cached::Ready(Some(_)))));
    assert_eq!(calls.take()[..3], [0, 0, 0]);
    calls.holds_values.store(true, Ordering::Relaxed);
    assert!(matches!(view.get_cached(&key(9)), Ok(CachedGet::Ready(Some(_)))));
    assert_eq!(calls.take(), [1, 0, 0, one_search]);
}

#[test]
fn short_values_are_admitted_and_read_in_parts_of_bounded_size() {
    let disk = disk(6);
    let db = open(&disk, &Options { segment_bytes_max: 1 << 20, ..tiny() }).unwrap();
    for n in 0..700 {
        db.put(&key(n), &value(n, LONG)).unwrap();
    }
    db.compact().unwrap();
    let view = db.view().unwrap();
    let gets = || (0..700).rev().map(|n| PendingGet::of_key(key(n).into())).collect();
    view.get_many(gets(), &mut |_, _| false);
    let (mut parts, before) = (Vec::new(), disk.meter().snapshot());
    let got = view.get_many(gets(), &mut |pairs, bytes| {
        parts.push((pairs, bytes));
        parts.len() < 3
    });
    let pair_bytes = (LONG + key(0).len()) as u64;
    let pairs = (4 << 20) / pair_bytes;
    assert_eq!(parts, vec![(pairs as usize, pairs * pair_bytes); 3]);
    let is_read = |got: &Result<GotAdmitted>| matches!(got, Ok(Admitted::Read(Some(_))));
    assert_eq!(got.iter().filter(|got| is_read(got)).count() as u64, 2 * pairs);
    let read_bytes = disk.meter().snapshot().since(&before).read_bytes;
    assert!(read_bytes < 10 << 20, "{read_bytes} bytes were read");
}

#[test]
fn a_located_value_is_read_by_its_view_after_its_file_would_have_been_removed() {
    let disk = disk(2);
    let db = open(&disk, &tiny()).unwrap();
    for n in 0..150 {
        db.put(&key(n), &value(n, 700)).unwrap();
    }
    db.compact().unwrap();
    (0..150).for_each(|n| drop(db.get(&key(n)).unwrap()));
    disk.set_cached(false);
    let view = db.view().unwrap();
    let gets: Vec<PendingGet> = (0..150).map(|n| pending(&view, n)).collect();
    let files: Vec<u32> = gets.iter().map(|get| get.located.unwrap().0.file.0).collect();
    let are_there = || {
        let paths = disk.paths();
        let names = |file: &u32| [format!("{file:08x}.seg"), format!("{file:08x}.val")];
        files.iter().flat_map(names).any(|name| paths.iter().any(|path| path.ends_with(&name)))
    };
    for round in 1..4 {
        for n in 0..150 {
            db.put(&key(n), &value(n + round, 700)).unwrap();
        }
        db.compact().unwrap();
    }
    assert!(are_there());
    for (n, pair) in (0..).zip(read(&view, gets)) {
        assert_eq!(pair.unwrap().value, value(n, 700), "key {n}");
    }
    drop(view);
    db.compact().unwrap();
    assert!(!are_there(), "without the view garbage collection removes the files");
}

#[test]
fn many_gets_answer_in_their_order_what_each_does_alone() {
    let disk = disk(3);
    let options = Options { segment_bytes_max: 1 << 20, ..tiny() };
    let db = open(&disk, &options).unwrap();
    let bytes = |n: u64| [0, 20, 64, 65, 700, 5000, 300 << 10][n as usize % 7];
    for n in (0..120).map(|n| n * 71 % 120) {
        db.put(&key(n), &value(n, bytes(n))).unwrap();
        if n == 40 {
            db.compact().unwrap();
        }
    }
    (0..120).for_each(|n| drop(db.get(&key(n)).unwrap()));
    db.delete(&key(50)).unwrap();
    db.put_ttl(&key(51), &value(51, 900), 1).unwrap();
    for is_cached in [true, false] {
        disk.set_cached(is_cached);
        let view = db.view().unwrap();
        let keys: Vec<u64> = (0..400).map(|at| at * 53 % 131).collect();
        let get = |n: &u64| match view.get_cached(&key(*n)).unwrap() {
            CachedGet::NeedsIo(get) if !n.is_multiple_of(3) => get,
            _ => PendingGet::of_key(key(*n).into()),
        };
        let (mut count, mut whole) = (0, 0);
        let got = view.get_many(keys.iter().map(get).collect(), &mut |pairs, bytes| {
            (count, whole) = (count + pairs, whole + bytes);
            assert!(bytes <= 4 << 20 || pairs == 1, "{pairs} pairs of {bytes} bytes");
            true
        });
        assert_eq!(got.len(), keys.len());
        let mut found = 0;
        for (n, got) in keys.iter().zip(got) {
            let pair = got.unwrap().read().unwrap();
            assert_eq!(pair, view.get(&key(*n)).unwrap(), "key {n}");
            assert_eq!(view.get_meta(&key(*n)).unwrap(), pair.as_ref().map(Pair::meta));
            found += usize::from(pair.is_some());
        }
        assert_eq!((count, whole > 12 << 20), (found, true), "{whole} bytes");
    }
}

fn path_of(disk: &SimVfs, at: &Locator) -> std::path::PathBuf {
    let path = |kind| Path::new(DIR).join(format!("log/{:08x}.{kind}", at.file.0));
    let is_there = |path: &std::path::PathBuf| disk.file_bytes(path).is_some();
    [path("val"), path("seg")].into_iter().find(is_there).unwrap()
}

#[test]
fn of_many_gets_only_those_of_unreadable_values_fail() {
    let disk = disk(4);
    let db = open(&disk, &tiny()).unwrap();
    for n in 0..60 {
        db.put(&key(n), &value(n, 2000)).unwrap();
    }
    db.compact().unwrap();
    (0..60).for_each(|n| drop(db.get(&key(n)).unwrap()));
    disk.set_cached(false);
    for n in [7, 31] {
        let found = db.store().index().get(&key(n)).unwrap();
        let Some(Found::Value { value: ValueRef::At(at), .. }) = found else { panic!("{found:?}") };
        let (path, offset) = (path_of(&disk, &at), u64::from(at.offset) + 900);
        disk.inject(match n {
            7 => Fault::FlipBit { path, offset, bit: 3 },
            _ => Fault::Unreadable { path, offset, bytes: 1 },
        })
        .unwrap();
    }
    let view = db.view().unwrap();
    for is_located in [true, false] {
        let get =
            |n| if is_located { pending(&view, n) } else { PendingGet::of_key(key(n).into()) };
        let got = view.get_many((0..60).map(get).collect(), &mut |_, _| true);
        for (n, got) in (0..).zip(got) {
            match got {
                Err(error) => assert!(n == 7 || n == 31, "key {n}: {error}"),
                Ok(got) => assert!(is_value(got, n) && n != 7 && n != 31, "key {n}"),
            }
        }
    }
}

fn is_value(got: GotAdmitted, n: u64) -> bool {
    matches!(got, Admitted::Read(Some(pair)) if pair.value == value(n, 2000))
}

#[test]
fn a_cached_value_keeps_no_memory_of_the_values_that_it_was_read_with() {
    let disk = disk(5);
    let options = Options { value_cache_bytes_max: 1 << 20, ..tiny() };
    let db = open(&disk, &options).unwrap();
    for n in 0..60 {
        db.put(&key(n), &value(n, 700)).unwrap();
    }
    db.compact().unwrap();
    let view = db.view().unwrap();
    let pairs = read(&view, (0..60).map(|n| PendingGet::of_key(key(n).into())).collect());
    disk.set_cached(false);
    for (n, read) in (0..).zip(&pairs) {
        let read = read.as_ref().unwrap();
        let CachedGet::Ready(Some(cached)) = view.get_cached(&key(n)).unwrap() else {
            panic!("key {n} is not in the cache");
        };
        assert_eq!(cached.value, read.value);
        assert_ne!(cached.value.as_ptr(), read.value.as_ptr(), "key {n} shares a longer read");
    }
}
