//! Values read together: in few long reads, correct at every edge, without keeping their buffers.

use crate::common::*;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_log::{Log, LogOptions, RecoverFrom};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{Cause, Error, Locator, Lsn, Result};
use stele_vfs::{FileLayer, Open, Vfs, VfsFile, VfsLayer};

const LONG: usize = 16_000;

fn sorted(log: &Log, values: u64, bytes: usize) -> Vec<Locator> {
    let mut writer = log.sorted_writer(Cause::Sort).unwrap();
    let places = (0..values)
        .map(|n| writer.append(&n.to_be_bytes(), Lsn::default(), 0, &value(n, bytes)).unwrap())
        .collect();
    writer.finish().unwrap();
    places
}

fn reads(disk: &SimVfs) -> (u64, u64) {
    let meter = disk.meter().snapshot();
    (meter.reads, meter.read_bytes)
}

#[test]
fn neighbours_come_in_long_reads_whatever_the_order_and_the_way() {
    for direct in [true, false] {
        let disk = disk(1);
        let options = LogOptions { direct, ..options() };
        let (log, _) = open_with(&disk, options, RecoverFrom::default()).unwrap();
        let places = sorted(&log, 400, LONG);
        let (calls, bytes) = reads(&disk);
        let mut asked: Vec<usize> = (0..400).collect();
        asked.swap(0, 399);
        asked.swap(7, 200);
        let at: Vec<Locator> = asked.iter().map(|&n| places[n]).collect();
        for (value, n) in log.get_many(&at).unwrap().iter().zip(asked) {
            assert_eq!(value, &crate::common::value(n as u64, LONG), "value {n}");
        }
        let (calls, bytes) = (reads(&disk).0 - calls, reads(&disk).1 - bytes);
        // One piece of two goes through the page cache, by itself.
        assert!((2..=13).contains(&calls), "6.4 MB in pieces of 512 KiB or longer: {calls}");
        assert!(bytes < 400 * (LONG as u64 + 100) + 4 * 4096, "{bytes} bytes were read");
        // From one end of the file to the other, values too far apart to be read along.
        let ends = log.get_many(&[places[399], places[0]]).unwrap();
        assert_eq!(ends, [value(399, LONG), value(0, LONG)]);
    }
}

#[test]
fn few_values_do_not_keep_a_long_read_in_memory_and_many_give_it_back() {
    let disk = disk(2);
    let (log, _) = open(&disk);
    let (short, long) = (sorted(&log, 2000, 300), sorted(&log, 250, LONG));
    let before = log.stats().memory_bytes;
    let held = log.get_many(&short).unwrap();
    let free = log.stats().memory_bytes - before;
    assert!(free >= 2 << 20, "the buffer is free again while the values are held");
    let longs = log.get_many(&long).unwrap();
    assert_eq!(log.stats().memory_bytes - before, free, "values of a full buffer share it");
    drop(longs);
    let free = log.stats().memory_bytes - before;
    assert!(free >= 6 << 20, "two buffers are kept");
    // Every other value: much of what is read was not requested, so the values are copied.
    let few: Vec<Locator> = long.iter().step_by(2).copied().collect();
    let copies = log.get_many(&few).unwrap();
    assert_eq!(copies.len(), 125);
    assert_eq!(held.iter().map(|value| value.len()).sum::<usize>(), 2000 * 300);
    assert_eq!(log.stats().memory_bytes - before, free);
}

#[test]
fn values_of_files_that_follow_each_other_share_a_buffer() {
    let disk = disk(5);
    let (log, _) = open(&disk);
    // Each file's part alone is less than half of a buffer.
    let files: Vec<_> = (0..2).map(|_| sorted(&log, 60, LONG)).collect();
    let before = log.stats().memory_bytes;
    let held = log.get_many(&files.concat()).unwrap();
    assert_eq!(log.stats().memory_bytes, before, "the values share it");
    let right = held.iter().zip((0..60).chain(0..60)).all(|(held, n)| held == &value(n, LONG));
    assert!(right);
    drop(held);
    assert_eq!(log.stats().memory_bytes - before, 2 << 20, "one buffer");
}

