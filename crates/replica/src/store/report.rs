//! Status reports of a store's regions: of all, of one, and of those that may have changed.
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

use super::RaftStore;
use crate::output::{Changes, Collection, RegionReport};
use std::collections::{BTreeMap, BTreeSet};
use stele_storage::StorageEngine;
use stele_types::RegionId;

/// Regions of which the report may have changed, by the collection that first held the change.
#[derive(Debug, Default)]
pub(super) struct ReportChanges {
    /// Number of the last collection.
    number: u64,
    /// Regions that worked, or ended, since the last collection.
    noted: BTreeSet<RegionId>,
    /// Regions of which the report changes with time alone.
    changes_with_time: BTreeSet<RegionId>,
    /// Collection that last held each region.
    last: BTreeMap<RegionId, u64>,
    /// The same, in the order of the collections.
    order: BTreeSet<(u64, RegionId)>,
    /// Those of them that ended here.
    ended: BTreeSet<RegionId>,
}

impl ReportChanges {
    pub(super) fn note(&mut self, region: RegionId) {
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
        let awake = self.ticking.iter().chain(&self.dirty).copied();
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
