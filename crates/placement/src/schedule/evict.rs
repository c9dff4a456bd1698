//! Moves leaders off stores that should not lead: leaving ones, full ones, which refuse every write,
//! and those of which the device hangs.

use super::load::{LeaderCost, Loads};
use super::region_survey::RegionSurvey;
use super::{ClusterView, PROPOSALS_MAX};
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use stele_types::Peer;

/// Returns operators that transfer leadership.
pub fn pick(view: &ClusterView<'_>, survey: &RegionSurvey) -> Vec<Operator> {
    let mut loads = survey.loads.clone();
    let unfit = survey.loads.iter().filter(|load| load.is_unfit);
    let led = unfit.flat_map(|load| survey.led_by(load.store));
    let regions = led.filter(|id| !view.operators.has_operator(**id));
    let regions = regions.filter_map(|id| view.cluster.regions().get(*id));
    regions.filter_map(|info| evict(view, &mut loads, info)).take(PROPOSALS_MAX).collect()
}

fn evict(view: &ClusterView<'_>, loads: &mut Loads, info: &RegionInfo) -> Option<Operator> {
    let leader = info.leader?;
    let is_unfit = |peer: &&Peer| loads.get(peer.store).is_some_and(|load| load.is_unfit);
    let unfit: Vec<Peer> = info.region.peers.iter().filter(is_unfit).copied().collect();
    let next = view.next_leader(loads, info, &unfit)?;
    loads.move_leader(LeaderCost::of(info, view.now), leader.store, next.store);
    let reason = format!("store {} should not lead", leader.store);
    plan::operator(info, Kind::Evict, vec![Step::Transfer(next)], reason)
}
