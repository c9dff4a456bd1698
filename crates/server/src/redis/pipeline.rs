//! Division of a pipeline into batches of one region, and of commands with keys of several regions.

use super::encoded::{elements, integer};
use super::state::ConnectionState;
use super::{BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, Execute, RedisBatch, RedisFailure};
use crate::access::{Rights, WAIT_MAX};
use crate::memory::{Exceeded, RequestMemory};
use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use stele_redis::table::READ_ONLY;
use stele_redis::{Protocol, Reply, Request, put_array_header};
use stele_storage::PROGRAM_KEYS_MAX;
use stele_types::RegionId;
use tokio::time::sleep;

/// Tries of a batch while its region is split.
const TRIES: usize = 4;

/// Consecutive requests of pairs, with the state of the connection when the first of them was received.
pub(super) struct Gathered {
    pub runner: Runner,
    pub requests: Vec<Request>,
    pub is_heard: bool,
}

/// Part of gathered requests that is executed by itself.
#[derive(Debug)]
pub(super) enum Part {
    /// Requests that travel together.
    Batch(RedisBatch),
    /// A request that is executed region by region.
    Divided(Request, Vec<RegionId>),
}

/// Encoded replies, with the memory that is charged for them until they are written.
#[derive(Debug)]
pub(super) struct Charged {
    pub replies: Bytes,
    /// `None` for short replies of the connection.
    _memory: Option<Arc<RequestMemory>>,
}

impl Charged {
    /// Replaces the replies; those that are charged stay charged.
    pub(super) fn with(self, replies: Bytes) -> Self {
        Self { replies, ..self }
    }
}

impl From<Bytes> for Charged {
    fn from(replies: Bytes) -> Self {
        Self { replies, _memory: None }
    }
}

/// Access of one connection to the executor.
#[derive(Clone)]
pub(super) struct Runner {
    executor: Arc<dyn Execute>,
    rights: Rights,
    pub protocol: Protocol,
    memory: Arc<RequestMemory>,
}

impl Runner {
    /// Creates it for requests that are charged to `memory`.
    pub(super) fn of(state: &ConnectionState, memory: &Arc<RequestMemory>) -> Self {
        let (rights, protocol) = (state.rights.clone(), state.protocol);
        Self { executor: state.redis.executor.clone(), rights, protocol, memory: memory.clone() }
    }

    pub(super) fn batch(&self, region: Option<RegionId>, requests: Vec<Request>) -> RedisBatch {
        RedisBatch {
            requests,
            protocol: self.protocol,
            region,
            transaction: None,
            memory: RequestMemory::part_of(&self.memory),
        }
    }

    /// Returns the region of all keys; `None` without keys, and for keys of several regions.
    pub(super) async fn only_region(
        &self,
        keys: &[Bytes],
    ) -> Result<Option<RegionId>, RedisFailure> {
        let regions = self.regions(keys).await?;
        let is_only = regions.iter().all(|region| Some(region) == regions.first());
        Ok(regions.first().copied().filter(|_| is_only))
    }

