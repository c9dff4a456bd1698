//! Steps of Redis transactions over several regions, in one of them.

use super::Memory;
use super::checks::Target;
use super::errors::{Failure, charge};
use super::reads::view;
use super::redis::{check_names, decided, read_members};
use bytes::Bytes;
use stele_proto::stele::redis::v1::{StepRequest, StepResponse};
use stele_redis::MembersNeed;
use stele_redis::transaction::{self, StepAnswer, StepProgram};
use stele_replica::StageNanos;
use stele_storage::{Pair, Pairs, Program};
use stele_types::redis_key;

/// `Step`: executes a step as one change, or reads collections at a view.
pub(super) async fn step(
    target: &Target,
    request: &StepRequest,
    memory: &Memory,
) -> Result<(StepResponse, StageNanos), Failure> {
    let unknown = || Failure::Invalid("a step that this node does not know: upgrade it".to_owned());
    let step = match transaction::StepRequest::decode(&request.step).ok_or_else(unknown)? {
        transaction::StepRequest::Step(step) => step,
        transaction::StepRequest::Members(needs) => {
            return Ok((members(target, needs, memory).await?, StageNanos::default()));
        }
    };
    let program = StepProgram::new(step).map_err(|it| Failure::Invalid(it.to_string()))?;
    if let Err(refused) = check(target, program.keys().iter())? {
        return Ok((refused, StageNanos::default()));
    }
    // The step, and the command that is made of it.
    charge(memory, 2 * program.bytes() as u64, target.header.region)?;
    let (answer, stages) = decided(target, program, memory).await?;
    memory.charge_anyway(answer.len() as u64);
    Ok((StepResponse { answer, ..StepResponse::default() }, stages))
}

/// Checks that all pairs lie in the region. An inner error is the final answer to the caller.
fn check<'a>(
    target: &Target,
    keys: impl Iterator<Item = &'a Bytes> + Clone,
) -> Result<Result<(), StepResponse>, Failure> {
    if keys.clone().any(|key| redis_key::decode(key).is_none()) {
        return Err(Failure::Invalid("a step on other pairs than those of Redis keys".to_owned()));
    }
    let checked = check_names(target, keys.cloned())?;
    Ok(checked.map_err(|error| StepResponse { error, ..StepResponse::default() }))
}

async fn members(
    target: &Target,
    needs: Vec<MembersNeed>,
    memory: &Memory,
) -> Result<StepResponse, Failure> {
    if let Err(refused) = check(target, needs.iter().map(|need| &need.header_key))? {
        return Ok(refused);
    }
    let view = view(target).await?;
    let mut pairs = Pairs::new();
    for (need, members) in read_members(target, &view, needs, memory).await? {
        for (field, value) in members {
            let key = redis_key::member_key(&need.header_key, need.version.stamp, &field);
            pairs.insert(key.clone(), Some(Pair { key, value, expires_at_s: 0 }));
        }
    }
    let answer = StepAnswer::Read(pairs, target.store.clock().unix_millis()).encode();
    memory.charge_anyway(answer.len() as u64);
    Ok(StepResponse { answer, ..StepResponse::default() })
}
