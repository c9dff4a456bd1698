//! The store behind the commands: the only module that knows the engine's front.

use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use stele_engine::{Batch, Completion, Db, DbStats, GcOptions, Options, PolicyKind, VerifyEvent};
use stele_types::limits::VALUE_BYTES_MAX;
use stele_types::{Error, KeyRange, Result};

pub use stele_engine::{Order, Pair};

/// What makes a directory a store, or what is left of one.
const PARTS: [&str; 3] = ["STORE", "log", "index"];

/// Settings a command may change; `None` keeps the default.
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    pub policy: PolicyKind,
    /// Run maintenance on threads while the command works.
    pub background: bool,
    /// Never repair at open: damage is to be reported.
    pub as_it_is: bool,
    pub segment_bytes_max: Option<u64>,
    pub memtable_bytes_max: Option<u64>,
    pub value_cache_bytes_max: Option<u64>,
}

/// An open store.
pub struct Store {
    db: Db,
}

/// A write that was handed in.
pub struct Pending(Completion);

impl Pending {
    /// Waits until the write is durable.
    pub fn wait(self) -> Result<()> {
        self.0.wait()
    }
}

/// Sizes and counts.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Bytes written to files since open, by cause.
    pub written_bytes: Vec<(&'static str, u64)>,
    pub disk_bytes: u64,
    pub live_bytes: u64,
    pub memory_bytes: u64,
    pub space_amp: f64,
    /// Nezha's phase.
    pub phase: String,
}

/// What a verification found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    pub keys: u64,
    pub live_bytes: u64,
    /// What the store says it takes of the device.
    pub reported_bytes: u64,
    pub checked_bytes: u64,
}

impl Store {
    /// Opens a store that must exist.
    pub fn open(dir: &Path, tuning: &Tuning) -> Result<Self> {
        // A directory that lost its identity is no empty one: the engine says what is missing.
        if PARTS.iter().any(|part| dir.join(part).exists()) {
            return Self::open_or_create(dir, tuning);
        }
        let detail = if dir.is_dir() { "it holds no store" } else { "no such directory" };
        Err(Error::Missing {
            path: dir.to_path_buf(),
            detail: format!("{detail}; `stele put` and `stele import` create one"),
        })
    }

    /// Opens a store, making it when there is none.
    pub fn open_or_create(dir: &Path, tuning: &Tuning) -> Result<Self> {
        let mut options = Options {
            background: tuning.background,
            rebuild: !tuning.as_it_is,
            gc: GcOptions { policy: tuning.policy, ..GcOptions::default() },
            ..Options::default()
        };
        if let Some(bytes) = tuning.segment_bytes_max {
            options.segment_bytes_max = bytes;
        }
        if let Some(bytes) = tuning.memtable_bytes_max {
            options.memtable_bytes_max = to_usize(bytes);
        }
        if let Some(bytes) = tuning.value_cache_bytes_max {
            options.value_cache_bytes_max = to_usize(bytes);
        }
        Ok(Self { db: Db::open(dir, options)? })
    }

    /// The value and whether it will expire.
    pub fn get(&self, key: &[u8]) -> Result<Option<(Bytes, bool)>> {
        let found = self.db.get_with_ttl(key)?;
        Ok(found.map(|(value, ttl_s)| (value, ttl_s.is_some())))
    }

    /// Sets a key, for `ttl_s` seconds if given.
    pub fn put(&self, key: &[u8], value: &[u8], ttl_s: Option<u64>) -> Result<()> {
        match ttl_s {
            Some(ttl_s) => self.db.put_ttl(key, value, ttl_s),
            None => self.db.put(key, value),
        }
    }

    /// Hands a put in; it is durable once waited for.
    pub fn put_later(&self, key: &[u8], value: &[u8], ttl_s: Option<u64>) -> Result<Pending> {
        let Some(ttl_s) = ttl_s else { return self.db.put_async(key, value).map(Pending) };
        let mut batch = Batch::new();
        batch.put_until(key, value, unix_seconds().saturating_add(ttl_s))?;
        self.db.write_async(batch).map(Pending)
    }

    /// Sets several keys at once.
    pub fn put_all<'a>(&self, pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key, value)?;
        }
        self.db.write(batch)
    }

    /// Removes a key.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete(key)
    }

    /// Removes every key of a range.
    pub fn delete_range(&self, range: &KeyRange) -> Result<()> {
        if range.is_empty() { Ok(()) } else { self.db.delete_range(&range.start, &range.end) }
    }

    /// The pairs of a range at one point in time, one after the other.
    pub fn pairs(
        &self,
        range: KeyRange,
        order: Order,
        keys_only: bool,
    ) -> Result<impl Iterator<Item = Result<Pair>>> {
        if keys_only { self.db.iter_keys(range, order) } else { self.db.iter(range, order) }
    }

    /// Up to `limit` pairs from `start` on; returns their number and bytes.
    pub fn scan_from(&self, start: &[u8], limit: usize) -> Result<(u64, u64)> {
        let range = KeyRange::new(start.to_vec(), Vec::new());
        let found = self.db.scan(&stele_engine::ScanOptions::new(range, limit))?;
        let bytes = found.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
        Ok((found.len() as u64, bytes as u64))
    }

    /// Checks everything. Damage goes to `damage` as (file, what), checked bytes to `checked`.
    pub fn verify(
        &self,
        damage: &mut dyn FnMut(PathBuf, String),
        checked: &dyn Fn(u64),
    ) -> Result<Verified> {
        let report = self.db.verify(&mut |event| match event {
            VerifyEvent::Checked(bytes) => checked(bytes),
            VerifyEvent::Damage { path, detail } => damage(path, detail),
        })?;
        Ok(Verified {
            keys: report.keys,
            live_bytes: report.live_bytes,
            reported_bytes: report.disk_bytes,
            checked_bytes: report.checked_bytes,
        })
    }

    /// Merges, sorts and collects until nothing is left to gain.
    pub fn compact(&self) -> Result<()> {
        self.db.compact()
    }

    /// Turns what is in memory into runs.
    pub fn flush(&self) -> Result<()> {
        self.db.flush()
    }

    /// Does about `bytes_max` bytes of background work; whether more is waiting.
    pub fn maintain(&self, bytes_max: u64) -> Result<bool> {
        Ok(self.db.maintain(bytes_max)?.more)
    }

    /// Sizes and counts now.
    pub fn statistics(&self) -> Statistics {
        let DbStats { engine, gc, .. } = self.db.stats();
        Statistics {
            space_amp: engine.space_amp(),
            written_bytes: engine.written_bytes,
            disk_bytes: engine.disk_bytes,
            live_bytes: engine.live_bytes,
            memory_bytes: engine.memory_bytes,
            phase: format!("{:?}", gc.phase).to_lowercase(),
        }
    }

    /// Ends cleanly; tells what failed on the way out.
    pub fn close(self) -> Result<()> {
        self.db.close()
    }
}

/// Fails with the engine's error for a value that is too long.
pub fn check_value_bytes(bytes: u64) -> Result<()> {
    if bytes <= VALUE_BYTES_MAX as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("value of {bytes} bytes; the limit is {VALUE_BYTES_MAX}")))
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
