//! Every fault of a simulated disk, its capacity, alignment and locks.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_types::{Cause, Error, Result};
use stele_vfs::{AlignedBuf, Create, Open, Vfs, VfsFile};

const SEEDS: u64 = 32;

fn disk(seed: u64) -> (SimVfs, Arc<dyn VfsFile>) {
    let vfs = SimVfs::new(SimOptions { seed, ..SimOptions::default() });
    vfs.write_file("d/a", &[1; 4096]);
    vfs.write_file("d/other", &[3; 512]);
    let file = vfs.open(Path::new("d/a"), Open::WRITE).unwrap();
    (vfs, file)
}

fn write(file: &Arc<dyn VfsFile>, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_at(&[IoSlice::new(bytes)], offset, Cause::Log)
}

fn read(file: &Arc<dyn VfsFile>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[test]
fn a_flipped_bit_stays_also_in_unsynced_bytes() {
    let (vfs, file) = disk(0);
    write(&file, &[1; 1000], 4096).unwrap();
    let flip = |offset| Fault::FlipBit { path: "d/a".into(), offset, bit: 3 };
    vfs.inject(flip(100)).unwrap();
    vfs.inject(flip(4100)).unwrap();
    let bytes = read(&file).unwrap();
    assert_eq!((bytes[100], bytes[4100], bytes[101]), (9, 9, 1));
    for seed in 0..SEEDS {
        let after = vfs.restart(seed).read_file("d/a").unwrap();
        assert_eq!(after[100], 9);
        assert!(after.get(4100).is_none_or(|&byte| byte != 1), "seed {seed}");
    }
    assert!(vfs.inject(Fault::FlipBit { path: "d/none".into(), offset: 0, bit: 0 }).is_err());
    assert!(matches!(vfs.inject(flip(9999)), Err(Error::Invalid(_))));
}

#[test]
fn a_lost_write_reports_success_and_leaves_old_bytes() {
    let (vfs, file) = disk(0);
    vfs.inject(Fault::LoseWrite { nth: 2 }).unwrap();
    write(&file, &[5; 512], 0).unwrap();
    write(&file, &[6; 1024], 3584).unwrap();
    write(&file, &[7; 512], 512).unwrap();
    file.sync_data().unwrap();
    let bytes = vfs.restart(1).read_file("d/a").unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[512], bytes[3584], bytes[4096]), (4608, 5, 7, 1, 0));
}

#[test]
fn a_misdirected_write_lands_elsewhere() {
    for seed in 0..SEEDS {
        let (vfs, file) = disk(seed);
        vfs.inject(Fault::MisdirectWrite { nth: 1 }).unwrap();
        write(&file, &[6; 512], 1024).unwrap();
        let bytes = read(&file).unwrap();
        assert_eq!(bytes.len(), 4096);
        assert_eq!(bytes[1024..1536], [1; 512], "seed {seed}");
        assert_eq!(bytes.iter().filter(|&&byte| byte == 6).count(), 512, "seed {seed}");
        // A write as large as its file has no other place in it.
        vfs.inject(Fault::MisdirectWrite { nth: 1 }).unwrap();
        write(&file, &[7; 4096], 0).unwrap();
        assert!(!read(&file).unwrap().contains(&7));
        assert_eq!(vfs.read_file("d/other").unwrap()[0], 7);
    }
}

#[test]
fn a_failed_write_may_leave_a_part() {
    let mut left = 0;
    for seed in 0..SEEDS {
        let (vfs, file) = disk(seed);
        vfs.inject(Fault::WriteFails { path_contains: "a".into(), nth: 1 }).unwrap();
        let error = write(&file, &[6; 2048], 0).unwrap_err();
        assert!(matches!(&error, Error::Io { op: "write", path, source }
            if path == Path::new("d/a") && source.kind() == io::ErrorKind::Other));
        let sixes = read(&file).unwrap().iter().filter(|&&byte| byte == 6).count();
        assert!(sixes < 2048 && sixes.is_multiple_of(512));
        left += usize::from(sixes > 0);
        write(&file, &[6; 2048], 0).unwrap();
    }
    assert!(left > 0);
}

