//! Scans page by page: what the next page needs is requested from the device while one is read.

use crate::common::{DIR, clock, disk, tiny};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_engine::{Db, EngineView, KeyRange, Options, Order, Pair, Result, ScanOptions};
use stele_simulated_disk::SimVfs;
use stele_storage::{FoundPair, Pages, PairSink, Passed};
use stele_vfs::{FileLayer, Open, Vfs, VfsFile, VfsLayer};

/// Page cache of value files, which holds only what was requested.
#[derive(Debug, Default)]
struct PageCache {
    holds_all: AtomicBool,
    requested: Mutex<Vec<(PathBuf, u64, u64)>>,
    /// Reads that waited for the device.
    waited: Mutex<usize>,
}

impl PageCache {
    /// Returns the number and bytes of the requests so far.
    fn requests(&self) -> (usize, u64) {
        let requested = self.requested.lock();
        (requested.len(), requested.iter().map(|(_, _, bytes)| bytes).sum())
    }

    fn take_waited(&self) -> usize {
        std::mem::take(&mut self.waited.lock())
    }
}

#[derive(Debug)]
struct CachedVfs(SimVfs, Arc<PageCache>);

impl VfsLayer for CachedVfs {
    fn below(&self) -> &dyn Vfs {
        &self.0
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        let file = self.0.open(path, how)?;
        let is_value_file = path.extension().is_some_and(|kind| kind == "seg" || kind == "val");
        Ok(match is_value_file {
            true => Arc::new(CachedFile(file, self.1.clone())),
            false => file,
        })
    }
}

#[derive(Debug)]
struct CachedFile(Arc<dyn VfsFile>, Arc<PageCache>);

impl FileLayer for CachedFile {
    fn below(&self) -> &dyn VfsFile {
        &*self.0
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        *self.1.waited.lock() += 1;
        self.0.read_at(buffer, offset)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool> {
        let end = offset + buffer.len() as u64;
        let is_held = self.1.holds_all.load(Ordering::Relaxed)
            || self.1.requested.lock().iter().any(|(path, from, bytes)| {
                path == self.0.path()
                    && (*from..=from + bytes).contains(&offset)
                    && end <= from + bytes
            });
        Ok(is_held && self.0.read_cached_at(buffer, offset)?)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        self.1.requested.lock().push((self.0.path().to_owned(), offset, bytes));
    }
}

const KEYS: u64 = 1500;
const VALUE_BYTES: usize = 20_000;
const PAGE: usize = 150;

/// Returns a store of values that lie in another order than their keys, too far apart to be read together.
fn scattered(cache: &Arc<PageCache>) -> Db {
    let disk = disk(1);
    disk.set_cached(true);
    let vfs = Arc::new(CachedVfs(disk, cache.clone()));
    let options = Options {
        segment_bytes_max: 32 << 20,
        memtable_bytes_max: 32 << 20,
        background: false,
        ..tiny()
    };
    let db = Db::open_with(vfs, clock(), Path::new(DIR), options).unwrap();
    for n in 0..KEYS {
        let key = n * 1009 % KEYS;
        db.put(&format!("k{key:04}").into_bytes(), &vec![key as u8; VALUE_BYTES]).unwrap();
    }
    db
}

fn page(db: &Db, range: KeyRange, order: Order) -> Vec<Pair> {
    let options = ScanOptions { order, ..ScanOptions::new(range, PAGE) };
    let view = db.view().unwrap();
    let mut found = Vec::new();
    view.scan_into(&options, &mut |_, _| true, &mut found).unwrap().read().unwrap();
    found
}

fn check(page: &[Pair], first: u64, order: Order) {
    assert_eq!(page.len(), PAGE);
    for (n, pair) in page.iter().enumerate() {
        let key = match order {
            Order::Forward => first + n as u64,
            Order::Reverse => first - n as u64,
        };
        assert_eq!(pair.key, format!("k{key:04}"));
        assert_eq!(pair.value, vec![key as u8; VALUE_BYTES]);
    }
}

#[test]
fn a_scan_that_continues_another_reads_ahead_what_memory_does_not_hold() {
    for order in [Order::Forward, Order::Reverse] {
        let cache = Arc::new(PageCache::default());
        let db = scattered(&cache);
        let first = if order == Order::Forward { 300 } else { 1199 };
        let next = |last: &Pair| match order {
            Order::Forward => KeyRange::new([&last.key[..], &[0]].concat(), ""),
            Order::Reverse => KeyRange::new("", last.key.clone()),
        };
        let range = match order {
            Order::Forward => KeyRange::new("k0300", ""),
            Order::Reverse => KeyRange::new("", "k1200"),
        };
        let first_page = page(&db, range, order);
        check(&first_page, first, order);
        let own = cache.requests();
        assert_eq!(own, (PAGE, (PAGE * VALUE_BYTES) as u64));
        assert_eq!(cache.take_waited(), PAGE);
        let mut last = first_page.last().unwrap().clone();
        for number in 1..5 {
            let before = cache.requests();
            let found = page(&db, next(&last), order);
            let away = number * PAGE as u64;
            check(&found, if order == Order::Forward { first + away } else { first - away }, order);
            let pages = if number == 1 { 2 } else { 1 };
            assert_eq!(cache.requests().0 - before.0, pages * PAGE, "page {number}");
            let waited = if number == 1 { PAGE } else { 0 };
            assert_eq!(cache.take_waited(), waited, "page {number}");
            last = found.last().unwrap().clone();
        }
        // A page anywhere else reads nothing ahead.
        let before = cache.requests();
        page(&db, KeyRange::new("k0000", "k0200"), order);
        assert_eq!(cache.requests().0 - before.0, PAGE);
        // What memory holds is not requested.
        cache.holds_all.store(true, Ordering::Relaxed);
        let before = cache.requests();
        page(&db, next(&last), order);
        assert_eq!(cache.requests(), before);
    }
}

/// Notes the requests so far whenever a pair is passed on.
struct Watch<'a>(&'a PageCache, Vec<usize>);

