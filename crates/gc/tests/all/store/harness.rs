//! A small store over the simulated disk: log, index and garbage collection of one region, and a
//! model of its expected content.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stele_gc::{Gc, GcHooks, GcOptions, Stage, TimeSource};
use stele_index::{Checkpoint, Direction, Found, Index, IndexOptions};
use stele_log::{FileKind, Log, LogOptions, RecoverFrom, ReplayOp};
use stele_simulated_disk::{Fault, SimOptions, SimVfs};
use stele_types::{
    CommandBuilder, EntryRecord, Error, FileId, KeyRange, Locator, LogBatch, LogIndex, Lsn,
    ManualClock, Mark, Op, Record, RegionId, Result, Seq, StoreId, Term, ValueRef,
};
use stele_vfs::Vfs;

pub(super) const REGION: RegionId = RegionId(1);
pub(super) const TERM: Term = Term(1);
pub(super) const SEGMENT_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub gc: GcOptions,
    pub run_bytes_max: u64,
    pub memtable_bytes_max: usize,
    pub segment_bytes_max: u64,
    pub time_source: TimeSource,
    pub unix_s: u64,
}

impl Default for Setup {
    fn default() -> Self {
        let gc = GcOptions {
            discover_bytes_min: 32 << 10,
            value_file_bytes_max: SEGMENT_BYTES,
            ..GcOptions::default()
        };
        Self {
            gc,
            run_bytes_max: 16 << 10,
            memtable_bytes_max: 32 << 10,
            segment_bytes_max: SEGMENT_BYTES,
            time_source: TimeSource::Own,
            unix_s: 1_000_000,
        }
    }
}

pub(super) struct Owner {
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    /// A follower still needs the region's log.
    pub keeps_log: AtomicBool,
    /// Keys of values that jobs could not read, in the order of the reports.
    pub unreadable: parking_lot::Mutex<Vec<Vec<u8>>>,
    frozen_at: parking_lot::Mutex<Lsn>,
}

impl GcHooks for Owner {
    fn freeze(&self) -> Result<bool> {
        let mut frozen_at = self.frozen_at.lock();
        let head = self.log.head();
        if self.index.memtable_is_empty() && *frozen_at == head {
            return Ok(false);
        }
        let mut checkpoint = Checkpoint { replay_from: head, ..Checkpoint::default() };
        if let Some(region) = self.log.region(REGION) {
            checkpoint.applied.insert(REGION, (region.last, region.last_term));
        }
        self.index.freeze(checkpoint);
        *frozen_at = head;
        Ok(true)
    }

    fn truncate(&self) -> Result<bool> {
        let applied = self.index.checkpoint().applied.get(&REGION).copied();
        let (Some((index, term)), Some(region)) = (applied, self.log.region(REGION)) else {
            return Ok(false);
        };
        if index <= region.truncated.0 || self.keeps_log.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let mark = Record::Mark(REGION, Mark::TruncatePrefix(index, term));
        self.log.append(&LogBatch { records: vec![mark] })?;
        Ok(true)
    }

    fn note_unreadable(&self, key: &[u8], _: &Locator, error: &Error) {
        if error.is_damage() {
            self.unreadable.lock().push(key.to_vec());
        }
    }
}

pub(super) struct Store {
    pub vfs: SimVfs,
    pub clock: Arc<ManualClock>,
    pub log: Arc<Log>,
    pub index: Arc<Index>,
    pub owner: Arc<Owner>,
    pub gc: Gc,
    pub setup: Setup,
    pub model: BTreeMap<Vec<u8>, Vec<u8>>,
    seq: Seq,
}

impl Store {
    pub(super) fn new(setup: Setup) -> Self {
        let vfs = SimVfs::new(SimOptions::default());
        Self::open(vfs, setup, BTreeMap::new()).expect("open")
    }

