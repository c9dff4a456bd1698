//! Settings of the index. Sizes are in bytes.

use stele_types::{Error, Result};
use stele_vfs::DeviceTimer;

/// Half of what a memtable's arena can address: a batch may exceed the limit before the freeze.
const MEMTABLE_BYTES_MAX: usize = 16 << 30;

/// Settings of the index; each has a default.
#[derive(Clone, Debug)]
pub struct IndexOptions {
    /// Size at which the caller freezes the memtable. At most 16 GiB, default 64 MiB.
    pub memtable_bytes_max: usize,
    /// Size at which a key block of a run ends. Default 4 KiB.
    pub block_bytes: usize,
    /// Memory for cached key blocks, in bytes. Default 64 MiB.
    pub block_cache_bytes_max: usize,
    /// Memory for filters and fences of runs, in bytes: about 1.65 bytes per key. The newest runs
    /// come first. The others are cold: a get reads pages of them through the block cache. 0: all
    /// runs are cold. Default 64 MiB.
    pub index_memory_bytes_max: usize,
    /// Size at which flushes and merges start a new run file. Default 64 MiB.
    pub run_bytes_max: u64,
    /// Filter bits per key; 0 disables the filter. Default 10.
    pub filter_bits_per_key: usize,
    /// Size at which the manifest is rewritten. Default 4 MiB.
    pub manifest_bytes_max: u64,
    /// Whether an index opens although current runs are damaged or missing. Such runs open by the
    /// manifest's copies of their footers; reads of lost blocks fail until the blocks are repaired
    /// from other replicas. Default false.
    pub open_damaged_runs: bool,
    /// Measures reads of blocks that need the device; `None`: nothing is measured. Default `None`.
    pub timer: Option<DeviceTimer>,
}

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            memtable_bytes_max: 64 << 20,
            block_bytes: 4 << 10,
            block_cache_bytes_max: 64 << 20,
            index_memory_bytes_max: 64 << 20,
            run_bytes_max: 64 << 20,
            filter_bits_per_key: 10,
            manifest_bytes_max: 4 << 20,
            open_damaged_runs: false,
            timer: None,
        }
    }
}

impl IndexOptions {
    /// Checks the settings. Fails with [`Error::Invalid`] when one is out of bounds.
    pub fn validate(&self) -> Result<()> {
        if self.memtable_bytes_max > MEMTABLE_BYTES_MAX {
            let found = self.memtable_bytes_max;
            return Err(Error::invalid(format!(
                "memtable_bytes_max is {found}; set it to at most {MEMTABLE_BYTES_MAX}"
            )));
        }
        Ok(())
    }
}
