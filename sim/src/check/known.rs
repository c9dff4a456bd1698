//! Checks that what a placement leader knows does not go back within its term: epochs of regions, and
//! times of heartbeats.

use crate::world::World;
use std::collections::BTreeMap;
use stele_placement::{LastHeartbeat, Millis};
use stele_types::{RegionEpoch, RegionId, StoreId, Term};

#[derive(Default)]
pub(crate) struct Known {
    leader: (u64, Term),
    epochs: BTreeMap<RegionId, RegionEpoch>,
    heartbeats: BTreeMap<StoreId, Millis>,
}

impl Known {
    /// Forgets all: the state was loaded.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

impl World {
    pub(crate) fn check_known(&mut self, id: u64) {
        let state = self.nodes.get(&id).and_then(|node| node.member.leader_state());
        let Some(state) = state else { return };
        let known = &mut self.checks.known;
        if known.leader.1 > state.term {
            return;
        }
        if known.leader != (id, state.term) {
            *known = Known { leader: (id, state.term), ..Known::default() };
        }
        let mut went_back = None;
        for info in state.cluster.regions().iter() {
            let (region, now) = (info.region.id, info.region.epoch);
            if let Some(before) = known.epochs.insert(region, now)
                && (now.version < before.version || now.conf_version < before.conf_version)
            {
                went_back = Some(format!("region {region} at {now:?} after {before:?}"));
            }
        }
        for store in state.cluster.stores() {
            let LastHeartbeat::At(now) = store.last_heartbeat else { continue };
            if let Some(before) = known.heartbeats.insert(store.id, now)
                && now < before
            {
                went_back = Some(format!(
                    "the last heartbeat of store {} at {} ms after {} ms",
                    store.id, now.0, before.0
                ));
            }
        }
        if let Some(text) = went_back {
            self.fail(format!("the placement group of node {id} knows {text}"));
        }
    }
}
