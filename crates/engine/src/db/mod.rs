//! The embedded interface: the store as a key-value engine in one process.

mod batch;
mod commit;
mod completion_queue;
mod iter;
mod modify;
mod read_queue;
mod workers;

pub use batch::Batch;
pub use commit::Completion;
pub use completion_queue::{
    Answer, Completed, CompletionQueue, Notify, QueueOptions, QueueStats, QueuedStore,
};
pub use iter::{DbIter, Group};
pub use modify::{StoreMode, Stored};
pub(crate) use workers::each_on_a_thread;

use crate::options::Options;
use crate::store::{Opened, RepairStats, Replay, Shared, Store, VerifyEvent, VerifyReport, View};
use bytes::Bytes;
use commit::CommitPipeline;
use read_queue::Reader;
use std::path::Path;
use std::sync::Arc;
use stele_gc::GcStats;
use stele_index::Found;
use stele_log::LogStats;
use stele_storage::{EngineStats, EngineView, Maintained, Order, Pair, ScanOptions, StateMachine};
use stele_types::{
    Clock, CommandBuilder, KeyRange, Result, ValueRef, checksum, command, is_expired,
};
use stele_vfs::{DirLock, RealVfs, SystemClock, Vfs};
use workers::{Signal, Workers, stop_on_panic};

/// An open store. Threads share it by reference. Dropping it is safe at any time, but only
/// [`Db::close`] reports failures.
#[derive(Debug)]
pub struct Db {
    // Declared first and thus dropped first: the threads end before the fields they use.
    workers: Option<Workers>,
    pipeline: Arc<CommitPipeline>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    reader: Reader,
    opened: Opened,
}

/// Statistics of an open store.
#[derive(Clone, Debug)]
pub struct DbStats {
    /// Bytes requested, written, on the device and in memory.
    pub engine: EngineStats,
    /// Garbage collection, by stage.
    pub gc: GcStats,
    /// Statistics of the log.
    pub log: LogStats,
    /// Hits and misses of the value cache.
    pub value_cache_hits: (u64, u64),
    /// Values that cannot be read; nothing repairs them in a store without replicas.
    pub repair: RepairStats,
}

impl Db {
    /// Opens the store in `dir` on this machine's files; creates it if there is none. Fails with
    /// `WrongStore` for a shard of a set: [`Shards`](crate::Shards) opens all of them.
    pub fn open(dir: &Path, options: Options) -> Result<Self> {
        Self::open_with(Arc::new(RealVfs::new()), Arc::new(SystemClock::new()), dir, options)
    }

    /// Does the same as [`Db::open`] on the given files and clock.
    pub fn open_with(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        dir: &Path,
        options: Options,
    ) -> Result<Self> {
        options.validate()?;
        let lock = crate::store::lock_alone(&vfs, dir)?;
        Self::open_locked(vfs, clock, dir, lock, options)
    }

    /// Does the same as [`Db::open_with`] in a directory of which the caller holds the lock.
    pub(crate) fn open_locked(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        dir: &Path,
        lock: Box<dyn DirLock>,
        options: Options,
    ) -> Result<Self> {
        let (background, queue_bytes_max) = (options.background, options.queue_bytes_max);
        // There is one replica: durable means committed.
        let (store, opened) =
            Store::open_locked(vfs, clock.clone(), dir, lock, options, Replay::All)?;
        let store = Arc::new(store);
        let unattended = Arc::new(Signal::default());
        let pipeline = CommitPipeline::new(store.clone(), queue_bytes_max, unattended.clone());
        let reader = Reader::new(store.clone(), clock.clone());
        let workers = match background {
            true => Some(Workers::start(&store, &pipeline, &reader, unattended, clock.clone())?),
            false => None,
        };
        Ok(Self { workers, pipeline, store, clock, reader, opened })
    }

