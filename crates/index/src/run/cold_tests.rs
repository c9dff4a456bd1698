//! Tests of cold runs: what they read, and what damage does to them.

use super::page_table::PAGE_BYTES;
use super::parts::Reads;
use super::reader::read_fences;
use super::tests::{DIR, Entries, ID, disk, get, located, open_cold, options, shared, write};
use super::*;
use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::cursor::{Found, Lookup};
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_simulated_disk::SimVfs;
use stele_types::KeyRange;
use stele_vfs::Vfs;

const KEYS: u64 = 14_000;

/// Returns the key of an even number; odd ones lie between them.
fn key(n: u64) -> Vec<u8> {
    format!("user{n:09}").into_bytes()
}

fn filled() -> (SimVfs, Entries) {
    let entries: Entries = (0..KEYS).map(|n| (key(2 * n), located(n, 0))).collect();
    let sim = disk();
    write(&shared(&sim), &options(512), &entries, RunExtra::default());
    (sim, entries)
}

fn flip(sim: &SimVfs, at: u64) {
    let path = run_path(Path::new(DIR), ID);
    let byte = sim.read_file(&path).unwrap()[at as usize];
    sim.corrupt(&path, at, &[byte ^ 0x10]).unwrap();
}

/// Walks over the whole run in both directions; returns the keys until the first failure.
fn walk(run: &Arc<Run>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let (mut forward, mut back) = (Vec::new(), Vec::new());
    let mut cursor = run.cursor();
    let mut moved = cursor.seek(b"");
    while moved.is_ok() && cursor.valid() {
        forward.push(cursor.key().to_vec());
        moved = cursor.next();
    }
    let mut moved = cursor.seek_before(None);
    while moved.is_ok() && cursor.valid() {
        back.push(cursor.key().to_vec());
        moved = cursor.prev();
    }
    (forward, back)
}

/// Checks all entries in walks, and some of each block in gets.
fn check_all(run: &Arc<Run>, entries: &Entries) {
    for (key, found) in entries.iter().step_by(5) {
        assert_eq!(get(run, key).unwrap().as_ref(), Some(found));
    }
    let keys: Vec<Vec<u8>> = entries.keys().cloned().collect();
    let reverse: Vec<Vec<u8>> = entries.keys().rev().cloned().collect();
    assert!(walk(run) == (keys, reverse));
}

#[test]
fn a_get_of_a_cold_run_reads_one_page_of_the_filter_and_one_of_the_fences() {
    let (sim, entries) = filled();
    let run = open_cold(&shared(&sim), 0);
    let opened = sim.meter().snapshot().read_bytes;
    assert_eq!(run.cache.cold_reads(), (0, 0), "opening reads the footer only");
    get(&run, &key(0)).unwrap();
    let built = sim.meter().snapshot().read_bytes - opened;
    let whole = run.layout.filter_bytes + run.layout.fences_bytes;
    assert!(built < whole + 3 * PAGE_BYTES as u64, "{built}: each part is read once");
    assert!(whole > 4 * PAGE_BYTES as u64);
    for n in 1..2000 {
        let (reads, bytes) = run.cache.cold_reads();
        let device_bytes = sim.meter().snapshot().read_bytes;
        let found = get(&run, &key(n)).unwrap();
        let (more, more_bytes) = run.cache.cold_reads();
        let device_bytes = sim.meter().snapshot().read_bytes - device_bytes;
        let (pages, page_bytes) = (more - reads, more_bytes - bytes);
        assert!(pages >= 1 && page_bytes <= pages * PAGE_BYTES as u64, "{n}");
        match n % 2 {
            0 => {
                assert_eq!(found.as_ref(), entries.get(&key(n)));
                // The page of the fences may end before 4 KiB. The key block has 512 bytes.
                assert_eq!(pages, 2, "{n}");
                assert!(device_bytes > page_bytes && device_bytes < page_bytes + 600, "{n}");
            }
            _ => {
                assert_eq!(found, None);
                // A false positive of the filter reads more.
                assert!(pages == 2 || device_bytes == page_bytes, "{n}");
            }
        }
    }
}

#[test]
fn pages_in_the_block_cache_are_not_read_again() {
    let (sim, entries) = filled();
    let run = open_cold(&shared(&sim), 4 << 20);
    for key in entries.keys() {
        get(&run, key).unwrap();
    }
    let (before, device) = (run.cache.cold_reads(), sim.meter().snapshot().read_bytes);
    for (key, found) in &entries {
        assert_eq!(get(&run, key).unwrap().as_ref(), Some(found));
    }
    assert_eq!(run.cache.cold_reads(), before);
    assert_eq!(sim.meter().snapshot().read_bytes, device);
    assert!(run.cache.used_bytes() > PAGE_BYTES);
    run.cache.evict_run(ID);
    assert_eq!(run.cache.used_bytes() as u64, run.layout.hash_bytes);
}

