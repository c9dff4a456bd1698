//! Replicas that are lost, missing, or in one failure domain.

use super::load::Loads;
use super::place::Urgency;
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX, by_size, place, voters};
use crate::cluster::drain::Blocker;
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use stele_types::{Peer, PeerRole, StoreId};

enum Fault {
    /// This voter must be replaced, for this reason.
    Replace(Peer, String),
    /// Number of missing voters for which there are nodes.
    Missing(usize),
}

/// Returns operators that replace, add and separate replicas, the regions with the fewest live
/// voters first.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let mut loads = survey.loads.clone();
    let mut regions: Vec<&RegionInfo> = view.without_operator(&survey.faulty).collect();
    regions.sort_by_cached_key(|info| (live_voters(&loads, info), by_size(info)));
    let mut out = Vec::new();
    for info in regions {
        if out.len() == PROPOSALS_MAX {
            break;
        }
        if may_be_repaired(view, &loads, info)
            && let Some(fault) = fault(view, &loads, info)
            && let Ok((operator, to)) = plan_repair(view, &loads, info, fault)
        {
            to.iter().for_each(|store| loads.place(info, *store));
            out.extend(operator);
        }
    }
    out
}

/// Whether a domain is left for a new replica, or a lost one is only removed. Many regions may wait for
/// a store to come back: the search for a target is skipped.
fn may_be_repaired(view: &ClusterView<'_>, loads: &Loads, info: &RegionInfo) -> bool {
    let gone = |peer: &&Peer| {
        view.is_lost(info, peer) || loads.get(peer.store).is_none_or(|load| !load.is_serving)
    };
    let leaving: Vec<Peer> = voters(info).filter(gone).copied().collect();
    !place::has_every_domain(loads, info, &leaving)
        || pair_in_a_domain(loads, info).is_some()
        || leaving.iter().any(|peer| makes_even(view, info, peer))
}

/// Returns the regions with a fault that cannot be repaired now, with the reasons.
pub fn blocked(view: &ClusterView<'_>) -> Vec<Blocker> {
    let loads = Loads::of(view);
    let mut out = Vec::new();
    for info in view.cluster.regions().iter() {
        let region = info.region.id;
        let reason = match crate::operator::guard::can_act(view, info) {
            Err(reason) => Some(reason),
            Ok(()) if view.operators.has_operator(region) => None,
            Ok(()) => {
                fault(view, &loads, info).and_then(|f| plan_repair(view, &loads, info, f).err())
            }
        };
        out.extend(reason.map(|reason| Blocker { region, reason }));
    }
    out
}

fn live_voters(loads: &Loads, info: &RegionInfo) -> usize {
    voters(info).filter(|peer| loads.is_reachable(info, peer)).count()
}

fn fault(view: &ClusterView<'_>, loads: &Loads, info: &RegionInfo) -> Option<Fault> {
    // Another operator or scheduler handles a learner, which may be the missing voter.
    if info.region.peers.iter().any(|peer| peer.role == PeerRole::Learner) {
        return None;
    }
    let wanted = view.wanted(info.region.kind);
    let have = voters(info).count();
    let lost = voters(info).find(|peer| view.is_lost(info, peer));
    if let Some(lost) = lost.filter(|_| have <= wanted) {
        return Some(Fault::Replace(*lost, format!("store {} is lost", lost.store)));
    }
    let missing = wanted.min(loads.domains_live).saturating_sub(have);
    if missing > 0 {
        return Some(Fault::Missing(missing));
    }
    let (first, second) = pair_in_a_domain(loads, info)?;
    let leads = info.leader.is_some_and(|leader| leader.id == second.id);
    let moves = if leads { first } else { second };
    let what = match view.cluster.domain_label() {
        None => "are on one node".to_owned(),
        Some(label) => format!("share the label `{label}`"),
    };
    let reason = format!("stores {} and {} {what}", first.store, second.store);
    // Without a better store this is not a fault: there may be fewer domains than copies.
    find_target(view, loads, info, &[moves], &[]).ok()?;
    Some(Fault::Replace(moves, reason))
}

fn pair_in_a_domain(loads: &Loads, info: &RegionInfo) -> Option<(Peer, Peer)> {
    let all: Vec<&Peer> = voters(info).collect();
    all.iter().enumerate().find_map(|(at, a)| {
        let mut rest = all.iter().skip(at + 1);
        rest.find(|b| loads.share_domain(a.store, b.store)).map(|b| (**a, **b))
    })
}

fn find_target(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    leaving: &[Peer],
    adding: &[StoreId],
) -> Result<StoreId, String> {
    place::target(view, loads, info, (leaving, adding), Urgency::Repair)
}

/// Whether the replica is lost and its node has another one that is not.
fn is_lost_double(view: &ClusterView<'_>, info: &RegionInfo, old: &Peer) -> bool {
    let mut others = voters(info).filter(|peer| peer.id != old.id);
    view.is_lost(info, old)
        && others.any(|peer| {
            view.cluster.share_domain(peer.store, old.store) && !view.is_lost(info, peer)
        })
}

/// Whether the replica is the only lost one, and makes the number of voters even: without it, one more
/// voter may fail. Its store may be one that is removed and stands at an address that its node no longer
/// has.
fn makes_even(view: &ClusterView<'_>, info: &RegionInfo, old: &Peer) -> bool {
    let lost = voters(info).filter(|peer| view.is_lost(info, peer));
    let is_even = voters(info).count().is_multiple_of(2);
    is_even && lost.map(|peer| peer.id).eq([old.id])
}

fn plan_repair(
    view: &ClusterView<'_>,
    loads: &Loads,
    info: &RegionInfo,
    fault: Fault,
) -> Result<(Option<Operator>, Vec<StoreId>), String> {
    match fault {
        Fault::Replace(old, reason) => {
            let to = match find_target(view, loads, info, &[old], &[]) {
                Ok(to) => vec![to],
                // No node is left for a replacement, and the region is safer without the lost one.
                Err(_) if is_lost_double(view, info, &old) || makes_even(view, info, &old) => {
                    Vec::new()
                }
                Err(reason) => return Err(reason),
            };
            let next = view.next_leader(loads, info, &[old]);
            let steps = plan::change_members(info, &to, &[old.id], next);
            Ok((plan::operator(info, Kind::Repair, steps, reason), to))
        }
        Fault::Missing(count) => {
            let mut to: Vec<StoreId> = Vec::new();
            let mut placed = Ok(());
            while to.len() < count {
                match find_target(view, loads, info, &[], &to) {
                    Ok(store) => to.push(store),
                    Err(text) => {
                        placed = Err(text);
                        break;
                    }
                }
            }
            if to.is_empty() {
                placed?;
            }
            let reason = format!("{count} of {} voters missing", voters(info).count() + count);
            let steps = plan::change_members(info, &to, &[], None);
            Ok((plan::operator(info, Kind::Repair, steps, reason), to))
        }
    }
}
