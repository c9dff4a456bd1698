//! Status of a step, by the last report of the region's leader.

use super::guard::{can_lead, may_step};
use super::{Change, Operator, Order, Step};
use crate::region_info::RegionInfo;
use crate::schedule::ClusterView;
use std::cmp::Reverse;
use stele_types::{Peer, PeerRole, Region, RegionId, RegionPhase, StoreId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Done,
    /// The step is under way or must wait, for this reason.
    Waiting(String),
    Due(RegionId, Order),
    /// The step is no longer possible, for this reason.
    Impossible(String),
}

fn waiting(reason: impl Into<String>) -> Status {
    Status::Waiting(reason.into())
}

fn impossible(reason: impl Into<String>) -> Status {
    Status::Impossible(reason.into())
}

/// Returns the status of the current step of `operator`; its region is `info`.
pub(crate) fn status(view: &ClusterView<'_>, operator: &Operator, info: &RegionInfo) -> Status {
    let Some(step) = operator.step() else { return Status::Done };
    let here = |order| Status::Due(info.region.id, order);
    match step {
        Step::AddLearner(peer) => learner_status(view, info, peer),
        Step::Enter { promote, demote } => enter_status(view, info, step, promote, demote),
        Step::Leave => leave_status(view, info),
        Step::Remove(peer) => match info.region.peer(peer.id).map(|peer| peer.role) {
            None => Status::Done,
            Some(PeerRole::Learner) => here(Order::ChangePeers(vec![Change::Remove(*peer)])),
            Some(_) => impossible(format!("the replica on store {} votes", peer.store)),
        },
        Step::Transfer(to) => transfer_status(view, info, to),
        Step::Split { keys, new } => match info.region.epoch.version > operator.epoch.version {
            true => Status::Done,
            false => here(Order::Split { keys: keys.clone(), new: new.clone() }),
        },
        Step::PrepareMerge(target) => prepare_status(view, info, target),
        Step::CommitMerge(target) => commit_status(view, info, *target),
        Step::RollbackMerge => rollback_status(view, info),
        Step::AbandonMerge => match info.region.phase {
            RegionPhase::Merging { .. } => here(Order::AbandonMerge(target_stores(view, info))),
            _ => Status::Done,
        },
    }
}

fn learner_status(view: &ClusterView<'_>, info: &RegionInfo, peer: &Peer) -> Status {
    let region = &info.region;
    match region.peer_on(peer.store) {
        Some(here) if here.id != peer.id => {
            impossible(format!("store {} already has another replica", peer.store))
        }
        Some(here) if here.role != PeerRole::Learner => Status::Done,
        Some(here) if info.is_caught_up(here.id) => Status::Done,
        _ if !view.cluster.is_serving(peer.store, view.now) => {
            impossible(format!("store {} no longer takes replicas", peer.store))
        }
        Some(_) => waiting(format!("the replica on store {} is catching up", peer.store)),
        None if region.is_joint() => waiting("another change is under way"),
        None => Status::Due(region.id, Order::ChangePeers(vec![Change::Add(*peer)])),
    }
}

fn enter_status(
    view: &ClusterView<'_>,
    info: &RegionInfo,
    step: &Step,
    promote: &[Peer],
    demote: &[Peer],
) -> Status {
    let region = &info.region;
    let role = |peer: &Peer| region.peer(peer.id).map(|peer| peer.role);
    let votes = |role: Option<PeerRole>| role.is_some_and(PeerRole::votes_next);
    let entered = promote.iter().all(|peer| votes(role(peer)));
    if entered && !demote.iter().any(|peer| votes(role(peer))) {
        return Status::Done;
    }
    if region.is_joint() {
        return impossible("another joint change is under way");
    }
    // Votes change all at once. If only some are already as ordered, members changed outside this
    // operator. A leader refuses a change without effect, and would add a removed voter as a
    // learner.
    let is_so = |peer: &&Peer| votes(role(peer)) == (peer.role == PeerRole::Voter);
    // bug placement.order_what_is_so: never
    if let Some(peer) = promote.iter().chain(demote).find(is_so) {
        let what = if votes(role(peer)) { "already votes" } else { "no longer votes" };
        return impossible(format!("the replica on store {} {what}", peer.store));
    }
    for peer in promote {
        match role(peer) {
            None => return impossible(format!("the learner on store {} is gone", peer.store)),
            Some(_) if !view.cluster.is_serving(peer.store, view.now) => {
                return impossible(format!("store {} no longer takes replicas", peer.store));
            }
            Some(_) if !info.is_caught_up(peer.id) => {
                return waiting(format!("the replica on store {} is catching up", peer.store));
            }
            Some(_) => {}
        }
    }
    if let Err(reason) = may_step(view, info, step) {
        return waiting(reason);
    }
    // A single change takes effect at once, without a joint configuration in which to transfer.
    if promote.is_empty() && demote.iter().any(|peer| leads(info, peer)) && demote.len() == 1 {
        return transfer_leadership(view, info, demote);
    }
    let changes = promote.iter().chain(demote).map(|peer| Change::Add(*peer)).collect();
    Status::Due(region.id, Order::ChangePeers(changes))
}

