//! Moved values: found under the same key, with the same version, and never over a newer one.

use crate::store::harness::{Setup, Store, key, value};
use stele_gc::{Forced, GcOptions, Stage};
use stele_log::FileKind;
use stele_types::{CommandBuilder, Lsn};

const VALUE_BYTES: usize = 4 << 10;

fn third_overwritten() -> Store {
    let mut store = Store::new(Setup::default());
    for i in 0..120 {
        store.put_until(&key(i), &value(i, 0, VALUE_BYTES), 9_000_000 + u64::from(i));
    }
    for i in (0..120).filter(|i| i % 3 != 0) {
        store.put(&key(i), &value(i, 1, VALUE_BYTES));
    }
    store
}

fn is_sorted_file(store: &Store, key: &[u8]) -> bool {
    let file = store.locator(key).file;
    store.log.files().iter().any(|info| info.file == file && info.kind == FileKind::Sorted)
}

#[test]
fn a_moved_value_keeps_its_key_version_and_expiry() {
    let store = third_overwritten();
    let before: Vec<Lsn> = (0..120).map(|i| store.locator(&key(i)).lsn()).collect();
    store.gc.force(Forced::Collect).unwrap();
    store.check();
    let moved: Vec<u32> = (0..120).filter(|i| is_sorted_file(&store, &key(*i))).collect();
    assert!(moved.len() >= 30, "{moved:?}");
    for _ in 0..2 {
        for &i in &moved {
            let head = store.log.record_of(&store.locator(&key(i))).unwrap();
            assert_eq!(head.version, before[i as usize], "a moved value is not newer than before");
            assert_eq!(head.key.as_deref(), Some(&key(i)[..]));
            let expires = if i % 3 == 0 { 9_000_000 + u64::from(i) } else { 0 };
            assert_eq!(head.expires_at_s, Some(expires));
        }
        // Again, now out of sorted files.
        store.gc.force(Forced::SortAll).unwrap();
    }
}

#[test]
fn writes_racing_a_relocation_win() {
    // Catalogue 52; rocksdb #2678.
    let gc = GcOptions { space_amp_target: 1.1, space_amp_hard: 1.2, ..Setup::default().gc };
    let mut store = Store::new(Setup { gc, ..Setup::default() });
    for round in 0..2 {
        for i in 0..120 {
            if round == 0 || i % 3 != 0 {
                store.put(&key(i), &value(i, round, VALUE_BYTES));
            }
        }
    }
    let mut raced = 0;
    for step in 0..5000u32 {
        let done = store.gc.step(1).unwrap();
        if done.stage == Stage::Relocate {
            let i = (step * 7) % 120;
            match step % 3 {
                0 => store.delete(&key(i)),
                _ => store.put(&key(i), &value(i, 2 + step, VALUE_BYTES)),
            }
            raced += 1;
        }
        if raced > 100 {
            break;
        }
    }
    assert!(raced > 50, "{raced}");
    store.settle();
    store.check();
    store.gc.force(Forced::Collect).unwrap();
    store.check();
    let store = store.crash(3);
    store.check();
}

#[test]
fn a_deleted_key_does_not_return_through_relocation() {
    // badger #2310: the tombstone is dropped by the merge that also moves the old value.
    let mut store = third_overwritten();
    for i in 0..60 {
        store.delete(&key(i));
    }
    store.gc.force(Forced::Collect).unwrap();
    store.check();
    let store = store.crash(9);
    store.check();
    store.gc.force(Forced::SortAll).unwrap();
    store.check();
}

#[test]
fn a_damaged_value_stays_where_it_is_and_stops_nothing() {
    let mut store = third_overwritten();
    let at = store.locator(&key(3));
    store.damage(&key(3));
    store.gc.force(Forced::Collect).unwrap();
    assert_eq!(store.locator(&key(3)), at);
    assert!(store.get(&key(3)).unwrap_err().is_damage());
    assert_eq!(store.gc.stats().damaged, 1);
    // After the owner replaces it, its file can be removed.
    let mut command = CommandBuilder::new();
    command.put(&key(3), &value(3, 9, VALUE_BYTES), 0).unwrap();
    store.write(command).unwrap();
    store.model.insert(key(3), value(3, 9, VALUE_BYTES));
    store.gc.force(Forced::Collect).unwrap();
    store.check();
}

#[test]
fn only_runs_that_refer_to_a_victim_are_rewritten() {
    // A frame takes whole blocks: this length leaves little padding, which would count as dead.
    const VALUE_BYTES: usize = 4000;
    let mut store = Store::new(Setup { run_bytes_max: 2 << 10, ..Setup::default() });
    for i in 0..600 {
        store.put(&key(i), &value(i, 0, VALUE_BYTES));
    }
    store.gc.force(Forced::MergeAll).unwrap();
    for i in (0..40).filter(|i| i % 8 != 0) {
        store.put(&key(i), &value(i, 1, VALUE_BYTES));
    }
    store.gc.force(Forced::MergeAll).unwrap();
    let runs = |store: &Store| store.index.version().runs().map(|r| r.id()).collect::<Vec<_>>();
    let before = runs(&store);
    assert!(before.len() >= 8, "{}", before.len());
    store.gc.force(Forced::Collect).unwrap();
    let after = runs(&store);
    let kept = before.iter().filter(|run| after.contains(run)).count();
    assert!(kept * 2 > before.len() && kept < before.len(), "{kept} of {} kept", before.len());
    assert!(store.gc.stats().bytes.relocate > 0);
    store.check();
}
