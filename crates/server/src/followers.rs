//! Streams of this node that follow regions' logs, and what they keep in the stores of the cluster.

use crate::store::StoreHandle;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use stele_engine::Pinned;
use stele_node::follow::{FollowedRegions, StreamId};
use stele_placement::FollowedFrom;
use stele_types::{LogIndex, RegionId, StoreId};

/// Streams that follow regions' logs, and the needs that each store keeps its segments for.
#[derive(Debug)]
pub struct Followers {
    regions: Mutex<FollowedRegions>,
    started: Instant,
    too_old: AtomicU64,
    /// What each store was last made to keep. A store that is absent keeps all of its window.
    kept: Mutex<BTreeMap<StoreId, FollowedFrom>>,
    /// Stores that are being made to keep something: their devices may hang.
    stating: Mutex<BTreeSet<StoreId>>,
}

impl Default for Followers {
    fn default() -> Self {
        Self {
            regions: Mutex::default(),
            started: Instant::now(),
            too_old: AtomicU64::new(0),
            kept: Mutex::default(),
            stating: Mutex::default(),
        }
    }
}

impl Followers {
    /// Counts a stream of a region that needs the entries from `next` on, until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>, region: RegionId, next: LogIndex) -> Following {
        let id = self.regions.lock().begin(region, next);
        Following { followers: self.clone(), region, id }
    }

    /// Returns the first entry of each region that a stream of this node needs, or may need again.
    pub(crate) fn needed(&self) -> FollowedFrom {
        self.regions.lock().needed(self.now_nanos())
    }

    /// Returns the number of streams.
    pub fn streams(&self) -> usize {
        self.regions.lock().open()
    }

    /// Returns the number of streams since the start that ended because their next entry was gone.
    pub fn too_old(&self) -> u64 {
        self.too_old.load(Relaxed)
    }

    pub(crate) fn note_too_old(&self) {
        self.too_old.fetch_add(1, Relaxed);
    }

    /// Returns whether a store must be made to keep what readers need: then [`Followers::state`] follows. Each
    /// store is made to once after its start, because it keeps all of its window until then.
    pub(crate) fn begin_stating(&self, store: StoreId, needed: &FollowedFrom) -> bool {
        self.kept.lock().get(&store) != Some(needed) && self.stating.lock().insert(store)
    }

    /// Makes a store keep what readers need.
    pub(crate) async fn state(&self, store: Arc<StoreHandle>, needed: FollowedFrom) {
        let id = store.id();
        let engine = store.engine().clone();
        let above = above(&needed);
        let stated = tokio::task::spawn_blocking(move || engine.pin_history(&above)).await;
        self.stating.lock().remove(&id);
        match stated {
            Ok(Ok(_)) => _ = self.kept.lock().insert(id, needed),
            Ok(Err(error)) => tracing::warn!("store {id} keeps more for readers of logs: {error}"),
            // A panic in it has been logged.
            Err(_) => {}
        }
    }

    fn now_nanos(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Returns the indexes above which entries are needed.
fn above(needed: &FollowedFrom) -> Pinned {
    needed.iter().map(|(region, next)| (*region, LogIndex(next.0.saturating_sub(1)))).collect()
}

/// A stream that is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Following {
    followers: Arc<Followers>,
    region: RegionId,
    id: StreamId,
}

impl Following {
    /// Notes the entry that the stream needs next.
    pub(crate) fn advance(&self, next: LogIndex) {
        self.followers.regions.lock().advance(self.region, self.id, next);
    }

    /// Notes that the reader of the stream will need all entries of a new region, the first of which is `first`.
    pub(crate) fn expect(&self, child: RegionId, first: LogIndex) {
        let now_nanos = self.followers.now_nanos();
        self.followers.regions.lock().keep(child, first, now_nanos);
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let now_nanos = self.followers.now_nanos();
        self.followers.regions.lock().end(self.region, self.id, now_nanos);
    }
}
