//! Directories that are not the shards of the set, and shards that fail.

use crate::common::{clock, disk, tiny};
use crate::shards::world::{
    SET, SHARDS, by_hash, by_range, contents, dir, disks, key, open, open_without_failed, place,
    places,
};
use std::path::Path;
use std::sync::Arc;
use stele_engine::{
    Db, Error, KeyRange, Order, Partition, Replay, Result, ScanOptions, SetId, ShardPlace, Shards,
    ShardsOptions, Store, shard_of,
};
use stele_simulated_disk::{Fault, SimVfs};
use stele_vfs::{CopyOnWriteVfs, Vfs};

fn created(partition: Partition) -> Vec<SimVfs> {
    let disks = disks(7);
    let shards = open(&disks, partition).unwrap();
    for n in 0..21 {
        shards.put(&key(n), &[n as u8; 100]).unwrap();
    }
    shards.close().unwrap();
    disks
}

fn open_places(places: Vec<ShardPlace>) -> Result<Shards> {
    Shards::open_with(places, clock(), ShardsOptions::new(by_hash(), SetId(99)))
}

fn refused(places: Vec<ShardPlace>) -> String {
    let error = open_places(places).unwrap_err();
    assert!(matches!(error, Error::Shard { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_set_opens_again_with_its_identity_and_its_pairs() {
    let disks = created(by_hash());
    let shards = open_places(places(&disks)).unwrap();
    assert_eq!((shards.set(), shards.count()), (SET, SHARDS));
    assert_eq!(contents(&shards, Order::Forward).unwrap().len(), 21);
    let second = refused(places(&disks));
    assert!(second.contains("/shard-0") && second.contains("another process"), "{second}");
}

#[test]
fn reordered_directories_are_refused_with_the_order_and_nothing_is_changed() {
    let disks = created(by_hash());
    let before: Vec<u64> = disks.iter().map(SimVfs::operations).collect();
    let mut reordered = places(&disks);
    reordered.swap(0, 2);
    let text = refused(reordered);
    assert!(text.contains("shard in /shard-2"), "{text}");
    assert!(text.contains("the order of the set is /shard-0, /shard-1, /shard-2"), "{text}");
    assert_eq!(disks.iter().map(SimVfs::operations).collect::<Vec<_>>(), before);
    assert!(open_places(places(&disks)).is_ok());
}

#[test]
fn a_missing_directory_is_refused_by_name_also_if_it_is_an_empty_mount_point() {
    let disks = created(by_hash());
    let text = refused(places(&disks[..2]));
    assert!(text.contains("its set has 3 shards, and 2 directories were given"), "{text}");
    let empty = disk(9);
    let with_empty = [disks[0].clone(), empty.clone(), disks[2].clone()];
    for is_there in [false, true] {
        if is_there {
            empty.write_file("/shard-1/lost+found", b"");
        }
        let operations = empty.operations();
        let text = refused(places(&with_empty));
        assert!(text.contains("/shard-1 is missing") && text.contains("mount its disk"), "{text}");
        assert_eq!(empty.operations(), operations, "the empty directory was changed");
        let shards = open_without_failed(&with_empty, by_hash()).unwrap();
        assert!(
            matches!(&shards.failed()[..], [(1, Error::Shard { dir: at, .. })] if *at == dir(1))
        );
        assert_eq!(empty.operations(), operations, "the empty directory was changed");
    }
}

#[test]
fn directories_of_another_set_and_of_a_single_store_are_refused_and_left_as_they_are() {
    let ours = created(by_hash());
    let theirs = disks(70);
    let options = ShardsOptions::new(by_hash(), SetId(4));
    Shards::open_with(places(&theirs), clock(), options).unwrap().close().unwrap();
    let mixed = [ours[0].clone(), ours[1].clone(), theirs[2].clone()];
    let text = refused(places(&mixed));
    assert!(text.contains("/shard-2") && text.contains("set 0000000000000004"), "{text}");
    assert!(open_without_failed(&mixed, by_hash()).is_err(), "another set is not a failure");
    let single = disk(8);
    let vfs = Arc::new(single.clone());
    Db::open_with(vfs, clock(), &dir(2), tiny()).unwrap().put(b"k", b"v").unwrap();
    for others in [&ours[..2], &disks(60)[..2]] {
        let operations = single.operations();
        let text = refused(places(&[others, std::slice::from_ref(&single)].concat()));
        assert!(text.contains("/shard-2") && text.contains("not a shard"), "{text}");
        assert_eq!(single.operations(), operations);
    }
}

#[test]
fn a_shard_is_not_opened_as_a_store_by_itself_and_a_copy_of_it_is_read() {
    let disks = created(by_hash());
    let vfs: Arc<dyn Vfs> = Arc::new(disks[1].clone());
    let operations = disks[1].operations();
    let refusals = [
        Db::open_with(vfs.clone(), clock(), &dir(1), tiny()).unwrap_err(),
        Store::open(vfs.clone(), clock(), &dir(1), tiny(), Replay::All).unwrap_err(),
    ];
    for error in refusals {
        assert!(matches!(&error, Error::WrongStore { path, .. } if *path == dir(1)), "{error}");
        assert!(error.to_string().contains("shard 1 of 3"), "{error}");
    }
    assert_eq!(disks[1].operations(), operations, "the directory was changed");
    let copy = Arc::new(CopyOnWriteVfs::new(vfs.clone(), 64 << 20));
    let read = Db::open_with(copy, clock(), &dir(1), tiny()).unwrap();
    let shards = open_places(places(&disks));
    assert!(shards.is_err(), "the copy holds the lock");
    let found = (0..21).filter(|&n| read.get(&key(n)).unwrap().is_some()).count();
    drop(read);
    let shards = open_places(places(&disks)).unwrap();
    assert_eq!(found, (0..21).filter(|&n| shards.shard_of(&key(n)) == 1).count());
    assert!(found > 0);
    shards.close().unwrap();
    // A directory of which the set was not completed belongs to a set, too.
    let begun = disk(9);
    let map = disks[2].read_file("/shard-2/SHARDS").unwrap();
    begun.write_file("/shard-2/SHARDS", &map);
    let begun: Arc<dyn Vfs> = Arc::new(begun);
    assert!(Db::open_with(begun.clone(), clock(), &dir(2), tiny()).is_err());
    let shard = shard_of(&begun, &dir(2)).unwrap().unwrap();
    assert_eq!((shard.shard, shard.count, shard.set), (2, SHARDS, SET));
    assert_eq!(shard_of(&vfs, Path::new("/elsewhere")).unwrap(), None);
}

#[test]
fn another_partition_another_number_and_a_directory_given_twice_are_refused() {
    let disks = created(by_range());
    let text = open(&disks, by_hash()).unwrap_err().to_string();
    assert!(text.contains("/shard-0") && text.contains("another partition"), "{text}");
    let bounds = Partition::Range(vec![b"a"[..].into(), b"b"[..].into()]);
    assert!(open(&disks, bounds).is_err());
    assert!(open(&disks, by_range()).is_ok());
    let twice = vec![place(&disks[0], 0, &tiny()), place(&disks[0], 0, &tiny())];
    let text = open_places(twice).unwrap_err().to_string();
    assert!(text.contains("/shard-0 is given twice"), "{text}");
}

fn dead_shard(partition: Partition, shard: usize) -> (Vec<SimVfs>, Shards) {
    let disks = created(partition.clone());
    disks[shard].crash_now();
    let text = open(&disks, partition.clone()).unwrap_err().to_string();
    assert!(text.contains(&format!("shard in /shard-{shard}")), "{text}");
    assert!(text.contains("without_failed"), "{text}");
    let shards = open_without_failed(&disks, partition).unwrap();
    (disks, shards)
}

#[test]
fn without_a_dead_shard_the_keys_of_the_others_are_served_and_its_own_fail() {
    for partition in [by_hash(), by_range()] {
        let (_, shards) = dead_shard(partition, 1);
        let is_dead = |error: Error| matches!(error, Error::Shard { dir: at, .. } if at == dir(1));
        let (dead, live): (Vec<u64>, Vec<u64>) =
            (0..21).partition(|&n| shards.shard_of(&key(n)) == 1);
        for &n in &live {
            assert_eq!(shards.get(&key(n)).unwrap().unwrap(), [n as u8; 100][..]);
            shards.put(&key(n), b"new").unwrap();
        }
        for &n in &dead {
            assert!(is_dead(shards.get(&key(n)).unwrap_err()));
            assert!(is_dead(shards.put(&key(n), b"new").unwrap_err()));
            assert!(is_dead(shards.exist(&[&key(live[0]), &key(n)]).unwrap_err()));
        }
        assert!(is_dead(shards.delete_range(b"", b"").unwrap_err()));
        assert_eq!(shards.exist(&[&key(live[0])]).unwrap(), [true], "a refused call changed keys");
        assert!(is_dead(shards.flush().unwrap_err()));
        assert!(is_dead(shards.device(1).unwrap_err()) && is_dead(shards.shard(1).unwrap_err()));
        let stats = shards.stats();
        assert_eq!(
            stats.shards.iter().map(Option::is_some).collect::<Vec<_>>(),
            [true, false, true]
        );
        shards.close().unwrap();
    }
}

#[test]
fn a_scan_that_needs_a_dead_shard_says_so_at_its_place_and_never_skips() {
    let (_, shards) = dead_shard(by_hash(), 1);
    assert!(matches!(shards.iter(KeyRange::all(), Order::Forward), Err(Error::Shard { .. })));
    assert!(shards.scan(&ScanOptions::new(KeyRange::all(), 1)).is_err());
    let (_, shards) = dead_shard(by_range(), 1);
    for (order, before) in [(Order::Forward, 0..7), (Order::Reverse, 14..21)] {
        let found: Vec<Result<_>> = shards.iter(KeyRange::all(), order).unwrap().collect();
        let (last, pairs) = found.split_last().unwrap();
        assert!(matches!(last, Err(Error::Shard { dir: at, .. }) if *at == dir(1)), "{last:?}");
        let mut keys: Vec<Vec<u8>> =
            pairs.iter().map(|pair| pair.as_ref().unwrap().key.to_vec()).collect();
        keys.sort();
        assert_eq!(keys, before.map(key).collect::<Vec<_>>());
        let options = |limit| ScanOptions { order, ..ScanOptions::new(KeyRange::all(), limit) };
        assert_eq!(shards.scan(&options(7)).unwrap().len(), 7);
        assert!(matches!(shards.scan(&options(8)), Err(Error::Shard { .. })));
    }
    let of_others = KeyRange::new(key(14), Vec::new());
    assert_eq!(shards.iter(of_others, Order::Forward).unwrap().count(), 7);
}

#[test]
fn a_shard_that_fails_while_it_runs_fails_alone() {
    let disks = created(by_hash());
    let shards = open(&disks, by_hash()).unwrap();
    let of = |shard: usize| (0..21).map(key).find(|key| shards.shard_of(key) == shard).unwrap();
    disks[1].inject(Fault::SyncFails { path_contains: String::new(), nth: 1 }).unwrap();
    let failed = shards.put(&of(1), b"new").unwrap_err();
    assert!(
        failed.is_failed_sync() && failed.to_string().contains("shard in /shard-1"),
        "{failed}"
    );
    for _ in 0..3 {
        assert!(matches!(shards.put(&of(1), b"new"), Err(Error::Shard { .. })));
        shards.put(&of(0), b"new").unwrap();
        shards.put(&of(2), b"new").unwrap();
    }
    assert!(shards.failed().is_empty(), "a shard that was opened is not left out");
    assert_eq!(contents(&shards, Order::Forward).unwrap().len(), 21);
    let closed = shards.close().unwrap_err();
    assert!(closed.to_string().contains("/shard-1"), "{closed}");
}

#[test]
fn a_damaged_map_is_a_failure_of_its_shard_and_a_set_without_any_shard_does_not_open() {
    let disks = created(by_hash());
    disks[2].corrupt("/shard-2/SHARDS", 40, b"?").unwrap();
    let error = open(&disks, by_hash()).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("/shard-2/SHARDS"), "{error}");
    assert_eq!(open_without_failed(&disks, by_hash()).unwrap().failed().len(), 1);
    disks.iter().for_each(SimVfs::crash_now);
    assert!(open_without_failed(&disks, by_hash()).is_err());
}
