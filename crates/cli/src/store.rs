//! An embedded store behind the commands that write. Commands that read open directories with `reader`.

use bytes::Bytes;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stele_client::KeyWrite;
use stele_engine::{
    Batch, Completion, Db, DbStats, EngineStats, GcOptions, Modification, Modified, NewPair,
    Options, Phase, PolicyKind, VerifyEvent, VerifyReport,
};
use stele_types::command::Unfit;
use stele_types::{Error, KeyRange, Result};
use stele_vfs::{RealVfs, SystemClock, Vfs};

pub(crate) use stele_engine::{Order, Pair};

/// Entries that make a directory a store, or part of a damaged one.
const PARTS: [&str; 3] = ["STORE", "log", "index"];

/// Unit of `st_blocks` on every system that has it.
pub(crate) const STAT_BLOCK_BYTES: u64 = 512;

/// Limit for the memory of what opening changes in a copy of a directory: usually below the size of a
/// few memtables.
pub(crate) const CHANGES_BYTES_MAX: u64 = 1 << 30;

/// Bytes at which a batch of writes ends.
const BATCH_BYTES: usize = 4 << 20;

/// Settings that a command may change; `None` keeps the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tuning {
    pub policy: PolicyKind,
    /// Runs maintenance on threads while the command works.
    pub background: bool,
    /// Disables repair at open, so that damage is reported.
    pub without_repair: bool,
    pub segment_bytes_max: Option<u64>,
    pub memtable_bytes_max: Option<u64>,
    pub value_cache_bytes_max: Option<u64>,
}

impl Tuning {
    pub(crate) fn options(&self) -> Options {
        let mut options = Options {
            background: self.background,
            rebuild: !self.without_repair,
            gc: GcOptions { policy: self.policy, ..GcOptions::default() },
            ..Options::default()
        };
        if let Some(bytes) = self.segment_bytes_max {
            options.segment_bytes_max = bytes;
        }
        if let Some(bytes) = self.memtable_bytes_max {
            options.memtable_bytes_max = to_usize(bytes);
        }
        if let Some(bytes) = self.value_cache_bytes_max {
            options.value_cache_bytes_max = to_usize(bytes);
        }
        options
    }
}

pub(crate) struct Store {
    db: Db,
}

pub(crate) struct Pending(Completion);

