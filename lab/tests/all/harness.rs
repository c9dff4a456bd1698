//! Tests of the harness: acknowledged writes are present, also after all stores stop without
//! notice.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stele_lab::designs::buc::Counts;
use stele_lab::designs::harness::{Client, Cluster, Mode, Setup};
use stele_lab::designs::stele::Design;
use stele_storage::StorageEngine;
use stele_types::ColumnFamily;

const STORES: usize = 3;
const CLIENTS: usize = 8;
const KEYS_EACH: usize = 20;
const ELECTION_TICKS: u64 = 10;
const MODES: [Mode; 3] = [Mode::RAFT, Mode::CR, Mode::BUC];

fn key(client: usize, number: usize) -> Vec<u8> {
    format!("{client}/{number:03}").into_bytes()
}

fn user_key(key: &[u8]) -> Vec<u8> {
    let prefix = ColumnFamily::Default.engine_key(b"");
    key.strip_prefix(&prefix[..]).unwrap().to_vec()
}

fn setup(mode: Mode) -> Setup {
    Setup { election_ticks: ELECTION_TICKS, mode, delay: Duration::ZERO }
}

fn check<E: StorageEngine + 'static>(setup: Setup, open: impl Fn(&Path) -> stele_types::Result<E>) {
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..STORES).map(|store| dir.path().join(store.to_string())).collect();
    let start = || {
        let engines = dirs.iter().map(|dir| open(dir).unwrap()).collect();
        Cluster::start(engines, &setup).unwrap()
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
        check(setup(Mode::PRODUCT), |dir| design.open(dir));
    }
}

#[test]
fn so_it_is_in_every_mode_of_buc_raft_and_with_slow_links() {
    for mode in MODES {
        check(setup(mode), |dir| Design::NezhaNoGc.open(dir));
    }
    let slow = Setup { delay: Duration::from_millis(1), ..setup(Mode::BUC) };
    check(slow, |dir| Design::NezhaNoGc.open(dir));
}

#[test]
fn a_put_over_slow_links_takes_a_round_trip() {
    const DELAY: Duration = Duration::from_millis(20);
    let dir = tempfile::tempdir().unwrap();
    let dirs = (0..STORES).map(|store| dir.path().join(store.to_string()));
    let engines = dirs.map(|dir| Design::NezhaNoGc.open(&dir).unwrap()).collect();
    let cluster = Cluster::start(engines, &Setup { delay: DELAY, ..setup(Mode::RAFT) }).unwrap();
    let mut client = Client::new(&cluster);
    let began = Instant::now();
    client.put(&key(0, 0), b"value").unwrap();
    assert!(began.elapsed() >= 2 * DELAY, "{:?}", began.elapsed());
    cluster.stop().unwrap();
}

/// Writes with one client, and scans with another one meanwhile. Each scan must hold what was
/// acknowledged before it began.
fn check_scans<E: StorageEngine + 'static>(
    setup: Setup,
    open: impl Fn(&Path) -> stele_types::Result<E>,
) -> Counts {
    const ROUNDS: usize = 60;
    const KEYS: usize = 8;
    const LIMIT: usize = 5;
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..STORES).map(|store| dir.path().join(store.to_string())).collect();
    let engines = dirs.iter().map(|dir| open(dir).unwrap()).collect();
    let cluster = Cluster::start(engines, &setup).unwrap();
    let mut client = Client::new(&cluster);
    let mut present = BTreeSet::new();
    for round in 0..ROUNDS {
        for at in 0..KEYS {
            let is_put = (round * 7 + at * 5) % 3 != 0;
            let key = key(0, at);
            match is_put {
                true => client.put(&key, &[round as u8; 100]).unwrap(),
                false => client.delete(&key).unwrap(),
            }
            if is_put {
                present.insert(key)
            } else {
                present.remove(&key)
            };
        }
        let found = client.scan(b"", LIMIT).unwrap().into_iter();
        let found: Vec<Vec<u8>> = found.map(|pair| user_key(&pair.key)).collect();
        let expected: Vec<Vec<u8>> = present.iter().take(LIMIT).cloned().collect();
        assert_eq!(found, expected, "round {round}");
    }
    let counts = cluster.costs().counts();
    cluster.stop().unwrap();
    counts
}

#[test]
fn scans_hold_what_was_acknowledged_in_every_mode() {
    for mode in MODES {
        check_scans(setup(mode), |dir| Design::NezhaNoGc.open(dir));
    }
}

#[cfg(feature = "rocksdb")]
#[test]
fn scans_on_rocksdb_hold_what_was_acknowledged_in_every_mode() {
    use stele_lab::designs::rocks::{RockStore, original};
    let scans = |mode| check_scans(setup(mode), |dir| RockStore::open(dir, &original(true)));
    for mode in [Mode::RAFT, Mode::CR] {
        assert_eq!(scans(mode), Counts::default(), "{mode:?}");
    }
    // Each apply syncs, so some scans find deletes that are not applied.
    let Counts { read_more, waited, .. } = scans(Mode::BUC);
    assert!(read_more > 0 && waited > 0, "{read_more}, {waited}");
}

#[cfg(feature = "rocksdb")]
#[test]
fn so_it_is_on_rocksdb() {
    use stele_lab::designs::rocks::{RockStore, dwisckey, lsm_raft, original, pasv};
    for mode in MODES {
        check(setup(mode), |dir| RockStore::open(dir, &original(true)));
    }
    for settings in [original(false), original(true), pasv(), lsm_raft(), dwisckey()] {
        check(setup(Mode::PRODUCT), |dir| RockStore::open(dir, &settings));
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
    use stele_lab::designs::rocks::{Persistence, RockStore, Settings};
    const CALM_ELECTION_TICKS: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let dirs: Vec<PathBuf> = (0..STORES).map(|store| dir.path().join(store.to_string())).collect();
    let settings = Settings::tiny(Persistence::Tables);
    let engines = dirs.iter().map(|dir| RockStore::open(dir, &settings).unwrap()).collect();
    let setup = Setup { election_ticks: CALM_ELECTION_TICKS, ..setup(Mode::PRODUCT) };
    let cluster = Cluster::start(engines, &setup).unwrap();
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
