//! Sorted value files, retained tombstones and rebuilds: the current state according to the files
//! alone.

use crate::common::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use stele_log::inspect::{self, What};
use stele_log::{FileKind, Log, RecoverFrom, ReplayOp};
use stele_simulated_disk::{Fault, SimVfs};
use stele_types::{Cause, CommandBuilder, Error, FileId, LogIndex, Lsn, ValueRef};
use stele_vfs::Vfs;

/// Returns the newest value of each key according to the files alone.
fn rebuilt(log: &Log) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut newest: BTreeMap<Vec<u8>, (Lsn, Option<ValueRef>)> = BTreeMap::new();
    let mut ranges = Vec::new();
    log.scan_versions(&mut |op| {
        let (key, value) = match op.op {
            ReplayOp::Put { key, value, .. } => (key, Some(value)),
            ReplayOp::Delete { key } => (key, None),
            ReplayOp::DeleteRange { start, end } => {
                ranges.push((start.to_vec(), end.to_vec(), op.version));
                return Ok(());
            }
        };
        let slot = newest.entry(key.to_vec()).or_insert((op.version, value.clone()));
        if op.version >= slot.0 {
            *slot = (op.version, value);
        }
        Ok(())
    })
    .unwrap();
    newest
        .into_iter()
        .filter(|(key, (version, _))| {
            !ranges.iter().any(|(start, end, at)| {
                key >= start && (end.is_empty() || key < end) && at > version
            })
        })
        .filter_map(|(key, (_, value))| {
            let value = match value? {
                ValueRef::Inline(value) => value.to_vec(),
                ValueRef::At(at) => log.get(&at).unwrap().to_vec(),
            };
            Some((key, value))
        })
        .collect()
}

struct Keys<'a> {
    log: &'a Log,
    index: u64,
    expected: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl<'a> Keys<'a> {
    fn of(log: &'a Log) -> Self {
        Self { log, index: 0, expected: BTreeMap::new() }
    }

    fn apply(&mut self, build: impl FnOnce(&mut CommandBuilder)) {
        let mut builder = CommandBuilder::new();
        build(&mut builder);
        self.index += 1;
        let command = builder.build();
        self.log.append(&batch(vec![entry(REGION, self.index, 1, &command)])).unwrap();
    }

    fn put(&mut self, key: &str, n: u64, bytes: usize) {
        self.apply(|b| {
            b.put(key.as_bytes(), &value(n, bytes), 0).unwrap();
        });
        self.expected.insert(key.into(), value(n, bytes));
    }

    fn fill_segment(&mut self) -> FileId {
        let file = self.log.head().file;
        while self.log.head().file == file {
            self.put("filler", self.index, 900);
        }
        file
    }

    fn truncate(&mut self) {
        truncate(self.log, REGION, self.index).unwrap();
    }
}

/// Cuts the power and opens the log, which holds what is expected.
fn after_a_crash(disk: &SimVfs, expected: BTreeMap<Vec<u8>, Vec<u8>>) -> Log {
    disk.crash_now();
    let (log, _) = open(&disk.restart(9));
    assert_eq!(rebuilt(&log), expected);
    log
}

#[test]
fn deletes_outlive_their_segment_while_an_older_value_exists() {
    let disk = disk(1);
    let (log, _) = open(&disk);
    let mut keys = Keys::of(&log);
    for key in ["a", "b", "c", "kept"] {
        keys.put(key, 1, 100);
    }
    let old = keys.fill_segment();
    keys.apply(|b| {
        b.delete(b"a").unwrap();
    });
    keys.apply(|b| {
        b.delete_range(b"b", b"d").unwrap();
    });
    ["a", "b", "c"].iter().for_each(|key| drop(keys.expected.remove(key.as_bytes())));
    let deletes = keys.fill_segment();
    keys.put("kept-too", 2, 100);
    keys.truncate();
    assert_eq!(rebuilt(&log), keys.expected);
    assert!(deletes > old);
    // The segment with the deletes is removed first: values they hide remain in the older one.
    log.remove(deletes).unwrap();
    assert_eq!(log.stats().tombstone_files, 1);
    assert_eq!(rebuilt(&log), keys.expected);
    let log = after_a_crash(&disk, keys.expected);
    assert_eq!(log.stats().tombstone_files, 1);
    log.remove(old).unwrap();
    assert_eq!(log.stats().tombstone_files, 0, "nothing older is left to hide");
}

