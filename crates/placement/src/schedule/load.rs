//! Stores as the schedulers compare them, as if all operators under way were done, and what a
//! region then adds to the loads of the stores.

use super::place;
use super::weights::{Level, is_apart, is_within};
use crate::Millis;
use crate::cluster::Cluster;
use crate::operator::{Operator, settled};
use crate::region_info::RegionInfo;
use crate::speed::SpeedClass;
use std::borrow::Cow;
use stele_types::{Peer, PeerRole, StoreId};

/// Operations a second that an idle region counts as, for its leader's store.
pub(crate) const IDLE_REGION_OPS: u64 = 16;
/// Part of a store's read speed, in percent, that leaders moved to it may use.
pub(crate) const READS_PERCENT_MAX: u64 = 80;

/// Difference of two stores' leaders by speed, in percent of the mean, below which they count as
/// even. Rates change more than sizes.
const LEADER_TOLERANCE_PERCENT: u64 = 10;

/// State of one store in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of the store.
    pub store: StoreId,
    /// The store sends heartbeats and has not failed.
    pub is_live: bool,
    /// The store's node reports it; its device may hang.
    pub is_heard: bool,
    /// The store takes new replicas and leaders.
    pub is_serving: bool,
    /// The replicas of the store must be rebuilt elsewhere.
    pub is_lost: bool,
    /// The replicas of the store must move elsewhere.
    pub is_leaving: bool,
    /// The store should lead no longer: it leaves, is full, or its device hangs.
    pub is_unfit: bool,
    /// The store refuses writes because its device is full.
    pub is_full: bool,
    /// An append to the store does not end.
    pub hangs: bool,
    /// The store must give data away.
    pub is_nearly_full: bool,
    /// Number of the failure domain: equal for stores that fail together.
    pub domain: usize,
    /// Class by which leaders are placed; equal for all stores in mode `even`.
    pub class: SpeedClass,
    /// Class by which data is placed.
    pub data_class: SpeedClass,
    /// Class that the store measured last, if that is at least two classes below `class`.
    pub suffers: Option<SpeedClass>,
    /// Data weight; 0 for a store to and from which nothing is balanced.
    pub weight: u64,
    /// Bytes of its replicas plus a constant for each.
    pub bytes: u64,
    /// Regions that it leads.
    pub leaders: u64,
    /// Operations a second of the regions that it leads plus a constant for each.
    pub led_ops: u64,
    /// Reading operations a second of the regions that it leads.
    pub led_reads: u64,
    /// Reading operations a second that the device can do; `None` if unknown.
    pub read_speed: Option<u64>,
    /// Bytes of the regions that it sends or receives.
    pub moving_bytes: u64,
    /// Regions that it sends or receives.
    pub moving: u64,
    /// Replicas that it is going to receive.
    pub receiving: u64,
    /// Space of the store, with what is under way to it.
    pub room: Room,
}

/// Space of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes in use.
    pub held: u64,
    /// Bytes of replicas that are under way to the store.
    pub coming: u64,
    /// Bytes up to which new replicas fill the store; `u64::MAX` if unknown.
    pub limit: u64,
}

impl Room {
    /// Whether `bytes` more fit.
    pub fn fits(&self, bytes: u64) -> bool {
        self.held.saturating_add(self.coming).saturating_add(bytes) <= self.limit
    }
}

impl Load {
    /// Returns what the store holds, by its data weight.
    pub fn data_level(&self) -> Level {
        Level { held: self.bytes, weight: self.weight.max(1) }
    }

    pub(crate) fn leader_level(&self) -> Level {
        Level { held: self.led_ops, weight: self.class.per_second() }
    }

    /// Returns the reading operations a second that leaders may cause on the store; `None` if its
    /// read speed is unknown.
    pub(crate) fn reads_max(&self) -> Option<u64> {
        self.read_speed.map(|speed| speed.saturating_mul(READS_PERCENT_MAX) / 100)
    }

