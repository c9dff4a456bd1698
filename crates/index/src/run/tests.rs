use super::*;
use crate::cache::BlockCache;
use crate::cursor::Cursor;
use crate::cursor::Found;
use crate::memtable::RangeSet;
use crate::memtable::tests::{TestRng, some_key};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_types::{Cause, Error, FileId, KeyRange, Locator, RunId, ValueRef};
use stele_vfs::Vfs;

pub(super) const DIR: &str = "/index";
pub(super) const ID: RunId = RunId(5);

pub(super) type Entries = BTreeMap<Vec<u8>, Found>;

pub(super) fn disk() -> SimVfs {
    let disk = SimVfs::new(SimOptions::default());
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk
}

pub(super) fn shared(disk: &SimVfs) -> Arc<dyn Vfs> {
    Arc::new(disk.clone())
}

pub(super) fn write(
    vfs: &Arc<dyn Vfs>,
    options: &RunOptions,
    entries: &Entries,
    extra: RunExtra,
) -> RunMeta {
    let mut writer = RunWriter::create(vfs, Path::new(DIR), ID, options, Cause::Flush).unwrap();
    for (key, found) in entries {
        writer.add(key, found).unwrap();
    }
    let estimated = writer.estimated_bytes();
    let meta = writer.finish(extra).unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    assert!(meta.bytes.abs_diff(estimated) < 400 + meta.bytes / 8, "{estimated} {}", meta.bytes);
    meta
}

fn open(vfs: &Arc<dyn Vfs>, cache_bytes: usize) -> stele_types::Result<Arc<Run>> {
    Run::open(vfs, Path::new(DIR), ID, Arc::new(BlockCache::new(cache_bytes)))
}

pub(super) fn open_cold(vfs: &Arc<dyn Vfs>, cache_bytes: usize) -> Arc<Run> {
    let cache = BlockCache::new(cache_bytes).with_pinned_bytes_max(0);
    let run = Run::open(vfs, Path::new(DIR), ID, Arc::new(cache)).unwrap();
    assert!(!run.is_pinned());
    run
}

pub(super) fn located(n: u64, expires_at_s: u64) -> Found {
    let n = n as u32;
    let locator =
        Locator { file: FileId(n % 3 + 1), offset: n.wrapping_mul(31), length: n % 5000, crc: !n };
    Found::Value { value: ValueRef::At(locator), expires_at_s }
}

fn inline(value: Vec<u8>, expires_at_s: u64) -> Found {
    Found::Value { value: ValueRef::Inline(Bytes::from(value)), expires_at_s }
}

fn some_found(rng: &mut TestRng) -> Found {
    let n = rng.below(1 << 30);
    match rng.below(6) {
        0 => Found::Deleted,
        1 => located(n, n),
        2 => inline(vec![n as u8; rng.below(65) as usize], u64::MAX - n),
        3 => inline(vec![n as u8; rng.below(65) as usize], 0),
        _ => located(n, 0),
    }
}

fn some_entries(rng: &mut TestRng, count: u64) -> Entries {
    let mut entries: Entries = (0..count).map(|_| (some_key(rng), some_found(rng))).collect();
    entries.insert(Vec::new(), some_found(rng));
    entries.insert(vec![b'l'; 8 << 10], located(7, 0));
    entries.insert([&vec![b'l'; 8 << 10][..8191], b"m"].concat(), Found::Deleted);
    entries
}

pub(super) fn options(block_bytes: usize) -> RunOptions {
    RunOptions { block_bytes, ..RunOptions::default() }
}

pub(super) fn get(run: &Run, key: &[u8]) -> stele_types::Result<Option<Found>> {
    run.get(key, key_hash(key))
}

