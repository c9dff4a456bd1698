//! Checks that the placement group keeps what nodes and stores report: labels, and speed classes across
//! changes of its leader.

use crate::plan::SECOND;
use crate::world::{Slot, World};
use std::collections::BTreeMap;
use stele_placement::{Cluster, StoreState};
use stele_types::StoreId;

/// Limit of time in which a class is not persisted.
const UNSAVED_NANOS_MAX: u64 = 3 * SECOND;

/// Stores of which the class is not persisted, with the times since when.
#[derive(Default)]
pub struct Unsaved(BTreeMap<StoreId, u64>);

impl World {
    /// Compares the classes in a placement leader's state with those that its store holds.
    pub(crate) fn check_classes(&mut self, id: u64, held: &Cluster) {
        let Some(state) = self.nodes.get(&id).and_then(|node| node.member.leader_state()) else {
            return;
        };
        let classes = |cluster: &Cluster, store| {
            cluster.speed(store).map(|speed| (speed.class, speed.data_class))
        };
        let differs = |store: &StoreId| {
            let is_member =
                state.cluster.store(*store).is_some_and(|it| it.state != StoreState::Tombstone);
            is_member && classes(&state.cluster, *store) != classes(held, *store)
        };
        let differing: Vec<StoreId> =
            state.cluster.stores().map(|store| store.id).filter(differs).collect();
        let unsaved = &mut self.checks.unsaved.0;
        unsaved.retain(|store, _| differing.contains(store));
        for store in differing {
            let since = *unsaved.entry(store).or_insert(self.now);
            if self.now - since > UNSAVED_NANOS_MAX {
                let seconds = UNSAVED_NANOS_MAX / SECOND;
                let text = format!("does not persist the class of store {store} for {seconds} s");
                return self.fail(format!("the placement group of node {id} {text}"));
            }
        }
    }

    /// Checks, at the end, that the placement leader knows the labels that nodes report.
    pub(super) fn check_labels(&mut self) {
        let state = self.nodes.values().find_map(|node| node.member.leader_state());
        let Some(state) = state else { return };
        let runs = |slot: &&Slot| slot.is_running() && !slot.is_gone;
        let stale = self.slots.values().filter(runs).find_map(|slot| {
            let reported = self.labels(slot.node)?;
            let known = &state.cluster.store(slot.id?)?.labels;
            (*known != reported).then(|| format!("{known:?}, its node reports {reported:?}"))
        });
        if let Some(text) = stale {
            self.fail(format!("the placement group knows a store's labels as {text}"));
        }
    }
}
