//! Unreadable values stay in place: the owner is notified, and no job runs for them.

use crate::store::harness::{Random, Setup, Store, key, value};
use stele_gc::{Forced, GcOptions, Held, PolicyKind};
use stele_simulated_disk::Fault;
use stele_types::{CommandBuilder, FileId};

const VALUE_BYTES: usize = 4 << 10;
const KEYS: u32 = 60;
/// Keys of values that together exceed the size at which a sort is worthwhile.
const DAMAGED: [u32; 10] = [3, 11, 12, 20, 30, 35, 41, 50, 51, 59];

/// Returns a store that sorts from 16 KiB and cannot read some of its values.
fn nezha() -> Store {
    let gc = GcOptions {
        policy: PolicyKind::Nezha,
        sort_threshold_bytes: 16 << 10,
        ..Setup::default().gc
    };
    let mut store = Store::new(Setup { gc, ..Setup::default() });
    // Damage to the newest segment would prevent the store from opening.
    for i in (0..KEYS).rev().chain(70..90) {
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    DAMAGED.iter().for_each(|i| store.damage(&key(*i)));
    store
}

fn take_reported(store: &Store) -> Vec<Vec<u8>> {
    std::mem::take(&mut *store.owner.unreadable.lock())
}

fn keys(of: &[u32]) -> Vec<Vec<u8>> {
    of.iter().map(|i| key(*i)).collect()
}

fn repair(store: &mut Store, repaired: &[u32]) {
    let places: Vec<_> = repaired.iter().map(|i| (key(*i), store.locator(&key(*i)))).collect();
    for &i in repaired {
        store.put(&key(i), &value(i, 1, VALUE_BYTES));
    }
    store.gc.note_repaired(places.iter().map(|(key, at)| (&key[..], at)));
}

#[test]
fn the_owner_is_told_of_values_that_cannot_be_moved() {
    let store = nezha();
    store.settle();
    assert_eq!(take_reported(&store), keys(&DAMAGED), "by a sort");

    let mut store = Store::new(Setup::default());
    for round in 0..2 {
        for i in (0..KEYS).filter(|i| round == 0 || i % 3 != 0) {
            store.put(&key(i), &value(i, round, VALUE_BYTES));
        }
    }
    store.damage(&key(3));
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(take_reported(&store), keys(&[3]), "by a relocation");
}

#[test]
fn nothing_is_sorted_again_for_values_that_cannot_be_read() {
    let mut store = nezha();
    // The store does settle.
    store.settle();
    let sorted = store.gc.stats().bytes.sort;
    assert!(sorted > u64::from(KEYS - 10) * VALUE_BYTES as u64, "{sorted}");
    assert_eq!(store.gc.stats().damaged, DAMAGED.len() as u64);
    // Readable unsorted values count as before.
    (100..103).for_each(|i| store.put(&key(i), &value(i, 0, VALUE_BYTES)));
    store.settle();
    assert_eq!(store.gc.stats().bytes.sort, sorted, "12 KiB are not 16");
    (103..106).for_each(|i| store.put(&key(i), &value(i, 0, VALUE_BYTES)));
    store.settle();
    let again = store.gc.stats().bytes.sort;
    assert!(again > sorted);
    assert_eq!(take_reported(&store), keys(&[DAMAGED, DAMAGED].concat()));
    // Copies are sorted; values that are still unreadable are not tried without need.
    repair(&mut store, &DAMAGED[..5]);
    store.settle();
    assert!(store.gc.stats().bytes.sort > again);
    assert_eq!(take_reported(&store), keys(&DAMAGED[5..]));
    repair(&mut store, &DAMAGED[5..]);
    store.gc.force(Forced::SortAll).unwrap();
    store.check();
    let places: Vec<_> = store.model.keys().map(|key| store.locator(key).lsn()).collect();
    assert!(places.is_sorted());
}

#[test]
fn a_restart_tries_once_more_to_sort_what_cannot_be_read() {
    let store = nezha();
    store.settle();
    take_reported(&store);
    let sorted = store.gc.stats().bytes.sort;
    let store = store.crash(5);
    store.settle();
    assert_eq!(take_reported(&store), keys(&DAMAGED));
    assert!(store.gc.stats().bytes.sort <= 2 * sorted + 4096);
}

#[test]
fn a_victim_is_emptied_again_only_when_what_is_left_in_it_has_changed() {
    let mut store = Store::new(Setup::default());
    for round in 0..2 {
        for i in (0..KEYS).filter(|i| round == 0 || i % 3 != 0) {
            store.put(&key(i), &value(i, round, VALUE_BYTES));
        }
    }
    // Two neighbours in one file that is mostly dead.
    let lost = [3, 6];
    lost.iter().for_each(|i| store.damage(&key(*i)));
    assert_eq!(store.locator(&key(3)).file, store.locator(&key(6)).file);
    let runs = |store: &Store| store.index.version().runs().map(|r| r.id()).collect::<Vec<_>>();
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(take_reported(&store), keys(&lost));
    let before = runs(&store);
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!((take_reported(&store), runs(&store)), (keys(&[]), before));
    // One of them is deleted.
    let mut command = CommandBuilder::new();
    command.delete(&key(3)).unwrap();
    store.write(command).unwrap();
    store.model.remove(&key(3));
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(take_reported(&store), keys(&[6]));
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(take_reported(&store), keys(&[]));
    // The other has a copy.
    let file = store.locator(&key(6)).file;
    repair(&mut store, &[6]);
    store.gc.force(Forced::Collect).unwrap();
    store.check();
    assert!(store.log.files().iter().all(|info| info.file != file), "nothing holds it any longer");
}

#[test]
fn the_space_around_a_value_that_the_device_refuses_to_read_is_freed() {
    const KEYS: u32 = 400;
    let mut store = Store::new(Setup::default());
    (0..KEYS).for_each(|i| store.put(&key(i), &value(i, 0, VALUE_BYTES)));
    store.settle();
    store.refuse(&key(7));
    let mut random = Random::new("space_around_a_refused_value", 12);
    for round in 1..3000 {
        let i = random.below(u64::from(KEYS)) as u32;
        if i != 7 {
            store.put(&key(i), &value(i, round, VALUE_BYTES));
        }
        if round % 16 == 0 {
            store.settle();
        }
    }
    // Its neighbours in the refused sectors.
    [6, 8].iter().for_each(|i| store.put(&key(*i), &value(*i, 0, VALUE_BYTES)));
    store.settle();
    let stats = store.gc.stats();
    let pinned = store.vfs.file_bytes(store.path_of(store.locator(&key(7)).file)).unwrap();
    let bound = 2.2 + pinned as f64 / stats.live_bytes as f64;
    assert!(stats.space_amp <= bound, "{} and {pinned} pinned: {stats:?}", stats.space_amp);
    assert!(stats.damaged > 0 && stats.reclaimed_files > 10, "{stats:?}");
    assert!(store.get(&key(7)).unwrap_err().is_damage());
    store.put(&key(7), &value(7, 9, VALUE_BYTES));
    store.gc.force(Forced::Collect).unwrap();
    store.check();
}

#[test]
fn a_dead_segment_that_cannot_be_read_holds_up_no_other_work() {
    let mut store = Store::new(Setup::default());
    for round in 0..3 {
        for i in (0..KEYS).filter(|i| round == 0 || *i > 0) {
            store.put(&key(i), &value(i, round, VALUE_BYTES));
        }
    }
    // Deletes in it could hide the value of key 0, which is older.
    let file = FileId(store.locator(&key(0)).file.0 + 1);
    for path in [store.path_of(file), store.path_of(file).with_extension("side")] {
        let bytes = store.vfs.file_bytes(&path).unwrap();
        store.vfs.inject(Fault::Unreadable { path, offset: 0, bytes }).unwrap();
    }
    store.gc.force(Forced::Flush).unwrap();
    stele_gc::GcHooks::truncate(&*store.owner).unwrap();
    store.settle();
    store.gc.force(Forced::Collect).unwrap();
    let stats = store.gc.stats();
    let held = stats.files.iter().find(|state| state.id == file).map(|state| state.held);
    assert_eq!(held, Some(Some(Held::Unreadable)), "{stats:?}");
    assert!(stats.reclaimed_files >= 5, "{stats:?}");
    store.check();
    // The next open tries once more.
    let store = store.crash(1);
    store.settle();
    store.check();
}
