//! RocksDB's settings, in its own words.

use super::key_values::Persistence;
use super::shipments::Shipments;
use std::sync::Arc;

/// What an engine on RocksDB is opened with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which design it is.
    pub persistence: Persistence,
    /// Memory for blocks of key-values: as much as Stele's caches of blocks and values together.
    pub block_cache_bytes: u64,
    /// Size at which a memtable of key-values is flushed.
    pub memtable_bytes: u64,
    /// Size of a table file; the first level that is compacted by size holds four.
    pub file_bytes: u64,
    /// Bytes applied after which what is applied is kept, so that the Raft log can be truncated.
    pub keep_after_bytes: u64,
    /// Threads for flushes and compactions, of all databases of the process together.
    pub background_jobs: u32,
    /// What the stores share that are opened with these settings.
    pub shipments: Arc<Shipments>,
}

/// Settings that both databases share. Random values do not compress, and Stele compresses nothing.
/// A store that is dropped leaves what a killed process would.
const COMMON: &str = "create_if_missing=true;compression=kNoCompression;max_open_files=-1;\
     avoid_flush_during_shutdown=true;bytes_per_sync=1048576;keep_log_file_num=2;\
     stats_dump_period_sec=0;stats_persist_period_sec=0;level_compaction_dynamic_level_bytes=true;\
     max_write_buffer_number=5;max_subcompactions=2";

const RAFT_MEMTABLE_BYTES: u64 = 128 << 20;
const RAFT_CACHE_BYTES: u64 = 8 << 20;
/// Memtables with pointers are flushed by the engine alone: after the values are synced. RocksDB
/// itself would do it at this many times the bytes after which the engine does.
const NEVER_BY_ITSELF: u64 = 16;

impl Settings {
    /// For stores as they are measured.
    pub fn new(persistence: Persistence) -> Self {
        Self {
            persistence,
            block_cache_bytes: 128 << 20,
            memtable_bytes: 64 << 20,
            file_bytes: 64 << 20,
            keep_after_bytes: 64 << 20,
            background_jobs: 12,
            shipments: Arc::default(),
        }
    }

    /// The same for the stores of another group.
    #[must_use]
    pub fn of_a_new_group(&self) -> Self {
        Self { shipments: Arc::default(), ..self.clone() }
    }

    /// With memtables, files and caches in the same proportions to each other.
    #[must_use]
    pub fn with_buffers(self, bytes: u64) -> Self {
        Self {
            block_cache_bytes: 2 * bytes,
            memtable_bytes: bytes,
            file_bytes: bytes,
            keep_after_bytes: bytes,
            ..self
        }
    }

    /// For tests: a few dozen writes flush and compact.
    pub fn tiny(persistence: Persistence) -> Self {
        Self {
            block_cache_bytes: 1 << 20,
            memtable_bytes: 64 << 10,
            keep_after_bytes: 16 << 10,
            background_jobs: 4,
            ..Self::new(persistence)
        }
    }

    /// Of the Raft log: entries are read while they are in memory, and deleted soon.
    pub fn raft_options(&self) -> String {
        let memtable = RAFT_MEMTABLE_BYTES.min(4 * self.memtable_bytes);
        self.options(memtable, RAFT_CACHE_BYTES)
    }

    /// Of the key-values.
    pub fn pair_options(&self) -> String {
        let memtable = match self.persistence {
            Persistence::FlushesAndValueLog => self.keep_after_bytes * NEVER_BY_ITSELF,
            _ => self.memtable_bytes,
        };
        self.options(memtable, self.block_cache_bytes)
    }

    fn options(&self, memtable: u64, cache: u64) -> String {
        let (jobs, file, level) = (self.background_jobs, self.file_bytes, 4 * self.file_bytes);
        format!(
            "{COMMON};write_buffer_size={memtable};max_background_jobs={jobs};\
             target_file_size_base={file};max_bytes_for_level_base={level};\
             block_based_table_factory={{block_cache={cache};block_size=16384;\
             filter_policy=bloomfilter:10:false;cache_index_and_filter_blocks=false;\
             format_version=5}}"
        )
    }
}