impl Pending {
    pub(crate) fn wait(self) -> Result<()> {
        self.0.wait()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Statistics {
    /// Bytes written to files since open, by cause.
    pub written_bytes: Vec<(&'static str, u64)>,
    pub disk_bytes: u64,
    pub live_bytes_estimate: u64,
    pub memory_bytes: u64,
    /// Bytes of it in filters, fences and footers of the index.
    pub index_memory_bytes: u64,
    /// Reads of filters and fences that were not in memory, since open.
    pub index_cold_reads: u64,
    pub space_amp: f64,
    pub phase: String,
}

impl Statistics {
    pub(crate) fn of(engine: EngineStats, phase: Phase) -> Self {
        Self {
            space_amp: engine.space_amp(),
            written_bytes: engine.written_bytes,
            disk_bytes: engine.disk_bytes,
            live_bytes_estimate: engine.live_bytes_estimate,
            memory_bytes: engine.memory_bytes,
            index_memory_bytes: engine.index_memory_bytes,
            index_cold_reads: engine.index_cold_reads,
            phase: format!("{phase:?}").to_lowercase(),
        }
    }
}

/// Bytes on the device below a directory, as `du` counts them: files and directories.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskBytes {
    /// Bytes of everything else.
    pub used_bytes: u64,
    /// Bytes that a store only holds in reserve.
    pub held_bytes: u64,
}

impl DiskBytes {
    pub(crate) fn of(dir: &Path) -> Result<Self> {
        let failed = |source| Error::io("list", dir, source);
        let blocks = |meta: &std::fs::Metadata| meta.blocks() * STAT_BLOCK_BYTES;
        let used_bytes = blocks(&std::fs::symlink_metadata(dir).map_err(failed)?);
        let mut total = Self { used_bytes, held_bytes: 0 };
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let meta = entry.metadata().map_err(failed)?;
            if meta.is_dir() {
                let below = Self::of(&entry.path())?;
                total.used_bytes += below.used_bytes;
                total.held_bytes += below.held_bytes;
            } else if entry.file_name() == stele_engine::RESERVE_FILE {
                total.held_bytes += blocks(&meta);
            } else {
                total.used_bytes += blocks(&meta);
            }
        }
        Ok(total)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Verified {
    pub keys: u64,
    /// Bytes of keys and values, as read.
    pub live_bytes: u64,
    pub live_bytes_estimate: u64,
    pub reported_bytes: u64,
    pub checked_bytes: u64,
}

impl Store {
    pub(crate) fn open(dir: &Path, tuning: &Tuning) -> Result<Self> {
        Self::check_exists(dir)?;
        Self::open_or_create(dir, tuning)
    }

    pub(crate) fn open_or_create(dir: &Path, tuning: &Tuning) -> Result<Self> {
        Self::open_on(Arc::new(RealVfs::new()), dir, tuning)
    }

    /// Does the same as [`Store::open_or_create`] on the given files.
    pub(crate) fn open_on(vfs: Arc<dyn Vfs>, dir: &Path, tuning: &Tuning) -> Result<Self> {
        let clock = Arc::new(SystemClock::new());
        Ok(Self { db: Db::open_with(vfs, clock, dir, tuning.options())? })
    }

    /// Fails for a directory without a store. One that lacks only its identity is not empty: the
    /// engine reports what is missing.
    pub(crate) fn check_exists(dir: &Path) -> Result<()> {
        if PARTS.iter().any(|part| dir.join(part).exists()) {
            return Ok(());
        }
        let detail =
            if dir.is_dir() { "the directory holds no store" } else { "no such directory" };
        Err(Error::Missing {
            path: dir.to_path_buf(),
            detail: format!("{detail}; create one with `stele put` or `stele import`"),
        })
    }

    /// Returns the value, and whether the pair has a time to live.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<(Bytes, bool)>> {
        let found = self.db.get_with_ttl(key)?;
        Ok(found.map(|(value, ttl_s)| (value, ttl_s.is_some())))
    }

    /// Sets a key. The pair expires after `ttl_s` seconds, if given.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], ttl_s: Option<u64>) -> Result<()> {
        match ttl_s {
            Some(ttl_s) => self.db.put_ttl(key, value, ttl_s),
            None => self.db.put(key, value),
        }
    }

    /// Submits a put without waiting; [`Pending::wait`] returns when it is durable. The pair expires at
    /// this Unix time in seconds; 0 never.
    pub(crate) fn put_later(&self, key: &[u8], value: &[u8], expires_at_s: u64) -> Result<Pending> {
        if expires_at_s == 0 {
            return self.db.put_async(key, value).map(Pending);
        }
        let mut batch = Batch::new();
        batch.put_until(key, value, expires_at_s)?;
        self.db.write_async(batch).map(Pending)
    }

    /// Sets and deletes keys, each at most once; returns when all are durable.
    pub(crate) fn write_all(&self, writes: &[KeyWrite]) -> Result<()> {
        let (mut batch, mut pending) = (Batch::new(), Vec::new());
        for write in writes {
            match &write.put {
                Some((value, 0)) => batch.put(&write.key, value)?,
                Some((value, at_s)) => batch.put_until(&write.key, value, *at_s)?,
                None => batch.delete(&write.key)?,
            };
            if batch.bytes() >= BATCH_BYTES {
                pending.push(self.db.write_async(std::mem::take(&mut batch))?);
            }
        }
        if !batch.is_empty() {
            pending.push(self.db.write_async(batch)?);
        }
        pending.into_iter().try_for_each(Completion::wait)
    }

    pub(crate) fn put_all<'a>(
        &self,
        pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in pairs {
            batch.put(key, value)?;
        }
        self.db.write(batch)
    }

    /// Sets a key if it has no value. Returns whether it was set.
    pub(crate) fn put_if_absent(
        &self,
        key: &[u8],
        value: &[u8],
        ttl_s: Option<u64>,
    ) -> Result<bool> {
        let new = new_pair(value, ttl_s);
        self.is_changed(key, Modification::Compare { expected: None, new })
    }

    /// Sets a key if it has a value. Returns whether it was set.
    pub(crate) fn put_if_present(
        &self,
        key: &[u8],
        value: &[u8],
        ttl_s: Option<u64>,
    ) -> Result<bool> {
        self.is_changed(key, Modification::Replace { new: new_pair(value, ttl_s) })
    }

    pub(crate) fn exist(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        self.db.exist(&keys)
    }

