//! The machine's file system, in a directory of its own.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use stele_simulated_disk::SimVfs;
use stele_types::{Cause, Clock, Error, Result};
use stele_vfs::{
    AlignedBuf, BatchRead, Create, FsKind, Open, PinState, ReadBatch, RealVfs, SystemClock, Vfs,
    VfsFile,
};

struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("stele-vfs-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _already_gone = std::fs::remove_dir_all(&self.0);
    }
}

fn write(file: &Arc<dyn VfsFile>, bytes: &[u8], offset: u64) -> Result<()> {
    file.write_at(&[IoSlice::new(bytes)], offset, Cause::Log)
}

#[test]
fn buffered_writes_are_read_back_and_counted() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let file = vfs.open(&dir.path("a"), Open::CREATE).unwrap();
    assert_eq!((file.block_bytes(), file.path()), (None, dir.path("a").as_path()));
    let parts = [IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")];
    file.write_at(&parts, 5, Cause::Merge).unwrap();
    file.sync_data().unwrap();
    vfs.sync_dir(&dir.0).unwrap();
    let reader = vfs.open(&dir.path("a"), Open::READ).unwrap();
    let mut bytes = [9; 20];
    assert_eq!(reader.read_at(&mut bytes, 0).unwrap(), 11);
    assert_eq!(&bytes[..11], b"\0\0\0\0\0onetwo");
    assert!(matches!(reader.read_exact_at(&mut bytes, 0), Err(Error::Corrupt { offset: 11, .. })));
    let counted = vfs.meter().snapshot();
    assert_eq!((counted.bytes(Cause::Merge), counted.total(), counted.reads), (6, 6, 2));
    assert_eq!((counted.syncs, counted.dir_syncs), (1, 1), "each requested sync is done");
}

#[test]
fn more_buffers_than_one_call_takes_are_all_written() {
    let dir = TempDir::new();
    let file = RealVfs::new().open(&dir.path("a"), Open::CREATE).unwrap();
    let bytes: Vec<u8> = (0..7500u32).map(|i| i as u8).collect();
    let parts: Vec<IoSlice<'_>> = bytes.chunks(3).map(IoSlice::new).collect();
    file.write_at(&parts, 1, Cause::Log).unwrap();
    let mut back = vec![0; 7500];
    file.read_exact_at(&mut back, 1).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn a_cached_read_is_whole_or_leaves_it_to_one_that_waits() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let file = vfs.open(&dir.path("a"), Open::CREATE).unwrap();
    let bytes: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
    write(&file, &bytes, 0).unwrap();
    let mut back = vec![0; 5000];
    // Not every file system can report what is in the page cache.
    let is_cached = file.read_cached_at(&mut back, 0).unwrap();
    assert!(!is_cached || back == bytes);
    println!("read from the page cache: {is_cached}");
    assert!(!file.read_cached_at(&mut back, 1).unwrap(), "it ends beyond the file");
    let direct = vfs.open(&dir.path("a"), Open { direct: true, ..Open::READ }).unwrap();
    let is_direct = direct.block_bytes().is_some();
    assert!(!is_direct || !direct.read_cached_at(&mut back, 0).unwrap());
    assert!(vfs.total_bytes(dir.path("").as_path()).unwrap() > 0);
}

#[test]
fn direct_io_writes_whole_blocks_or_is_refused() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let file = vfs.open(&dir.path("a"), Open { direct: true, ..Open::CREATE }).unwrap();
    let Some(block) = file.block_bytes() else {
        // The file system refuses direct I/O; the handle must work nevertheless.
        return write(&file, b"any", 1).unwrap();
    };
    let mut buffer = AlignedBuf::zeroed(3 * block);
    buffer.fill(7);
    write(&file, &buffer, block as u64).unwrap();
    assert!(matches!(write(&file, &buffer[..block - 1], 0), Err(Error::Invalid(_))));
    assert!(matches!(write(&file, &buffer[..block], 1), Err(Error::Invalid(_))));
    assert!(matches!(write(&file, &buffer[1..=block], 0), Err(Error::Invalid(_))));
    file.sync_data().unwrap();
    // The file may end inside a block; direct reads stop there.
    file.set_len(4 * block as u64 - 10).unwrap();
    let mut back = AlignedBuf::zeroed(4 * block);
    assert_eq!(file.read_at(&mut back, block as u64).unwrap(), 3 * block - 10);
    assert!(back[..3 * block - 10].iter().all(|&byte| byte == 7));
    let buffered = vfs.open(&dir.path("a"), Open::READ).unwrap();
    let mut byte = [0];
    buffered.read_exact_at(&mut byte, block as u64).unwrap();
    assert_eq!(byte, [7]);
}

