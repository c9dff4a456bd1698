//! Checks that a replay starts before all entries that it must apply.

use crate::world::{Slot, World};
use stele_storage::LogStore;

impl World {
    /// Checks that no entry after a checkpoint lies before the checkpoint's replay position.
    pub(crate) fn check_replay(&mut self, number: u64) {
        let excused = self.slots.get(&number).is_none_or(Slot::may_fail_reads);
        let Some(engine) = self.engine(number).filter(|_| !excused) else { return };
        let checkpoint = engine.index().checkpoint();
        for region in engine.log().regions() {
            let Some(progress) = engine.progress(region).filter(|it| !it.destroyed) else {
                continue;
            };
            let first = progress.checkpointed.next();
            if first > progress.persisted.0 {
                continue;
            }
            let Ok(entries) = engine.entries(region, first, first.next(), 1) else { continue };
            let Ok(places) = engine.log().positions(region, &entries) else { continue };
            let from = checkpoint.replay_from;
            if let Some(at) = places.first().filter(|at| **at < from) {
                return self.fail(format!(
                    "store {number} replays from {from}, but entry {first} of region {region}, \
                     which no run holds, is at {at}"
                ));
            }
        }
    }
}
