//! What nodes report, and what they are told to do.

use super::forward::led_calls;
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

/// How soon a node that leads a region with an operator shall report again.
const SOON_MILLIS: u32 = 100;

led_calls! {
    /// Takes a node's report in and answers what its leaders shall do next.
    heartbeat, heartbeat(HeartbeatRequest) -> HeartbeatResponse = heartbeat_here;
}

impl PlacementService {
    async fn heartbeat_here(
        self: &Arc<Self>,
        request: HeartbeatRequest,
    ) -> Result<HeartbeatResponse, Status> {
        let now = self.now();
        let reports: Vec<StoreReport> = request.stores.iter().map(wire::store_report_of).collect();
        let node = NodeReport {
            address: request.address.clone(),
            version: request.version.clone(),
            started_at: request.started_at,
        };
        let changes = self.read_state(|led| led.cluster.plan_heartbeat(&node, &reports)).await?;
        if !changes.map_err(refused)?.is_empty() {
            let (node, reports) = (node.clone(), reports.clone());
            let plan = move |cluster: &Cluster, _| {
                Ok(((), cluster.plan_heartbeat(&node, &reports).map_err(refused)?))
            };
            self.commit_decision(plan).await?;
        }
        self.update_state(|led| {
            for stale in led.accept_report(report_of(&node, &reports, &request), now) {
                tracing::debug!("report of {}: {stale}", request.address);
            }
            self.answer(led, &request, now)
        })
        .await
    }

    fn answer(
        &self,
        led: &mut LeaderState,
        request: &HeartbeatRequest,
        now: Millis,
    ) -> HeartbeatResponse {
        let stores: Vec<StoreId> = request.stores.iter().map(|store| StoreId(store.id)).collect();
        let told = led.reply_to(&request.address, &stores, now);
        let members_version = led.cluster.members_version();
        let known = request.members_version == members_version;
        HeartbeatResponse {
            cluster_id: self.cluster.0,
            steps: told.due.iter().map(wire::step).collect(),
            members_version,
            members: if known { Vec::new() } else { self.members_of(&led.cluster) },
            all_regions_wanted: told.all_wanted,
            interval_ms: if told.is_busy { SOON_MILLIS } else { 0 },
            gone_peers: request.stray_peers.iter().filter_map(|stray| gone(led, stray)).collect(),
            ..HeartbeatResponse::default()
        }
    }
}

/// A report without the regions that can't be read.
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
        why: outcome.refusal.clone(),
        is_final: outcome.is_final,
    })
}

/// The stray with the epoch that is without it, if its region has one.
fn gone(led: &LeaderState, stray: &StrayPeer) -> Option<StrayPeer> {
    let epoch = RegionEpoch { conf_version: stray.conf_version, version: stray.version };
    let (region, peer) = (RegionId(stray.region_id), PeerId(stray.peer_id));
    let later = led.cluster.left_behind(region, peer, epoch)?;
    let RegionEpoch { conf_version, version } = later;
    Some(StrayPeer { conf_version, version, ..*stray })
}