#[test]
fn a_long_direct_read_gets_each_part_in_its_place_and_ends_with_the_file() {
    const MIB: usize = 1 << 20;
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let writer = vfs.open(&dir.path("a"), Open::CREATE).unwrap();
    let content = |at: usize| (at / 4096 + at / MIB) as u8;
    let bytes: Vec<u8> = (0..6 * MIB).map(content).collect();
    write(&writer, &bytes, 0).unwrap();
    let file = vfs.open(&dir.path("a"), Open { direct: true, ..Open::READ }).unwrap();
    let mut back = AlignedBuf::zeroed(40 * MIB);
    for (len, offset, wanted) in [
        (6 * MIB, 0, 3 * MIB),
        (6 * MIB, 4096, 4 * MIB + 8192),
        (6 * MIB - 100, 8192, 6 * MIB),
        (5 * MIB + 10, 0, 6 * MIB),
        // More parts than fit into the queue at a time.
        (6 * MIB - 5000, 0, 40 * MIB),
        (4096, 8192, 2 * MIB),
    ] {
        writer.set_len(len as u64).unwrap();
        back.fill(0xee);
        let read_before = vfs.meter().snapshot().read_bytes;
        let got = file.read_at(&mut back[..wanted], offset as u64).unwrap();
        assert_eq!(got, wanted.min(len.saturating_sub(offset)), "{len} {offset} {wanted}");
        assert!(back[..got].iter().zip(offset..).all(|(&byte, at)| byte == content(at)));
        assert_eq!(vfs.meter().snapshot().read_bytes - read_before, got as u64);
        writer.set_len(0).unwrap();
        write(&writer, &bytes, 0).unwrap();
    }
}

#[test]
fn reads_of_a_batch_come_to_their_places_however_many_they_are() {
    const BLOCK: usize = 4096;
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let content = |file: u8, block: usize| (block % 251) as u8 ^ (file << 7);
    let files: Vec<_> = (0..2)
        .map(|number| {
            let path = dir.path(&format!("f{number}"));
            let bytes: Vec<u8> =
                (0..600).flat_map(|block| [content(number, block); BLOCK]).collect();
            write(&vfs.open(&path, Open::CREATE).unwrap(), &bytes, 0).unwrap();
            vfs.open(&path, Open { direct: true, ..Open::READ }).unwrap()
        })
        .collect();
    // The last one ends after the file.
    for count in [1, 2, 100, 256, 257, 599, 600] {
        let reads: Vec<BatchRead> = (0..count)
            .map(|n| BatchRead {
                file: files[n % 2].clone(),
                offset: (n * 7 % 600 * BLOCK) as u64,
                bytes: if n == 599 { 9 * BLOCK } else { BLOCK },
            })
            .collect();
        let memory = AlignedBuf::zeroed((count + 9) * BLOCK);
        let before = vfs.meter().snapshot();
        let Ok(batch) = ReadBatch::start(reads.clone(), memory) else {
            assert!(files[0].block_bytes().is_none(), "only where nothing bypasses the cache");
            return;
        };
        let (memory, got) = batch.finish();
        assert_eq!(vfs.meter().snapshot().since(&before).reads, count as u64);
        let mut begin = 0;
        for (n, (read, got)) in reads.iter().zip(got).enumerate() {
            let first = n * 7 % 600;
            assert_eq!(got.unwrap(), read.bytes.min((600 - first) * BLOCK), "{n} of {count}");
            assert_eq!(memory[begin..begin + BLOCK], [content(n as u8 % 2, first); BLOCK]);
            begin += read.bytes;
        }
    }
    // One that is not awaited, one that cannot be read, and files that the kernel is not to read.
    let read = |offset| BatchRead { file: files[0].clone(), offset, bytes: BLOCK };
    drop(ReadBatch::start(vec![read(0), read(8192)], AlignedBuf::zeroed(2 * BLOCK)).unwrap());
    let odd = ReadBatch::start(vec![read(1), read(0)], AlignedBuf::zeroed(2 * BLOCK)).unwrap();
    let (_, got) = odd.finish();
    assert!(got[0].is_err() && got[1].as_ref().is_ok_and(|&got| got == BLOCK));
    assert!(ReadBatch::start(vec![read(0); 2], AlignedBuf::zeroed(BLOCK)).is_err());
    let cached = vfs.open(&dir.path("f0"), Open::READ).unwrap();
    let of_cached = BatchRead { file: cached, offset: 0, bytes: BLOCK };
    assert!(ReadBatch::start(vec![read(0), of_cached], AlignedBuf::zeroed(2 * BLOCK)).is_err());
}