#[test]
fn every_entry_comes_back_with_and_without_the_hash_index() {
    let mut rng = TestRng::seeded(21, "every_entry_comes_back_with_and_without_the_hash_index");
    for block_bytes in [512, 4 << 10, 32 << 10] {
        let (entries, vfs) = (some_entries(&mut rng, 3000), shared(&disk()));
        write(&vfs, &options(block_bytes), &entries, RunExtra::default());
        for (cache_bytes, is_cold) in [(0, false), (8 << 20, false), (0, true), (8 << 20, true)] {
            let run = match is_cold {
                true => open_cold(&vfs, cache_bytes),
                false => open(&vfs, cache_bytes).unwrap(),
            };
            for (key, found) in &entries {
                assert_eq!(get(&run, key).unwrap().as_ref(), Some(found), "{key:?}");
            }
            for _ in 0..2000 {
                let key = some_key(&mut rng);
                assert_eq!(get(&run, &key).unwrap(), entries.get(&key).cloned());
            }
            assert_eq!(run.verify(&mut |e| panic!("{e}")).unwrap().entries, entries.len() as u64);
        }
    }
}

#[test]
fn tiny_keys_fill_slots_up_to_the_last_one() {
    let keys = (0..=u16::MAX).step_by(13).map(|n| (n.to_be_bytes().to_vec(), Found::Deleted));
    let (entries, vfs): (Entries, _) = (keys.collect(), shared(&disk()));
    write(&vfs, &options(32 << 10), &entries, RunExtra::default());
    let run = open(&vfs, 8 << 20).unwrap();
    assert!(run.verify(&mut |e| panic!("{e}")).unwrap().blocks >= entries.len() as u64 / 256);
    assert!(entries.keys().all(|key| get(&run, key).unwrap() == Some(Found::Deleted)));
}

#[test]
fn the_footer_tells_exactly_what_is_inside() {
    let mut rng = TestRng::seeded(22, "the_footer_tells_exactly_what_is_inside");
    let (entries, vfs) = (some_entries(&mut rng, 500), shared(&disk()));
    let extra = RunExtra {
        age: 77,
        job: 3,
        part: 2,
        last_part: true,
        replaces: vec![RunId(1), RunId(1 << 40)],
        checkpoint: b"opaque".to_vec(),
        ranges: RangeSet::from_ranges([KeyRange::new("a", "b"), KeyRange::new("x", "")]),
    };
    let meta = write(&vfs, &options(1024), &entries, extra.clone());
    let run = open(&vfs, 0).unwrap();
    assert_eq!((run.meta(), &meta.extra), (&meta, &extra));
    let mut refs: BTreeMap<FileId, Live> = BTreeMap::new();
    for (key, found) in &entries {
        if let Found::Value { value: ValueRef::At(at), .. } = found {
            let live = refs.entry(at.file).or_default();
            live.records += 1;
            live.bytes +=
                (key.len() + at.length as usize) as u64 + stele_types::size::RECORD_OVERHEAD_BYTES;
        }
    }
    let count = |wanted: fn(&Found) -> bool| entries.values().filter(|f| wanted(f)).count() as u64;
    assert_eq!(meta.refs, refs);
    assert_eq!(meta.entries, entries.len() as u64);
    assert_eq!(meta.tombstones, count(|f| *f == Found::Deleted));
    let is_inline = |f: &Found| matches!(f, Found::Value { value: ValueRef::Inline(_), .. });
    assert_eq!(meta.inline, count(is_inline));
    let expiry = |found: &Found| match found {
        Found::Value { expires_at_s, .. } if *expires_at_s != 0 => Some(*expires_at_s),
        _ => None,
    };
    let expiries: Vec<u64> = entries.values().filter_map(expiry).collect();
    assert_eq!(meta.expiring, expiries.len() as u64);
    assert_eq!(meta.earliest_expiry_s, *expiries.iter().min().unwrap());
    assert_eq!(meta.first_key, Bytes::new());
    assert_eq!(&meta.last_key[..], entries.last_key_value().unwrap().0);
    assert_eq!(meta.key_bytes, entries.keys().map(|k| k.len() as u64).sum::<u64>());
    assert_eq!(parse_run_file_name(&run_file_name(ID)), Some(ID));
    assert_eq!(parse_run_file_name("5.run"), None);
}

