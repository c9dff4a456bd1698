//! Spreads data by the weights of the stores: regions move from high levels to low ones (ALOR,
//! equation 1), and in mode `quorum` to where a majority is fast.

use super::judge::{Rule, judge_move, judge_quorum};
use super::load::{Load, Loads, stores_of};
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX, place};
use crate::config::Mode;
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use stele_types::{RegionId, RegionKind, StoreId};

/// Limit for the pairs of stores of which the regions are compared for one proposal. Two stores
/// between which nothing can move are rare.
const PAIRS_MAX: usize = 256;
/// Limit for the regions with slow quorums that are compared for one proposal.
const SLOW_QUORUMS_MAX: usize = 1024;

struct Move<'a> {
    info: &'a RegionInfo,
    from: StoreId,
    to: StoreId,
    rule: Rule,
}

/// Returns operators that move replicas.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let config = view.cluster.config();
    let moving = view.operators.count(&[Kind::Balance, Kind::Drain, Kind::Merge]);
    if config.balance == 0 || !view.cluster.is_informed(view.now) {
        return Vec::new();
    }
    let mut loads = survey.loads.clone();
    let mut used = BTreeSet::new();
    let mut out = Vec::new();
    for _ in (moving..config.moves_max).take(PROPOSALS_MAX) {
        let found = faster_quorum(view, &loads, survey, &used)
            .or_else(|| best_move(view, &loads, survey, &used, false))
            .or_else(|| best_move(view, &loads, survey, &used, true));
        let Some(Move { info, from, to, rule }) = found else { break };
        used.insert(info.region.id);
        loads.move_replica(info, from, to);
        out.extend(replace(view, &loads, info, from, to, &rule));
    }
    out
}

fn best_move<'a>(
    view: &ClusterView<'a>,
    loads: &Loads,
    survey: &RegionSurvey,
    used: &BTreeSet<RegionId>,
    may_lower_quorum: bool,
) -> Option<Move<'a>> {
    if may_lower_quorum && view.cluster.config().mode() != Mode::Quorum {
        return None;
    }
    let mut ascending: Vec<&Load> = loads.iter().filter(|load| load.weight > 0).collect();
    ascending.sort_by_key(|load| (load.data_level().key(), load.store));
    // Then every region has a replica in every domain.
    let is_in_all = view.wanted(RegionKind::Data) >= loads.domains_live;
    let mut pairs = 0;
    for from in ascending.iter().rev() {
        for to in &ascending {
            if !loads.is_data_apart(from.data_level(), to.data_level()) {
                break;
            }
            let is_other = is_in_all && from.domain != to.domain;
            if !to.is_serving || is_other || place::is_busy(view, loads, to) {
                continue;
            }
            pairs += 1;
            if pairs > PAIRS_MAX {
                return None;
            }
            let found = best_region(view, (loads, survey, used), from, to, may_lower_quorum);
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Returns the region to move from one store to another: the coldest if the source is nearly full,
/// otherwise a large one of which the leader is elsewhere.
fn best_region<'a>(
    view: &ClusterView<'a>,
    (loads, survey, used): (&Loads, &RegionSurvey, &BTreeSet<RegionId>),
    from: &Load,
    to: &Load,
    may_lower_quorum: bool,
) -> Option<Move<'a>> {
    let is_coldest_first = from.is_nearly_full;
    // bug placement.coldest_not_first: let is_coldest_first = false;
    let rank = |info: &RegionInfo| {
        let rates = info.heat.at(view.now);
        let heat = if is_coldest_first { (rates.ops(), rates.bytes()) } else { (0, 0) };
        let is_led_here = info.leader.is_some_and(|leader| leader.store == from.store);
        (heat, is_led_here, Reverse(place::weight(info)), info.region.id)
    };
    let is_wanted = |rule: &Rule| match rule {
        Rule::TakesReplica { lowers_quorum, .. } => !lowers_quorum || may_lower_quorum,
        _ => false,
    };
    view.without_operator(survey.replicas_on(from.store))
        .filter(|info| !used.contains(&info.region.id))
        .filter_map(|info| {
            let rule = judge_move(view, loads, info, from.store, to.store);
            is_wanted(&rule).then_some((info, rule))
        })
        .min_by_key(|(info, _)| rank(info))
        .map(|(info, rule)| Move { info, from: from.store, to: to.store, rule })
}

/// Returns a move in mode `quorum` after which writes of a region wait for a faster store, of the
/// regions with the slowest quorums first.
fn faster_quorum<'a>(
    view: &ClusterView<'a>,
    loads: &Loads,
    survey: &RegionSurvey,
    used: &BTreeSet<RegionId>,
) -> Option<Move<'a>> {
    let slowest: Vec<RegionId> =
        survey.slow_quorums.iter().take(SLOW_QUORUMS_MAX).map(|(_, id)| *id).collect();
    let mut targets: Vec<&Load> = loads.iter().filter(|load| load.weight > 0).collect();
    targets.sort_by_key(|load| (load.data_level().key(), load.store));
    let unused = |info: &&RegionInfo| !used.contains(&info.region.id);
    view.without_operator(&slowest).filter(unused).find_map(|info| {
        let mut followers: Vec<&Load> =
            stores_of(&info.region.peers).filter_map(|store| loads.get(store)).collect();
        followers.sort_by_key(|load| (load.data_class, load.store));
        followers.iter().find_map(|from| {
            targets.iter().find_map(|to| {
                let rule = judge_quorum(view, loads, info, from.store, to.store);
                let (from, to) = (from.store, to.store);
                rule.is_move().then_some(Move { info, from, to, rule })
            })
        })
    })
}

fn replace(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
    to: StoreId,
    rule: &Rule,
) -> Option<Operator> {
    let old = info.region.peer_on(from)?;
    let next = view.next_leader(loads, info, &[*old]);
    let steps = plan::change_members(info, &[to], &[old.id], next);
    let is_full = loads.get(from).is_some_and(|load| load.is_nearly_full);
    let reason = match rule {
        Rule::RaisesQuorum { .. } => format!("writes then wait for store {to}, not store {from}"),
        _ if is_full => format!("store {from} is nearly full"),
        _ => format!("store {from} holds more than store {to}"),
    };
    plan::operator(info, Kind::Balance, steps, reason)
}
