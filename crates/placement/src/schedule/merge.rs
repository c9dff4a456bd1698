//! Merges small neighbours; off by default.

use super::ClusterView;
use super::load::Loads;
use super::region_survey::RegionSurvey;
pub use crate::operator::status::are_neighbours;
use crate::operator::status::same_stores;
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use std::collections::BTreeSet;
use stele_types::{PeerId, RegionId, RegionKind, StoreId};

/// Returns operators that merge a region into its right or left neighbour.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let config = view.cluster.config();
    if config.merge_below_bytes == 0 || !view.cluster.is_informed(view.now) {
        return Vec::new();
    }
    let free: BTreeSet<RegionId> = view
        .healthy_regions()
        .filter(|info| info.region.kind == RegionKind::Data)
        .filter(|info| {
            // bug placement.cancelled_merge_planned_again: return true;
            !view.cluster.has_cancelled_merge(info.region.id)
        })
        .map(|info| info.region.id)
        .collect();
    // Invariant: no merge makes a region that a node splits again. Sizes are estimates.
    let below_bytes = config.merge_below_bytes.min(view.cluster.region_bytes_max() / 2);
    let regions = view.cluster.regions();
    let mut used = BTreeSet::new();
    let mut out = Vec::new();
    for source in free.iter().filter_map(|id| regions.get(*id)) {
        let neighbours = [regions.right_of(&source.region), regions.left_of(&source.region)];
        let target = neighbours.into_iter().flatten().find(|target| {
            let is_measured = source.is_measured && target.is_measured;
            let small = source.size_bytes + target.size_bytes <= below_bytes;
            is_measured
                && small
                && free.contains(&target.region.id)
                && !used.contains(&target.region.id)
        });
        if let Some(target) = target.filter(|_| !used.contains(&source.region.id)) {
            used.extend([source.region.id, target.region.id]);
            let reason = format!("small, like region {}", target.region.id);
            out.extend(merge_with(view, &survey.loads, source, target, (Kind::Merge, reason)));
        }
    }
    out
}

/// Returns an operator that first moves the replicas of `source` to the target's stores, then
/// merges it into `target`.
pub fn merge(
    view: &ClusterView<'_>,
    source: &RegionInfo,
    target: &RegionInfo,
    kind: Kind,
    reason: String,
) -> Option<Operator> {
    merge_with(view, &Loads::of(view), source, target, (kind, reason))
}

fn merge_with(
    view: &ClusterView<'_>,
    loads: &Loads,
    source: &RegionInfo,
    target: &RegionInfo,
    (kind, reason): (Kind, String),
) -> Option<Operator> {
    let mut steps = Vec::new();
    if !same_stores(&source.region, &target.region) {
        let lacks = |a: &RegionInfo, store| a.region.peer_on(store).is_none();
        let add: Vec<StoreId> = target
            .region
            .peers
            .iter()
            .map(|peer| peer.store)
            .filter(|store| lacks(source, *store))
            .collect();
        let extra_peers = source.region.peers.iter().filter(|peer| lacks(target, peer.store));
        let extra_peers: Vec<_> = extra_peers.copied().collect();
        let leave: Vec<PeerId> = extra_peers.iter().map(|peer| peer.id).collect();
        let next = view.next_leader(loads, source, &extra_peers);
        steps = plan::change_members(source, &add, &leave, next);
    }
    steps.push(Step::PrepareMerge(target.region.clone()));
    steps.push(Step::CommitMerge(target.region.id));
    plan::operator(source, kind, steps, reason)
}
