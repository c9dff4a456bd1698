//! Checks that values which a disk refuses to read are replaced by copies of other replicas.

use crate::plan::SECOND;
use crate::world::World;
use stele_storage::{EngineView, ScanOptions, StateMachine};
use stele_types::Error;

const REPAIR_NANOS: u64 = 20 * SECOND;

impl World {
    pub(super) fn check_unreadable(&mut self) {
        let end = self.now + REPAIR_NANOS;
        for number in self.serving() {
            let slot = self.slots.get(&number);
            if slot.is_none_or(|it| !it.is_unreadable || it.is_damaged || it.is_troubled) {
                continue;
            }
            while let Some(error) = self.unreadable_pair(number) {
                if self.now >= end {
                    return self.fail(format!("store {number} repairs no value: {error}"));
                }
                self.run(SECOND);
            }
        }
    }

    /// Returns the error of a scan over all pairs of a store's regions. It records what is lost.
    fn unreadable_pair(&mut self, number: u64) -> Option<Error> {
        let view = self.engine(number)?.view().ok()?;
        let core = self.slots.get_mut(&number)?.core()?;
        let ranges = core.regions().into_iter().flat_map(|it| it.region.engine_ranges());
        let mut scans = ranges.map(|range| view.scan(&ScanOptions::new(range, usize::MAX)));
        scans.find_map(Result::err)
    }
}
