//! Writes: encoded once into the command that is proposed, replicated and logged unchanged.

use super::Memory;
use super::checks::{Target, check_value, family, written_family};
use super::errors::{Failure, OnUnknown, charge};
use bytes::Bytes;
use stele_proto::kvrpcpb::{
    KvPair, RawBatchDeleteRequest, RawBatchPutRequest, RawDeleteRangeRequest, RawDeleteRequest,
    RawPutRequest,
};
use stele_proto::stele::kv::v1::{KeyWrite, WriteRequest};
use stele_replica::StageNanos;
use stele_replica::{BatchOp, BatchWrite, OP_OVERHEAD_BYTES};
use stele_replica::{Busy, Done, Reply, Write};
use stele_types::{CommandBuilder, Error, KeyRange};

/// Returns the absolute Unix seconds of a time to live; 0 for no expiry. Computed at the leader, so
/// that all replicas agree.
pub(super) fn expiry(target: &Target, ttl_s: u64) -> u64 {
    match ttl_s {
        0 => 0,
        ttl => target.store.clock().unix_seconds().saturating_add(ttl),
    }
}

/// Proposes a command and waits until it is applied.
pub(super) async fn propose(
    target: &Target,
    command: CommandBuilder,
    only_deletes: bool,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let arrived_nanos = target.store.clock().monotonic_nanos();
    let command = command.build().bytes().clone();
    written(target, propose_once(target, command, only_deletes, memory).await, arrived_nanos)
}

async fn propose_once(
    target: &Target,
    command: Bytes,
    only_deletes: bool,
    memory: &Memory,
) -> Reply {
    let write = Write { header: target.header, command, only_deletes };
    target.store.submit(write, Some(memory.clone())).await
}

pub(super) fn written(
    target: &Target,
    reply: Reply,
    arrived_nanos: u64,
) -> Result<StageNanos, Failure> {
    match reply {
        Reply::Done(Done::Written { timings, .. }) => {
            Ok(timings.stages(arrived_nanos, target.store.clock().monotonic_nanos()))
        }
        other => Err(not_done(target, other, target.on_unknown)),
    }
}

/// Returns the failure of a write or modification that was not done, as far as is known.
pub(super) fn not_done(target: &Target, reply: Reply, on_unknown: OnUnknown) -> Failure {
    if reply == Reply::Busy(Busy::DiskFull) && !target.store.may_leader_find_room(&target.region) {
        return Failure::no_room(target.store.id());
    }
    Failure::of_reply(reply, target.header.region, target.store.id(), on_unknown)
}

fn invalid(error: Error) -> Failure {
    match error {
        Error::Invalid(detail) => Failure::Invalid(detail),
        other => Failure::Final(other.to_string()),
    }
}

/// Returns the bytes of a put in a command, at most.
pub(super) fn put_bytes(request: &RawPutRequest) -> usize {
    request.key.len() + request.value.len() + OP_OVERHEAD_BYTES
}

pub(super) fn add_put(
    target: &Target,
    command: &mut CommandBuilder,
    request: &RawPutRequest,
) -> Result<(), Failure> {
    let key = target.written_key(&request.cf, &request.key)?;
    check_value(&request.value)?;
    command.put(&key, &request.value, expiry(target, request.ttl)).map_err(invalid)?;
    Ok(())
}

pub(super) async fn put(
    target: &Target,
    request: &RawPutRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    // The message is charged already; the command is a copy of it.
    charge(memory, put_bytes(request) as u64, target.header.region)?;
    let mut command = CommandBuilder::with_capacity(put_bytes(request));
    add_put(target, &mut command, request)?;
    propose(target, command, false, memory).await
}

pub(super) async fn delete(
    target: &Target,
    request: &RawDeleteRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let key = target.written_key(&request.cf, &request.key)?;
    charge(memory, request.key.len() as u64, target.header.region)?;
    let mut command = CommandBuilder::new();
    command.delete(&key).map_err(invalid)?;
    propose(target, command, true, memory).await
}

pub(super) async fn delete_range(
    target: &Target,
    request: &RawDeleteRangeRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let family = written_family(&request.cf)?;
    let range = KeyRange { start: request.start_key.clone(), end: request.end_key.clone() };
    target.check_range(&range)?;
    charge(memory, (range.start.len() + range.end.len()) as u64, target.header.region)?;
    let range = family.engine_range(&range);
    let mut command = CommandBuilder::new();
    command.delete_range(&range.start, &range.end).map_err(invalid)?;
    propose(target, command, true, memory).await
}

