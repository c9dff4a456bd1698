//! All replicas of one store, and status reports of their regions: of all, of one, and of those
//! that may have changed.
//!
//! Invariant: a list that begins at a collection holds every region of which the report may differ from
//! the one in that collection. A region changes by an input, by a tick or by its own work, which notes it,
//! or it is noted at each collection:
//! - while it is awake: peers become silent;
//! - while its leader hibernates with a peer on an unreachable store, and after that until the report
//!   without the peer: the seconds since the last message grow, and the connection may come back;
//! - while it knows no leader: the seconds without one grow;
//! - after a read on a request thread: its traffic has grown.
//!
//! Tests: `a_list_of_changes_that_was_lost_is_contained_in_the_next_one`,
//! `nothing_acknowledged_is_lost_and_no_read_is_stale`.

mod absent_replica;
mod destroy;
mod open;
mod poll;
mod repair;
mod snapshot;
mod step;

use self::absent_replica::Elsewhere;
use crate::context::Context;
use crate::messages::{PeerMessage, SnapshotHeader};
use crate::output::{Changes, Collection, RegionReport, Ticket};
use crate::peer::Replica;
use crate::reads::ReadGate;
use crate::stages::StageTimes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{Region, RegionId, Result};

/// Consensus of one store: its replicas of all regions.
pub struct RaftStore<E: StorageEngine> {
    ctx: Context<E>,
    replicas: BTreeMap<RegionId, Replica<E>>,
    /// Tombstones of removed replicas. Late messages for them are answered, and their peers are
    /// never created again.
    tombstones: BTreeMap<RegionId, Region>,
    dirty: poll::Dirty,
    /// Regions that are awake. Hibernating ones need no ticks.
    ///
    /// Invariant: it holds the region of each replica that is marked as ticking: an input of one costs no
    /// search here.
    /// Test: `a_region_that_wakes_ticks_again`.
    ticking: BTreeSet<RegionId>,
    next_tick_nanos: u64,
    truncations: poll::Truncations,
    /// Messages for another peer of a region than the one here.
    stale: Vec<PeerMessage>,
    /// Vote requests for replicas that do not exist yet.
    early_votes: BTreeMap<RegionId, PeerMessage>,
    elsewhere: Elsewhere,
    /// Received snapshots that are not installed.
    arrived: Vec<(SnapshotHeader, E::Ingest)>,
    appended: Option<(Ticket, Result<()>)>,
    /// Removed replicas; their pairs are dropped once their tombstones are durable.
    leaving: destroy::Leaving,
    repair: repair::Repair,
    hibernation_probe: poll::HibernationProbe,
    orphaned_ranges: snapshot::OrphanedRanges,
    report_changes: ReportChanges,
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
        let times = [
            (!self.ticking.is_empty()).then_some(self.next_tick_nanos),
            self.leaving.retry_at(),
            self.orphaned_ranges.drop_at(),
            self.truncates_at(),
            self.ctx.pauses.front().map(|(ends_nanos, _)| *ends_nanos),
            self.ctx.batches.retry_at(),
            self.asks_at(),
            self.probes_at(),
        ];
        times.iter().fold(None, |first, at| match (first, *at) {
            (Some(first), Some(at)) => Some(at.min(first)),
            (None, at) | (at, None) => at,
        })
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
        let Some(replica) = self.replicas.get_mut(&region) else {
            self.ticking.remove(&region);
            return;
        };
        self.dirty.insert(region);
        let ticks = !replica.is_hibernating();
        if std::mem::replace(&mut replica.is_ticking, ticks) == ticks {
            return;
        }
        if !ticks {
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

/// Regions of which the report may have changed, by the collection that first held the change.
#[derive(Debug, Default)]
struct ReportChanges {
    /// Number of the last collection.
    number: u64,
    /// Regions that worked, or ended, since the last collection.
    ///
    /// Invariant: it holds the region of each replica that is marked as noted.
    /// Test: `a_list_of_changes_that_was_lost_is_contained_in_the_next_one`.
    noted: BTreeSet<RegionId>,
    changes_with_time: BTreeSet<RegionId>,
    /// Collection that last held each region.
    last: BTreeMap<RegionId, u64>,
    order: BTreeSet<(u64, RegionId)>,
    ended: BTreeSet<RegionId>,
}

impl ReportChanges {
    fn note(&mut self, region: RegionId) {
        self.noted.insert(region);
    }

    /// Begins a collection, which holds what was noted and `awake`.
    fn begin(&mut self, awake: impl Iterator<Item = RegionId>) {
        self.number += 1;
        let mut changed = std::mem::take(&mut self.noted);
        changed.extend(awake);
        // bug replica.report_stands_still: skip
        changed.extend(&self.changes_with_time);
        for region in changed {
            if let Some(before) = self.last.insert(region, self.number) {
                self.order.remove(&(before, region));
            }
            self.order.insert((self.number, region));
        }
    }

    /// Forgets the regions that ended up to a collection that its reader knows.
    fn forget_ended(&mut self, known: u64, is_here: impl Fn(RegionId) -> bool) {
        let last = &self.last;
        let is_known = |id: &RegionId| last.get(id).is_none_or(|number| *number <= known);
        let forgotten: Vec<RegionId> = self.ended.iter().copied().filter(is_known).collect();
        for id in forgotten {
            self.ended.remove(&id);
            if !is_here(id)
                && let Some(number) = self.last.remove(&id)
            {
                self.order.remove(&(number, id));
            }
        }
    }

    /// Returns the regions that changed after the collection `since`.
    fn after(&self, since: u64) -> Vec<RegionId> {
        let later = self.order.range((since + 1, RegionId(0))..);
        later.map(|(_, region)| *region).collect()
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Reports every region here.
    pub fn regions(&mut self) -> Vec<RegionReport> {
        let ctx = &self.ctx;
        self.replicas.values_mut().map(|replica| replica.report(ctx)).collect()
    }

    /// Reports one region here.
    pub fn region(&mut self, region: RegionId) -> Option<RegionReport> {
        let ctx = &self.ctx;
        self.replicas.get_mut(&region).map(|replica| replica.report(ctx))
    }

    /// Reports the regions that may have changed since a collection of this process, and all otherwise.
    /// `truncated` may be older. The cost follows the number of awake and changed regions.
    pub fn changed_regions(&mut self, since: Collection) -> Changes {
        for region in self.ctx.readers.take_read() {
            self.report_changes.note(region);
        }
        let awake = self.ticking.iter().copied().chain(self.dirty.iter());
        self.report_changes.begin(awake);
        let now = Collection {
            incarnation: self.ctx.options.process_incarnation,
            number: self.report_changes.number,
        };
        let goes_on =
            since.incarnation == now.incarnation && (1..now.number).contains(&since.number);
        let ids: Vec<RegionId> = match goes_on {
            true => self.report_changes.after(since.number),
            false => self.replicas.keys().copied().collect(),
        };
        let since = goes_on.then_some(since);
        if let Some(since) = since {
            self.report_changes.forget_ended(since.number, |id| self.replicas.contains_key(&id));
        }
        let (mut regions, mut gone) = (Vec::new(), Vec::new());
        for id in ids {
            let Some(replica) = self.replicas.get_mut(&id) else {
                self.report_changes.changes_with_time.remove(&id);
                self.report_changes.ended.insert(id);
                gone.push(id);
                continue;
            };
            // bug replica.noted_for_ever: skip
            replica.is_noted = false;
            match replica.changes_with_time(&self.ctx) {
                true => self.report_changes.changes_with_time.insert(id),
                false => self.report_changes.changes_with_time.remove(&id),
            };
            regions.push(replica.report(&self.ctx));
        }
        Changes { since, now, regions, gone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_ended_is_forgotten_when_its_end_is_known() {
        let mut changes = ReportChanges::default();
        let (gone, kept) = (RegionId(1), RegionId(2));
        for region in [gone, kept] {
            changes.note(region);
        }
        changes.begin(std::iter::empty());
        changes.ended.insert(gone);
        changes.begin(std::iter::empty());
        // The list of the first collection may be lost.
        changes.forget_ended(0, |id| id == kept);
        assert_eq!(changes.after(0), [gone, kept]);
        changes.forget_ended(1, |id| id == kept);
        assert_eq!((changes.after(0), changes.last.len()), (vec![kept], 1));
        assert!(changes.ended.is_empty());
    }
}