#[test]
fn damage_in_a_long_read_is_told_and_a_wrong_read_is_made_again() {
    let disk = disk(3);
    let (log, _) = open(&disk);
    let places = sorted(&log, 100, LONG);
    let file = format!("{:08x}.val", places[0].file.0);
    disk.inject(Fault::ReadFlipsOnce { path_contains: file.clone(), nth: 1 }).unwrap();
    for (value, n) in log.get_many(&places).unwrap().iter().zip(0..) {
        assert_eq!(value, &crate::common::value(n, LONG));
    }
    let path = std::path::Path::new(DIR).join(&file);
    disk.corrupt(&path, u64::from(places[50].offset) + 9, b"damage").unwrap();
    assert!(matches!(log.get_many(&places), Err(Error::Corrupt { .. })));
    assert_eq!(log.get_many(&places[..50]).unwrap().len(), 50);
    disk.inject(Fault::ReadFails { path_contains: file, nth: 1 }).unwrap();
    assert!(log.get_many(&places[..50]).is_err());
}

#[test]
fn scattered_values_are_right_whether_memory_has_them_or_not() {
    for is_cached in [false, true] {
        let disk = disk(6);
        let (log, _) = open(&disk);
        let places = sorted(&log, 300, LONG);
        disk.set_cached(is_cached);
        // Too far apart to be read together.
        let asked: Vec<usize> = (0..300).rev().step_by(3).collect();
        let at: Vec<Locator> = asked.iter().map(|&n| places[n]).collect();
        let read = log.read_many(&at).unwrap();
        assert_eq!(read.reads, 100);
        for ((at, read), n) in at.iter().zip(read.into_values()).zip(asked) {
            assert_eq!(log.checked(at, read).unwrap(), value(n as u64, LONG));
        }
        assert_eq!(log.read_many(&places[..50]).unwrap().reads, 1);
    }
}

#[test]
fn of_records_that_move_neighbours_come_in_one_read_as_long_as_that_is_less_work() {
    let disk = disk(8);
    let (log, _) = open(&disk);
    let places = sorted(&log, 3000, 700);
    let calls = |every: usize, moves: bool| {
        let asked: Vec<_> = (0..3000).step_by(every).map(|n| (8, places[n])).collect();
        let at: Vec<Locator> = asked.iter().map(|(_, at)| *at).collect();
        let before = reads(&disk).0;
        let values = match moves {
            true => log.read_records(&asked).unwrap(),
            false => log.read_many(&at).unwrap().into_values(),
        };
        assert_eq!(values.len(), asked.len());
        (values.len() as u64, reads(&disk).0 - before)
    };
    // 22 KB from one to the next.
    assert_eq!(calls(30, true), (100, 1));
    assert_eq!(calls(30, false), (100, 100));
    // 44 KB: one read each.
    assert_eq!(calls(60, true), (50, 50));
}

#[test]
fn records_that_move_are_read_with_their_versions_and_never_as_other_than_written() {
    let disk = disk(7);
    let (log, _) = open(&disk);
    let mut writer = log.sorted_writer(Cause::Sort).unwrap();
    let version = |n: u64| Lsn::new(stele_types::FileId(1), 4096 + n as u32);
    let mut append =
        |n: u64| writer.append(&n.to_be_bytes(), version(n), 0, &value(n, 700)).unwrap();
    let places: Vec<Locator> = (0..60).map(&mut append).collect();
    writer.finish().unwrap();
    let asked: Vec<_> = places.iter().map(|at| (8, *at)).collect();
    let read = || log.read_records(&asked).unwrap();
    for (n, (at, read)) in (0..60_u64).zip(places.iter().zip(read())) {
        assert_eq!(
            log.record(&n.to_be_bytes(), at, read).unwrap(),
            (value(n, 700).into(), version(n))
        );
    }
    // Nothing was read ahead, or something else.
    let (at, key) = (&places[9], 9_u64.to_be_bytes());
    let expected = (value(9, 700).into(), version(9));
    assert_eq!(log.record(&key, at, stele_log::Unchecked::default()).unwrap(), expected);
    assert_eq!(log.record(&key, at, read().swap_remove(8)).unwrap(), expected);
    // A wrong read is repeated; wrong bytes on the device are an error.
    let file = format!("{:08x}.val", at.file.0);
    disk.inject(Fault::ReadFlipsOnce { path_contains: file.clone(), nth: 1 }).unwrap();
    for (n, (at, read)) in (0..60_u64).zip(places.iter().zip(read())) {
        assert_eq!(log.record(&n.to_be_bytes(), at, read).unwrap().1, version(n));
    }
    let path = std::path::Path::new(DIR).join(&file);
    for offset in [at.offset + 5, at.offset - 20] {
        disk.corrupt(&path, u64::from(offset), b"damage").unwrap();
        let ahead = read().swap_remove(9);
        assert!(log.record(&key, at, ahead).unwrap_err().is_damage(), "at {offset}");
        let (at, key) = (&places[10], 10_u64.to_be_bytes());
        assert_eq!(log.record(&key, at, read().swap_remove(10)).unwrap().1, version(10));
    }
}

