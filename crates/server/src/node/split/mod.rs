//! Splits of regions that are too large or too busy. Each leader measures and decides for its
//! regions; no other component does. Sizes are estimates from the index; no value is read.

mod decide;

use super::ids::IdSource;
use crate::store::StoreHandle;
use crate::stores::Stores;
use bytes::Bytes;
use decide::Refusals;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;
use stele_raftstore::{Admin, AdminCall, Done, Header, NewRegion, Refusal, Reply, RequestId};
use stele_storage::{RangeSize, StateMachine, StorageEngine};
use stele_types::{KeyRange, PeerId, Region, RegionId, RegionKind, RegionPhase, Result, keyspace};

/// Size of a region when it was last measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// Version of the measured range.
    pub version: u64,
    pub size: RangeSize,
}

/// Sizes of all regions led here.
pub(super) type Sizes = HashMap<RegionId, Measured>;

/// Reason why a region was not split.
#[derive(Debug)]
pub(super) struct NotSplit {
    pub reason: String,
    /// Permanent as long as the region holds the same data.
    pub is_final: bool,
}

impl NotSplit {
    fn now(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_final: false }
    }
}

/// Sizes of regions led here, and refused splits.
pub(super) struct Splitter {
    started: Instant,
    refusals: Refusals,
    sizes: Sizes,
}

impl Splitter {
    pub fn new() -> Self {
        Self { started: Instant::now(), refusals: Refusals::default(), sizes: Sizes::new() }
    }

    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Measures every region led here, and splits those that need it.
    pub async fn check(
        &mut self,
        stores: &Stores,
        ids: &IdSource,
        region_bytes_max: u64,
        busy: &[RegionId],
    ) {
        let mut sizes = Sizes::new();
        for store in stores.all() {
            for region in store.readers().all() {
                if !store.leads(region.id) {
                    continue;
                }
                let Some(size) = measure(&store, region.engine_ranges()).await else { continue };
                sizes.insert(region.id, Measured { version: region.epoch.version, size });
                let split_by = match decide::is_too_large(&size, region_bytes_max) {
                    true => SplitBy::Size,
                    false if busy.contains(&region.id) && size.keys >= 2 => SplitBy::Load,
                    false => continue,
                };
                if region.kind != RegionKind::Data {
                    continue;
                }
                let candidate =
                    Candidate { store: &store, region: &region, size, region_bytes_max };
                self.try_split(candidate, ids, split_by).await;
            }
        }
        self.refusals.retain(|id| sizes.contains_key(&id));
        self.sizes = sizes;
    }

    async fn try_split(&mut self, at: Candidate<'_>, ids: &IdSource, split_by: SplitBy) {
        let (id, version) = (at.region.id, at.region.epoch.version);
        if !self.refusals.may_split(id, version, at.size.bytes, self.started.elapsed()) {
            return;
        }
        let key = match split_by {
            SplitBy::Size => at.balanced_key().await,
            SplitBy::Load => {
                let key = at.store.load().split_key(id, &at.region.range);
                key.ok_or_else(|| NotSplit::now("no key halves its load"))
            }
        };
        let outcome = match key {
            Ok(key) => split(at.store, ids, at.region, vec![key]).await,
            Err(reason) => Err(reason),
        };
        if let Err(NotSplit { reason, .. }) = &outcome {
            tracing::info!("region {id} is not split: {reason}");
            self.refusals.record(id, version, at.size.bytes, self.started.elapsed());
        }
    }
}

#[derive(Clone, Copy)]
enum SplitBy {
    /// Halves of the bytes.
    Size,
    /// Halves of the requests.
    Load,
}

/// Measured region that may be split.
struct Candidate<'a> {
    store: &'a Arc<StoreHandle>,
    region: &'a Arc<Region>,
    size: RangeSize,
    region_bytes_max: u64,
}

impl Candidate<'_> {
    /// Returns a key that leaves both sides enough to be a region.
    async fn balanced_key(&self) -> std::result::Result<Bytes, NotSplit> {
        let key = middle_key(self.store, self.region).await?;
        let part = |range: KeyRange| {
            let part = Region { range, ..Region::clone(self.region) };
            measure(self.store, part.engine_ranges())
        };
        let range = &self.region.range;
        let left = part(KeyRange { start: range.start.clone(), end: key.clone() }).await;
        let right = part(KeyRange { start: key.clone(), end: range.end.clone() }).await;
        let (Some(left), Some(right)) = (left, right) else {
            return Err(NotSplit::now("its parts cannot be measured"));
        };
        let checked = decide::check_parts(&self.size, [&left, &right], self.region_bytes_max);
        checked.map_err(NotSplit::now)?;
        Ok(key)
    }
}

