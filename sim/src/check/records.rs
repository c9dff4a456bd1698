//! Checks that the placement group keeps what nodes and stores report: labels, and speed classes across
//! changes of its leader.

use crate::plan::SECOND;
use crate::world::{Slot, World};
use std::collections::BTreeMap;
use stele_placement::{Cluster, LastHeartbeat, SpeedClass, StoreState};
use stele_types::{StoreId, Term};

/// Limit of time in which a class is not persisted.
const UNSAVED_NANOS_MAX: u64 = 3 * SECOND;

/// Classes by which leaders and data are placed.
type Classes = Option<(SpeedClass, SpeedClass)>;

/// Stores of which the classes are not persisted, with these classes and the times since when, under one
/// placement leader: its node and its term.
#[derive(Default)]
pub(super) struct Unsaved {
    leader: (u64, Term),
    stores: BTreeMap<StoreId, (Classes, u64)>,
}

impl World {
    /// Starts the times of what is not persisted again.
    pub(crate) fn forget_unsaved(&mut self) {
        self.checks.unsaved = Unsaved::default();
    }

    pub(crate) fn check_classes(&mut self, id: u64, held: &Cluster) {
        let Some(state) = self.nodes.get(&id).and_then(|node| node.member.leader_state()) else {
            return;
        };
        let classes = |cluster: &Cluster, store| -> Classes {
            cluster.speed(store).map(|speed| (speed.class, speed.data_class))
        };
        let members = state.cluster.stores().filter(|it| it.state != StoreState::Tombstone);
        let now: BTreeMap<StoreId, Classes> =
            members.map(|store| (store.id, classes(&state.cluster, store.id))).collect();
        let differs = |store: &StoreId| now.get(store) != Some(&classes(held, *store));
        let unsaved = &mut self.checks.unsaved;
        if unsaved.leader != (id, state.term) {
            *unsaved = Unsaved { leader: (id, state.term), ..Unsaved::default() };
        }
        let unsaved = &mut unsaved.stores;
        unsaved.retain(|store, (of, _)| differs(store) && now.get(store) == Some(of));
        for (store, of) in now.iter().filter(|(store, _)| differs(store)) {
            let (_, since) = *unsaved.entry(*store).or_insert((*of, self.now));
            if self.now - since > UNSAVED_NANOS_MAX {
                let seconds = UNSAVED_NANOS_MAX / SECOND;
                let saved = classes(held, *store);
                let text = format!(
                    "does not persist the classes {of:?} of store {store} for {seconds} s: {saved:?}"
                );
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
            let store = state.cluster.store(slot.id?)?;
            let (known, node) = (&store.labels, slot.node);
            // A process that has just started may not have reported yet.
            let is_heard = matches!(store.last_heartbeat, LastHeartbeat::At(_))
                && store.node.started_at == self.nodes.get(&node)?.incarnation;
            (is_heard && *known != reported)
                .then(|| format!("{known:?}, its node {node} reports {reported:?}"))
        });
        if let Some(text) = stale {
            self.fail(format!("the placement group knows a store's labels as {text}"));
        }
    }
}