#[test]
fn writes_go_on_while_their_caller_does() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    for direct in [true, false] {
        let path = dir.path(if direct { "direct" } else { "cached" });
        let file = vfs.open(&path, Open { direct, ..Open::CREATE }).unwrap();
        let block = file.block_bytes().unwrap_or(512).max(512);
        assert!(file.finish_writes().unwrap().is_empty());
        let before = vfs.meter().snapshot().bytes(Cause::Log);
        // More writes than the queue accepts, the later ones at lower offsets.
        let mut given_back = 0;
        for part in (0..50u8).rev() {
            let mut bytes = AlignedBuf::zeroed(block);
            bytes.fill(part);
            let at = u64::from(part) * block as u64;
            given_back += usize::from(file.start_write(bytes, at, Cause::Log).unwrap().is_some());
        }
        let parts = file.finish_writes().unwrap();
        assert_eq!(given_back + parts.len(), 50);
        let first = parts.first().map_or(49, |part| part[0]);
        assert_eq!(first, 49, "in the order they were started");
        let written = vfs.meter().snapshot().bytes(Cause::Log) - before;
        assert_eq!(written, 50 * block as u64);
        file.sync_data().unwrap();
        let mut back = vec![0; 50 * block];
        let reader = vfs.open(&path, Open::READ).unwrap();
        reader.read_exact_at(&mut back, 0).unwrap();
        assert!(back.chunks(block).zip(0..).all(|(part, n)| part.iter().all(|&byte| byte == n)));
        if direct && file.block_bytes().is_some() {
            let crooked = AlignedBuf::zeroed(block + 1);
            assert!(file.start_write(crooked, 0, Cause::Log).is_err());
        }
    }
}

#[test]
fn a_write_under_way_that_fails_is_told_when_it_ends() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    vfs.open(&dir.path("a"), Open::CREATE).unwrap();
    let file = vfs.open(&dir.path("a"), Open { direct: true, ..Open::READ }).unwrap();
    // A read-only handle.
    let begun = file.start_write(AlignedBuf::zeroed(4096), 0, Cause::Log);
    assert!(begun.is_err() || file.finish_writes().is_err());
    assert!(file.finish_writes().unwrap().is_empty());
    // Closing a file waits for its writes in progress.
    let file = vfs.open(&dir.path("a"), Open { direct: true, ..Open::WRITE }).unwrap();
    let _begun = file.start_write(AlignedBuf::zeroed(1 << 20), 0, Cause::Log).unwrap();
    drop(file);
    assert_eq!(std::fs::metadata(dir.path("a")).unwrap().len(), 1 << 20);
}

#[test]
fn allocating_keeps_the_length_and_counts_as_used() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let file = vfs.open(&dir.path("a"), Open::CREATE).unwrap();
    file.allocate(0).unwrap();
    file.allocate(1 << 20).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    let entry = vfs.list(&dir.0).unwrap().remove(0);
    assert_eq!((entry.name.as_str(), entry.bytes, entry.is_dir), ("a", 0, false));
    assert!(entry.allocated_bytes == 0 || entry.allocated_bytes >= 1 << 20);
    file.set_len(10).unwrap();
    assert_eq!(file.len().unwrap(), 10);
}