async fn measure(store: &Arc<StoreHandle>, ranges: Vec<KeyRange>) -> Option<RangeSize> {
    let engine = store.engine().clone();
    tokio::task::spawn_blocking(move || size_of(&*engine, &ranges)).await.ok()?.ok()
}

/// Returns the total size of `ranges`.
pub(crate) fn size_of(engine: &impl StorageEngine, ranges: &[KeyRange]) -> Result<RangeSize> {
    let mut total = RangeSize::default();
    for range in ranges {
        let size = engine.range_size(range)?;
        total.bytes += size.bytes;
        total.keys += size.keys;
    }
    Ok(total)
}

/// Returns a user key that halves the largest family of a region.
pub(super) async fn middle_key(
    store: &Arc<StoreHandle>,
    region: &Arc<Region>,
) -> std::result::Result<Bytes, NotSplit> {
    let (engine, candidate) = (store.engine().clone(), region.clone());
    let work = move || {
        let mut ranges = candidate.engine_ranges();
        ranges.sort_by_key(|range| engine.range_size(range).map_or(0, |size| size.bytes));
        let Some(largest) = ranges.last() else { return Ok(None) };
        let key = engine.split_key(largest)?.and_then(|key| keyspace::user_key(&key));
        Ok::<_, stele_types::Error>(key.filter(|key| *key > candidate.range.start))
    };
    let found = tokio::task::spawn_blocking(work).await;
    let found = found.map_err(|_| NotSplit::now("the server is stopping"))?;
    let found = found.map_err(|error| NotSplit::now(error.to_string()))?;
    found.ok_or_else(|| NotSplit {
        reason: format!("region {} holds fewer than two keys: nothing to split", region.id),
        is_final: true,
    })
}

/// Splits a region at `keys`, with new ids.
pub(super) async fn split(
    store: &Arc<StoreHandle>,
    ids: &IdSource,
    region: &Region,
    keys: Vec<Bytes>,
) -> std::result::Result<(), NotSplit> {
    if region.phase != RegionPhase::Normal || region.is_joint() {
        return Err(NotSplit::now("another change of the region is in progress"));
    }
    let per_region = 1 + region.peers.len() as u64;
    let count = per_region * keys.len() as u64;
    let first = ids.reserve(count).await.map_err(|error| NotSplit::now(error.to_string()))?;
    let new_ids = (0..keys.len() as u64)
        .map(|nth| {
            let base = first + nth * per_region;
            let peers = (1..per_region).map(|peer| PeerId(base + peer)).collect();
            NewRegion { region: RegionId(base), peers }
        })
        .collect();
    split_into(store, region, keys, new_ids).await
}

/// Splits a region at `keys` into regions with these ids.
pub(super) async fn split_into(
    store: &Arc<StoreHandle>,
    region: &Region,
    keys: Vec<Bytes>,
    new_ids: Vec<NewRegion>,
) -> std::result::Result<(), NotSplit> {
    let header =
        Header { region: region.id, version: Some(region.epoch.version), ..Header::default() };
    let call = Admin::Split { keys, new_ids };
    match store.admin(AdminCall { id: RequestId::default(), header, call }).await {
        Reply::Done(Done::Admin { region }) => {
            tracing::info!("region {} was split", region.id);
            Ok(())
        }
        Reply::Refused(Refusal::Invalid(reason)) => Err(NotSplit { reason, is_final: true }),
        Reply::Refused(refusal) => Err(NotSplit::now(format!("{refusal:?}"))),
        Reply::Busy(busy) => Err(NotSplit::now(format!("{busy:?}"))),
        // The split may have taken effect, or may still: the next measurement shows it.
        Reply::Unknown(reason) => {
            tracing::info!("region {}: the outcome of a split is unknown: {reason:?}", region.id);
            Ok(())
        }
        other => Err(NotSplit::now(format!("unexpected answer: {other:?}"))),
    }
}
