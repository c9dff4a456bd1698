//! Reports of nodes, and the steps they get in reply.

use super::forward::leader_calls;
use super::members::members_of;
use super::{PlacementService, refused, wire};
use std::sync::Arc;
use stele_node::placement::Accepted;
use stele_node::report::Report;
use stele_proto::stele::control::v1::{HeartbeatRequest, HeartbeatResponse};
use stele_types::{ClusterId, StoreId};
use tokio::sync::oneshot;
use tonic::Status;

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
        let (cluster, own) = (self.cluster, self.system.own_address());
        let (sender, decided) = oneshot::channel();
        let (mut report, now) = (wire::report_of(&request), self.now());
        self.drop_refused(&mut report).await?;
        self.input(|leader| {
            leader.report(report, now, move |accepted| {
                let response =
                    accepted.map(|accepted| response((cluster, &own), &request, accepted));
                // The caller may be gone.
                let _ = sender.send(response);
            });
        });
        self.decided(decided, refused).await
    }
}

impl PlacementService {
    /// Drops the stores of a report that this node does not hear, with the regions that they lead. Fails
    /// if none is left.
    ///
    /// Invariant: the placement group takes no address and no region from a run that its leader does not
    /// hear.
    async fn drop_refused(&self, report: &mut Report) -> Result<(), Status> {
        let serving = report.stores.iter().filter(|store| !store.has_failed);
        let runs = serving.map(|store| (store.id, report.node.run_of(store))).collect();
        let refused = self.system.judge(report.node.address.clone(), runs).await;
        let Some(first) = refused.first() else { return Ok(()) };
        let is_heard = |id: StoreId| !refused.iter().any(|it| it.store == id);
        if !report.stores.iter().any(|store| !store.has_failed && is_heard(store.id)) {
            return Err(Status::invalid_argument(first.text.clone()));
        }
        report.stores.retain(|store| is_heard(store.id));
        report.regions.retain(|region| is_heard(region.leader.store));
        Ok(())
    }
}

fn response(
    (cluster, own): (ClusterId, &str),
    request: &HeartbeatRequest,
    accepted: Accepted<'_>,
) -> HeartbeatResponse {
    let Accepted { answer, rejected, state } = accepted;
    for rejected in rejected {
        tracing::debug!("report of {}: {rejected}", request.address);
    }
    let members_version = state.cluster.members_version();
    let is_known = request.members_version == members_version;
    HeartbeatResponse {
        cluster_id: cluster.0,
        members_version,
        members: if is_known { Vec::new() } else { members_of(&state.cluster, own) },
        ..wire::response(&answer)
    }
}
