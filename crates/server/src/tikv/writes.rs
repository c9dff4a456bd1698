//! Writes: encoded once into the command that is proposed, replicated and logged unchanged.

use super::checks::{Target, check_value, family, target};
use super::errors::{Failure, OnUnknown};
use crate::observe::Stages;
use crate::stores::Stores;
use bytes::Bytes;
use stele_proto::kvrpcpb::{
    RawBatchDeleteRequest, RawBatchPutRequest, RawCasRequest, RawDeleteRangeRequest,
    RawDeleteRequest, RawPutRequest,
};
use stele_raftstore::{Cas, CasNew, Done, Reply, RequestId, Unknown, Write};
use stele_types::{CommandBuilder, Error, KeyRange, mutant};

/// Bytes of an operation in a command beside key and value.
const OP_OVERHEAD_BYTES: usize = 32;

/// Returns the absolute Unix seconds of a time to live; 0 for no expiry. Computed at the leader, so
/// that all replicas agree.
fn expiry(target: &Target, ttl_s: u64) -> u64 {
    match ttl_s {
        0 => 0,
        ttl => target.store.clock().unix_seconds().saturating_add(ttl),
    }
}

/// Proposes a command and waits until it is applied.
pub async fn propose(
    target: &Target,
    command: CommandBuilder,
    frees: bool,
) -> Result<Stages, Failure> {
    let arrived_nanos = target.store.clock().monotonic_nanos();
    let reply = propose_once(target, command, frees).await;
    written(target, reply, arrived_nanos)
}

async fn propose_once(target: &Target, command: CommandBuilder, frees: bool) -> Reply {
    let command = command.build().bytes().clone();
    let write = Write { id: RequestId::default(), header: target.header, command, frees };
    target.store.write(write).await
}

fn written(target: &Target, reply: Reply, arrived_nanos: u64) -> Result<Stages, Failure> {
    match reply {
        Reply::Done(Done::Written { timings, .. }) => {
            Ok(Stages::new(arrived_nanos, &timings, target.store.clock().monotonic_nanos()))
        }
        other => Err(not_done(target, other, target.on_unknown)),
    }
}

/// Returns the outcome of a batch of which this is the latest entry's. Invariant: a batch of which an
/// entry was written is never answered as not done.
fn of_batch(reply: Reply, is_partly_written: bool) -> Reply {
    match reply {
        Reply::Done(_) => reply,
        _ if is_partly_written && !mutant::active("server.part_as_refused") => {
            Reply::Unknown(Unknown::PartlyExecuted)
        }
        _ => reply,
    }
}

fn not_done(target: &Target, reply: Reply, on_unknown: OnUnknown) -> Failure {
    Failure::of_reply(reply, target.header.region, target.store.id(), on_unknown)
}

fn invalid(error: Error) -> Failure {
    match error {
        Error::Invalid(detail) => Failure::Final(detail),
        other => Failure::Final(other.to_string()),
    }
}

/// Returns the bytes of a put in a command, at most.
pub fn put_bytes(request: &RawPutRequest) -> usize {
    request.key.len() + request.value.len() + OP_OVERHEAD_BYTES
}

/// Checks a put and adds it to a command of its target.
pub fn add_put(
    target: &Target,
    command: &mut CommandBuilder,
    request: &RawPutRequest,
) -> Result<(), Failure> {
    let family = family(&request.cf)?;
    target.check_key(&request.key)?;
    check_value(&request.value)?;
    let key = family.engine_key(&request.key);
    command.put(&key, &request.value, expiry(target, request.ttl)).map_err(invalid)?;
    Ok(())
}

/// `RawPut`: proposes one put.
pub async fn put(stores: &Stores, request: &RawPutRequest) -> Result<Stages, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let mut command = CommandBuilder::with_capacity(put_bytes(request));
    add_put(&target, &mut command, request)?;
    propose(&target, command, false).await
}

/// `RawDelete`: proposes one delete.
pub async fn delete(stores: &Stores, request: &RawDeleteRequest) -> Result<Stages, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    target.check_key(&request.key)?;
    let mut command = CommandBuilder::new();
    command.delete(&family.engine_key(&request.key)).map_err(invalid)?;
    propose(&target, command, true).await
}

/// `RawDeleteRange`: proposes one range delete.
pub async fn delete_range(
    stores: &Stores,
    request: &RawDeleteRangeRequest,
) -> Result<Stages, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    let range = KeyRange { start: request.start_key.clone(), end: request.end_key.clone() };
    target.check_range(&range)?;
    let range = family.engine_range(&range);
    let mut command = CommandBuilder::new();
    command.delete_range(&range.start, &range.end).map_err(invalid)?;
    propose(&target, command, true).await
}

/// `RawBatchPut`: atomic unless larger than an entry may be; then in order, entry by entry.
pub async fn batch_put(stores: &Stores, request: &RawBatchPutRequest) -> Result<Stages, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    let ttls = ttls(request)?;
    for pair in &request.pairs {
        target.check_key(&pair.key)?;
        check_value(&pair.value)?;
    }
    let mut entries = Entries::new(stores, &target, false);
    for (pair, ttl) in request.pairs.iter().zip(ttls) {
        entries.propose_if_full(pair.key.len() + pair.value.len() + OP_OVERHEAD_BYTES).await?;
        let key = family.engine_key(&pair.key);
        entries.command.put(&key, &pair.value, expiry(&target, ttl)).map_err(invalid)?;
    }
    entries.finish().await
}

