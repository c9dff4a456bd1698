//! Space while a view is held for long: a snapshot that is sent to a slow store, or an export.

use crate::store::harness::{Random, Setup, Store, key, value};
use stele_gc::{Forced, GcStats, Held};
use stele_index::Direction;
use stele_types::{KeyRange, ValueRef};

const VALUE_BYTES: usize = 4 << 10;
const KEYS: u32 = 400;

fn filled() -> Store {
    let mut store = Store::new(Setup::default());
    (0..KEYS).for_each(|i| store.put(&key(i), &value(i, 0, VALUE_BYTES)));
    store.settle();
    store
}

fn overwrite(store: &mut Store, random: &mut Random, rounds: u32) {
    for round in 1..=rounds {
        let i = random.below(u64::from(KEYS)) as u32;
        store.put(&key(i), &value(i, round, VALUE_BYTES));
        if round % 16 == 0 {
            store.settle();
        }
    }
}

fn held_bytes(stats: &GcStats) -> u64 {
    let held = stats.files.iter().filter(|file| file.held == Some(Held::View));
    held.map(|file| file.bytes).sum()
}

#[test]
fn a_view_holds_only_files_of_its_time() {
    let mut store = filled();
    let mut random = Random::new("a_view_holds_only_files", 31);
    overwrite(&mut store, &mut random, 1000);
    let mut iter = store.index.view().iter(KeyRange::all(), Direction::Forward).unwrap();
    let before = store.model.clone();
    overwrite(&mut store, &mut random, 4000);

    let stats = store.gc.stats();
    let held = held_bytes(&stats) as f64 / stats.live_bytes as f64;
    println!("held {held:.2} of the live bytes, space-amp {:.2}", stats.space_amp);
    // What the view reads, and what was written until the next version was published.
    assert!(held > 0.5 && held < 2.5 && stats.space_amp <= 2.2 + held, "{held}: {stats:?}");

    for (expected_key, expected) in &before {
        let (found_key, at, _) = iter.next().unwrap().unwrap();
        let ValueRef::At(at) = at else { panic!("inline") };
        assert_eq!(&found_key[..], &expected_key[..]);
        assert_eq!(&store.log.get(&at).unwrap()[..], &expected[..], "the view reads what it saw");
    }
    drop(iter);
    store.settle();
    assert_eq!(held_bytes(&store.gc.stats()), 0);
    store.check_no_leak();
}

#[test]
fn a_view_holds_a_file_that_no_observation_saw_before_it() {
    const READ: u32 = 40;
    let mut store = filled();
    let next = store.log.next_file();
    // The first observation of the segment comes after the view, and a version later.
    (0..60).for_each(|i| store.put(&key(i), &value(i, 1, VALUE_BYTES)));
    let view = store.index.view();
    let at = store.locator(&key(READ));
    assert!(at.file >= next);
    store.gc.force(Forced::Flush).unwrap();
    (0..60).for_each(|i| store.put(&key(i), &value(i, 2, VALUE_BYTES)));
    store.gc.force(Forced::SortAll).unwrap();
    store.settle();
    assert!(store.locator(&key(READ)) != at);
    assert_eq!(&store.log.get(&at).unwrap()[..], &value(READ, 1, VALUE_BYTES)[..]);
    drop(view);
    store.settle();
    assert!(store.log.get(&at).is_err(), "freed when no view pins it");
}

#[test]
fn no_value_is_moved_for_the_bytes_that_a_view_holds() {
    let moved = |with_view: bool| {
        let mut store = filled();
        let mut random = Random::new("no_value_is_moved", 32);
        overwrite(&mut store, &mut random, 1000);
        let view = with_view.then(|| store.index.view());
        let before = store.gc.stats().bytes.relocate;
        overwrite(&mut store, &mut random, 4000);
        drop(view);
        store.gc.stats().bytes.relocate - before
    };
    let (without, with) = (moved(false), moved(true));
    println!("{with} bytes moved beside a view, {without} without");
    assert!(with <= without + without / 4, "{with} bytes moved beside a view, {without} without");
}
