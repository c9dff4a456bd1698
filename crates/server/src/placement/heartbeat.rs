//! Reports of nodes, and the steps they get in reply.

use super::forward::leader_calls;
use super::{PlacementService, refused, wire};
use std::sync::Arc;
use stele_placement::{
    Cluster, LeaderState, Millis, NodeReport, OperatorId, Refused, Report, StoreReport,
};
use stele_proto::stele::control::v1::{
    HeartbeatRequest, HeartbeatResponse, OperatorOutcome, StrayPeer,
};
use stele_types::{PeerId, RegionEpoch, RegionId, StoreId};
use tonic::Status;

/// Milliseconds until a node that leads a region with an operator must report again.
const SOON_MILLIS: u32 = 100;

leader_calls! {
    /// Accepts a node's report, and replies with the next steps of its leaders.
    heartbeat, heartbeat(HeartbeatRequest) -> HeartbeatResponse = heartbeat_here;
}

impl PlacementService {
    async fn heartbeat_here(
        self: &Arc<Self>,
        request: HeartbeatRequest,
    ) -> Result<HeartbeatResponse, Status> {
        self.check_times(request.lease_times.as_ref(), &request.address)?;
        let now = self.now();
        let reports: Vec<StoreReport> = request.stores.iter().map(wire::store_report_of).collect();
        let node = NodeReport {
            address: request.address.clone(),
            version: request.version.clone(),
            started_at: request.started_at,
        };
        let changes =
            self.read_state(|state| state.cluster.plan_heartbeat(&node, &reports)).await?;
        if !changes.map_err(refused)?.is_empty() {
            let (node, reports) = (node.clone(), reports.clone());
            let plan = move |cluster: &Cluster, _| {
                Ok(((), cluster.plan_heartbeat(&node, &reports).map_err(refused)?))
            };
            self.commit_decision(plan).await?;
        }
        self.update_state(|state| {
            for rejected in state.accept_report(report_of(&node, &reports, &request), now) {
                tracing::debug!("report of {}: {rejected}", request.address);
            }
            self.response(state, &request, now)
        })
        .await
    }

    fn response(
        &self,
        state: &mut LeaderState,
        request: &HeartbeatRequest,
        now: Millis,
    ) -> HeartbeatResponse {
        let stores: Vec<StoreId> = request.stores.iter().map(|store| StoreId(store.id)).collect();
        let reply = state.reply_to(&request.address, &stores, now);
        let members_version = state.cluster.members_version();
        let known = request.members_version == members_version;
        HeartbeatResponse {
            cluster_id: self.cluster.0,
            steps: reply.due.iter().map(wire::step).collect(),
            members_version,
            members: if known { Vec::new() } else { self.members_of(&state.cluster) },
            all_regions_wanted: reply.all_wanted,
            options_version: state.term.0,
            options: wire::options(&reply),
            interval_ms: if reply.is_busy { SOON_MILLIS } else { 0 },
            gone_peers: request
                .stray_peers
                .iter()
                .filter_map(|stale| removed_peer(state, stale))
                .collect(),
        }
    }
}

/// Converts a report, without the regions that do not decode.
fn report_of<'a>(
    node: &'a NodeReport,
    stores: &'a [StoreReport],
    request: &HeartbeatRequest,
) -> Report<'a> {
    let regions: Vec<_> = request.regions.iter().filter_map(wire::report_of).collect();
    Report {
        node,
        sequence: request.sequence,
        stores,
        is_full: request.all_regions && regions.len() == request.regions.len(),
        regions,
        refusals: request.outcomes.iter().filter_map(refused_step).collect(),
    }
}

fn refused_step(outcome: &OperatorOutcome) -> Option<Refused> {
    (!outcome.done).then(|| Refused {
        operator: OperatorId(outcome.operator_id),
        step: outcome.index as usize,
        reason: outcome.refusal.clone(),
        is_final: outcome.is_final,
    })
}

/// Returns the peer with the epoch of its removal, if its region has removed it.
fn removed_peer(state: &LeaderState, stale: &StrayPeer) -> Option<StrayPeer> {
    let epoch = RegionEpoch { conf_version: stale.conf_version, version: stale.version };
    let (region, peer) = (RegionId(stale.region_id), PeerId(stale.peer_id));
    let epoch_after = state.cluster.left_behind(region, peer, epoch)?;
    let RegionEpoch { conf_version, version } = epoch_after;
    Some(StrayPeer { conf_version, version, ..*stale })
}
