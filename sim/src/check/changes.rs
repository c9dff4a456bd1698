//! Checks region changes: one membership change at a time, and merges only of neighbours, into
//! targets with the epoch that the source prepared for, after all entries up to the prepare index
//! are applied.

use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use stele_replica::Event;
use stele_storage::LogStore;
use stele_types::{Region, RegionEpoch, RegionId, RegionPhase};

#[derive(Default)]
pub(crate) struct Changes {
    known: BTreeMap<RegionId, BTreeMap<(u64, u64), Region>>,
    /// Last version known to each store.
    latest: BTreeMap<(u64, RegionId), Region>,
    /// Epochs of the snapshots that replicas received and may still install.
    ///
    /// Invariant: a replica skips versions only where it installs a snapshot, and then has the
    /// snapshot's version. Several snapshots of a region may wait at once, and each is installed.
    installing: BTreeMap<(u64, RegionId), BTreeSet<(u64, u64)>>,
    gone: BTreeSet<RegionId>,
    /// Last change of members that was ordered of each region: its result, with the epoch before it.
    ordered: BTreeMap<RegionId, Region>,
}

fn key(epoch: RegionEpoch) -> (u64, u64) {
    (epoch.version, epoch.conf_version)
}

impl Changes {
    /// Records the descriptor that a store has. Returns the one before it.
    pub(crate) fn note(&mut self, slot: u64, region: &Region) -> Option<Region> {
        let versions = self.known.entry(region.id).or_default();
        versions.entry(key(region.epoch)).or_insert_with(|| region.clone());
        self.latest.insert((slot, region.id), region.clone())
    }

    /// Records the members after a change that was ordered, with the epoch before it.
    pub(crate) fn note_ordered(&mut self, after: Region) {
        self.ordered.insert(after.id, after);
    }

    /// Returns the results of changes that were ordered and may be in logs: of these regions, each in its
    /// newest version, none has made its change.
    pub(crate) fn under_way(&self, newest: &BTreeMap<RegionId, Region>) -> Vec<Region> {
        let may_follow = |after: &&Region| {
            newest.get(&after.id).is_some_and(|now| key(now.epoch) == key(after.epoch))
        };
        self.ordered.values().filter(may_follow).cloned().collect()
    }

    pub(crate) fn snapshot_received(&mut self, slot: u64, region: &Region) {
        self.installing.entry((slot, region.id)).or_default().insert(key(region.epoch));
    }

    /// Forgets the snapshots that a store had not installed when it stopped.
    pub(crate) fn started(&mut self, slot: u64) {
        self.installing.retain(|(other, _), _| *other != slot);
    }

    /// Returns whether a replica got this version from a snapshot. An earlier snapshot cannot be
    /// installed after it.
    fn is_installed(&mut self, slot: u64, now: &Region) -> bool {
        let Some(waiting) = self.installing.get_mut(&(slot, now.id)) else { return false };
        let (version, conf_version) = key(now.epoch);
        let is_installed = waiting.contains(&(version, conf_version));
        waiting.retain(|(v, conf)| *v > version || *conf > conf_version);
        is_installed
    }

    /// Records the version of a replica that changed. Returns the version before it and what is
    /// invalid in the change, judged by descriptors alone; nothing if a snapshot brought the version.
    fn change(&mut self, slot: u64, now: &Region) -> Option<(Region, Option<String>)> {
        let is_installed = self.is_installed(slot, now);
        let before = self.note(slot, now).filter(|_| !is_installed)?;
        let wrong = self.invalid_change(&before, now);
        Some((before, wrong))
    }

    /// Returns the newest descriptor of each region that these stores have, running or stopped. A region
    /// that was destroyed on a store and is covered by a later version of another one ended in a merge.
    pub(crate) fn newest(&self, counts: impl Fn(u64) -> bool) -> BTreeMap<RegionId, Region> {
        let mut newest: BTreeMap<RegionId, Region> = BTreeMap::new();
        for ((_, id), region) in self.latest.iter().filter(|((slot, _), _)| counts(*slot)) {
            let is_newer = |other: &Region| key(other.epoch) < key(region.epoch);
            if newest.get(id).is_none_or(is_newer) {
                newest.insert(*id, region.clone());
            }
        }
        let all: Vec<Region> = newest.values().cloned().collect();
        newest.retain(|id, region| {
            let covers = |other: &Region| {
                other.kind == region.kind
                    && other.epoch.version > region.epoch.version
                    && other.range.overlaps(&region.range)
            };
            !self.gone.contains(id) || !all.iter().any(covers)
        });
        newest
    }

