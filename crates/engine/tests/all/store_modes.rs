//! Puts under conditions and other read-modify-writes of one key, alone and beside other writers.

use crate::common::{DIR, disk, open, tiny};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use stele_engine::{Db, Error, Modification, Modified, NewPair, Options, StoreMode, Stored};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::ManualClock;
use stele_types::size::{APPENDED_VALUE_BYTES_MAX, USER_KEY_BYTES_MAX};

fn background() -> Options {
    Options { background: true, ..tiny() }
}

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(key).unwrap().map(|value| value.to_vec())
}

/// Mode, value before, result, value after a put of `new`.
type Row<'a> = (StoreMode, Option<&'a [u8]>, Stored, Option<Vec<u8>>);

#[test]
fn each_mode_puts_under_its_condition_only_and_the_result_is_durable() {
    use StoreMode::{Append, NoOverwrite, Post, UpdateOnly};
    use Stored::{Done, Exists, Missing};
    let large = vec![7; 3000];
    let rows: [Row<'_>; 10] = [
        (Post, None, Done, Some(b"new".to_vec())),
        (Post, Some(b"old"), Done, Some(b"new".to_vec())),
        (UpdateOnly, None, Missing, None),
        (UpdateOnly, Some(b"old"), Done, Some(b"new".to_vec())),
        (UpdateOnly, Some(&large), Done, Some(b"new".to_vec())),
        (NoOverwrite, None, Done, Some(b"new".to_vec())),
        (NoOverwrite, Some(b""), Exists, Some(Vec::new())),
        (NoOverwrite, Some(&large), Exists, Some(large.clone())),
        (Append, None, Done, Some(b"new".to_vec())),
        (Append, Some(&large), Done, Some([&large[..], b"new"].concat())),
    ];
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    for (n, (mode, before, result, _)) in rows.iter().enumerate() {
        let key = [n as u8];
        before.iter().for_each(|value| db.put(&key, value).unwrap());
        assert_eq!(db.put_with_mode(&key, b"new", *mode).unwrap(), *result, "{mode:?} {n}");
    }
    let check = |db: &Db| {
        for (n, (mode, .., after)) in rows.iter().enumerate() {
            assert_eq!(get(db, &[n as u8]), *after, "{mode:?} {n}");
        }
    };
    check(&db);
    check(&open(&disk.restart(3), &tiny()).unwrap());
    assert_eq!(db.retrieve_and_delete(&[9]).unwrap().unwrap().len(), 3003);
    assert_eq!(db.retrieve_and_delete(&[9]).unwrap(), None);
    assert_eq!(get(&open(&disk.restart(4), &tiny()).unwrap(), &[9]), None);
}

#[test]
fn limits_are_checked_and_a_refused_change_leaves_the_value() {
    let db = open(&disk(1), &tiny()).unwrap();
    let long_key = vec![0; USER_KEY_BYTES_MAX + 1];
    for mode in [StoreMode::Post, StoreMode::UpdateOnly, StoreMode::Append] {
        assert!(matches!(db.put_with_mode(&long_key, b"", mode), Err(Error::Invalid(_))));
    }
    db.put(b"k", &vec![1; APPENDED_VALUE_BYTES_MAX - 1]).unwrap();
    assert_eq!(db.put_with_mode(b"k", b"1", StoreMode::Append).unwrap(), Stored::Done);
    let too_long = db.put_with_mode(b"k", b"1", StoreMode::Append).unwrap_err();
    assert!(matches!(&too_long, Error::Invalid(text) if text.contains("an append")), "{too_long}");
    assert_eq!(get(&db, b"k").unwrap().len(), APPENDED_VALUE_BYTES_MAX);
    let sum = |by| db.modify(b"n", Modification::Increment { by }).unwrap();
    assert_eq!(sum(41), Modified::Updated { value: "41".into() });
    assert_eq!(sum(1), Modified::Updated { value: "42".into() });
}

#[test]
fn an_expired_pair_counts_as_absent_and_an_append_keeps_the_expiry() {
    let (disk, clock) = (disk(1), Arc::new(ManualClock::at(1000)));
    let db = Db::open_with(Arc::new(disk), clock.clone(), Path::new(DIR), tiny()).unwrap();
    db.put_ttl(b"k", &[1; 100], 10).unwrap();
    db.put_with_mode(b"k", b"2", StoreMode::Append).unwrap();
    let (value, ttl_s) = db.get_with_ttl(b"k").unwrap().unwrap();
    assert_eq!((value.len(), ttl_s), (101, Some(10)));
    clock.advance_seconds(10);
    assert_eq!(db.put_with_mode(b"k", b"3", StoreMode::UpdateOnly).unwrap(), Stored::Missing);
    assert_eq!(db.retrieve_and_delete(b"k").unwrap(), None);
    assert_eq!(db.put_with_mode(b"k", b"4", StoreMode::NoOverwrite).unwrap(), Stored::Done);
    let new = NewPair::Put { value: "5".into(), expires_at_s: 1020 };
    db.modify(b"k", Modification::Replace { new }).unwrap();
    assert_eq!(db.get_with_ttl(b"k").unwrap().unwrap().1, Some(10));
}

