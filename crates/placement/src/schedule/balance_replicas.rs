//! Spreads replicas evenly, by bytes plus a constant for each.
//!
//! Invariant: after a move the source is at least as loaded as the target. The sum of the squares
//! of all loads thus falls with every move, and balancing terminates.

use super::load::Loads;
use super::{View, place};
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use stele_types::{RegionId, RegionKind, StoreId};

/// Returns operators that move replicas from loaded stores to less loaded ones.
pub fn pick(view: &View<'_>) -> Vec<Operator> {
    let config = view.cluster.config();
    let moving = view.operators.count(&[Kind::Balance, Kind::Drain, Kind::Merge]);
    if config.balance == 0 || !view.cluster.is_informed(view.now) {
        return Vec::new();
    }
    let mut loads = Loads::of(view);
    let mut movable = movable(view);
    let mut out = Vec::new();
    for _ in moving..config.moves_max {
        let Some((info, from, to)) = best_move(view, &loads, &movable) else { break };
        loads.move_replica(info, from, to);
        movable.values_mut().for_each(|all| all.retain(|i| i.region.id != info.region.id));
        out.extend(replace(view, &loads, info, from, to));
    }
    out
}

fn movable<'a>(view: &View<'a>) -> BTreeMap<StoreId, Vec<&'a RegionInfo>> {
    let mut out: BTreeMap<StoreId, Vec<&RegionInfo>> = BTreeMap::new();
    let complete = |info: &&RegionInfo| {
        let wanted = view.wanted(info.region.kind).min(view.cluster.domains_serving(view.now));
        info.region.kind == RegionKind::Data && info.region.peers.len() == wanted
    };
    for info in view.healthy_regions().filter(complete) {
        for peer in &info.region.peers {
            out.entry(peer.store).or_default().push(info);
        }
    }
    out
}

/// Returns the first possible move between the two stores with the greatest difference.
fn best_move<'a>(
    view: &View<'_>,
    loads: &Loads,
    movable: &BTreeMap<StoreId, Vec<&'a RegionInfo>>,
) -> Option<(&'a RegionInfo, StoreId, StoreId)> {
    let measure = |load: &super::load::Load| load.weight;
    let percent = crate::config::BALANCE_TOLERANCE_PERCENT;
    let tolerance = loads.average(measure) / 100 * percent;
    let ascending = loads.ascending(measure);
    for &(from, high) in ascending.iter().rev() {
        for &(to, low) in &ascending {
            let gap = high.saturating_sub(low);
            if gap <= tolerance {
                break;
            }
            let here = movable.get(&from).map_or(&[][..], Vec::as_slice);
            if let Some(info) = largest_that_fits(view, here, from, to, gap) {
                return Some((info, from, to));
            }
        }
    }
    None
}

/// Returns the largest region that can move and not reverse the difference. Prefers followers.
fn largest_that_fits<'a>(
    view: &View<'_>,
    here: &[&'a RegionInfo],
    from: StoreId,
    to: StoreId,
    gap: u64,
) -> Option<&'a RegionInfo> {
    let rank = |info: &&&'a RegionInfo| -> (bool, Reverse<u64>, RegionId) {
        let leads = info.leader.is_some_and(|leader| leader.store == from);
        (leads, Reverse(place::weight(info)), info.region.id)
    };
    here.iter()
        .filter(|info| place::weight(info).saturating_mul(2) <= gap)
        .filter(|info| {
            let old = info.region.peer_on(from).copied();
            let busy = view.operators.receiving(to) >= view.cluster.config().snapshots_max;
            !busy && place::obstacle(view, info, old.as_slice(), &[], to).is_none()
        })
        .min_by_key(rank)
        .copied()
}

fn replace(
    view: &View<'_>,
    loads: &Loads,
    info: &RegionInfo,
    from: StoreId,
    to: StoreId,
) -> Option<Operator> {
    let old = info.region.peer_on(from)?;
    let next = view.next_leader(loads, info, &[*old]);
    let steps = plan::change_members(info, &[to], &[old.id], next);
    plan::operator(info, Kind::Balance, steps, format!("store {from} holds more than store {to}"))
}
