//! Reads of pairs by their keys. What memory holds is answered on the request thread; the values of all
//! other keys of a request are read together, by the locations that were found.

use super::Memory;
use super::checks::Target;
use super::errors::{Failure, charge};
use super::reads::{Read, View, bytes_of, is_live, new_view, note_pairs, on_device, view};
use crate::memory::{Charging, RequestMemory, gets_memory, pair_memory};
use bytes::Bytes;
use std::sync::Arc;
use stele_proto::kvrpcpb::{
    KvPair, RawBatchGetRequest, RawBatchGetResponse, RawGetKeyTtlRequest, RawGetKeyTtlResponse,
    RawGetRequest, RawGetResponse,
};
use stele_proto::stele::kv::v1::{ExistRequest, ExistResponse, GetPairRequest, GetPairResponse};
use stele_storage::{
    Admitted, Cached, CachedGet, EngineView, GotAdmitted, Pair, PairMeta, PendingGet,
};
use stele_types::{ColumnFamily, is_expired};

/// `RawGet`: returns the value, if there is one.
pub(super) async fn get(
    target: &Target,
    request: &RawGetRequest,
    memory: &Memory,
) -> Result<RawGetResponse, Failure> {
    let key = target.engine_key(&request.cf, &request.key)?;
    let view = view(target).await?;
    let pair = live_pair(target, view, key, memory).await?;
    target.reader.note_returned(1, pair.as_ref().map_or(0, bytes_of));
    Ok(get_response(pair.map(|pair| pair.value)))
}

pub(super) fn get_response(found: Option<Bytes>) -> RawGetResponse {
    let not_found = found.is_none();
    RawGetResponse { value: found.unwrap_or_default(), not_found, ..RawGetResponse::default() }
}

/// `RawGetKeyTTL`: returns the seconds left, 0 for no expiry. Reads no value.
pub(super) async fn ttl(
    target: &Target,
    request: &RawGetKeyTtlRequest,
    memory: &Memory,
) -> Result<RawGetKeyTtlResponse, Failure> {
    let key = target.engine_key(&request.cf, &request.key)?;
    let view = view(target).await?;
    let meta = meta(target, view, key, memory).await?;
    let now_s = target.store.clock().unix_seconds();
    let meta = meta.filter(|meta| !is_expired(meta.expires_at_s, now_s));
    target.reader.note_returned(1, meta.map_or(0, |_| request.key.len() as u64));
    let ttl = match meta.map_or(0, |meta| meta.expires_at_s) {
        0 => 0,
        at => at.saturating_sub(now_s),
    };
    let not_found = meta.is_none();
    Ok(RawGetKeyTtlResponse { ttl, not_found, ..RawGetKeyTtlResponse::default() })
}

/// `GetPair`: returns the value with the seconds left.
pub(super) async fn get_pair(
    target: &Target,
    request: &GetPairRequest,
    memory: &Memory,
) -> Result<GetPairResponse, Failure> {
    let key = target.engine_key(&request.cf, &request.key)?;
    let view = view(target).await?;
    let pair = live_pair(target, view, key, memory).await?;
    target.reader.note_returned(1, pair.as_ref().map_or(0, bytes_of));
    let now_s = target.store.clock().unix_seconds();
    let Some(pair) = pair else {
        return Ok(GetPairResponse { not_found: true, ..GetPairResponse::default() });
    };
    let ttl = match pair.expires_at_s {
        0 => 0,
        // It was live when it was found.
        at => at.saturating_sub(now_s).max(1),
    };
    Ok(GetPairResponse { value: pair.value, ttl, ..GetPairResponse::default() })
}

/// Keys of one request that are searched in memory on the request thread, which has other work.
const KEYS_IN_MEMORY_MAX: usize = 1024;

