//! Load of each store, as if all operators under way were done.

use super::{View, place};
use crate::operator::Operator;
use crate::region_info::RegionInfo;
use std::collections::BTreeMap;
use stele_types::{Peer, StoreId};

/// Load of one store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Bytes of its replicas plus a constant for each.
    pub weight: u64,
    /// Regions it leads.
    pub leaders: u64,
}

/// Loads of all stores that take replicas.
#[derive(Clone, Debug)]
pub struct Loads {
    of: BTreeMap<StoreId, Load>,
}

impl Loads {
    /// Computes the loads after all operators of `view` are done.
    pub fn of(view: &View<'_>) -> Self {
        let serving = view.cluster.stores().filter(|store| view.is_serving(store.id));
        let mut loads = Self { of: serving.map(|store| (store.id, Load::default())).collect() };
        for info in view.cluster.regions().iter() {
            let operator = view.operators.of(info.region.id);
            let weight = place::weight(info);
            let leader = operator.and_then(Operator::final_leader);
            let leader = leader.or(info.leader.map(|leader| leader.store));
            match operator {
                Some(operator) => loads.add(&operator.final_peers(&info.region), weight, leader),
                None => loads.add(&info.region.peers, weight, leader),
            }
        }
        loads
    }

    fn add(&mut self, peers: &[Peer], weight: u64, leader: Option<StoreId>) {
        for peer in peers {
            if let Some(load) = self.of.get_mut(&peer.store) {
                load.weight += weight;
            }
        }
        if let Some(load) = leader.and_then(|leader| self.of.get_mut(&leader)) {
            load.leaders += 1;
        }
    }

    /// Counts one more replica on a store.
    pub fn place(&mut self, info: &RegionInfo, to: StoreId) {
        if let Some(load) = self.of.get_mut(&to) {
            load.weight += place::weight(info);
        }
    }

    /// Counts the move of a replica.
    pub fn move_replica(&mut self, info: &RegionInfo, from: StoreId, to: StoreId) {
        self.place(info, to);
        if let Some(load) = self.of.get_mut(&from) {
            load.weight = load.weight.saturating_sub(place::weight(info));
        }
    }

    /// Counts the move of a leader.
    pub fn move_leader(&mut self, from: StoreId, to: StoreId) {
        if let Some(load) = self.of.get_mut(&to) {
            load.leaders += 1;
        }
        if let Some(load) = self.of.get_mut(&from) {
            load.leaders = load.leaders.saturating_sub(1);
        }
    }

    /// Returns the load of a store; `None` for one that takes no replicas.
    pub fn get(&self, store: StoreId) -> Option<Load> {
        self.of.get(&store).copied()
    }

    /// Returns the stores by a measure, smallest first, then by number.
    pub fn ascending(&self, measure: impl Fn(&Load) -> u64) -> Vec<(StoreId, u64)> {
        let mut all: Vec<_> = self.of.iter().map(|(id, load)| (*id, measure(load))).collect();
        all.sort_by_key(|(id, value)| (*value, *id));
        all
    }

    /// Returns the average of a measure; 0 without stores.
    pub fn average(&self, measure: impl Fn(&Load) -> u64) -> u64 {
        let sum: u64 = self.of.values().map(measure).sum();
        sum.checked_div(self.of.len() as u64).unwrap_or(0)
    }
}
