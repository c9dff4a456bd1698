//! One pass over all regions: the loads of the stores, and the regions that each scheduler may have
//! to change. A round does it once; 100,000 regions take a few tens of milliseconds.

use super::load::{Load, Loads, Planned, Room};
use super::weights::{Share, weights};
use super::{ClusterView, place, voters};
use crate::cluster::Cluster;
use crate::config::{Config, Mode};
use crate::operator::Operator;
use crate::operator::guard::can_act_on;
use crate::region_info::RegionInfo;
use crate::speed::SpeedClass;
use crate::store::Store;
use std::cmp::Reverse;
use stele_types::{Peer, PeerRole, RegionId, RegionKind, RegionPhase, StoreId};

/// Part of the usable space, in percent, up to which new replicas fill a store. Below it a nearly
/// full store counts as normal again.
pub(crate) const ROOM_PERCENT_MAX: u64 = 92;
/// Part of the usable space, in percent, that a store's share of the data may need: a little below
/// [`ROOM_PERCENT_MAX`], so that a store at its share can still take replicas.
const CAPACITY_PERCENT_MAX: u64 = 90;

/// Regions by what may have to happen to them. Lists ascend by number unless stated otherwise.
/// A region can have got an operator since.
#[derive(Clone, Debug, Default)]
pub struct RegionSurvey {
    /// State of the stores.
    pub loads: Loads,
    /// Regions in a joint configuration, or prepared to merge.
    pub unfinished: Vec<RegionId>,
    /// Regions with a learner.
    pub with_learners: Vec<RegionId>,
    /// Regions with lost, missing or crowded voters, for which there may be a better store.
    pub faulty: Vec<RegionId>,
    /// Regions with more voters than wanted.
    pub surplus: Vec<RegionId>,
    /// Regions with a voter of which the store is two classes faster than the leader's, with the
    /// difference, the greatest first.
    pub slow_leaders: Vec<(Reverse<u8>, RegionId)>,
    /// In mode `quorum`: regions of user data with the class that commits their writes, if it is two
    /// classes below the best that the cluster allows, the slowest first.
    pub slow_quorums: Vec<(SpeedClass, RegionId)>,
    /// Regions with a replica on each store, in the order of `loads`.
    replicas: Vec<Vec<RegionId>>,
    /// Regions that each store leads, in the order of `loads`.
    led: Vec<Vec<RegionId>>,
}

impl RegionSurvey {
    /// Surveys the state.
    pub fn of(view: &ClusterView<'_>) -> Self {
        let loads = Loads::new(load_of_stores(view));
        let count = loads.iter().count();
        let (replicas, led) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let mut survey = Self { loads, replicas, led, ..Self::default() };
        survey.loads.domains_live = view.cluster.domains_serving(view.now);
        let best_quorum = best_quorum_class(view, &survey.loads);
        let mut data_bytes = 0_u64;
        for info in view.cluster.regions().iter() {
            let operator = view.operators.of(info.region.id);
            survey.count(view, info, operator);
            survey.sort_in(view, info, best_quorum);
            let copies = info.region.peers.len() as u64;
            data_bytes = data_bytes.saturating_add(info.size_bytes.saturating_mul(copies));
        }
        survey.loads.finish(|stores| weigh(stores, view, data_bytes));
        survey.slow_leaders.sort_unstable();
        survey.slow_quorums.sort_unstable();
        survey
    }

    /// Adds a region to the loads, as if its operator were done.
    fn count(&mut self, view: &ClusterView<'_>, info: &RegionInfo, operator: Option<&Operator>) {
        self.loads.add(&Planned::of(view.cluster, info, operator, view.now));
        for receiver in operator.iter().flat_map(|operator| operator.receivers()) {
            self.loads.note_copy(info, receiver);
        }
    }

    /// Counts an operator that was admitted in this round. `before`: the one that it superseded,
    /// of which the copies still count as under way.
    pub(super) fn note_admitted(
        &mut self,
        cluster: &Cluster,
        info: &RegionInfo,
        before: Option<&Operator>,
        operator: &Operator,
        now: crate::Millis,
    ) {
        self.loads.subtract(&Planned::of(cluster, info, before, now));
        self.loads.add(&Planned::of(cluster, info, Some(operator), now));
        operator.receivers().for_each(|receiver| self.loads.note_copy(info, receiver));
    }

