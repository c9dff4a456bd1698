//! Decision of a prepared merge, as this store knows it.
//!
//! The target's log decides, once: the first entry that takes the target past the epoch named in the
//! preparation commits the merge, or it does not, and then no later entry can.
//!
//! Invariant: the source is rolled back only on proof, by one store, that the target's log refused this
//! preparation.
//! Tests: `only_a_target_that_passed_the_named_epoch_without_the_commit_is_proof`,
//! `after_a_commit_no_replica_of_the_source_is_rolled_back_and_all_of_them_leave`,
//! `a_snapshot_of_the_target_from_after_a_change_of_range_proves_nothing`.
//!
//! A proof is:
//!
//! - an epoch that the target applied anywhere, of the named version and a later membership. A commit
//!   raises the version, and versions never decrease;
//! - a target that passed the named epoch on this store by entries of its log: a commit among them
//!   would have left the source's tombstone here. A snapshot proves nothing of the kind, as the
//!   target may have taken over the source and split off its keys again;
//! - a record of the merges that the target committed ([`crate::CommittedMerges`]) which is complete from the
//!   named version to a later one, without the source. It comes with the target's snapshots, so any store
//!   that has or had a replica of a later epoch can have it;
//! - tombstones of the target at the named epoch on all stores of its members, and a source on all
//!   of them that is not merged: no replica is left with the log.
//!
//! One of the source's stores can always give it, unless it is lost: the members of the target at the
//! named epoch are on those stores, and one of them applied the deciding entry from its log before
//! any later membership. As long as nothing is decided, the target's leader can decide: its refusal
//! is an entry that changes nothing but the epoch.

use crate::context::Context;
use crate::messages::{Preparation, Verdict};
use stele_storage::{EngineView, StorageEngine};
use stele_types::{Region, RegionEpoch, RegionId, RegionPhase, keyspace};

#[derive(Debug, Default)]
struct Known {
    source: Option<Region>,
    target: Option<Region>,
    /// Epochs between which the target changed by snapshots here.
    skipped: Vec<Skipped>,
    /// The record of merges that the target committed has a change past the epoch without this one.
    has_refused: bool,
    /// Epoch as of which the target no longer has its replica here, as another store said.
    gone: Option<RegionEpoch>,
}

impl<E: StorageEngine> Context<E> {
    pub(crate) fn merge_verdict(&self, preparation: &Preparation) -> Verdict {
        let Ok(view) = self.engine.view() else { return Verdict::Unknown };
        let region = |id| {
            let pair = view.get(&keyspace::region_key(id)).ok()??;
            Region::decode(&pair.value).ok()
        };
        let known = Known {
            source: region(preparation.source),
            target: region(preparation.target),
            skipped: self.installed.get(&preparation.target).cloned().unwrap_or_default(),
            has_refused: self.merges.get(&preparation.target).is_some_and(|merges| {
                merges.has_refused(preparation.source, preparation.target_epoch.version)
            }),
            gone: self.gone.get(&preparation.target).copied(),
        };
        judge(&known, preparation.target_epoch)
    }
}

fn judge(known: &Known, named: RegionEpoch) -> Verdict {
    let refuses = |now: RegionEpoch| {
        let is_uncommitted = now.version == named.version;
        // bug replica.rollback_by_gone_version: let is_uncommitted = true;
        is_past(now, named) && is_uncommitted
    };
    if known.has_refused || known.gone.is_some_and(refuses) {
        return Verdict::Refused;
    }
    let Some(target) = &known.target else { return Verdict::Unknown };
    if refuses(target.epoch) {
        return Verdict::Refused;
    }
    let has_source =
        known.source.as_ref().is_some_and(|source| source.phase != RegionPhase::Tombstone);
    if !has_source {
        return Verdict::Unknown;
    }
    // The member as of an earlier epoch may have been replaced by one that is yet to come.
    let is_removed = target.phase == RegionPhase::Tombstone && target.epoch == named;
    match is_past(target.epoch, named) {
        true => {
            let by_snapshot = known.skipped.iter().any(|skipped| skipped.passes(named));
            // bug replica.rollback_by_snapshot: let by_snapshot = false;
            if by_snapshot { Verdict::Unknown } else { Verdict::Refused }
        }
        // Invariant: a tombstone at the named epoch is no proof. Its target may have committed the
        // merge without having applied it here.
        // bug replica.rollback_by_tombstone: `Verdict::TargetLost` is `Verdict::Refused`
        false if is_removed => Verdict::TargetLost,
        false => Verdict::Unknown,
    }
}

