//! Schedulers: pure functions from the state to operators. They propose; [`round`] admits as many
//! as the limits allow, in order of urgency.

pub mod balance;
pub mod drain;
pub mod evict;
pub mod explain;
pub mod finish;
pub mod full_replica;
pub mod judge;
pub mod leaders;
pub mod level;
pub mod load;
pub mod merge;
pub mod orphan_learner;
pub mod pace;
pub mod place;
pub mod planned;
pub mod region_survey;
pub mod repair;
pub mod rule_text;
pub mod surplus;
pub mod weights;

use crate::Millis;
use crate::cluster::Cluster;
use crate::config::Mode;
use crate::operator::guard::can_act;
use crate::operator::tracker::Operators;
use crate::operator::{Operator, settled};
use crate::region_info::RegionInfo;
use crate::speed::SpeedClass;
use load::Loads;
use region_survey::RegionSurvey;
use std::cmp::Reverse;
use stele_types::{Peer, PeerRole, RegionId, RegionKind, RegionPhase, StoreId};

/// Input of a scheduler.
#[derive(Clone, Copy)]
pub struct ClusterView<'a> {
    /// State of the cluster.
    pub cluster: &'a Cluster,
    /// Operators under way.
    pub operators: &'a Operators,
    /// Present time.
    pub now: Millis,
}

/// Limit for the operators that one scheduler proposes at once.
pub(crate) const PROPOSALS_MAX: usize = 64;

/// A function that proposes operators.
pub type Scheduler = fn(&ClusterView<'_>, &RegionSurvey) -> Vec<Operator>;

/// Every scheduler with its name, most urgent first.
pub const SCHEDULERS: [(&str, Scheduler); 10] = [
    ("finish", finish::pick),
    ("orphan-learner", orphan_learner::pick),
    ("repair", repair::pick),
    ("full-replica", full_replica::pick),
    ("drain", drain::pick),
    ("surplus", surplus::pick),
    ("evict", evict::pick),
    ("balance", balance::pick),
    ("leaders", leaders::pick),
    ("merge", merge::pick),
];

/// Returns the proposals of all schedulers for this state.
pub fn pick_all(view: &ClusterView<'_>) -> Vec<Operator> {
    let survey = RegionSurvey::of(view);
    SCHEDULERS.iter().flat_map(|(_, pick)| pick(view, &survey)).collect()
}

/// Surveys the state once, runs each scheduler and admits what may run now. New peers get their
/// numbers from the cluster's reserve. Returns the number of operators admitted.
pub fn round(cluster: &mut Cluster, operators: &mut Operators, now: Millis) -> usize {
    operators.advance(cluster, now);
    cluster.begin_round(operators, now);
    let mut survey = RegionSurvey::of(&ClusterView { cluster, operators, now });
    let mut admitted = 0;
    for (_, pick) in SCHEDULERS {
        for operator in pick(&ClusterView { cluster, operators, now }, &survey) {
            let region = operator.region;
            let before = operators.of(region).cloned();
            if operators.admit(cluster, operator, now).is_err() {
                continue;
            }
            admitted += 1;
            if let (Some(info), Some(running)) =
                (cluster.regions().get(region), operators.of(region))
            {
                survey.note_admitted(cluster, info, before.as_ref(), running, now);
            }
        }
    }
    admitted
}

impl<'a> ClusterView<'a> {
    pub(crate) fn is_live(&self, store: StoreId) -> bool {
        self.cluster.is_live(store, self.now)
    }

    pub(crate) fn is_serving(&self, store: StoreId) -> bool {
        self.cluster.is_serving(store, self.now)
    }

    pub(crate) fn is_reachable(&self, info: &RegionInfo, peer: &Peer) -> bool {
        self.cluster.is_reachable(info, peer, self.now)
    }

    /// Whether a replica must be rebuilt: its store is lost, or its leader has not reached it for
    /// `down_after_seconds`.
    pub(crate) fn is_lost(&self, info: &RegionInfo, peer: &Peer) -> bool {
        let down_after = self.cluster.config().down_after_seconds;
        self.cluster.is_lost(peer.store, self.now)
            || info.down.iter().any(|down| down.peer == peer.id && down.seconds >= down_after)
    }

    /// Iterates over regions that may get an operator: with a leader and a quorum, in one
    /// configuration, not merging, and without an operator.
    /// Invariant: a leader of which the device hangs is asked for nothing but its leadership. It
    /// cannot apply a change.
    pub(crate) fn free_regions(self) -> impl Iterator<Item = &'a RegionInfo> {
        let hangs = move |store| {
            let store = self.cluster.store(store);
            store.is_some_and(|store| store.hangs(self.cluster.config()))
        };
        self.regions_without_operator()
            .filter(move |info| !info.leader.is_some_and(|leader| hangs(leader.store)))
    }

    /// Iterates over [`ClusterView::free_regions`] and those of which the leader's device hangs.
    pub(crate) fn regions_without_operator(self) -> impl Iterator<Item = &'a RegionInfo> {
        self.cluster.regions().iter().filter(move |info| {
            !info.region.is_joint()
                && info.region.phase == RegionPhase::Normal
                && !self.operators.has_operator(info.region.id)
                && can_act(&self, info).is_ok()
        })
    }

    /// Iterates over [`ClusterView::free_regions`] in which all replicas are reachable voters that have
    /// caught up.
    pub(crate) fn healthy_regions(self) -> impl Iterator<Item = &'a RegionInfo> {
        self.free_regions().filter(move |info| {
            info.region.peers.iter().all(|peer| {
                peer.role == PeerRole::Voter
                    && self.is_reachable(info, peer)
                    && info.is_caught_up(peer.id)
            })
        })
    }

    /// Returns how many voters a region should have, given enough nodes.
    pub(crate) fn wanted(&self, kind: RegionKind) -> usize {
        self.cluster.copies_wanted(kind, self.now)
    }

    /// Iterates over the regions of a list that still have no operator.
    pub(crate) fn without_operator(
        self,
        list: &[RegionId],
    ) -> impl Iterator<Item = &'a RegionInfo> {
        let free = list.iter().filter(move |id| !self.operators.has_operator(**id));
        free.filter_map(move |id| self.cluster.regions().get(*id))
    }

    /// Returns the class by which leaders are placed: equal for all stores in mode `even`.
    pub(crate) fn lead_class(&self, store: StoreId) -> SpeedClass {
        match self.cluster.config().mode() {
            Mode::Even => SpeedClass::default(),
            Mode::Leaders | Mode::Alor | Mode::Quorum => self.cluster.class_of(store),
        }
    }

    /// Returns the best leader outside `leaving`.
    pub fn next_leader(&self, loads: &Loads, info: &RegionInfo, leaving: &[Peer]) -> Option<Peer> {
        place::next_leader(self, loads, info, leaving)
    }
}

pub(crate) fn voters(info: &RegionInfo) -> impl Iterator<Item = &Peer> {
    info.region.peers.iter().filter(|peer| settled(peer.role) == PeerRole::Voter)
}

/// Returns a sort key: largest region first, then by number.
pub(crate) fn by_size(info: &&RegionInfo) -> (Reverse<u64>, RegionId) {
    (Reverse(info.size_bytes), info.region.id)
}
