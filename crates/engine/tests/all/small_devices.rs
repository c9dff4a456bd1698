//! Stores on small devices, with default settings: what is full takes puts again, and a compaction
//! leaves only what is live.

use crate::common::{DIR, Random};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{Batch, Db, Error, GcOptions, LogStore, Options};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::ManualClock;
use stele_vfs::{Create, Open, Vfs};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn options() -> Options {
    Options { background: false, direct_io: false, value_cache_bytes_max: 0, ..Options::default() }
}

struct Small {
    disk: SimVfs,
    clock: Arc<ManualClock>,
    db: Db,
    value_bytes: usize,
    live: Vec<u32>,
    next: u32,
}

impl Small {
    fn new(device_bytes: usize, value_bytes: usize, options: Options) -> Self {
        let disk = device(device_bytes);
        let clock = Arc::new(ManualClock::at(1_000_000));
        let db = open(&disk, &clock, DIR, options);
        Self { disk, clock, db, value_bytes, live: Vec::new(), next: 0 }
    }

    fn value(&self, n: u32) -> Vec<u8> {
        Random(u64::from(n)).bytes(self.value_bytes)
    }

    /// Puts values of a batch of up to 16 KiB under new keys.
    fn put(&mut self) -> Result<(), Error> {
        let count = (16 * KIB / self.value_bytes).max(1) as u32;
        let mut batch = Batch::new();
        let new = self.next..self.next + count;
        for n in new.clone() {
            batch.put(&key(n), &self.value(n))?;
        }
        self.db.write(batch)?;
        self.next = new.end;
        self.live.extend(new);
        Ok(())
    }

