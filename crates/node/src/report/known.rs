//! Regions of the stores of a node, as these last reported them.

use std::collections::{BTreeMap, BTreeSet};
use stele_replica::{Changes, Collection, RegionReport};
use stele_types::{RegionId, StoreId};

/// Reports of the regions of a node, by store.
#[derive(Debug, Default)]
pub(super) struct KnownRegions {
    stores: BTreeMap<StoreId, OfStore>,
}

#[derive(Debug, Default)]
struct OfStore {
    /// Collection that is known.
    at: Collection,
    regions: BTreeMap<RegionId, RegionReport>,
    leaderless: BTreeSet<RegionId>,
    /// Regions of which the device refused entries.
    lacking_room: BTreeSet<RegionId>,
}

impl OfStore {
    fn insert(&mut self, report: RegionReport) {
        let id = report.region.id;
        note(&mut self.leaderless, id, report.leaderless_seconds > 0);
        note(&mut self.lacking_room, id, report.lacks_room);
        self.regions.insert(id, report);
    }

    fn remove(&mut self, id: RegionId) {
        self.leaderless.remove(&id);
        self.lacking_room.remove(&id);
        self.regions.remove(&id);
    }
}

fn note(set: &mut BTreeSet<RegionId>, id: RegionId, is_in: bool) {
    match is_in {
        true => set.insert(id),
        false => set.remove(&id),
    };
}

impl KnownRegions {
    /// Returns the collection from which the next list of a store's changes counts.
    pub(super) fn at(&self, store: StoreId) -> Collection {
        self.stores.get(&store).map(|known| known.at).unwrap_or_default()
    }

    /// Takes a list of a store's changes; returns the regions in it.
    ///
    /// Invariant: a list counts only if it begins at what is known, or before. A store that hangs answers
    /// an earlier question later, or the answer before is repeated: neither removes what a later list
    /// stated, and neither leaves a change out.
    pub(super) fn take(&mut self, store: StoreId, changes: &Changes) -> BTreeSet<RegionId> {
        let known = self.stores.entry(store).or_default();
        let is_of_same_process = changes.now.incarnation == known.at.incarnation;
        let is_later = !is_of_same_process || changes.now.number > known.at.number;
        let begins_in_time =
            |since: Collection| is_of_same_process && since.number <= known.at.number;
        let continues = is_later && changes.since.is_none_or(begins_in_time);
        // bug node.repeated_changes_count: never
        if !continues {
            return BTreeSet::new();
        }
        let mut changed: BTreeSet<RegionId> = changes.gone.iter().copied().collect();
        if changes.since.is_none() {
            changed.extend(known.regions.keys());
            *known = OfStore::default();
        }
        changes.gone.iter().for_each(|region| known.remove(*region));
        changed.extend(changes.regions.iter().map(|report| report.region.id));
        changes.regions.iter().for_each(|report| known.insert(report.clone()));
        known.at = changes.now;
        changed
    }

    /// Drops the stores that are not in `kept`; returns their regions.
    pub(super) fn keep(&mut self, kept: &BTreeSet<StoreId>) -> BTreeSet<RegionId> {
        let gone: Vec<StoreId> =
            self.stores.keys().copied().filter(|store| !kept.contains(store)).collect();
        let gone = gone.iter().filter_map(|store| self.stores.remove(store));
        gone.flat_map(|known| known.regions.into_keys()).collect()
    }

    pub(super) fn of(&self, store: StoreId) -> impl Iterator<Item = &RegionReport> {
        self.stores.get(&store).into_iter().flat_map(|known| known.regions.values())
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = RegionId> {
        self.stores.values().flat_map(|known| known.regions.keys().copied())
    }

    /// Returns the reports of the region's leaders here.
    pub(super) fn leading(&self, region: RegionId) -> impl Iterator<Item = &RegionReport> {
        let here = self.stores.values().filter_map(move |known| known.regions.get(&region));
        here.filter(|report| report.is_leading)
    }

    /// Returns the reports of replicas without a leader.
    pub(super) fn leaderless(&self) -> impl Iterator<Item = (StoreId, &RegionReport)> {
        self.stores.iter().flat_map(|(store, known)| {
            let reports = known.leaderless.iter().filter_map(|region| known.regions.get(region));
            reports.map(|report| (*store, report))
        })
    }

    pub(super) fn refuses_entries(&self, store: StoreId) -> bool {
        self.stores.get(&store).is_some_and(|known| !known.lacking_room.is_empty())
    }
}