#[test]
fn withdrawn_entries_stay_withdrawn_after_the_segment_that_says_so_is_gone() {
    let disk = disk(2);
    let (log, _) = open(&disk);
    let mut keys = Keys::of(&log);
    keys.put("first", 1, 100);
    keys.fill_segment();
    keys.put("never", 2, 100);
    keys.expected.remove(&b"never"[..]);
    let old = keys.fill_segment();
    // `never` and the fillers after it are replaced.
    let replaced = command(&[(b"instead", &value(3, 100)), (b"filler", &value(4, 100))]);
    let index = log
        .entries(REGION, stele_types::LogIndex(1), stele_types::LogIndex(999), usize::MAX)
        .unwrap()
        .iter()
        .find(|e| e.payload.windows(5).any(|w| w == b"never"))
        .unwrap()
        .index;
    log.append(&batch(vec![entry(REGION, index.0, 2, &replaced)])).unwrap();
    keys.index = index.0;
    keys.expected.insert(b"instead".to_vec(), value(3, 100));
    keys.expected.insert(b"filler".to_vec(), value(4, 100));
    let said = log.head().file;
    assert!(said > old);
    assert_eq!(rebuilt(&log), keys.expected);
    // `instead` is moved, and the segment that withdrew `never` is removed.
    keys.fill_segment();
    keys.put("instead", 5, 100);
    keys.truncate();
    log.remove(said).unwrap();
    assert_eq!(rebuilt(&log), keys.expected);
    drop(log);
    let (log, _) = open(&disk);
    assert!(!rebuilt(&log).contains_key(&b"never"[..]));
}

#[test]
fn sorted_files_keep_versions_and_are_read_by_locator() {
    let disk = disk(3);
    let (log, _) = open(&disk);
    put(&log, REGION, 1, 500).unwrap();
    let mut writer = log.sorted_writer(Cause::Relocate).unwrap();
    let mut places = Vec::new();
    for i in 0..200u64 {
        let version = Lsn::new(FileId(1), 600 + i as u32);
        let long = vec![b'k'; if i == 7 { 8000 } else { 3 }];
        let key = [&long[..], &i.to_be_bytes()].concat();
        let at = writer.append(&key, version, i, &value(i, 9001)).unwrap();
        places.push((at, key, version, i));
    }
    assert!(log.get(&places[0].0).is_err(), "not readable before it is finished");
    let bytes = writer.bytes();
    assert_eq!(writer.finish().unwrap(), places[0].0.file);
    let relocated = disk.meter().snapshot().bytes(Cause::Relocate);
    let path = Path::new(DIR).join(format!("{:08x}.val", places[0].0.file.0));
    let file_bytes = disk.file_bytes(&path).unwrap();
    assert!(file_bytes > bytes && file_bytes < bytes + 200);
    assert_eq!(relocated, file_bytes.next_multiple_of(512), "past the page cache, by blocks");
    disk.crash_now();
    let disk = disk.restart(1);
    let (log, _) = open(&disk);
    for (at, key, version, i) in &places {
        assert_eq!(log.get(at).unwrap(), value(*i, 9001));
        let head = log.record_of(at).unwrap();
        assert_eq!((head.version, head.expires_at_s), (*version, Some(*i)));
        assert_eq!(head.key.as_deref(), Some(&key[..]));
    }
    let info = log.files().into_iter().find(|info| info.kind == FileKind::Sorted).unwrap();
    let payload: u64 =
        places.iter().map(|p| p.1.len() as u64 + 9001 + stele_log::RECORD_OVERHEAD_BYTES).sum();
    assert_eq!(info.payload_bytes, payload);
    assert!(info.bytes >= payload && !info.wanted_by_raft);
    assert_eq!(info.min_lsn, Lsn::new(FileId(1), 600));
    let at = places[60].0;
    disk.corrupt(&path, u64::from(at.offset) + 9, b"!").unwrap();
    assert!(matches!(log.get(&at), Err(Error::Corrupt { .. })));
    assert_eq!(log.verify(&mut |_| {}).unwrap().damaged, 1);
    log.remove(at.file).unwrap();
    assert!(log.get(&places[0].0).is_err());
    assert!(!disk.exists(&path).unwrap());
}

