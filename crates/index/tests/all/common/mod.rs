//! A small store without a log: the list of operations serves as the log.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use stele_index::{
    Checkpoint, Direction, Found, Index, IndexOptions, Job, JobStep, KeyWrite, Opened, ValueMover,
    View,
};
use stele_simulated_disk::SimVfs;
use stele_types::{
    FileId, KeyRange, Locator, LogIndex, Lsn, RegionId, Result, Seq, Term, ValueRef,
};
use stele_vfs::Vfs;

pub(crate) const DIR: &str = "index";

/// Values are identified by number; their locations may change.
pub(crate) type Model = BTreeMap<Vec<u8>, (u32, u64)>;

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put { key: Vec<u8>, value: u32, expires_at_s: u64 },
    Delete { key: Vec<u8> },
    DeleteRange { start: Vec<u8>, end: Vec<u8> },
}

pub(crate) fn apply(model: &mut Model, op: &Op) {
    match op {
        Op::Put { key, value, expires_at_s } => {
            model.insert(key.clone(), (*value, *expires_at_s));
        }
        Op::Delete { key } => {
            model.remove(key);
        }
        Op::DeleteRange { start, end } => remove_range(model, start, end),
    }
}

pub(crate) fn remove_range(model: &mut Model, start: &[u8], end: &[u8]) {
    let range = KeyRange::new(start.to_vec(), end.to_vec());
    model.retain(|key, _| !range.contains(key));
}

/// Values with at least this number are 1 MiB long.
pub(crate) const LONG_FROM: u32 = 10_000_000;

/// Returns an inline value for every third number; the others lie in one of eight files.
pub(crate) fn reference(value: u32) -> ValueRef {
    if value.is_multiple_of(3) {
        return ValueRef::Inline(Bytes::from(value.to_le_bytes().to_vec()));
    }
    let file = FileId(1 + value % 8);
    let length = if value >= LONG_FROM { 1 << 20 } else { 20 + value % 50 };
    ValueRef::At(Locator { file, offset: value * 100, length, crc: value })
}

pub(crate) fn number(value: &ValueRef) -> u32 {
    match value {
        ValueRef::Inline(bytes) => u32::from_le_bytes(bytes[..].try_into().unwrap()),
        ValueRef::At(at) => at.crc,
    }
}

pub(crate) fn small_options() -> IndexOptions {
    IndexOptions {
        block_bytes: 256,
        run_bytes_max: 1500,
        block_cache_bytes_max: 16 << 10,
        manifest_bytes_max: 700,
        ..IndexOptions::default()
    }
}

fn value_of(op: &Op) -> Option<(ValueRef, u64)> {
    match op {
        Op::Put { value, expires_at_s, .. } => Some((reference(*value), *expires_at_s)),
        _ => None,
    }
}

fn key_write<'a>(seq: Seq, op: &'a Op, value: &'a Option<(ValueRef, u64)>) -> KeyWrite<'a> {
    let (Op::Put { key, .. } | Op::Delete { key } | Op::DeleteRange { start: key, .. }) = op;
    let expires_at_s = value.as_ref().map_or(0, |(_, expires_at_s)| *expires_at_s);
    KeyWrite { seq, key, value: value.as_ref().map(|(value, _)| value.into()), expires_at_s }
}

pub(crate) struct Store {
    pub vfs: SimVfs,
    pub index: Index,
    pub opened: Opened,
    pub seq: u64,
}

impl Store {
    pub(crate) fn open(vfs: &SimVfs) -> Result<Self> {
        Self::open_with(vfs, small_options())
    }

    pub(crate) fn open_with(vfs: &SimVfs, options: IndexOptions) -> Result<Self> {
        let shared: Arc<dyn Vfs> = Arc::new(vfs.clone());
        let (index, opened) = Index::open(shared, Path::new(DIR), options)?;
        Ok(Self { vfs: vfs.clone(), index, opened, seq: 0 })
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        self.seq += 1;
        let seq = Seq(self.seq);
        match op {
            Op::Put { key, value, expires_at_s } => {
                self.index.put(seq, key, reference(*value), *expires_at_s);
            }
            Op::Delete { key } => self.index.delete(seq, key),
            Op::DeleteRange { start, end } => self.index.delete_range(seq, start, end),
        }
    }

    /// Does what [`Store::apply`] does for each of `ops`, with one call for those between range deletes.
    pub(crate) fn apply_together(&mut self, ops: &[Op]) {
        let is_range = |op: &Op| matches!(op, Op::DeleteRange { .. });
        for ops in ops.chunk_by(|before, op| !is_range(before) && !is_range(op)) {
            if let [range] = ops
                && is_range(range)
            {
                self.apply(range);
                continue;
            }
            let values: Vec<_> = ops.iter().map(value_of).collect();
            let writes = ops.iter().zip(&values).zip(self.seq + 1..);
            let writes: Vec<_> =
                writes.map(|((op, value), seq)| key_write(Seq(seq), op, value)).collect();
            self.index.write(&writes);
            self.seq += ops.len() as u64;
        }
    }

    pub(crate) fn publish(&self) {
        self.index.publish(Seq(self.seq));
    }

    pub(crate) fn freeze(&self, position: usize) {
        self.index.freeze(checkpoint(position));
    }

    pub(crate) fn flush_one(&self) -> Result<bool> {
        let Some(job) = self.index.start_flush() else { return Ok(false) };
        self.finish(job)?;
        Ok(true)
    }