#[test]
fn zeroes_that_count_as_written_are_there_or_are_refused_and_change_nothing() {
    const BYTES: usize = 1 << 20;
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    for name in ["a", "b"] {
        let file = vfs.open(&dir.path(name), Open { direct: true, ..Open::CREATE }).unwrap();
        let written = file.write_zeroes(BYTES as u64).unwrap();
        println!("the device writes zeroes without a transfer: {written}");
        let allocated = vfs.list(&dir.0).unwrap().pop().unwrap().allocated_bytes;
        let expected = if written { BYTES as u64 } else { 0 };
        assert_eq!((file.len().unwrap(), allocated), (expected, expected));
        let mut back = AlignedBuf::zeroed(BYTES);
        back.fill(7);
        assert_eq!(file.read_at(&mut back, 0).unwrap() as u64, expected);
        assert!(back[..expected as usize].iter().all(|&byte| byte == 0));
        assert_eq!(vfs.meter().snapshot().total(), 0);
    }
}

#[test]
fn names_change_as_asked() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let below = dir.path("x/y");
    vfs.create_dir_all(&below).unwrap();
    // Each of the two new directories, and the parent that holds its name.
    assert_eq!(vfs.meter().snapshot().dir_syncs, 4, "a new directory is durable on return");
    vfs.create_dir_all(&below).unwrap();
    assert_eq!(vfs.meter().snapshot().dir_syncs, 4);
    vfs.open(&below.join("b"), Open::CREATE).unwrap();
    write(&vfs.open(&below.join("a"), Open::CREATE).unwrap(), b"a", 0).unwrap();
    vfs.rename(&below.join("a"), &below.join("b")).unwrap();
    let names: Vec<_> = vfs.list(&below).unwrap().into_iter().map(|e| (e.name, e.bytes)).collect();
    assert_eq!(names, [("b".to_owned(), 1)]);
    assert!(vfs.list(&dir.path("x")).unwrap()[0].is_dir);
    let across = vfs.rename(&below.join("b"), &dir.path("b"));
    assert!(matches!(across, Err(Error::Invalid(_))));
    vfs.unlink(&below.join("b")).unwrap();
    assert!(!vfs.exists(&below.join("b")).unwrap() && vfs.exists(&below).unwrap());
    assert!(vfs.free_bytes(&dir.0).unwrap() > 0);
}

#[test]
fn errors_name_the_operation_and_the_path() {
    let dir = TempDir::new();
    let vfs = RealVfs::new();
    let path = dir.path("none");
    let error = vfs.open(&path, Open::READ).unwrap_err();
    assert!(matches!(&error, Error::Io { op: "open", path: at, source }
        if *at == path && source.kind() == io::ErrorKind::NotFound));
    assert!(error.to_string().contains("none"));
    assert!(vfs.open(&path, Open { direct: true, ..Open::WRITE }).is_err());
    assert!(matches!(vfs.unlink(&path), Err(Error::Io { op: "unlink", .. })));
    assert!(matches!(vfs.list(&path), Err(Error::Io { op: "list", .. })));
    let creates = Open { create: Create::IfMissing, ..Open::READ };
    assert!(matches!(vfs.open(&path, creates), Err(Error::Invalid(_))));
    vfs.open(&path, Open::CREATE).unwrap();
    assert!(vfs.open(&path, Open::CREATE).is_err());
    let reader = vfs.open(&path, Open::READ).unwrap();
    assert!(matches!(write(&reader, b"x", 0), Err(Error::Io { op: "write", .. })));
}

#[test]
fn a_full_device_is_no_space() {
    let Ok(file) = RealVfs::new().open(Path::new("/dev/full"), Open::WRITE) else { return };
    assert!(matches!(write(&file, b"x", 0), Err(Error::NoSpace(_))));
    assert!(matches!(
        file.write_at(&[IoSlice::new(b"x"), IoSlice::new(b"y")], 0, Cause::Log),
        Err(Error::NoSpace(_))
    ));
}

