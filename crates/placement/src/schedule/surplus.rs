//! Replicas beyond the wanted number.

use super::load::Loads;
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX, voters};
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use std::cmp::Reverse;
use stele_types::{Peer, PeerId, PeerRole};

/// Returns operators that remove the least valuable replicas. They remove several at once, so that
/// a region does not pass through an even number of voters.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let mut loads = survey.loads.clone();
    let mut out = Vec::new();
    for info in view.without_operator(&survey.surplus).take(PROPOSALS_MAX) {
        let Some((operator, gone)) = shrink(view, &loads, info) else { continue };
        gone.iter().for_each(|peer| loads.remove(info, peer.store));
        out.push(operator);
    }
    out
}

fn shrink(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
) -> Option<(Operator, Vec<Peer>)> {
    let wanted = view.wanted(info.region.kind);
    let have = voters(info).count();
    let extra = have.checked_sub(wanted).filter(|extra| *extra > 0)?;
    if info.region.peers.iter().any(|peer| peer.role == PeerRole::Learner) {
        return None;
    }
    let mut candidates: Vec<&Peer> = voters(info).collect();
    candidates.sort_by_key(|peer| worth(view, loads, info, peer));
    let gone: Vec<Peer> = candidates.into_iter().take(extra).copied().collect();
    let ids: Vec<PeerId> = gone.iter().map(|peer| peer.id).collect();
    let next = view.next_leader(loads, info, &gone);
    let steps = plan::change_members(info, &[], &ids, next);
    let reason = format!("{have} voters, {wanted} wanted");
    plan::operator(info, Kind::Surplus, steps, reason).map(|operator| (operator, gone))
}

/// Returns the value of a replica as a sort key. Most valuable is a reachable one on a store that
/// stays, alone in its failure domain, leading, on a store with a low level.
fn worth(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    peer: &Peer,
) -> (bool, bool, bool, bool, bool, Reverse<u128>, Reverse<PeerId>) {
    let mut others = voters(info).filter(|other| other.id != peer.id);
    let alone = !others.any(|other| view.cluster.share_domain(other.store, peer.store));
    (
        !view.is_lost(info, peer),
        view.is_reachable(info, peer),
        view.cluster.store(peer.store).is_some_and(|store| !store.state.is_leaving()),
        alone,
        info.leader.is_some_and(|leader| leader.id == peer.id),
        Reverse(loads.get(peer.store).map_or(u128::MAX, |load| load.data_level().key())),
        Reverse(peer.id),
    )
}
