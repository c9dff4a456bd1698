//! Judgement of one store for one region: the rule that decides, with its numbers.
//!
//! The schedulers decide by these functions, and `explain` prints what they return. No rule of
//! balancing exists twice.
//!
//! Invariant: a leader moves for speed once a minute, or when its store becomes four times slower, and data moves
//! only for a class that has lasted. A replica stays for a minute where balancing has placed it.
//! Test: `random_clusters_lose_nothing_and_come_to_rest`.

use super::load::{LeaderCost, Load, Loads, Room, stores_of};
use super::weights::{Level, improves};
use super::{ClusterView, place};
use crate::config::Mode;
use crate::operator::recent_moves::MOVE_PAUSE_MILLIS;
use crate::operator::settled;
use crate::region_info::RegionInfo;
use crate::speed::SpeedClass;
use stele_types::{Peer, PeerRole, RegionKind, RegionPhase, StoreId};

/// Classes between the best voter and the leader from which the leadership moves: a factor of 1.5
/// at least. Stores less far apart share the leaders by load over speed.
pub(crate) const GAP_CLASSES_MIN: u8 = 2;
/// Classes between the best voter and the leader from which the leadership moves at once: a factor
/// of four. Classes rise only after a minute, so that such moves stay few.
pub(crate) const EVICTION_CLASSES_MIN: u8 = 4;
/// Level of a store's data, in percent of the mean, up to which mode `quorum` moves replicas to it.
pub(crate) const QUORUM_BAND_PERCENT: u64 = 110;

/// Rule that decided on a store for a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The store.
    pub store: StoreId,
    /// The rule, with the numbers that it compared.
    pub rule: Rule,
}

