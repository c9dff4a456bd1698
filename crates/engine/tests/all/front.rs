//! The embedded interface: every user call, on a simulated disk.

use crate::common::{DIR, disk, open, tiny};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stele_engine::{
    Batch, Db, Error, Group, KeyRange, Options, Order, Pair, PendingGet, Result, ScanOptions,
};
use stele_simulated_disk::Fault;
use stele_storage::{Admitted, EngineView, GotAdmitted, Passed, StateMachine};
use stele_types::ManualClock;
use stele_types::size::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_vfs::Vfs;

fn numbered(n: u32) -> Vec<u8> {
    format!("k{n:04}").into_bytes()
}

fn filled(pairs: u32) -> Db {
    let db = open(&disk(1), &tiny()).unwrap();
    for n in 0..pairs {
        db.put(&numbered(n), &vec![n as u8; 100 + n as usize]).unwrap();
    }
    db
}

#[test]
fn puts_are_read_back_overwritten_and_deleted() {
    let db = filled(50);
    assert_eq!(db.get(&numbered(7)).unwrap().unwrap(), vec![7; 107]);
    db.put(&numbered(7), b"").unwrap();
    assert_eq!(db.get(&numbered(7)).unwrap().unwrap(), b""[..]);
    db.delete(&numbered(7)).unwrap();
    assert_eq!(db.get(&numbered(7)).unwrap(), None);
    db.delete(&numbered(7)).unwrap();
    db.delete_range(&numbered(10), &numbered(20)).unwrap();
    assert_eq!(
        db.exist(&[&numbered(9), &numbered(10), &numbered(20)]).unwrap(),
        [true, false, true]
    );
    db.delete_range(b"", b"").unwrap();
    assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 0);
}

#[test]
fn keys_and_values_of_every_allowed_size_pass_and_larger_ones_get_a_typed_error() {
    let options = Options { segment_bytes_max: 1 << 20, ..tiny() };
    let db = open(&disk(1), &options).unwrap();
    let long_key = vec![b'k'; USER_KEY_BYTES_MAX];
    for (key, size) in [(&b""[..], 0), (b"a", 1), (b"b", 64), (b"c", 65), (&long_key[..], 4096)] {
        db.put(key, &vec![1; size]).unwrap();
        assert_eq!(db.get(key).unwrap().unwrap().len(), size);
    }
    let largest = vec![7; VALUE_BYTES_MAX];
    db.put(b"largest", &largest).unwrap();
    assert!(db.get(b"largest").unwrap().unwrap() == largest);
    let too_long = db.put(&vec![0; USER_KEY_BYTES_MAX + 1], b"");
    assert!(matches!(too_long, Err(Error::Invalid(_))), "{too_long:?}");
    let too_large = db.put(b"k", &vec![0; VALUE_BYTES_MAX + 1]);
    assert!(too_large.unwrap_err().to_string().contains("limit is 67108864"));
    assert!(db.get(&vec![0; USER_KEY_BYTES_MAX + 1]).is_err());
    assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 6);
}

#[test]
fn a_scan_goes_both_ways_and_keeps_its_limits() {
    let db = filled(200);
    let range = KeyRange::new(numbered(10), numbered(150));
    let forward = db.scan(&ScanOptions::new(range.clone(), 5)).unwrap();
    let keys: Vec<_> = forward.iter().map(|p| p.key.to_vec()).collect();
    assert_eq!(keys, (10..15).map(numbered).collect::<Vec<_>>());
    assert_eq!(forward[0].value.len(), 110);
    let mut options = ScanOptions::new(range.clone(), 3);
    options.order = Order::Reverse;
    let keys: Vec<_> = db.scan(&options).unwrap().iter().map(|p| p.key.to_vec()).collect();
    assert_eq!(keys, [numbered(149), numbered(148), numbered(147)]);
    options = ScanOptions::new(range.clone(), usize::MAX);
    options.keys_only = true;
    let keys = db.scan(&options).unwrap();
    assert!(keys.len() == 140 && keys.iter().all(|p| p.value.is_empty()));
    options = ScanOptions::new(range, usize::MAX);
    options.bytes_max = 1000;
    let some = db.scan(&options).unwrap();
    assert!(some.iter().map(|p| p.key.len() + p.value.len()).sum::<usize>() <= 1000);
    assert!(some.len() >= 8);
    options.bytes_max = 1;
    assert_eq!(db.scan(&options).unwrap().len(), 1);
    assert!(db.scan(&ScanOptions::new(KeyRange::all(), 0)).unwrap().is_empty());
}