    /// Puts a region into the lists of the schedulers that may have to change it.
    fn sort_in(
        &mut self,
        view: &ClusterView<'_>,
        info: &RegionInfo,
        best_quorum: Option<SpeedClass>,
    ) {
        let (id, region) = (info.region.id, &info.region);
        let loads = &self.loads;
        let is_heard = |store| loads.get(store).is_some_and(|load| load.is_heard);
        let can_act = can_act_on(info, is_heard, |peer| loads.is_reachable(info, peer)).is_ok();
        if !can_act || view.operators.has_operator(id) {
            return;
        }
        if region.is_joint() || region.phase != RegionPhase::Normal {
            self.unfinished.push(id);
            return;
        }
        let leader = info.leader.and_then(|leader| self.loads.position(leader.store));
        if let Some(led) = leader.and_then(|at| self.led.get_mut(at)) {
            led.push(id);
        }
        if leader.and_then(|at| self.loads.at(at)).is_some_and(|load| load.hangs) {
            return;
        }
        for peer in &region.peers {
            if let Some(at) = self.loads.position(peer.store)
                && let Some(here) = self.replicas.get_mut(at)
            {
                here.push(id);
            }
        }
        match region.peers.iter().any(|peer| peer.role == PeerRole::Learner) {
            true => self.with_learners.push(id),
            false => self.sort_in_by_voters(view, info),
        }
        if region.kind == RegionKind::Data {
            self.sort_in_by_speed(info, leader, best_quorum);
        }
    }

    fn sort_in_by_voters(&mut self, view: &ClusterView<'_>, info: &RegionInfo) {
        let wanted = view.wanted(info.region.kind);
        let have = voters(info).count();
        if have > wanted {
            self.surplus.push(info.region.id);
        }
        let loads = &self.loads;
        let down_after = view.cluster.config().down_after_seconds;
        let is_down = |id| info.down.iter().any(|d| d.peer == id && d.seconds >= down_after);
        let is_lost = voters(info)
            .any(|peer| is_down(peer.id) || loads.get(peer.store).is_none_or(|load| load.is_lost));
        let domain = |peer: &Peer| loads.get(peer.store).map(|load| load.domain);
        let is_twin = |(at, peer): (usize, &Peer)| {
            voters(info).take(at).any(|other| domain(other) == domain(peer))
        };
        let is_crowded = voters(info).enumerate().any(is_twin)
            && loads.domains_among(voters(info).map(|peer| peer.store)) < loads.domains_serving();
        if is_lost || have < wanted || is_crowded {
            self.faulty.push(info.region.id);
        }
    }

    fn sort_in_by_speed(
        &mut self,
        info: &RegionInfo,
        leader: Option<usize>,
        best_quorum: Option<SpeedClass>,
    ) {
        let id = info.region.id;
        if let Some(leader) = leader.and_then(|at| self.loads.at(at))
            && let Some(best) = self.loads.best_class(info)
        {
            let gap = best.0.saturating_sub(leader.class.0);
            if gap >= super::judge::GAP_CLASSES_MIN {
                self.slow_leaders.push((Reverse(gap), id));
            }
        }
        if let Some(best) = best_quorum {
            let class = self.loads.quorum_class(voters(info).map(|peer| peer.store));
            if class.0.saturating_add(super::judge::GAP_CLASSES_MIN) <= best.0 {
                self.slow_quorums.push((class, id));
            }
        }
    }

    /// Returns the regions with a replica on `store` that may get an operator.
    pub(crate) fn replicas_on(&self, store: StoreId) -> &[RegionId] {
        list(&self.loads, &self.replicas, store)
    }

    /// Returns the regions that `store` leads and that may get an operator; if the store's device
    /// hangs, one that transfers the leadership.
    pub fn led_by(&self, store: StoreId) -> &[RegionId] {
        list(&self.loads, &self.led, store)
    }
}

fn list<'a>(loads: &Loads, lists: &'a [Vec<RegionId>], store: StoreId) -> &'a [RegionId] {
    loads.position(store).and_then(|at| lists.get(at)).map_or(&[], Vec::as_slice)
}

fn load_of_stores(view: &ClusterView<'_>) -> Vec<Load> {
    let cluster = view.cluster;
    let members =
        cluster.stores().filter(|store| store.state != crate::store::StoreState::Tombstone);
    let mut out: Vec<Load> = members.map(|store| load_of(view, store)).collect();
    // Stores that share a domain get the position of the first of them.
    for at in 1..out.len() {
        let (before, rest) = out.split_at_mut(at);
        let Some(load) = rest.first_mut() else { continue };
        let twin = before.iter().find(|other| cluster.share_domain(other.store, load.store));
        load.domain = twin.map_or(at, |twin| twin.domain);
    }
    out
}