#[test]
fn a_run_of_range_tombstones_alone_is_a_run() {
    let vfs = shared(&disk());
    let ranges = RangeSet::from_ranges([KeyRange::all()]);
    let extra = RunExtra { ranges, ..RunExtra::default() };
    write(&vfs, &RunOptions::default(), &Entries::new(), extra);
    let run = open(&vfs, 1 << 20).unwrap();
    assert_eq!(get(&run, b"a").unwrap(), None);
    let mut cursor = run.cursor();
    cursor.seek(b"").unwrap();
    assert!(!cursor.valid());
    cursor.seek_before(None).unwrap();
    assert!(!cursor.valid() && run.meta().extra.ranges.covers(b"a"));
}

#[test]
fn entries_take_the_bytes_promised() {
    let bytes_per_entry = |found: Found| {
        let key = |i: u64| key_hash(&i.to_be_bytes()).to_be_bytes().repeat(2);
        let entries: Entries = (0..20_000).map(|i| (key(i), found.clone())).collect();
        let vfs = shared(&disk());
        let meta = write(&vfs, &RunOptions::default(), &entries, RunExtra::default());
        let run = open(&vfs, 0).unwrap();
        println!("{} bytes, {} of memory", meta.bytes, run.memory_bytes());
        assert!(run.memory_bytes() < 20_000 * 2);
        run.layout.data_bytes as f64 / meta.entries as f64
    };
    let located = bytes_per_entry(located(9, 0));
    let inline = bytes_per_entry(inline(vec![1; 20], 0));
    assert!(located < 36.0 && inline < 41.0, "{located} {inline}");
}

fn lent(cursor: &RunCursor) -> Found {
    assert_eq!(cursor.is_deleted(), cursor.value().is_none());
    cursor.value().map_or(Found::Deleted, |(value, expires_at_s)| Found::Value {
        value: value.to_owned(),
        expires_at_s,
    })
}

/// Blocks hold few keys, spread unevenly, so that the first guess of a search is far off.
#[test]
fn unevenly_spread_keys_are_found() {
    let mut entries = Entries::new();
    for i in 0..400u64 {
        entries.insert([b"same", &i.pow(7).to_be_bytes()[..]].concat(), inline(vec![7], 0));
        entries.insert([b"same\xff", &vec![0; i as usize % 60][..]].concat(), Found::Deleted);
    }
    let vfs = shared(&disk());
    write(&vfs, &RunOptions::default(), &entries, RunExtra::default());
    let run = open(&vfs, 1 << 20).unwrap();
    let mut cursor = run.cursor();
    for key in entries.keys() {
        for probe in [key.clone(), [&key[..], &[0]].concat()] {
            cursor.seek(&probe).unwrap();
            let expected = entries.range(probe.clone()..).next();
            assert_eq!(cursor.valid().then(|| cursor.key()), expected.map(|(key, _)| &key[..]));
            assert_eq!(get(&run, &probe).unwrap(), entries.get(&probe).cloned());
        }
    }
}

#[test]
fn cursors_agree_with_a_model_in_all_directions() {
    let mut rng = TestRng::seeded(23, "cursors_agree_with_a_model_in_all_directions");
    let (entries, vfs) = (some_entries(&mut rng, 3000), shared(&disk()));
    write(&vfs, &options(700), &entries, RunExtra::default());
    let run = open(&vfs, 64 << 10).unwrap();
    let keys: Vec<&Vec<u8>> = entries.keys().collect();
    for mut cursor in [run.cursor(), run.cursor_ahead()] {
        assert!(!cursor.valid());
        cursor.seek(b"").unwrap();
        for (key, found) in &entries {
            assert_eq!((cursor.key(), &cursor.found().unwrap()), (&key[..], found));
            cursor.next().unwrap();
        }
        assert!(!cursor.valid());
        cursor.seek_before(None).unwrap();
        for key in keys.iter().rev() {
            assert_eq!(cursor.key(), &key[..]);
            cursor.prev().unwrap();
        }
        assert!(!cursor.valid());
        for _ in 0..3000 {
            let bound = some_key(&mut rng);
            let mut place = keys.partition_point(|k| **k < bound);
            if rng.below(2) == 0 {
                cursor.seek(&bound).unwrap();
            } else {
                cursor.seek_before(Some(&bound)).unwrap();
                place = place.wrapping_sub(1);
            }
            for _ in 0..rng.below(5) {
                assert_eq!(cursor.valid().then(|| cursor.key()), keys.get(place).map(|k| &k[..]));
                if !cursor.valid() {
                    break;
                }
                assert_eq!(&cursor.found().unwrap(), &entries[cursor.key()]);
                assert_eq!(lent(&cursor), entries[cursor.key()]);
                assert_eq!(cursor.prefix(), crate::cursor::prefix_of(cursor.key()));
                if rng.below(2) == 0 {
                    cursor.next().unwrap();
                    place += 1;
                } else {
                    cursor.prev().unwrap();
                    place = place.wrapping_sub(1);
                }
            }
        }
    }
}

