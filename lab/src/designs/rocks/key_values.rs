//! State machine: key-values in RocksDB, with the applied index of each region.

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

/// Way in which key-values survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// RocksDB's write-ahead log, synced on every apply.
    SyncedLog,
    /// RocksDB's write-ahead log, synced periodically; until then the Raft log has the entries.
    Log,
    /// Replay of the Raft log after the last flush.
    Flushes,
    /// As [`Persistence::Flushes`], with values in a value log.
    FlushesAndValueLog,
    /// As [`Persistence::Log`] on the store that applies entries first; the other stores of the
    /// group copy its tables.
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

    /// Returns true if RocksDB has a write-ahead log for key-values.
    pub fn has_log(self) -> bool {
        matches!(self, Self::SyncedLog | Self::Log | Self::Tables)
    }
}

/// Longest value that is stored with its key, as in Stele.
const INLINE_BYTES_MAX: usize = stele_types::size::INLINE_VALUE_BYTES_MAX;

#[derive(Debug)]
pub(super) struct KeyValues {
    pub db: Arc<Db>,
    pub values: Option<Arc<ValueLog>>,
    pub path: Arc<PathBuf>,
    pub persistence: Persistence,
    /// Bytes applied since the last call of [`KeyValues::persist`].
    unpersisted_bytes: AtomicU64,
}

pub(super) struct Change {
    batch: Batch,
    values: Option<Pending>,
    pub user_bytes: u64,
}

impl Change {
    pub(super) fn command(&mut self, command: &Command) {
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

    pub(super) fn pairs(&mut self, pairs: &[Pair]) {
        for Pair { key, value, expires_at_s } in pairs {
            self.put((key, value, checksum::crc32c(value), *expires_at_s));
        }
    }

    pub(super) fn delete_range(&mut self, range: &KeyRange) {
        let (start, end) = data_range(range);
        self.batch.delete_range(&start, &end);
    }

    pub(super) fn applied(&mut self, region: RegionId, applied: Applied) {
        self.batch.put(&Applied::key(region), [&applied.encode(), &[]]);
    }
}

impl KeyValues {
    pub(super) fn open(dir: &Path, options: &str, persistence: Persistence) -> Result<Self> {
        let path = dir.join("pairs");
        let db = Arc::new(Db::open(&path, options)?);
        if persistence == Persistence::Tables {
            Own::restore(&path, &db)?;
        }
        let values = match persistence {
            Persistence::FlushesAndValueLog => Some(Arc::new(ValueLog::open(&dir.join("values"))?)),
            _ => None,
        };
        let unpersisted_bytes = AtomicU64::new(0);
        Ok(Self { db, values, path: Arc::new(path), persistence, unpersisted_bytes })
    }

    /// Returns the applied index of every region when the database was opened.
    pub(super) fn all_applied(&self) -> Result<BTreeMap<RegionId, Applied>> {
        Applied::all(&self.db, &self.path)
    }

    /// Returns the applied index of a region that survives a crash. For databases without a log
    /// only.
    pub(super) fn flushed(&self, region: RegionId) -> Result<Option<Applied>> {
        let read = |value: &[u8]| Applied::decode(value, &self.path);
        self.db.get(&Applied::key(region), Tier::Persisted, read)?.transpose()
    }

    pub(super) fn change(&self) -> Change {
        let values = self.values.as_ref().map(|values| values.begin());
        Change { batch: Batch::new(), values, user_bytes: 0 }
    }

    /// Applies a change. Values are written before pointers to them.
    pub(super) fn make(&self, change: &Change) -> Result<()> {
        if let (Some(values), Some(pending)) = (&self.values, &change.values) {
            values.write(pending)?;
        }
        self.db.write(&change.batch, self.persistence.durability())?;
        self.unpersisted_bytes.fetch_add(change.user_bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Creates a database in `dir` of the tables that hold exactly what was applied before. Returns
    /// the applied index of each region in it, which survives a crash of this store too.
    pub(super) fn ship(&self, dir: &Path, options: &str) -> Result<BTreeMap<RegionId, Applied>> {
        self.unpersisted_bytes.store(0, Ordering::Relaxed);
        self.db.checkpoint(dir)?;
        mirror::drop_logs(dir)?;
        Applied::all(&Db::open_to_read(dir, options)?, dir)
    }

    pub(super) fn unpersisted_bytes(&self) -> u64 {
        self.unpersisted_bytes.load(Ordering::Relaxed)
    }

    /// Makes everything applied so far survive a crash without the Raft log. Values are durable
    /// before pointers to them.
    pub(super) fn persist(&self) -> Result<()> {
        self.unpersisted_bytes.store(0, Ordering::Relaxed);
        if let Some(values) = &self.values {
            values.sync()?;
        }
        if self.persistence.has_log() { self.db.sync_log() } else { self.db.flush() }
    }
}

/// Pairs of a snapshot that are staged in memory.
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
                return Err(Error::invalid("installed keys must ascend and lie inside the ranges"));
            }
            self.pairs.push(pair);
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(Vec<KeyRange>, Vec<Pair>)> {
        if self.is_broken {
            return Err(Error::invalid("rejected pairs cannot be installed"));
        }
        Ok((self.ranges, self.pairs))
    }
}