#[test]
fn after_a_failed_sync_the_next_succeeds_and_proves_nothing() {
    let mut lost = 0;
    for seed in 0..SEEDS {
        let (vfs, file) = disk(seed);
        vfs.inject(Fault::SyncFails { path_contains: "d/a".into(), nth: 1 }).unwrap();
        write(&file, &[6; 512], 0).unwrap();
        assert!(matches!(file.sync_data(), Err(Error::Io { op: "sync", .. })));
        file.sync_data().unwrap();
        assert_eq!(read(&file).unwrap()[0], 6);
        lost += usize::from(vfs.restart(seed).read_file("d/a").unwrap()[0] != 6);
    }
    assert!(lost > 0);
}

#[test]
fn a_failed_directory_sync_makes_a_part_durable() {
    let mut counts = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let (vfs, _file) = disk(seed);
        for name in ["d/x", "d/y"] {
            vfs.open(Path::new(name), Open::CREATE).unwrap();
        }
        vfs.inject(Fault::SyncDirFails { path_contains: "d".into(), nth: 1 }).unwrap();
        assert!(vfs.sync_dir(Path::new("d")).is_err());
        counts.insert(vfs.restart(seed).paths().len());
        vfs.sync_dir(Path::new("d")).unwrap();
        assert_eq!(vfs.restart(seed).paths().len(), 4);
    }
    assert_eq!(counts, [2, 3, 4].into());
}

#[test]
fn a_rename_fails_with_or_without_effect_and_one_without_room_changes_nothing() {
    let mut renamed = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let (vfs, _) = disk(seed);
        let (from, to) = (Path::new("d/a"), Path::new("d/b"));
        vfs.inject(Fault::NoRoomForName { path_contains: "d/b".into(), nth: 1 }).unwrap();
        assert!(matches!(vfs.rename(from, to), Err(Error::NoSpace(_))));
        assert!(vfs.exists(from).unwrap() && !vfs.exists(to).unwrap());
        vfs.inject(Fault::RenameFails { path_contains: "d/b".into(), nth: 2 }).unwrap();
        vfs.rename(from, to).unwrap();
        vfs.rename(to, from).unwrap();
        assert!(matches!(vfs.rename(from, to), Err(Error::Io { op: "rename", .. })));
        assert_ne!(vfs.exists(from).unwrap(), vfs.exists(to).unwrap());
        renamed.insert(vfs.exists(to).unwrap());
    }
    assert_eq!(renamed.len(), 2);
}

#[test]
fn reads_fail_or_flip_once() {
    let (vfs, file) = disk(0);
    vfs.inject(Fault::ReadFails { path_contains: String::new(), nth: 2 }).unwrap();
    assert!(read(&file).is_ok());
    assert!(matches!(read(&file), Err(Error::Io { op: "read", .. })));
    vfs.inject(Fault::ReadFlipsOnce { path_contains: "d/a".into(), nth: 1 }).unwrap();
    let flipped = read(&file).unwrap();
    let ones: u32 = flipped.iter().map(|byte| (byte ^ 1).count_ones()).sum();
    assert_eq!(ones, 1);
    assert_eq!(read(&file).unwrap(), [1; 4096]);
}

#[test]
fn a_full_disk_refuses_what_needs_room() {
    let (vfs, file) = disk(0);
    vfs.set_capacity(Some(4 * 4096));
    assert_eq!(vfs.free_bytes(Path::new("d")).unwrap(), 2 * 4096);
    file.allocate(3 * 4096).unwrap();
    assert!(
        matches!(file.allocate(4 * 4096), Err(Error::NoSpace(path)) if path == Path::new("d/a"))
    );
    assert_eq!(vfs.list(Path::new("d")).unwrap()[0].allocated_bytes, 3 * 4096);
    write(&file, &[2; 8192], 4096).unwrap();
    assert!(matches!(write(&file, &[2; 9000], 8192), Err(Error::NoSpace(_))));
    // Space of an unlinked file is free once its last handle is closed.
    vfs.unlink(Path::new("d/other")).unwrap();
    write(&file, &[2; 4096], 3 * 4096).unwrap();
    assert_eq!(vfs.free_bytes(Path::new("d")).unwrap(), 0);
    assert!(vfs.open(Path::new("d/new"), Open::CREATE).is_err());
    drop(file);
    vfs.unlink(Path::new("d/a")).unwrap();
    assert_eq!(vfs.free_bytes(Path::new("d")).unwrap(), 4 * 4096);
}