    pub(crate) fn finish(&self, mut job: Job) -> Result<()> {
        loop {
            if let JobStep::Done(done) = job.step(400)? {
                return self.index.commit(done);
            }
        }
    }

    pub(crate) fn install(
        &self,
        ranges: &[KeyRange],
        region: Option<(RegionId, (LogIndex, Term))>,
        pairs: &[(&[u8], u32)],
    ) -> Result<()> {
        let mut ingest = self.index.begin_ingest(ranges.to_vec())?;
        for (key, value) in pairs {
            ingest.add(key, reference(*value), 0)?;
        }
        self.index.install(ingest, region)
    }

    pub(crate) fn position(&self) -> usize {
        self.opened.checkpoint.replay_from.offset as usize
    }

    pub(crate) fn contents(&self) -> Result<Model> {
        contents(&self.index.view(), KeyRange::all(), Direction::Forward)
            .map(|pairs| pairs.into_iter().collect())
    }

    pub(crate) fn ages(&self) -> Vec<u64> {
        self.index.version().tiers().iter().map(|tier| tier.age).collect()
    }

    pub(crate) fn run_files(&self) -> BTreeSet<String> {
        let entries = self.vfs.list(Path::new(DIR)).unwrap();
        entries.into_iter().map(|e| e.name).filter(|name| name.ends_with(".run")).collect()
    }

    pub(crate) fn check_files(&self, context: &str) {
        let mut expected: BTreeSet<String> =
            self.index.version().runs().map(|run| format!("{:08x}.run", run.id().0)).collect();
        if let Some(pending) = self.index.pending_merge() {
            expected.extend(pending.outputs.iter().map(|run| format!("{:08x}.run", run.0)));
        }
        assert_eq!(self.run_files(), expected, "{context}");
        let others = self.vfs.list(Path::new(DIR)).unwrap().len() - expected.len();
        assert_eq!(others, 1, "{context}: there must be one manifest and no other file");
        let mut damage = Vec::new();
        self.index.verify(&mut |error| damage.push(error.to_string())).unwrap();
        assert!(damage.is_empty(), "{context}: {damage:?}");
    }
}

pub(crate) fn checkpoint(position: usize) -> Checkpoint {
    let applied = BTreeMap::from([(RegionId(1), (LogIndex(position as u64), Term(1)))]);
    Checkpoint { replay_from: Lsn::new(FileId(0), position as u32), applied }
}

pub(crate) type Pairs = Vec<(Vec<u8>, (u32, u64))>;

pub(crate) fn contents(view: &View, range: KeyRange, direction: Direction) -> Result<Pairs> {
    let mut iter = view.iter(range.clone(), direction)?;
    let mut lent = view.iter(range, direction)?;
    let mut pairs = Vec::new();
    while let Some((key, value, expires_at_s)) = iter.next()? {
        assert!(lent.advance()?);
        assert_eq!((lent.key(), lent.expires_at_s()), (&key[..], expires_at_s));
        assert_eq!(lent.value().to_owned(), value);
        pairs.push((key.to_vec(), (number(&value), expires_at_s)));
    }
    assert!(!lent.advance()?);
    Ok(pairs)
}

pub(crate) fn get(view: &View, key: &[u8]) -> Result<Option<(u32, u64)>> {
    Ok(match view.get(key)? {
        Some(Found::Value { value, expires_at_s }) => Some((number(&value), expires_at_s)),
        Some(Found::Deleted) | None => None,
    })
}

pub(crate) struct MoveFile {
    pub from: FileId,
    pub to: FileId,
    pub moved: u32,
    pub cuts: Arc<std::sync::atomic::AtomicU32>,
}

impl ValueMover for MoveFile {
    fn moves(&self, _key: &[u8], at: &Locator) -> bool {
        at.file == self.from
    }

    fn place(&mut self, key: &[u8], at: &Locator, _expires_at_s: u64) -> Result<Option<Locator>> {
        if !self.moves(key, at) {
            return Ok(None);
        }
        self.moved += 1;
        Ok(Some(Locator { file: self.to, offset: self.moved * 100, ..*at }))
    }

    fn cut(&mut self) -> Result<()> {
        self.cuts.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        u64::from(self.moved) * 50
    }
}

/// A xorshift generator: tests print its seed.
pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    /// Returns one of some hundreds of keys, of different lengths and with common prefixes.
    pub(crate) fn key(&mut self) -> Vec<u8> {
        let n = self.below(300);
        match n % 4 {
            0 => format!("k{n:03}").into_bytes(),
            1 => format!("common-prefix-of-keys-{n:03}").into_bytes(),
            2 => vec![(n / 8) as u8, 0xff, (n % 8) as u8],
            _ => n.to_be_bytes()[6..].to_vec(),
        }
    }

    pub(crate) fn op(&mut self, value: u32) -> Op {
        match self.below(20) {
            0 => {
                let (a, b) = (self.key(), self.key());
                let end = if self.below(12) == 0 { Vec::new() } else { a.clone().max(b.clone()) };
                Op::DeleteRange { start: a.min(b), end }
            }
            1..=4 => Op::Delete { key: self.key() },
            n => {
                let expires_at_s = if n < 8 { 1 + self.below(1000) } else { 0 };
                Op::Put { key: self.key(), value, expires_at_s }
            }
        }
    }
}
