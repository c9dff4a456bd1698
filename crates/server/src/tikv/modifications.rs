//! Read-modify-writes. The leader decides them against its own log, so they are safe beside plain
//! writes.

use super::checks::{Target, check_value};
use super::errors::{Failure, OnUnknown, charge};
use super::writes::{expiry, not_done};
use super::{Memory, gets};
use crate::memory::value_memory;
use crate::observe::Kind;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use stele_proto::kvrpcpb::{RawCasRequest, RawCasResponse};
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_proto::stele::kv::v1::{
    ModifyInSessionRequest, ModifyRequest, ModifyResponse, NumberedPut, PutInSessionRequest,
    Refusal,
};
use stele_replica::StageNanos;
use stele_replica::{Done, Modification, Modified, Modify, NewPair, Reply};
use stele_types::command::Unfit;
use stele_types::{RegionId, SessionId, SessionRequest};

/// Puts of one message that wait for their outcome together.
const PUTS_AT_ONCE: usize = 512;

/// `RawCompareAndSwap`: sets or deletes a key that has the expected value.
pub(super) async fn compare_and_swap(
    target: &Target,
    request: &RawCasRequest,
    memory: &Memory,
) -> Result<(RawCasResponse, StageNanos), Failure> {
    let key = target.written_key(&request.cf, &request.key)?;
    check_value(&request.value)?;
    let new = match request.delete {
        true => NewPair::Delete,
        false => {
            let expires_at_s = expiry(target, request.ttl);
            NewPair::Put { value: request.value.clone(), expires_at_s }
        }
    };
    let expected = (!request.previous_not_exist).then(|| request.previous_value.clone());
    let change = Modification::Compare { expected, new };
    let (decided, stages) = decide(target, key, (change, None), memory).await?;
    let (succeed, previous) = match decided {
        Decided::As(Modified::Replaced { previous }) => (true, previous),
        Decided::As(Modified::Unchanged { previous }) => (false, previous),
        // A comparison has no other result.
        _ => (false, None),
    };
    let response = RawCasResponse {
        succeed,
        previous_not_exist: previous.is_none(),
        previous_value: previous.map(|pair| pair.value).unwrap_or_default(),
        ..RawCasResponse::default()
    };
    Ok((response, stages))
}

/// `Modify`: puts if absent or if present, increments, appends, or gets and deletes.
pub(super) async fn modify(
    target: &Target,
    request: &ModifyRequest,
    memory: &Memory,
) -> Result<(ModifyResponse, StageNanos), Failure> {
    modify_as(target, request, None, memory).await
}

/// `ModifyInSession`: changes a key at most once, however often it is sent.
pub(super) async fn modify_in_session(
    target: &Target,
    request: &ModifyInSessionRequest,
    memory: &Memory,
) -> Result<(ModifyResponse, StageNanos), Failure> {
    let (Some(modification), Some(of)) = (&request.modification, &request.session) else {
        return Err(Failure::Invalid("the request names no modification or no session".to_owned()));
    };
    let session = SessionRequest {
        session: SessionId(of.session),
        number: of.number,
        expires_at_s: of.expires_at_s,
    };
    modify_as(target, modification, Some(session), memory).await
}

/// `PutInSession`: sets keys at most once each, however often it is sent.
///
/// Invariant: the answer says that the puts had no effect only if none had.
/// Test: `puts_of_which_some_are_done_have_an_unknown_outcome`.
pub(super) async fn put_in_session(
    target: &Target,
    request: &PutInSessionRequest,
    memory: &Memory,
) -> Result<(ModifyResponse, StageNanos), Failure> {
    // All are checked before one is decided.
    let puts = request.puts.iter().map(|put| numbered_put(target, request, put));
    let puts: Vec<_> = puts.collect::<Result<_, Failure>>()?;
    let put = async |(key, change)| decide(target, key, change, memory).await;
    let mut decided = stream::iter(puts).map(put).buffer_unordered(PUTS_AT_ONCE);
    let mut together = Together::default();
    while let Some(ended) = decided.next().await {
        together.add(ended);
    }
    together.answer(target.header.region, on_unknown(target))
}

/// A modification, and the session's request that it is.
type Requested = (Modification, Option<SessionRequest>);

fn numbered_put(
    target: &Target,
    request: &PutInSessionRequest,
    numbered: &NumberedPut,
) -> Result<(Bytes, Requested), Failure> {
    let Some(put) = &numbered.put else {
        return Err(Failure::Invalid("a key has no value to put".to_owned()));
    };
    let key = target.written_key(&request.cf, &numbered.key)?;
    let change = Modification::Set { new: new_pair(target, &put.value, put.ttl)? };
    let session = SessionRequest {
        session: SessionId(request.session),
        number: numbered.number,
        expires_at_s: request.expires_at_s,
    };
    Ok((key, (change, Some(session))))
}