#[test]
fn no_space_from_an_operation_on_until_cleared() {
    let (vfs, file) = disk(0);
    vfs.inject(Fault::NoSpace { from_operation: vfs.operations() + 1 }).unwrap();
    write(&file, &[2; 4096], 4096).unwrap();
    assert!(matches!(write(&file, &[2; 4096], 8192), Err(Error::NoSpace(_))));
    assert!(matches!(vfs.open(Path::new("d/n"), Open::CREATE), Err(Error::NoSpace(_))));
    write(&file, &[4; 4096], 0).unwrap();
    vfs.unlink(Path::new("d/other")).unwrap();
    vfs.clear_faults();
    write(&file, &[2; 4096], 8192).unwrap();
}

#[test]
fn one_write_finds_no_room_and_the_next_does() {
    let (vfs, file) = disk(0);
    let path_contains = "d/a".to_owned();
    vfs.inject(Fault::NoRoomOnce { path_contains, nth: 2 }).unwrap();
    write(&file, &[2; 10], 0).unwrap();
    assert!(matches!(write(&file, &[3; 10], 0), Err(Error::NoSpace(_))));
    assert_eq!(vfs.read_file("d/a").unwrap()[..10], [2; 10]);
    write(&file, &[4; 10], 0).unwrap();
}

#[test]
fn a_stall_runs_its_hook_and_may_use_the_disk() {
    let (vfs, file) = disk(0);
    let waited = Arc::new(AtomicU64::new(0));
    let (count, inner) = (Arc::clone(&waited), vfs.clone());
    vfs.on_stall(move |path| {
        assert!(inner.exists(path).unwrap());
        count.fetch_add(20, Ordering::Relaxed);
    });
    vfs.inject(Fault::Stall { path_contains: "d/a".into(), nth: 2 }).unwrap();
    write(&file, &[2; 10], 0).unwrap();
    assert_eq!(waited.load(Ordering::Relaxed), 0);
    file.sync_data().unwrap();
    assert_eq!((waited.load(Ordering::Relaxed), vfs.stalls()), (20, 1));
    vfs.inject(Fault::ReadStalls { path_contains: "d/a".into(), nth: 2 }).unwrap();
    let mut read = [0; 10];
    for stalls in [1, 2, 2] {
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 10);
        assert_eq!((read, vfs.stalls()), ([2; 10], stalls));
    }
}

#[test]
fn direct_handles_enforce_whole_blocks_in_aligned_memory() {
    let vfs = SimVfs::new(SimOptions { block_bytes: Some(512), ..SimOptions::default() });
    vfs.write_file("a", &[1; 2048]);
    let direct = Open { direct: true, ..Open::WRITE };
    let file = vfs.open(Path::new("a"), direct).unwrap();
    assert_eq!(file.block_bytes(), Some(512));
    let mut buffer = AlignedBuf::zeroed(2048);
    assert!(matches!(write(&file, &buffer[..100], 0), Err(Error::Invalid(_))));
    assert!(matches!(write(&file, &buffer[..512], 100), Err(Error::Invalid(_))));
    assert!(matches!(write(&file, &buffer[1..513], 0), Err(Error::Invalid(_))));
    assert!(matches!(file.read_at(&mut buffer[8..520], 0), Err(Error::Invalid(_))));
    write(&file, &buffer[512..1024], 512).unwrap();
    assert_eq!(file.read_at(&mut buffer, 512).unwrap(), 1536);
    let buffered = vfs.open(Path::new("a"), Open::WRITE).unwrap();
    assert_eq!(buffered.block_bytes(), None);
    write(&buffered, &[5; 3], 1).unwrap();
}

#[test]
fn a_directory_has_one_holder() {
    let vfs = SimVfs::default();
    vfs.create_dir_all(Path::new("d")).unwrap();
    let lock = vfs.lock(Path::new("d/LOCK")).unwrap();
    assert!(matches!(vfs.clone().lock(Path::new("d/LOCK")), Err(Error::Locked(_))));
    drop(lock);
    let _lock = vfs.lock(Path::new("d/LOCK")).unwrap();
    vfs.crash_now();
    let next = vfs.restart(0);
    let _lock = next.lock(Path::new("d/LOCK")).unwrap();
}