#[test]
fn a_scan_reads_little_more_than_it_returns_and_an_iterator_reads_ahead() {
    const VALUE_BYTES: usize = 12 << 10;
    let disk = disk(1);
    let db = open(&disk, &Options { segment_bytes_max: 16 << 20, ..tiny() }).unwrap();
    for n in 0..600 {
        db.put(&numbered(n), &[n as u8; VALUE_BYTES]).unwrap();
    }
    db.compact().unwrap();
    let meter = || disk.meter().snapshot();
    let few = ScanOptions::new(KeyRange::all(), 5);
    let short = ScanOptions { bytes_max: 5 * VALUE_BYTES, limit: 600, ..few.clone() };
    for options in [few, short] {
        let before = meter();
        let got = db.scan(&options).unwrap().len();
        assert!((4..=5).contains(&got), "{got} pairs");
        let read = meter().since(&before).read_bytes as usize;
        assert!(read < 6 * VALUE_BYTES + (64 << 10), "{read} bytes were read");
    }
    let before = meter();
    let mut count = 0;
    for (pair, n) in db.iter(KeyRange::all(), Order::Forward).unwrap().zip(0..) {
        let pair = pair.unwrap();
        assert_eq!(
            (&pair.key[..], &pair.value[..]),
            (&numbered(n)[..], &[n as u8; VALUE_BYTES][..])
        );
        count += 1;
    }
    assert_eq!(count, 600);
    let reads = meter().since(&before).reads;
    assert!(reads < 60, "{reads} reads for 600 values");
}

#[test]
fn a_read_of_which_the_memory_is_refused_reads_no_value() {
    const VALUE_BYTES: usize = 300 << 10;
    let disk = disk(1);
    let db = open(&disk, &Options { segment_bytes_max: 16 << 20, ..tiny() }).unwrap();
    for n in 0..20 {
        db.put(&numbered(n), &vec![n as u8; VALUE_BYTES]).unwrap();
    }
    db.compact().unwrap();
    let view = db.view().unwrap();
    let all = ScanOptions::new(KeyRange::all(), 20);
    // Reads the blocks of the index.
    view.scan(&ScanOptions { keys_only: true, ..all.clone() }).unwrap();
    let (mut asked, before) = (Vec::new(), disk.meter().snapshot());
    let mut refuse = |pairs, bytes| {
        asked.push((pairs, bytes));
        false
    };
    let gets = |keys: &[u32]| -> Vec<PendingGet> {
        keys.iter().map(|n| PendingGet::of_key(numbered(*n).into())).collect()
    };
    let refused = view.get_many(gets(&[7]), &mut refuse);
    assert!(matches!(refused[..], [Ok(Admitted::Refused)]), "{refused:?}");
    let mut found: Vec<Pair> = Vec::new();
    assert_eq!(view.scan_into(&all, &mut refuse, &mut found).unwrap(), Admitted::Refused);
    assert!(found.is_empty());
    let read = disk.meter().snapshot().since(&before).read_bytes;
    assert!(read < VALUE_BYTES as u64, "{read} bytes were read");
    let key_bytes = numbered(7).len() as u64;
    assert_eq!(asked[0], (1, key_bytes + VALUE_BYTES as u64));
    assert!(asked[1].1 >= asked[1].0 as u64 * VALUE_BYTES as u64, "{asked:?}");
    let mut bytes_left = 5 * VALUE_BYTES as u64;
    let mut admit = |_, bytes| {
        let is_admitted = bytes <= bytes_left;
        bytes_left = bytes_left.saturating_sub(bytes);
        is_admitted
    };
    let part = view.scan_into(&all, &mut admit, &mut found).unwrap();
    assert_eq!(part, Admitted::Refused, "not a part");
    let absent = view.get_many(vec![PendingGet::of_key("absent".into())], &mut |_, _| false);
    assert!(matches!(absent[..], [Ok(Admitted::Read(None))]), "nothing needs no memory");
    // Long values are read one by one; after a refusal no other is read.
    let (mut parts, before) = (Vec::new(), disk.meter().snapshot());
    let many = view.get_many(gets(&(0..20).collect::<Vec<_>>()), &mut |count, bytes| {
        parts.push((count, bytes));
        parts.len() < 3
    });
    assert_eq!(parts, [(1, VALUE_BYTES as u64 + key_bytes); 3]);
    let is_read = |got: &Result<GotAdmitted>| matches!(got, Ok(Admitted::Read(Some(_))));
    assert_eq!(many.iter().filter(|got| is_read(got)).count(), 2);
    let read = disk.meter().snapshot().since(&before).read_bytes;
    assert!(read < 3 * VALUE_BYTES as u64, "{read} bytes were read");
    let mut whole: Vec<Pair> = Vec::new();
    let passed = view.scan_into(&all, &mut |_, _| true, &mut whole).unwrap().read().unwrap();
    assert_eq!((passed, &whole), (Passed::of(&whole), &view.scan(&all).unwrap()));
}