#[test]
fn an_unfinished_sorted_file_leaves_nothing() {
    let disk = disk(4);
    let (log, _) = open(&disk);
    let before = disk.paths();
    let mut writer = log.sorted_writer(Cause::Sort).unwrap();
    writer.append(b"k", Lsn::default(), 0, &value(1, 2_000_000)).unwrap();
    drop(writer);
    assert_eq!(disk.paths(), before);
}

#[test]
fn a_value_damaged_while_it_moves_does_not_get_a_sum_that_fits() {
    let disk = disk(4);
    let (log, _) = open(&disk);
    let mut moved = value(1, 900);
    let crc = stele_types::checksum::crc32c(&moved);
    moved[450] ^= 1;
    let mut writer = log.sorted_writer(Cause::Relocate).unwrap();
    let at = writer.append_with_crc(b"k", Lsn::default(), 0, &moved, crc).unwrap();
    writer.finish().unwrap();
    assert!(matches!(log.get(&at), Err(Error::Corrupt { .. })));
}

#[test]
fn a_key_moved_to_a_sorted_file_does_not_outdo_a_newer_write() {
    let disk = disk(5);
    let (log, _) = open(&disk);
    let mut keys = Keys::of(&log);
    keys.put("k", 1, 100);
    let old = log.entries(REGION, stele_types::LogIndex(1), stele_types::LogIndex(2), 999).unwrap();
    keys.put("k", 2, 100);
    let mut writer = log.sorted_writer(Cause::Relocate).unwrap();
    let places = log.positions(REGION, &old).unwrap();
    writer.append(b"k", places[0], 0, &value(1, 100)).unwrap();
    writer.finish().unwrap();
    assert_eq!(rebuilt(&log), keys.expected);
}

