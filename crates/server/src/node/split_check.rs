//! Splits regions that grew too large or too busy. Sizes are estimates from the index; no value is
//! read.

use super::ids::IdSource;
use crate::store::StoreHandle;
use crate::stores::Stores;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use stele_raftstore::{Admin, AdminCall, Header, NewRegion, Reply, RequestId};
use stele_storage::{RangeSize, StorageEngine};
use stele_types::{PeerId, Region, RegionId, RegionKind, RegionPhase, Result, keyspace};

/// What a region held when it was last looked at.
pub(super) type Sizes = HashMap<RegionId, RangeSize>;

/// Looks at every region led here.
pub(super) async fn check(
    stores: &Stores,
    ids: &IdSource,
    region_bytes_max: u64,
    busy: &[RegionId],
) -> Sizes {
    let mut sizes = Sizes::new();
    for store in stores.all() {
        for region in store.readers().all() {
            if !store.leads(region.id) || region.kind != RegionKind::Data {
                continue;
            }
            let (engine, looked_at) = (store.engine().clone(), region.clone());
            let size = tokio::task::spawn_blocking(move || size_of(&*engine, &looked_at)).await;
            let Ok(Ok(size)) = size else { continue };
            sizes.insert(region.id, size);
            let key = if size.bytes > region_bytes_max {
                half(&store, &region).await
            } else if busy.contains(&region.id) {
                store.load().split_key(region.id, &region.range)
            } else {
                None
            };
            if let Some(key) = key {
                split(&store, ids, &region, vec![key]).await;
            }
        }
    }
    sizes
}

fn size_of(engine: &impl StorageEngine, region: &Region) -> Result<RangeSize> {
    let mut total = RangeSize::default();
    for range in region.engine_ranges() {
        let size = engine.range_size(&range)?;
        total.bytes += size.bytes;
        total.keys += size.keys;
    }
    Ok(total)
}

/// A user key that halves the largest family of a region.
pub(super) async fn half(store: &Arc<StoreHandle>, region: &Arc<Region>) -> Option<Bytes> {
    let (engine, region) = (store.engine().clone(), region.clone());
    let work = move || {
        let mut ranges = region.engine_ranges();
        ranges.sort_by_key(|range| engine.range_size(range).map_or(0, |size| size.bytes));
        let key = engine.split_key(ranges.last()?).ok()??;
        keyspace::user_key(&key).filter(|key| *key > region.range.start)
    };
    tokio::task::spawn_blocking(work).await.ok()?
}

/// Splits a region at `keys`; what stands in the way is said in the log.
pub(super) async fn split(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    region: &Region,
    keys: Vec<Bytes>,
) -> Option<Reply> {
    if region.phase != RegionPhase::Normal || region.is_joint() {
        return None;
    }
    let per_region = 1 + region.peers.len() as u64;
    let count = per_region * keys.len() as u64;
    let first = match ids.reserve(count).await {
        Ok(first) => first,
        Err(error) => {
            tracing::warn!("region {} is not split: {error}", region.id);
            return None;
        }
    };
    let new_ids = (0..keys.len() as u64)
        .map(|nth| {
            let base = first + nth * per_region;
            let peers = (1..per_region).map(|peer| PeerId(base + peer)).collect();
            NewRegion { region: RegionId(base), peers }
        })
        .collect();
    Some(split_into(store, region, keys, new_ids).await)
}

/// Splits a region at `keys` into regions of these numbers.
pub(super) async fn split_into(
    store: &Arc<StoreHandle>,
    region: &Region,
    keys: Vec<Bytes>,
    new_ids: Vec<NewRegion>,
) -> Reply {
    let header =
        Header { region: region.id, version: Some(region.epoch.version), ..Header::default() };
    let call = Admin::Split { keys, new_ids };
    let reply = store.admin(AdminCall { id: RequestId::default(), header, call }).await;
    match &reply {
        Reply::AdminDone { region } => tracing::info!("region {} was split", region.id),
        other => tracing::info!("region {} was not split: {other:?}", region.id),
    }
    reply
}
