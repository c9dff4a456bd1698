//! Schedulers: pure functions from the state to operators. They propose; [`round`] admits what the
//! limits allow, in order of urgency.

pub mod balance_leaders;
pub mod balance_replicas;
pub mod drain;
pub mod evict;
pub mod finish;
pub mod load;
pub mod merge;
pub mod orphan_learner;
pub mod place;
pub mod repair;
pub mod surplus;

use crate::Millis;
use crate::cluster::Cluster;
use crate::operator::guard::can_act;
use crate::operator::tracker::Operators;
use crate::operator::{Operator, settled};
use crate::region_info::RegionInfo;
use load::Loads;
use std::cmp::Reverse;
use stele_types::{Peer, PeerRole, RegionKind, RegionPhase, StoreId};

/// What a scheduler sees.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The state.
    pub cluster: &'a Cluster,
    /// What is under way.
    pub operators: &'a Operators,
    /// The time.
    pub now: Millis,
}

/// Most operators that one scheduler proposes at once.
pub(crate) const PROPOSALS_MAX: usize = 64;

/// A scheduler.
pub type Scheduler = fn(&View<'_>) -> Vec<Operator>;

/// Every scheduler with its name, most urgent first.
pub const SCHEDULERS: [(&str, Scheduler); 9] = [
    ("finish", finish::pick),
    ("leftover", orphan_learner::pick),
    ("repair", repair::pick),
    ("drain", drain::pick),
    ("surplus", surplus::pick),
    ("evict", evict::pick),
    ("balance-replicas", balance_replicas::pick),
    ("balance-leaders", balance_leaders::pick),
    ("merge", merge::pick),
];

/// What all schedulers propose on this state.
pub fn pick_all(view: &View<'_>) -> Vec<Operator> {
    SCHEDULERS.iter().flat_map(|(_, pick)| pick(view)).collect()
}

/// Lets each scheduler propose, and admits what may run now. New peers get their numbers from the
/// cluster's reserve. Returns how many were admitted.
pub fn round(cluster: &mut Cluster, operators: &mut Operators, now: Millis) -> usize {
    operators.advance(cluster, now);
    let mut admitted = 0;
    for (_, pick) in SCHEDULERS {
        for operator in pick(&View { cluster, operators, now }) {
            admitted += usize::from(operators.admit(cluster, operator, now).is_ok());
        }
    }
    admitted
}

impl<'a> View<'a> {
    pub(crate) fn is_live(&self, store: StoreId) -> bool {
        self.cluster.is_live(store, self.now)
    }

    pub(crate) fn is_serving(&self, store: StoreId) -> bool {
        self.cluster.is_serving(store, self.now)
    }

    pub(crate) fn is_reachable(&self, info: &RegionInfo, peer: &Peer) -> bool {
        self.cluster.is_reachable(info, peer, self.now)
    }

    /// Whether a replica must be rebuilt: its store is lost, or its leader could not reach it for
    /// as long as makes a store count as down.
    pub(crate) fn is_lost(&self, info: &RegionInfo, peer: &Peer) -> bool {
        let down_after = self.cluster.config().down_after_seconds;
        self.cluster.is_lost(peer.store, self.now)
            || info.down.iter().any(|down| down.peer == peer.id && down.seconds >= down_after)
    }

    /// Regions that may be given something to do: able to act, in one configuration, serving, and
    /// left alone by operators.
    pub(crate) fn free_regions(self) -> impl Iterator<Item = &'a RegionInfo> {
        self.cluster.regions().iter().filter(move |info| {
            !info.region.is_joint()
                && info.region.phase == RegionPhase::Normal
                && !self.operators.touch(info.region.id)
                && can_act(&self, info).is_ok()
        })
    }

    /// [`View::free_regions`] whose replicas are all voters, reachable and caught up.
    pub(crate) fn healthy_regions(self) -> impl Iterator<Item = &'a RegionInfo> {
        self.free_regions().filter(move |info| {
            info.region.peers.iter().all(|peer| {
                peer.role == PeerRole::Voter
                    && self.is_reachable(info, peer)
                    && info.is_caught_up(peer.id)
            })
        })
    }

    /// How many voters a region should have, were there nodes enough.
    pub(crate) fn wanted(&self, kind: RegionKind) -> usize {
        self.cluster.copies_wanted(kind, self.now)
    }

    /// Who should lead when `leaving` don't: the voter that could, on the store with the fewest
    /// leaders.
    pub fn next_leader(&self, loads: &Loads, info: &RegionInfo, leaving: &[Peer]) -> Option<Peer> {
        let led = |store: StoreId| loads.get(store).map_or(u64::MAX, |load| load.leaders);
        info.region
            .peers
            .iter()
            .filter(|peer| !leaving.contains(peer))
            .filter(|peer| crate::operator::guard::can_lead(self, info, peer))
            .min_by_key(|peer| (led(peer.store), peer.store))
            .copied()
    }
}

/// Voters of a region.
pub(crate) fn voters(info: &RegionInfo) -> impl Iterator<Item = &Peer> {
    info.region.peers.iter().filter(|peer| settled(peer.role) == PeerRole::Voter)
}

/// Largest first; equal ones by number.
pub(crate) fn by_size(info: &&RegionInfo) -> (Reverse<u64>, stele_types::RegionId) {
    (Reverse(info.size_bytes), info.region.id)
}
