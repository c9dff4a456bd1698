//! The state machine: key-values in a RocksDB, how far each region is applied beside them.

use super::batch::Batch;
use super::db::{Db, Durability, Tier};
use super::mirror::{self, Own};
use super::pairs::{self, Applied, data_key, data_range};
use super::value_log::{Pending, ValueLog};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_storage::Pair;
use stele_types::{Command, Error, KeyRange, Op, RegionId, Result, checksum};

/// How the key-values survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// By RocksDB's write-ahead log, synced with every application.
    SyncedLog,
    /// By RocksDB's write-ahead log, synced now and then: till then the Raft log has the entries.
    Log,
    /// By replaying the Raft log after the last flush.
    Flushes,
    /// The same, and values lie in a value log.
    FlushesAndValueLog,
    /// As [`Persistence::Log`] where entries are applied first; the other stores of the group take that
    /// one's tables.
    Tables,
}

impl Persistence {
    fn durability(self) -> Durability {
        match self {
            Self::SyncedLog => Durability::Synced,
            Self::Log | Self::Tables => Durability::Logged,
            Self::Flushes | Self::FlushesAndValueLog => Durability::Volatile,
        }
    }

    /// Whether RocksDB has a write-ahead log of the key-values.
    pub fn has_log(self) -> bool {
        matches!(self, Self::SyncedLog | Self::Log | Self::Tables)
    }
}

/// Values up to this length stay beside their keys, as in Stele.
const INLINE_BYTES_MAX: usize = stele_types::limits::INLINE_VALUE_BYTES_MAX;

/// See the module.
#[derive(Debug)]
pub struct KeyValues {
    pub db: Arc<Db>,
    pub values: Option<Arc<ValueLog>>,
    pub path: Arc<PathBuf>,
    pub persistence: Persistence,
    /// Bytes applied since the last call of [`KeyValues::keep`].
    unkept_bytes: AtomicU64,
}

/// Changes of the key-values that are made together.
pub struct Change {
    batch: Batch,
    values: Option<Pending>,
    pub user_bytes: u64,
}

impl Change {
    /// Adds the operations of a command.
    pub fn command(&mut self, command: &Command) {
        for op in command.ops() {
            match op {
                Op::Put { key, value, value_crc, expires_at_s, .. } => {
                    self.put((key, value, value_crc, expires_at_s));
                }
                Op::Delete { key } => {
                    self.user_bytes += key.len() as u64;
                    self.batch.delete(&data_key(key));
                }
                Op::DeleteRange { start, end } => {
                    self.user_bytes += (start.len() + end.len()) as u64;
                    self.delete_range(&KeyRange::new(start.to_vec(), end.to_vec()));
                }
            }
        }
    }

    fn put(&mut self, pair: (&[u8], &[u8], u32, u64)) {
        let (key, value, ..) = pair;
        self.user_bytes += (key.len() + value.len()) as u64;
        let (head, tail) = pairs::record(&mut self.values, INLINE_BYTES_MAX, pair);
        self.batch.put(&data_key(key), [&head, tail]);
    }

    /// Adds pairs of a snapshot.
    pub fn pairs(&mut self, pairs: &[Pair]) {
        for Pair { key, value, expires_at_s } in pairs {
            self.put((key, value, checksum::crc32c(value), *expires_at_s));
        }
    }

    pub fn delete_range(&mut self, range: &KeyRange) {
        let (start, end) = data_range(range);
        self.batch.delete_range(&start, &end);
    }

    pub fn applied(&mut self, region: RegionId, applied: Applied) {
        self.batch.put(&Applied::key(region), [&applied.encode(), &[]]);
    }
}

impl KeyValues {
    pub fn open(dir: &Path, options: &str, persistence: Persistence) -> Result<Self> {
        let path = dir.join("pairs");
        let db = Arc::new(Db::open(&path, options)?);
        if persistence == Persistence::Tables {
            Own::restore(&path, &db)?;
        }
        let values = match persistence {
            Persistence::FlushesAndValueLog => Some(Arc::new(ValueLog::open(&dir.join("values"))?)),
            _ => None,
        };
        let unkept_bytes = AtomicU64::new(0);
        Ok(Self { db, values, path: Arc::new(path), persistence, unkept_bytes })
    }

    /// How far every region was applied when the database was opened.
    pub fn all_applied(&self) -> Result<BTreeMap<RegionId, Applied>> {
        Applied::all(&self.db, &self.path)
    }

    /// How far a region is applied in what a crash leaves. For databases without a log only.
    pub fn flushed(&self, region: RegionId) -> Result<Option<Applied>> {
        let read = |value: &[u8]| Applied::decode(value, &self.path);
        self.db.get(&Applied::key(region), Tier::Persisted, read)?.transpose()
    }

    pub fn change(&self) -> Change {
        let values = self.values.as_ref().map(|values| values.begin());
        Change { batch: Batch::new(), values, user_bytes: 0 }
    }

    /// Makes a change visible. Values are written before the pointers to them.
    pub fn make(&self, change: &Change) -> Result<()> {
        if let (Some(values), Some(pending)) = (&self.values, &change.values) {
            values.write(pending)?;
        }
        self.db.write(&change.batch, self.persistence.durability())?;
        self.unkept_bytes.fetch_add(change.user_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Makes `dir` a database of the tables in which everything applied before is, and nothing else.
    /// How far regions are applied in it, which survives a crash here as well.
    pub fn ship(&self, dir: &Path, options: &str) -> Result<BTreeMap<RegionId, Applied>> {
        self.unkept_bytes.store(0, Ordering::Relaxed);
        self.db.checkpoint(dir)?;
        mirror::drop_logs(dir)?;
        Applied::all(&Db::open_to_read(dir, options)?, dir)
    }

    pub fn unkept_bytes(&self) -> u64 {
        self.unkept_bytes.load(Ordering::Relaxed)
    }

    /// Makes everything applied so far survive a crash without the Raft log. Values are on the device
    /// before pointers to them are.
    pub fn keep(&self) -> Result<()> {
        self.unkept_bytes.store(0, Ordering::Relaxed);
        if let Some(values) = &self.values {
            values.sync()?;
        }
        if self.persistence.has_log() { self.db.sync_log() } else { self.db.flush() }
    }
}

/// Pairs of a snapshot on their way in, in memory.
#[derive(Debug)]
pub struct RockIngest {
    ranges: Vec<KeyRange>,
    pairs: Vec<Pair>,
    is_broken: bool,
}

impl RockIngest {
    pub(super) fn new(ranges: Vec<KeyRange>) -> Result<Self> {
        stele_storage::check_ranges(&ranges)?;
        Ok(Self { ranges, pairs: Vec::new(), is_broken: false })
    }

    pub(super) fn receive(&mut self, pairs: Vec<Pair>) -> Result<()> {
        for pair in pairs {
            let ascending = self.pairs.last().is_none_or(|last| last.key < pair.key);
            if !ascending || !self.ranges.iter().any(|range| range.contains(&pair.key)) {
                self.is_broken = true;
                return Err(Error::invalid("installed keys must ascend inside the ranges"));
            }
            self.pairs.push(pair);
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(Vec<KeyRange>, Vec<Pair>)> {
        if self.is_broken {
            return Err(Error::invalid("pairs that were refused can't be installed"));
        }
        Ok((self.ranges, self.pairs))
    }
}
