//! Memory stays within what the configuration allows.

use crate::world::World;
use stele_storage::StorageEngine;

/// What a store may take beside its memtables and caches: filters and fences of runs, tables of
/// entries. A run in which it takes more than this has a leak.
const FIXED_BYTES_MAX: u64 = 4 << 20;
/// Memtables that may wait for their flush beside the active one.
const MEMTABLES_MAX: u64 = 16;

impl World {
    pub(super) fn check_memory(&mut self) {
        let wanted = |options: &stele_engine::Options| {
            MEMTABLES_MAX * options.memtable_bytes_max as u64
                + options.entry_cache_bytes_max as u64
                + options.block_cache_bytes_max as u64
                + options.value_cache_bytes_max as u64
        };
        let bytes_max =
            FIXED_BYTES_MAX + wanted(&self.plan.engine).max(wanted(&self.plan.other_engine));
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            let bytes = engine.stats().memory_bytes;
            if bytes > bytes_max {
                self.fail(format!("store {number} takes {bytes} bytes of memory, of {bytes_max}"));
            }
        }
    }
}
