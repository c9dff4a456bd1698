//! Ends what has lost its operator: joint configurations, prepared merges, and learners that a
//! cancelled operator left. A useful learner becomes a voter, any other is removed.

use super::region_survey::RegionSurvey;
use super::{ClusterView, voters};
use crate::operator::status::{has_lost, may_take};
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use stele_types::{Peer, PeerRole, RegionPhase};

/// Returns operators that end them.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let unfinished = survey.unfinished.iter().filter_map(|id| view.cluster.regions().get(*id));
    unfinished.filter_map(|info| finish(view, info)).collect()
}

fn finish(view: &ClusterView<'_>, info: &RegionInfo) -> Option<Operator> {
    if info.region.is_joint() {
        return plan::operator(info, Kind::Finish, vec![Step::Leave], "left in a joint change");
    }
    let RegionPhase::Merging { target, .. } = info.region.phase else { return None };
    let is_cancelled = view.cluster.has_cancelled_merge(info.region.id);
    // bug placement.cancelled_merge_finished: never
    if is_cancelled {
        return plan::operator(info, Kind::Finish, vec![Step::AbandonMerge], "cancelled");
    }
    let known = view.cluster.regions().get(target);
    if known.is_some_and(|known| may_take(&info.region, &known.region)) && has_lost(view, info) {
        // The merge would wait permanently for that replica. The target, which has a replica on the
        // same store, is repaired. That changes its epoch, and then the merge is rolled back.
        return None;
    }
    let (step, reason) = match known.is_some_and(|known| may_take(&info.region, &known.region)) {
        true => (Step::CommitMerge(target), "left prepared to merge"),
        false => {
            (Step::RollbackMerge, "prepared to merge into a region that is gone or has changed")
        }
    };
    plan::operator(info, Kind::Finish, vec![step], reason)
}

pub(crate) fn pick_orphan_learners(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let regions = view.without_operator(&survey.with_learners);
    regions.filter_map(|info| promote_or_remove(view, info)).collect()
}

fn promote_or_remove(view: &ClusterView<'_>, info: &RegionInfo) -> Option<Operator> {
    let is_learner = |peer: &&Peer| peer.role == PeerRole::Learner;
    let learner = info.region.peers.iter().find(is_learner)?;
    let missing = voters(info).count() < view.wanted(info.region.kind);
    let alone = !voters(info).any(|v| view.cluster.share_domain(v.store, learner.store));
    if missing && alone && view.is_serving(learner.store) && view.is_reachable(info, learner) {
        let steps = plan::change_members(info, &[learner.store], &[], None);
        return plan::operator(info, Kind::OrphanLearner, steps, "a voter is missing");
    }
    let steps = plan::change_members(info, &[], &[learner.id], None);
    plan::operator(info, Kind::OrphanLearner, steps, "the learner is not needed")
}
