//! Replicas beyond the wanted number.

use super::load::Loads;
use super::{PROPOSALS_MAX, View, voters};
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use std::cmp::Reverse;
use stele_types::{Peer, PeerId, PeerRole};

/// Returns operators that remove the least valuable replicas. They remove several at once, so that
/// a region does not pass through an even number of voters.
pub fn pick(view: &View<'_>) -> Vec<Operator> {
    let loads = Loads::of(view);
    view.free_regions().filter_map(|info| shrink(view, &loads, info)).take(PROPOSALS_MAX).collect()
}

fn shrink(view: &View<'_>, loads: &Loads, info: &RegionInfo) -> Option<Operator> {
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
    plan::operator(info, Kind::Surplus, steps, format!("{have} voters, {wanted} wanted"))
}

/// Returns the value of a replica as a sort key. Most valuable is a reachable one on a store that
/// stays, alone on its node, leading, on a store with little load.
fn worth(
    view: &View<'_>,
    loads: &Loads,
    info: &RegionInfo,
    peer: &Peer,
) -> (bool, bool, bool, bool, bool, Reverse<u64>, Reverse<PeerId>) {
    let mut others = voters(info).filter(|other| other.id != peer.id);
    let alone = !others.any(|other| view.cluster.share_domain(other.store, peer.store));
    (
        !view.is_lost(info, peer),
        view.is_reachable(info, peer),
        view.cluster.store(peer.store).is_some_and(|store| !store.state.is_leaving()),
        alone,
        info.leader.is_some_and(|leader| leader.id == peer.id),
        Reverse(loads.get(peer.store).map_or(u64::MAX, |load| load.weight)),
        Reverse(peer.id),
    )
}