#[test]
fn tails_of_idle_regions_move_on_as_a_whole() {
    let disk = disk(6);
    let (log, _) = open(&disk);
    let idle = stele_types::RegionId(2);
    for index in 1..=3 {
        put(&log, idle, index, 200).unwrap();
    }
    let mut keys = Keys::of(&log);
    let first = keys.fill_segment();
    keys.fill_segment();
    keys.truncate();
    assert!(log.files()[0].wanted_by_raft);
    assert_eq!(
        log.reappend_tails(log.head().file, 10, &|_| LogIndex(u64::MAX)).unwrap(),
        0,
        "over the budget"
    );
    let moved = log.reappend_tails(log.head().file, 1 << 20, &|_| LogIndex(u64::MAX)).unwrap();
    assert!(moved > 600);
    assert!(!log.files()[0].wanted_by_raft);
    log.remove(first).unwrap();
    drop(log);
    let from = RecoverFrom { raft_from: FileId(0), ..RecoverFrom::default() };
    let (log, _) = open_with(&disk, options(), from).unwrap();
    (1..=3).for_each(|index| assert_put(&log, idle, index, 200));
    let mut order = Vec::new();
    log.replay(&|_| stele_types::LogIndex(0), &mut |e| {
        if e.region == idle {
            order.push(e.index.0);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(order, [1, 2, 3]);
}

fn rows(disk: &SimVfs, path: &Path) -> Vec<inspect::Row> {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    let mut rows = Vec::new();
    inspect::dump(&vfs, path, &mut |row| {
        assert!(!row.to_string().is_empty());
        rows.push(row);
        true
    })
    .unwrap();
    rows
}

#[test]
fn files_are_dumped_also_when_damaged() {
    let disk = disk(7);
    let (log, _) = open(&disk);
    let mut keys = Keys::of(&log);
    keys.put("a", 1, 100);
    let old = keys.fill_segment();
    keys.apply(|b| {
        b.delete(b"a").unwrap();
    });
    let deletes = keys.fill_segment();
    keys.truncate();
    let mut writer = log.sorted_writer(Cause::Sort).unwrap();
    writer.append(b"s", Lsn::default(), 0, &value(1, 100)).unwrap();
    let sorted = writer.finish().unwrap();
    let entries = |rows: &[inspect::Row]| {
        rows.iter().filter(|row| matches!(row.what, What::Entry { .. })).count()
    };
    let whole = rows(&disk, &segment_path(old));
    assert!(matches!(whole[0].what, What::Segment { .. }));
    let in_sidecar = rows(&disk, &sidecar_path(old));
    assert_eq!(entries(&whole), entries(&in_sidecar));
    assert!(matches!(in_sidecar.last().unwrap().what, What::Footer { .. }));
    disk.corrupt(segment_path(old), 1600, b"damage").unwrap();
    let damaged = rows(&disk, &segment_path(old));
    assert!(damaged.iter().any(|row| matches!(row.what, What::Damage { .. })));
    assert_eq!(entries(&damaged), entries(&whole) - 1);
    log.remove(deletes).unwrap();
    let tombstones =
        log.files().into_iter().find(|info| info.kind == FileKind::Tombstones).unwrap().file;
    let path = |file: FileId, kind: &str| Path::new(DIR).join(format!("{:08x}.{kind}", file.0));
    let retained = rows(&disk, &path(tombstones, "graves"));
    assert!(
        retained.iter().any(|row| matches!(&row.what, What::Delete { key, .. } if key == b"a"))
    );
    let sorted = rows(&disk, &path(sorted, "val"));
    assert!(matches!(&sorted[0].what, What::Put { key, whole: Some(true), .. } if key == b"s"));
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    assert!(inspect::dump(&vfs, Path::new("/store/LOCK"), &mut |_| true).is_err());
    let mut count = 0;
    inspect::dump(&vfs, &segment_path(deletes.next()), &mut |_| {
        count += 1;
        count < 3
    })
    .unwrap();
    assert_eq!(count, 3);
}

/// Makes the device refuse to read a file after its first `kept` bytes.
fn refuse(disk: &SimVfs, file: &str, kept: u64) {
    let path = Path::new(DIR).join(file);
    let bytes = disk.file_bytes(&path).unwrap() - kept;
    disk.inject(Fault::Unreadable { path, offset: kept, bytes }).unwrap();
}

#[test]
fn a_tombstone_file_that_cannot_be_read_stays_and_stops_nothing() {
    let disk = disk(21);
    let (log, _) = open(&disk);
    let mut keys = Keys::of(&log);
    (0..20).for_each(|i| keys.put(&format!("old-{i:02}"), i, 100));
    keys.fill_segment();
    let tombstone_files = || log.stats().tombstone_files;
    for i in 0..20 {
        keys.apply(|b| {
            b.delete(format!("old-{i:02}").as_bytes()).unwrap();
        });
        let deletes = keys.fill_segment();
        keys.put("kept", i, 100);
        keys.truncate();
        log.remove(deletes).unwrap();
        if i == 2 {
            let mut files = log.files();
            files.retain(|info| info.kind == FileKind::Tombstones);
            refuse(&disk, &format!("{:08x}.graves", files.last().unwrap().file.0), 0);
        }
    }
    assert!((2..=9).contains(&tombstone_files()), "{}", tombstone_files());
    assert!(!log.poisoned());
    keys.put("still", 1, 100);
}

#[test]
fn a_segment_that_cannot_be_read_stays_where_an_index_may_be_rebuilt_and_goes_on_a_replica() {
    for checkpointed in [None, Some(BTreeMap::new())] {
        let is_replica = checkpointed.is_some();
        let disk = disk(22);
        let from = RecoverFrom { checkpointed, ..RecoverFrom::default() };
        let (log, _) = open_with(&disk, options(), from).unwrap();
        let mut keys = Keys::of(&log);
        keys.put("old", 1, 100);
        keys.fill_segment();
        keys.apply(|b| {
            b.delete(b"old").unwrap();
        });
        let deletes = keys.fill_segment();
        keys.truncate();
        // A failure that says nothing about the stored bytes stops nothing.
        refuse(&disk, &format!("{:08x}.side", deletes.0), 0);
        disk.inject(Fault::ReadFails { path_contains: ".seg".into(), nth: 1 }).unwrap();
        if is_replica {
            // Nothing of it is read.
            log.remove(deletes).unwrap();
        } else {
            assert!(log.remove(deletes).unwrap_err().is_failed_read());
            assert!(!log.poisoned());
            refuse(&disk, &format!("{:08x}.seg", deletes.0), 0);
            let error = log.remove(deletes).unwrap_err();
            assert!(error.is_damage(), "{error}");
        }
        assert_eq!(log.files().iter().any(|info| info.file == deletes), !is_replica);
        assert!(!log.poisoned());
        keys.put("still", 1, 100);
        assert!(disk.paths().iter().all(|path| !path.to_string_lossy().ends_with(".tmp")));
    }
}

#[test]
fn of_each_key_the_newest_delete_is_retained_however_often_the_key_is_deleted() {
    let disk = disk(23);
    let (log, _) = open(&disk);
    let mut keys = Keys::of(&log);
    keys.put("cold", 1, 100);
    keys.fill_segment();
    let key = |i: u64| format!("key-of-a-value-{i:04}");
    let bytes = || -> u64 {
        let files = log.files();
        let files = files.iter().filter(|info| info.kind == FileKind::Tombstones);
        files.map(|info| info.bytes).sum()
    };
    let mut first = 0;
    for round in 0..40 {
        // Values of the last round are hidden, and a range too.
        (0..20).for_each(|i| keys.put(&key(10 * i), round, 10));
        keys.apply(|b| {
            for i in 0..200 {
                b.delete(key(i).as_bytes()).unwrap();
            }
            b.delete_range(b"range", b"rangf").unwrap();
        });
        keys.expected.retain(|key, _| !key.starts_with(b"key-of"));
        let segment = keys.fill_segment();
        keys.put("kept", round, 100);
        keys.truncate();
        log.remove(segment).unwrap();
        if round == 0 {
            first = bytes();
        }
    }
    let stats = log.stats();
    assert!(stats.tombstone_files <= 12, "{stats:?}");
    assert!(first > 4_000 && bytes() < 15 * first, "{first} {}", bytes());
    assert_eq!(rebuilt(&log), keys.expected);
    let log = after_a_crash(&disk, keys.expected);
    assert!(log.verify(&mut |_| {}).is_ok());
}

#[test]
fn a_store_with_replicas_retains_no_tombstone_and_drops_those_that_it_finds() {
    let disk = disk(24);
    let from = |is_replica: bool| RecoverFrom {
        checkpointed: is_replica.then(BTreeMap::new),
        ..RecoverFrom::default()
    };
    let (log, _) = open_with(&disk, options(), from(false)).unwrap();
    let mut keys = Keys::of(&log);
    keys.put("cold", 1, 100);
    keys.fill_segment();
    let mut segments = Vec::new();
    for _ in 0..3 {
        keys.apply(|b| {
            b.delete(b"other").unwrap();
        });
        segments.push(keys.fill_segment());
    }
    keys.put("kept", 1, 100);
    keys.truncate();
    log.remove(segments[0]).unwrap();
    assert_eq!(log.stats().tombstone_files, 1);
    drop(log);
    let (log, _) = open_with(&disk, options(), from(true)).unwrap();
    assert_eq!(log.stats().tombstone_files, 1);
    log.remove(segments[1]).unwrap();
    assert_eq!(log.stats().tombstone_files, 0);
    log.remove(segments[2]).unwrap();
    assert_eq!(log.stats().tombstone_files, 0);
    assert!(log.verify(&mut |_| {}).is_ok());
}
