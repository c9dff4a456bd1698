//! Checks of a request: cluster, store, region, and whether its keys lie there. The order of checks
//! is TiKV's, so that clients act on the cause and not on a symptom.

use super::errors::{Failure, OnUnknown, region_not_found};
use crate::store::StoreHandle;
use crate::stores::Stores;
use bytes::Bytes;
use std::sync::Arc;
use stele_proto::{errorpb, kvrpcpb};
use stele_replica::{Header, Reader};
use stele_storage::Order;
use stele_types::size::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{ColumnFamily, KeyRange, PeerId, Region, RegionId, StoreId};

/// Longest wait of a request in milliseconds, if the client sets no limit.
const TIMEOUT_MS_DEFAULT: u64 = 20_000;

pub(super) struct Target {
    pub store: Arc<StoreHandle>,
    /// Header that the core checks again.
    pub header: Header,
    /// Region, in the version that the request names.
    pub region: Arc<Region>,
    pub reader: Arc<Reader>,
    /// A follower may serve it.
    pub replica_read: bool,
    pub on_unknown: OnUnknown,
    /// Bytes of an entry of a batch, unless one operation has more.
    pub entry_bytes_max: usize,
}

pub(super) fn target(
    stores: &Stores,
    context: Option<&kvrpcpb::Context>,
) -> Result<Target, Failure> {
    let context = self::context(context)?;
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
    let entry_bytes_max = stores.entry_bytes_max;
    Ok(Target { store, header, region, reader, replica_read, on_unknown, entry_bytes_max })
}

/// Returns the context of a request. Fails unless it is of a version of the interface that is served.
pub(super) fn context(context: Option<&kvrpcpb::Context>) -> Result<&kvrpcpb::Context, Failure> {
    let Some(context) = context else {
        return Err(Failure::Invalid("the request has no context".to_owned()));
    };
    let api = kvrpcpb::ApiVersion::try_from(context.api_version);
    match api {
        Ok(kvrpcpb::ApiVersion::V1 | kvrpcpb::ApiVersion::V1ttl) => Ok(context),
        _ => Err(Failure::Invalid(format!(
            "Api version in request does not match with TiKV storage, cmd: raw, storage: V1TTL, \
             request: {}",
            context.api_version
        ))),
    }
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
    /// Returns the column family of a request, of which all keys must lie in the region.
    pub(super) fn family(&self, name: &str, keys: &[Bytes]) -> Result<ColumnFamily, Failure> {
        let family = family(name)?;
        keys.iter().try_for_each(|key| self.check_key(key))?;
        Ok(family)
    }

    /// Returns the engine's key of a request with one key, which must lie in the region.
    pub(super) fn engine_key(&self, family: &str, key: &Bytes) -> Result<Bytes, Failure> {
        Ok(self.family(family, std::slice::from_ref(key))?.engine_key(key))
    }

    /// Like [`Target::engine_key`], for a request that writes the key.
    pub(super) fn written_key(&self, family: &str, key: &Bytes) -> Result<Bytes, Failure> {
        let family = written_family(family)?;
        self.check_key(key)?;
        Ok(family.engine_key(key))
    }

    pub(super) fn check_key(&self, key: &[u8]) -> Result<(), Failure> {
        check_key_length(key)?;
        if self.region.range.contains(key) {
            self.store.load().offer(self.region.id, key);
            return Ok(());
        }
        Err(key_not_in_region(&self.region, key))
    }

    /// Returns the part of `range` that the region holds, for a read of its pairs in order.
    pub(super) fn part_from(&self, range: &KeyRange, order: Order) -> Result<KeyRange, Failure> {
        part_from(&self.region, range, order)
    }

    pub(super) fn check_range(&self, range: &KeyRange) -> Result<(), Failure> {
        if range.is_empty() {
            return Err(Failure::Invalid("the end of the range is not after its start".to_owned()));
        }
        check_key_length(&range.end)?;
        self.check_key(&range.start)?;
        let bound = &self.region.range.end;
        let within = bound.is_empty() || (!range.end.is_empty() && range.end <= *bound);
        if within { Ok(()) } else { self.check_key(bound) }
    }
}

/// Returns the part of `range` that a region holds.
///
/// Invariant: the bound at which the read begins lies in the region, or is the end of the region for a
/// read in descending order; only the other one is cut. Otherwise a client that asks the wrong region takes what is left for the whole.
fn part_from(region: &Region, range: &KeyRange, order: Order) -> Result<KeyRange, Failure> {
    let (first, begins_here) = match order {
        Order::Forward => (&range.start, region.range.contains(&range.start)),
        // Without a bound it begins at the end of the key space.
        Order::Reverse if range.end.is_empty() => (&range.end, region.range.end.is_empty()),
        Order::Reverse => (&range.end, is_within(&region.range, &range.end)),
    };
    // bug server.scan_of_another_region: `begins_here` is `true`
    match begins_here {
        true => Ok(range.within(&region.range)),
        false => Err(key_not_in_region(region, first)),
    }
}

/// Whether a key lies in a range or is its end.
fn is_within(range: &KeyRange, key: &[u8]) -> bool {
    *key >= *range.start && (range.end.is_empty() || *key <= *range.end)
}