fn leave_status(view: &ClusterView<'_>, info: &RegionInfo) -> Status {
    let region = &info.region;
    if !region.is_joint() {
        return Status::Done;
    }
    if let Err(reason) = may_step(view, info, &Step::Leave) {
        return waiting(reason);
    }
    // If the leader became a learner, the region would have no leader until an election.
    let demoted = |peer: &&Peer| peer.role == PeerRole::DemotingVoter;
    if region.peers.iter().filter(demoted).any(|peer| leads(info, peer)) {
        return transfer_leadership(view, info, &[]);
    }
    Status::Due(region.id, Order::ChangePeers(Vec::new()))
}

fn leads(info: &RegionInfo, peer: &Peer) -> bool {
    info.leader.is_some_and(|leader| leader.id == peer.id)
}

fn transfer_leadership(view: &ClusterView<'_>, info: &RegionInfo, leaving: &[Peer]) -> Status {
    let stays = |peer: &&Peer| !leaving.iter().any(|gone| gone.id == peer.id);
    let able = info.region.peers.iter().filter(stays).filter(|peer| can_lead(view, info, peer));
    // The fastest, so that the schedulers do not have to move the leadership again.
    match able.min_by_key(|peer| (Reverse(view.lead_class(peer.store)), peer.store)) {
        Some(next) => Status::Due(info.region.id, Order::TransferLeader(*next)),
        None => waiting("no replica can take the lead"),
    }
}

fn transfer_status(view: &ClusterView<'_>, info: &RegionInfo, to: &Peer) -> Status {
    if leads(info, to) {
        return Status::Done;
    }
    match info.region.peer(to.id) {
        Some(peer) if can_lead(view, info, peer) => {
            Status::Due(info.region.id, Order::TransferLeader(*peer))
        }
        Some(peer) if !view.is_serving(peer.store) => {
            impossible(format!("store {} no longer takes leaders", to.store))
        }
        Some(peer) if peer.role.votes_next() => {
            waiting(format!("the replica on store {} cannot lead now", to.store))
        }
        _ => impossible(format!("the replica on store {} does not vote", to.store)),
    }
}

fn prepare_status(view: &ClusterView<'_>, info: &RegionInfo, target: &Region) -> Status {
    let into = match info.region.phase {
        RegionPhase::Merging { target: into, .. } => Some(into),
        _ => None,
    };
    if into == Some(target.id) {
        return Status::Done;
    }
    // Invariant: no operator keeps a region prepared for another merge than its own. The order of an
    // operator that ended may have been on its way. Only without an operator is that merge finished or
    // rolled back, and until then the range takes no reads and writes.
    // Test: `a_merge_ends_when_its_source_is_prepared_to_merge_elsewhere`.
    // bug placement.merge_prepared_elsewhere_waits: never
    if let Some(into) = into {
        return impossible(format!("it is prepared to merge into region {into}"));
    }
    let Some(now) = view.cluster.regions().get(target.id) else {
        return impossible(format!("region {} is gone", target.id));
    };
    if now.region.epoch != target.epoch {
        return impossible(format!("region {} has changed", target.id));
    }
    if !same_stores(&info.region, &now.region) {
        return impossible("the replicas lie on different stores");
    }
    if !are_neighbours(&info.region, &now.region) {
        return impossible(format!("region {} is not a neighbour", target.id));
    }
    Status::Due(info.region.id, Order::PrepareMerge(now.region.clone()))
}

