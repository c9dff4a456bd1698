//! Tests of the harness: acknowledged writes are present, also after all stores stop without
//! notice.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use stele_baselines::harness::{Client, Cluster};
use stele_baselines::stele::Design;
use stele_storage::StorageEngine;

const STORES: usize = 3;
const CLIENTS: usize = 8;
const KEYS_EACH: usize = 20;
const ELECTION_TICKS: u64 = 10;

fn key(client: usize, number: usize) -> Vec<u8> {
    format!("{client}/{number:03}").into_bytes()
}

fn check<E>(open: impl Fn(&Path) -> stele_types::Result<E>)
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Ingest: 'static,
{
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..STORES).map(|store| dir.path().join(store.to_string())).collect();
    let start = || {
        let engines = dirs.iter().map(|dir| open(dir).unwrap()).collect();
        Cluster::start(engines, ELECTION_TICKS).unwrap()
    };
    let cluster = start();
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let cluster = &cluster;
            scope.spawn(move || {
                let mut client = Client::new(cluster);
                for at in 0..KEYS_EACH {
                    client.put(&key(number, at), &[at as u8; 1000]).unwrap();
                    let found = client.get(&key(number, at)).unwrap();
                    assert_eq!(found.unwrap(), vec![at as u8; 1000], "read your own write");
                }
            });
        }
    });
    cluster.stop().unwrap();
    let cluster = start();
    let mut client = Client::new(&cluster);
    let pairs = client.scan(b"", CLIENTS * KEYS_EACH + 1).unwrap();
    assert_eq!(pairs.len(), CLIENTS * KEYS_EACH);
    assert!(pairs.is_sorted_by_key(|pair| pair.key.clone()));
    assert_eq!(client.scan(&key(3, 5), 2).unwrap().len(), 2);
    cluster.stop().unwrap();
}

#[test]
fn what_a_group_on_the_unified_log_acknowledged_is_there_when_it_starts_again() {
    for design in
        [Design::Adaptive, Design::Nezha { sort_threshold_bytes: 64 << 10 }, Design::NezhaNoGc]
    {
        check(|dir| design.open(dir));
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn so_it_is_on_rocksdb() {
    use stele_baselines::rocks::{RockStore, dwisckey, lsm_raft, original, pasv};
    for settings in [original(false), original(true), pasv(), lsm_raft(), dwisckey()] {
        check(|dir| RockStore::open(dir, &settings));
    }
}

/// Counts the directories with a database that has tables and was not opened since they were
/// copied: opening creates a lock and a write-ahead log.
#[cfg(feature = "rocksdb")]
fn mirrors(dirs: &[PathBuf]) -> usize {
    let is_mirror = |dir: &&PathBuf| {
        let Ok(files) = std::fs::read_dir(dir.join("pairs")) else { return false };
        let names: Vec<_> = files.flatten().map(|file| file.file_name()).collect();
        let ends_with = |end: &str| names.iter().any(|name| name.to_string_lossy().ends_with(end));
        ends_with(".sst") && !ends_with(".log") && !ends_with("LOCK")
    };
    dirs.iter().filter(is_mirror).count()
}

#[cfg(feature = "rocksdb")]
#[test]
fn followers_of_a_group_on_shipped_tables_write_no_key_values() {
    use std::time::{Duration, Instant};
    use stele_baselines::rocks::{Persistence, RockStore, Settings};
    const CALM_ELECTION_TICKS: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..STORES).map(|store| dir.path().join(store.to_string())).collect();
    let settings = Settings::tiny(Persistence::Tables);
    let engines = dirs.iter().map(|dir| RockStore::open(dir, &settings).unwrap()).collect();
    let cluster = Cluster::start(engines, CALM_ELECTION_TICKS).unwrap();
    let mut client = Client::new(&cluster);
    let deadline = Instant::now() + Duration::from_secs(60);
    for at in 0.. {
        client.put(&key(0, at), &[at as u8; 1000]).unwrap();
        if mirrors(&dirs) == STORES - 1 {
            break;
        }
        assert!(Instant::now() < deadline, "{} stores have only tables", mirrors(&dirs));
    }
    assert!(!cluster.engine().is_following());
    cluster.stop().unwrap();
}