#[test]
fn keys_that_do_not_ascend_are_refused() {
    let vfs = shared(&disk());
    let options = options(512);
    let mut writer = RunWriter::create(&vfs, Path::new(DIR), ID, &options, Cause::Merge).unwrap();
    writer.add(b"", &Found::Deleted).unwrap();
    for key in [&b""[..], b"b", b"b", b"a"] {
        let allowed = key == b"b" && writer.entries() == 1;
        assert_eq!(writer.add(key, &Found::Deleted).is_ok(), allowed);
    }
    assert_eq!(writer.entries(), 2);
}

/// Every byte of a run is damaged once: each read still returns the right answer or an error with
/// the offset, and `verify` always reports the damage.
#[test]
fn no_damaged_byte_goes_unnoticed_or_changes_an_answer() {
    let mut rng = TestRng::seeded(24, "no_damaged_byte_goes_unnoticed_or_changes_an_answer");
    let entries: Entries = (0..60).map(|_| (some_key(&mut rng), some_found(&mut rng))).collect();
    let sim = disk();
    let vfs = shared(&sim);
    let ranges = RangeSet::from_ranges([KeyRange::new("k", "l")]);
    let meta = write(&vfs, &options(512), &entries, RunExtra { ranges, ..RunExtra::default() });
    let path = run_path(Path::new(DIR), ID);
    let whole = sim.read_file(&path).unwrap();
    assert_eq!(whole.len() as u64, meta.bytes);
    for at in 0..whole.len() {
        sim.corrupt(&path, at as u64, &[whole[at] ^ 1 << (at % 8)]).unwrap();
        let noticed = match open(&vfs, 1 << 20) {
            Err(error) => is_typed(&error, &path),
            Ok(run) => {
                check_answers(&run, &entries, &path);
                let mut problems = 0;
                run.verify(&mut |error| problems += usize::from(is_typed(error, &path))).unwrap();
                problems > 0
            }
        };
        assert!(noticed, "byte {at} of {}", whole.len());
        let mut damage = 0;
        inspect_run_items(&*vfs, &path, &mut |item| {
            damage += usize::from(matches!(item, RunItem::Damage(_)))
        })
        .unwrap();
        assert!(damage > 0, "byte {at}");
        sim.corrupt(&path, at as u64, &[whole[at]]).unwrap();
    }
    for length in [0, 1, 19, 20, whole.len() / 2, whole.len() - 1] {
        sim.write_file(&path, &whole[..length]);
        assert!(is_typed(&open(&vfs, 0).unwrap_err(), &path), "truncated to {length}");
    }
}

fn is_typed(error: &Error, file: &Path) -> bool {
    match error {
        Error::Corrupt { path, .. } | Error::NewerFormat { path, .. } => path == file,
        other => panic!("{other}"),
    }
}

fn check_answers(run: &Arc<Run>, entries: &Entries, path: &Path) {
    for (key, found) in entries {
        match get(run, key) {
            Ok(answer) => assert_eq!(answer.as_ref(), Some(found)),
            Err(error) => assert!(is_typed(&error, path)),
        }
    }
    let mut cursor = run.cursor_ahead();
    let mut expected = entries.iter();
    let mut moved = cursor.seek(b"");
    while moved.is_ok() && cursor.valid() {
        let (key, found) = expected.next().unwrap();
        assert_eq!((cursor.key(), &cursor.found().unwrap()), (&key[..], found));
        moved = cursor.next();
    }
    match moved {
        Ok(()) => assert_eq!(expected.next(), None),
        Err(error) => assert!(is_typed(&error, path) && !cursor.valid()),
    }
}

