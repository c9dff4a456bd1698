//! All replicas of one store.

mod absent_replica;
mod destroy;
mod entries;
mod installed;
mod no_room;
mod open;
mod poll;
mod repair;
mod report;
mod snapshot;
mod step;

use crate::context::Context;
use crate::messages::{PeerMessage, SnapshotHeader};
use crate::peer::Replica;
use crate::reads::ReadGate;
use crate::stages::StageTimes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Region, RegionId, Result};

use crate::output::Ticket;

/// Consensus of one store: its replicas of all regions.
pub struct RaftStore<E: StorageEngine> {
    ctx: Context<E>,
    replicas: BTreeMap<RegionId, Replica<E>>,
    /// Tombstones of removed replicas. Late messages for them are answered, and their peers are
    /// never created again.
    tombstones: BTreeMap<RegionId, Region>,
    /// Regions with pending work.
    dirty: BTreeSet<RegionId>,
    /// Regions that are awake. Hibernating ones need no ticks.
    ticking: BTreeSet<RegionId>,
    next_tick_nanos: u64,
    truncations: poll::Truncations,
    /// Messages for another peer of a region than the one here.
    stale: Vec<PeerMessage>,
    /// Vote requests for replicas that do not exist yet.
    early_votes: BTreeMap<RegionId, PeerMessage>,
    /// Received snapshots that are not installed.
    arrived: Vec<(SnapshotHeader, E::Ingest)>,
    appended: Option<(Ticket, Result<()>)>,
    /// Removed replicas; their pairs are dropped once their tombstones are durable.
    leaving: destroy::Leaving,
    repair: repair::Repair,
    hibernation_probe: poll::HibernationProbe,
    orphaned_ranges: snapshot::OrphanedRanges,
    report_changes: report::ReportChanges,
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the region states that request threads may use.
    pub fn readers(&self) -> Arc<ReadGate> {
        self.ctx.readers.clone()
    }

    /// Returns the times of the stages of writes and reads, for measurements.
    pub fn times(&self) -> Arc<StageTimes> {
        self.ctx.times.clone()
    }

    /// Returns the nanoseconds of a tick. Requests past their deadline that were not proposed are
    /// refused at the next one.
    pub fn tick_nanos(&self) -> u64 {
        self.ctx.options.tick_nanos
    }

    /// Returns the monotonic nanoseconds at which [`RaftStore::poll`] must be called at the latest;
    /// `None` for not before the next input. While every region hibernates that is once a second.
    pub fn next_tick_nanos(&self) -> Option<u64> {
        if !self.dirty.is_empty() {
            return Some(self.ctx.now.monotonic_nanos);
        }
        let tick = (!self.ticking.is_empty()).then_some(self.next_tick_nanos);
        let tick = tick.into_iter().chain(self.leaving.retry_at());
        let tick = tick.chain(self.orphaned_ranges.drop_at());
        let tick = tick.chain(self.truncates_at());
        let asks = self.asks_at().into_iter().chain(self.probes_at());
        tick.chain(self.ctx.batches.retry_at()).chain(asks).min()
    }

    /// Returns whether records of the region are not durable, because they wait for their turn, for
    /// the device or for room on it. The log may still hold what they replace.
    pub fn has_records_of(&self, region: RegionId) -> bool {
        self.ctx.batches.has_records_of(region)
    }

    /// Returns the bytes of entries in memory that are not applied, over all regions.
    pub fn tail_bytes(&self) -> u64 {
        self.ctx.tails.bytes()
    }

    /// Schedules a region for the next poll and updates whether it ticks.
    fn schedule(&mut self, region: RegionId) {
        let Some(replica) = self.replicas.get(&region) else {
            self.ticking.remove(&region);
            return;
        };
        self.dirty.insert(region);
        if replica.is_hibernating() {
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