/// Epochs between which a region changed on a store by a snapshot, not by entries of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skipped {
    /// Last epoch before, as applied here; zero where the region was not here.
    pub from: RegionEpoch,
    pub to: RegionEpoch,
}

impl Skipped {
    fn passes(&self, epoch: RegionEpoch) -> bool {
        is_past(self.to, epoch) && !is_past(self.from, epoch)
    }
}

fn is_past(now: RegionEpoch, epoch: RegionEpoch) -> bool {
    now != epoch && now.conf_version >= epoch.conf_version && now.version >= epoch.version
}

pub(crate) fn preparation(source: RegionId, phase: &RegionPhase) -> Option<Preparation> {
    match *phase {
        RegionPhase::Merging { target, prepared, term, target_epoch } => {
            Some(Preparation { source, prepared: (prepared, term), target, target_epoch })
        }
        RegionPhase::Normal | RegionPhase::Tombstone => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Refused, TargetLost, Unknown};

    fn at(conf_version: u64, version: u64) -> RegionEpoch {
        RegionEpoch { conf_version, version }
    }

    fn region(epoch: RegionEpoch, phase: RegionPhase) -> Option<Region> {
        Some(Region { epoch, phase, ..Region::default() })
    }

    #[test]
    fn only_a_target_that_passed_the_named_epoch_without_the_commit_is_proof() {
        let live = |conf, version| region(at(conf, version), RegionPhase::Normal);
        let removed = |conf, version| region(at(conf, version), RegionPhase::Tombstone);
        let (source, merged) = (live(1, 3), removed(1, 4));
        // Source, target, epochs skipped by a snapshot, gone as of; the epoch named is 4.5.
        let rows = [
            ("the target never came", &source, None, None, None, Unknown),
            ("the target is behind", &source, live(3, 5), None, None, Unknown),
            ("the target is as named", &source, live(4, 5), None, None, Unknown),
            ("another membership", &source, live(5, 5), None, None, Refused),
            ("that, by snapshot", &source, live(5, 5), Some((at(0, 0), at(5, 5))), None, Refused),
            ("another range, by the log", &source, live(4, 6), None, None, Refused),
            ("snapshot before", &source, live(4, 6), Some((at(0, 0), at(4, 5))), None, Refused),
            ("snapshot later", &source, live(4, 8), Some((at(4, 6), at(4, 8))), None, Refused),
            ("snapshot over it", &source, live(4, 6), Some((at(4, 5), at(4, 6))), None, Unknown),
            ("later, after that", &source, live(6, 9), Some((at(0, 0), at(4, 6))), None, Unknown),
            ("committed", &merged, live(4, 6), None, None, Unknown),
            ("the source never came", &None, live(4, 6), None, None, Unknown),
            ("removed as named", &source, removed(4, 5), None, None, TargetLost),
            ("removed before", &source, removed(3, 5), None, None, Unknown),
            ("removed later", &source, removed(5, 6), None, None, Refused),
            ("removed, merged here", &merged, removed(4, 5), None, None, Unknown),
            ("gone in a later membership", &source, removed(4, 5), None, Some(at(6, 5)), Refused),
            ("gone, another range", &source, removed(4, 5), None, Some(at(6, 6)), TargetLost),
            ("gone before", &source, removed(3, 5), None, Some(at(4, 5)), Unknown),
        ];
        for (name, source, target, skipped, gone, expected) in rows {
            let skipped = skipped.map(|(from, to)| Skipped { from, to }).into_iter().collect();
            let known = Known { source: source.clone(), target, skipped, gone, ..Known::default() };
            assert_eq!(judge(&known, at(4, 5)), expected, "{name}");
        }
        let recorded = Known { has_refused: true, ..Known::default() };
        assert_eq!(judge(&recorded, at(4, 5)), Refused, "by the record of its merges");
    }
}