/// `RawBatchGet`: returns the pairs found, in request order. What memory does not hold is read together.
///
/// Invariant: an answer holds the pairs of all keys in the order of the request, also of keys that it
/// repeats.
/// Test: `many_keys_are_read_in_the_order_of_the_request_from_memory_and_from_the_device`.
pub(super) async fn batch_get(
    target: &Target,
    request: &RawBatchGetRequest,
    memory: &Memory,
) -> Result<RawBatchGetResponse, Failure> {
    let family = target.family(&request.cf, &request.keys)?;
    let view = view(target).await?;
    let (mut found, cold) = pairs_in_memory(target, &view, (family, &request.keys), memory)?;
    let (slots, gets): (Vec<usize>, Vec<PendingGet>) = cold.into_iter().unzip();
    if !gets.is_empty() {
        let charged = memory.clone();
        let read = on_device(target, memory, move || read_pairs(&*view, gets, &charged)).await?;
        // bug server.batch_get_appends_cold_pairs: let slots = (0..slots.len()).collect();
        for (slot, pair) in slots.into_iter().zip(read) {
            if let Some(found) = found.get_mut(slot) {
                *found = pair;
            }
        }
    }
    let now_s = target.store.clock().unix_seconds();
    let live = |(key, pair): (&Bytes, Option<Pair>)| {
        let value = pair.filter(|pair| is_live(pair, now_s))?.value;
        Some(KvPair { key: key.clone(), value, ..KvPair::default() })
    };
    let pairs: Vec<KvPair> = request.keys.iter().zip(found).filter_map(live).collect();
    let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
    note_pairs(target, pairs.len(), bytes);
    Ok(RawBatchGetResponse { pairs, ..RawBatchGetResponse::default() })
}

type PairsInMemory = (Vec<Option<Pair>>, Vec<(usize, PendingGet)>);

/// Returns the pairs of keys that memory holds, with their memory charged, and the gets of the others
/// with their places among the keys.
fn pairs_in_memory(
    target: &Target,
    view: &View,
    (family, keys): (ColumnFamily, &[Bytes]),
    memory: &Memory,
) -> Result<PairsInMemory, Failure> {
    let store = target.store.id();
    let list_bytes = keys.len() * size_of::<Option<Pair>>();
    charge(memory, list_bytes as u64, target.header.region)?;
    let (mut found, mut cold) = (Vec::with_capacity(keys.len()), Vec::new());
    for (slot, key) in keys.iter().enumerate() {
        let engine_key = family.engine_key(key);
        let get = match slot < KEYS_IN_MEMORY_MAX {
            true => view.get_cached(&engine_key),
            false => Ok(CachedGet::NeedsIo(PendingGet::of_key(engine_key))),
        };
        let pair = match get.map_err(|error| Failure::engine(&error, store))? {
            CachedGet::Ready(pair) => {
                charge_pair(target, key, pair.as_ref(), memory)?;
                pair
            }
            CachedGet::NeedsIo(get) => {
                charge(memory, memory_of(key, 0), target.header.region)?;
                cold.push((slot, get));
                None
            }
        };
        found.push(pair);
    }
    Ok((found, cold))
}

/// `Exist`: returns the keys that exist. Reads no value.
pub(super) async fn exist(
    target: &Target,
    request: &ExistRequest,
    memory: &Memory,
) -> Result<ExistResponse, Failure> {
    let family = target.family(&request.cf, &request.keys)?;
    let view = view(target).await?;
    let keys = &request.keys;
    let bytes = keys.iter().map(|key| memory_of(key, 0)).sum();
    charge(memory, bytes, target.header.region)?;
    target.reader.note_returned(keys.len() as u64, keys.iter().map(|key| key.len() as u64).sum());
    let (mut exists, mut cold) = (vec![false; keys.len()], Vec::new());
    let now_s = target.store.clock().unix_seconds();
    let is_live = move |meta: Option<PairMeta>| {
        meta.is_some_and(|meta| !is_expired(meta.expires_at_s, now_s))
    };
    for (slot, (key, exists)) in keys.iter().zip(&mut exists).enumerate() {
        let key = family.engine_key(key);
        let found = match slot < KEYS_IN_MEMORY_MAX {
            true => view.get_meta_cached(&key),
            false => Ok(Cached::NeedsIo),
        };
        match found.map_err(|error| Failure::engine(&error, target.store.id()))? {
            Cached::Ready(meta) => *exists = is_live(meta),
            Cached::NeedsIo => cold.push((slot, key)),
        }
    }
    if !cold.is_empty() {
        let search = move || {
            let meta = |(slot, key): (usize, Bytes)| Ok((slot, is_live(view.get_meta(&key)?)));
            cold.into_iter().map(meta).collect::<stele_types::Result<Vec<_>>>().map(Ok)
        };
        for (slot, found) in on_device(target, memory, search).await? {
            if let Some(exists) = exists.get_mut(slot) {
                *exists = found;
            }
        }
    }
    let found = keys.iter().zip(exists).filter(|(_, exists)| *exists);
    let keys = found.map(|(key, _)| key.clone()).collect();
    Ok(ExistResponse { keys, ..ExistResponse::default() })
}

