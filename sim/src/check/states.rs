//! Checks that a replica's hard state is the one last written for it.

use crate::world::World;
use std::collections::BTreeMap;
use stele_storage::LogStore;
use stele_types::{HardState, LogBatch, Mark, Record, RegionId};

#[derive(Default)]
pub(super) struct States(BTreeMap<(u64, RegionId), HardState>);

const JOURNAL: RegionId = RegionId(0);

impl World {
    pub(crate) fn note_states(&mut self, number: u64) {
        let Some(engine) = self.engine(number) else { return };
        let states = &mut self.checks.states.0;
        states.retain(|(slot, _), _| *slot != number);
        for region in engine.log().regions() {
            let Some(progress) = engine.progress(region) else { continue };
            let state = if progress.destroyed { HardState::default() } else { progress.hard_state };
            states.insert((number, region), state);
        }
    }

    pub(crate) fn note_durable(&mut self, number: u64, batch: &LogBatch) {
        self.check_commits(number, batch);
        for record in &batch.records {
            let (region, state) = match record {
                Record::HardState(region, state) => (*region, *state),
                Record::Mark(region, Mark::Destroy) => (*region, HardState::default()),
                _ => continue,
            };
            self.checks.states.0.insert((number, region), state);
        }
    }

    /// Checks the hard state of a replica that was created, or started its log again.
    pub(super) fn check_state(&mut self, number: u64, region: RegionId) {
        let Some(engine) = self.engine(number).filter(|_| region != JOURNAL) else { return };
        let Some(progress) = engine.progress(region).filter(|it| !it.destroyed) else { return };
        let known = self.checks.states.0.get(&(number, region)).copied().unwrap_or_default();
        if progress.hard_state != known {
            let found = progress.hard_state;
            self.fail(format!(
                "store {number} has {found:?} of region {region}, but its replica wrote {known:?}"
            ));
        }
    }
}
