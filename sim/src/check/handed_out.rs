//! Check of what a turn of a store's loop hands out: its next batch makes changed members durable.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_engine::Store as Engine;
use stele_replica::{Append, Event, Outputs};
use stele_types::{LogIndex, Mark, Record, RegionId};

#[derive(Default)]
pub(super) struct Members {
    versions: BTreeMap<(u64, RegionId), u64>,
    /// Replicas of which the members changed since the last batch of their store.
    changed: BTreeSet<(u64, RegionId)>,
    commits: BTreeMap<(u64, RegionId), LogIndex>,
    last: BTreeMap<u64, Append>,
}

impl Members {
    pub(super) fn started(&mut self, slot: u64) {
        self.versions.retain(|(of, _), _| *of != slot);
        self.changed.retain(|(of, _)| *of != slot);
        self.commits.retain(|(of, _), _| *of != slot);
        self.last.remove(&slot);
    }

    fn note(&mut self, slot: u64, event: &Event, applied: Option<LogIndex>) {
        match event {
            Event::RegionCreated(region) | Event::RegionChanged(region) => {
                let key = (slot, region.id);
                let version = region.epoch.conf_version;
                let has_changed = self.versions.insert(key, version).is_some_and(|it| it < version);
                let is_written = self.commits.get(&key).is_some_and(|it| Some(*it) >= applied);
                if has_changed && !is_written {
                    self.changed.insert(key);
                }
            }
            Event::RegionDestroyed(region) => {
                self.versions.remove(&(slot, *region));
                self.changed.remove(&(slot, *region));
            }
            _ => {}
        }
    }

    /// Returns a replica with members that the batch does not make durable.
    fn missing(&mut self, slot: u64, append: &Append) -> Option<RegionId> {
        // A batch that found no room is handed out again, or what is left of it without the puts of some
        // replicas. What came in meanwhile follows in the next one.
        let last = self.last.insert(slot, append.clone());
        if last.is_some_and(|last| is_rest(append, &last)) {
            return None;
        }
        self.commits.retain(|(of, _), _| *of != slot);
        for record in &append.batch.records {
            match record {
                Record::HardState(region, state) => {
                    self.commits.insert((slot, *region), state.commit);
                }
                Record::Mark(region, Mark::Destroy | Mark::Start(..)) => {
                    self.changed.remove(&(slot, *region));
                }
                Record::Mark(..) | Record::Entry(_) => {}
            }
        }
        let (here, others): (BTreeSet<_>, _) =
            std::mem::take(&mut self.changed).into_iter().partition(|(of, _)| *of == slot);
        self.changed = others;
        here.into_iter().find(|key| !self.commits.contains_key(key)).map(|(_, region)| region)
    }
}

/// Returns whether all records of a batch are those of another one, in their order.
fn is_rest(append: &Append, of: &Append) -> bool {
    let mut others = of.batch.records.iter();
    append.batch.records.iter().all(|record| others.any(|other| other == record))
}

impl World {
    /// Checks a turn before it is carried out.
    pub(crate) fn check_turn<A>(&mut self, number: u64, turn: &Outputs<Engine, A>) {
        for event in &turn.events {
            let (Event::RegionChanged(region) | Event::RegionCreated(region)) = event else {
                self.checks.members.note(number, event, None);
                continue;
            };
            let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
            let applied = core.and_then(|core| core.region(region.id)).map(|it| it.applied);
            self.checks.members.note(number, event, applied);
        }
        let append = turn.append.as_ref();
        if let Some(region) = append.and_then(|it| self.checks.members.missing(number, it)) {
            self.fail(format!(
                "store {number} follows members of region {region} that its next batch does not \
                 make durable"
            ));
        }
    }
}
