//! Replicas on full stores that lack entries. A full store takes no entries, and has no room for a
//! snapshot beside what it holds of the region.

use super::load::{Load, Loads};
use super::place::Urgency;
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX, place, voters};
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use stele_types::{Peer, RegionKind, StoreId};

/// Least voters that hold everything besides the replica that leaves.
const OTHERS_MIN: usize = 2;

/// Returns operators that replace such replicas, or remove them first where only their own store can
/// take the region. Repair then adds a new one there.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let mut loads = survey.loads.clone();
    let mut out = Vec::new();
    let is_candidate = |load: &&Load| load.is_full && load.is_live && !load.is_leaving;
    for load in survey.loads.iter().filter(is_candidate) {
        for info in view.without_operator(survey.replicas_on(load.store)) {
            if out.len() == PROPOSALS_MAX {
                return out;
            }
            let Some(replica) = lagging(view, info, load.store) else { continue };
            let found = replace(view, &loads, info, replica);
            let found = found.or_else(|| drop_first(view, survey, load, info, replica));
            let Some((operator, to)) = found else { continue };
            to.iter().for_each(|store| loads.place(info, *store));
            out.push(operator);
        }
    }
    out
}

/// Returns the voter on a full store that lacks entries.
///
/// Invariant: a replica leaves a full store only while all other voters have everything, and it can come back.
/// Test: `a_replica_on_a_full_store_leaves_only_where_it_can_come_back_and_no_other_lacks_entries`.
fn lagging<'a>(view: &ClusterView<'_>, info: &'a RegionInfo, store: StoreId) -> Option<&'a Peer> {
    let replica = voters(info).find(|peer| peer.store == store)?;
    let is_leader = info.leader.is_some_and(|leader| leader.id == replica.id);
    let has_all = |peer: &&Peer| view.is_reachable(info, peer) && info.is_caught_up(peer.id);
    let others = || voters(info).filter(|peer| peer.id != replica.id);
    let are_whole = others().all(|peer| has_all(&peer)) && others().count() >= OTHERS_MIN;
    // bug placement.last_whole_replica_dropped: let are_whole = true;
    (!is_leader && info.pending.contains(&replica.id) && are_whole).then_some(replica)
}

fn replace(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    replica: &Peer,
) -> Option<(Operator, Vec<StoreId>)> {
    let to = place::target(view, loads, info, (&[*replica], &[]), Urgency::Repair).ok()?;
    let steps = plan::change_members(info, &[to], &[replica.id], None);
    let reason = format!("store {} is full and lacks entries", replica.store);
    Some((plan::operator(info, Kind::Repair, steps, reason)?, vec![to]))
}

/// Removes the replica, if the region fits into its store without what the store holds of it now.
///
/// Invariant: the placement group loses no voter for room. It is small, and its followers take entries out
/// of the reserve: the replica lags only for a while, and the loss of another store would end the group.
fn drop_first(
    view: &ClusterView<'_>,
    survey: &RegionSurvey,
    load: &Load,
    info: &RegionInfo,
    replica: &Peer,
) -> Option<(Operator, Vec<StoreId>)> {
    let is_placement = info.region.kind == RegionKind::System;
    // bug placement.full_group_loses_voter: never
    if is_placement {
        return None;
    }
    let ids = survey.replicas_on(load.store).iter().filter(|id| **id != info.region.id);
    let others = ids.filter_map(|id| view.cluster.regions().get(*id));
    let beside = others.fold(0, |sum: u64, other| sum.saturating_add(other.size_bytes));
    let fits = beside.saturating_add(info.size_bytes) <= load.room.limit;
    // bug placement.full_replica_dropped_for_nothing: never
    if !fits {
        return None;
    }
    let steps = plan::change_members(info, &[], &[replica.id], None);
    let reason = format!(
        "store {} is full and lacks entries; the region fits there without the old replica",
        replica.store
    );
    Some((plan::operator(info, Kind::Repair, steps, reason)?, Vec::new()))
}
