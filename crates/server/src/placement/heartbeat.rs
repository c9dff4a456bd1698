//! What nodes report, and what they are told to do.

use super::forward::led_calls;
use super::led::Led;
use super::{PlacementService, refused, wire};
use std::sync::Arc;
use stele_placement::{Cluster, Millis, NodeReport, OperatorId, StoreReport};
use stele_proto::stele::control::v1::{
    HeartbeatRequest, HeartbeatResponse, OperatorOutcome, StrayPeer,
};
use stele_types::{PeerId, RegionEpoch, RegionId, StoreId};
use tonic::Status;

/// Most nodes whose last report is remembered.
const NODES_MAX: usize = 4096;
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
        let changes = self.look(|led| led.cluster.plan_heard(&node, &reports)).await?;
        if !changes.map_err(refused)?.is_empty() {
            let (node, reports) = (node.clone(), reports.clone());
            let plan = move |cluster: &Cluster, _| {
                Ok(((), cluster.plan_heard(&node, &reports).map_err(refused)?))
            };
            self.decide(plan).await?;
        }
        self.touch(|led| {
            led.cluster.hear(&node, &reports, now);
            led.take_in(&request, now);
            self.answer(led, &request, now)
        })
        .await
    }

    fn answer(&self, led: &mut Led, request: &HeartbeatRequest, now: Millis) -> HeartbeatResponse {
        let stores: Vec<StoreId> = request.stores.iter().map(|store| StoreId(store.id)).collect();
        let due = led.operators.instructions(&led.cluster, &stores, now);
        let is_led_here = |region: RegionId| {
            let leader = led.cluster.regions().get(region).and_then(|info| info.leader);
            leader.is_some_and(|leader| stores.contains(&leader.store))
        };
        let busy = led.operators.running().any(|operator| is_led_here(operator.region));
        let members_version = led.cluster.members_version();
        let known = request.members_version == members_version;
        HeartbeatResponse {
            cluster_id: self.cluster.0,
            steps: due.iter().map(wire::step).collect(),
            members_version,
            members: if known { Vec::new() } else { self.members_of(&led.cluster) },
            all_regions_wanted: !led.cluster.is_informed_by(&request.address),
            interval_ms: if busy { SOON_MILLIS } else { 0 },
            gone_peers: request.stray_peers.iter().filter_map(|stray| gone(led, stray)).collect(),
            ..HeartbeatResponse::default()
        }
    }
}

impl Led {
    /// Takes the regions of a report in, unless a later report of the same node came before it.
    fn take_in(&mut self, request: &HeartbeatRequest, now: Millis) {
        let this = (request.started_at, request.sequence);
        let last = self.reports.get(&request.address).copied();
        if last.is_some_and(|last| this <= last) {
            return;
        }
        // A node that is heard of for the first time may be what others wait for.
        self.is_news |= last.is_none();
        if self.reports.len() >= NODES_MAX {
            self.reports.clear();
        }
        self.reports.insert(request.address.clone(), this);
        let mut complete = true;
        for report in &request.regions {
            let Some(report) = wire::report_of(report) else {
                complete = false;
                continue;
            };
            let known = self.cluster.regions().get(report.region.id);
            let epoch = known.map(|info| (info.region.epoch, info.leader));
            let next = Some((report.region.epoch, Some(report.leader)));
            match self.cluster.observe(report, now) {
                Ok(()) => self.is_news |= epoch != next,
                Err(stale) => tracing::debug!("report of {}: {stale}", request.address),
            }
        }
        if request.all_regions && complete {
            self.cluster.note_full_report(&request.address);
        }
        request.outcomes.iter().for_each(|outcome| self.note_outcome(outcome, now));
    }

    fn note_outcome(&mut self, outcome: &OperatorOutcome, now: Millis) {
        if !outcome.done {
            let (id, step) = (OperatorId(outcome.operator_id), outcome.index as usize);
            let (text, is_final) = (outcome.refusal.clone(), outcome.is_final);
            self.operators.note_refusal(id, step, text, is_final, now);
        }
    }
}

/// The stray with the epoch that is without it, if its region has one.
fn gone(led: &Led, stray: &StrayPeer) -> Option<StrayPeer> {
    let epoch = RegionEpoch { conf_version: stray.conf_version, version: stray.version };
    let (region, peer) = (RegionId(stray.region_id), PeerId(stray.peer_id));
    let later = led.cluster.left_behind(region, peer, epoch)?;
    let RegionEpoch { conf_version, version } = later;
    Some(StrayPeer { conf_version, version, ..*stray })
}
