//! Placement of a replica, and of a leader.
//!
//! Invariant: a drain, a repair and a balance choose a leader by one order: none undoes the choice of another.
//! Test: `the_leader_that_a_drain_chooses_is_not_moved_by_speed_again`.

use super::ClusterView;
use super::judge::{GAP_CLASSES_MIN, QUORUM_BAND_PERCENT, Rule, judge_leader};
use super::load::{LeaderCost, Load, Loads};
use crate::config::{FREE_BYTES_ENOUGH, FREE_PERCENT_MIN, Mode};
use crate::region_info::RegionInfo;
use std::cmp::Reverse;
use stele_types::{Peer, StoreId};

/// Cost of a replica besides its bytes: an empty region causes work, too.
const REPLICA_BYTES: u64 = 16 << 20;

/// Returns the weight of a region's replica when stores are compared.
pub fn weight(info: &RegionInfo) -> u64 {
    info.size_bytes.saturating_add(REPLICA_BYTES)
}

pub(super) fn reserve_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 100 * FREE_PERCENT_MIN).min(FREE_BYTES_ENOUGH)
}

/// Returns why a store cannot take a replica of a region; `None` if it can. Ignores the members in
/// `leaving`.
pub fn refusal(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    leaving: &[Peer],
    adding: &[StoreId],
    to: StoreId,
) -> Option<Rule> {
    let load = match loads.get(to) {
        Some(load) if load.is_serving => load,
        Some(load) if load.is_live && load.is_full => return Some(Rule::Full),
        load => return Some(Rule::TakesNone(takes_no_replica(load))),
    };
    if info.region.peer_on(to).is_some() {
        return Some(Rule::HasReplica);
    }
    let stays = info.region.peers.iter().filter(|peer| !leaving.contains(peer));
    let mut taken = stays.map(|peer| peer.store).chain(adding.iter().copied());
    if let Some(with) = taken.find(|other| loads.share_domain(*other, to)) {
        let label = view.cluster.domain_label().map(str::to_owned);
        return Some(Rule::SharesDomain { with, label });
    }
    let fits = load.room.fits(info.size_bytes);
    // bug placement.room_ignored: let fits = true;
    (!fits).then_some(Rule::TooFull(load.room))
}

/// Returns why a store that is not full takes no replicas.
fn takes_no_replica(load: Option<&Load>) -> &'static str {
    match load {
        None => "takes no replicas: it is removed",
        Some(load) if !load.is_live => "takes no replicas: it is unreachable",
        Some(load) if load.is_leaving => "takes no replicas: it is being emptied",
        Some(_) => "takes no replicas: its node is stopping",
    }
}

pub(super) fn takes_no_leader(load: Option<&Load>) -> &'static str {
    match load {
        None => "takes no leaders: it is removed",
        Some(load) if !load.is_live => "takes no leaders: it is unreachable",
        Some(load) if load.is_leaving => "takes no leaders: it is being emptied",
        Some(load) if load.is_full => "takes no leaders: it is full",
        Some(_) => "takes no leaders: its node is stopping",
    }
}

/// Returns why a region must not start to move to `to` now: the target, or the leader that sends,
/// moves enough already. A store that moves nothing may always take or send one region.
pub(crate) fn over_budget(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    to: StoreId,
) -> Option<Rule> {
    if let Some(rule) = receives_enough(view, loads, to) {
        return Some(rule);
    }
    let max = view.cluster.config().moving_bytes_max;
    let sender = info.leader.map(|leader| leader.store);
    let ends = [Some(to), sender].into_iter().flatten().filter_map(|store| loads.get(store));
    for load in ends.filter(|load| load.moving > 0) {
        let bytes = load.moving_bytes;
        let is_over = bytes.saturating_add(info.size_bytes) > max;
        // bug placement.move_budget_ignored: never
        if is_over {
            return Some(Rule::MovesEnough { store: load.store, bytes, max });
        }
        // bug placement.suffering_store_moves: never
        if let Some(measured) = load.suffers {
            let class = view.cluster.class_of(load.store);
            return Some(Rule::Suffers { store: load.store, measured, class });
        }
    }
    None
}

/// Whether the store takes no further region at present, of whatever size and leader: a comparison of
/// all regions with it is needless.
pub(super) fn is_busy(view: &ClusterView<'_>, loads: &Loads, to: &Load) -> bool {
    let is_at_limit = to.moving_bytes >= view.cluster.config().moving_bytes_max;
    receives_enough(view, loads, to.store).is_some()
        || (to.moving > 0 && (is_at_limit || to.suffers.is_some()))
}

fn receives_enough(view: &ClusterView<'_>, loads: &Loads, to: StoreId) -> Option<Rule> {
    let max = view.cluster.config().snapshots_max;
    let receiving = loads.get(to).map_or(0, |load| load.receiving);
    (receiving >= max).then_some(Rule::Receives { max })
}

/// Kind of a search for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A lost or missing replica: the bytes in motion do not count.
    Repair,
    /// A replica that leaves its store: the budget of bytes in motion counts.
    Move,
}