    /// Whether the store can serve the reads of one more leader, which `from` led before: they stay
    /// below the bound, or `from` is even closer to the speed of its device.
    pub(crate) fn can_read(&self, reads: u64, from: Option<&Self>) -> bool {
        let after = self.led_reads.saturating_add(reads);
        let is_within = self.reads_max().is_none_or(|max| after <= max);
        let level = |load: &Self, held| Some(Level { held, weight: load.read_speed?.max(1) });
        let relieves = from.and_then(|from| {
            let (here, there) = (level(self, after)?, level(from, from.led_reads)?);
            Some(!here.is_at_least(there))
        });
        // bug placement.read_bound_ignored: `relieves == Some(true)` is `true`
        is_within || relieves == Some(true)
    }
}

/// All stores that are not removed, and the mean levels.
#[derive(Clone, Debug, Default)]
pub struct Loads {
    /// Ascending by number.
    stores: Vec<Load>,
    /// Positions by the numbers of the stores, which are small; empty if they are not.
    positions: Vec<Option<u16>>,
    /// Sums over the stores with a data weight.
    data: Level,
    /// Sums over the stores that take leaders.
    leading: Level,
    /// Failure domains with a store that takes replicas, ascending.
    domains_serving: Vec<usize>,
    /// Failure domains with a store that is a member and live, which may be full.
    pub(super) domains_live: usize,
}

impl Loads {
    /// Computes the loads after all operators of `view` are done.
    pub fn of(view: &super::ClusterView<'_>) -> Self {
        super::region_survey::RegionSurvey::of(view).loads
    }

    pub(super) fn new(stores: Vec<Load>) -> Self {
        let last = stores.last().map_or(0, |load| load.store.0);
        let mut positions = Vec::new();
        if let Ok(last) = usize::try_from(last)
            && last <= usize::from(u16::MAX)
        {
            positions.resize(last + 1, None);
            for (at, load) in (0_u16..).zip(&stores) {
                if let Some(slot) = positions.get_mut(load.store.0 as usize) {
                    *slot = Some(at);
                }
            }
        }
        let serving = stores.iter().filter(|load| load.is_serving);
        let mut domains_serving: Vec<usize> = serving.map(|load| load.domain).collect();
        domains_serving.sort_unstable();
        domains_serving.dedup();
        Self { stores, positions, domains_serving, ..Self::default() }
    }

    pub(super) fn finish(&mut self, weigh: impl FnOnce(&mut [Load])) {
        weigh(&mut self.stores);
        let weighted = self.stores.iter().filter(|load| load.weight > 0);
        self.data = sum(weighted.map(Load::data_level));
        let leading = self.stores.iter().filter(|load| load.is_serving);
        self.leading = sum(leading.map(Load::leader_level));
    }

    /// Iterates over the stores, ascending by number.
    pub fn iter(&self) -> impl Iterator<Item = &Load> {
        self.stores.iter()
    }

    /// Returns the position of a store; `None` for one that was removed.
    pub(super) fn position(&self, store: StoreId) -> Option<usize> {
        if self.positions.is_empty() {
            return self.stores.binary_search_by_key(&store, |load| load.store).ok();
        }
        let at = usize::try_from(store.0).ok()?;
        self.positions.get(at).copied().flatten().map(usize::from)
    }

    /// Returns the state of a store; `None` for one that was removed.
    pub fn get(&self, store: StoreId) -> Option<&Load> {
        self.position(store).and_then(|at| self.stores.get(at))
    }

    pub(super) fn get_mut(&mut self, store: StoreId) -> Option<&mut Load> {
        self.position(store).and_then(|at| self.stores.get_mut(at))
    }

    pub(super) fn at(&self, at: usize) -> Option<&Load> {
        self.stores.get(at)
    }

    /// Whether two stores are in the same failure domain. Invariant: voters of a region are not.
    pub fn share_domain(&self, a: StoreId, b: StoreId) -> bool {
        match (self.get(a), self.get(b)) {
            (Some(first), Some(second)) => first.domain == second.domain,
            _ => a == b,
        }
    }

    /// Whether a replica can lead: it votes, has caught up, and its store takes leaders.
    pub fn can_lead(&self, info: &RegionInfo, peer: &Peer) -> bool {
        settled(peer.role) == PeerRole::Voter
            && info.is_caught_up(peer.id)
            && self.get(peer.store).is_some_and(|load| load.is_serving)
    }