    async fn regions(&self, keys: &[Bytes]) -> Result<Vec<RegionId>, RedisFailure> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let regions = self.executor.regions(keys).await?;
        match regions.len() == keys.len() {
            true => Ok(regions),
            false => {
                Err(RedisFailure::Unavailable("the regions of the keys are unknown".to_owned()))
            }
        }
    }

    /// Executes a batch when the limits of the caller allow it.
    ///
    /// Invariant: a reply that has no memory is refused only if nothing was changed.
    /// Test: `replies_that_need_too_much_memory_together_are_read_in_smaller_batches`.
    pub(super) async fn run(&self, batch: &RedisBatch) -> Result<Charged, RedisFailure> {
        if let Some(usage) = self.rights.usage() {
            match usage.admit(batch.requests.len().max(1) as u64) {
                Ok(wait) => sleep(wait).await,
                Err(_) => {
                    sleep(WAIT_MAX).await;
                    return Err(RedisFailure::Unavailable(Exceeded::Limit.to_string()));
                }
            }
            let received: usize = batch.requests.iter().map(Request::bytes).sum();
            usage.note_bytes(received as u64);
        }
        let replies = self.executor.run(batch).await?;
        if let Some(usage) = self.rights.usage() {
            usage.note_bytes(replies.len() as u64);
        }
        let (memory, bytes) = (batch.memory.clone(), replies.len() as u64);
        match are_reads(&batch.requests) {
            true => memory.charge(bytes).map_err(RedisFailure::Memory)?,
            false => memory.charge_anyway(bytes),
        }
        Ok(Charged { replies, _memory: Some(memory) })
    }

    /// Divides requests into parts by the regions of their keys.
    pub(super) async fn plan(
        &self,
        requests: Vec<Request>,
    ) -> Result<VecDeque<Part>, RedisFailure> {
        let keys: Vec<Vec<Bytes>> =
            requests.iter().map(|request| request.header_keys().collect()).collect();
        let regions = self.regions(&keys.concat()).await?;
        let mut regions = regions.into_iter();
        let of_keys = |keys: Vec<Bytes>| regions.by_ref().take(keys.len()).collect();
        let of_requests: Vec<Vec<RegionId>> = keys.into_iter().map(of_keys).collect();
        Ok(self.parts(requests, of_requests))
    }

    fn parts(&self, requests: Vec<Request>, regions: Vec<Vec<RegionId>>) -> VecDeque<Part> {
        let mut parts = VecDeque::new();
        let mut batch = Batching::default();
        for (request, regions) in requests.into_iter().zip(regions) {
            let first = regions.first().copied();
            let is_crossing = regions.iter().any(|region| Some(*region) != first);
            let is_divided =
                is_divisible(&request) && (is_crossing || regions.len() > PROGRAM_KEYS_MAX);
            if is_divided || is_crossing {
                parts.extend(batch.end(self));
                parts.push_back(match is_divided {
                    true => Part::Divided(request, regions),
                    false => Part::Batch(self.batch(None, vec![request])),
                });
                continue;
            }
            if !batch.has_room(first, &request, regions.len()) {
                parts.extend(batch.end(self));
            }
            batch.push(first, request, regions.len());
        }
        parts.extend(batch.end(self));
        parts
    }

    /// Executes the first part; returns its replies. A batch that was not executed because its region was
    /// split, or because its replies need too much memory together, is put back in smaller parts.
    pub(super) async fn next(&self, parts: &mut VecDeque<Part>, tries: &mut usize) -> Charged {
        while let Some(part) = parts.pop_front() {
            let (batch, failure) = match part {
                Part::Divided(request, regions) => {
                    let divided = self.divided(&request, regions).await;
                    return divided.unwrap_or_else(|failure| self.error(failure, 1));
                }
                Part::Batch(batch) => match self.run(&batch).await {
                    Ok(replies) => return replies,
                    Err(failure) => (batch, failure),
                },
            };
            let requests = batch.requests;
            let commands = requests.len();
            *tries += 1;
            let smaller = match &failure {
                RedisFailure::SeveralRegions if batch.region.is_some() && *tries < TRIES => {
                    self.plan(requests).await.ok()
                }
                // Reads have no effect, so that they may be executed again.
                RedisFailure::Memory(_) if commands > 1 && are_reads(&requests) => {
                    Some(self.halves(batch.region, requests))
                }
                _ => None,
            };
            let Some(mut smaller) = smaller else { return self.error(failure, commands) };
            smaller.append(parts);
            *parts = smaller;
        }
        Charged::from(Bytes::new())
    }

    fn halves(&self, region: Option<RegionId>, mut requests: Vec<Request>) -> VecDeque<Part> {
        let second = requests.split_off(requests.len() / 2);
        [requests, second].into_iter().map(|half| Part::Batch(self.batch(region, half))).collect()
    }

    /// Returns the replies of commands that failed together.
    pub(super) fn error(&self, failure: RedisFailure, commands: usize) -> Charged {
        let reply = Reply::from(failure).encoded(self.protocol);
        Charged::from(match commands {
            1 => reply,
            commands => reply.repeat(commands).into(),
        })
    }

    /// Executes a command region by region, and joins the replies.
    ///
    /// Invariant: a part that was executed is not executed again. A change of which a part was executed is not
    /// answered as if it had no effect.
    /// Tests: `keys_of_several_regions_are_counted_once_although_a_region_is_split`,
    /// `a_change_of_which_a_part_is_done_has_an_unknown_outcome`.
    async fn divided(
        &self,
        request: &Request,
        mut regions: Vec<RegionId>,
    ) -> Result<Charged, RedisFailure> {
        let keys: Vec<Bytes> = request.header_keys().collect();
        let mut places: Vec<usize> = (0..keys.len()).collect();
        let mut done = Vec::new();
        for _ in 0..TRIES {
            let parts = divide(request, &places, &regions)?;
            let running = parts.into_iter().map(async |(region, places, request)| {
                let batch = self.batch(Some(region), vec![request]);
                (places, self.run(&batch).await)
            });
            places = Vec::new();
            let mut failed = None;
            for (of_part, replies) in join_all(running).await {
                match replies {
                    Ok(replies) => done.push((of_part, replies)),
                    Err(RedisFailure::SeveralRegions) => places.extend(of_part),
                    Err(failure @ RedisFailure::Undetermined(_)) => failed = Some(failure),
                    Err(failure) => failed = failed.or(Some(failure)),
                }
            }
            if let Some(failure) = failed {
                let is_done_in_part = !done.is_empty() && !are_reads(std::slice::from_ref(request));
                // bug server.part_of_keys_done_is_refused: let is_done_in_part = false;
                return Err(match failure {
                    RedisFailure::Undetermined(_) => failure,
                    failure if is_done_in_part => RedisFailure::Undetermined(format!(
                        "some of its keys are done, then: {failure}"
                    )),
                    failure => failure,
                });
            }
            if places.is_empty() {
                let replies = joined(request, keys.len(), &done);
                let memory = RequestMemory::part_of(&self.memory);
                memory.charge_anyway(replies.len() as u64);
                return Ok(Charged { replies, _memory: Some(memory) });
            }
            let again: Vec<Bytes> =
                places.iter().filter_map(|place| keys.get(*place).cloned()).collect();
            regions = self.regions(&again).await?;
        }
        Err(RedisFailure::Unavailable("the regions of the keys are being split".to_owned()))
    }
}