    /// Returns true if a region ever passed an epoch, or was destroyed on a store.
    fn has_passed(&self, region: RegionId, epoch: RegionEpoch) -> bool {
        let later = |(version, conf): &(u64, u64)| {
            *version >= epoch.version
                && *conf >= epoch.conf_version
                && (*version, *conf) != key(epoch)
        };
        let known = self.known.get(&region);
        self.gone.contains(&region) || known.is_some_and(|known| known.keys().any(later))
    }

    fn sources(&self, target: RegionId) -> Vec<Region> {
        let into = |region: &&Region| matches!(region.phase, RegionPhase::Merging { target: to, .. } if to == target);
        self.known.values().flat_map(BTreeMap::values).filter(into).cloned().collect()
    }

    /// Returns what is invalid in a change, judged by descriptors alone.
    fn invalid_change(&self, before: &Region, now: &Region) -> Option<String> {
        let left = now.epoch.conf_version == before.epoch.conf_version + 1 && !now.is_joint();
        if before.is_joint() && now.epoch.conf_version != before.epoch.conf_version && !left {
            return Some("members change in a joint configuration".into());
        }
        match (before.phase, now.phase) {
            (RegionPhase::Normal, RegionPhase::Merging { target, target_epoch, .. }) => {
                let target = self.known.get(&target)?.get(&key(target_epoch))?;
                let apart = !are_neighbours(before, target);
                apart.then(|| format!("prepares a merge into {target:?}, which is no neighbour"))
            }
            (RegionPhase::Merging { target, target_epoch, .. }, RegionPhase::Normal) => {
                let may = self.has_passed(target, target_epoch);
                (!may).then(|| {
                    "the merge is taken back, although its target may still commit it".into()
                })
            }
            _ => None,
        }
    }
}

fn are_neighbours(a: &Region, b: &Region) -> bool {
    let touch = |left: &Region, right: &Region| {
        !left.range.end.is_empty() && left.range.end == right.range.start
    };
    touch(a, b) || touch(b, a)
}

impl World {
    pub(crate) fn note_regions(&mut self, number: u64) {
        let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else { return };
        self.checks.changes.latest.retain(|(slot, _), _| *slot != number);
        for report in core.regions() {
            self.checks.changes.note(number, &report.region);
        }
    }

    pub(super) fn check_change(&mut self, number: u64, event: &Event) {
        let changes = &mut self.checks.changes;
        let now = match event {
            Event::RegionCreated(region) => {
                changes.is_installed(number, region);
                return drop(changes.note(number, region));
            }
            Event::RegionDestroyed(region) => {
                changes.installing.remove(&(number, *region));
                changes.latest.remove(&(number, *region));
                changes.gone.insert(*region);
                return;
            }
            Event::RegionChanged(region) => region,
            _ => return,
        };
        let Some((before, wrong)) = changes.change(number, now) else { return };
        if let Some(text) = wrong.or_else(|| self.invalid_merge(number, &before, now)) {
            self.fail(format!("store {number}: {now:?}, before {before:?}: {text}"));
        }
    }