/// Rules of balancing. Levels are in thousandths of the mean over all stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Leads, and no other voter takes the lead.
    Leads,
    /// Leads until this store takes the lead.
    LeadsUntil(StoreId),
    /// Takes the lead: its store is faster.
    TakesLead {
        /// Class of the store.
        class: SpeedClass,
        /// Class of the leader's store.
        leader: SpeedClass,
    },
    /// Takes the lead: its store has less to do for its speed.
    SharesLead {
        /// Level of the leader's store after the move.
        from_after: u64,
        /// Level of this store after the move.
        to_after: u64,
    },
    /// The region has no known leader.
    NoLeader,
    /// The replica has no vote.
    IsLearner,
    /// The replica lags, or its leader cannot reach it.
    Lags,
    /// The store takes neither replicas nor leaders, for this reason.
    TakesNone(&'static str),
    /// Another voter's store is faster.
    Slower {
        /// Class of the store.
        class: SpeedClass,
        /// Best class of the voters that can lead.
        best: SpeedClass,
    },
    /// The device could not serve the reads of one more leader.
    ReadBound {
        /// Reads a second after the move.
        reads: u64,
        /// Bound.
        max: u64,
    },
    /// The leadership of the region moved a short time ago.
    MovedRecently {
        /// Seconds until it may move again.
        seconds: u64,
    },
    /// The leaders' load is even.
    LeadersEven {
        /// Level of the leader's store.
        from: u64,
        /// Level of this store.
        to: u64,
    },
    /// The move of the leader would turn the difference round.
    LeadersNotImproved {
        /// Level of the leader's store after the move.
        from_after: u64,
        /// Level of this store after the move.
        to_after: u64,
    },
    /// The region cannot be balanced now, for this reason.
    Fixed(&'static str),
    /// The store has a replica.
    HasReplica,
    /// The store fails together with a store that has a replica.
    SharesDomain {
        /// That store.
        with: StoreId,
        /// Label of the failure domain; `None` for the node.
        label: Option<String>,
    },
    /// The store refuses writes because its device is full.
    Full,
    /// The store has no room.
    TooFull(Room),
    /// The store already receives as many replicas as allowed.
    Receives {
        /// Limit.
        max: u64,
    },
    /// Too many bytes would be moving from or to a store.
    MovesEnough {
        /// That store.
        store: StoreId,
        /// Bytes that it sends or receives.
        bytes: u64,
        /// Limit.
        max: u64,
    },
    /// A store is slower than its class while it sends or receives.
    Suffers {
        /// That store.
        store: StoreId,
        /// Class measured last.
        measured: SpeedClass,
        /// Its class.
        class: SpeedClass,
    },
    /// Balancing placed the replica a short time ago.
    ReplicaMovedRecently {
        /// Store that would give its replica.
        from_store: StoreId,
        /// Seconds until the replica may move again.
        seconds: u64,
    },
    /// The data is even.
    DataEven {
        /// Store that would give its replica.
        from_store: StoreId,
        /// Its level.
        from: u64,
        /// Level of this store.
        to: u64,
    },
    /// The move would turn the difference round (ALOR, equation 1).
    DataNotImproved {
        /// Store that would give its replica.
        from_store: StoreId,
        /// Its level after the move.
        from_after: u64,
        /// Level of this store after the move.
        to_after: u64,
    },
    /// Writes of the region would wait for a slower store.
    LowersQuorum {
        /// Class that commits writes now.
        before: SpeedClass,
        /// Class that would commit them.
        after: SpeedClass,
    },
    /// Takes a replica: the data becomes more even for the weights.
    TakesReplica {
        /// Store that gives its replica.
        from_store: StoreId,
        /// Its level after the move.
        from_after: u64,
        /// Level of this store after the move.
        to_after: u64,
        /// Writes of the region wait for a slower store afterwards.
        lowers_quorum: bool,
    },
    /// Takes a replica: writes of the region then wait for a faster store.
    RaisesQuorum {
        /// Store that gives its replica.
        from_store: StoreId,
        /// Class that commits writes now.
        before: SpeedClass,
        /// Class that will commit them.
        after: SpeedClass,
    },
    /// The store would be above its share, or writes would not wait for a faster store.
    NoFasterQuorum {
        /// Class that commits writes now.
        before: SpeedClass,
        /// Class that would commit them.
        after: SpeedClass,
        /// Level of this store after the move.
        to_after: u64,
    },
}

impl Rule {
    /// Whether the rule moves the leader or a replica to the store.
    pub fn is_move(&self) -> bool {
        matches!(
            self,
            Self::TakesLead { .. }
                | Self::SharesLead { .. }
                | Self::TakesReplica { .. }
                | Self::RaisesQuorum { .. }
        )
    }
}

/// Judges a store for a region: as the leader's, as a voter's that could lead, or as a candidate for
/// a replica.
pub fn judge(view: &ClusterView<'_>, loads: &Loads, info: &RegionInfo, store: StoreId) -> Verdict {
    let rule = match info.region.peer_on(store) {
        Some(peer) if info.leader.is_some_and(|leader| leader.id == peer.id) => {
            let cost = LeaderCost::of(info, view.now);
            let next = place::better_leader(view, loads, info, cost);
            next.map_or(Rule::Leads, |(peer, _)| Rule::LeadsUntil(peer.store))
        }
        Some(peer) => judge_leader(view, loads, info, LeaderCost::of(info, view.now), peer),
        None => judge_candidate(view, loads, info, store),
    };
    Verdict { store, rule }
}

/// Judges a candidate for a replica: against each present replica, the highest level first. Returns
/// the first move, or the refusal against the highest level.
fn judge_candidate(view: &ClusterView<'_>, loads: &Loads, info: &RegionInfo, to: StoreId) -> Rule {
    let mut from: Vec<&Load> =
        stores_of(&info.region.peers).filter_map(|store| loads.get(store)).collect();
    from.sort_by_key(|load| (std::cmp::Reverse(load.data_level().key()), load.store));
    let mut first = None;
    for from in from {
        let moved = judge_move(view, loads, info, from.store, to);
        let raised = match view.cluster.config().mode() {
            Mode::Quorum if !moved.is_move() => judge_quorum(view, loads, info, from.store, to),
            _ => moved.clone(),
        };
        if let Some(rule) = [&moved, &raised].into_iter().find(|rule| rule.is_move()) {
            return rule.clone();
        }
        first = first.or(Some(moved));
    }
    first.unwrap_or(Rule::Fixed("its members are unknown"))
}

/// Judges whether a voter takes the lead from the present leader.
///
/// Invariant: leaders move to stores of the best class or one below it. Inside these, which balance
/// by load, no speed rule moves them again; thus balancing ends while classes and loads stay.
pub(crate) fn judge_leader(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    cost: LeaderCost,
    peer: &Peer,
) -> Rule {
    let Some(leader) = info.leader else { return Rule::NoLeader };
    if info.region.kind != RegionKind::Data {
        return Rule::Fixed("the placement leader stays where it is");
    }
    if info.region.is_joint() || info.region.phase != RegionPhase::Normal {
        return Rule::Fixed("another change of the region is under way");
    }
    if settled(peer.role) != PeerRole::Voter {
        return Rule::IsLearner;
    }
    // bug placement.lagging_leader: never
    if !info.is_caught_up(peer.id) {
        return Rule::Lags;
    }
    let Some(to) = loads.get(peer.store).filter(|load| load.is_serving) else {
        return Rule::TakesNone(place::takes_no_leader(loads.get(peer.store)));
    };
    let Some(from) = loads.get(leader.store) else { return Rule::NoLeader };
    let best = best_reader_class(loads, info, cost, from).max(to.class);
    if to.class.0 + GAP_CLASSES_MIN <= best.0 {
        return Rule::Slower { class: to.class, best };
    }
    if !to.can_read(cost.reads, Some(from)) {
        let (reads, max) = (to.led_reads.saturating_add(cost.reads), to.reads_max());
        return Rule::ReadBound { reads, max: max.unwrap_or(u64::MAX) };
    }
    let rule = judge_leader_by_load(loads, cost, from, to, best);
    let is_eviction = matches!(rule, Rule::TakesLead { class, leader }
        if leader.0.saturating_add(EVICTION_CLASSES_MIN) <= class.0);
    if let Some(moved) = view.operators.leader_moved(info.region.id, view.now)
        && rule.is_move()
        && !is_eviction
    {
        let left = MOVE_PAUSE_MILLIS.saturating_sub(view.now.since(moved));
        return Rule::MovedRecently { seconds: left.div_ceil(1000) };
    }
    rule
}

fn judge_leader_by_load(
    loads: &Loads,
    cost: LeaderCost,
    from: &Load,
    to: &Load,
    best: SpeedClass,
) -> Rule {
    let is_slow = from.class.0 + GAP_CLASSES_MIN <= best.0;
    // bug placement.speed_gap_ignored: never
    if is_slow {
        return Rule::TakesLead { class: to.class, leader: from.class };
    }
    let mean = loads.leader_mean();
    let (high, low) = (from.leader_level(), to.leader_level());
    let permille = |level: Level| level.permille(mean);
    if !loads.is_leading_apart(high, low) {
        return Rule::LeadersEven { from: permille(high), to: permille(low) };
    }
    let (from_after, to_after) = (permille(high.without(cost.ops)), permille(low.with(cost.ops)));
    match improves(high, low, cost.ops) {
        true => Rule::SharesLead { from_after, to_after },
        false => Rule::LeadersNotImproved { from_after, to_after },
    }
}

fn best_reader_class(
    loads: &Loads,
    info: &RegionInfo,
    cost: LeaderCost,
    from: &Load,
) -> SpeedClass {
    let others = info.region.peers.iter().filter(|peer| loads.can_lead(info, peer));
    let others = others.filter_map(|peer| loads.get(peer.store));
    let able =
        others.filter(|load| load.store == from.store || load.can_read(cost.reads, Some(from)));
    able.map(|load| load.class).max().unwrap_or_default()
}

pub(crate) fn judge_move(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
    to: StoreId,
) -> Rule {
    let (from_load, to_load) = match check_move(view, loads, info, from, to) {
        Ok(pair) => pair,
        Err(rule) => return rule,
    };
    let (high, low, bytes) = (from_load.data_level(), to_load.data_level(), place::weight(info));
    let mean = loads.data_mean();
    let permille = |level: Level| level.permille(mean);
    if !loads.is_data_apart(high, low) {
        return Rule::DataEven { from_store: from, from: permille(high), to: permille(low) };
    }
    let (after_high, after_low) = (high.without(bytes), low.with(bytes));
    let (from_after, to_after) = (permille(after_high), permille(after_low));
    if !improves(high, low, bytes) {
        return Rule::DataNotImproved { from_store: from, from_after, to_after };
    }
    let (before, after) = quorum_classes(loads, info, from, to);
    let lowers_quorum = view.cluster.config().mode() == Mode::Quorum && after < before;
    // Invariant: such a move lowers the bytes above the band, which no other move raises. Moves that
    // lower and raise the class of a region thus do not alternate permanently.
    let keeps_band = !loads.is_data_within(after_high, QUORUM_BAND_PERCENT)
        && loads.is_data_within(after_low, QUORUM_BAND_PERCENT);
    // bug placement.quorum_lowered: never
    if lowers_quorum && !keeps_band {
        return Rule::LowersQuorum { before, after };
    }
    Rule::TakesReplica { from_store: from, from_after, to_after, lowers_quorum }
}

/// Judges the move of a follower so that writes of the region wait for a faster store (mode
/// `quorum`). The target stays within the band above the mean.
///
/// Balancing ends in this mode, too. Let E be the bytes above the band, over all stores. A move by
/// the data weights does not raise E, and one that lowers the class of a region lowers E by the
/// region's size: there are finitely many of those. A move here does not raise E and raises a class.
/// Between two moves that lower classes there are thus finitely many moves here, and between these
/// every other move lowers the sum of S² / W.
pub(crate) fn judge_quorum(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
    to: StoreId,
) -> Rule {
    if info.leader.is_some_and(|leader| leader.store == from) {
        return Rule::Fixed("its leader moves by its own rule");
    }
    let to_load = match check_move(view, loads, info, from, to) {
        Ok((_, to)) => to,
        Err(rule) => return rule,
    };
    let (before, after) = quorum_classes(loads, info, from, to);
    let level = to_load.data_level().with(place::weight(info));
    let is_faster = before.0.saturating_add(GAP_CLASSES_MIN) <= after.0;
    match is_faster && loads.is_data_within(level, QUORUM_BAND_PERCENT) {
        true => Rule::RaisesQuorum { from_store: from, before, after },
        false => {
            Rule::NoFasterQuorum { before, after, to_after: level.permille(loads.data_mean()) }
        }
    }
}

/// Returns the classes that commit the region's writes before and after the move of a replica.
fn quorum_classes(
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
    to: StoreId,
) -> (SpeedClass, SpeedClass) {
    let moved = |store: StoreId| if store == from { to } else { store };
    let before = loads.quorum_class(stores_of(&info.region.peers));
    (before, loads.quorum_class(stores_of(&info.region.peers).map(moved)))
}

fn check_move<'a>(
    view: &ClusterView<'_>,
    loads: &'a Loads,
    info: &RegionInfo,
    from: StoreId,
    to: StoreId,
) -> Result<(&'a Load, &'a Load), Rule> {
    let old = info.region.peer_on(from).copied();
    if let Some(rule) = place::refusal(view, loads, info, old.as_slice(), &[], to) {
        return Err(rule);
    }
    if let Some(reason) = fixed(view, loads, info, from) {
        return Err(Rule::Fixed(reason));
    }
    if let Some(rule) = moved_recently(view, loads, old, from) {
        return Err(rule);
    }
    if let Some(rule) = place::over_budget(view, loads, info, to) {
        return Err(rule);
    }
    let weighed = |store| loads.get(store).filter(|load| load.weight > 0);
    match (weighed(from), weighed(to)) {
        (Some(from), Some(to)) => Ok((from, to)),
        _ => Err(Rule::Fixed("its replica leaves by another rule")),
    }
}