    /// Returns what opening found and did.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Sets `key`; durable and visible on return.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.submit_put(key, value, 0)?.wait()
    }

    /// Sets `key` for `ttl_s` seconds; 0 sets it permanently.
    pub fn put_ttl(&self, key: &[u8], value: &[u8], ttl_s: u64) -> Result<()> {
        self.submit_put(key, value, self.expiry(ttl_s))?.wait()
    }

    /// Removes `key`.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.submit_delete(key)?.wait()
    }

    /// Removes every key in [start, end); an empty `end` means no bound.
    pub fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<()> {
        command::check_user_key(start)?;
        command::check_user_key(end)?;
        let bytes = start.len() + end.len();
        self.submit(bytes, |builder| builder.delete_range(start, end).map(|_| ()))?.wait()
    }

    /// Applies a batch atomically, also across a crash.
    pub fn write(&self, batch: Batch) -> Result<()> {
        self.submit_batch(batch)?.wait()
    }

    /// Does the same as [`Db::put`] without waiting.
    pub fn put_async(&self, key: &[u8], value: &[u8]) -> Result<Completion> {
        let completion = self.submit_put(key, value, 0);
        self.commit_soon();
        completion
    }

    /// Does the same as [`Db::delete`] without waiting.
    pub fn delete_async(&self, key: &[u8]) -> Result<Completion> {
        let completion = self.submit_delete(key);
        self.commit_soon();
        completion
    }

    /// Does the same as [`Db::write`] without waiting.
    pub fn write_async(&self, batch: Batch) -> Result<Completion> {
        let completion = self.submit_batch(batch);
        self.commit_soon();
        completion
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.get_with_ttl(key)?.map(|(value, _)| value))
    }

    /// Returns the value of `key` and its remaining time to live in seconds; `None` for no limit.
    pub fn get_with_ttl(&self, key: &[u8]) -> Result<Option<(Bytes, Option<u64>)>> {
        command::check_user_key(key)?;
        let Some((value, expires_at_s)) = self.find(key)? else { return Ok(None) };
        let ttl_s =
            (expires_at_s != 0).then(|| expires_at_s.saturating_sub(self.clock.unix_seconds()));
        Ok(Some((value, ttl_s)))
    }

    /// Returns for each of `keys` whether it exists. Reads no value.
    pub fn exist(&self, keys: &[&[u8]]) -> Result<Vec<bool>> {
        let view = View::new(self.store.shared());
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            command::check_user_key(key)?;
            let reference = view.reference(key)?;
            found.push(reference.is_some_and(|(_, expires_at_s)| self.is_live(expires_at_s)));
        }
        Ok(found)
    }

    /// Returns pairs of one point in time, up to the limits of `options`.
    pub fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let iter = self.iter_with(options.range.clone(), options.order, options.keys_only)?;
        take_up_to(options, iter.expect(options.limit, options.bytes_max))
    }

    /// Iterates over all pairs of `range` at this point in time.
    pub fn iter(&self, range: KeyRange, order: Order) -> Result<DbIter> {
        self.iter_with(range, order, false)
    }

    /// Does the same as [`Db::iter`] with empty values; reads no value.
    pub fn iter_keys(&self, range: KeyRange, order: Order) -> Result<DbIter> {
        self.iter_with(range, order, true)
    }

    /// Returns the keys of a group (KV-SSD: list), in order, at most `limit`.
    pub fn list_group(&self, group: Group, limit: usize) -> Result<Vec<Bytes>> {
        self.iter_group(group, true)?.map(|pair| pair.map(|p| p.key)).take(limit).collect()
    }

    /// Iterates over the pairs of a group in order (KV-SSD: iterate).
    pub fn iterate_group(&self, group: Group) -> Result<impl Iterator<Item = Result<Pair>>> {
        self.iter_group(group, false)
    }

    /// Removes the keys that a group holds now (KV-SSD: delete group); returns how many. Each slice
    /// of keys is removed atomically; a crash between two slices leaves the others.
    pub fn delete_group(&self, group: Group) -> Result<u64> {
        const SLICE_OPS: usize = 1024;
        let mut deleted = 0;
        let mut batch = Batch::new();
        for pair in self.iter_group(group, true)? {
            batch.delete(&pair?.key)?;
            deleted += 1;
            if batch.len() >= SLICE_OPS {
                self.write(std::mem::take(&mut batch))?;
            }
        }
        if !batch.is_empty() {
            self.write(batch)?;
        }
        Ok(deleted)
    }

    /// Flushes memory to runs, so that the next open replays nothing.
    pub fn flush(&self) -> Result<()> {
        self.pipeline.drain();
        self.run("a flush", Store::flush)
    }

    /// Merges, sorts and collects garbage until nothing is left to gain.
    pub fn compact(&self) -> Result<()> {
        self.pipeline.drain();
        self.run("a compaction", Store::compact)
    }

    /// Does about `bytes_max` bytes of garbage collection. Only needed without background threads.
    pub fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        self.run("maintenance", |store| store.maintain(bytes_max))
    }

    /// Returns the statistics.
    pub fn stats(&self) -> DbStats {
        DbStats {
            engine: self.store.stats(),
            gc: self.store.gc_stats(),
            log: self.store.log_stats(),
            value_cache_hits: self.store.value_cache_hits(),
            repair: self.store.repair_stats(),
        }
    }

    /// Returns the device of the store: its size, and how much of it is used. Measures the store's
    /// directory.
    pub fn device(&self) -> Result<Device> {
        Device::of(&self.store)
    }

    /// Checks every checksum, and the index against the log. Passes damage to `report` and
    /// continues.
    pub fn verify(&self, report: &mut dyn FnMut(VerifyEvent)) -> Result<VerifyReport> {
        self.pipeline.drain();
        self.store.verify(report)
    }

    /// Commits what is queued and closes the store cleanly.
    pub fn close(mut self) -> Result<()> {
        self.pipeline.drain();
        drop(self.workers.take());
        self.store.close()
    }

    /// Returns the underlying store, for callers that need positions or force single jobs.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    fn submit_put(&self, key: &[u8], value: &[u8], expires_at_s: u64) -> Result<Completion> {
        command::check_user_pair(key, value)?;
        let crc = checksum::crc32c(value);
        self.submit(key.len() + value.len(), |builder| {
            builder.put_with_crc(key, value, crc, expires_at_s).map(|_| ())
        })
    }

    fn submit_delete(&self, key: &[u8]) -> Result<Completion> {
        command::check_user_key(key)?;
        self.submit(key.len(), |builder| builder.delete(key).map(|_| ()))
    }

    fn submit_batch(&self, batch: Batch) -> Result<Completion> {
        let bytes = batch.bytes();
        self.submit(bytes, |group| batch.join(group))
    }

    fn submit(
        &self,
        bytes: usize,
        add: impl FnOnce(&mut CommandBuilder) -> Result<()>,
    ) -> Result<Completion> {
        self.pipeline.submit(bytes, add)
    }

    fn run<T>(&self, name: &str, work: impl FnOnce(&Store) -> Result<T>) -> Result<T> {
        stop_on_panic(&self.store, name, || work(&self.store)).flatten()
    }

    fn commit_soon(&self) {
        if let Some(workers) = &self.workers {
            workers.commit_soon();
        }
    }

    fn expiry(&self, ttl_s: u64) -> u64 {
        if ttl_s == 0 { 0 } else { self.clock.unix_seconds().saturating_add(ttl_s) }
    }

    fn is_live(&self, expires_at_s: u64) -> bool {
        is_live(&*self.clock, expires_at_s)
    }

    fn find(&self, key: &[u8]) -> Result<Option<(Bytes, u64)>> {
        let is_live = |expires_at_s| self.is_live(expires_at_s);
        let found = lookup(self.store.shared(), key, is_live, None)?;
        Ok(found.map(|pair| (pair.value, pair.expires_at_s)))
    }

    pub(crate) fn iter_with(
        &self,
        range: KeyRange,
        order: Order,
        keys_only: bool,
    ) -> Result<DbIter> {
        let readahead = self.workers.as_ref().map(|workers| workers.reads().clone());
        DbIter::new(&self.store, readahead, range, order, keys_only, self.clock.unix_seconds())
    }

    fn iter_group(
        &self,
        group: Group,
        keys_only: bool,
    ) -> Result<impl Iterator<Item = Result<Pair>>> {
        Ok(group.filter(self.iter_with(group.range(), Order::Forward, keys_only)?))
    }
}