/// Returns the store that can take a replica of a region and then has the lowest level. The error is
/// the reason why there is none.
pub fn target(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    (leaving, adding): (&[Peer], &[StoreId]),
    urgency: Urgency,
) -> Result<StoreId, String> {
    let mut refusals = Vec::new();
    let mut busy = None;
    let mut best: Option<(Rank, StoreId)> = None;
    for load in loads.iter() {
        if let Some(rule) = refusal(view, loads, info, leaving, adding, load.store) {
            if !matches!(rule, Rule::TakesNone(_)) {
                refusals.push((load.store, rule));
            }
            continue;
        }
        let rule = match urgency {
            Urgency::Repair => receives_enough(view, loads, load.store),
            Urgency::Move => over_budget(view, loads, info, load.store),
        };
        if let Some(rule) = rule {
            busy = busy.or(Some((load.store, rule)));
            continue;
        }
        let found = (rank(view, loads, info, leaving, load), load.store);
        if best.is_none_or(|best| found < best) {
            best = Some(found);
        }
    }
    match (best, busy) {
        (Some((_, store)), _) => Ok(store),
        (None, Some((store, rule))) => Err(format!("store {store} {rule}")),
        (None, None) if refusals.is_empty() => Err("no store takes replicas".into()),
        (None, None) => {
            // Room can be added; replicas and domains are the usual reasons.
            refusals.sort_by_key(|(store, rule)| {
                (!matches!(rule, Rule::TooFull(_) | Rule::Full), *store)
            });
            Err(format!("no store can take it: {}", summary(&refusals)))
        }
    }
}

/// Sort key of a target: lower is better.
type Rank = (Reverse<u8>, u128);

/// Ranks a target by its level with the replica. In mode `quorum` the class that commits the
/// region's writes comes first while the store stays within its band.
fn rank(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    leaving: &[Peer],
    load: &Load,
) -> Rank {
    let level = load.data_level().with(weight(info));
    let is_by_quorum = view.cluster.config().mode() == Mode::Quorum
        && loads.is_data_within(level, QUORUM_BAND_PERCENT);
    let class = match is_by_quorum {
        true => {
            let stays = info.region.peers.iter().filter(|peer| !leaving.contains(peer));
            let stores = stays.map(|peer| peer.store).chain([load.store]);
            loads.quorum_class(stores).0
        }
        false => 0,
    };
    (Reverse(class), level.key())
}

fn summary(refusals: &[(StoreId, Rule)]) -> String {
    const SHOWN: usize = 5;
    let more = refusals.len().saturating_sub(SHOWN);
    let shown = refusals.iter().take(SHOWN).map(|(store, rule)| format!("store {store} {rule}"));
    let text = shown.collect::<Vec<_>>().join("; ");
    match more {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// Whether each domain that takes replicas already has one that stays: a search for a target would
/// find none.
pub(super) fn has_every_domain(loads: &Loads, info: &RegionInfo, leaving: &[Peer]) -> bool {
    let stays = info.region.peers.iter().filter(|peer| !leaving.contains(peer));
    loads.domains_among(stays.map(|peer| peer.store)) >= loads.domains_serving()
}

/// Returns the voter that should take the lead from the present leader, with the rule; `None` if
/// the leader stays.
pub fn better_leader(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    cost: LeaderCost,
) -> Option<(Peer, Rule)> {
    let leader = info.leader?;
    let others = info.region.peers.iter().filter(|peer| peer.id != leader.id);
    let judged = others.map(|peer| (peer, judge_leader(view, loads, info, cost, peer)));
    let moves = judged.filter(|(_, rule)| rule.is_move());
    let best = moves.min_by_key(|(peer, _)| leader_level_key(loads, cost, peer.store));
    best.map(|(peer, rule)| (*peer, rule))
}

fn leader_level_key(loads: &Loads, cost: LeaderCost, store: StoreId) -> (u128, StoreId) {
    let level = loads.get(store).map(|load| load.leader_level().with(cost.ops).key());
    (level.unwrap_or(u128::MAX), store)
}

/// Returns the best leader outside `leaving`. The order is that of the leader scheduler, which
/// therefore does not move the leadership again: stores that can serve the region's reads, then the
/// best class and the one below it, then the lowest load over speed.
pub fn next_leader(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    leaving: &[Peer],
) -> Option<Peer> {
    let cost = LeaderCost::of(info, view.now);
    let from = info.leader.and_then(|leader| loads.get(leader.store));
    let able = info.region.peers.iter().filter(|peer| !leaving.contains(peer));
    let able = able.filter(|peer| loads.can_lead(info, peer));
    let able: Vec<(&Peer, &Load)> =
        able.filter_map(|peer| Some((peer, loads.get(peer.store)?))).collect();
    let can_read = |load: &Load| load.can_read(cost.reads, from);
    let readers = able.iter().filter(|(_, load)| can_read(load));
    let best = readers.map(|(_, load)| load.class).max();
    let best = best.or(able.iter().map(|(_, load)| load.class).max())?;
    let key = |load: &Load| {
        // bug placement.next_leader_by_count: return (false, false, (u128::from(load.leaders), load.store));
        let is_slow = load.class.0 + GAP_CLASSES_MIN <= best.0;
        (!can_read(load), is_slow, leader_level_key(loads, cost, load.store))
    };
    able.iter().min_by_key(|(_, load)| key(load)).map(|(peer, _)| **peer)
}
