//! A reopened store holds what was durable, however its node stopped.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_storage::LogStore;
use stele_types::{LogIndex, PeerId, RegionId, Term};

/// Store, region and replica.
type Replica = (u64, RegionId, PeerId);

#[derive(Default)]
pub(super) struct DurableState {
    /// Index of the last entry that is committed and durable, and the durable term.
    logs: BTreeMap<Replica, (LogIndex, Term)>,
    /// Replicas present at an earlier check and destroyed since.
    gone: BTreeSet<Replica>,
    /// Replicas absent since the last check.
    missing: BTreeSet<Replica>,
}

impl World {
    /// Records what is durable, and checks the order of each region's progress.
    pub(super) fn record_durable_state(&mut self) {
        for number in self.serving() {
            let Some(engine) = self.engine(number) else { continue };
            let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else {
                continue;
            };
            let reports = core.regions();
            let mut here = BTreeSet::new();
            for report in &reports {
                let replica = (number, report.region.id, report.peer.id);
                here.insert(replica);
                let Some(progress) = engine.progress(report.region.id) else { continue };
                // The durable log of an earlier term may end in entries that the log in memory has replaced: of
                // these a crash may keep none, though an entry at their place is committed.
                let committed = match progress.persisted.1 == report.term {
                    true => report.committed.min(progress.persisted.0),
                    false => progress.applied,
                };
                let is_ordered = progress.truncated.0 <= progress.checkpointed
                    && progress.checkpointed <= progress.applied
                    && progress.applied <= progress.persisted.0;
                if !is_ordered {
                    return self.fail(format!("store {number}, {replica:?}: {progress:?}"));
                }
                let durable = self.checks.durable_state.logs.entry(replica).or_default();
                *durable = (durable.0.max(committed), durable.1.max(progress.hard_state.term));
            }
            let is_gone = |(_, region, _): &Replica| {
                engine.progress(*region).is_none_or(|progress| progress.destroyed)
            };
            self.checks.durable_state.note_gone(number, &here, is_gone);
        }
    }

    /// Checks a store that opened: no durable state is missing, and no destroyed replica is back.
    pub(crate) fn check_durable_state(&mut self, number: u64) {
        // The last writes of a disk with lost writes are unknown.
        let Some(engine) = self.engine(number) else { return };
        if self.slots.get(&number).is_none_or(|slot| slot.has_lied) {
            return;
        }
        let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else { return };
        for report in core.regions() {
            let replica = (number, report.region.id, report.peer.id);
            if self.checks.durable_state.gone.contains(&replica) {
                return self.fail(format!("store {number} brings back {replica:?}"));
            }
            let Some(durable) = self.checks.durable_state.logs.get(&replica).copied() else {
                continue;
            };
            let Some(progress) = engine.progress(report.region.id) else { continue };
            let found = (progress.persisted.0, progress.hard_state.term);
            if found.0 < durable.0 || found.1 < durable.1 {
                let (id, before) = (report.region.id, format!("{durable:?}"));
                return self
                    .fail(format!("store {number} had {before} of region {id}, opens {found:?}"));
            }
        }
    }
}

impl DurableState {
    fn note_gone(
        &mut self,
        number: u64,
        here: &BTreeSet<Replica>,
        is_gone: impl Fn(&Replica) -> bool,
    ) {
        let known: Vec<Replica> =
            self.logs.keys().filter(|(slot, ..)| *slot == number).copied().collect();
        for replica in known {
            match here.contains(&replica) {
                true => drop(self.missing.remove(&replica)),
                // The record that destroys it is not durable yet.
                false if !is_gone(&replica) => {}
                false if self.missing.contains(&replica) => drop(self.gone.insert(replica)),
                false => drop(self.missing.insert(replica)),
            }
        }
    }
}