fn load_of(view: &ClusterView<'_>, store: &Store) -> Load {
    let (cluster, config) = (view.cluster, view.cluster.config());
    let measured = store.report.device.write.per_second(config.speed_op_bytes);
    let measured = measured.filter(|_| store.report.device.writes > 0).map(SpeedClass::of);
    let is_slower = |measured: &SpeedClass| measured.0 + 2 <= cluster.class_of(store.id).0;
    let hangs = store.hangs(config);
    Load {
        store: store.id,
        is_live: view.is_live(store.id),
        is_heard: cluster.is_heard(store.id, view.now),
        is_serving: view.is_serving(store.id),
        is_lost: cluster.is_lost(store.id, view.now),
        is_leaving: store.state.is_leaving(),
        is_unfit: store.state.is_leaving() || store.report.is_full || hangs,
        hangs,
        is_full: store.report.is_full,
        // A store that is full refuses writes, whatever the sizes are.
        is_nearly_full: cluster.is_nearly_full(store.id) || store.report.is_full,
        class: view.lead_class(store.id),
        data_class: cluster.data_class_of(store.id),
        suffers: measured.filter(is_slower),
        read_speed: store.report.device.read.per_second(config.speed_op_bytes),
        room: room(store),
        ..Load::default()
    }
}

fn room(store: &Store) -> Room {
    let report = &store.report;
    match (report.usable_bytes, store.capacity_bytes) {
        // The capacity is not known yet.
        (0, 0) => Room { limit: u64::MAX, ..Room::default() },
        // A report of an earlier version.
        (0, capacity) => Room {
            held: capacity.saturating_sub(report.free_bytes),
            coming: 0,
            limit: capacity.saturating_sub(place::reserve_bytes(capacity)),
        },
        (usable, _) => {
            Room { held: report.live_bytes, coming: 0, limit: usable / 100 * ROOM_PERCENT_MAX }
        }
    }
}

fn weigh(stores: &mut [Load], view: &ClusterView<'_>, data_bytes: u64) {
    let config = view.cluster.config();
    let is_weighed = |load: &Load| load.is_live && !load.is_leaving;
    let mut shares = Vec::new();
    for load in stores.iter().filter(|load| is_weighed(load)) {
        let capacity_bytes = view.cluster.store(load.store).map_or(u64::MAX, capacity);
        let speed = data_speed(config, load);
        let (domain, is_nearly_full) = (load.domain, load.is_nearly_full);
        shares.push(Share { speed, capacity_bytes, domain, is_nearly_full });
    }
    let found = weights(&shares, data_bytes, config.replicas());
    let weighed = stores.iter_mut().filter(|load| is_weighed(load));
    weighed.zip(found).for_each(|(load, weight)| load.weight = weight);
}

fn capacity(store: &Store) -> u64 {
    match (store.report.usable_bytes, store.capacity_bytes) {
        (0, 0) => u64::MAX,
        (0, capacity) => capacity / 100 * CAPACITY_PERCENT_MAX,
        (usable, _) => usable / 100 * CAPACITY_PERCENT_MAX,
    }
}

fn data_speed(config: &Config, load: &Load) -> u64 {
    match config.mode() {
        Mode::Even | Mode::Leaders => 1,
        Mode::Alor | Mode::Quorum => load.data_class.per_second(),
    }
}

/// Returns the greatest class at which writes can commit in this cluster; `None` unless the mode is
/// `quorum`.
fn best_quorum_class(view: &ClusterView<'_>, loads: &Loads) -> Option<SpeedClass> {
    let config = view.cluster.config();
    if config.mode() != Mode::Quorum {
        return None;
    }
    let mut best: Vec<(usize, SpeedClass)> = Vec::new();
    for load in loads.iter().filter(|load| load.is_serving) {
        match best.iter_mut().find(|(domain, _)| *domain == load.domain) {
            Some((_, class)) => *class = (*class).max(load.data_class),
            None => best.push((load.domain, load.data_class)),
        }
    }
    best.sort_unstable_by_key(|(_, class)| Reverse(*class));
    let copies = config.replicas().min(best.len());
    best.get(copies / 2).map(|(_, class)| *class)
}
