//! Checks of a request: cluster, store, region, and whether its keys lie there. The order of checks
//! is TiKV's, so that clients act on the cause and not on a symptom.

use super::errors::{Failure, OnUnknown, region_not_found};
use crate::store::StoreHandle;
use crate::stores::Stores;
use bytes::Bytes;
use std::sync::Arc;
use stele_proto::{errorpb, kvrpcpb};
use stele_raftstore::{Header, Reader};
use stele_types::limits::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{ColumnFamily, KeyRange, PeerId, Region, RegionId, StoreId};

/// Longest wait of a request in milliseconds, if the client sets no limit.
const TIMEOUT_MS_DEFAULT: u64 = 20_000;

/// Local region of a request.
pub struct Target {
    /// Store of the replica.
    pub store: Arc<StoreHandle>,
    /// Header that the core checks again.
    pub header: Header,
    /// Region, in the version that the request names.
    pub region: Arc<Region>,
    /// Reader of the replica.
    pub reader: Arc<Reader>,
    /// A follower may serve it.
    pub replica_read: bool,
    /// Answer to a put or delete of unknown outcome.
    pub on_unknown: OnUnknown,
}

/// Finds the store and region of a request.
pub fn target(stores: &Stores, context: Option<&kvrpcpb::Context>) -> Result<Target, Failure> {
    let Some(context) = context else {
        return Err(Failure::Final("the request has no context".to_owned()));
    };
    let api = kvrpcpb::ApiVersion::try_from(context.api_version);
    if !matches!(api, Ok(kvrpcpb::ApiVersion::V1 | kvrpcpb::ApiVersion::V1ttl)) {
        return Err(Failure::Final(format!(
            "Api version in request does not match with TiKV storage, cmd: raw, storage: V1TTL, \
             request: {}",
            context.api_version
        )));
    }
    let region_id = RegionId(context.region_id);
    let store = store_of(stores, context, region_id)?;
    let reader = store.readers().get(region_id).ok_or_else(|| region_not_found(region_id))?;
    let timeout_ms = match context.max_execution_duration_ms {
        0 => TIMEOUT_MS_DEFAULT,
        limit => limit.min(10 * TIMEOUT_MS_DEFAULT),
    };
    let header = Header {
        region: region_id,
        peer: context.peer.as_ref().map(|peer| PeerId(peer.id)),
        version: Some(context.region_epoch.map_or(0, |epoch| epoch.version)),
        term: context.term,
        deadline_nanos: store.clock().monotonic_nanos() + timeout_ms * 1_000_000,
    };
    reader.check(&header).map_err(|refusal| Failure::refused(refusal, region_id))?;
    let region = reader.region();
    let replica_read = context.replica_read || context.stale_read;
    let on_unknown = match context.request_source.as_str() {
        stele_proto::REQUEST_SOURCE => OnUnknown::Report,
        _ if stores.undetermined_writes_fail() => OnUnknown::Fail,
        _ => OnUnknown::Repeat,
    };
    Ok(Target { store, header, region, reader, replica_read, on_unknown })
}

fn store_of(
    stores: &Stores,
    context: &kvrpcpb::Context,
    region: RegionId,
) -> Result<Arc<StoreHandle>, Failure> {
    let Some(peer) = &context.peer else {
        return stores.holding(region).ok_or_else(|| region_not_found(region));
    };
    stores.get(StoreId(peer.store_id)).ok_or_else(|| {
        let actual_store_id = stores.first().map_or(0, |store| store.id().0);
        Failure::region("store id does not match", |error| {
            let request_store_id = peer.store_id;
            error.store_not_match =
                Some(errorpb::StoreNotMatch { request_store_id, actual_store_id });
        })
    })
}

impl Target {
    /// Checks that the key lies in the region.
    pub fn check_key(&self, key: &[u8]) -> Result<(), Failure> {
        check_key_length(key)?;
        if self.region.range.contains(key) {
            self.store.load().offer(self.region.id, key);
            return Ok(());
        }
        let region = &self.region;
        Err(Failure::region(format!("key is not in region {}", region.id), |error| {
            error.key_not_in_region = Some(errorpb::KeyNotInRegion {
                key: Bytes::copy_from_slice(key),
                region_id: region.id.0,
                start_key: region.range.start.clone(),
                end_key: region.range.end.clone(),
            });
        }))
    }

    /// Checks that [start, end) is a range inside the region.
    pub fn check_range(&self, range: &KeyRange) -> Result<(), Failure> {
        if range.is_empty() {
            return Err(Failure::Final("the end of the range is not after its start".to_owned()));
        }
        check_key_length(&range.end)?;
        self.check_key(&range.start)?;
        let bound = &self.region.range.end;
        let within = bound.is_empty() || (!range.end.is_empty() && range.end <= *bound);
        if within { Ok(()) } else { self.check_key(bound) }
    }
}

fn check_key_length(key: &[u8]) -> Result<(), Failure> {
    let size = key.len();
    if size <= USER_KEY_BYTES_MAX {
        return Ok(());
    }
    let text = format!("max key size exceeded, size: {size}, limit: {USER_KEY_BYTES_MAX}");
    Err(Failure::Final(text))
}

/// Fails when a value is larger than any may be.
pub fn check_value(value: &[u8]) -> Result<(), Failure> {
    let size = value.len();
    if size <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Failure::Final(format!("value of {size} bytes; the limit is {VALUE_BYTES_MAX}")))
}

/// Parses the column family of a request.
pub fn family(name: &str) -> Result<ColumnFamily, Failure> {
    let unknown =
        || Failure::Final(format!("unknown column family `{name}`: use default, lock or write"));
    ColumnFamily::from_name(name).ok_or_else(unknown)
}