#[test]
fn a_removed_file_is_not_read_through_a_kept_handle() {
    let disk = disk(4);
    let (log, _) = open(&disk);
    let places = sorted(&log, 40, LONG);
    assert_eq!(log.get_many(&places).unwrap().len(), 40);
    log.remove(places[0].file).unwrap();
    assert!(matches!(log.get_many(&places), Err(Error::Missing { .. })));
}

#[test]
fn what_is_read_again_and_again_comes_through_the_page_cache_as_long_as_it_is_there() {
    let disk = disk(9);
    let (log, _) = open(&disk);
    let places = sorted(&log, 400, LONG);
    let calls_after = |times: usize| {
        (1..times).for_each(|_| assert_eq!(log.get_many(&places).unwrap().len(), 400));
        let before = reads(&disk).0;
        log.get_many(&places).unwrap();
        reads(&disk).0 - before
    };
    let first = calls_after(1);
    assert!(first < 13, "{first} reads, some of them longer and past the page cache");
    let found = calls_after(200);
    assert!(found >= 13, "{found} reads of 512 KiB, each found in the page cache");
    disk.set_cached(false);
    let lost = calls_after(100);
    assert!(lost <= 6, "{lost} reads once every read misses the cache, nearly all past it");
}

#[test]
fn values_read_in_memory_are_there_as_a_whole_and_never_awaited() {
    let disk = disk(10);
    let (log, _) = open(&disk);
    let (short, long) = (sorted(&log, 100, 700), sorted(&log, 60, LONG));
    let scattered: Vec<Locator> = [short[3], long[50], long[9], short[80], long[11]].into();
    let in_memory = |at: &[Locator]| log.read_many_in_memory(at).unwrap();
    disk.set_cached(true);
    assert!(in_memory(&scattered).is_none(), "their files are not open");
    assert_eq!(log.get_many(&scattered).unwrap().len(), 5);
    for at in [&scattered[..], &short[7..9], &short[..1], &short[..0], &short] {
        let read = in_memory(at).unwrap();
        for (number, at) in at.iter().enumerate() {
            let (memory, part) = read.checked(number, at).unwrap();
            assert_eq!(memory.slice(part), log.get(at).unwrap());
        }
        assert!(read.checked(at.len(), &short[0]).is_none());
    }
    assert!(in_memory(&long).is_none(), "a long read may bypass the page cache");
    let wrong = Locator { crc: !short[3].crc, ..short[3] };
    assert!(in_memory(&[wrong]).unwrap().checked(0, &wrong).is_none());
    disk.set_cached(false);
    let before = reads(&disk);
    assert!(in_memory(&scattered).is_none() && in_memory(&short[..1]).is_none());
    assert_eq!(reads(&disk), before);
}

#[test]
fn short_values_share_a_buffer_that_is_used_again() {
    let disk = disk(11);
    let (log, _) = open(&disk);
    let places = sorted(&log, 3000, 700);
    disk.set_cached(true);
    // 22 KB from one to the next: a read each.
    let at: Vec<Locator> = places.iter().step_by(30).take(60).copied().collect();
    let before = log.stats().memory_bytes;
    let held = log.get_many(&at).unwrap();
    assert_eq!(log.stats().memory_bytes, before, "the values share it");
    let bytes = held.iter().map(|value| value.as_ptr().addr());
    let (first, last) = (bytes.clone().min().unwrap(), bytes.max().unwrap());
    assert_eq!(last - first, 59 * 700);
    drop(held);
    assert_eq!(log.stats().memory_bytes - before, 64 << 10);
    let again = log.get_many(&at).unwrap();
    assert_eq!((again.len(), log.stats().memory_bytes), (60, before));
}