    /// Returns what is invalid in a merge: the target changed after the preparation, or the
    /// source's log is not applied up to the prepare index.
    fn invalid_merge(&self, number: u64, before: &Region, now: &Region) -> Option<String> {
        let grew = now.range != before.range
            && (now.range.start < before.range.start && now.range.end == before.range.end
                || now.range.start == before.range.start && now.range.end != before.range.end);
        let was_inside = |source: &Region| {
            now.range.contains(&source.range.start) && !before.range.contains(&source.range.start)
        };
        let mut sources = self.checks.changes.sources(now.id);
        sources.retain(|source| grew && was_inside(source));
        let last = sources.iter().max_by_key(|source| key(source.epoch))?;
        let as_prepared = |source: &&Region| {
            matches!(source.phase, RegionPhase::Merging { target_epoch, .. }
                if target_epoch == before.epoch)
        };
        let Some(source) = sources.iter().find(as_prepared) else {
            return Some(format!(
                "commits the merge of {last:?}, but has changed since it was prepared"
            ));
        };
        let RegionPhase::Merging { prepared, .. } = source.phase else { return None };
        let progress = self.engine(number)?.progress(source.id).filter(|it| !it.destroyed)?;
        (progress.applied < prepared).then(|| {
            format!(
                "commits the merge of {source:?} with only {} of its log applied",
                progress.applied
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{KeyRange, LogIndex, Peer, PeerRole, Term};

    fn region(id: u64, range: (&'static str, &'static str), version: u64) -> Region {
        Region {
            id: RegionId(id),
            range: KeyRange::new(range.0, range.1),
            epoch: RegionEpoch { conf_version: 1, version },
            ..Region::default()
        }
    }

    fn prepared(source: &Region, target: &Region) -> Region {
        let (id, target_epoch) = (target.id, target.epoch);
        let mut out = source.clone();
        let (prepared, term) = (LogIndex(7), Term(1));
        out.phase = RegionPhase::Merging { target: id, prepared, term, target_epoch };
        out.epoch.version += 1;
        out
    }

    #[test]
    fn neighbours_are_merged_and_a_merge_is_taken_back_only_once_its_target_has_changed() {
        let mut changes = Changes::default();
        let (a, b, c) =
            (region(1, ("", "b"), 1), region(2, ("b", "c"), 1), region(3, ("c", ""), 1));
        [&a, &b, &c].into_iter().for_each(|it| drop(changes.note(1, it)));
        assert_eq!(changes.invalid_change(&a, &prepared(&a, &b)), None);
        assert!(changes.invalid_change(&a, &prepared(&a, &c)).unwrap().contains("no neighbour"));
        let back = region(1, ("", "b"), 3);
        assert!(changes.invalid_change(&prepared(&a, &b), &back).unwrap().contains("taken back"));
        changes.note(2, &region(2, ("b", "bb"), 2));
        assert_eq!(changes.invalid_change(&prepared(&a, &b), &back), None);
    }

    #[test]
    fn only_a_received_snapshot_excuses_that_versions_are_skipped() {
        let at = |conf_version: u64| {
            let mut out = region(1, ("", ""), 1);
            out.epoch.conf_version = conf_version;
            if conf_version.is_multiple_of(2) {
                let (id, store) = (stele_types::PeerId(4), stele_types::StoreId(4));
                out.peers.push(Peer { id, store, role: PeerRole::IncomingVoter });
            }
            out
        };
        let is_wrong = |changes: &mut Changes, conf_version| {
            changes.change(1, &at(conf_version)).is_some_and(|(_, wrong)| wrong.is_some())
        };
        let mut changes = Changes::default();
        changes.note(1, &at(2));
        // Two snapshots wait, and both are installed.
        [4, 8].iter().for_each(|conf_version| changes.snapshot_received(1, &at(*conf_version)));
        assert!(!is_wrong(&mut changes, 4));
        assert!(!is_wrong(&mut changes, 8));
        assert!(is_wrong(&mut changes, 10), "no snapshot is left");
        // A snapshot excuses its own version, on its own store, until the store stops.
        changes.snapshot_received(1, &at(14));
        changes.snapshot_received(2, &at(16));
        assert!(is_wrong(&mut changes, 12));
        assert!(!is_wrong(&mut changes, 14));
        assert!(is_wrong(&mut changes, 16));
        changes.snapshot_received(1, &at(18));
        changes.started(1);
        assert!(is_wrong(&mut changes, 18));
    }

    #[test]
    fn a_region_that_was_merged_is_not_the_newest_of_a_store_that_missed_the_merge() {
        let mut changes = Changes::default();
        let (source, target) = (region(1, ("", "b"), 1), region(2, ("b", "c"), 1));
        [&source, &target].into_iter().for_each(|it| drop(changes.note(1, it)));
        let newest = |changes: &Changes| -> Vec<u64> {
            changes.newest(|slot| slot != 3).into_keys().map(|id| id.0).collect()
        };
        // Another store split the source: both are there.
        changes.note(2, &region(4, ("a", "b"), 2));
        assert_eq!(newest(&changes), [1, 2, 4]);
        changes.note(2, &region(2, ("", "c"), 3));
        changes.gone.insert(source.id);
        assert_eq!(newest(&changes), [2, 4]);
        changes.note(3, &region(5, ("x", ""), 9));
        assert_eq!(newest(&changes), [2, 4]);
    }

    #[test]
    fn a_joint_configuration_is_left_before_anything_else_changes() {
        let changes = Changes::default();
        let mut joint = region(1, ("", ""), 1);
        let (id, store) = (stele_types::PeerId(4), stele_types::StoreId(4));
        joint.peers.push(Peer { id, store, role: PeerRole::IncomingVoter });
        let mut left = joint.clone();
        left.peers[0].role = PeerRole::Voter;
        left.epoch.conf_version += 1;
        assert_eq!(changes.invalid_change(&joint, &left), None);
        let mut more = joint.clone();
        more.epoch.conf_version += 1;
        assert!(changes.invalid_change(&joint, &more).is_some());
        left.epoch.conf_version += 1;
        assert!(changes.invalid_change(&joint, &left).is_some());
    }
}
