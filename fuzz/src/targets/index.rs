//! Targets for files of the index.

use super::files::Base;
use super::{FILE, checksums};
use crate::{Bound, Target};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use stele_index::{
    BlockCache, Change, Checkpoint, Cursor, Direction, Edit, Index, IndexOptions, JobStep,
    MergeInputs, MergeSpec, Run, RunItem, inspect_manifest, inspect_run, inspect_run_items,
    key_hash, rebuild, run_file_name,
};
use stele_simulated_disk::{SimOptions, SimVfs};
use stele_types::{
    Cause, FileId, KeyRange, Locator, LogIndex, Lsn, RegionId, Result, RunId, Seq, Term, ValueRef,
};
use stele_vfs::Vfs;

const DIR: &str = "/store/index";
const RUN_ID: RunId = RunId(5);

fn options() -> IndexOptions {
    IndexOptions {
        block_bytes: 512,
        run_bytes_max: 4 << 10,
        block_cache_bytes_max: 64 << 10,
        manifest_bytes_max: 4 << 10,
        ..IndexOptions::default()
    }
}

fn open(disk: &SimVfs) -> Result<Index> {
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    Index::open(vfs, Path::new(DIR), options()).map(|(index, _)| index)
}

fn value(n: u64) -> ValueRef {
    if n.is_multiple_of(3) {
        return ValueRef::Inline(Bytes::from(n.to_le_bytes().to_vec()));
    }
    let (file, offset) = (FileId(1 + n as u32 % 4), n as u32 * 100);
    ValueRef::At(Locator { file, offset, length: 40, crc: n as u32 })
}

/// Creates runs in two tiers, an unfinished merge, and a manifest with every kind of change.
fn base() -> &'static Base {
    static BASE: OnceLock<Base> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = SimVfs::new(SimOptions::default());
        let index = open(&disk).unwrap();
        let mut seq = 0;
        for round in 0..3u64 {
            for n in 0..120 {
                seq += 1;
                let key = format!("common-prefix-{:04}", n * 7 % 360);
                match n % 10 {
                    0 => index.delete(Seq(seq), key.as_bytes()),
                    _ => index.put(Seq(seq), key.as_bytes(), value(n), (n % 4) * round),
                }
            }
            seq += 1;
            index.delete_range(Seq(seq), b"common-prefix-0100", b"common-prefix-0110");
            index.publish(Seq(seq));
            let applied = BTreeMap::from([(RegionId(1), (LogIndex(seq), Term(2)))]);
            index.freeze(Checkpoint { replay_from: Lsn::new(FileId(1), seq as u32), applied });
            let mut job = index.start_flush().unwrap();
            loop {
                if let JobStep::Done(done) = job.step(1 << 20).unwrap() {
                    index.commit(done).unwrap();
                    break;
                }
            }
        }
        index.edit(Edit::RaftFrom(FileId(1))).unwrap();
        index.edit(Edit::NextFile(FileId(9))).unwrap();
        index.edit(Edit::GcState(Bytes::from_static(b"state"))).unwrap();
        let ages = index.version().tiers().iter().map(|tier| tier.age).collect();
        let spec = MergeSpec { inputs: MergeInputs::Tiers(ages), cause: Cause::Merge };
        if let Ok(mut job) = index.start_merge(spec, None, 0) {
            for _ in 0..6 {
                let _ = job.step(1 << 10);
            }
        }
        drop(index);
        Base::of(&disk)
    })
}

fn runs() -> Vec<Vec<u8>> {
    let disk = SimVfs::new(SimOptions::default());
    let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
    for (n, block_bytes) in [512, 4096].into_iter().enumerate() {
        let dir = Path::new(DIR).join(n.to_string());
        vfs.create_dir_all(&dir).unwrap();
        let options = stele_index::RunOptions { block_bytes, ..Default::default() };
        let mut run =
            stele_index::RunWriter::create(&vfs, &dir, RUN_ID, &options, Cause::Flush).unwrap();
        for key in 0..150u64 {
            let found = match key % 11 {
                0 => stele_index::Found::Deleted,
                _ => stele_index::Found::Value { value: value(key), expires_at_s: key % 5 },
            };
            run.add(format!("user/{key:06}").as_bytes(), &found).unwrap();
        }
        let ranges = stele_index::RangeSet::from_ranges([KeyRange::new("a", "b")]);
        let extra = stele_index::RunExtra {
            age: 3,
            job: 4,
            part: 1,
            replaces: vec![RunId(1), RunId(2)],
            ranges,
            ..Default::default()
        };
        run.finish(extra).unwrap();
    }
    Base::of(&disk).ending(".run")
}

