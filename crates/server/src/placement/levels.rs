//! Levels of the cluster: refusal of nodes that support less, and the call that raises the level.

use super::forward::leader_calls;
use super::{PlacementService, refused};
use std::sync::Arc;
use stele_placement::{Bootstrap, Cluster, Levels, PairChange, pairs};
use stele_proto::stele::control::v1::{FinalizeRequest, FinalizeResponse};
use stele_types::Level;
use tonic::Status;
use tonic::metadata::MetadataValue;

/// Metadata of a refusal: the level that the cluster records, which the called node does not support.
const LEVEL_METADATA: &str = "stele-level";

leader_calls! {
    /// Raises the level that the nodes write, or returns how far an earlier call has come.
    finalize, finalize(FinalizeRequest) -> FinalizeResponse = finalize_here;
}

impl PlacementService {
    /// Refuses the node at `address` if it supports less than the cluster records.
    pub(super) async fn check_level(
        self: &Arc<Self>,
        supported: u32,
        address: &str,
    ) -> Result<(), Status> {
        let supported = Level::new(supported);
        let checked = self
            .read_state(|state| {
                let recorded = state.cluster.levels().recorded;
                state.cluster.check_level(supported, address).map_err(|error| (error, recorded))
            })
            .await?;
        checked.map_err(|(error, recorded)| {
            let mut status = Status::failed_precondition(error.to_string());
            status.metadata_mut().insert(LEVEL_METADATA, MetadataValue::from(recorded.get()));
            status
        })
    }

    async fn finalize_here(
        self: &Arc<Self>,
        _: FinalizeRequest,
    ) -> Result<FinalizeResponse, Status> {
        let plan = |cluster: &Cluster, now| {
            let changes = cluster.plan_finalize(now).map_err(refused)?;
            Ok((!changes.is_empty(), changes))
        };
        let answer = self.commit_decision(plan, |raised, state| {
            let Levels { recorded, in_use } = state.cluster.levels();
            FinalizeResponse {
                level: recorded.get(),
                level_in_use: in_use.get(),
                raised,
                behind: state.cluster.stores_below_level().into_iter().collect(),
            }
        });
        let answer = answer.await;
        self.or_retry_later(answer).await
    }
}

/// Returns whether the placement leader refused a report because the cluster records a level that this
/// program does not support. No later call can succeed.
pub(crate) fn is_below_level(refusal: &Status) -> bool {
    refusal.metadata().contains_key(LEVEL_METADATA)
}

/// Returns the first pairs of a cluster of which the first stores have recorded `level`.
pub(super) fn first_pairs((bootstrap, level): (Bootstrap, Level)) -> Vec<PairChange> {
    let levels = pairs::levels(Levels::of_new_cluster(level));
    bootstrap.pairs().into_iter().chain([levels]).collect()
}
