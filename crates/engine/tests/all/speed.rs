//! Speed of a store's device: estimated by the probe of its first start, then measured.

use crate::common::{DIR, clock, disk, tiny};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{LogStore, Options, Replay, Store};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{
    Cause, CommandBuilder, EntryRecord, Error, LogBatch, LogIndex, Record, RegionId, Term,
};
use stele_vfs::{Create, Open, Vfs};

fn open(disk: &SimVfs) -> Store {
    let options = Options { background: false, ..tiny() };
    let disk = Arc::new(disk.clone());
    Store::open(disk, clock(), Path::new(DIR), options, Replay::All).unwrap().0
}

fn file() -> PathBuf {
    Path::new(DIR).join("SPEED")
}

fn probe_bytes(disk: &SimVfs) -> u64 {
    disk.meter().snapshot().bytes(Cause::Probe)
}

fn append(store: &Store, index: u64) {
    let mut builder = CommandBuilder::new();
    builder.put(b"key", b"value", 0).unwrap();
    let payload = builder.build().bytes().clone();
    let (region, term, index) = (RegionId(1), Term(1), LogIndex(index));
    let entry = Record::Entry(EntryRecord { region, term, index, is_command: true, payload });
    store.append(&LogBatch { records: vec![entry] }).unwrap();
}

#[test]
fn a_new_store_is_probed_once_and_keeps_the_result() {
    let disk = disk(1);
    let store = open(&disk);
    assert_eq!(store.device_speed().write.per_second(4096), None, "nothing is known");
    let (probed, write) = store.estimate_speed(7).unwrap();
    assert!(probe_bytes(&disk) > 8 << 20);
    let speed = store.device_speed();
    assert_eq!((speed.write, speed.writes), (write, 0));
    let of_probe = |(name, bytes): &(&str, u64)| *name == Cause::Probe.name() || *bytes > 8 << 20;
    let stats = stele_engine::StateMachine::stats(&store);
    assert!(!stats.written_bytes.iter().any(of_probe), "{stats:?}");
    drop(store);
    let disk = disk.restart(3);
    let written = probe_bytes(&disk);
    let store = open(&disk);
    // A probe was interrupted.
    let left = Path::new(DIR).join("PROBE");
    let how = Open { write: true, create: Create::New, direct: false };
    disk.open(&left, how).unwrap();
    assert_eq!(store.estimate_speed(8).unwrap(), (probed, write));
    assert_eq!(probe_bytes(&disk), written, "it is not probed again");
    assert!(!disk.exists(&left).unwrap());
    (1..=8).for_each(|index| append(&store, index));
    assert_eq!(store.device_speed().writes, 8, "measured from here on");
}

#[test]
fn a_damaged_result_of_the_probe_is_measured_again_and_stops_no_store() {
    let disk = disk(2);
    let store = open(&disk);
    let (probed, _) = store.estimate_speed(7).unwrap();
    let good = disk.read_file(file()).unwrap();
    let digit = good.windows(12).position(|part| part == b"small_nanos ").unwrap() + 12;
    let mut wrong = good.clone();
    wrong[digit] = b'7';
    for damaged in [&wrong[..], b"", b"\xff\xff", b"stele speed\n", &good[..good.len() / 2]] {
        disk.write_file(file(), damaged);
        let before = probe_bytes(&disk);
        assert_eq!(store.estimate_speed(7).unwrap().0, probed, "{damaged:?}");
        assert!(probe_bytes(&disk) > before, "{damaged:?}");
        assert_eq!(disk.read_file(file()).unwrap(), good);
    }
}

#[test]
fn a_store_on_a_full_device_serves_without_an_estimate() {
    let disk = disk(3);
    disk.set_capacity(Some(4 << 20));
    let store = open(&disk);
    let refused = store.estimate_speed(7).unwrap_err();
    assert!(matches!(refused, Error::NoSpace(_)), "{refused}");
    append(&store, 1);
    disk.set_capacity(None);
    disk.inject(Fault::WriteFails { path_contains: "PROBE".into(), nth: 3 }).unwrap();
    store.estimate_speed(7).unwrap_err();
    append(&store, 2);
    store.estimate_speed(7).unwrap();
}

#[test]
fn an_idle_store_measures_its_device_and_stores_nothing() {
    let disk = disk(4);
    let store = open(&disk);
    store.measure_writes().unwrap();
    assert_eq!(store.device_speed().writes, 0, "an empty log has no place for it");
    append(&store, 1);
    let before = stele_engine::StateMachine::stats(&store);
    store.measure_writes().unwrap();
    assert_eq!(store.device_speed().writes, 9);
    let after = stele_engine::StateMachine::stats(&store);
    assert_eq!((after.user_bytes, after.disk_bytes), (before.user_bytes, before.disk_bytes));
    drop(store);
    let store = open(&disk.restart(5));
    append(&store, 2);
    store.measure_writes().unwrap();
}