pub(super) const RUN: Target = Target {
    name: "index_run",
    run,
    seeds: runs,
    fix_checksums: Some(|input| checksums::run(input, RUN_ID.0)),
    bound: FILE,
};

fn run(input: &[u8]) {
    let disk = SimVfs::new(SimOptions::default());
    let dir = Path::new(DIR);
    let path = dir.join(run_file_name(RUN_ID));
    disk.write_file(&path, input);
    let mut keys = Vec::new();
    let _ = inspect_run_items(&disk, &path, &mut |item| {
        if let RunItem::Entry { key, .. } = item
            && keys.len() < 64
        {
            keys.push(key);
        }
    });
    let _ = inspect_run(&disk, &path, &mut |record| drop(record.content));
    let vfs: Arc<dyn Vfs> = Arc::new(disk);
    for pinned_bytes_max in [usize::MAX, 0] {
        let cache = BlockCache::new(64 << 10).with_pinned_bytes_max(pinned_bytes_max);
        if let Ok(run) = Run::open(&vfs, dir, RUN_ID, Arc::new(cache)) {
            read(&run, &keys);
        }
    }
}

fn read(run: &Arc<Run>, keys: &[Bytes]) {
    let _ = run.verify(&mut |problem| drop(problem.to_string()));
    for key in keys.iter().map(|key| &key[..]).chain([&b"user/000077x"[..], b"", b"zz"]) {
        let _ = run.get(key, key_hash(key));
        let _ = run.get_cached(key, key_hash(key));
    }
    for mut cursor in [run.cursor(), run.cursor_ahead()] {
        let _ = cursor.seek(b"user/000070");
        walk(&mut cursor, true);
        let _ = cursor.seek_before(None);
        walk(&mut cursor, false);
    }
    run.memory_bytes();
}

fn walk(cursor: &mut impl Cursor, is_forward: bool) {
    for _ in 0..2000 {
        if !cursor.valid() {
            return;
        }
        let _ = (cursor.key().len(), cursor.prefix());
        let _ = cursor.found();
        cursor.value();
        let moved = if is_forward { cursor.next() } else { cursor.prev() };
        if moved.is_err() {
            return;
        }
    }
}

pub(super) const MANIFEST: Target = Target {
    name: "index_manifest",
    run: |input| {
        let disk = SimVfs::new(SimOptions::default());
        let number = input.get(12..16).and_then(|part| part.first_chunk()).copied();
        let number = u32::from_le_bytes(number.unwrap_or_default());
        let path = Path::new(DIR).join(format!("manifest-{number:06}"));
        disk.write_file(&path, input);
        let _ = inspect_manifest(&disk, &path, &mut |record| {
            let _ = record.content.map(|changes: Vec<Change>| changes.len());
        });
    },
    seeds: || {
        base()
            .inputs()
            .into_iter()
            .filter(|it| it[1..].starts_with(b"STLMANIF"))
            .map(|it| it[1..].to_vec())
            .collect()
    },
    fix_checksums: Some(|input| checksums::manifest(input)),
    bound: FILE,
};

/// Whole index with one damaged file: opened, read, written to; rebuilt without its manifest.
pub(super) const OPEN: Target = Target {
    name: "index_open",
    run: |input| {
        let disk = SimVfs::new(SimOptions::default());
        base().with(input, &disk);
        if input.len() % 4 == 0 {
            let vfs: Arc<dyn Vfs> = Arc::new(disk.clone());
            let _ = rebuild(&vfs, Path::new(DIR), &options());
        }
        let Ok(index) = open(&disk) else { return };
        use_it(&index);
        let written = [Edit::NextFile(FileId(77)), Edit::RaftFrom(FileId(2))]
            .into_iter()
            .all(|edit| index.edit(edit).is_ok());
        if written {
            drop(index);
            let index = open(&disk).expect("a written index opens again");
            assert_eq!(index.raft_from(), FileId(2));
        }
    },
    seeds: || base().inputs(),
    fix_checksums: Some(|input| base().fix_checksums(input)),
    bound: Bound { bytes: 16 << 20, per_byte: 128 },
};

fn use_it(index: &Index) {
    for key in [&b"common-prefix-0007"[..], b"", b"zz"] {
        let _ = index.get(key);
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let Ok(mut pairs) = index.view().iter(KeyRange::all(), direction) else { continue };
        for _ in 0..2000 {
            if !matches!(pairs.next(), Ok(Some(_))) {
                break;
            }
        }
    }
    let _ = index.verify(&mut |problem| drop(problem.to_string()));
    let _ = index.needed_files();
    if let Ok(Some(mut job)) = index.resume_merge(None, 0) {
        let _ = job.step(1 << 20);
    }
    let _ = index.purge();
}