#[test]
fn a_get_that_may_not_wait_takes_pages_from_memory_only() {
    let (sim, entries) = filled();
    for cache_bytes in [0, 4 << 20] {
        sim.set_cached(false);
        let run = open_cold(&shared(&sim), cache_bytes);
        let cached = |n: u64| run.get_cached(&key(n), key_hash(&key(n))).unwrap();
        assert_eq!(cached(10), Lookup::NeedsIo, "the table of pages is not built");
        get(&run, &key(10)).unwrap();
        let known = Lookup::Known(entries.get(&key(10)).cloned());
        let expected = if cache_bytes == 0 { Lookup::NeedsIo } else { known.clone() };
        assert_eq!(cached(10), expected);
        sim.set_cached(true);
        assert_eq!(cached(10), known);
        for n in 0..400 {
            assert_eq!(cached(n), Lookup::Known(entries.get(&key(n)).cloned()));
        }
    }
}

#[test]
fn parts_go_cold_without_a_read_and_are_pinned_again_within_the_limit() {
    let (sim, entries) = filled();
    let vfs = shared(&sim);
    let bytes = open_cold(&vfs, 0).pinned_bytes() as usize;
    let cache = Arc::new(BlockCache::new(0).with_pinned_bytes_max(bytes));
    let run = Run::open(&vfs, Path::new(DIR), ID, cache.clone()).unwrap();
    assert!(run.is_pinned() && cache.pinned_bytes() == bytes as u64);
    let second = Run::open(&vfs, Path::new(DIR), ID, cache.clone()).unwrap();
    assert!(!second.is_pinned(), "the limit is taken");
    assert!(second.to_pinned().unwrap().is_none());
    let read = sim.meter().snapshot().read_bytes;
    let cold = run.with_parts(&run.to_cold().unwrap());
    assert_eq!((sim.meter().snapshot().read_bytes, cold.is_pinned()), (read, false));
    assert!(cold.memory_bytes() < run.memory_bytes() / 20, "{}", cold.memory_bytes());
    drop(run);
    assert_eq!(cache.pinned_bytes(), 0);
    check_all(&cold, &entries);
    let pinned = cold.with_parts(&cold.to_pinned().unwrap().unwrap());
    assert!(pinned.is_pinned() && cache.pinned_bytes() == bytes as u64);
    check_all(&pinned, &entries);
}

#[test]
fn damage_of_a_cold_filter_or_of_fences_hides_no_key_and_is_noted() {
    let (sim, entries) = filled();
    let layout = open_cold(&shared(&sim), 0).layout;
    let (fences, filter) = (layout.data_bytes, layout.filter_at());
    for (name, at) in [
        ("first fences", fences + 20),
        ("middle fences", fences + layout.fences_bytes / 2),
        ("trailer of the fences", fences + layout.fences_bytes - 1),
        ("first line", filter + 1),
        ("middle line", filter + layout.filter_bytes / 2),
        ("trailer of the filter", filter + layout.filter_bytes - 1),
    ] {
        for cache_bytes in [0, 1 << 20] {
            // Before the first read, and when every page has been read.
            for is_built in [false, true] {
                let sim = sim.fork();
                let run = open_cold(&shared(&sim), cache_bytes);
                if is_built {
                    check_all(&run, &entries);
                    run.cache.evict_run(ID);
                }
                flip(&sim, at);
                check_all(&run, &entries);
                // No page holds a trailer.
                let is_seen = !(is_built && name.starts_with("trailer"));
                assert_eq!(run.take_damaged(), is_seen, "{name} {cache_bytes} {is_built}");
                run.cache.evict_run(ID);
                get(&run, &key(0)).unwrap();
                assert!(!run.take_damaged(), "{name}: it is noted once, however often it is read");
                assert!(run.scrub_blocks(0, u64::MAX).unwrap().needs_rewrite, "{name}");
            }
        }
    }
}

/// Damages a page of fences, after it was read, and one of its blocks. Returns the run, the page's
/// blocks and the damaged one.
fn with_damaged_page(sim: &SimVfs, entries: &Entries) -> (Arc<Run>, std::ops::Range<usize>, usize) {
    let run = open_cold(&shared(sim), 0);
    check_all(&run, entries);
    let mut held = None;
    let middle = run.blocks().unwrap() / 2;
    let page = run.fences_with(middle, &mut held).unwrap();
    let first = (0..=middle).rev().take_while(|i| page.has(*i)).last().unwrap();
    let blocks = first..page.end();
    let lost = first + blocks.len() / 2;
    let place = page.block(lost).unwrap();
    // The length of the block: the next one cannot be found.
    flip(sim, place.start + 1);
    let whole = read_fences(&*run.file, ID, &run.layout).unwrap();
    let mut before = Vec::new();
    (0..first).for_each(|i| whole.encode_one(i, &mut before));
    flip(sim, run.layout.data_bytes + before.len() as u64 + 1);
    assert!(blocks.len() > 20 && run.blocks().unwrap() > blocks.len());
    (run, blocks, lost)
}