impl PairSink for Watch<'_> {
    fn take(&mut self, _: FoundPair<'_>) {
        self.1.push(self.0.requests().0);
    }
}

#[test]
fn the_second_page_and_the_second_slice_are_requested_before_the_first_is_used() {
    // Values of 4 MiB, which a slice ends with, and which are read ahead at most.
    const SLICE: usize = (4 << 20) / (VALUE_BYTES + 5) + 1;
    for order in [Order::Forward, Order::Reverse] {
        let cache = Arc::new(PageCache::default());
        let db = scattered(&cache);
        let view = db.view().unwrap();
        let options = ScanOptions { order, ..ScanOptions::new(KeyRange::all(), 900) };
        let mut watch = Watch(&cache, Vec::new());
        view.scan_into(&options, &mut |_, _| true, &mut watch).unwrap().read().unwrap();
        let requests = watch.1;
        assert_eq!(requests.len(), 900);
        for (n, requested) in requests.iter().enumerate() {
            let upto = (n / SLICE + 2) * SLICE;
            assert!(
                (upto - 2..=upto).contains(requested) || *requested == 900,
                "{requested} at {n}"
            );
        }
        assert_eq!(requests.last(), Some(&900), "each once, and none after the last");
        assert_eq!(cache.take_waited(), SLICE, "only the first slice waited");
        // Pages that end at their bytes. What all of them may have is known, and nothing after it.
        cache.requested.lock().clear();
        let view = db.view().unwrap();
        let range = KeyRange::new("k0100", "k1400");
        let mut pages = Pages::new(&view, ScanOptions { order, ..ScanOptions::new(range, 9) });
        let (mut left, mut last) = (250, 0);
        while left > 0 {
            pages.bound(left, 100 * (VALUE_BYTES + 5));
            let mut watch = Watch(&cache, Vec::new());
            let passed = pages.next_into(&mut |_, _| true, &mut watch).unwrap().read().unwrap();
            left -= passed.unwrap().pairs;
            last = watch.1[0];
            let known = 250 - left + left.min(SLICE);
            assert!(left == 0 || (known - 2..=known).contains(&last), "{last} with {left} left");
        }
        assert!(last <= 250, "{last}");
        assert_eq!(cache.take_waited(), 100);
        // What memory holds is not requested.
        cache.holds_all.store(true, Ordering::Relaxed);
        let before = cache.requests();
        let mut watch = Watch(&cache, Vec::new());
        view.scan_into(&options, &mut |_, _| true, &mut watch).unwrap().read().unwrap();
        assert_eq!(cache.requests(), before);
    }
}

#[test]
fn a_scan_of_a_view_ends_with_the_last_pair_that_fits_and_reads_no_value_after_it() {
    let cache = Arc::new(PageCache::default());
    let db = scattered(&cache);
    let pair_bytes = VALUE_BYTES + b"k0000".len();
    for (bytes_max, pairs) in
        [(1, 1), (pair_bytes, 1), (3 * pair_bytes, 3), (4 * pair_bytes - 1, 3)]
    {
        for order in [Order::Forward, Order::Reverse] {
            let range = KeyRange::new("k0100", "k1200");
            let options = ScanOptions { order, bytes_max, ..ScanOptions::new(range, 99) };
            let (view, mut found, mut admitted) = (db.view().unwrap(), Vec::new(), Vec::new());
            let mut admit = |pairs, bytes| {
                admitted.push((pairs, bytes));
                true
            };
            let passed = view.scan_into(&options, &mut admit, &mut found).unwrap().read().unwrap();
            assert_eq!((found.len(), passed), (pairs, Passed::of(&found)), "{bytes_max} bytes");
            assert_eq!(admitted, [(pairs, (pairs * pair_bytes) as u64)]);
            assert_eq!(cache.take_waited(), pairs);
            cache.requested.lock().clear();
        }
    }
}
