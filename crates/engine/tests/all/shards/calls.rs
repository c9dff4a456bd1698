//! The calls of a set, against one model.

use crate::common::{Random, clock, disk, tiny};
use crate::shards::world::{SET, by_hash, by_range, contents, dir, disks, key, open, place};
use std::sync::Arc;
use stele_engine::{
    Batch, Db, Error, Group, KeyRange, Order, Partition, ScanOptions, Shards, ShardsOptions,
};
use stele_simulated_disk::SimVfs;

fn filled(partition: Partition) -> (Vec<SimVfs>, Shards) {
    let disks = disks(1);
    let shards = open(&disks, partition).unwrap();
    for n in 0..21 {
        shards.put(&key(n), &vec![n as u8; 50 + n as usize * 10]).unwrap();
    }
    (disks, shards)
}

#[test]
fn puts_go_to_the_shard_of_their_key_and_are_read_from_there() {
    for partition in [by_hash(), by_range()] {
        let (_, shards) = filled(partition);
        let mut keys = [0; 3];
        for n in 0..21 {
            let shard = shards.shard_of(&key(n));
            keys[shard] += 1;
            assert_eq!(shards.get(&key(n)).unwrap().unwrap().len(), 50 + n as usize * 10);
            for other in 0..3 {
                let found = shards.shard(other).unwrap().get(&key(n)).unwrap();
                assert_eq!(found.is_some(), other == shard);
            }
        }
        assert!(keys.iter().all(|keys| *keys > 1), "{keys:?}");
        shards.delete(&key(4)).unwrap();
        shards.put_ttl(&key(5), b"v", 9).unwrap();
        assert_eq!(shards.get_with_ttl(&key(5)).unwrap().unwrap().1, Some(9));
        let asked = [key(20), key(4), key(0), b"absent".to_vec(), key(20)];
        let asked: Vec<&[u8]> = asked.iter().map(|key| &key[..]).collect();
        assert_eq!(shards.exist(&asked).unwrap(), [true, false, true, false, true]);
        shards.put_async(&key(4), b"again").unwrap().wait().unwrap();
        shards.delete_async(&key(5)).unwrap().wait().unwrap();
        assert_eq!(shards.exist(&[&key(4), &key(5)]).unwrap(), [true, false]);
        shards.close().unwrap();
    }
}

#[test]
fn scans_are_merged_in_both_orders_within_their_limits() {
    for partition in [by_hash(), by_range()] {
        let (_, shards) = filled(partition);
        let keys = |options: &ScanOptions| -> Vec<Vec<u8>> {
            shards.scan(options).unwrap().into_iter().map(|pair| pair.key.to_vec()).collect()
        };
        let range = KeyRange::new(key(3), key(18));
        let mut options = ScanOptions::new(range.clone(), 9);
        assert_eq!(keys(&options), (3..12).map(key).collect::<Vec<_>>());
        options.order = Order::Reverse;
        assert_eq!(keys(&options), (9..18).rev().map(key).collect::<Vec<_>>());
        options.limit = 100;
        options.keys_only = true;
        assert_eq!(keys(&options), (3..18).rev().map(key).collect::<Vec<_>>());
        options.keys_only = false;
        options.bytes_max = 500;
        let few = shards.scan(&options).unwrap();
        let bytes = few.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
        assert!(bytes <= 500 && (1..4).contains(&few.len()), "{bytes} bytes");
        options.limit = 0;
        assert!(keys(&options).is_empty());
        let only = shards.iter_keys(range, Order::Forward).unwrap();
        assert!(only.map(|pair| pair.unwrap().value).all(|value| value.is_empty()));
        let none = KeyRange::new(key(9), key(9));
        assert_eq!(shards.iter(none, Order::Forward).unwrap().count(), 0);
    }
}

#[test]
fn an_iterator_shows_no_write_made_after_it_was_created() {
    for partition in [by_hash(), by_range()] {
        let (_, shards) = filled(partition);
        let mut iter = shards.iter(KeyRange::all(), Order::Forward).unwrap();
        assert_eq!(iter.next().unwrap().unwrap().key, key(0));
        shards.delete_range(&key(1), b"").unwrap();
        shards.put(&key(30), b"late").unwrap();
        shards.compact().unwrap();
        let rest: Vec<_> = iter.map(|pair| pair.unwrap().key.to_vec()).collect();
        assert_eq!(rest, (1..21).map(key).collect::<Vec<_>>());
        assert_eq!(contents(&shards, Order::Forward).unwrap().len(), 2);
    }
}

#[test]
fn a_batch_of_one_shard_is_applied_and_one_of_several_is_refused_whole() {
    for partition in [by_hash(), by_range()] {
        let (_, shards) = filled(partition);
        let first = shards.shard_of(&key(0));
        let same = (1..21).find(|&n| shards.shard_of(&key(n)) == first).unwrap();
        let other = (1..21).find(|&n| shards.shard_of(&key(n)) != first).unwrap();
        let mut batch = Batch::new();
        batch.put(&key(0), b"new").unwrap().delete(&key(same)).unwrap();
        shards.write(batch.clone()).unwrap();
        assert_eq!(shards.exist(&[&key(0), &key(same)]).unwrap(), [true, false]);
        batch.put(&key(other), b"new").unwrap().put(&key(same), b"new").unwrap();
        let refused = shards.write(batch).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(text) if text.contains("split it")), "{refused}");
        assert_eq!(shards.exist(&[&key(same)]).unwrap(), [false]);
        assert!(shards.get(&key(other)).unwrap().unwrap() != b"new"[..]);
        let mut everything = Batch::new();
        everything.delete_range(b"", b"").unwrap();
        assert!(matches!(shards.write(everything), Err(Error::Invalid(_))));
        shards.write(Batch::new()).unwrap();
    }
}