#[test]
fn blocks_that_cannot_be_found_are_lost_together_and_keep_their_numbers() {
    let (sim, entries) = filled();
    let (run, blocks, lost) = with_damaged_page(&sim, &entries);
    let scrubbed = run.scrub_blocks(0, u64::MAX).unwrap();
    let numbers: Vec<usize> = scrubbed.lost.iter().map(|block| block.block).collect();
    assert_eq!(numbers, (lost..blocks.end).collect::<Vec<_>>());
    let ranges: BTreeSet<(Vec<u8>, Vec<u8>)> =
        scrubbed.lost.iter().map(|it| (it.range.start.to_vec(), it.range.end.to_vec())).collect();
    assert_eq!(ranges.len(), 1, "each of them may hold the keys of all");
    let (start, end) = ranges.into_iter().next().unwrap();
    let range = KeyRange::new(start, end);
    let mut failed = 0;
    for (key, found) in &entries {
        match get(&run, key) {
            Ok(got) => assert_eq!(got.as_ref(), Some(found)),
            Err(error) => {
                assert!(error.is_damage() && range.contains(key), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 100, "{failed}");
    let (forward, back) = walk(&run);
    let below = entries.keys().filter(|key| key.as_slice() < &range.start[..]).count();
    let above = entries.keys().filter(|key| key.as_slice() >= &range.end[..]).count();
    assert_eq!((forward.len(), back.len()), (below, above));
    // Every key of the range is in a newer tier now.
    let masked = run.without(&numbers);
    let (forward, mut back) = walk(&masked);
    back.reverse();
    let expected: Vec<_> = entries.keys().filter(|key| !range.contains(key)).cloned().collect();
    assert!(forward == expected && back == expected);
    assert!(masked.scrub_blocks(0, u64::MAX).unwrap().lost.is_empty());
}

#[test]
fn a_block_masked_earlier_does_not_hide_those_that_cannot_be_found() {
    let (sim, entries) = filled();
    let (run, blocks, lost) = with_damaged_page(&sim, &entries);
    for earlier in [lost, lost + 1, blocks.end - 1] {
        let masked = run.without(&[earlier]);
        let range = masked.scrub_blocks(0, u64::MAX).unwrap().lost[0].range.clone();
        for key in entries.keys().filter(|key| range.contains(key)) {
            assert!(get(&masked, key).is_err_and(|error| error.is_damage()), "{earlier}");
        }
        let (forward, back) = walk(&masked);
        assert!(forward.len() + back.len() < entries.len(), "{earlier}");
    }
}

#[test]
fn a_flip_in_transfer_is_not_damage_of_a_cold_run() {
    let (sim, entries) = filled();
    let run = open_cold(&shared(&sim), 0);
    for nth in 0..9 {
        let path_contains = ".run".into();
        sim.inject(stele_simulated_disk::Fault::ReadFlipsOnce { path_contains, nth }).unwrap();
        for n in (0..KEYS).step_by(3000) {
            let found: Option<Found> = get(&run, &key(2 * n)).unwrap();
            assert_eq!(found.as_ref(), entries.get(&key(2 * n)));
        }
        assert!(!run.take_damaged());
        sim.clear_faults();
    }
}

#[test]
fn many_readers_of_a_cold_run_agree() {
    let (sim, entries) = filled();
    let run = open_cold(&shared(&sim), 64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (run, entries) = (&run, &entries);
            scope.spawn(move || {
                for n in (thread..2 * KEYS).step_by(7) {
                    assert_eq!(get(run, &key(n)).unwrap().as_ref(), entries.get(&key(n)));
                }
            });
        }
    });
    let hash = key_hash(&key(1));
    assert!(run.may_contain(hash, Reads::MayWait).unwrap().is_some());
}

#[test]
fn a_damaged_cold_run_is_not_pinned_and_not_read_whole_again() {
    let (sim, entries) = filled();
    let cache = Arc::new(BlockCache::new(0).with_pinned_bytes_max(0));
    let vfs = shared(&sim);
    let run = Run::open(&vfs, Path::new(DIR), ID, cache).unwrap();
    flip(&sim, run.layout.filter_at() + 100);
    check_all(&run, &entries);
    // The limit is of no account: damage is the reason.
    let wide = Arc::new(BlockCache::new(0));
    let run = Run { cache: wide, ..run.copy() };
    let before = sim.meter().snapshot().read_bytes;
    assert!(run.to_pinned().unwrap().is_none());
    assert_eq!(sim.meter().snapshot().read_bytes, before);
}

#[test]
fn samples_of_idle_ranges_evict_no_block_that_reads_use() {
    let (sim, _) = filled();
    let run = open_cold(&shared(&sim), 1 << 20);
    let sampled = |run: &Run| {
        let mut keys = 0;
        run.sample(&KeyRange::all(), 32, &mut |_, _, weight| keys += weight as u64).unwrap();
        assert!(keys > KEYS * 8 / 10 && keys < KEYS * 12 / 10, "{keys}");
    };
    sampled(&run);
    let blocks = run.blocks().unwrap();
    assert!((0..blocks).all(|block| run.cache.block(ID, block).is_none()));
    get(&run, &key(0)).unwrap();
    assert!(run.cache.block(ID, 0).is_some(), "a read does fill the cache");
    sampled(&run);
}
