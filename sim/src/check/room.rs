//! What is reserved on a device stays free for collection, and is there for what others committed.

use crate::world::{DIR, World};
use std::path::Path;
use stele_storage::StorageEngine;
use stele_types::{LogBatch, Record};
use stele_vfs::Vfs;

/// What an append may need beside its batch and two segments: what it flushes.
const BESIDE_BYTES: u64 = 64 << 10;

impl World {
    /// With less than the reserve free nothing is let in that takes more than was allowed before.
    pub(crate) fn check_reserve(&mut self, number: u64) {
        let Some(slot) = self.slots.get(&number) else { return };
        let Some(node) = self.nodes.get(&slot.node) else { return };
        let options = if node.is_upgraded { &self.plan.other_engine } else { &self.plan.engine };
        let reserved = options.reserved_bytes;
        let (Some(engine), Ok(free)) = (slot.engine(), slot.disk.free_bytes(Path::new(DIR))) else {
            return;
        };
        if reserved == 0 || free >= reserved || slot.disk.crashed() {
            return;
        }
        // Half of the reserve may have been granted before.
        if engine.admit(reserved / 2 + 1).is_ok() {
            self.fail(format!(
                "store {number} lets {} bytes in, with {free} free and {reserved} reserved",
                reserved / 2 + 1
            ));
        }
    }

    /// What was committed elsewhere is refused only where it does not fit.
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
                "store {number} has no room for a batch of {bytes} bytes, with {free} free"
            ));
        }
    }
}
