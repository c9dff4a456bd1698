//! Settings of one store. All have defaults; sizes are in bytes. On a small device some defaults
//! shrink, see [`Options::within_device`].

use std::sync::Arc;
use stele_gc::GcOptions;
use stele_index::IndexOptions;
use stele_log::LogOptions;
use stele_types::size::INLINE_VALUE_BYTES_MAX;
use stele_types::{Error, Result, StoreId};
use stele_vfs::{DeviceTimer, HandlePool};

/// Parts of the device that default sizes take at most.
const PART_OF_DEVICE: u64 = 32;
const RESERVE_OF_DEVICE: u64 = 16;
const REPLAY_OF_DEVICE: u64 = 4;
/// Size to which a default shrinks at most.
const LEAST_BYTES: u64 = 256 << 10;

/// Settings of one store. [`Options::validate`] checks them when it opens.
#[derive(Clone, Debug)]
pub struct Options {
    /// Identity that a new directory gets and an existing one must have. `None`: a random one for a
    /// new directory, any for an existing one.
    pub store: Option<StoreId>,
    /// Size at which a log segment is sealed. 64 KiB to 2 GiB, default 128 MiB.
    pub segment_bytes_max: u64,
    /// Freed segments kept for reuse: blocks written before need no metadata commit. Default 4.
    pub recycle_segments_max: usize,
    /// Bytes of log segments that stay for readers of regions' logs ([`stele_log::Log::pin`]), unless the
    /// store is short of space. Default 0.
    pub history_bytes_max: u64,
    /// Write the log past the page cache. Default on; off where the file system refuses it, or writes
    /// through the page cache all the same (btrfs, tmpfs).
    pub direct_io: bool,
    /// Memory for recent entries, for followers and slow appliers. Default 0 in the embedded store.
    pub entry_cache_bytes_max: usize,
    /// Memory for values, found by locator. Default 64 MiB.
    pub value_cache_bytes_max: usize,
    /// Longest value kept in the index. At most 64.
    pub inline_value_bytes_max: usize,
    /// Size at which the memtable is frozen and flushed. Default 64 MiB.
    pub memtable_bytes_max: usize,
    /// Memory for blocks of runs. Default 64 MiB.
    pub block_cache_bytes_max: usize,
    /// Memory for filters and fences of runs: about 1.65 bytes per key. Beyond it, a get reads them
    /// from the device, by page and through the memory for blocks. 0: all are read. Default 64 MiB.
    pub index_memory_bytes_max: usize,
    /// Size at which a merge starts a new run file. Default 64 MiB.
    pub run_bytes_max: u64,
    /// Log bytes after which a checkpoint is made even if the memtable is small; bounds the replay
    /// after a crash. Default 4 GiB.
    pub checkpoint_log_bytes_max: u64,
    /// Limit for the bytes of requests that wait for the log; above it callers wait. Default 64
    /// MiB.
    pub queue_bytes_max: usize,
    /// Device bytes kept for garbage collection and deletes; puts that need them are refused. Kept by
    /// a file of allocated blocks where the file system has them. More is kept while one merge has
    /// to rewrite more. 0: none. Default 256 MiB, reached by a store of 189 MiB: a store keeps 4 MiB
    /// and four thirds of its data until then. Another size is kept from the start.
    pub reserved_bytes: u64,
    /// Approximate bytes per second that the background scrub reads; 0 disables scrubbing. Default
    /// 0: without replicas damage cannot be repaired, and `verify` finds it too.
    pub scrub_bytes_per_second_max: u64,
    /// Least seconds from the start of one scrub pass to the start of the next. Default a day.
    pub scrub_interval_s: u64,
    /// Run maintenance and completions on threads of the store. Off: the caller drives `maintain`.
    pub background: bool,
    /// Rebuild a lost or damaged index from the log at open, when that loses nothing. Default on.
    pub rebuild: bool,
    /// Garbage collection.
    pub gc: GcOptions,
    /// Handles of value files that are open for reading. Stores of one process may share a pool. Default:
    /// a pool of its own.
    pub handles: Arc<HandlePool>,
    /// Measures the store's device. Default: by the clock that the store opens with.
    pub timer: Option<DeviceTimer>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            store: None,
            segment_bytes_max: 128 << 20,
            recycle_segments_max: 4,
            history_bytes_max: 0,
            direct_io: true,
            entry_cache_bytes_max: 0,
            value_cache_bytes_max: 64 << 20,
            inline_value_bytes_max: INLINE_VALUE_BYTES_MAX,
            memtable_bytes_max: 64 << 20,
            block_cache_bytes_max: 64 << 20,
            index_memory_bytes_max: 64 << 20,
            run_bytes_max: 64 << 20,
            checkpoint_log_bytes_max: 4 << 30,
            queue_bytes_max: 64 << 20,
            reserved_bytes: 256 << 20,
            scrub_bytes_per_second_max: 0,
            scrub_interval_s: 24 * 60 * 60,
            background: true,
            rebuild: true,
            gc: GcOptions::default(),
            handles: Arc::default(),
            timer: None,
        }
    }
}

