//! Estimates of what a range holds, from many blocks and from large memtables.

use crate::common::Store;
use stele_index::IndexOptions;
use stele_simulated_disk::SimVfs;
use stele_types::{FileId, KeyRange, Locator, Seq, ValueRef};

const KEYS: u32 = 40_000;

fn key(number: u32) -> Vec<u8> {
    format!("user-{number:08}").into_bytes()
}

/// Returns the bytes of a value: in the second shape those of the upper half are four times as
/// long.
fn length(number: u32, shape: u32) -> u32 {
    if shape == 1 && number >= KEYS / 2 { 400 } else { 100 }
}

fn put(store: &mut Store, number: u32, shape: u32) {
    store.seq += 1;
    let at = Locator { file: FileId(1), offset: number, length: length(number, shape), crc: 0 };
    store.index.put(Seq(store.seq), &key(number), ValueRef::At(at), 0);
}

fn check(store: &Store, shape: u32, what: &str) {
    let view = store.index.view();
    for (from, to) in [(0, KEYS), (0, KEYS / 20), (KEYS / 3, KEYS / 2), (KEYS / 4, KEYS * 3 / 4)] {
        let range = KeyRange::new(key(from), key(to));
        let found = view.estimate(&range).unwrap();
        let keys = f64::from(to - from);
        let bytes = |range: std::ops::Range<u32>| -> f64 {
            range.map(|number| 13.0 + f64::from(length(number, shape))).sum()
        };
        let whole = bytes(from..to);
        let near = |found: f64, wanted: f64| (0.8..1.2).contains(&(found / wanted));
        assert!(near(found.keys, keys), "{what}, {from} to {to}: {found:?} of {keys} keys");
        assert!(near(found.bytes, whole), "{what}, {from} to {to}: {found:?} of {whole} bytes");
        let middle = view.middle(&range).unwrap().expect("a middle");
        let number: u32 = std::str::from_utf8(&middle[5..]).unwrap().parse().unwrap();
        let share = bytes(from..number) / whole;
        assert!((0.4..0.6).contains(&share), "{what}, {from} to {to}: {share} before the middle");
        let quarter = view.first_part(&range, whole / 4.0).unwrap().expect("a quarter");
        let number: u32 = std::str::from_utf8(&quarter[5..]).unwrap().parse().unwrap();
        let share = bytes(from..number) / whole;
        assert!((0.15..0.35).contains(&share), "{what}, {from} to {to}: {share} in the first part");
        assert_eq!(view.first_part(&range, whole * 0.9).unwrap(), None, "not much larger");
    }
}

#[test]
fn estimates_of_large_memtables_and_of_many_blocks_are_within_a_fifth() {
    for shape in 0..2 {
        for step in [1, 7919, KEYS - 1] {
            let vfs = SimVfs::default();
            let options = IndexOptions { block_bytes: 512, ..IndexOptions::default() };
            let mut store = Store::open_with(&vfs, options).unwrap();
            for number in 0..KEYS {
                put(
                    &mut store,
                    (u64::from(number) * u64::from(step) % u64::from(KEYS)) as u32,
                    shape,
                );
            }
            store.publish();
            let what = format!("shape {shape}, step {step}");
            check(&store, shape, &format!("{what}, in memory"));
            store.freeze(1);
            store.flush_one().unwrap();
            let version = store.index.version();
            assert!(version.runs().map(|run| run.meta().bytes).sum::<u64>() > 1 << 20);
            check(&store, shape, &format!("{what}, in runs"));
            // Half is overwritten: hidden entries do not count twice.
            for number in 0..KEYS / 2 {
                put(&mut store, number, shape);
            }
            store.publish();
            check(&store, shape, &format!("{what}, half overwritten"));
        }
    }
}

#[test]
fn an_estimate_reads_few_blocks() {
    let vfs = SimVfs::default();
    let options =
        IndexOptions { block_bytes: 512, block_cache_bytes_max: 0, ..IndexOptions::default() };
    let mut store = Store::open_with(&vfs, options).unwrap();
    (0..KEYS).for_each(|number| put(&mut store, number, 0));
    store.publish();
    store.freeze(1);
    store.flush_one().unwrap();
    let read = || stele_vfs::Vfs::meter(&vfs).snapshot().read_bytes;
    let before = read();
    store.index.view().estimate(&KeyRange::all()).unwrap();
    let bytes = read() - before;
    assert!(bytes < 40 * 600, "{bytes} bytes were read");
}