    /// Puts until the store refuses; returns the number of values.
    fn fill(&mut self) -> usize {
        let before = self.live.len();
        loop {
            match self.put() {
                Ok(()) => self.maintain(),
                Err(Error::NoSpace(_)) => return self.live.len() - before,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Fills three times with ten seconds in between; returns the number of values.
    fn refill(&mut self) -> usize {
        let mut count = self.fill();
        for _ in 0..2 {
            self.pass(10);
            count += self.fill();
        }
        count
    }

    /// Deletes all, and checks that nearly as much as at first fits again.
    fn delete_all_and_refill(&mut self, filled: usize) {
        let all = std::mem::take(&mut self.live);
        self.delete(all);
        self.pass(10);
        let again = self.refill();
        assert!(again >= filled * 8 / 10, "{again} of {filled} fit after all was deleted");
        self.check();
    }

    /// Deletes the values with even keys.
    fn delete_half(&mut self) {
        let (gone, left) = self.live.iter().partition(|n| **n % 2 == 0);
        self.live = left;
        self.delete(gone);
    }

    fn delete(&mut self, keys: Vec<u32>) {
        for keys in keys.chunks(256) {
            let mut batch = Batch::new();
            for n in keys {
                batch.delete(&key(*n)).unwrap();
            }
            self.db.write(batch).unwrap();
            self.maintain();
        }
    }

    fn maintain(&self) {
        for _ in 0..100 {
            if !self.db.maintain(MIB as u64).unwrap().more {
                break;
            }
        }
    }

    /// Lets so many seconds pass. The background thread works meanwhile.
    fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.clock.advance_seconds(1);
            for _ in 0..1000 {
                if !self.db.maintain(MIB as u64).unwrap().more {
                    break;
                }
            }
        }
    }

    /// Checks some values, and that no other key exists.
    fn check(&self) {
        for n in self.live.iter().step_by(1 + self.live.len() / 50) {
            let found = self.db.get(&key(*n)).unwrap();
            assert!(found.is_some_and(|found| found == self.value(*n)), "key {n}");
        }
        let all = stele_engine::KeyRange::all();
        let found = self.db.iter_keys(all, stele_engine::Order::Forward).unwrap().count();
        assert_eq!(found, self.live.len());
    }

    fn files(&self) -> (BTreeMap<PathBuf, u64>, u64) {
        let mut files = BTreeMap::new();
        for dir in ["log", "index"] {
            let dir = Path::new(DIR).join(dir);
            for entry in self.disk.list(&dir).unwrap() {
                files.insert(dir.join(entry.name), entry.bytes);
            }
        }
        let bytes = files.values().sum();
        (files, bytes)
    }

    fn files_with(&self, extension: &str) -> Vec<u64> {
        let is = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
        self.files().0.into_iter().filter(|(path, _)| is(path)).map(|(_, bytes)| bytes).collect()
    }
}

fn device(bytes: usize) -> SimVfs {
    let capacity_bytes = Some(bytes as u64);
    SimVfs::new(SimOptions { seed: 1, capacity_bytes, ..SimOptions::default() })
}

fn open(disk: &SimVfs, clock: &Arc<ManualClock>, dir: &str, options: Options) -> Db {
    Db::open_with(Arc::new(disk.clone()), clock.clone(), Path::new(dir), options).unwrap()
}

fn key(n: u32) -> Vec<u8> {
    format!("k{n:07}").into_bytes()
}

/// Fills a device, deletes half and then all, and fills it again each time.
fn fill_and_delete(device_bytes: usize, value_bytes: usize) {
    let mut small = Small::new(device_bytes, value_bytes, options());
    let filled = small.fill();
    let bytes = filled * value_bytes;
    assert!(bytes >= device_bytes / 2, "{bytes} bytes fit on a device of {device_bytes}");
    assert!(small.db.store().space().is_full);
    small.delete_half();
    small.pass(10);
    assert!(!small.db.store().space().is_full);
    let again = small.refill();
    assert!(again >= filled / 3, "{again} of {filled} fit after half was deleted");
    small.check();
    small.delete_all_and_refill(filled);
}

#[test]
fn deletes_free_a_full_device_within_ten_seconds_without_a_restart_and_a_write() {
    fill_and_delete(64 * MIB, MIB);
}

#[test]
fn deletes_of_small_values_free_a_full_device_within_ten_seconds() {
    fill_and_delete(32 * MIB, 4 * KIB);
}

#[test]
fn deletes_of_tiny_values_free_a_full_device_within_ten_seconds() {
    fill_and_delete(16 * MIB, 100);
}

#[test]
fn deletes_of_values_larger_than_a_segment_free_a_full_device_within_ten_seconds() {
    fill_and_delete(160 * MIB, 16 * MIB);
}

#[test]
fn the_head_of_the_log_is_sealed_when_what_is_dead_in_it_is_needed() {
    let options = Options { segment_bytes_max: 100 << 20, ..options() };
    let mut small = Small::new(64 * MIB, MIB, options);
    let filled = small.fill();
    assert_eq!(small.files_with("seg").len(), 1, "all values are in the head");
    let all = std::mem::take(&mut small.live);
    small.delete(all);
    small.pass(10);
    let again = small.fill();
    assert!(again >= filled * 8 / 10, "{again} of {filled} fit");
}

#[test]
fn a_delete_beside_a_large_put_in_the_memtable_is_seen_within_ten_seconds() {
    let mut small = Small::new(64 * MIB, MIB, options());
    small.fill();
    small.db.flush().unwrap();
    small.pass(3);
    // The put is large, so the memtable holds more bytes of values than of keys.
    small.delete(vec![small.live[0]]);
    small.live.remove(0);
    while small.put().is_err() {
        small.pass(1);
        assert!(small.clock_s() < 1_000_014, "one value of 1 MiB does not fit");
    }
    let gone: Vec<u32> = small.live.drain(..8).collect();
    small.delete(gone);
    small.pass(10);
    (0..7).for_each(|_| small.put().unwrap());
    small.check();
}

/// Whether so much is held on a device of 64 MiB: a 16th, and what memtables may need.
fn is_reserve(bytes: u64) -> bool {
    (4 << 20..5 << 20).contains(&bytes)
}

impl Small {
    fn clock_s(&self) -> u64 {
        use stele_types::Clock;
        self.clock.unix_seconds()
    }
}

#[test]
fn a_compaction_of_a_full_store_removes_dead_files_first() {
    let gc = GcOptions { flush_interval_s: 0, ..GcOptions::default() };
    let mut small = Small::new(64 * MIB, MIB, Options { gc, ..options() });
    let filled = small.fill();
    let (gone, left): (Vec<u32>, Vec<u32>) = small.live.iter().partition(|n| **n < 30);
    small.delete(gone);
    small.live = left;
    // No maintenance runs in between: the values that are left do not fit beside the dead ones.
    small.db.compact().unwrap();
    small.check();
    assert!(small.fill() >= 30 * 8 / 10, "{filled}");
}

#[test]
fn the_reserve_is_held_by_the_file_system_and_returned_to_what_frees_space() {
    let mut small = Small::new(64 * MIB, MIB, options());
    (0..20).for_each(|_| small.put().unwrap());
    let reserve_bytes = small.reserve_bytes();
    assert!(is_reserve(reserve_bytes), "{reserve_bytes} is not a 16th of the device");
    let space = small.db.store().space();
    assert!(space.is_reserve_allocated && !space.is_full, "{space:?}");
    // Another user takes everything that the device has free.
    let free = small.disk.free_bytes(Path::new(DIR)).unwrap();
    small.disk.write_file("/other", &vec![1; free as usize]);
    small.clock.advance_seconds(1);
    let key = key(99);
    assert!(matches!(small.db.put(&key, &vec![1; MIB]), Err(Error::NoSpace(_))));
    let space = small.db.store().space();
    assert!(space.is_full && space.is_short && space.is_reserve_allocated, "{space:?}");
    let gone: Vec<u32> = small.live.drain(..12).collect();
    small.delete(gone);
    small.pass(10);
    let space = small.db.store().space();
    assert!(!space.is_full && space.is_reserve_allocated, "{space:?}");
    (0..8).for_each(|_| small.put().unwrap());
    small.check();
}

#[test]
fn a_store_short_of_space_keeps_nothing_for_readers_of_logs() {
    let history_bytes_max = 1 << 40;
    let mut small = Small::new(64 * MIB, MIB, Options { history_bytes_max, ..options() });
    for _ in 0..20 {
        small.put().unwrap();
        small.maintain();
    }
    assert!(small.db.store().log().pinned().bytes > 16 << 20, "all segments stay for readers");
    let filled = small.fill();
    let gone: Vec<u32> = small.live.drain(..).collect();
    small.delete(gone);
    small.pass(10);
    assert!(small.fill() >= filled / 2, "{filled}");
    small.check();
}

impl Small {
    fn reserve_bytes(&self) -> u64 {
        self.disk.file_bytes(Path::new(DIR).join("RESERVE")).unwrap()
    }