fn is_live(clock: &dyn Clock, expires_at_s: u64) -> bool {
    // bug engine.expired_served: `!is_expired(expires_at_s, clock.unix_seconds())` is `true`
    !is_expired(expires_at_s, clock.unix_seconds())
}

pub(crate) fn take_up_to(
    options: &ScanOptions,
    iter: impl Iterator<Item = Result<Pair>>,
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::with_capacity(options.limit.min(1024));
    let mut bytes = 0;
    for pair in iter.take(options.limit) {
        let pair = pair?;
        bytes += pair.key.len() + pair.value.len();
        if bytes > options.bytes_max && !pairs.is_empty() {
            break;
        }
        pairs.push(pair);
        if bytes >= options.bytes_max {
            break;
        }
    }
    Ok(pairs)
}

/// Consistent views through the trait; [`Db::iter`] does the same with growing slices.
impl Db {
    /// Returns a view of one point in time, for several reads that must be consistent.
    pub fn view(&self) -> Result<impl EngineView + use<>> {
        self.store.view()
    }
}

#[derive(Clone, Debug)]
struct Located {
    pub value: Bytes,
    pub expires_at_s: u64,
    pub at: ValueRef,
}

/// Finds a pair without pinning its file: garbage collection may move or drop the value between the
/// lookup and the read. Then the key has a new location, and the lookup is repeated. Reads no value
/// of a pair with an expiry that is not `is_live`, and none at the location of `known`.
fn lookup(
    shared: &Shared,
    key: &[u8],
    is_live: impl Fn(u64) -> bool,
    known: Option<&Located>,
) -> Result<Option<Located>> {
    let mut failed: Option<ValueRef> = None;
    loop {
        let (at, expires_at_s) = match shared.index.get(key)? {
            Some(Found::Value { value, expires_at_s }) if is_live(expires_at_s) => {
                (value, expires_at_s)
            }
            _ => return Ok(None),
        };
        let known = known.filter(|known| known.at == at);
        let read = match (known, &at) {
            (Some(known), _) => Ok(known.value.clone()),
            (None, ValueRef::Inline(bytes)) => Ok(bytes.clone()),
            (None, ValueRef::At(locator)) => shared.value(locator),
        };
        match read {
            Ok(value) => return Ok(Some(Located { value, expires_at_s, at })),
            Err(error) if failed.as_ref() == Some(&at) => {
                if let ValueRef::At(locator) = &at {
                    shared.lost_values.note(key, locator, &error);
                }
                return Err(error);
            }
            Err(_) => failed = Some(at),
        }
    }
}