/// Returns how long a replica stays where balancing placed it.
///
/// Invariant: balancing moves a replica at most once a minute, unless its store is nearly full, or data
/// follows speeds sooner than that: a pause must not delay what a new class demands. While regions split and merge, the difference of two stores changes its sign with their number. The same
/// region, which suits best each time, would be copied to and fro.
/// Test: `a_replica_that_was_moved_stays_for_a_minute_while_regions_split`.
fn moved_recently(
    view: &ClusterView<'_>,
    loads: &Loads,
    old: Option<Peer>,
    from: StoreId,
) -> Option<Rule> {
    let moved = view.operators.replica_moved(old?.id, view.now)?;
    let follows_millis = view.cluster.config().slow_data_after_seconds.saturating_mul(1000);
    let pause_millis = MOVE_PAUSE_MILLIS.min(follows_millis);
    // bug placement.replica_pause_outlasts_class: let pause_millis = MOVE_PAUSE_MILLIS;
    let left = pause_millis.saturating_sub(view.now.since(moved));
    let must_leave = loads.get(from).is_some_and(|load| load.is_nearly_full);
    // bug placement.moved_replica_fills_store: let must_leave = false;
    let stays = left > 0 && !must_leave;
    let seconds = left.div_ceil(1000);
    stays.then_some(Rule::ReplicaMovedRecently { from_store: from, seconds })
}

/// Returns why no replica of the region is moved from `from` for the balance.
/// Invariant: only the replica that leaves may lag. All others are voters that have caught up.
fn fixed(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
) -> Option<&'static str> {
    let region = &info.region;
    if region.kind != RegionKind::Data {
        return Some("the placement group's region stays where it is");
    }
    if region.is_joint()
        || region.phase != RegionPhase::Normal
        || view.operators.has_operator(region.id)
    {
        return Some("another change of the region is under way");
    }
    let wanted = view.wanted(region.kind).min(loads.domains_live);
    if region.peers.len() != wanted {
        return Some("the region has too few or too many replicas");
    }
    let is_ready = |peer: &Peer| {
        let is_whole = loads.is_reachable(info, peer) && info.is_caught_up(peer.id);
        let may_lag = peer.store == from && info.leader.is_none_or(|l| l.id != peer.id);
        // bug placement.any_replica_may_lag: let may_lag = true;
        peer.role == PeerRole::Voter && (is_whole || may_lag)
    };
    match region.peers.iter().all(is_ready) {
        true => None,
        false => Some("another replica lags or does not respond"),
    }
}
