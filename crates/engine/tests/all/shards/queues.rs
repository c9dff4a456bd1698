//! Completion queues over a set.

use crate::common::{Model, clock, disk, tiny};
use crate::shards::world::{SET, SHARDS, by_hash, by_range, disks, key, place};
use std::collections::BTreeMap;
use std::time::Duration;
use stele_engine::{
    Answer, Completed, CompletionQueue, Error, Options, Partition, QueueOptions, Shards,
    ShardsOptions,
};
use stele_simulated_disk::{Fault, SimVfs};

const BOUNDS: QueueOptions = QueueOptions { depth: 8, key_bytes_max: 32, value_bytes_max: 500 };

fn open(disks: &[SimVfs], partition: Partition) -> Shards {
    let options = Options { background: true, ..tiny() };
    let places = disks.iter().enumerate().map(|(shard, disk)| place(disk, shard, &options));
    Shards::open_with(places.collect(), clock(), ShardsOptions::new(partition, SET)).unwrap()
}

fn collect(queue: &CompletionQueue) -> Vec<Completed> {
    let mut done = Vec::new();
    while queue.stats().in_flight + queue.stats().completed > 0 {
        assert!(queue.wait(&mut done, 1, Duration::from_secs(30)) > 0, "a call is not completed");
    }
    done
}

#[test]
fn one_queue_serves_all_shards_of_a_set() {
    for partition in [by_hash(), by_range()] {
        let shards = open(&disks(1), partition);
        let queue = CompletionQueue::new(BOUNDS).unwrap();
        let mut model = Model::new();
        let mut answers = BTreeMap::new();
        for n in 0..42 {
            let value = vec![n as u8; 60 + n as usize];
            model.insert(key(n), value.clone());
            while queue.try_put(&shards, n, &key(n), &value).is_err() {
                answers.extend(collect(&queue).into_iter().map(|it| (it.tag, it.result.unwrap())));
            }
        }
        for n in 0..42 {
            while queue.try_get(&shards, 100 + n, &key(n)).is_err() {
                answers.extend(collect(&queue).into_iter().map(|it| (it.tag, it.result.unwrap())));
            }
        }
        answers.extend(collect(&queue).into_iter().map(|it| (it.tag, it.result.unwrap())));
        for n in 0..42 {
            let value = model[&key(n)].clone();
            assert_eq!(answers.remove(&n), Some(Answer::Written));
            assert_eq!(answers.remove(&(100 + n)), Some(Answer::Value(Some(value.into()))));
        }
        assert!(answers.is_empty(), "{answers:?}");
        shards.close().unwrap();
    }
}

#[test]
fn a_call_that_fails_in_a_shard_names_its_directory_and_the_others_answer() {
    let disks: Vec<SimVfs> = (0..SHARDS as u64).map(disk).collect();
    let shards = open(&disks, by_range());
    disks[1].inject(Fault::SyncFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
    let queue = CompletionQueue::new(BOUNDS).unwrap();
    for n in [0, 8, 20] {
        queue.try_put(&shards, n, &key(n), b"value").unwrap();
    }
    let mut done = collect(&queue);
    done.sort_by_key(|done| done.tag);
    let [first, failed, last] = done.try_into().unwrap();
    assert_eq!((first.result.unwrap(), last.result.unwrap()), (Answer::Written, Answer::Written));
    let error = failed.result.unwrap_err();
    assert!(matches!(error, Error::Shard { .. }), "{error}");
    assert!(error.to_string().contains("/shard-1"), "{error}");
}
