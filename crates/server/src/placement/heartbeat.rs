//! Reports of nodes, and the steps they get in reply.

use super::forward::leader_calls;
use super::members::members_of;
use super::{PlacementService, refused, wire};
use std::sync::Arc;
use stele_node::placement::Accepted;
use stele_proto::stele::control::v1::{HeartbeatRequest, HeartbeatResponse};
use stele_types::ClusterId;
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
        let (report, now) = (wire::report_of(&request), self.now());
        self.input(|leader| {
            leader.report(report, now, move |accepted| {
                let response = accepted.map(|accepted| response(cluster, &own, &request, accepted));
                // The caller may be gone.
                let _ = sender.send(response);
            });
        });
        self.decided(decided, refused).await
    }
}

fn response(
    cluster: ClusterId,
    own: &str,
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
