//! Checks the reserve of a device: it stays free for garbage collection, and takes entries that
//! others committed.

use crate::world::{DIR, World};
use std::path::Path;
use stele_storage::LogStore;
use stele_types::{LogBatch, Record};
use stele_vfs::Vfs;

/// Space that an append may need besides its batch and two segments: what it flushes.
const BESIDE_BYTES: u64 = 64 << 10;

impl World {
    /// Checks a store with less free space than its reserve: it admits at most what was allowed before.
    pub(crate) fn check_reserve(&mut self, number: u64) {
        let Some(slot) = self.slots.get(&number) else { return };
        let Some(options) = self.engine_options(number) else { return };
        let reserved = options.reserved_bytes;
        let Some(engine) = slot.engine() else { return };
        // The device holds a part of the reserve for the store.
        let held = || slot.disk.file_bytes(Path::new(DIR).join("RESERVE")).unwrap_or_default();
        let free = || slot.disk.free_bytes(Path::new(DIR)).map_or(u64::MAX, |it| it + held());
        if reserved == 0 || free() >= reserved || slot.disk.crashed() {
            return;
        }
        // Half of the reserve may have been granted before. Freed segments are room: a store returns them
        // to the device before it refuses.
        let bytes = reserved / 2 + 1;
        let is_admitted = engine.admit(bytes).is_ok();
        let free = free();
        if is_admitted && free < reserved {
            self.fail(format!(
                "store {number} admits {bytes} bytes, with {free} free and {reserved} reserved"
            ));
        }
    }

    /// Checks a refused append: a batch is refused only if it does not fit.
    pub(crate) fn check_refused_append(&mut self, number: u64, batch: &LogBatch) {
        let Some(slot) = self.slots.get(&number) else { return };
        let Ok(free) = slot.disk.free_bytes(Path::new(DIR)) else { return };
        let bytes = |record: &Record| match record {
            Record::Entry(entry) => entry.payload.len() as u64,
            Record::HardState(..) | Record::Mark(..) => 0,
        };
        let bytes: u64 = batch.records.iter().map(bytes).sum();
        let plans = [&self.plan.engine, &self.plan.other_engine];
        let segment = plans.map(|it| it.segment_bytes_max).into_iter().max().unwrap_or_default();
        if free >= 2 * segment + 2 * bytes + BESIDE_BYTES {
            self.fail(format!(
                "store {number} refuses a batch of {bytes} bytes for lack of space, with {free} free"
            ));
        }
    }
}