/// `RawBatchPut`: atomic unless larger than an entry may be, or of more operations; then in order, entry
/// by entry.
pub(super) async fn batch_put(
    target: &Target,
    request: &RawBatchPutRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let family = written_family(&request.cf)?;
    let ttls = ttls(request)?;
    for pair in &request.pairs {
        target.check_key(&pair.key)?;
        check_value(&pair.value)?;
    }
    charge_batch(
        memory,
        request.pairs.iter().map(|pair| (pair.key.len(), pair.value.len())),
        target,
    )?;
    let put = |(pair, ttl): (&KvPair, u64)| BatchOp::Put {
        key: family.engine_key(&pair.key),
        value: pair.value.clone(),
        expires_at_s: expiry(target, ttl),
    };
    propose_batch(target, request.pairs.iter().zip(ttls).map(put), false, memory).await
}

/// `RawBatchDelete`: atomic unless larger than an entry may be, or of more operations; then in order, entry
/// by entry.
pub(super) async fn batch_delete(
    target: &Target,
    request: &RawBatchDeleteRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let family = written_family(&request.cf)?;
    request.keys.iter().try_for_each(|key| target.check_key(key))?;
    charge_batch(memory, request.keys.iter().map(|key| (key.len(), 0)), target)?;
    let delete = |key: &Bytes| BatchOp::Delete { key: family.engine_key(key) };
    propose_batch(target, request.keys.iter().map(delete), true, memory).await
}

/// `Write`: atomic unless larger than an entry may be, or of more operations; then in order, entry by entry.
pub(super) async fn write(
    target: &Target,
    request: &WriteRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let family = family(&request.cf)?;
    for write in &request.writes {
        target.check_key(&write.key)?;
        write.put.as_ref().map_or(Ok(()), |put| check_value(&put.value))?;
    }
    let value_bytes = |write: &KeyWrite| write.put.as_ref().map_or(0, |put| put.value.len());
    let bytes = request.writes.iter().map(|write| (write.key.len(), value_bytes(write)));
    charge_batch(memory, bytes, target)?;
    let op = |write: &KeyWrite| {
        let key = family.engine_key(&write.key);
        match &write.put {
            None => BatchOp::Delete { key },
            // Invariant: the instant is kept. A time to live that counts from the arrival would be later by
            // the way of the message, and by the age of a copy.
            // Tests: `a_write_keeps_the_instant_at_which_a_pair_expires`.
            Some(put) => BatchOp::Put {
                key,
                value: put.value.clone(),
                // bug server.write_expires_relative: `put.expires_at_s` is `expiry(target, put.expires_at_s)`
                expires_at_s: put.expires_at_s,
            },
        }
    };
    let only_deletes = request.writes.iter().all(|write| write.put.is_none());
    propose_batch(target, request.writes.iter().map(op), only_deletes, memory).await
}

/// Charges the operations of a batch, and its largest entry. All of it before the first entry is
/// proposed: a batch of which an entry was written cannot be refused.
fn charge_batch(
    memory: &Memory,
    ops: impl Iterator<Item = (usize, usize)>,
    target: &Target,
) -> Result<(), Failure> {
    // The list of operations doubles, while the previous half exists.
    const BYTES: usize = 3 * size_of::<BatchOp>();
    let (mut list_bytes, mut bytes, mut largest) = (0, 0, 0);
    for (key_bytes, value_bytes) in ops {
        list_bytes += BYTES + key_bytes;
        let op_bytes = key_bytes + value_bytes + OP_OVERHEAD_BYTES;
        bytes += op_bytes;
        largest = op_bytes.max(largest);
    }
    let entry_bytes = bytes.min(largest.max(target.entry_bytes_max));
    charge(memory, (list_bytes + entry_bytes) as u64, target.header.region)
}

async fn propose_batch(
    target: &Target,
    ops: impl Iterator<Item = BatchOp>,
    only_deletes: bool,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let (mut ops, mut stages) = (ops.peekable(), StageNanos::default());
    if ops.peek().is_none() {
        return Ok(stages);
    }
    let mut batch = BatchWrite::new(ops, target.entry_bytes_max);
    loop {
        let arrived_nanos = target.store.clock().monotonic_nanos();
        let command = batch.next_entry().map_err(invalid)?;
        let reply = propose_once(target, command, only_deletes, memory).await;
        let is_written = matches!(reply, Reply::Done(_));
        let whole = batch.replied(reply.clone());
        if is_written {
            stages += written(target, reply, arrived_nanos)?;
        }
        match whole {
            Some(_) if is_written => return Ok(stages),
            Some(reply) => return Err(not_done(target, reply, target.on_unknown)),
            None => {}
        }
    }
}

fn ttls(request: &RawBatchPutRequest) -> Result<Vec<u64>, Failure> {
    let pairs = request.pairs.len();
    match request.ttls.as_slice() {
        [] => Ok(vec![request.ttl; pairs]),
        [one] => Ok(vec![*one; pairs]),
        all if all.len() == pairs => Ok(all.to_vec()),
        _ => {
            let text = "The length of ttls does not equal to the length of pairs";
            Err(Failure::Invalid(text.to_owned()))
        }
    }
}
