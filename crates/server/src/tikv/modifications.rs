//! Read-modify-writes. The leader decides them against its own log, so they are safe beside plain
//! writes.

use super::checks::{Target, check_value, family, target};
use super::errors::{Failure, OnUnknown};
use super::writes::expiry;
use crate::observe::Stages;
use crate::stores::Stores;
use bytes::Bytes;
use stele_proto::kvrpcpb::RawCasRequest;
use stele_raftstore::{Done, Modification, Modified, Modify, NewPair, Reply, RequestId};

/// Modification that was decided.
pub struct Decided {
    /// Its result.
    pub result: Modified,
    /// Time by stage.
    pub stages: Stages,
}

/// `RawCompareAndSwap`: sets or deletes a key that has the expected value.
pub async fn compare_and_swap(
    stores: &Stores,
    request: &RawCasRequest,
) -> Result<Decided, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    target.check_key(&request.key)?;
    check_value(&request.value)?;
    let new = match request.delete {
        true => NewPair::Delete,
        false => {
            let expires_at_s = expiry(&target, request.ttl);
            NewPair::Put { value: request.value.clone(), expires_at_s }
        }
    };
    let expected = (!request.previous_not_exist).then(|| request.previous_value.clone());
    let change = Modification::Compare { expected, new };
    modify(&target, family.engine_key(&request.key), change).await
}

async fn modify(target: &Target, key: Bytes, change: Modification) -> Result<Decided, Failure> {
    let modify = Modify { id: RequestId::default(), header: target.header, key, change };
    let clock = target.store.clock();
    let arrived_nanos = clock.monotonic_nanos();
    match target.store.modify(modify).await {
        Reply::Done(Done::Modified { result, timings }) => {
            let stages = Stages::new(arrived_nanos, &timings, clock.monotonic_nanos());
            Ok(Decided { result, stages })
        }
        // A repeated modification would see the effect of the first one, so clients must not repeat
        // one of unknown outcome.
        other => {
            let on_unknown = match target.on_unknown {
                OnUnknown::Report => OnUnknown::Report,
                _ => OnUnknown::Fail,
            };
            let (region, store) = (target.header.region, target.store.id());
            Err(Failure::of_reply(other, region, store, on_unknown))
        }
    }
}
