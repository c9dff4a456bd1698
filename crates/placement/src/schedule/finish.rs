//! Ends what nobody looks after: joint configurations and prepared merges whose operator is gone.

use super::View;
use crate::operator::guard::can_act;
use crate::operator::status::are_neighbours;
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use stele_types::{RegionId, RegionPhase};

/// Operators that end them.
pub fn pick(view: &View<'_>) -> Vec<Operator> {
    let alone = |info: &&RegionInfo| !view.operators.touch(info.region.id);
    let all = view.cluster.regions().iter().filter(alone);
    all.filter(|info| can_act(view, info).is_ok()).filter_map(|info| finish(view, info)).collect()
}

fn finish(view: &View<'_>, info: &RegionInfo) -> Option<Operator> {
    if info.region.is_joint() {
        return plan::operator(info, Kind::Finish, vec![Step::Leave], "left in a joint change");
    }
    let RegionPhase::Merging { target, .. } = info.region.phase else { return None };
    let (step, reason) = match takes_it(view, info, target) {
        true => (Step::CommitMerge(target), "left prepared to merge"),
        false => (Step::RollbackMerge, "prepared to merge into what is gone"),
    };
    plan::operator(info, Kind::Finish, vec![step], reason)
}

fn takes_it(view: &View<'_>, info: &RegionInfo, target: RegionId) -> bool {
    let target = view.cluster.regions().get(target);
    target.is_some_and(|target| are_neighbours(&info.region, &target.region))
}
