//! Checks that memory stays within the configured limits.

use crate::world::World;
use stele_storage::StateMachine;

/// Limit of a store's memory besides memtables and caches: filters and fences of runs, tables of
/// entries. More than this is a leak.
const FIXED_BYTES_MAX: u64 = 4 << 20;
/// Limit of memtables that wait for a flush, besides the active one.
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
                self.fail(format!(
                    "store {number} uses {bytes} bytes of memory, limit {bytes_max}"
                ));
            }
        }
    }
}