/// Outcomes of puts that have one answer.
#[derive(Default)]
struct Together {
    /// One of them took effect or may have.
    may_have_effect: bool,
    stages: StageNanos,
    /// Outcome of one that did not.
    refused: Option<Result<ModifyResponse, Failure>>,
}

impl Together {
    fn add(&mut self, ended: Result<(Decided, StageNanos), Failure>) {
        match ended {
            Ok((Decided::As(_), stages)) => (self.may_have_effect, self.stages) = (true, stages),
            Ok((Decided::Deadline { cluster_s }, _)) => self.refused = Some(Ok(late(cluster_s))),
            Err(failure) => {
                self.may_have_effect |= failure.is_undetermined();
                self.refused = Some(Err(failure));
            }
        }
    }

    fn answer(
        self,
        region: RegionId,
        unknown: OnUnknown,
    ) -> Result<(ModifyResponse, StageNanos), Failure> {
        match self.refused {
            None => Ok((ModifyResponse::default(), self.stages)),
            // bug server.some_puts_done_is_refused: never
            Some(_) if self.may_have_effect => Err(Failure::unknown(region, unknown)),
            Some(refused) => refused.map(|response| (response, self.stages)),
        }
    }
}

fn late(cluster_s: u64) -> ModifyResponse {
    let refusal = Refusal::Deadline as i32;
    ModifyResponse { refusal, cluster_time_s: cluster_s, ..ModifyResponse::default() }
}

async fn modify_as(
    target: &Target,
    request: &ModifyRequest,
    session: Option<SessionRequest>,
    memory: &Memory,
) -> Result<(ModifyResponse, StageNanos), Failure> {
    let key = target.written_key(&request.cf, &request.key)?;
    let change = match &request.change {
        Some(Change::PutIfAbsent(put)) => {
            let new = new_pair(target, &put.value, put.ttl)?;
            Modification::Compare { expected: None, new }
        }
        Some(Change::PutIfPresent(put)) => {
            Modification::Replace { new: new_pair(target, &put.value, put.ttl)? }
        }
        Some(Change::CompareAndSwap(swap)) => {
            let new = match &swap.value {
                Some(value) => new_pair(target, value, swap.ttl)?,
                None => NewPair::Delete,
            };
            Modification::Compare { expected: swap.expected.clone(), new }
        }
        Some(Change::Put(put)) => Modification::Set { new: new_pair(target, &put.value, put.ttl)? },
        Some(Change::Delete(_)) => Modification::Set { new: NewPair::Delete },
        Some(Change::Increment(increment)) => Modification::Increment { by: increment.by },
        Some(Change::Append(append)) => {
            check_value(&append.value)?;
            Modification::Append { bytes: append.value.clone() }
        }
        Some(Change::GetAndDelete(_)) => Modification::GetAndDelete,
        None => return Err(Failure::Invalid("the request names no change of the key".to_owned())),
    };
    // bug server.session_dropped: let session = None;
    match decide(target, key, (change, session), memory).await? {
        (Decided::As(result), stages) => Ok((answer(request, result), stages)),
        (Decided::Deadline { cluster_s }, stages) => Ok((late(cluster_s), stages)),
    }
}

enum Decided {
    As(Modified),
    /// The deadline of the session's request does not allow the attempt.
    Deadline {
        cluster_s: u64,
    },
}

pub(super) fn new_pair(target: &Target, value: &Bytes, ttl_s: u64) -> Result<NewPair, Failure> {
    check_value(value)?;
    Ok(NewPair::Put { value: value.clone(), expires_at_s: expiry(target, ttl_s) })
}

/// Charges the value that a modification reads, and its command. Returns the memory of that value.
///
/// Invariant: it is refused before it is decided. A client that gets no answer to a decided
/// modification does not know its outcome.
async fn charge_change(
    target: &Target,
    key: &Bytes,
    change: &Modification,
    memory: &Memory,
) -> Result<u64, Failure> {
    let region = target.header.region;
    let written = match change {
        Modification::Compare { new: NewPair::Put { value, .. }, .. }
        | Modification::Replace { new: NewPair::Put { value, .. } }
        | Modification::Set { new: NewPair::Put { value, .. } } => value.len(),
        Modification::Append { bytes } => bytes.len(),
        _ => 0,
    };
    charge(memory, (key.len() + written) as u64, region)?;
    if matches!(change, Modification::Set { .. }) {
        return Ok(0);
    }
    let bytes = gets::value_bytes(target, key.clone(), memory).await?;
    // The new value of an append contains the present one.
    let copies = if matches!(change, Modification::Append { .. }) { 2 } else { 1 };
    charge(memory, copies * value_memory(bytes), region)?;
    Ok(value_memory(bytes))
}

