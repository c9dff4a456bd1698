//! Raft log of all regions in a separate RocksDB, as in TiKV before it had a log engine: every
//! batch is one write with a sync.
//!
//! ```text
//! "e" region:u64 index:u64 -> at:u64 term:u64 is_command:u8 payload      (all big-endian)
//! "s" region:u64           -> the region's state
//! ```

use super::batch::Batch;
use super::cursor::Cursor;
use super::db::{Db, Durability, Tier};
use super::numbers::{Numbers, encode};
use super::region::Region;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stele_types::{CommittedEntry, EntryRecord, LogIndex, RegionId, Result, Term};

const ENTRY: u8 = b'e';
const STATE: u8 = b's';

#[derive(Debug)]
pub(super) struct RaftLog {
    db: Db,
    path: PathBuf,
}

fn state_key(region: RegionId) -> Vec<u8> {
    [&[STATE][..], &region.0.to_be_bytes()].concat()
}

fn entry_key(region: RegionId, index: LogIndex) -> Vec<u8> {
    [&[ENTRY][..], &region.0.to_be_bytes(), &index.0.to_be_bytes()].concat()
}

#[derive(Default)]
pub(super) struct Edit(Batch);

impl Edit {
    pub(super) fn put(&mut self, entry: &EntryRecord, at: u64) {
        let mut head = encode(&[at, entry.term.0]);
        head.push(u8::from(entry.is_command));
        self.0.put(&entry_key(entry.region, entry.index), [&head, &entry.payload]);
    }

    /// Removes the entries from `from` to `to`, exclusive, one by one: range tombstones would slow
    /// down all later reads.
    pub(super) fn remove(&mut self, region: RegionId, from: LogIndex, to: LogIndex) {
        for index in from.0..to.0 {
            self.0.delete(&entry_key(region, LogIndex(index)));
        }
    }

    pub(super) fn state(&mut self, id: RegionId, region: &Region) {
        self.0.put(&state_key(id), [&region.encode(), &[]]);
    }
}

impl RaftLog {
    pub(super) fn open(path: &Path, options: &str) -> Result<Self> {
        Ok(Self { db: Db::open(path, options)?, path: path.to_path_buf() })
    }

    /// Writes an edit; it is durable on return.
    pub(super) fn write(&self, edit: &Edit) -> Result<()> {
        self.db.write(&edit.0, Durability::Synced)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.db.figure(c"rocksdb.cur-size-all-mem-tables")
    }

    pub(super) fn regions(&self) -> Result<BTreeMap<RegionId, Region>> {
        let mut regions = BTreeMap::new();
        let mut cursor = self.db.cursor();
        cursor.seek(&[STATE]);
        while let Some((key, value)) = cursor.pair()? {
            let Some(id) = key.strip_prefix(&[STATE]) else { break };
            let id = RegionId(Numbers::new(id, &self.path).u64()?);
            regions.insert(id, Region::decode(value, &self.path)?);
            cursor.step(true);
        }
        Ok(regions)
    }

    pub(super) fn entry(&self, region: RegionId, index: LogIndex) -> Result<Option<StoredEntry>> {
        let read = |value: &[u8]| decode(value, index, &self.path);
        self.db.get(&entry_key(region, index), Tier::All, read)?.transpose()
    }

    pub(super) fn entries_from(&self, region: RegionId, index: LogIndex) -> Entries<'_> {
        let mut cursor = self.db.cursor();
        cursor.seek(&entry_key(region, index));
        Entries { cursor, region, path: &self.path }
    }
}

/// An entry with its place in the order of appends over all regions.
pub(super) type StoredEntry = (u64, CommittedEntry);

fn decode(value: &[u8], index: LogIndex, path: &Path) -> Result<StoredEntry> {
    let mut numbers = Numbers::new(value, path);
    let (at, term) = (numbers.u64()?, Term(numbers.u64()?));
    let is_command = numbers.u8()? != 0;
    let payload = Bytes::copy_from_slice(numbers.remaining());
    Ok((at, CommittedEntry { term, index, is_command, payload }))
}

/// Entries of one region, ascending.
pub(super) struct Entries<'a> {
    cursor: Cursor<'a>,
    region: RegionId,
    path: &'a Path,
}

impl Entries<'_> {
    /// Returns the next entry; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<StoredEntry>> {
        let prefix = [&[ENTRY][..], &self.region.0.to_be_bytes()].concat();
        let Some((key, value)) = self.cursor.pair()? else { return Ok(None) };
        let Some(index) = key.strip_prefix(&prefix[..]) else { return Ok(None) };
        let index = LogIndex(Numbers::new(index, self.path).u64()?);
        let entry = decode(value, index, self.path)?;
        self.cursor.step(true);
        Ok(Some(entry))
    }
}
