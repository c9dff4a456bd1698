//! State of a simulated disk after a power cut.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_simulated_disk::{CrashAt, CrashPoint, Operation, SimOptions, SimVfs};
use stele_types::{Cause, Error, Result};
use stele_vfs::{Create, Open, Vfs, VfsFile};

const DIR: &str = "store";
const SEEDS: u64 = 64;

fn path(name: &str) -> std::path::PathBuf {
    Path::new(DIR).join(name)
}

fn disk() -> SimVfs {
    let vfs = SimVfs::default();
    vfs.create_dir_all(Path::new(DIR)).unwrap();
    vfs
}

fn write(file: &Arc<dyn VfsFile>, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_at(&[IoSlice::new(bytes)], offset, Cause::Log)
}

/// A file with 4 synced blocks of 512 ones and a durable name.
fn synced_file(vfs: &SimVfs, name: &str) -> Arc<dyn VfsFile> {
    let file = vfs.open(&path(name), Open::CREATE).unwrap();
    write(&file, &[1; 2048], 0).unwrap();
    file.sync_data().unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    file
}

#[test]
fn synced_bytes_stay_and_unsynced_ones_are_lost_torn_or_kept() {
    let vfs = disk();
    let file = synced_file(&vfs, "a");
    write(&file, &[2; 2048], 1024).unwrap();
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..SEEDS {
        let bytes = vfs.restart(seed).read_file(path("a")).unwrap();
        assert_eq!(bytes[..1024], [1; 1024], "seed {seed}");
        assert!((2048..=3072).contains(&bytes.len()), "seed {seed}: {} bytes", bytes.len());
        for (i, sector) in bytes.chunks(512).enumerate().skip(2) {
            let old = if i < 4 { 1 } else { 0 };
            let whole = |value| sector.iter().all(|&byte| byte == value);
            assert!(whole(2) || whole(old), "seed {seed}: sector {i} is torn inside");
        }
        match bytes[1024..].iter().filter(|&&byte| byte == 2).count() {
            0 => lost += 1,
            2048 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(lost > 0 && kept > 0 && torn > 0, "{lost} lost, {kept} kept, {torn} torn");
}

#[test]
fn a_sync_makes_writes_and_length_durable() {
    let vfs = disk();
    let file = synced_file(&vfs, "a");
    write(&file, &[2; 5000], 1000).unwrap();
    file.set_len(4000).unwrap();
    file.sync_data().unwrap();
    for seed in 0..SEEDS {
        let bytes = vfs.restart(seed).read_file(path("a")).unwrap();
        assert_eq!((bytes.len(), bytes[999], bytes[1000], bytes[3999]), (4000, 1, 2, 2));
    }
}

#[test]
fn lengths_are_durable_only_after_a_sync() {
    let vfs = disk();
    let file = synced_file(&vfs, "a");
    file.set_len(100).unwrap();
    let lens = (0..SEEDS).map(|seed| vfs.restart(seed).file_bytes(path("a")).unwrap());
    let lens: std::collections::BTreeSet<u64> = lens.collect();
    assert_eq!(lens, [100, 2048].into());
}

#[test]
fn a_synced_file_whose_name_was_not_synced_may_vanish() {
    let vfs = disk();
    let file = vfs.open(&path("a"), Open::CREATE).unwrap();
    write(&file, &[1; 700], 0).unwrap();
    file.sync_data().unwrap();
    let found = |vfs: &SimVfs, seed| vfs.restart(seed).file_bytes(path("a"));
    let before: Vec<_> = (0..SEEDS).map(|seed| found(&vfs, seed)).collect();
    assert!(before.contains(&None) && before.contains(&Some(700)));
    vfs.sync_dir(Path::new(DIR)).unwrap();
    assert!((0..SEEDS).all(|seed| found(&vfs, seed) == Some(700)));
}

#[test]
fn a_rename_is_atomic_and_durable_after_the_directory_sync() {
    let vfs = disk();
    let _old = synced_file(&vfs, "current");
    let file = vfs.open(&path("tmp"), Open::CREATE).unwrap();
    write(&file, &[7; 10], 0).unwrap();
    file.sync_data().unwrap();
    vfs.rename(&path("tmp"), &path("current")).unwrap();
    let mut lens = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let after = vfs.restart(seed);
        lens.insert(after.file_bytes(path("current")).expect("always exactly one of them"));
        let both = after.file_bytes(path("tmp")) == Some(10);
        assert!(!both || after.file_bytes(path("current")) == Some(2048), "seed {seed}: two names");
    }
    assert_eq!(lens, [10, 2048].into());
    vfs.sync_dir(Path::new(DIR)).unwrap();
    for seed in 0..SEEDS {
        let after = vfs.restart(seed);
        assert_eq!(after.paths(), [path("current")]);
        assert_eq!(after.read_file(path("current")).unwrap(), [7; 10]);
    }
}

#[test]
fn an_unlink_is_durable_after_the_directory_sync_and_spares_open_handles() {
    let vfs = disk();
    let file = synced_file(&vfs, "a");
    vfs.unlink(&path("a")).unwrap();
    let found: Vec<_> = (0..SEEDS).map(|seed| vfs.restart(seed).file_bytes(path("a"))).collect();
    assert!(found.contains(&None) && found.contains(&Some(2048)));
    vfs.sync_dir(Path::new(DIR)).unwrap();
    assert!((0..SEEDS).all(|seed| vfs.restart(seed).paths().is_empty()));
    let mut byte = [0];
    file.read_exact_at(&mut byte, 2047).unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn a_recycled_file_never_has_two_names() {
    let vfs = disk();
    let _file = synced_file(&vfs, "1.seg");
    vfs.rename(&path("1.seg"), &path("free")).unwrap();
    vfs.rename(&path("free"), &path("2.seg")).unwrap();
    for seed in 0..SEEDS {
        assert_eq!(vfs.restart(seed).paths().len(), 1, "seed {seed}");
    }
}

fn replace(vfs: &SimVfs) -> Result<()> {
    let file = vfs.open(&path("tmp"), Open { create: Create::IfMissing, ..Open::WRITE })?;
    write(&file, &[9; 1500], 0)?;
    file.sync_data()?;
    vfs.rename(&path("tmp"), &path("current"))?;
    vfs.sync_dir(Path::new(DIR))
}

#[test]
fn at_every_crash_point_a_replaced_file_is_old_or_new() {
    let base = disk();
    let _old = synced_file(&base, "current");
    let whole = base.fork();
    replace(&whole).unwrap();
    let operations = whole.operations();
    assert_eq!(operations, 5);
    let (mut old, mut new) = (0, 0);
    for (operation, at) in (0..operations).flat_map(|i| CrashAt::ALL.map(|at| (i, at))) {
        let vfs = base.fork();
        vfs.crash_at(CrashPoint { operation, at });
        let last = operation + 1 == operations && at == CrashAt::After;
        assert_eq!(replace(&vfs).is_ok(), last, "operation {operation} {at:?}");
        assert!(vfs.crashed() && vfs.exists(&path("current")).is_err());
        for seed in 0..8 {
            let bytes = vfs.restart(seed).read_file(path("current")).unwrap();
            assert!(
                bytes == [1; 2048] || bytes == [9; 1500],
                "operation {operation} {at:?} {seed}"
            );
            assert!(!last || bytes == [9; 1500]);
            *(if bytes.len() == 2048 { &mut old } else { &mut new }) += 1;
        }
    }
    assert!(old > 0 && new > 0);
}

#[test]
fn after_a_crash_everything_fails_with_its_name() {
    let vfs = disk();
    let file = synced_file(&vfs, "a");
    vfs.crash_at(CrashPoint { operation: 0, at: CrashAt::Inside });
    let error = file.sync_data().unwrap_err();
    assert!(error.to_string().contains("simulated crash"), "{error}");
    assert!(matches!(&error, Error::Io { op: "sync", path: at, .. } if *at == path("a")));
    assert!(file.read_at(&mut [0], 0).is_err() && file.len().is_err());
    assert!(vfs.open(&path("a"), Open::READ).is_err() && vfs.list(Path::new(DIR)).is_err());
}

#[test]
fn a_write_cut_inside_is_never_whole() {
    for seed in 0..SEEDS {
        let vfs = SimVfs::new(SimOptions { seed, ..SimOptions::default() });
        vfs.write_file(path("a"), &[0; 4096]);
        let file = vfs.open(&path("a"), Open::WRITE).unwrap();
        vfs.crash_at(CrashPoint { operation: vfs.operations(), at: CrashAt::Inside });
        assert!(write(&file, &[1; 4096], 0).is_err());
        let bytes = vfs.restart(seed).read_file(path("a")).unwrap();
        assert!(bytes.contains(&0), "seed {seed}");
    }
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let vfs = disk();
    let file = synced_file(&vfs, "a");
    for i in 0..20 {
        write(&file, &[i; 900], u64::from(i) * 700).unwrap();
    }
    let after = |seed| vfs.restart(seed).read_file(path("a")).unwrap();
    assert_eq!(after(5), after(5));
    assert!((0..SEEDS).any(|seed| after(seed) != after(5)));
}

#[test]
fn a_killed_process_loses_nothing_but_its_locks() {
    let vfs = disk();
    let file = vfs.open(&path("a"), Open::CREATE).unwrap();
    write(&file, b"unsynced", 0).unwrap();
    let _lock = vfs.lock(&path("LOCK")).unwrap();
    let next = vfs.fork();
    assert_eq!(next.read_file(path("a")).unwrap(), b"unsynced");
    let _lock = next.lock(&path("LOCK")).unwrap();
    // Unsynced bytes stay unsynced: a later power cut can still lose them.
    assert!((0..SEEDS).any(|seed| next.restart(seed).file_bytes(path("a")) != Some(8)));
}

#[test]
fn operations_are_numbered_and_recorded() {
    let vfs = disk();
    vfs.record_writes(true);
    let file = vfs.open(&path("a"), Open::CREATE).unwrap();
    file.allocate(4096).unwrap();
    let parts = [IoSlice::new(b"one"), IoSlice::new(b"two")];
    file.write_at(&parts, 5, Cause::Merge).unwrap();
    file.sync_data().unwrap();
    file.set_len(1).unwrap();
    vfs.rename(&path("a"), &path("b")).unwrap();
    vfs.unlink(&path("b")).unwrap();
    vfs.sync_dir(Path::new(DIR)).unwrap();
    let events = vfs.events();
    let kinds: Vec<Operation> = events.iter().map(|event| event.kind).collect();
    use Operation::{Allocate, Create, CreateDir, Rename, SetLen, Sync, SyncDir, Unlink, Write};
    assert_eq!(kinds, [CreateDir, Create, Allocate, Write, Sync, SetLen, Rename, Unlink, SyncDir]);
    assert!(events.iter().map(|event| event.operation).eq(0..vfs.operations()));
    let write = &events[3];
    assert_eq!((write.offset, write.bytes, write.cause), (5, 6, Some(Cause::Merge)));
    assert_eq!(write.data.as_deref(), Some(&b"onetwo"[..]));
    assert_eq!(events[6].to, Some(path("b")));
    vfs.clear_events();
    assert!(vfs.events().is_empty() && vfs.operations() == 9);
}