#[test]
fn two_locks_on_one_directory_are_refused() {
    let dir = TempDir::new();
    let lock = RealVfs::new().lock(&dir.path("LOCK")).unwrap();
    let again = RealVfs::new().lock(&dir.path("LOCK"));
    assert!(matches!(again, Err(Error::Locked(path)) if path == dir.path("LOCK")));
    drop(lock);
    let _lock = RealVfs::new().lock(&dir.path("LOCK")).unwrap();
}

#[test]
fn the_clock_goes_forward() {
    let clock = SystemClock::new();
    let first = clock.monotonic_nanos();
    assert!(clock.unix_seconds() > 1_600_000_000);
    assert!(clock.monotonic_nanos() >= first);
}

#[test]
fn a_place_survives_a_move_and_a_copy_has_another() {
    let root = TempDir::new();
    let [original, moved, copy] = ["a", "b", "c"].map(|name| root.path(name));
    std::fs::create_dir(&original).unwrap();
    let vfs = RealVfs::new();
    let before = vfs.place(&original).unwrap();
    std::fs::write(original.join("file"), b"more").unwrap();
    std::fs::rename(&original, &moved).unwrap();
    assert_eq!(vfs.place(&moved).unwrap(), before);
    std::fs::create_dir(&copy).unwrap();
    // A file system without a time of creation has no places.
    assert!(before.is_none() || vfs.place(&copy).unwrap() != before);
    assert!(vfs.place(&original).is_err(), "nothing is there");
}

/// Moves and deletes a directory of which the files are open, by `mv` (to `None`: deletes).
fn check_pins(vfs: &dyn Vfs, root: &Path, mv: impl Fn(&Path, Option<&Path>)) {
    let (dir, away) = (root.join("store"), root.join("away"));
    vfs.create_dir_all(&dir.join("log")).unwrap();
    let _lock = vfs.lock(&dir.join("LOCK")).unwrap();
    let pins = [dir.clone(), dir.join("LOCK"), dir.join("log")].map(|path| vfs.pin(&path).unwrap());
    let states = || pins.each_ref().map(|pin| pin.state().unwrap());
    let (here, gone, other) = (PinState::InPlace, PinState::Missing, PinState::Replaced);
    assert_eq!(states(), [here; 3]);
    mv(&dir, Some(&away));
    assert_eq!(states(), [gone; 3]);
    mv(&away, Some(&dir));
    assert_eq!(states(), [here; 3], "it was moved back");
    vfs.unlink(&dir.join("LOCK")).unwrap();
    assert_eq!(states(), [here, gone, here]);
    let _second = vfs.open(&dir.join("LOCK"), Open::CREATE).unwrap();
    assert_eq!(states(), [here, other, here]);
    mv(&dir, None);
    assert_eq!(states(), [gone; 3]);
    vfs.create_dir_all(&dir.join("log")).unwrap();
    assert_eq!(states(), [other, gone, other]);
    assert!(vfs.pin(&root.join("missing")).is_err());
}

#[test]
fn a_pinned_directory_and_file_are_told_from_others_with_their_names() {
    let dir = TempDir::new();
    check_pins(&RealVfs::new(), &dir.0, |from, to| match to {
        Some(to) => std::fs::rename(from, to).unwrap(),
        None => std::fs::remove_dir_all(from).unwrap(),
    });
    let disk = SimVfs::default();
    check_pins(&disk, Path::new("/"), |from, to| match to {
        Some(to) => disk.move_dir(from, to),
        None => disk.remove_dir(from),
    });
}

#[test]
fn the_facts_of_the_file_system_are_those_with_which_files_are_opened() {
    let dir = TempDir::new();
    let (vfs, path) = (RealVfs::new(), dir.path("file"));
    let how = Open { write: true, create: Create::New, direct: true };
    let file = vfs.open(&path, how).unwrap();
    let facts = vfs.file_system(&path).unwrap();
    assert_eq!(facts.direct_bytes, file.block_bytes().map(|bytes| bytes as u64));
    assert!(facts.block_bytes > 0 && facts.kind != FsKind::Unread, "{facts:?}");
    assert!(vfs.file_system(&dir.path("missing")).is_err());
}