/// Does the same as [`lookup`] with an empty value; reads no value.
fn lookup_key(
    shared: &Shared,
    key: &[u8],
    is_live: impl Fn(u64) -> bool,
) -> Result<Option<Located>> {
    Ok(match shared.index.get(key)? {
        Some(Found::Value { value: at, expires_at_s }) if is_live(expires_at_s) => {
            Some(Located { value: Bytes::new(), expires_at_s, at })
        }
        _ => None,
    })
}

/// Device of a store, as its file system reports it. The device may have other users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Number of the device (`st_dev`). Stores on one file system have the same number.
    pub number: u64,
    /// Size of the device in bytes.
    pub capacity_bytes: u64,
    /// Bytes that are free, for all users.
    pub free_bytes: u64,
    /// Bytes that the store takes.
    pub store_bytes: u64,
}

impl Device {
    fn of(store: &Store) -> Result<Self> {
        let shared = store.shared();
        Ok(Self {
            number: shared.vfs.device_number(&shared.dir)?,
            capacity_bytes: shared.vfs.total_bytes(&shared.dir)?,
            free_bytes: shared.vfs.free_bytes(&shared.dir)?,
            store_bytes: crate::store::count_disk_bytes(shared)?,
        })
    }

    /// Returns the bytes in use, by all users.
    pub fn used_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.free_bytes)
    }

    /// Returns the part of the device that is in use, from 0 to 1; 0 for a device without a size.
    pub fn utilisation(&self) -> f64 {
        match self.capacity_bytes {
            0 => 0.0,
            capacity => self.used_bytes() as f64 / capacity as f64,
        }
    }
}