#[test]
fn a_modification_sees_the_operations_before_it_in_its_group() {
    let db = open(&disk(1), &tiny()).unwrap();
    db.put(b"old", b"1").unwrap();
    let put = db.put_async(b"new", b"1").unwrap();
    let delete = db.delete_async(b"old").unwrap();
    let before = db.stats().log.syncs;
    assert_eq!(db.put_with_mode(b"new", b"2", StoreMode::NoOverwrite).unwrap(), Stored::Exists);
    assert!(put.is_done() && delete.is_done() && db.stats().log.syncs - before <= 1);
    assert_eq!(db.put_with_mode(b"old", b"2", StoreMode::UpdateOnly).unwrap(), Stored::Missing);
    let mut batch = stele_engine::Batch::new();
    batch.put(b"old", b"3").unwrap().delete_range(b"n", b"o").unwrap();
    let batch = db.write_async(batch).unwrap();
    assert_eq!(db.retrieve_and_delete(b"new").unwrap(), None);
    batch.wait().unwrap();
    assert_eq!(db.retrieve_and_delete(b"old").unwrap().unwrap(), b"3"[..]);
}

/// Runs `calls` while the first write of the log stalls, so that all of them wait at the same time.
fn while_a_write_stalls(disk: &SimVfs, db: &Db, call: impl Fn(u8) + Sync) {
    const CALLS: u8 = 12;
    let (go, going) = channel::<()>();
    let going = Mutex::new(going);
    disk.on_stall(move |_| going.lock().unwrap().recv().unwrap());
    disk.inject(Fault::Stall { path_contains: ".seg".into(), nth: 1 }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| db.put(b"counter", b"9").unwrap());
        while disk.stalls() == 0 {
            std::thread::yield_now();
        }
        for n in 0..CALLS {
            let call = &call;
            scope.spawn(move || call(n));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        go.send(()).unwrap();
    });
}

#[test]
fn modifications_of_one_group_and_of_two_are_decided_one_after_the_other() {
    let disk = disk(1);
    let db = open(&disk, &background()).unwrap();
    db.put(b"counter", b"5").unwrap();
    let before = db.stats().log.syncs;
    let sums = Mutex::new(Vec::new());
    while_a_write_stalls(&disk, &db, |_| {
        match db.modify(b"counter", Modification::Increment { by: 1 }).unwrap() {
            Modified::Updated { value } => sums.lock().unwrap().push(value.to_vec()),
            other => panic!("{other:?}"),
        }
    });
    let mut sums: Vec<u64> = sums.into_inner().unwrap().iter().map(|sum| text(sum)).collect();
    sums.sort_unstable();
    assert_eq!(sums, (10..22).collect::<Vec<_>>(), "each sum rests on the one before it");
    assert_eq!(get(&db, b"counter").unwrap(), b"21");
    let syncs = db.stats().log.syncs - before;
    assert!(syncs <= 6, "{syncs} syncs: modifications do not share a group");
}

fn text(bytes: &[u8]) -> u64 {
    std::str::from_utf8(bytes).unwrap().parse().unwrap()
}

#[test]
fn one_writer_of_many_stores_without_overwriting_and_one_retrieves() {
    let disk = disk(1);
    let db = open(&disk, &background()).unwrap();
    let (stored, retrieved) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for writer in 0..4u8 {
            let (db, stored, retrieved) = (&db, &stored, &retrieved);
            scope.spawn(move || {
                for n in 0..100u8 {
                    let value = [&[writer, n][..], &[0; 100]].concat();
                    let done = db.put_with_mode(b"slot", &value, StoreMode::NoOverwrite).unwrap();
                    if done == Stored::Done {
                        stored.lock().unwrap().push((writer, n));
                    }
                    if let Some(value) = db.retrieve_and_delete(b"slot").unwrap() {
                        retrieved.lock().unwrap().push((value[0], value[1]));
                    }
                    // A plain write of another key shares the group.
                    db.put(&[writer], &[n]).unwrap();
                }
            });
        }
    });
    let (mut stored, mut retrieved) =
        (stored.into_inner().unwrap(), retrieved.into_inner().unwrap());
    stored.sort_unstable();
    retrieved.sort_unstable();
    assert_eq!(get(&db, b"slot"), None);
    assert!(stored.len() >= 100);
    assert_eq!(stored, retrieved, "every stored value is retrieved exactly once");
}

#[test]
fn a_value_that_cannot_be_read_fails_its_own_modification_and_is_not_needed_for_existence() {
    let disk = disk(1);
    let db = open(&disk, &tiny()).unwrap();
    db.put(b"bad", &[9; 500]).unwrap();
    let segment =
        disk.paths().into_iter().find(|path| path.extension().is_some_and(|e| e == "seg"));
    let segment = segment.unwrap();
    let bytes = disk.read_file(&segment).unwrap();
    let at = bytes.windows(100).position(|window| window == [9; 100]).unwrap();
    disk.corrupt(&segment, at as u64 + 50, &[8; 4]).unwrap();
    let failed = db.put_with_mode(b"bad", b"1", StoreMode::Append).unwrap_err();
    assert!(failed.is_damage(), "{failed}");
    assert!(db.retrieve_and_delete(b"bad").unwrap_err().is_damage());
    assert_eq!(db.put_with_mode(b"bad", b"1", StoreMode::NoOverwrite).unwrap(), Stored::Exists);
    assert_eq!(db.put_with_mode(b"good", b"1", StoreMode::NoOverwrite).unwrap(), Stored::Done);
    assert_eq!(db.put_with_mode(b"bad", b"1", StoreMode::UpdateOnly).unwrap(), Stored::Done);
    assert_eq!(get(&db, b"bad").unwrap(), b"1");
}
