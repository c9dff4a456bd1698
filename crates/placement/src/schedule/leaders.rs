//! Places leaders: region by region on the fastest device of a voter that has caught up, the
//! greatest difference of speed first (ALOR section 3.1), and by load over speed among stores of
//! the best two classes. Stores that should not lead lose their leaders: leaving ones, full ones,
//! which refuse every write, and those of which the device hangs.

use super::judge::{Rule, judge_leader};
use super::load::{LeaderCost, Load, Loads};
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX, place};
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use stele_types::{Peer, RegionId, RegionKind};

/// Returns operators that transfer leadership. The placement leader stays where it is: after a move
/// of it every node must report again.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let config = view.cluster.config();
    if config.balance == 0 || !view.cluster.is_informed(view.now) {
        return Vec::new();
    }
    let mut loads = survey.loads.clone();
    let mut used = BTreeSet::new();
    let mut out = Vec::new();
    for (_, id) in &survey.slow_leaders {
        if out.len() >= PROPOSALS_MAX {
            break;
        }
        out.extend(to_faster(view, &mut loads, *id).inspect(|_| {
            used.insert(*id);
        }));
    }
    let balancing = view.operators.count(&[Kind::Leaders]);
    for _ in (balancing..config.leader_moves_max()).take(PROPOSALS_MAX) {
        let Some((info, to)) = best_by_load(view, &loads, survey, &used) else { break };
        let Some(from) = info.leader else { break };
        used.insert(info.region.id);
        loads.move_leader(LeaderCost::of(info, view.now), from.store, to.store);
        let reason = format!("store {} has more to do than store {}", from.store, to.store);
        out.extend(plan::operator(info, Kind::Leaders, vec![Step::Transfer(to)], reason));
    }
    out
}

fn to_faster(view: &ClusterView<'_>, loads: &mut Loads, id: RegionId) -> Option<Operator> {
    let info = view.cluster.regions().get(id).filter(|_| !view.operators.has_operator(id))?;
    let leader = info.leader?;
    let cost = LeaderCost::of(info, view.now);
    let (to, rule) = place::better_leader(view, loads, info, cost)?;
    let Rule::TakesLead { class, leader: slow } = rule else { return None };
    loads.move_leader(cost, leader.store, to.store);
    let (fast, slow) = (class.per_second(), slow.per_second());
    let reason = format!(
        "store {} is faster than store {}: {fast} against {slow} operations a second",
        to.store, leader.store
    );
    plan::operator(info, Kind::Evict, vec![Step::Transfer(to)], reason)
}

/// Returns the region of the store with the highest load for its speed that moves to the store with
/// the lowest; the one that causes the most load comes first.
fn best_by_load<'a>(
    view: &ClusterView<'a>,
    loads: &Loads,
    survey: &RegionSurvey,
    used: &BTreeSet<RegionId>,
) -> Option<(&'a RegionInfo, Peer)> {
    let mut descending: Vec<&Load> = loads.iter().filter(|load| load.is_serving).collect();
    descending.sort_by_key(|load| (Reverse(load.leader_level().key()), Reverse(load.store)));
    let lowest = descending.last().copied()?;
    let is_above =
        |load: &&&Load| loads.is_leading_apart(load.leader_level(), lowest.leader_level());
    descending.iter().take_while(is_above).find_map(|from| {
        let led = survey.led_by(from.store).iter().filter(|id| !used.contains(id));
        led.filter_map(|id| best_target(view, loads, *id))
            .min_by_key(|(info, cost, to)| {
                let level = loads.get(to.store).map(|load| load.leader_level().key());
                (level, to.store, Reverse(cost.ops), info.region.id)
            })
            .map(|(info, _, to)| (info, to))
    })
}

fn best_target<'a>(
    view: &ClusterView<'a>,
    loads: &Loads,
    id: RegionId,
) -> Option<(&'a RegionInfo, LeaderCost, Peer)> {
    let (cluster, operators) = (view.cluster, view.operators);
    let info = cluster.regions().get(id).filter(|_| !operators.has_operator(id))?;
    if info.region.kind != RegionKind::Data {
        return None;
    }
    let cost = LeaderCost::of(info, view.now);
    let judged = info.region.peers.iter().filter(|peer| {
        matches!(judge_leader(view, loads, info, cost, peer), Rule::SharesLead { .. })
    });
    let level =
        |peer: &&Peer| (loads.get(peer.store).map(|load| load.leader_level().key()), peer.store);
    judged.min_by_key(level).map(|to| (info, cost, *to))
}

pub(crate) fn pick_evictions(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let mut loads = survey.loads.clone();
    let unfit = survey.loads.iter().filter(|load| load.is_unfit);
    let led = unfit.flat_map(|load| survey.led_by(load.store));
    let regions = led.filter(|id| !view.operators.has_operator(**id));
    let regions = regions.filter_map(|id| view.cluster.regions().get(*id));
    regions.filter_map(|info| evict(view, &mut loads, info)).take(PROPOSALS_MAX).collect()
}

fn evict(view: &ClusterView<'_>, loads: &mut Loads, info: &RegionInfo) -> Option<Operator> {
    let leader = info.leader?;
    let is_unfit = |peer: &&Peer| loads.get(peer.store).is_some_and(|load| load.is_unfit);
    let unfit: Vec<Peer> = info.region.peers.iter().filter(is_unfit).copied().collect();
    let next = view.next_leader(loads, info, &unfit)?;
    loads.move_leader(LeaderCost::of(info, view.now), leader.store, next.store);
    let reason = format!("store {} should not lead", leader.store);
    plan::operator(info, Kind::Evict, vec![Step::Transfer(next)], reason)
}
