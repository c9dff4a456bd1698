//! Empties leaving stores.

use super::load::Loads;
use super::place::Urgency;
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX, by_size, place, voters};
use crate::cluster::drain::Blocker;
use crate::operator::guard::can_act;
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use stele_types::{Peer, RegionPhase, StoreId};

/// Returns operators that move replicas off leaving stores, the largest regions first.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let mut loads = survey.loads.clone();
    let mut out = Vec::new();
    for load in survey.loads.iter().filter(|load| load.is_leaving) {
        let store = load.store;
        let here = view.without_operator(survey.replicas_on(store));
        let mut here: Vec<&RegionInfo> = here.filter(|info| is_voter_on(info, store)).collect();
        here.sort_by_key(by_size);
        for info in here.into_iter().take(PROPOSALS_MAX) {
            if let Ok((operator, to)) = replace(view, &loads, info, store) {
                loads.move_replica(info, store, to);
                out.extend(operator);
            }
        }
    }
    out
}

fn is_voter_on(info: &RegionInfo, store: StoreId) -> bool {
    voters(info).any(|peer| peer.store == store)
}

fn replace(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    store: StoreId,
) -> Result<(Option<Operator>, StoreId), String> {
    let Some(old) = info.region.peer_on(store) else {
        return Err("its replica is gone".into());
    };
    if voters(info).count() > view.wanted(info.region.kind) {
        return Err("it has more replicas than wanted; one of them is removed first".into());
    }
    let to = place::target(view, loads, info, (&[*old], &[]), Urgency::Move)?;
    let leaving: Vec<Peer> = info
        .region
        .peers
        .iter()
        .filter(|peer| view.cluster.store(peer.store).is_none_or(|s| s.state.is_leaving()))
        .copied()
        .collect();
    let next = view.next_leader(loads, info, &leaving);
    let steps = plan::change_members(info, &[to], &[old.id], next);
    let reason = format!("store {store} is leaving");
    Ok((plan::operator(info, Kind::Drain, steps, reason), to))
}

/// Returns a region that cannot leave `store` now, with the reason, for an administrator.
pub fn blocker(view: &ClusterView<'_>, store: StoreId) -> Option<Blocker> {
    let loads = Loads::of(view);
    let here = view.cluster.regions().iter().filter(|i| i.region.peer_on(store).is_some());
    here.filter_map(|info| {
        let region = info.region.id;
        let reason = match can_act(view, info) {
            Err(reason) => reason,
            Ok(()) => match view.operators.of(region) {
                Some(_) => view.operators.wait_reason(view.cluster, region, view.now)?,
                None if info.region.phase != RegionPhase::Normal => "it is being merged".into(),
                None => replace(view, &loads, info, store).err()?,
            },
        };
        Some(Blocker { region, reason })
    })
    .next()
}