#[test]
fn the_pressure_of_garbage_collection_is_known_to_those_that_slow_writers() {
    let db = open(&disk(1), &tiny()).unwrap();
    let is_felt = (0..20_000).any(|n: u32| {
        db.put(&numbered(n * 7 % 300), &n.to_be_bytes().repeat(300)).unwrap();
        StateMachine::pressure(&**db.store()) > 0.0
    });
    assert!(is_felt, "{:?}", db.stats().gc);
}

#[test]
fn an_iterator_sees_one_point_in_time_while_writes_flushes_and_collection_go_on() {
    let db = filled(100);
    let mut iter = db.iter(KeyRange::all(), Order::Forward).unwrap();
    assert_eq!(iter.next().unwrap().unwrap().key, numbered(0));
    for n in 0..100 {
        db.put(&numbered(n), b"new").unwrap();
    }
    db.delete_range(&numbered(50), b"").unwrap();
    db.compact().unwrap();
    let rest: Vec<_> = iter.map(|p| p.unwrap()).collect();
    assert_eq!(rest.len(), 99);
    for (pair, n) in rest.iter().zip(1u32..) {
        assert_eq!((pair.key.to_vec(), pair.value.len()), (numbered(n), 100 + n as usize));
    }
    assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 50);
}

#[test]
fn a_batch_is_applied_whole_or_not_at_all() {
    let db = filled(3);
    let mut batch = Batch::new();
    batch.put(b"x", b"1").unwrap().delete(&numbered(0)).unwrap();
    batch.delete_range(&numbered(1), &numbered(3)).unwrap().put(&numbered(2), b"2").unwrap();
    assert!(batch.put(&vec![0; USER_KEY_BYTES_MAX + 1], b"").is_err());
    assert_eq!((batch.len(), batch.is_empty()), (4, false));
    db.write(batch).unwrap();
    assert_eq!(db.exist(&[b"x", &numbered(0), &numbered(1)]).unwrap(), [true, false, false]);
    assert_eq!(db.get(&numbered(2)).unwrap().unwrap(), b"2"[..]);
    db.write(Batch::new()).unwrap();
}

#[test]
fn a_pair_with_a_time_to_live_ends_for_reads_scans_and_collection() {
    let clock = Arc::new(ManualClock::at(1000));
    let disk = disk(1);
    let vfs = Arc::new(disk.clone());
    let db = Db::open_with(vfs, clock.clone(), Path::new(DIR), tiny()).unwrap();
    db.put_ttl(b"short", &[1; 200], 10).unwrap();
    db.put_ttl(b"long", &[2; 200], 100_000).unwrap();
    db.put_ttl(b"ever", &[3; 200], 0).unwrap();
    clock.advance_seconds(9);
    assert_eq!(db.get_with_ttl(b"short").unwrap().unwrap().1, Some(1));
    clock.advance_seconds(1);
    assert_eq!(db.get(b"short").unwrap(), None);
    assert_eq!(db.exist(&[b"short", b"long"]).unwrap(), [false, true]);
    assert_eq!(db.get_with_ttl(b"ever").unwrap().unwrap().1, None);
    let keys = |db: &Db| db.scan(&ScanOptions::new(KeyRange::all(), 2)).unwrap().len();
    assert_eq!(keys(&db), 2);
    // The pair is dropped when the clock has shown for an hour that it has expired.
    for _ in 0..8 {
        clock.advance_seconds(600);
        db.maintain(1).unwrap();
    }
    db.compact().unwrap();
    let entries: u64 = db.store().index().version().tiers().iter().map(|t| t.entries).sum();
    assert_eq!((entries, keys(&db)), (2, 2));
}

