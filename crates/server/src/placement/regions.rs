//! Lists of regions.

use super::forward::leader_calls;
use super::{PlacementService, wire};
use bytes::Bytes;
use std::sync::Arc;
use stele_placement::{LeaderState, Millis, RegionInfo};
use stele_proto::stele::control::v1::{
    self as control, ListRegionsRequest, ListRegionsResponse, RegionFilter,
};
use stele_types::{KeyRange, PeerRole, RegionId, RegionKind, RegionPhase, StoreId};
use tonic::Status;

/// Most regions in one answer.
const PAGE_MAX: usize = 4096;

leader_calls! {
    /// Lists what is known of regions, ascending by key, in pages.
    list_regions, list_regions(ListRegionsRequest) -> ListRegionsResponse = list_regions_here;
}

impl PlacementService {
    async fn list_regions_here(
        self: &Arc<Self>,
        request: ListRegionsRequest,
    ) -> Result<ListRegionsResponse, Status> {
        let now = self.now();
        let ids = |answer: &(ListRegionsResponse, Vec<RegionId>)| answer.1.clone();
        let (response, _) = self.answer_regions(|state| list(state, &request, now), ids).await?;
        Ok(response)
    }
}

/// Returns a page and the numbers of its regions.
fn list(
    state: &LeaderState,
    request: &ListRegionsRequest,
    now: Millis,
) -> (ListRegionsResponse, Vec<RegionId>) {
    let regions = state.cluster.regions();
    let page = |found: Vec<&RegionInfo>, next_key| {
        let ids = found.iter().map(|info| info.region.id).collect();
        let regions = found.into_iter().map(|info| entry(state, info, now)).collect();
        (ListRegionsResponse { regions, next_key }, ids)
    };
    let one = |info: Option<&RegionInfo>| page(info.into_iter().collect(), None);
    if request.previous {
        return one(regions.before_key(&request.start_key));
    }
    if request.region_id != 0 {
        return one(regions.get(RegionId(request.region_id)));
    }
    let limit = match request.limit {
        0 => PAGE_MAX,
        limit => PAGE_MAX.min(limit as usize),
    };
    let range = KeyRange::new(request.start_key.clone(), request.end_key.clone());
    let wanted = |info: &&RegionInfo| matches(state, request, info);
    let system = regions.iter().filter(|info| info.region.kind == RegionKind::System);
    let system = system.filter(|_| request.system && request.start_key.is_empty());
    let mut found: Vec<&RegionInfo> =
        system.chain(regions.in_range(&range)).filter(wanted).take(limit + 1).collect();
    let next_key = found.get(limit).map(|info| Bytes::clone(&info.region.range.start));
    found.truncate(limit);
    page(found, next_key)
}

pub(super) fn entry(state: &LeaderState, info: &RegionInfo, now: Millis) -> control::RegionInfo {
    let age = info.reported.map(|at| i64::try_from(now.since(at)).unwrap_or(i64::MAX));
    let operator = state.operators.of(info.region.id);
    control::RegionInfo {
        report: Some(wire::report(info)),
        report_age_ms: age.unwrap_or(-1),
        operator_id: operator.map_or(0, |operator| operator.id.0),
    }
}

fn matches(state: &LeaderState, request: &ListRegionsRequest, info: &RegionInfo) -> bool {
    let region = &info.region;
    if request.store_id != 0 && region.peer_on(StoreId(request.store_id)).is_none() {
        return false;
    }
    let voters = region.peers.iter().filter(|peer| peer.role != PeerRole::Learner).count();
    let wanted = match region.kind {
        RegionKind::Data => state.cluster.config().replicas(),
        RegionKind::System => 3,
    };
    match RegionFilter::try_from(request.filter).unwrap_or(RegionFilter::All) {
        RegionFilter::All => true,
        RegionFilter::NoLeader => info.leader.is_none(),
        RegionFilter::MissingPeer => voters < wanted,
        RegionFilter::ExtraPeer => region.peers.len() > wanted,
        RegionFilter::DownPeer => !info.down.is_empty(),
        RegionFilter::PendingPeer => !info.pending.is_empty(),
        RegionFilter::Joint => region.is_joint(),
        RegionFilter::Merging => matches!(region.phase, RegionPhase::Merging { .. }),
    }
}