#[test]
fn a_block_of_another_place_or_run_is_not_taken() {
    let key = |i: u64| format!("{i:09}").into_bytes();
    let entries: Entries = (0..200).map(|i| (key(i), inline(vec![3; 20], 0))).collect();
    let sim = disk();
    let vfs = shared(&sim);
    write(&vfs, &options(512), &entries, RunExtra::default());
    let run = open(&vfs, 0).unwrap();
    let path = run_path(Path::new(DIR), ID);
    let place = |i| run.fences_with(i, &mut None).unwrap().block(i).unwrap();
    let (a, b) = (place(1), place(2));
    assert_eq!(a.end - a.start, b.end - b.start);
    let bytes = sim.read_file(&path).unwrap();
    sim.corrupt(&path, a.start, &bytes[b.start as usize..b.end as usize]).unwrap();
    assert!(run.read_block(1, &mut None).is_err_and(|error| is_typed(&error, &path)));
    sim.write_file(run_path(Path::new(DIR), RunId(6)), &bytes);
    let other = Run::open(&vfs, Path::new(DIR), RunId(6), Arc::new(BlockCache::new(0)));
    assert!(matches!(other, Err(Error::Corrupt { .. })));
    let missing = Run::open(&vfs, Path::new(DIR), RunId(9), Arc::new(BlockCache::new(0)));
    assert!(matches!(missing, Err(Error::Missing { .. })));
}

#[test]
fn a_bit_lost_on_the_way_is_read_again() {
    let mut rng = TestRng::seeded(27, "a_bit_lost_on_the_way_is_read_again");
    let (entries, sim) = (some_entries(&mut rng, 200), disk());
    let vfs = shared(&sim);
    write(&vfs, &options(512), &entries, RunExtra::default());
    for nth in 0..12 {
        sim.inject(Fault::ReadFlipsOnce { path_contains: ".run".into(), nth }).unwrap();
        let run = open(&vfs, 1 << 20).unwrap();
        for (key, found) in &entries {
            assert_eq!(get(&run, key).unwrap().as_ref(), Some(found));
        }
        assert_eq!(run.verify(&mut |e| panic!("{e}")).unwrap().problems, 0);
        sim.clear_faults();
    }
}

#[test]
fn a_finished_run_survives_a_crash_whole() {
    let mut rng = TestRng::seeded(25, "a_finished_run_survives_a_crash_whole");
    for round in 0..8 {
        let entries = some_entries(&mut rng, 300);
        let sim = disk();
        let vfs = shared(&sim);
        write(&vfs, &options(512), &entries, RunExtra::default());
        let after = shared(&sim.restart(round));
        let run = open(&after, 0).unwrap();
        assert_eq!(run.verify(&mut |e| panic!("{e}")).unwrap().entries, entries.len() as u64);
    }
}

#[test]
fn memory_stays_under_the_limit_and_comes_back() {
    let key = |i: u64| key_hash(&i.to_be_bytes()).to_be_bytes().to_vec();
    let entries: Entries = (0..40_000).map(|i| (key(i), located(i, 0))).collect();
    let vfs = shared(&disk());
    write(&vfs, &RunOptions::default(), &entries, RunExtra::default());
    for (limit, indexed) in [(0, false), (100 << 10, false), (700 << 10, false), (1 << 20, true)] {
        let cache = Arc::new(BlockCache::new(limit));
        let run = Run::open(&vfs, Path::new(DIR), ID, Arc::clone(&cache)).unwrap();
        assert_eq!(cache.used_bytes() > 0, indexed, "{limit}");
        for i in (0..40_000).rev() {
            assert!(get(&run, &key(i)).unwrap().is_some());
            assert!(cache.used_bytes() <= limit);
        }
        assert!(cache.used_bytes() >= limit / 2);
        let (hits, misses) = cache.hits_misses();
        assert!(hits + misses >= 40_000 && misses > 0);
        drop(run);
        cache.evict_run(ID);
        assert_eq!(cache.used_bytes(), 0);
    }
}

