//! A copy of which the changes stay in memory.

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_simulated_disk::SimVfs;
use stele_types::{Cause, Error};
use stele_vfs::{CopyOnWriteVfs, Create, Open, RealVfs, Vfs};

fn disk() -> SimVfs {
    let disk = SimVfs::default();
    disk.write_file("d/a", &[1; 10_000]);
    disk.write_file("d/b", &[2; 5_000]);
    disk
}

fn copy(disk: &SimVfs, bytes_max: u64) -> CopyOnWriteVfs {
    CopyOnWriteVfs::new(Arc::new(disk.clone()), bytes_max)
}

fn read(vfs: &dyn Vfs, path: &str) -> Vec<u8> {
    let file = vfs.open(Path::new(path), Open::READ).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn names(vfs: &dyn Vfs, dir: &str) -> Vec<(String, u64)> {
    let entries = vfs.list(Path::new(dir)).unwrap().into_iter();
    entries.map(|entry| (entry.name, entry.bytes)).collect()
}

#[test]
fn an_open_reader_sees_what_is_written_later() {
    let disk = disk();
    let copy = copy(&disk, 1 << 20);
    let reader = copy.open(Path::new("d/a"), Open::READ).unwrap();
    let writer = copy.open(Path::new("d/a"), Open::WRITE).unwrap();
    writer.write_at(&[IoSlice::new(&[7; 3])], 5_000, Cause::Log).unwrap();
    let mut bytes = [0; 5];
    reader.read_exact_at(&mut bytes, 4_999).unwrap();
    assert_eq!(bytes, [1, 7, 7, 7, 1]);
    assert!(!reader.read_cached_at(&mut bytes, 4_999).unwrap());
    assert!(reader.read_cached_at(&mut bytes, 9_000).unwrap(), "this chunk is only below");
    drop((reader, writer));
    assert_eq!(read(&copy, "d/a")[5_000], 7);
    assert_eq!(disk.read_file("d/a").unwrap(), [1; 10_000]);
    let refused = copy.open(Path::new("d/a"), Open::READ).unwrap();
    assert!(refused.write_at(&[IoSlice::new(b"x")], 0, Cause::Log).is_err());
}

#[test]
fn names_change_only_in_the_copy() {
    let disk = disk();
    let operations = disk.operations();
    let copy = copy(&disk, 1 << 20);
    copy.rename(Path::new("d/a"), Path::new("d/b")).unwrap();
    copy.create_dir_all(Path::new("d/new/deep")).unwrap();
    copy.open(Path::new("d/new/deep/f"), Open::CREATE).unwrap().set_len(9).unwrap();
    assert_eq!(names(&copy, "d"), [("b".into(), 10_000), ("new".into(), 0)]);
    assert_eq!(names(&copy, "d/new/deep"), [("f".into(), 9)]);
    assert_eq!(read(&copy, "d/b"), [1; 10_000]);
    assert!(!copy.exists(Path::new("d/a")).unwrap());
    // The file below is replaced in the copy, and takes its space on the device as before.
    assert_eq!(copy.removed_bytes(), 8192);
    copy.unlink(Path::new("d/b")).unwrap();
    assert_eq!(copy.removed_bytes(), 8192 + 12_288);
    let missing = |how| copy.open(Path::new("d/a"), how).unwrap_err().to_string();
    assert!(missing(Open::READ).contains("d/a"));
    let create = Open { create: Create::IfMissing, ..Open::WRITE };
    assert_eq!(copy.open(Path::new("d/a"), create).unwrap().len().unwrap(), 0);
    assert!(copy.open(Path::new("d/a"), Open::CREATE).is_err(), "it exists now");
    assert_eq!((names(&disk, "d").len(), disk.operations()), (2, operations));
}

#[test]
fn changes_beyond_the_bound_are_refused_and_memory_comes_back() {
    let disk = disk();
    let copy = copy(&disk, 3 * 4096);
    let file = copy.open(Path::new("d/a"), Open::WRITE).unwrap();
    file.write_at(&[IoSlice::new(&[3; 2 * 4096])], 0, Cause::Log).unwrap();
    let more = file.write_at(&[IoSlice::new(&[3; 2 * 4096])], 8_192, Cause::Log);
    assert!(matches!(&more, Err(Error::Refused(text)) if text.contains("12.0 KiB")), "{more:?}");
    assert_eq!(copy.free_bytes(Path::new("d")).unwrap(), 4096);
    file.set_len(100).unwrap();
    assert_eq!(copy.free_bytes(Path::new("d")).unwrap(), 2 * 4096);
    drop(file);
    copy.unlink(Path::new("d/a")).unwrap();
    assert_eq!(copy.free_bytes(Path::new("d")).unwrap(), 3 * 4096);
}

#[test]
fn the_lock_of_a_directory_counts_also_for_a_copy_and_is_not_created() {
    let disk = disk();
    let (one, other) = (copy(&disk, 1 << 20), copy(&disk, 1 << 20));
    let path = Path::new("d/LOCK");
    let held = one.lock(path).unwrap();
    assert!(matches!(one.lock(path), Err(Error::Locked(_))));
    assert!(!disk.exists(path).unwrap());
    drop(held);
    drop(one.lock(path).unwrap());
    let held = disk.lock(path).unwrap();
    assert!(matches!(other.lock(path), Err(Error::Locked(_))), "a process has it open");
    drop(held);
    let held = other.lock(path).unwrap();
    assert!(matches!(disk.lock(path), Err(Error::Locked(_))));
    drop(held);
    disk.lock(path).unwrap();
}

#[test]
fn a_copy_of_the_machines_files_leaves_them_as_they_are() {
    let dir = std::env::temp_dir().join(format!("stele-copy-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("f");
    std::fs::write(&path, [5; 9_000]).unwrap();
    let copy = CopyOnWriteVfs::new(Arc::new(RealVfs::new()), 1 << 20);
    let direct = Open { direct: true, ..Open::WRITE };
    let file = copy.open(&path, direct).unwrap();
    file.set_len(4_096).unwrap();
    file.set_len(9_000).unwrap();
    file.write_at(&[IoSlice::new(&[6; 2])], 8_999, Cause::Log).unwrap();
    let mut expected = [vec![5; 4_096], vec![0; 4_903], vec![6; 2]].concat();
    assert_eq!(read(&copy, path.to_str().unwrap()), expected);
    expected = vec![5; 9_000];
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_process_that_reads_opens_no_file_for_writing_and_keeps_writers_out() {
    let dir = std::env::temp_dir().join(format!("stele-read-only-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("LOCK");
    std::fs::write(&path, b"").unwrap();
    let copy = || CopyOnWriteVfs::new(Arc::new(RealVfs::new()), 1 << 20);
    let (one, two) = (copy(), copy());
    let held = one.lock(&path).unwrap();
    // The kernel reports the flags of each descriptor in octal; the last two bits are the access mode.
    let mut modes = Vec::new();
    for descriptor in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if std::fs::read_link(descriptor.path()).is_ok_and(|target| target == path) {
            let info = Path::new("/proc/self/fdinfo").join(descriptor.file_name());
            let info = std::fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            modes.push(u32::from_str_radix(flags.trim(), 8).unwrap() & 3);
        }
    }
    assert_eq!(modes, [0], "open for reading only");
    let also = two.lock(&path).unwrap();
    assert!(matches!(RealVfs::new().lock(&path), Err(Error::Locked(_))), "two processes read");
    drop((held, also));
    let writes = RealVfs::new().lock(&path).unwrap();
    assert!(matches!(one.lock(&path), Err(Error::Locked(_))), "a process writes");
    drop(writes);
    drop(one.lock(&path).unwrap());
    std::fs::remove_dir_all(&dir).unwrap();
}
