//! Checks of what a turn of a store's loop hands out: snapshots of exactly their entry, and members that
//! the next batch makes durable.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_engine::Store as Engine;
use stele_node::store::Turn;
use stele_raftstore::{Append, Event, Ticket};
use stele_storage::LogStore;
use stele_types::{LogIndex, Mark, Record, RegionId};

/// Versions of the members that count on each store.
#[derive(Default)]
pub struct Members {
    versions: BTreeMap<(u64, RegionId), u64>,
    /// Replicas of which the members changed since the last batch of their store.
    changed: BTreeSet<(u64, RegionId)>,
    /// Commit indexes in the last batch of each store.
    commits: BTreeMap<(u64, RegionId), LogIndex>,
    /// Number of that batch.
    tickets: BTreeMap<u64, Ticket>,
}

impl Members {
    /// Forgets a store that started.
    pub fn started(&mut self, slot: u64) {
        self.versions.retain(|(of, _), _| *of != slot);
        self.changed.retain(|(of, _)| *of != slot);
        self.commits.retain(|(of, _), _| *of != slot);
        self.tickets.remove(&slot);
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
        // A batch that found no room is handed out again.
        if self.tickets.insert(slot, append.ticket) == Some(append.ticket) {
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
        let here: Vec<_> = self.changed.extract_if(.., |(of, _)| *of == slot).collect();
        here.into_iter().find(|key| !self.commits.contains_key(key)).map(|(_, region)| region)
    }
}

impl World {
    /// Checks a turn before it is carried out.
    pub(crate) fn check_turn<A>(&mut self, number: u64, turn: &Turn<Engine, A>) {
        let engine = self.engine(number);
        for snapshot in &turn.snapshots {
            let (region, at) = (&snapshot.header.region, snapshot.header.at.0);
            let applied = engine.as_ref().and_then(|engine| engine.progress(region.id));
            let Some(applied) = applied.map(|it| it.applied) else { continue };
            // The same turn may have applied a change of the region since.
            let core = self.slots.get_mut(&number).and_then(|slot| slot.core());
            let now = core.and_then(|core| core.region(region.id));
            let has_changed = now.is_none_or(|now| now.region.epoch != region.epoch);
            if applied != at && self.plan.raft.apply_queue && !has_changed {
                let text = format!("sends region {} as of {at}, with {applied} applied", region.id);
                return self.fail(format!("store {number} {text}"));
            }
        }
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
