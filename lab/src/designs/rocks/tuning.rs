//! RocksDB options.

use super::key_values::Persistence;
use super::shipments::Shipments;
use std::sync::Arc;

/// Settings of an engine on RocksDB.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Design of the key-values.
    pub persistence: Persistence,
    /// Block cache of the key-values: as much memory as Stele's block and value caches together.
    pub block_cache_bytes: u64,
    /// Size at which a memtable of key-values is flushed.
    pub memtable_bytes: u64,
    /// Size of a table file; the first level with a size limit holds four.
    pub file_bytes: u64,
    /// Applied bytes after which key-values are persisted, so that the Raft log can be truncated.
    pub persist_after_bytes: u64,
    /// Threads for flushes and compactions of all databases of the process.
    pub background_jobs: u32,
    /// Shared state of the stores opened with these settings.
    pub shipments: Arc<Shipments>,
}

/// Options of both databases. Random values do not compress, and Stele has no compression. A
/// dropped store leaves the same state as a killed process.
const COMMON: &str = "create_if_missing=true;compression=kNoCompression;max_open_files=-1;\
     avoid_flush_during_shutdown=true;bytes_per_sync=1048576;keep_log_file_num=2;\
     stats_dump_period_sec=0;stats_persist_period_sec=0;level_compaction_dynamic_level_bytes=true;\
     max_write_buffer_number=5;max_subcompactions=2";

const RAFT_MEMTABLE_BYTES: u64 = 128 << 20;
const RAFT_CACHE_BYTES: u64 = 8 << 20;
/// Factor for RocksDB's own flush threshold: memtables with pointers must be flushed only by the
/// engine, after the values are synced.
const NEVER_BY_ITSELF: u64 = 16;

impl Settings {
    /// Returns the settings for measurements.
    pub fn new(persistence: Persistence) -> Self {
        Self {
            persistence,
            block_cache_bytes: 128 << 20,
            memtable_bytes: 64 << 20,
            file_bytes: 64 << 20,
            persist_after_bytes: 64 << 20,
            background_jobs: 12,
            shipments: Arc::default(),
        }
    }

    /// Returns the same settings for another group.
    #[must_use]
    pub fn of_a_new_group(&self) -> Self {
        Self { shipments: Arc::default(), ..self.clone() }
    }

    /// Returns the settings with memtables, files and caches in proportion to `bytes`.
    #[must_use]
    pub fn with_buffers(self, bytes: u64) -> Self {
        Self {
            block_cache_bytes: 2 * bytes,
            memtable_bytes: bytes,
            file_bytes: bytes,
            persist_after_bytes: bytes,
            ..self
        }
    }

    /// Returns settings for tests: a few dozen writes cause flushes and compactions.
    pub fn tiny(persistence: Persistence) -> Self {
        Self {
            block_cache_bytes: 1 << 20,
            memtable_bytes: 64 << 10,
            persist_after_bytes: 16 << 10,
            background_jobs: 4,
            ..Self::new(persistence)
        }
    }

    /// Returns the options of the Raft log: entries are read while in memory, and deleted soon.
    pub fn raft_options(&self) -> String {
        let memtable = RAFT_MEMTABLE_BYTES.min(4 * self.memtable_bytes);
        self.options(memtable, RAFT_CACHE_BYTES)
    }

    /// Returns the options of the key-values.
    pub fn pair_options(&self) -> String {
        let memtable = match self.persistence {
            Persistence::FlushesAndValueLog => self.persist_after_bytes * NEVER_BY_ITSELF,
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