#[test]
fn groups_are_listed_read_and_deleted_over_all_shards() {
    let partitions =
        [by_hash(), Partition::Range(vec![b"u\x01\x00\x02"[..].into(), b"u\x02"[..].into()])];
    for partition in partitions {
        let shards = open(&disks(3), partition).unwrap();
        for user in 0..4u8 {
            for item in 0..5u8 {
                shards.put(&[b'u', user, 0, item, b'!'], &[user, item]).unwrap();
            }
        }
        let user_1 = Group { prefix: [b'u', 1, 0, 0], mask: [255, 255, 0, 0] };
        let listed = shards.list_group(user_1, 100).unwrap();
        assert!(listed.is_sorted() && listed.len() == 5, "{listed:?}");
        assert_eq!(shards.list_group(user_1, 2).unwrap(), listed[..2]);
        let item_3 = Group { prefix: [0, 0, 0, 3], mask: [0, 0, 0, 255] };
        let values = shards.iterate_group(item_3).unwrap().map(|pair| pair.unwrap().value);
        assert_eq!(values.collect::<Vec<_>>(), [&[0, 3][..], &[1, 3], &[2, 3], &[3, 3]]);
        assert_eq!(shards.delete_group(item_3).unwrap(), 4);
        assert_eq!(shards.delete_group(user_1).unwrap(), 4);
        assert_eq!(contents(&shards, Order::Forward).unwrap().len(), 4 * 5 - 8);
    }
}

#[test]
fn shards_on_one_file_system_count_its_capacity_once() {
    let (shared, own) = (disk(1), disk(2));
    shared.set_capacity(Some(64 << 20));
    own.set_capacity(Some(16 << 20));
    let places = [&shared, &shared, &own];
    let places = places.iter().enumerate().map(|(n, disk)| place(disk, n, &tiny())).collect();
    let options = ShardsOptions::new(by_hash(), SET);
    let shards = Shards::open_with(places, clock(), options).unwrap();
    let mut random = Random(1);
    for n in 0..30 {
        shards.put(&key(n), &random.bytes(3000)).unwrap();
    }
    let stats = shards.stats();
    assert_eq!(stats.total.device_bytes, 80 << 20);
    assert!(stats.total.device_free_bytes < 80 << 20);
    let of_shards = stats.shards.iter().flatten().map(|stats| &stats.engine);
    let disk_bytes = of_shards.clone().map(|stats| stats.disk_bytes).sum::<u64>();
    assert_eq!(stats.total.disk_bytes, disk_bytes);
    assert_eq!(stats.total.user_bytes, 30 * (3000 + 6));
    let written = |name: &str| {
        let of = |causes: &[(&str, u64)]| causes.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
        (of(&stats.total.written_bytes), of_shards.clone().map(|s| of(&s.written_bytes)).sum())
    };
    let (total, sum): (u64, u64) = written("log");
    assert!(total > 90_000 && total == sum, "{:?}", stats.total.written_bytes);
    let device = |n: usize| shards.device(n).unwrap();
    assert_eq!(device(0).number, device(1).number);
    assert_ne!(device(0).number, device(2).number);
    assert_eq!((device(1).capacity_bytes, device(2).capacity_bytes), (64 << 20, 16 << 20));
    assert_eq!(device(2).used_bytes(), device(2).store_bytes);
    assert!(device(0).used_bytes() > device(0).store_bytes);
    assert!(device(2).utilisation() > 0.0 && device(2).utilisation() < 0.5);
    assert!(matches!(shards.device(3), Err(Error::Invalid(_))));
    assert!(shards.shard(0).is_ok() && dir(0) != dir(1));
}

/// Asserts that a message names this call, which the compiler knows, too.
macro_rules! assert_names {
    ($error:expr, $call:expr) => {{
        let _ = $call;
        let (text, call) = ($error.to_string(), stringify!($call));
        assert!(text.contains(&format!("`{call}`")), "{call}: {text}");
    }};
}

#[test]
fn messages_of_shards_name_calls_that_exist() {
    let (disks, shards) = filled(Partition::Hash);
    let mut all = Batch::new();
    for n in 0..21 {
        all.put(&key(n), b"new").unwrap();
    }
    assert_names!(shards.write(all).unwrap_err(), Shards::shard_of);
    shards.close().unwrap();
    let alone = Db::open_with(Arc::new(disks[0].clone()), clock(), &dir(0), tiny());
    assert_names!(alone.unwrap_err(), Shards::open);
    let own = disk(5);
    let db = Db::open_with(Arc::new(own.clone()), clock(), &dir(0), tiny()).unwrap();
    db.close().unwrap();
    assert_names!(open(&[own], Partition::Hash).unwrap_err(), Db::open);
    let failed = std::io::Error::other("gone");
    let failed = Error::of_shard("/a", Error::io("open", "/a/log", failed));
    assert_names!(failed, Shards::open_without_failed);
}