/// Requests of the batch that is made now.
#[derive(Default)]
struct Batching {
    region: Option<RegionId>,
    requests: Vec<Request>,
    bytes: usize,
    keys: usize,
}

impl Batching {
    fn has_room(&self, region: Option<RegionId>, request: &Request, keys: usize) -> bool {
        self.requests.is_empty()
            || self.region == region
                && self.requests.len() < BATCH_COMMANDS_MAX
                && self.bytes + request.bytes() <= BATCH_BYTES_MAX
                && self.keys + keys <= PROGRAM_KEYS_MAX
    }

    fn push(&mut self, region: Option<RegionId>, request: Request, keys: usize) {
        self.region = region;
        self.bytes += request.bytes();
        self.keys += keys;
        self.requests.push(request);
    }

    fn end(&mut self, runner: &Runner) -> Option<Part> {
        let Self { region, requests, .. } = std::mem::take(self);
        (!requests.is_empty()).then(|| Part::Batch(runner.batch(region, requests)))
    }
}

fn are_reads(requests: &[Request]) -> bool {
    requests.iter().all(|request| request.spec().has(READ_ONLY))
}

/// Returns whether a command may be executed region by region, as in a cluster of Redis.
fn is_divisible(request: &Request) -> bool {
    matches!(request.spec().name, "mget" | "exists" | "del" | "unlink" | "touch")
}

/// Divides the keys at `places` by their regions, and in parts that a program may hold.
fn divide(
    request: &Request,
    places: &[usize],
    regions: &[RegionId],
) -> Result<Vec<(RegionId, Vec<usize>, Request)>, RedisFailure> {
    let mut of_regions: BTreeMap<RegionId, Vec<usize>> = BTreeMap::new();
    for (place, region) in places.iter().zip(regions) {
        of_regions.entry(*region).or_default().push(*place);
    }
    let arguments = request.arguments();
    let mut parts = Vec::new();
    for (region, places) in of_regions {
        for places in places.chunks(PROGRAM_KEYS_MAX) {
            let names = places.iter().filter_map(|place| arguments.get(place + 1));
            let words = arguments.iter().take(1).chain(names).cloned().collect();
            let part = Request::parse(request.database(), words);
            let part = part.map_err(|error| RedisFailure::Invalid(error.to_string()))?;
            parts.push((region, places.to_vec(), part));
        }
    }
    Ok(parts)
}

/// Joins the replies of parts: values in the order of the keys, or the sum of counts. An error of a part is
/// that of the command.
fn joined(request: &Request, keys: usize, parts: &[(Vec<usize>, Charged)]) -> Bytes {
    let mut count = 0i64;
    let mut values: BTreeMap<usize, Bytes> = BTreeMap::new();
    let is_count = request.spec().name != "mget";
    for (places, Charged { replies, .. }) in parts {
        if is_count {
            let Some(number) = integer(replies) else { return replies.clone() };
            count = count.saturating_add(number);
            continue;
        }
        let Some(found) = elements(replies).filter(|found| found.len() == places.len()) else {
            return replies.clone();
        };
        values.extend(places.iter().copied().zip(found));
    }
    let mut out = BytesMut::new();
    match is_count {
        // A number is the same in both versions.
        true => Reply::Integer(count).encode(Protocol::Resp2, &mut out),
        false => {
            put_array_header(&mut out, keys);
            values.values().for_each(|value| out.extend_from_slice(value));
        }
    }
    out.freeze()
}
