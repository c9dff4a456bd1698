//! Learners without an operator, left by one that was cancelled. A useful one becomes a voter, any
//! other is removed.

use super::region_survey::RegionSurvey;
use super::{ClusterView, voters};
use crate::operator::{Kind, Operator, plan};
use crate::region_info::RegionInfo;
use stele_types::{Peer, PeerRole};

/// Returns operators that promote or remove them.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
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