    /// Whether the replica's store is live and the region's leader can reach the replica.
    pub fn is_reachable(&self, info: &RegionInfo, peer: &Peer) -> bool {
        self.get(peer.store).is_some_and(|load| load.is_live)
            && !info.down.iter().any(|down| down.peer == peer.id)
    }

    pub(crate) fn best_class(&self, info: &RegionInfo) -> Option<SpeedClass> {
        let able = info.region.peers.iter().filter(|peer| self.can_lead(info, peer));
        able.filter_map(|peer| self.get(peer.store)).map(|load| load.class).max()
    }

    pub(super) fn domains_serving(&self) -> usize {
        self.domains_serving.len()
    }

    pub(super) fn domains_among(&self, stores: impl Iterator<Item = StoreId>) -> usize {
        let mut domains: Vec<usize> = stores
            .filter_map(|store| self.get(store).map(|load| load.domain))
            .filter(|domain| self.domains_serving.binary_search(domain).is_ok())
            .collect();
        domains.sort_unstable();
        domains.dedup();
        domains.len()
    }

    pub(crate) fn data_mean(&self) -> Level {
        self.data
    }

    pub(crate) fn leader_mean(&self) -> Level {
        self.leading
    }

    pub(super) fn is_data_apart(&self, from: Level, to: Level) -> bool {
        is_apart(from, to, self.data, crate::config::BALANCE_TOLERANCE_PERCENT)
    }

    pub(super) fn is_leading_apart(&self, from: Level, to: Level) -> bool {
        is_apart(from, to, self.leading, LEADER_TOLERANCE_PERCENT)
    }

    pub(super) fn is_data_within(&self, level: Level, percent: u64) -> bool {
        is_within(level, self.data, percent)
    }

    pub(super) fn add(&mut self, planned: &Planned<'_>) {
        for store in stores_of(&planned.peers) {
            if let Some(load) = self.get_mut(store) {
                load.bytes = load.bytes.saturating_add(planned.weight);
            }
        }
        if let Some(load) = planned.leader.and_then(|leader| self.get_mut(leader)) {
            load.leaders += planned.leaders;
            load.led_ops = load.led_ops.saturating_add(planned.cost.ops);
            load.led_reads = load.led_reads.saturating_add(planned.cost.reads);
        }
    }

    /// Takes back what [`Loads::add`] counted.
    pub(super) fn subtract(&mut self, planned: &Planned<'_>) {
        for store in stores_of(&planned.peers) {
            if let Some(load) = self.get_mut(store) {
                load.bytes = load.bytes.saturating_sub(planned.weight);
            }
        }
        if let Some(load) = planned.leader.and_then(|leader| self.get_mut(leader)) {
            load.leaders = load.leaders.saturating_sub(planned.leaders);
            load.led_ops = load.led_ops.saturating_sub(planned.cost.ops);
            load.led_reads = load.led_reads.saturating_sub(planned.cost.reads);
        }
    }

    /// Counts a replica of `info` that is going to be copied to `to` from the region's leader.
    pub fn place(&mut self, info: &RegionInfo, to: StoreId) {
        if let Some(load) = self.get_mut(to) {
            load.bytes = load.bytes.saturating_add(place::weight(info));
        }
        self.note_copy(info, to);
    }

    /// Counts the copy of a region from its leader to a store, without the replica that it makes.
    pub(super) fn note_copy(&mut self, info: &RegionInfo, to: StoreId) {
        let bytes = info.size_bytes;
        if let Some(load) = self.get_mut(to) {
            load.receiving += 1;
            load.room.coming = load.room.coming.saturating_add(bytes);
        }
        let sender = info.leader.map(|leader| leader.store);
        for store in [Some(to), sender].into_iter().flatten() {
            if let Some(load) = self.get_mut(store) {
                load.moving += 1;
                load.moving_bytes = load.moving_bytes.saturating_add(bytes);
            }
        }
    }

    /// Counts the move of a replica.
    pub fn move_replica(&mut self, info: &RegionInfo, from: StoreId, to: StoreId) {
        self.place(info, to);
        self.remove(info, from);
    }

