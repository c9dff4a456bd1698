//! Operators of the placement group, each followed until it ends.

use super::Cluster;
use super::control::POLL;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1 as proto;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_types::{RegionId, RegionKind, StoreId};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Time limit of an operator that moves data.
const ENDED_LIMIT: Duration = Duration::from_secs(60);

impl Cluster {
    pub(crate) async fn move_replica(
        &self,
        region: RegionId,
        from: StoreId,
        to: StoreId,
    ) -> Result<()> {
        let request = proto::MoveRequest {
            region_id: region.0,
            from_store: from.0,
            to_store: to.0,
            header: None,
        };
        let call = |mut client: ControlClient<Channel>| async move { client.r#move(request).await };
        is_done(self.run_operator("move", call).await?)
    }

    pub(crate) async fn lead_all(&self, store: StoreId) -> Result<()> {
        for known in self.regions().await? {
            if known.region.kind == RegionKind::Data && known.leader != Some(store) {
                self.transfer(known.region.id, store).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn merge(&self, source: RegionId, target: RegionId) -> Result<()> {
        let (source_region, target_region) = (source.0, target.0);
        let request = proto::MergeRequest { source_region, target_region, header: None };
        let call = |mut client: ControlClient<Channel>| async move { client.merge(request).await };
        is_done(self.run_operator("merge", call).await?)
    }

    /// Requests a split at user keys, or in half without keys; returns the ended operator.
    pub(crate) async fn try_split(
        &self,
        region: RegionId,
        keys: Vec<Bytes>,
    ) -> Result<proto::OperatorInfo> {
        let request = proto::SplitRequest { region_id: region.0, keys, header: None };
        let call = |mut client: ControlClient<Channel>| {
            let request = request.clone();
            async move { client.split(request).await }
        };
        self.run_operator("split", call).await
    }

    /// Splits a region at user keys, or in half without keys; fails unless the split is done.
    pub(crate) async fn split_done(&self, region: RegionId, keys: Vec<Bytes>) -> Result<()> {
        is_done(self.try_split(region, keys).await?)
    }

    async fn run_operator<F, A>(&self, what: &str, call: F) -> Result<proto::OperatorInfo>
    where
        F: Fn(ControlClient<Channel>) -> A,
        A: Future<Output = Result<Response<proto::OperatorAccepted>, Status>>,
    {
        let operator_id = self.placement(what, call).await?.operator_id;
        let deadline = Instant::now() + ENDED_LIMIT;
        loop {
            let found = self
                .placement("list operators", |mut client| async move {
                    let request = proto::ListOperatorsRequest {
                        operator_id,
                        ended: true,
                        ..proto::ListOperatorsRequest::default()
                    };
                    client.list_operators(request).await
                })
                .await?;
            let found = found.operators.into_iter().next();
            let found =
                found.with_context(|| format!("{what}: operator {operator_id} is unknown"))?;
            if found.state != proto::OperatorState::Running as i32 {
                return Ok(found);
            }
            ensure!(
                Instant::now() < deadline,
                "{what} is still running after {ENDED_LIMIT:?}: {found:?}"
            );
            tokio::time::sleep(POLL).await;
        }
    }
}

fn is_done(ended: proto::OperatorInfo) -> Result<()> {
    ensure!(ended.state == proto::OperatorState::Done as i32, "not done: {ended:?}");
    Ok(())
}
