//! The regular work of the placement group's leader, and what is asked of it by hand.

use super::PlacementService;
use std::sync::Arc;
use stele_placement::{Cluster, LeaderState, Operator, OperatorId};
use tonic::Status;

impl PlacementService {
    /// Persists what is due, and lets the schedulers look.
    pub(super) async fn housekeep(self: &Arc<Self>) -> Result<(), Status> {
        let behind = self.update_state(LeaderState::take_behind).await?;
        let unix_seconds = self.clock.unix_seconds();
        self.commit_decision(move |cluster, now| {
            let due = LeaderState::plan_due(cluster, behind, now, unix_seconds);
            Ok(((), due.map_err(super::refused)?))
        })
        .await?;
        let now = self.now();
        self.update_state(|led| led.schedule(now)).await
    }

    /// The first of `count` numbers for regions and peers that nobody else has or had.
    pub async fn alloc_ids(self: &Arc<Self>, count: u32) -> Result<u64, Status> {
        let request = stele_proto::stele::control::v1::AllocIdsRequest { header: None, count };
        Ok(self.alloc_ids_of(request).await?.first)
    }

    pub(super) async fn take_ids(self: &Arc<Self>, count: u64) -> Result<u64, Status> {
        loop {
            if let Some(ids) = self.update_state(|led| led.cluster.take_ids(count)).await? {
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
        self.commit_decision(plan).await
    }

    /// Starts an operator that a person ordered. `plan` makes it of the state.
    pub(super) async fn order(
        self: &Arc<Self>,
        plan: impl Fn(&LeaderState) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let ordered = self.order_now(plan).await;
        self.or_ask_again(ordered).await
    }

    async fn order_now(
        self: &Arc<Self>,
        plan: impl Fn(&LeaderState) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let wanted = |led: &LeaderState| {
            let operator = plan(led)?;
            let region = led.cluster.regions().get(operator.region);
            Ok::<u64, Status>(operator.ids_wanted(region.map_or(0, |info| info.region.peers.len())))
        };
        let count = self.read_state(wanted).await??;
        if count > self.read_state(|led| led.cluster.ids_reserved()).await? {
            self.reserve_ids(count).await?;
        }
        let now = self.now();
        self.update_state(|led| {
            led.operators.advance(&led.cluster, now);
            let operator = plan(led)?;
            let admitted = led.operators.admit(&mut led.cluster, operator, now);
            admitted.map_err(super::operators::not_admitted)
        })
        .await?
    }
}