#[test]
fn groups_are_listed_read_and_deleted_by_prefix_and_mask() {
    let db = open(&disk(1), &tiny()).unwrap();
    for user in 0..4u8 {
        for item in 0..5u8 {
            db.put(&[b'u', user, 0, item, b'!'], &[user, item]).unwrap();
        }
    }
    db.put(b"u", b"too short for a group").unwrap();
    let user_1 = Group { prefix: [b'u', 1, 0, 0], mask: [255, 255, 0, 0] };
    assert_eq!(db.list_group(user_1, 100).unwrap().len(), 5);
    assert_eq!(db.list_group(user_1, 2).unwrap().len(), 2);
    let item_3 = Group { prefix: [0, 0, 0, 3], mask: [0, 0, 0, 255] };
    let values: Vec<_> = db.iterate_group(item_3).unwrap().map(|p| p.unwrap().value).collect();
    assert_eq!(values, [&[0, 3][..], &[1, 3], &[2, 3], &[3, 3]]);
    assert_eq!(db.delete_group(item_3).unwrap(), 4);
    assert_eq!(db.delete_group(user_1).unwrap(), 4);
    assert_eq!(db.iter(KeyRange::all(), Order::Forward).unwrap().count(), 1 + 4 * 5 - 8);
}

#[test]
fn asynchronous_calls_complete_in_order_and_share_syncs() {
    const CALLS: u32 = 300;
    let disk = disk(1);
    let db = open(&disk, &Options { background: true, ..tiny() }).unwrap();
    // The first write stalls until all calls are submitted, so that at most two groups form.
    let (go, going) = channel::<()>();
    let going = Mutex::new(going);
    disk.on_stall(move |_| going.lock().unwrap().recv().unwrap());
    disk.inject(Fault::Stall { path_contains: ".seg".into(), nth: 1 }).unwrap();
    let before = db.stats().log.syncs;
    let (done, completed) = channel();
    for n in 0..CALLS {
        let done = done.clone();
        let completion = db.put_async(b"same key", &n.to_le_bytes()).unwrap();
        completion.on_done(move |result| done.send((n, result)).unwrap());
    }
    assert!(completed.try_recv().is_err(), "a call completed before its write");
    go.send(()).unwrap();
    for n in 0..CALLS {
        let (nth, result) = completed.recv_timeout(Duration::from_secs(30)).unwrap();
        result.unwrap();
        assert_eq!(nth, n, "calls complete in another order");
    }
    assert_eq!(db.get(b"same key").unwrap().unwrap(), (CALLS - 1).to_le_bytes()[..]);
    let syncs = db.stats().log.syncs - before;
    assert!(syncs <= 2, "{syncs} syncs for two groups");
    db.delete_async(b"same key").unwrap();
    db.close().unwrap();
}

#[test]
fn writers_on_many_threads_all_find_their_writes() {
    let disk = disk(1);
    let db = open(&disk, &Options { background: true, ..tiny() }).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..8u32 {
            let db = &db;
            scope.spawn(move || {
                for n in 0..100 {
                    let key = [writer.to_be_bytes(), u32::to_be_bytes(n)].concat();
                    db.put(&key, &[writer as u8; 200]).unwrap();
                    assert_eq!(db.get(&key).unwrap().unwrap(), vec![writer as u8; 200]);
                }
            });
        }
    });
    db.close().unwrap();
    let db = open(&disk, &tiny()).unwrap();
    assert_eq!(db.iter_keys(KeyRange::all(), Order::Forward).unwrap().count(), 800);
}

#[test]
fn readers_find_values_while_collection_moves_and_removes_their_files() {
    let db = open(&disk(1), &Options { background: true, ..tiny() }).unwrap();
    for n in 0..100 {
        db.put(&numbered(n), &vec![n as u8; 500]).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..30u32 {
                for n in (0..100).filter(|n| n % 3 != 0) {
                    db.put(&numbered(n), &vec![n as u8; 500 + round as usize]).unwrap();
                }
                db.compact().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        while !stop.load(Ordering::Relaxed) {
            for n in 0..100 {
                let value = db.get(&numbered(n)).unwrap().unwrap();
                assert!(value.len() >= 500 && value.iter().all(|&byte| byte == n as u8));
            }
        }
    });
}
