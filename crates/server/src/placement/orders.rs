//! Orders of administrators to start operators, and the ids that operators and splits take.

use super::PlacementService;
use std::sync::Arc;
use stele_placement::{Cluster, LeaderState, Operator, OperatorId};
use tonic::Status;

impl PlacementService {
    /// Reserves `count` ids for regions and peers that were never allocated; returns the first.
    pub async fn alloc_ids(self: &Arc<Self>, count: u32) -> Result<u64, Status> {
        let request = stele_proto::stele::control::v1::AllocIdsRequest { header: None, count };
        Ok(self.alloc_ids_of(request).await?.first)
    }

    pub(super) async fn take_ids(self: &Arc<Self>, count: u64) -> Result<u64, Status> {
        loop {
            if let Some(ids) = self.update_state(|state| state.cluster.take_ids(count)).await? {
                return Ok(ids.start);
            }
            self.reserve_ids(count).await?;
        }
    }

    async fn reserve_ids(self: &Arc<Self>, count: u64) -> Result<(), Status> {
        let plan = move |cluster: &Cluster, _| {
            let changes = cluster.plan_ids(count);
            Ok(((), changes.map_err(|error| Status::invalid_argument(error.to_string()))?))
        };
        self.commit_decision(plan, |(), _| ()).await
    }

    /// Starts an operator ordered by an administrator. `plan` derives it from the state.
    pub(super) async fn order(
        self: &Arc<Self>,
        plan: impl Fn(&LeaderState) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let ordered = self.order_now(plan).await;
        self.or_retry_later(ordered).await
    }

    async fn order_now(
        self: &Arc<Self>,
        plan: impl Fn(&LeaderState) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let wanted = |state: &LeaderState| {
            let operator = plan(state)?;
            let region = state.cluster.regions().get(operator.region);
            Ok::<u64, Status>(operator.ids_wanted(region.map_or(0, |info| info.region.peers.len())))
        };
        let count = self.read_state(wanted).await??;
        if count > self.read_state(|state| state.cluster.ids_reserved()).await? {
            self.reserve_ids(count).await?;
        }
        let now = self.now();
        self.update_state(|state| {
            state.operators.advance(&state.cluster, now);
            let operator = plan(state)?;
            let admitted = state.operators.admit(&mut state.cluster, operator, now);
            admitted.map_err(super::operators::not_admitted)
        })
        .await?
    }
}
