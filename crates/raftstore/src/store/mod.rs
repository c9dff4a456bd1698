//! All regions of one store.

mod absent_replica;
mod batch;
mod context;
mod destroy;
mod entries;
mod hibernation_probe;
mod ident;
mod journal;
mod open;
mod orphaned_ranges;
mod poll;
mod repair;
mod report;
mod snapshot;
mod step;
mod truncate;

pub(crate) use batch::Note;
pub(crate) use context::{Context, Effect, Pairs};

use crate::messages::{PeerMessage, SnapshotHeader};
use crate::peer::Peer;
use crate::readers::Readers;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Appended, Region, RegionId, Result};

use crate::output::Ticket;

/// The consensus of one store: every region's replica here.
pub struct RaftStore<E: StorageEngine> {
    ctx: Context<E>,
    peers: BTreeMap<RegionId, Peer<E>>,
    /// Regions that left this store, as last known: what comes late for them is answered, and their
    /// peers never come back.
    tombstones: BTreeMap<RegionId, Region>,
    /// Regions with something to do.
    dirty: BTreeSet<RegionId>,
    /// Regions that are awake. The others cost nothing.
    ticking: BTreeSet<RegionId>,
    next_tick_nanos: u64,
    /// The last region whose log was looked at for truncation.
    truncated_last: RegionId,
    /// Messages for other replicas than are here.
    stale: Vec<PeerMessage>,
    /// Questions for a vote in regions that are not here yet.
    early_votes: BTreeMap<RegionId, PeerMessage>,
    /// Snapshots whose pairs came.
    arrived: Vec<(SnapshotHeader, E::Ingest)>,
    appended: Option<(Ticket, Result<Appended>)>,
    /// Pairs to remove once the tombstones that say so are durable.
    leaving: destroy::Leaving,
    repair: repair::Repair,
    hibernation_probe: hibernation_probe::HibernationProbe,
    orphaned_ranges: orphaned_ranges::OrphanedRanges,
    /// Regions as the placement group knows them, not looked at yet.
    owners: Vec<Region>,
}

impl<E: StorageEngine> RaftStore<E> {
    /// What edge threads may know of the regions here.
    pub fn readers(&self) -> Arc<Readers> {
        self.ctx.readers.clone()
    }

    /// When [`RaftStore::poll`] must be called at the latest, in monotonic nanoseconds; `None` for not
    /// before something comes. While every region rests that is once a second.
    pub fn next_tick_nanos(&self) -> Option<u64> {
        if !self.dirty.is_empty() {
            return Some(self.ctx.now.monotonic_nanos);
        }
        let tick = (!self.ticking.is_empty()).then_some(self.next_tick_nanos);
        let tick = tick.into_iter().chain(self.leaving.retry_at());
        let asks = self.asks_at().into_iter().chain(self.asks_for_resting_at());
        tick.chain(self.ctx.batches.retry_at()).chain(asks).min()
    }

    /// Whether records of the region wait for the log, which may still have what they replace: for
    /// their turn, for the device, or for room on it.
    pub fn holds_records(&self, region: RegionId) -> bool {
        self.ctx.batches.has_records_of(region)
    }

    /// A region has something to do, or fell asleep, or woke.
    fn touch(&mut self, region: RegionId) {
        let Some(peer) = self.peers.get(&region) else {
            self.ticking.remove(&region);
            return;
        };
        self.dirty.insert(region);
        if peer.is_hibernating() {
            self.ticking.remove(&region);
            return;
        }
        if self.ticking.is_empty() {
            let now = self.ctx.now.monotonic_nanos;
            self.next_tick_nanos = now + self.ctx.options.tick_nanos;
        }
        self.ticking.insert(region);
    }
}