/// Returns the live pair of a key, with its memory charged.
pub(super) async fn live_pair(
    target: &Target,
    view: Arc<View>,
    key: Bytes,
    memory: &Memory,
) -> Result<Option<Pair>, Failure> {
    let store = target.store.id();
    let found = view.get_cached(&key).map_err(|error| Failure::engine(&error, store))?;
    let pair = match found {
        CachedGet::Ready(pair) => {
            charge_pair(target, &key, pair.as_ref(), memory)?;
            pair
        }
        CachedGet::NeedsIo(get) => {
            let charged = memory.clone();
            let read = move || read_pairs(&*view, vec![get], &charged);
            on_device(target, memory, read).await?.pop().flatten()
        }
    };
    let now_s = target.store.clock().unix_seconds();
    Ok(pair.filter(|pair| is_live(pair, now_s)))
}

/// Charges a pair that was read from memory. Its length is bounded: only short values are read without
/// asking.
pub(super) fn charge_pair(
    target: &Target,
    key: &[u8],
    pair: Option<&Pair>,
    memory: &Memory,
) -> Result<(), Failure> {
    let bytes = pair.map_or(0, |pair| memory_of(key, pair.value.len() as u64));
    charge(memory, bytes, target.header.region)
}

fn memory_of(key: &[u8], value_bytes: u64) -> u64 {
    pair_memory(key.len() as u64, value_bytes)
}

/// Reads pairs that need the device, all of them or none, if there is memory for their values.
pub(super) fn read_pairs(
    view: &impl EngineView,
    gets: Vec<PendingGet>,
    memory: &RequestMemory,
) -> Read<Vec<Option<Pair>>> {
    let mut charging = Charging::new(memory);
    let mut pairs = Vec::with_capacity(gets.len());
    for got in get_many(view, gets, &mut charging) {
        match got? {
            Admitted::Read(pair) => pairs.push(pair),
            Admitted::Refused => return Ok(Err(charging.exceeded())),
        }
    }
    Ok(Ok(pairs))
}

fn get_many(
    view: &impl EngineView,
    gets: Vec<PendingGet>,
    charging: &mut Charging<'_>,
) -> Vec<stele_types::Result<GotAdmitted>> {
    let key_bytes_max = gets.iter().map(|get| get.key.len() as u64).max().unwrap_or_default();
    let mut admit = |pairs, bytes| charging.admit(gets_memory(pairs, bytes, key_bytes_max));
    view.get_many(gets, &mut admit)
}

/// Reads the values of a group's gets from the device. `None` stands for a get that must continue alone:
/// its value could not be read, or its memory was refused.
pub(super) async fn group_values(
    target: &Target,
    view: View,
    gets: Vec<PendingGet>,
    memory: &Memory,
) -> Vec<Option<Option<Bytes>>> {
    let now_s = target.store.clock().unix_seconds();
    let charged = memory.clone();
    let read = move || {
        let mut charging = Charging::new(&charged);
        let got = get_many(&view, gets, &mut charging);
        let live = |got: stele_types::Result<GotAdmitted>| match got {
            Ok(Admitted::Read(pair)) => Some(pair.filter(|pair| is_live(pair, now_s))),
            Ok(Admitted::Refused) | Err(_) => None,
        };
        let pairs: Vec<Option<Option<Pair>>> = got.into_iter().map(live).collect();
        let bytes = pairs.iter().flatten().flatten().map(bytes_of).sum();
        Ok(Ok((pairs, bytes)))
    };
    // Alone, each get fails with its own error.
    let Ok((pairs, bytes)) = on_device(target, memory, read).await else { return Vec::new() };
    let served = pairs.iter().flatten().count() as u64;
    if served > 0 {
        target.reader.note_returned(served, bytes);
    }
    pairs.into_iter().map(|pair| pair.map(|pair| pair.map(|pair| pair.value))).collect()
}

/// Returns what is known of the pair of a key without its value.
async fn meta(
    target: &Target,
    view: impl EngineView + 'static,
    key: Bytes,
    memory: &RequestMemory,
) -> Result<Option<PairMeta>, Failure> {
    let store = target.store.id();
    match view.get_meta_cached(&key).map_err(|error| Failure::engine(&error, store))? {
        Cached::Ready(meta) => Ok(meta),
        Cached::NeedsIo => on_device(target, memory, move || Ok(Ok(view.get_meta(&key)?))).await,
    }
}

/// Returns the bytes of the value of a key as the store has it now, 0 without one. Reads no value.
pub(super) async fn value_bytes(
    target: &Target,
    key: Bytes,
    memory: &RequestMemory,
) -> Result<u64, Failure> {
    let meta = meta(target, new_view(target)?, key, memory).await?;
    Ok(meta.map_or(0, |meta| meta.value_bytes))
}