fn commit_status(view: &ClusterView<'_>, info: &RegionInfo, target: RegionId) -> Status {
    let RegionPhase::Merging { target: into, prepared, .. } = info.region.phase else {
        return impossible("the merge was rolled back");
    };
    if has_lost(view, info) {
        return impossible("a replica is lost, and each must hold all of the region's log");
    }
    match view.cluster.regions().get(target) {
        Some(now) if into == target && may_take(&info.region, &now.region) => {
            Status::Due(target, Order::CommitMerge { source: info.region.clone(), prepared })
        }
        _ => impossible(format!("region {target} no longer takes it over")),
    }
}

/// Returns the status of a rollback. The operator may have been planned before the target was
/// known: a new placement leader may receive the report of the source first. A replica of the
/// source refuses while the target may still take the region over.
fn rollback_status(view: &ClusterView<'_>, info: &RegionInfo) -> Status {
    let RegionPhase::Merging { target, .. } = info.region.phase else { return Status::Done };
    let known = view.cluster.regions().get(target);
    let may_take = known.is_some_and(|known| may_take(&info.region, &known.region));
    // bug placement.rollback_by_old_news: never
    if may_take {
        return impossible(format!("region {target} may still take it over"));
    }
    Status::Due(info.region.id, Order::RollbackMerge(target_stores(view, info)))
}

/// Returns the stores of the region that was to take over `info`, as last reported: any of them may have the
/// proof that it refused the merge.
fn target_stores(view: &ClusterView<'_>, info: &RegionInfo) -> Vec<StoreId> {
    let RegionPhase::Merging { target, .. } = info.region.phase else { return Vec::new() };
    let known = view.cluster.regions().get(target);
    known.iter().flat_map(|known| &known.region.peers).map(|peer| peer.store).collect()
}

/// Returns why a merge that is prepared is not committed yet: a replica of the source does not
/// respond, and may lack part of the log.
pub(crate) fn merge_delay(view: &ClusterView<'_>, info: &RegionInfo) -> Option<String> {
    let RegionPhase::Merging { .. } = info.region.phase else { return None };
    let missing = info.region.peers.iter().find(|peer| !view.is_reachable(info, peer))?;
    Some(format!(
        "the range takes no reads and writes until the replica on store {} responds, or for {} s: \
         it may lack the last writes; `stele ctl cancel-operator {}` abandons the merge",
        missing.store,
        view.cluster.config().down_after_seconds,
        info.region.id
    ))
}

pub(crate) fn same_stores(a: &Region, b: &Region) -> bool {
    let within = |a: &Region, b: &Region| {
        a.peers.iter().all(|p| b.peer_on(p.store).is_some_and(|other| other.role == p.role))
    };
    within(a, b) && within(b, a)
}

/// Whether a replica is lost. A merge is committed only if every replica of its source holds the
/// whole log.
pub(crate) fn has_lost(view: &ClusterView<'_>, info: &RegionInfo) -> bool {
    // bug placement.merge_with_lost_replica: return false;
    info.region.peers.iter().any(|peer| view.is_lost(info, peer))
}

/// Whether `target` may still take over `source`, which is prepared to merge into it. It may do so
/// only at the epoch that the preparation names. A target known at an older epoch may still reach
/// it.
pub(crate) fn may_take(source: &Region, target: &Region) -> bool {
    let RegionPhase::Merging { target_epoch: named, .. } = source.phase else { return false };
    let known = target.epoch;
    let is_past = known.version > named.version || known.conf_version > named.conf_version;
    // bug placement.finish_changed_merge: `!is_past` is `true`
    are_neighbours(source, target) && !is_past
}

/// Whether one region begins where the other ends.
pub fn are_neighbours(a: &Region, b: &Region) -> bool {
    let has_operator =
        |a: &Region, b: &Region| !a.range.end.is_empty() && a.range.end == b.range.start;
    a.kind == b.kind && (has_operator(a, b) || has_operator(b, a))
}