#[test]
fn memory_of_blocks_that_go_serves_those_that_come_unless_a_value_holds_it() {
    let value = |i: u64| inline(vec![i as u8; 40], 0);
    let entries: Entries = (0..20_000u64).map(|i| (i.to_be_bytes().to_vec(), value(i))).collect();
    let vfs = shared(&disk());
    write(&vfs, &RunOptions::default(), &entries, RunExtra::default());
    let cache = Arc::new(BlockCache::new(100 << 10));
    let run = Run::open(&vfs, Path::new(DIR), ID, Arc::clone(&cache)).unwrap();
    let read = |i: u64| get(&run, &i.to_be_bytes()).unwrap();
    let held: Vec<_> = (0..20_000).step_by(50).map(read).collect();
    assert_eq!(cache.spares(), 0, "each value keeps its block");
    for (i, held) in (0..20_000).step_by(50).zip(&held) {
        assert_eq!(held, &Some(value(i)));
    }
    drop(held);
    for i in (0..20_000).rev() {
        assert_eq!(read(i), Some(value(i)));
    }
    assert!((1..=8).contains(&cache.spares()), "{}", cache.spares());
}

#[test]
fn full_blocks_of_short_entries_lie_in_one_page_each() {
    let entries: Entries = (0..30_000u64)
        .map(|i| (key_hash(&i.to_be_bytes()).to_be_bytes().into(), located(i, i % 3)))
        .collect();
    let vfs = shared(&disk());
    write(&vfs, &RunOptions::default(), &entries, RunExtra::default());
    let run = open(&vfs, 0).unwrap();
    let blocks = run.blocks().unwrap();
    assert!(blocks > 100);
    for i in 0..blocks - 1 {
        let place = run.fences_with(i, &mut None).unwrap().block(i);
        assert_eq!(place, Some(i as u64 * 4096..(i as u64 + 1) * 4096));
    }
}

#[test]
fn walks_read_ahead_and_leave_the_cache_alone() {
    let entries: Entries =
        (0..30_000u64).map(|i| (i.to_be_bytes().to_vec(), located(i, 0))).collect();
    let vfs = shared(&disk());
    write(&vfs, &RunOptions::default(), &entries, RunExtra::default());
    let cache = Arc::new(BlockCache::new(1 << 20));
    let run = Run::open(&vfs, Path::new(DIR), ID, Arc::clone(&cache)).unwrap();
    for (mut cursor, blocks_max) in [(run.cursor_ahead(), 0), (run.cursor(), 6)] {
        let before = cache.used_bytes();
        cursor.seek(b"").unwrap();
        for key in entries.keys() {
            assert_eq!(cursor.key(), &key[..]);
            cursor.next().unwrap();
        }
        assert!(cache.used_bytes() - before <= blocks_max * (4 << 10));
    }
}

#[test]
fn a_dump_shows_entries_and_footer_even_of_a_file_without_an_end() {
    let mut rng =
        TestRng::seeded(26, "a_dump_shows_entries_and_footer_even_of_a_file_without_an_end");
    let entries = some_entries(&mut rng, 100);
    let sim = disk();
    let vfs = shared(&sim);
    write(&vfs, &options(512), &entries, RunExtra::default());
    let path = run_path(Path::new(DIR), ID);
    let dump = || {
        let (mut seen, mut footers, mut damage) = (Entries::new(), 0, 0);
        inspect_run_items(&*vfs, &path, &mut |item| match item {
            RunItem::Footer(meta, parts) => {
                footers += 1;
                assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), meta.bytes);
            }
            RunItem::Entry { key, found } => _ = seen.insert(key.to_vec(), found),
            RunItem::Block { .. } => {}
            RunItem::Damage(_) => damage += 1,
        })
        .unwrap();
        (seen, footers, damage)
    };
    assert_eq!(dump(), (entries.clone(), 1, 0));
    let bytes = sim.read_file(&path).unwrap();
    sim.write_file(&path, &bytes[..bytes.len() - 7]);
    let (seen, footers, damage) = dump();
    assert!(seen == entries && footers == 0 && damage > 0);
    let mut lines = Vec::new();
    inspect_run(&*vfs, &path, &mut |record| lines.push(record)).unwrap();
    assert!(lines.iter().any(|line| line.content.is_err()));
}