impl Options {
    /// Fails with [`Error::Invalid`] naming the first setting out of bounds.
    pub fn validate(&self) -> Result<()> {
        let within = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(format!("{name} is {value}; allowed are {low} to {high}")))
        };
        within("segment_bytes_max", self.segment_bytes_max, 64 << 10, 2 << 30)?;
        within("recycle_segments_max", self.recycle_segments_max as u64, 0, 1024)?;
        within("history_bytes_max", self.history_bytes_max, 0, 1 << 44)?;
        let inline_max = INLINE_VALUE_BYTES_MAX as u64;
        within("inline_value_bytes_max", self.inline_value_bytes_max as u64, 0, inline_max)?;
        within("memtable_bytes_max", self.memtable_bytes_max as u64, 4 << 10, 4 << 30)?;
        within("run_bytes_max", self.run_bytes_max, 4 << 10, 4 << 30)?;
        within("checkpoint_log_bytes_max", self.checkpoint_log_bytes_max, 64 << 10, 1 << 40)?;
        within("queue_bytes_max", self.queue_bytes_max as u64, 64 << 10, 1 << 30)
    }

    /// Returns the settings for a device of this size: defaults are bounds that shrink on a small
    /// device, and explicit sizes, which differ from the defaults, stay.
    ///
    /// A segment, a value file, a run and a memtable take at most a 32nd of the device each, the
    /// reserve a 16th, and the log to replay a quarter.
    pub(crate) fn within_device(mut self, device_bytes: u64) -> Self {
        let default = Self::default();
        let bound = |size: u64, default: u64, part: u64, least: u64| match size == default {
            true => size.min((device_bytes / part).max(least)),
            false => size,
        };
        self.segment_bytes_max =
            bound(self.segment_bytes_max, default.segment_bytes_max, PART_OF_DEVICE, LEAST_BYTES);
        self.run_bytes_max =
            bound(self.run_bytes_max, default.run_bytes_max, PART_OF_DEVICE, LEAST_BYTES);
        self.memtable_bytes_max = bound(
            self.memtable_bytes_max as u64,
            default.memtable_bytes_max as u64,
            PART_OF_DEVICE,
            LEAST_BYTES,
        ) as usize;
        self.gc.value_file_bytes_max = bound(
            self.gc.value_file_bytes_max,
            default.gc.value_file_bytes_max,
            PART_OF_DEVICE,
            LEAST_BYTES,
        );
        self.reserved_bytes =
            bound(self.reserved_bytes, default.reserved_bytes, RESERVE_OF_DEVICE, LEAST_BYTES);
        self.checkpoint_log_bytes_max = bound(
            self.checkpoint_log_bytes_max,
            default.checkpoint_log_bytes_max,
            REPLAY_OF_DEVICE,
            LEAST_BYTES,
        );
        self
    }

    pub(crate) fn log(&self, store: StoreId) -> LogOptions {
        LogOptions {
            store,
            segment_bytes_max: self.segment_bytes_max,
            recycle_segments_max: self.recycle_segments_max,
            history_bytes_max: self.history_bytes_max,
            direct: self.direct_io,
            entry_cache_bytes_max: self.entry_cache_bytes_max,
            inline_value_bytes_max: self.inline_value_bytes_max,
            handles: self.handles.clone(),
            timer: self.timer.clone(),
        }
    }

    pub(crate) fn index(&self) -> IndexOptions {
        IndexOptions {
            memtable_bytes_max: self.memtable_bytes_max,
            block_cache_bytes_max: self.block_cache_bytes_max,
            index_memory_bytes_max: self.index_memory_bytes_max,
            run_bytes_max: self.run_bytes_max,
            timer: self.timer.clone(),
            ..IndexOptions::default()
        }
    }
}
