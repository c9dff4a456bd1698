//! Splits of regions led here: measurements, keys and requests run on other threads.

use crate::placement::PlacementService;
use crate::store::{Engine, StoreHandle};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use stele_node::report::split::{
    Limits, SplitBy, Splitter, balanced_key, ids_wanted, middle_key, size_of,
};
use stele_node::report::{Obstacle, steps};
use stele_replica::{Admin, NewRegion};
use stele_storage::RangeSize;
use stele_types::{Error, Region, Result};

/// Measures the regions that the store leads and that may have another size, and splits those that need
/// it.
pub(super) async fn check(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    limits: Limits,
    splitter: &Mutex<Splitter>,
    started: Instant,
) {
    for region in store.readers().all() {
        if !store.leads(region.id) {
            continue;
        }
        let Some(reader) = store.readers().get(region.id) else { continue };
        let applied = reader.applied();
        let known = splitter.lock().size_without_measuring(&region, applied, started.elapsed());
        let size = match known {
            Some(size) => size,
            None => {
                let ranges = region.engine_ranges();
                let measured = on_engine(store, move |engine| size_of(engine, &ranges)).await;
                let Ok(Ok(size)) = measured else { continue };
                splitter.lock().note_measuring(&region, applied, started.elapsed());
                size
            }
        };
        let split_by = splitter.lock().measured(&region, size, limits, started.elapsed());
        let Some(split_by) = split_by else { continue };
        if let Err(obstacle) = split(store, ids, &region, split_by, size, limits).await {
            tracing::info!("region {} is not split: {}", region.id, obstacle.reason);
            let version = region.epoch.version;
            splitter.lock().refused(region.id, version, started.elapsed());
        }
    }
}

async fn split(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    region: &Arc<Region>,
    split_by: SplitBy,
    size: RangeSize,
    limits: Limits,
) -> Result<(), Obstacle> {
    let key = match split_by {
        SplitBy::Size => {
            let region = region.clone();
            on_engine(store, move |engine| balanced_key(engine, &region, &size, limits)).await??
        }
        SplitBy::Load => {
            let key = store.load().split_key(region.id, &region.range);
            key.ok_or_else(|| Obstacle::now("no key halves its load"))?
        }
    };
    split_at(store, ids, region, vec![key], Vec::new()).await
}

/// Splits a region at `keys`, or in the middle without keys. Reserves ids unless `new` holds them.
pub(super) async fn split_at(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    region: &Arc<Region>,
    mut keys: Vec<Bytes>,
    new: Vec<NewRegion>,
) -> Result<(), Obstacle> {
    if keys.is_empty() {
        let region = region.clone();
        keys.push(on_engine(store, move |engine| middle_key(engine, &region)).await??);
    }
    let call = match keys.len() == new.len() {
        true => Admin::Split { keys, new_ids: new },
        false => {
            let count = ids_wanted(region, keys.len())?;
            let first = ids.reserve(count).await.map_err(|it| Obstacle::now(it.to_string()))?;
            steps::split_request(first, region, keys)
        }
    };
    change(store, region, call).await
}

pub(super) async fn change(
    store: &StoreHandle,
    region: &Region,
    call: Admin,
) -> Result<(), Obstacle> {
    let request = steps::request(region, call);
    match steps::outcome(store.submit(request, None).await)? {
        None => tracing::info!("region {} was changed as ordered", region.id),
        // The change may have taken effect, or may still: the next reports show it.
        Some(reason) => {
            tracing::info!("region {}: the outcome of a change is unknown: {reason:?}", region.id);
        }
    }
    Ok(())
}

async fn on_engine<T: Send + 'static>(
    store: &StoreHandle,
    work: impl FnOnce(&Engine) -> T + Send + 'static,
) -> Result<T, Obstacle> {
    let engine = store.engine().clone();
    let done = tokio::task::spawn_blocking(move || work(&engine)).await;
    done.map_err(|_| Obstacle::now("the server is stopping"))
}

pub(super) struct IdSource(pub Arc<PlacementService>);

impl IdSource {
    /// Reserves `count` ids that were never allocated, and returns the first.
    pub(super) async fn reserve(&self, count: u64) -> Result<u64> {
        let failed = |status: tonic::Status| Error::Busy(status.message().to_owned());
        self.0.alloc_ids(count as u32).await.map_err(failed)
    }
}
