//! Checks that memory stays within the configured limits.

use crate::world::World;
use stele_storage::StateMachine;

/// Limit of a store's memory besides memtables and caches: footers of runs and tables of the pages
/// of cold ones, tables of entries. More than this is a leak.
const FIXED_BYTES_MAX: u64 = 4 << 20;
/// Limit of memtables that wait for a flush, besides the active one.
const MEMTABLES_MAX: u64 = 16;

/// Largest entry of a plan, with what surrounds it in memory.
const ENTRY_BYTES_MAX: u64 = 64 << 10;
/// Most bytes that count for an unapplied entry with small operations, by its bytes in a message.
const EFFECTS_FACTOR: u64 = 8;

impl World {
    pub(super) fn check_memory(&mut self) {
        let wanted = |options: &stele_engine::Options| {
            MEMTABLES_MAX * options.memtable_bytes_max as u64
                + options.entry_cache_bytes_max as u64
                + options.block_cache_bytes_max as u64
                + options.index_memory_bytes_max as u64
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
            self.check_tails(number);
        }
    }

    /// Checks the bytes of entries that are not applied. Each region may exceed the limit by one
    /// message: a region without such entries always takes some.
    fn check_tails(&mut self, number: u64) {
        let regions = self.engine(number).map_or(0, |engine| engine.log().regions().len() as u64);
        let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else { return };
        let bytes = core.tail_bytes();
        let options = &self.plan.raft;
        let message_bytes = EFFECTS_FACTOR * (options.append_message_bytes_max + ENTRY_BYTES_MAX);
        let bytes_max = options.tail_bytes_max + (1 + regions) * message_bytes;
        if bytes > bytes_max {
            self.fail(format!(
                "store {number} holds {bytes} bytes of entries that are not applied, limit {bytes_max}"
            ));
        }
    }
}