fn key_not_in_region(region: &Region, key: &[u8]) -> Failure {
    Failure::region(format!("key is not in region {}", region.id), |error| {
        error.key_not_in_region = Some(errorpb::KeyNotInRegion {
            key: Bytes::copy_from_slice(key),
            region_id: region.id.0,
            start_key: region.range.start.clone(),
            end_key: region.range.end.clone(),
        });
    })
}

fn check_key_length(key: &[u8]) -> Result<(), Failure> {
    let size = key.len();
    if size <= USER_KEY_BYTES_MAX {
        return Ok(());
    }
    let text = format!("max key size exceeded, size: {size}, limit: {USER_KEY_BYTES_MAX}");
    Err(Failure::Invalid(text))
}

pub(super) fn check_value(value: &[u8]) -> Result<(), Failure> {
    let size = value.len();
    if size <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Failure::Invalid(format!("value of {size} bytes; the limit is {VALUE_BYTES_MAX}")))
}

pub(super) fn family(name: &str) -> Result<ColumnFamily, Failure> {
    let unknown = || {
        Failure::Invalid(format!(
            "unknown column family `{name}`: use default, lock or write, and redis for reads"
        ))
    };
    ColumnFamily::from_name(name).ok_or_else(unknown)
}

/// Returns the column family that a request of RawKV writes.
///
/// Invariant: only Redis commands write the pairs of Redis keys. A pair that is not of their form would be
/// damage to them.
/// Test: `only_redis_commands_write_the_family_of_their_keys`.
pub(super) fn written_family(name: &str) -> Result<ColumnFamily, Failure> {
    let family = family(name)?;
    // bug server.raw_writes_redis: never
    if family == ColumnFamily::Redis {
        let reason = "column family `redis` is written by Redis commands only";
        return Err(Failure::Invalid(reason.to_owned()));
    }
    Ok(family)
}

/// Returns the name of a family in answers; empty for the default one.
pub(super) fn family_name(family: ColumnFamily) -> &'static str {
    match family {
        ColumnFamily::Default => "",
        ColumnFamily::Lock => "lock",
        ColumnFamily::Write => "write",
        ColumnFamily::Redis => "redis",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{RegionEpoch, RegionKind, RegionPhase};

    fn region(start: &'static str, end: &'static str) -> Region {
        Region {
            id: RegionId(4),
            kind: RegionKind::Data,
            epoch: RegionEpoch { conf_version: 1, version: 2 },
            range: KeyRange::new(start, end),
            peers: Vec::new(),
            phase: RegionPhase::Normal,
        }
    }

    /// Part of a range, or the key that is not in the region.
    fn part(
        region: &Region,
        (start, end): (&'static str, &'static str),
        order: Order,
    ) -> Result<KeyRange, Bytes> {
        part_from(region, &KeyRange::new(start, end), order).map_err(|failure| {
            let error = failure.into_error().key_not_in_region.unwrap();
            let (start, end) = (region.range.start.clone(), region.range.end.clone());
            assert_eq!((error.region_id, error.start_key, error.end_key), (4, start, end));
            error.key
        })
    }

    #[test]
    fn a_read_in_order_begins_in_its_region_or_at_its_end_and_only_its_other_bound_is_cut() {
        let (first, middle, last) = (region("", "d"), region("d", "m"), region("m", ""));
        let forward = |region, range| part(region, range, Order::Forward);
        let reverse = |region, range| part(region, range, Order::Reverse);
        let some = |start: &'static str, end: &'static str| Ok(KeyRange::new(start, end));
        let not = |key: &'static str| Err(Bytes::from(key));

        assert_eq!(forward(&middle, ("e", "k")), some("e", "k"));
        assert_eq!(forward(&middle, ("d", "z")), some("d", "m"));
        assert_eq!(forward(&middle, ("d", "")), some("d", "m"));
        assert_eq!(forward(&middle, ("m", "z")), not("m"), "its end is in the next region");
        assert_eq!(forward(&middle, ("c", "k")), not("c"));
        assert_eq!(forward(&middle, ("n", "z")), not("n"));
        assert_eq!(forward(&middle, ("", "k")), not(""));
        assert_eq!(forward(&first, ("", "k")), some("", "d"));
        assert_eq!(forward(&last, ("z", "")), some("z", ""));

        assert_eq!(reverse(&middle, ("e", "k")), some("e", "k"));
        assert_eq!(reverse(&middle, ("a", "m")), some("d", "m"), "from the end of the region");
        assert_eq!(reverse(&middle, ("", "k")), some("d", "k"));
        assert!(reverse(&middle, ("a", "d")).unwrap().is_empty(), "nothing is below its start");
        assert_eq!(reverse(&middle, ("e", "n")), not("n"));
        assert_eq!(reverse(&middle, ("a", "c")), not("c"));
        assert_eq!(reverse(&middle, ("e", "")), not(""), "the end of the key space");
        assert_eq!(reverse(&first, ("", "")), not(""));
        assert_eq!(reverse(&last, ("n", "")), some("n", ""));
        assert_eq!(reverse(&last, ("a", "")), some("m", ""));
    }
}