#[test]
fn a_sort_reads_at_most_two_bytes_for_each_byte_of_its_values() {
    let disk = disk(12);
    let (log, _) = open(&disk);
    let places = sorted(&log, 3000, 700);
    for (every, reads_max) in [(1, 9), (2, 9), (3, 600), (5, 600), (30, 100)] {
        let asked: Vec<_> = (0..3000).step_by(every).map(|n| (8, places[n])).collect();
        let before = reads(&disk);
        let values = log.read_records_to_sort(&asked).unwrap();
        let (calls, bytes) = (reads(&disk).0 - before.0, reads(&disk).1 - before.1);
        let record_bytes = u64::from(places[1].offset - places[0].offset);
        let wanted = asked.len() as u64 * record_bytes;
        assert!(bytes <= 2 * wanted + 8192, "every {every}: {bytes} for {wanted}");
        assert!(calls <= reads_max, "every {every}: {calls} reads");
        for ((key, (_, at)), read) in (0..3000_u64).step_by(every).zip(&asked).zip(values) {
            assert_eq!(log.record(&key.to_be_bytes(), at, read).unwrap().0, value(key, 700));
        }
    }
}

/// A disk that counts what is requested from it.
#[derive(Debug)]
struct RequestedVfs(SimVfs, Arc<AtomicU64>);

impl VfsLayer for RequestedVfs {
    fn below(&self) -> &dyn Vfs {
        &self.0
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        Ok(Arc::new(RequestedFile(self.0.open(path, how)?, self.1.clone())))
    }
}

#[derive(Debug)]
struct RequestedFile(Arc<dyn VfsFile>, Arc<AtomicU64>);

impl FileLayer for RequestedFile {
    fn below(&self) -> &dyn VfsFile {
        &*self.0
    }

    fn will_read(&self, _: u64, bytes: u64) {
        self.1.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn what_is_read_ahead_is_bounded_and_asked_for_once() {
    const BYTES_MAX: u64 = (4 << 20) + (256 << 10);
    let (disk, requested) = (disk(13), Arc::new(AtomicU64::new(0)));
    let take = || requested.swap(0, Ordering::Relaxed);
    let vfs = Arc::new(RequestedVfs(disk.clone(), requested.clone()));
    let (log, _) = Log::open(vfs, Path::new(DIR), options(), RecoverFrom::default()).unwrap();
    let places = sorted(&log, 900, LONG);
    disk.set_cached(false);
    // Too far apart to be read together.
    let at: Vec<Locator> = places.iter().step_by(3).copied().collect();
    let (own, ahead) = at.split_at(10);
    let own_bytes = own.len() as u64 * LONG as u64;
    let asked = AtomicU64::new(0);
    let read = |own: &[Locator], ahead: &[Locator]| {
        let ahead = || {
            asked.fetch_add(1, Ordering::Relaxed);
            ahead.to_vec()
        };
        let values = log.read_many_ahead(own, ahead).unwrap().into_values();
        own.iter().zip(values).for_each(|(at, read)| drop(log.checked(at, read).unwrap()));
        take()
    };
    take();
    assert_eq!(read(own, &ahead[..9]), own_bytes + 9 * LONG as u64);
    let bytes = read(own, ahead);
    assert!(ahead.len() * LONG > BYTES_MAX as usize && bytes > BYTES_MAX);
    assert!(bytes <= own_bytes + BYTES_MAX, "{bytes}");
    // A long read bypasses the page cache.
    assert_eq!(read(own, &places[100..200]), own_bytes);
    assert_eq!(asked.swap(0, Ordering::Relaxed), 3);
    // One read alone need not be requested before it is awaited.
    assert_eq!(read(&own[..1], &ahead[..9]), 9 * LONG as u64);
    assert_eq!(asked.into_inner(), 1);
}
