//! What a store once had it has again when it opens, however its node went down.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_storage::StorageEngine;
use stele_types::{LogIndex, PeerId, RegionId, Term};

/// Replicas of a store by region.
type Replica = (u64, RegionId, PeerId);

/// What was durable at the last look.
#[derive(Default)]
pub struct Kept {
    /// Committed and durable entries, and the durable term.
    logs: BTreeMap<Replica, (LogIndex, Term)>,
    /// Replicas that were there at an earlier look and not at the last one.
    gone: BTreeSet<Replica>,
    /// Not there since the last look.
    missing: BTreeSet<Replica>,
}

impl World {
    /// Notes what is durable, and that each region's progress is in order.
    pub(super) fn note_kept(&mut self) {
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
                let committed = report.committed.min(progress.persisted.0);
                let is_ordered = progress.truncated.0 <= progress.checkpointed
                    && progress.checkpointed <= progress.applied
                    && progress.applied <= progress.persisted.0;
                if !is_ordered {
                    return self.fail(format!("store {number}, {replica:?}: {progress:?}"));
                }
                let kept = self.checks.kept.logs.entry(replica).or_default();
                *kept = (kept.0.max(committed), kept.1.max(progress.hard_state.term));
            }
            let is_gone = |(_, region, _): &Replica| {
                engine.progress(*region).is_none_or(|progress| progress.destroyed)
            };
            self.checks.kept.note_gone(number, &here, is_gone);
        }
    }

    /// A store opened: nothing of that is missing, and what left it has not come back.
    pub(crate) fn check_kept(&mut self, number: u64) {
        // Of a disk that lied nothing can tell what it took last.
        let Some(engine) = self.engine(number) else { return };
        if self.slots.get(&number).is_none_or(|slot| slot.has_lied) {
            return;
        }
        let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else { return };
        for report in core.regions() {
            let replica = (number, report.region.id, report.peer.id);
            if self.checks.kept.gone.contains(&replica) {
                return self.fail(format!("store {number} brings back {replica:?}"));
            }
            let Some(kept) = self.checks.kept.logs.get(&replica).copied() else { continue };
            let Some(progress) = engine.progress(report.region.id) else { continue };
            let found = (progress.persisted.0, progress.hard_state.term);
            if found.0 < kept.0 || found.1 < kept.1 {
                let (id, before) = (report.region.id, format!("{kept:?}"));
                return self
                    .fail(format!("store {number} had {before} of region {id}, opens {found:?}"));
            }
        }
    }
}

impl Kept {
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
                // Its end is still on its way to the disk.
                false if !is_gone(&replica) => {}
                false if self.missing.contains(&replica) => drop(self.gone.insert(replica)),
                false => drop(self.missing.insert(replica)),
            }
        }
    }
}