    /// Adds to the number of a key. Returns the sum.
    pub(crate) fn increment(&self, key: &[u8], by: i64) -> Result<i64> {
        let sum = self.computed(key, Modification::Increment { by })?;
        let sum = std::str::from_utf8(&sum).ok().and_then(|sum| sum.parse().ok());
        sum.ok_or_else(|| Unfit::NotANumber.error())
    }

    /// Appends to the value of a key. Returns its length in bytes.
    pub(crate) fn append(&self, key: &[u8], bytes: &[u8]) -> Result<u64> {
        let bytes = Bytes::copy_from_slice(bytes);
        Ok(self.computed(key, Modification::Append { bytes })?.len() as u64)
    }

    /// Deletes a key. Returns the value that it had.
    pub(crate) fn get_and_delete(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.db.retrieve_and_delete(key)
    }

    fn is_changed(&self, key: &[u8], change: Modification) -> Result<bool> {
        Ok(matches!(self.db.modify(key, change)?, Modified::Replaced { .. }))
    }

    fn computed(&self, key: &[u8], change: Modification) -> Result<Bytes> {
        match self.db.modify(key, change)? {
            Modified::Updated { value } => Ok(value),
            Modified::Unfit(unfit) => Err(unfit.error()),
            Modified::Replaced { .. } | Modified::Unchanged { .. } | Modified::Answered { .. } => {
                Ok(Bytes::new())
            }
        }
    }

    pub(crate) fn delete(&self, key: &[u8]) -> Result<()> {
        self.db.delete(key)
    }

    pub(crate) fn delete_range(&self, range: &KeyRange) -> Result<()> {
        if range.is_empty() { Ok(()) } else { self.db.delete_range(&range.start, &range.end) }
    }

    pub(crate) fn pairs(
        &self,
        range: KeyRange,
        order: Order,
        keys_only: bool,
    ) -> Result<impl Iterator<Item = Result<Pair>>> {
        if keys_only { self.db.iter_keys(range, order) } else { self.db.iter(range, order) }
    }

    /// Reads at most `limit` pairs from `start` on; returns their number and bytes.
    pub(crate) fn scan_from(&self, start: &[u8], limit: usize) -> Result<(u64, u64)> {
        let range = KeyRange::new(start.to_vec(), Vec::new());
        let found = self.db.scan(&stele_engine::ScanOptions::new(range, limit))?;
        let bytes = found.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
        Ok((found.len() as u64, bytes as u64))
    }

    /// Verifies the whole store. Reports damage to `damage` as (file, description) and checked
    /// bytes to `checked`.
    pub(crate) fn verify(
        &self,
        damage: &mut dyn FnMut(PathBuf, String),
        checked: &dyn Fn(u64),
    ) -> Result<Verified> {
        verify_with(damage, checked, |sink| self.db.verify(sink))
    }

    /// Merges runs, sorts values and collects garbage until nothing more can be reclaimed.
    pub(crate) fn compact(&self) -> Result<()> {
        self.db.compact()
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.db.flush()
    }

    /// Does about `bytes_max` bytes of background work; returns whether more is pending.
    pub(crate) fn maintain(&self, bytes_max: u64) -> Result<bool> {
        Ok(self.db.maintain(bytes_max)?.more)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let DbStats { engine, gc, .. } = self.db.stats();
        Statistics::of(engine, gc.phase)
    }

    /// Closes the store and returns the error of a failed shutdown.
    pub(crate) fn close(self) -> Result<()> {
        self.db.close()
    }
}

/// Runs a verification of an engine with the callbacks of [`Store::verify`].
pub(crate) fn verify_with(
    damage: &mut dyn FnMut(PathBuf, String),
    checked: &dyn Fn(u64),
    run: impl FnOnce(&mut dyn FnMut(VerifyEvent)) -> Result<VerifyReport>,
) -> Result<Verified> {
    let report = run(&mut |event| match event {
        VerifyEvent::Checked(bytes) => checked(bytes),
        VerifyEvent::Damage { path, detail } => damage(path, detail),
    })?;
    Ok(Verified {
        keys: report.keys,
        live_bytes: report.live_bytes,
        live_bytes_estimate: report.live_bytes_estimate,
        reported_bytes: report.disk_bytes,
        checked_bytes: report.checked_bytes,
    })
}

fn new_pair(value: &[u8], ttl_s: Option<u64>) -> NewPair {
    let expires_at_s = ttl_s.map_or(0, |ttl_s| unix_seconds().saturating_add(ttl_s));
    NewPair::Put { value: Bytes::copy_from_slice(value), expires_at_s }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