    /// Counts the removal of a replica.
    pub fn remove(&mut self, info: &RegionInfo, from: StoreId) {
        if let Some(load) = self.get_mut(from) {
            load.bytes = load.bytes.saturating_sub(place::weight(info));
        }
    }

    /// Counts the move of a leader of a region with this traffic.
    pub fn move_leader(&mut self, cost: LeaderCost, from: StoreId, to: StoreId) {
        if let Some(load) = self.get_mut(to) {
            load.leaders += 1;
            load.led_ops = load.led_ops.saturating_add(cost.ops);
            load.led_reads = load.led_reads.saturating_add(cost.reads);
        }
        if let Some(load) = self.get_mut(from) {
            load.leaders = load.leaders.saturating_sub(1);
            load.led_ops = load.led_ops.saturating_sub(cost.ops);
            load.led_reads = load.led_reads.saturating_sub(cost.reads);
        }
    }

    /// Returns the data class at which a write of a region with these voters is committed: that of
    /// the second fastest of three, the third fastest of five.
    pub fn quorum_class(&self, voters: impl Iterator<Item = StoreId>) -> SpeedClass {
        let class = |store| self.get(store).map(|load| load.data_class).unwrap_or_default();
        let mut classes: Vec<SpeedClass> = voters.map(class).collect();
        classes.sort_unstable_by(|a, b| b.cmp(a));
        classes.get(classes.len() / 2).copied().unwrap_or_default()
    }
}

fn sum(levels: impl Iterator<Item = Level>) -> Level {
    levels.fold(Level::default(), |sum, level| Level {
        held: sum.held.saturating_add(level.held),
        weight: sum.weight.saturating_add(level.weight),
    })
}

/// Work of a region's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderCost {
    /// Operations a second plus a constant.
    pub ops: u64,
    /// Reading operations a second.
    pub reads: u64,
}

impl LeaderCost {
    /// Returns the work of the leader of `info`.
    pub fn of(info: &RegionInfo, now: crate::Millis) -> Self {
        let rates = info.heat.at(now);
        // bug placement.leaders_by_count: let rates = crate::heat::Rates::default();
        Self { ops: rates.ops().saturating_add(IDLE_REGION_OPS), reads: rates.reads }
    }
}

pub(super) fn stores_of(peers: &[Peer]) -> impl Iterator<Item = StoreId> {
    peers.iter().map(|peer| peer.store)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Planned<'a> {
    /// Replicas; each adds `weight` to its store.
    pub peers: Cow<'a, [Peer]>,
    /// Bytes and the constant of a replica.
    pub weight: u64,
    pub leader: Option<StoreId>,
    /// Leaders that the region adds to that store: 0 or 1.
    pub leaders: u64,
    pub cost: LeaderCost,
}

impl<'a> Planned<'a> {
    /// Returns the loads of a region after its operator, or the present ones without an operator.
    ///
    /// Invariant: a region that is merged into another one adds its bytes and its traffic to the
    /// stores of that one, but neither a replica nor a leader. Otherwise the stores of the target
    /// would seem to hold more than they will, and regions would move away and return.
    pub(super) fn of(
        cluster: &Cluster,
        info: &'a RegionInfo,
        operator: Option<&Operator>,
        now: Millis,
    ) -> Self {
        let peers = match operator {
            Some(operator) => Cow::Owned(operator.final_peers(&info.region)),
            None => Cow::Borrowed(&info.region.peers[..]),
        };
        let cost = LeaderCost::of(info, now);
        let target = operator.and_then(Operator::other_region);
        let target = target.and_then(|target| cluster.regions().get(target));
        // bug placement.merge_keeps_its_source: `target` is `None`
        match target {
            Some(target) => Self {
                peers,
                weight: info.size_bytes,
                leader: target.leader.map(|leader| leader.store),
                leaders: 0,
                cost: LeaderCost { ops: cost.ops.saturating_sub(IDLE_REGION_OPS), ..cost },
            },
            None => {
                let planned = operator.and_then(Operator::final_leader);
                let leader = planned.or(info.leader.map(|leader| leader.store));
                Self { peers, weight: place::weight(info), leader, leaders: 1, cost }
            }
        }
    }
}