/// `RawBatchDelete`: atomic unless larger than an entry may be; then in order, entry by entry.
pub async fn batch_delete(
    stores: &Stores,
    request: &RawBatchDeleteRequest,
) -> Result<Stages, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    for key in &request.keys {
        target.check_key(key)?;
    }
    let mut entries = Entries::new(stores, &target, true);
    for key in &request.keys {
        entries.propose_if_full(key.len() + OP_OVERHEAD_BYTES).await?;
        entries.command.delete(&family.engine_key(key)).map_err(invalid)?;
    }
    entries.finish().await
}

/// Batch as one entry, or as several in order when it is larger than an entry may be.
struct Entries<'a> {
    target: &'a Target,
    entry_bytes_max: usize,
    frees: bool,
    command: CommandBuilder,
    stages: Stages,
    /// An earlier entry of the batch was written.
    is_partly_written: bool,
}

impl<'a> Entries<'a> {
    fn new(stores: &Stores, target: &'a Target, frees: bool) -> Self {
        let (command, stages) = (CommandBuilder::new(), Stages::default());
        let entry_bytes_max = stores.entry_bytes_max;
        Self { target, entry_bytes_max, frees, command, stages, is_partly_written: false }
    }

    /// Proposes the command if `bytes` more would make it too large.
    async fn propose_if_full(&mut self, bytes: usize) -> Result<(), Failure> {
        let fits = self.command.encoded_bytes() + bytes <= self.entry_bytes_max;
        if fits || self.command.is_empty() { Ok(()) } else { self.propose().await }
    }

    async fn propose(&mut self) -> Result<(), Failure> {
        let command = std::mem::take(&mut self.command);
        let arrived_nanos = self.target.store.clock().monotonic_nanos();
        let reply = propose_once(self.target, command, self.frees).await;
        let reply = of_batch(reply, self.is_partly_written);
        self.stages.add(&written(self.target, reply, arrived_nanos)?);
        self.is_partly_written = true;
        Ok(())
    }

    async fn finish(mut self) -> Result<Stages, Failure> {
        if !self.command.is_empty() {
            self.propose().await?;
        }
        Ok(self.stages)
    }
}

/// Returns one time to live for each pair.
fn ttls(request: &RawBatchPutRequest) -> Result<Vec<u64>, Failure> {
    let pairs = request.pairs.len();
    match request.ttls.as_slice() {
        [] => Ok(vec![request.ttl; pairs]),
        [one] => Ok(vec![*one; pairs]),
        all if all.len() == pairs => Ok(all.to_vec()),
        _ => {
            let text = "The length of ttls does not equal to the length of pairs";
            Err(Failure::Final(text.to_owned()))
        }
    }
}

/// Result of a compare-and-swap.
pub struct Swapped {
    /// The key held the expected value.
    pub succeeded: bool,
    /// Value before; `None` if there was none.
    pub previous: Option<Bytes>,
    /// Time by stage.
    pub stages: Stages,
}

/// `RawCompareAndSwap`: compared on the leader against its own log, so it is safe beside plain
/// writes.
pub async fn compare_and_swap(
    stores: &Stores,
    request: &RawCasRequest,
) -> Result<Swapped, Failure> {
    let target = target(stores, request.context.as_ref())?;
    let family = family(&request.cf)?;
    target.check_key(&request.key)?;
    check_value(&request.value)?;
    let new = if request.delete {
        CasNew::Delete
    } else {
        let expires_at_s = expiry(&target, request.ttl);
        CasNew::Put { value: request.value.clone(), expires_at_s }
    };
    let expected = (!request.previous_not_exist).then(|| request.previous_value.clone());
    let key = family.engine_key(&request.key);
    let cas = Cas { id: RequestId::default(), header: target.header, key, expected, new };
    let arrived_nanos = target.store.clock().monotonic_nanos();
    match target.store.cas(cas).await {
        Reply::Done(Done::Cas { succeeded, previous, timings }) => {
            let answered_nanos = target.store.clock().monotonic_nanos();
            let stages = Stages::new(arrived_nanos, &timings, answered_nanos);
            Ok(Swapped { succeeded, previous: previous.map(|pair| pair.value), stages })
        }
        // A repeated comparison could fail because the first one took effect, so clients must not
        // repeat one of unknown outcome.
        other => {
            let on_unknown = match target.on_unknown {
                OnUnknown::Report => OnUnknown::Report,
                _ => OnUnknown::Fail,
            };
            Err(not_done(&target, other, on_unknown))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_raftstore::{Busy, Refusal};
    use stele_types::{LogIndex, Term};

    #[test]
    fn a_batch_of_which_an_entry_was_written_is_never_answered_as_not_done() {
        let timings = stele_raftstore::Timings::default();
        let done = Reply::Done(Done::Written { index: LogIndex(7), term: Term(2), timings });
        let unknown = Reply::Unknown(Unknown::LeadershipLost);
        let not_done =
            [Reply::Refused(Refusal::RegionNotFound), Reply::Busy(Busy::DiskFull), unknown];
        assert_eq!(of_batch(done.clone(), true), done);
        for reply in not_done {
            assert_eq!(of_batch(reply.clone(), false), reply);
            assert_eq!(of_batch(reply, true), Reply::Unknown(Unknown::PartlyExecuted));
        }
    }
}