    /// Lets another user of the device take everything that is free.
    fn fill_from_outside(&self) {
        let free = self.disk.free_bytes(Path::new(DIR)).unwrap();
        let how = Open { create: Create::New, ..Open::WRITE };
        let other = self.disk.open(Path::new("/other"), how).unwrap();
        other.set_len(free).unwrap();
        other.allocate(free).unwrap();
    }
}

#[test]
fn the_reserve_covers_the_largest_file_before_it_grows_and_a_store_of_few_keys_holds_little() {
    for value_bytes in [100, MIB, 16 * MIB] {
        let mut small = Small::new(8192 * MIB, value_bytes, options());
        let held = small.reserve_bytes();
        assert!(held < 5 << 20, "{held} are held by a new store");
        // Nothing runs in between: the puts alone make the reserve grow.
        let limit = if value_bytes == 100 { 6 * MIB } else { 48 * MIB };
        while small.files().1 < limit as u64 {
            small.put().unwrap();
            let segments = small.files_with("seg");
            let (held, largest) = (small.reserve_bytes(), segments.iter().max().unwrap());
            assert!(held >= *largest, "{held} are held for {largest}");
            let all = small.files().1;
            assert!(held <= (8 << 20) + all * 3, "{held} are held for {all}");
        }
        let all = std::mem::take(&mut small.live);
        small.delete(all);
        small.db.compact().unwrap();
        let held = small.reserve_bytes();
        assert!(held < 16 << 20, "{held} are held by an empty store");
    }
}

#[test]
fn a_reserve_that_follows_the_data_suffices_to_free_a_device_that_another_user_filled() {
    for (value_bytes, count) in [(100, 40_000), (4 * KIB, 3000), (MIB, 20), (8 * MIB, 4)] {
        let mut small = Small::new(1024 * MIB, value_bytes, options());
        while small.live.len() < count {
            small.put().unwrap();
            small.maintain();
        }
        assert!(small.reserve_bytes() < 64 << 20, "the reserve has not reached its size");
        small.fill_from_outside();
        small.clock.advance_seconds(1);
        while small.put().is_ok() {}
        small.delete_half();
        small.pass(10);
        let space = small.db.store().space();
        assert!(!space.is_full, "{value_bytes}: {space:?}");
        let again = small.fill();
        assert!(again >= count / 4, "{again} of {count} values of {value_bytes} fit");
        small.check();
    }
}

#[test]
fn two_stores_of_one_file_system_hold_reserves_of_their_own() {
    let mut small = Small::new(64 * MIB, MIB, options());
    let other = open(&small.disk, &small.clock, "/other", options());
    let reserve = |dir: &str| small.disk.file_bytes(Path::new(dir).join("RESERVE")).unwrap();
    assert!(is_reserve(reserve(DIR)) && is_reserve(reserve("/other")));
    small.fill();
    let mut count = 0;
    while other.put(&key(count), &vec![1; MIB]).is_ok() {
        count += 1;
    }
    assert!(count <= 2, "{count} more");
    let reserve = |dir: &str| small.disk.file_bytes(Path::new(dir).join("RESERVE")).unwrap();
    let (reserve, other) = (reserve(DIR), reserve("/other"));
    assert!(is_reserve(reserve) && is_reserve(other), "{reserve} {other}");
}

#[test]
fn a_file_system_that_cannot_hold_space_is_named_and_keeps_the_reserve_free() {
    let without = SimOptions {
        capacity_bytes: Some(64 << 20),
        is_without_reservations: true,
        ..SimOptions::default()
    };
    let disk = SimVfs::new(without);
    let clock = Arc::new(ManualClock::at(1_000_000));
    let db = open(&disk, &clock, DIR, options());
    assert!(!disk.exists(&Path::new(DIR).join("RESERVE")).unwrap());
    assert!(!db.store().space().is_reserve_allocated);
    let mut count = 0;
    while db.put(&key(count), &vec![1; MIB]).is_ok() {
        count += 1;
    }
    assert!(disk.free_bytes(Path::new(DIR)).unwrap() >= 4 * MIB as u64 - 64 * KIB as u64);
}

#[test]
fn freed_segments_are_room_for_puts() {
    let gc = GcOptions { flush_interval_s: 0, ..GcOptions::default() };
    let options = Options { segment_bytes_max: 8 << 20, gc, ..options() };
    let mut small = Small::new(64 * MIB, MIB, options);
    (0..44).for_each(|_| small.put().unwrap());
    let all = std::mem::take(&mut small.live);
    small.delete(all);
    small.db.flush().unwrap();
    small.pass(2);
    assert!(small.db.stats().log.free_segments > 0, "{:?}", small.db.stats().log);
    // Another user leaves 4 MiB beside what the segments hold.
    let free = small.disk.free_bytes(Path::new(DIR)).unwrap();
    small.disk.write_file("/other", &vec![1; free as usize - 4 * MIB]);
    small.db.put(b"large", &vec![1; 6 * MIB]).unwrap();
}

#[test]
fn expired_pairs_are_dropped_within_ten_seconds_of_the_time_from_which_they_may_be() {
    let mut small = Small::new(64 * MIB, MIB, options());
    for n in 0..16 {
        small.db.put_ttl(format!("t{n}").as_bytes(), &vec![n; MIB], 60).unwrap();
    }
    let filled = small.fill();
    // The clock is noted each ten minutes, and a time counts an hour after it was shown.
    for _ in 0..8 {
        small.clock.advance_seconds(600);
        small.pass(1);
    }
    small.pass(9);
    assert!(small.fill() >= 12, "{filled}");
}

#[test]
fn a_compaction_leaves_sorted_files_runs_and_an_empty_segment_and_a_second_one_changes_nothing() {
    for value_bytes in [100, 4 * KIB, MIB, 5 * MIB] {
        let mut small = Small::new(400 * MIB, value_bytes, options());
        let count = (8 * MIB / value_bytes).clamp(4, 20_000);
        while small.live.len() < count {
            small.put().unwrap();
        }
        for n in 0..count / 4 {
            small.db.put_ttl(format!("t{n}").as_bytes(), &vec![7; value_bytes], 60).unwrap();
        }
        small.delete_half();
        // The clock is noted each ten minutes, and a time counts an hour after it was shown.
        for _ in 0..8 {
            small.clock.advance_seconds(600);
            small.maintain();
        }
        small.db.compact().unwrap();
        let (files, _) = small.files();
        let pairs = small.live.len();
        let payload = pairs * (8 + value_bytes);
        let sorted: u64 = small.files_with("val").iter().sum();
        assert!(sorted as usize <= payload + 33 * pairs + 256, "{sorted} for {payload}");
        let segments = small.files_with("seg");
        assert!(segments.len() == 1 && segments[0] <= 8 << 10, "{segments:?}");
        let others = ["val", "seg", "run"];
        let is_other = |path: &PathBuf| {
            let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
            !others.contains(&extension)
        };
        let left: Vec<_> = files.keys().filter(|path| is_other(path)).collect();
        assert!(left.len() == 1, "{left:?}");
        assert!(left[0].to_string_lossy().contains("manifest"), "{left:?}");
        small.db.compact().unwrap();
        assert_eq!(small.files().0, files);
        small.check();
        let db = &small.db;
        let live = db.stats().engine.live_bytes_estimate as usize;
        assert!((payload..=payload + 33 * pairs).contains(&live), "{live} of {payload}");
    }
}

#[test]
fn a_compaction_needs_no_more_than_the_reserve_beyond_what_it_frees() {
    for value_bytes in [100, 4 * KIB, MIB] {
        let mut small = Small::new(400 * MIB, value_bytes, options());
        while small.live.len() < (32 * MIB / value_bytes).min(60_000) {
            small.put().unwrap();
            small.maintain();
        }
        small.db.flush().unwrap();
        let before = small.files().1;
        // The store has no garbage, and the device no room but the reserve.
        let free = small.disk.free_bytes(Path::new(DIR)).unwrap();
        small.disk.write_file("/other", &vec![1; free as usize]);
        small.db.compact().unwrap();
        let after = small.files().1;
        // A pair takes up to 33 bytes beside its payload, and in a long frame of the log fewer.
        let allowed = before + 10 * small.live.len() as u64 + (64 << 10);
        assert!(after <= allowed, "{before} grow to {after}");
        small.check();
    }
}

#[test]
fn a_compaction_keeps_the_deletes_of_values_that_a_view_holds() {
    let options = Options { segment_bytes_max: 64 << 10, ..options() };
    let small = Small::new(64 * MIB, 4 * KIB, options);
    small.db.put(b"gone", &[1; 4000]).unwrap();
    small.db.flush().unwrap();
    let all = stele_engine::KeyRange::all();
    let view = small.db.iter(all, stele_engine::Order::Forward).unwrap();
    (0..20).for_each(|n| small.db.put(&key(n), &[2; 4000]).unwrap());
    small.db.flush().unwrap();
    small.maintain();
    // The view holds no segment that is created from here on.
    (20..40).for_each(|n| small.db.put(&key(n), &[2; 4000]).unwrap());
    small.db.delete(b"gone").unwrap();
    small.db.compact().unwrap();
    assert_eq!(small.files_with("graves").len(), 1, "a segment holds the older value");
    drop(view);
    small.db.compact().unwrap();
    assert_eq!(small.files_with("graves").len(), 0);
}

#[test]
fn a_merge_that_does_not_fit_goes_run_by_run() {
    // All values are in the index.
    let mut small = Small::new(8 * MIB, 60, options());
    let filled = small.fill();
    let (gone, left): (Vec<u32>, Vec<u32>) = small.live.iter().partition(|n| **n % 10 == 0);
    small.live = left;
    small.delete(gone);
    small.pass(10);
    let again = small.fill();
    assert!(again >= filled / 30, "{again} of {filled} fit after a tenth was deleted");
    small.check();
    small.delete_half();
    small.db.compact().unwrap();
    small.check();
    let again = small.refill();
    assert!(again >= filled / 3, "{again} of {filled} fit after half was deleted");
    small.delete_all_and_refill(filled);
}