#[test]
fn misuse_is_refused() {
    let (vfs, file) = disk(0);
    let not_found = |e: Error| matches!(e, Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound);
    assert!(not_found(vfs.open(Path::new("d/none"), Open::READ).unwrap_err()));
    assert!(not_found(vfs.open(Path::new("none/a"), Open::CREATE).unwrap_err()));
    assert!(not_found(vfs.list(Path::new("none")).unwrap_err()));
    assert!(not_found(vfs.rename(Path::new("d/none"), Path::new("d/b")).unwrap_err()));
    assert!(vfs.open(Path::new("d/a"), Open::CREATE).is_err());
    assert!(matches!(vfs.rename(Path::new("d/a"), Path::new("a")), Err(Error::Invalid(_))));
    let creates = Open { create: Create::New, ..Open::READ };
    assert!(matches!(vfs.open(Path::new("d/r"), creates), Err(Error::Invalid(_))));
    let reader = vfs.open(Path::new("d/a"), Open::READ).unwrap();
    assert!(write(&reader, b"x", 0).is_err());
    let early = file.read_exact_at(&mut [0; 10], 4090).unwrap_err();
    assert!(matches!(early, Error::Corrupt { offset: 4096, .. }));
}

#[test]
fn the_meter_counts_by_cause() {
    let (vfs, file) = disk(0);
    let before = vfs.meter().snapshot();
    write(&file, &[0; 100], 0).unwrap();
    file.write_at(&[IoSlice::new(&[0; 7]), IoSlice::new(&[0; 8])], 0, Cause::Sort).unwrap();
    file.sync_data().unwrap();
    vfs.sync_dir(Path::new("d")).unwrap();
    let added = vfs.meter().snapshot().since(&before);
    assert_eq!((added.bytes(Cause::Log), added.bytes(Cause::Sort), added.total()), (100, 15, 115));
    assert_eq!((added.calls(Cause::Sort), added.syncs, added.dir_syncs), (1, 1, 1));
}

#[test]
fn sectors_that_the_device_refuses_stay_refused_until_they_are_written_whole() {
    let (vfs, file) = disk(0);
    let refuse = |offset, bytes| Fault::Unreadable { path: "d/a".into(), offset, bytes };
    vfs.inject(refuse(1000, 100)).unwrap();
    assert!(vfs.inject(refuse(4096, 1)).is_err(), "after the end of the file");
    let at = |file: &Arc<dyn VfsFile>, offset| file.read_exact_at(&mut [0; 100], offset);
    for file in [&file, &vfs.open(Path::new("d/a"), Open::READ).unwrap()] {
        let refused = at(file, 1100).unwrap_err();
        assert!(matches!(&refused, Error::Corrupt { offset: 1100, .. }), "{refused}");
        at(file, 300).unwrap();
        at(file, 1536).unwrap();
    }
    vfs.clear_faults();
    for restarted in [vfs.restart(1), vfs.fork()] {
        let file = restarted.open(Path::new("d/a"), Open::READ).unwrap();
        assert!(at(&file, 600).unwrap_err().is_damage());
    }
    // A write of a part of a sector does not replace it.
    write(&file, &[2; 512], 600).unwrap();
    assert!(at(&file, 600).is_err());
    write(&file, &[2; 1024], 512).unwrap();
    at(&file, 600).unwrap();
    assert_eq!(read(&file).unwrap()[1535], 2);
}

#[test]
fn random_numbers_differ_and_those_of_a_simulated_disk_follow_from_its_seed() {
    let draw = |vfs: &dyn Vfs| [vfs.random().unwrap(), vfs.random().unwrap()];
    let real = stele_vfs::RealVfs::new();
    let [first, second] = draw(&real);
    assert!(first != second && !draw(&real).contains(&first));
    let simulated = |seed| draw(&disk(seed).0);
    assert_eq!(simulated(1), simulated(1));
    assert_ne!(simulated(1), simulated(2));
    assert_ne!(simulated(1)[0], simulated(1)[1]);
}
