//! Checks that a term has at most one leader.

use crate::world::World;
use std::collections::BTreeMap;
use stele_replica::Role;
use stele_types::{RegionId, Term};

/// Store that led each term.
#[derive(Default)]
pub(super) struct Leaders(BTreeMap<(RegionId, Term), u64>);

impl World {
    pub(super) fn note_leader(&mut self, slot: u64, region: RegionId, term: Term) {
        let other = *self.checks.leaders.0.entry((region, term)).or_insert(slot);
        if other != slot {
            self.fail(format!("stores {other} and {slot} lead region {region} in term {term}"));
        }
    }

    /// Checks that a store leads nothing, and knows no leader, after its loop ended.
    pub(crate) fn check_deposed(&mut self, number: u64) {
        let readers = self.slots.get(&number).and_then(|slot| slot.readers());
        let Some(readers) = readers else { return };
        let leads = |region: &RegionId| {
            let reader = readers.get(*region);
            reader.is_some_and(|it| it.leading_term().is_some() || it.leader().is_some())
        };
        let leading = readers.all().into_iter().map(|region| region.id).find(leads);
        if let Some(region) = leading {
            self.fail(format!(
                "the loop of store {number} has ended, and its reader still leads or knows the \
                 leader of region {region}"
            ));
        }
    }

    pub(super) fn check_leaders(&mut self) {
        for number in self.serving() {
            // A single voter, as its disk shows, becomes leader when it opens.
            let slot = self.slots.get_mut(&number).filter(|slot| !slot.is_mistrusted);
            let Some(core) = slot.and_then(|slot| slot.core()) else { continue };
            for report in core.regions() {
                if report.role == Role::Leader {
                    self.note_leader(number, report.region.id, report.term);
                }
            }
        }
    }
}