fn previous_memory(result: &Modified) -> u64 {
    match result {
        Modified::Replaced { previous: Some(pair) }
        | Modified::Unchanged { previous: Some(pair) } => value_memory(pair.value.len() as u64),
        _ => 0,
    }
}

pub(super) fn kind_of(request: &ModifyRequest) -> Kind {
    match request.change {
        Some(Change::PutIfAbsent(_)) | None => Kind::PutIfAbsent,
        Some(Change::PutIfPresent(_)) => Kind::PutIfPresent,
        Some(Change::CompareAndSwap(_)) => Kind::Cas,
        Some(Change::Put(_)) => Kind::Put,
        Some(Change::Delete(_)) => Kind::Delete,
        Some(Change::Increment(_)) => Kind::Increment,
        Some(Change::Append(_)) => Kind::Append,
        Some(Change::GetAndDelete(_)) => Kind::GetAndDelete,
    }
}

fn answer(request: &ModifyRequest, result: Modified) -> ModifyResponse {
    let succeeded = matches!(
        (&request.change, &result),
        (Some(Change::CompareAndSwap(_)), Modified::Replaced { .. })
    );
    let mut response = ModifyResponse { succeeded, ..ModifyResponse::default() };
    match result {
        Modified::Replaced { previous } | Modified::Unchanged { previous } => {
            response.previous = previous.map(|pair| pair.value);
        }
        Modified::Updated { value } => match request.change {
            // The core wrote the text of a number.
            Some(Change::Increment(_)) => {
                let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                response.number = number.unwrap_or_default();
            }
            _ => response.length = value.len() as u64,
        },
        Modified::Unfit(unfit) => {
            let refusal = match unfit {
                Unfit::NotANumber => Refusal::NotANumber,
                Unfit::Overflow => Refusal::Overflow,
                Unfit::TooLong { bytes } => {
                    response.length = bytes;
                    Refusal::TooLong
                }
            };
            response.refusal = refusal as i32;
        }
        // No modification has it.
        Modified::Answered { .. } => {}
    }
    response
}

async fn decide(
    target: &Target,
    key: Bytes,
    (change, session): Requested,
    memory: &Memory,
) -> Result<(Decided, StageNanos), Failure> {
    let charged = charge_change(target, &key, &change, memory).await?;
    let modify = Modify { header: target.header, key, change, session };
    let clock = target.store.clock();
    let arrived_nanos = clock.monotonic_nanos();
    match target.store.submit(modify, Some(memory.clone())).await {
        Reply::Done(Done::Modified { result, timings }) => {
            let stages = timings.stages(arrived_nanos, clock.monotonic_nanos());
            // Another client may have put a longer value meanwhile. The outcome is decided.
            memory.charge_anyway(previous_memory(&result).saturating_sub(charged));
            Ok((Decided::As(result), stages))
        }
        Reply::Refused(stele_replica::Refusal::SessionDeadline { cluster_s }) => {
            Ok((Decided::Deadline { cluster_s }, StageNanos::default()))
        }
        // A repeated modification would see the effect of the first one, so clients must not repeat
        // one of unknown outcome, unless it is a request of a session.
        other => Err(not_done(target, other, on_unknown(target))),
    }
}

pub(super) fn on_unknown(target: &Target) -> OnUnknown {
    match target.on_unknown {
        OnUnknown::Report => OnUnknown::Report,
        _ => OnUnknown::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tikv::errors::server_is_busy;

    #[test]
    fn puts_of_which_some_are_done_have_an_unknown_outcome() {
        let done =
            || Ok((Decided::As(Modified::Replaced { previous: None }), StageNanos::default()));
        let late = || Ok((Decided::Deadline { cluster_s: 7 }, StageNanos::default()));
        let busy = || Err(server_is_busy("full"));
        let unknown = || Err(Failure::unknown(RegionId(2), OnUnknown::Report));
        let answered = |all: Vec<Result<(Decided, StageNanos), Failure>>| {
            let mut together = Together::default();
            all.into_iter().for_each(|ended| together.add(ended));
            together.answer(RegionId(2), OnUnknown::Report)
        };
        assert_eq!(answered(vec![done(), done()]).ok().map(|it| it.0), Some(Default::default()));
        let refused = answered(vec![busy(), late()]).ok().map(|it| it.0.cluster_time_s);
        assert_eq!(refused, Some(7));
        assert!(answered(vec![late(), busy()]).is_err_and(|it| !it.is_undetermined()));
        for mixed in [
            vec![done(), late()],
            vec![busy(), done()],
            vec![unknown(), busy()],
            vec![late(), unknown()],
        ] {
            assert!(answered(mixed).is_err_and(|it| it.is_undetermined()));
        }
    }
}
