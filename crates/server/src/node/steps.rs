//! Execution of the placement group's steps for regions led here.

use super::ids::IdSource;
use super::split;
use crate::stores::Stores;
use stele_node::report::Obstacle;
use stele_node::report::steps::{self, Execution};
use stele_placement::Instruction;

/// Executes one step. Its effect shows in the next report; an obstacle is returned.
pub(super) async fn execute(
    stores: &Stores,
    ids: &IdSource,
    step: &Instruction,
) -> Result<(), Obstacle> {
    let outcome = run(stores, ids, step).await;
    if let Err(Obstacle { reason, .. }) = &outcome {
        tracing::info!("operator {}: region {}: {reason}", step.operator, step.region);
    }
    outcome
}

async fn run(stores: &Stores, ids: &IdSource, step: &Instruction) -> Result<(), Obstacle> {
    let store = stores.holding(step.region);
    let region = store.as_ref().and_then(|store| store.readers().get(step.region));
    let region = region.map(|reader| reader.region());
    let execution = steps::execution(step, region.as_deref())?;
    let (Some(store), Some(region)) = (store, region) else { return Ok(()) };
    match execution {
        Execution::Request(call) => split::change(&store, &region, call).await,
        Execution::Split { keys, new } => split::split_at(&store, ids, &region, keys, new).await,
    }
}