    pub(super) fn open(
        vfs: SimVfs,
        setup: Setup,
        model: BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<Self> {
        let disk: Arc<dyn Vfs> = Arc::new(vfs.clone());
        let clock = Arc::new(ManualClock::at(setup.unix_s));
        let options = IndexOptions {
            memtable_bytes_max: setup.memtable_bytes_max,
            run_bytes_max: setup.run_bytes_max,
            block_bytes: 1 << 10,
            ..IndexOptions::default()
        };
        let (index, opened) = Index::open(disk.clone(), Path::new("/s/index"), options)?;
        let from = RecoverFrom {
            checkpoint: opened.checkpoint.replay_from,
            raft_from: opened.raft_from,
            next_file: opened.next_file,
            needed: opened.needed.iter().copied().collect(),
            checkpointed: None,
            ..RecoverFrom::default()
        };
        let options = LogOptions {
            store: StoreId(7),
            segment_bytes_max: setup.segment_bytes_max,
            recycle_segments_max: 1,
            history_bytes_max: 0,
            direct: false,
            entry_cache_bytes_max: 0,
            inline_value_bytes_max: 16,
            handles: Arc::default(),
            timer: None,
        };
        let (log, _) = Log::open(disk, Path::new("/s/log"), options, from)?;
        let (log, index) = (Arc::new(log), Arc::new(index));
        let (seq, replayed_bytes) = replay(&log, &index, &opened.checkpoint)?;
        let owner = Arc::new(Owner {
            log: log.clone(),
            index: index.clone(),
            keeps_log: AtomicBool::new(false),
            unreadable: parking_lot::Mutex::default(),
            frozen_at: parking_lot::Mutex::new(opened.checkpoint.replay_from),
        });
        let gc = Gc::new(
            log.clone(),
            index.clone(),
            clock.clone(),
            setup.gc.clone(),
            owner.clone(),
            setup.time_source,
            &opened.gc_state,
        )?;
        gc.note_user_bytes(replayed_bytes);
        Ok(Self { vfs, clock, log, index, owner, gc, setup, model, seq })
    }

    pub(super) fn crash(self, seed: u64) -> Self {
        self.vfs.crash_now();
        let vfs = self.vfs.restart(seed);
        let (setup, model) = (self.setup.clone(), self.model.clone());
        drop(self);
        Self::open(vfs, setup, model).expect("open after a crash")
    }

    pub(super) fn put(&mut self, key: &[u8], value: &[u8]) {
        self.put_until(key, value, 0);
    }

    pub(super) fn put_until(&mut self, key: &[u8], value: &[u8], expires_at_s: u64) {
        let mut command = CommandBuilder::new();
        command.put(key, value, expires_at_s).expect("within limits");
        self.write(command).expect("write");
        self.model.insert(key.to_vec(), value.to_vec());
    }

    pub(super) fn put_all(&mut self, pairs: &[(Vec<u8>, Vec<u8>)]) {
        let mut command = CommandBuilder::new();
        for (key, value) in pairs {
            command.put(key, value, 0).expect("within limits");
        }
        self.write(command).expect("write");
        self.model.extend(pairs.iter().cloned());
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        let mut command = CommandBuilder::new();
        command.delete(key).expect("within limits");
        self.write(command).expect("write");
        self.model.remove(key);
    }

    pub(super) fn delete_range(&mut self, start: &[u8], end: &[u8]) {
        let mut command = CommandBuilder::new();
        command.delete_range(start, end).expect("within limits");
        self.write(command).expect("write");
        self.model.retain(|key, _| &key[..] < start || (!end.is_empty() && &key[..] >= end));
    }

    pub(super) fn write(&mut self, command: CommandBuilder) -> Result<()> {
        let command = command.build();
        let index = self.log.region(REGION).map_or(LogIndex(1), |region| region.last.next());
        let payload = command.bytes().clone();
        let entry = EntryRecord { region: REGION, term: TERM, index, is_command: true, payload };
        let appended = self.log.append(&LogBatch { records: vec![Record::Entry(entry)] })?;
        let mut user_bytes = 0;
        for op in command.ops() {
            self.seq = self.seq.next();
            match op {
                Op::Put { key, value, expires_at_s, .. } => {
                    let at = op.locator(appended.payloads[0]).expect("a put has a place");
                    let value_ref = match value.len() {
                        0..=16 => ValueRef::Inline(Bytes::copy_from_slice(value)),
                        _ => ValueRef::At(at),
                    };
                    self.index.put(self.seq, key, value_ref, expires_at_s);
                    user_bytes += key.len() + value.len();
                }
                Op::Delete { key } => {
                    self.index.delete(self.seq, key);
                    user_bytes += key.len();
                }
                Op::DeleteRange { start, end } => {
                    self.index.delete_range(self.seq, start, end);
                    user_bytes += start.len() + end.len();
                }
            }
        }
        self.index.publish(self.seq);
        if self.index.memtable_bytes() >= self.setup.memtable_bytes_max {
            self.owner.freeze()?;
        }
        self.gc.note_user_bytes(user_bytes as u64);
        Ok(())
    }

    /// Steps until nothing is left to do; in small slices, so that everything is interleaved.
    pub(super) fn settle(&self) {
        for _ in 0..100_000 {
            if self.gc.step(4 << 10).expect("step").stage == Stage::Idle {
                return;
            }
        }
        panic!("no end: {:?}", self.gc.stats());
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let view = self.index.view();
        match view.get(key)? {
            Some(Found::Value { value: ValueRef::Inline(value), .. }) => Ok(Some(value)),
            Some(Found::Value { value: ValueRef::At(at), .. }) => self.log.get(&at).map(Some),
            Some(Found::Deleted) | None => Ok(None),
        }
    }

    pub(super) fn damage(&self, key: &[u8]) {
        let at = self.locator(key);
        self.vfs
            .corrupt(self.path_of(at.file), u64::from(at.offset) + 10, &[0xee])
            .expect("corrupt");
    }

    pub(super) fn refuse(&self, key: &[u8]) {
        let at = self.locator(key);
        let (offset, bytes) = (u64::from(at.offset), u64::from(at.length));
        self.vfs
            .inject(Fault::Unreadable { path: self.path_of(at.file), offset, bytes })
            .expect("inject");
    }

    pub(super) fn path_of(&self, file: FileId) -> PathBuf {
        let kind = self.log.files().iter().find(|info| info.file == file).map(|info| info.kind);
        let name = if kind == Some(FileKind::Sorted) { "val" } else { "seg" };
        format!("/s/log/{:08x}.{name}", file.0).into()
    }

    pub(super) fn locator(&self, key: &[u8]) -> Locator {
        match self.index.view().get(key).expect("get") {
            Some(Found::Value { value: ValueRef::At(at), .. }) => at,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn check(&self) {
        let mut iter = self.index.view().iter(KeyRange::all(), Direction::Forward).expect("iter");
        let mut expected = self.model.iter();
        while let Some((key, value, _)) = iter.next().expect("next") {
            let (model_key, model_value) = expected.next().expect("a key too many");
            assert_eq!(&key[..], &model_key[..]);
            let value = match value {
                ValueRef::Inline(value) => value,
                ValueRef::At(at) => self.log.get(&at).expect("every live value can be read"),
            };
            assert!(value[..] == model_value[..], "value of {key:?}");
        }
        assert_eq!(expected.next().map(|(key, _)| key), None, "a key is lost");
    }

    /// Checks that the log knows every file in its directory.
    pub(super) fn check_no_leak(&self) {
        let known: Vec<FileId> = self.log.files().iter().map(|info| info.file).collect();
        for path in self.vfs.paths() {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let Some((stem, kind)) = name.split_once('.') else { continue };
            if ["seg", "val", "side"].contains(&kind) {
                let id = FileId(u32::from_str_radix(stem, 16).expect("hex"));
                assert!(known.contains(&id), "{name} is leaked");
            }
        }
    }
}

fn replay(log: &Log, index: &Index, checkpoint: &Checkpoint) -> Result<(Seq, u64)> {
    let (mut seq, mut bytes) = (Seq(0), 0);
    let applied = |region: RegionId| checkpoint.applied.get(&region).map_or(LogIndex(0), |a| a.0);
    log.replay(&applied, &mut |entry| {
        for op in entry.ops {
            seq = seq.next();
            match op {
                ReplayOp::Put { key, value, expires_at_s } => {
                    bytes += key.len() as u64 + u64::from(value.len());
                    index.put(seq, key, value.clone(), *expires_at_s);
                }
                ReplayOp::Delete { key } => index.delete(seq, key),
                ReplayOp::DeleteRange { start, end } => index.delete_range(seq, start, end),
            }
        }
        Ok(())
    })?;
    index.publish(seq);
    Ok((seq, bytes))
}

pub(super) fn value(key: u32, round: u32, bytes: usize) -> Vec<u8> {
    let mut value = format!("{key}/{round}/").into_bytes();
    value.resize(bytes.max(value.len()), (key.wrapping_mul(31) ^ round) as u8);
    value
}

pub(super) fn key(i: u32) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// A seeded stream of numbers; the seed can be set by `STELE_SEED`.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(test: &str, default: u64) -> Self {
        let seed = std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(default);
        println!("replay: STELE_SEED={seed} cargo test -p stele-gc --test all store {test}");
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
