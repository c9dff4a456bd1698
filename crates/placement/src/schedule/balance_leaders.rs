//! Spreads leaders evenly, by count.

use super::View;
use super::load::{Load, Loads};
use crate::operator::guard::can_lead;
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use std::collections::BTreeMap;
use stele_types::{Peer, RegionKind, StoreId};

/// Returns operators that transfer leadership from stores with many leaders to those with few. The
/// placement leader stays where it is: after a move of it every node must report again.
pub fn pick(view: &View<'_>) -> Vec<Operator> {
    let config = view.cluster.config();
    if config.balance == 0 || !view.cluster.is_informed(view.now) {
        return Vec::new();
    }
    let mut loads = Loads::of(view);
    let mut led: BTreeMap<StoreId, Vec<&RegionInfo>> = BTreeMap::new();
    for info in view.healthy_regions().filter(|info| info.region.kind == RegionKind::Data) {
        if let Some(leader) = info.leader {
            led.entry(leader.store).or_default().push(info);
        }
    }
    let mut out = Vec::new();
    for _ in view.operators.count(&[Kind::Leaders])..config.leader_moves_max() {
        let Some((info, from, to)) = best_move(view, &loads, &led) else { break };
        loads.move_leader(from, to.store);
        led.values_mut().for_each(|all| all.retain(|i| i.region.id != info.region.id));
        let reason = format!("store {from} leads more than store {}", to.store);
        out.extend(plan::operator(info, Kind::Leaders, vec![Step::Transfer(to)], reason));
    }
    out
}

fn best_move<'a>(
    view: &View<'_>,
    loads: &Loads,
    led: &BTreeMap<StoreId, Vec<&'a RegionInfo>>,
) -> Option<(&'a RegionInfo, StoreId, Peer)> {
    let measure = |load: &Load| load.leaders;
    let percent = crate::config::BALANCE_TOLERANCE_PERCENT;
    // With a difference of one, a transfer would only swap the two stores.
    let tolerance = (loads.average(measure) * percent / 100).max(1);
    let ascending = loads.ascending(measure);
    for &(from, high) in ascending.iter().rev() {
        for &(to, low) in ascending.iter().take_while(|(_, low)| high > low + tolerance) {
            debug_assert!(high > low + 1);
            let found = led.get(&from).into_iter().flatten().find_map(|info| {
                let peer = info.region.peer_on(to)?;
                can_lead(view, info, peer).then_some((*info, from, *peer))
            });
            if found.is_some() {
                return found;
            }
        }
    }
    None
}
