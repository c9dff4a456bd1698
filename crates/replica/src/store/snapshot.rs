//! Receipt of snapshots. A leader, or a voter where there can be no leader yet, offers one; its
//! pairs are staged and installed at once, and the replica starts again from it.
//!
//! | step | function | on |
//! |---|---|---|
//! | 1 a peer pins a view of what it has applied, and offers it | `Replica::send_snapshot` | loop of the sender |
//! | 2 the offer is accepted or refused | `RaftStore::snapshot_offered` | loop |
//! | 3 chunks arrive and are staged under temporary names | `StorageEngine::receive` | tasks of both nodes |
//! | 4 all is staged: it waits for the loop | `RaftStore::snapshot_received` | loop |
//! | 5 it is checked again, and waits for records in flight | `RaftStore::install_snapshots` | loop, in `poll` |
//! | 6 one edit of the manifest replaces the range, then the log starts at the snapshot's entry | `StorageEngine::install` | loop |
//! | 7 the replica starts again from it; its hard state goes into the next batch | `RaftStore::install` | loop |
//! | 8 the sender gets an acknowledgement: the pairs are durable since step 6 | `Replica::send` | loop |
//!
//! Writes and reads of other regions go on throughout; step 6 stops the loop for a moment, because step 3 flushed
//! what it would flush.
//!
//! What each step keeps:
//! - 1: the view holds exactly the entries up to the header's: later ones would be applied a second time.
//! - 2 and 5: the snapshot is newer than the log here, is for this peer and no removed one, and takes no keys of another
//!   region, unless that one was merged into it. In between all of this may change.
//! - 3: nothing of it is visible, and a receipt that ends leaves nothing.
//! - 5: records of the old log are not written after the new log's start.
//! - 6: a crash leaves the old range with its log, or the new one, for which opening writes the start of the log again.
//! - 7: the vote of the snapshot's term is kept: a replica that starts again breaks no promise.

use super::RaftStore;
use crate::input::RequestId;
use crate::log::Start;
use crate::messages::{Body, RaftKind, RaftMessage, SnapshotHeader};
use crate::output::{Busy, Done, Event, Refusal, Rejection};
use crate::peer::{Replica, snapshot_ranges};
use crate::{CommittedMerges, admin, validate};
use stele_storage::StorageEngine;
use stele_types::{
    Error, HardState, KeyRange, LogIndex, Record, Region, RegionId, RegionKind, RegionPhase,
    Result, Term,
};

impl<E: StorageEngine> RaftStore<E> {
    pub(super) fn snapshot_offered(&mut self, id: RequestId, header: &SnapshotHeader) {
        match self.check_snapshot(header) {
            Ok(()) if self.leaving.has_overlap(&header.region) => {
                let reason = "the pairs of a removed replica are still being dropped";
                self.ctx.reject(id, Busy::Wait { reason });
            }
            Ok(()) if self.has_arrived(header.region.id) => {
                let reason = "another snapshot of the region waits to be installed";
                self.ctx.reject(id, Busy::Wait { reason });
            }
            Ok(()) if !self.has_room_for(header) => self.ctx.reject(id, Busy::DiskFull),
            Ok(()) => {
                let ranges = snapshot_ranges(&header.region);
                self.ctx.done(id, Done::SnapshotAccepted { ranges });
            }
            Err(refusal) => {
                // The entries of a snapshot are committed.
                let sound = validate::check_snapshot(header, Term(0), LogIndex(0)).is_ok();
                if let Some(replica) = self.replicas.get_mut(&header.region.id).filter(|_| sound) {
                    replica.learn_committed(header.at);
                    replica.acknowledge_held(&mut self.ctx, header);
                    self.dirty.insert(header.region.id);
                }
                // An overlapping replica may have been merged elsewhere without having learned it.
                for other in self.overlapping(&header.region) {
                    if let Some(replica) = self.replicas.get(&other) {
                        replica.query_merge_outcome(&mut self.ctx);
                    }
                }
                self.ctx.reject(id, refusal);
            }
        }
    }

    /// Returns whether the pairs of a snapshot can be staged without the reserve of garbage collection.
    /// The placement group needs little and is needed to free space.
    fn has_room_for(&self, header: &SnapshotHeader) -> bool {
        let bytes = header.bytes + self.ctx.batches.entry_bytes();
        // bug replica.snapshot_uses_reserve: `self.ctx.engine.admit_append(bytes)` is `true`
        header.region.kind == RegionKind::System || self.ctx.engine.admit_append(bytes)
    }

    /// Keeps a received snapshot until it is installed. Invariant: at most one snapshot of a region
    /// waits, the one of the newest peer with the most entries. Dropping the other removes its pairs.
    /// Test: `one_snapshot_of_a_region_waits_and_the_sender_of_another_is_told_to_wait`.
    pub(super) fn snapshot_received(&mut self, header: SnapshotHeader, ingest: E::Ingest) {
        let extent = |header: &SnapshotHeader| (header.to.id, header.at.0);
        let id = header.region.id;
        // bug replica.snapshots_staged_without_bound: `other.region.id == id` is `false`
        let is_same = |(other, _): &&mut (SnapshotHeader, E::Ingest)| other.region.id == id;
        match self.arrived.iter_mut().find(is_same) {
            None => self.arrived.push((header, ingest)),
            Some(waiting) if extent(&waiting.0) < extent(&header) => *waiting = (header, ingest),
            Some(_) => {}
        }
    }

    fn has_arrived(&self, region: RegionId) -> bool {
        // bug replica.snapshots_staged_without_bound: return false;
        self.arrived.iter().any(|(header, _)| header.region.id == region)
    }

    /// Checks that a snapshot is for a replica that is here or may be created here, is newer than
    /// its state, and takes no other region's keys.
    fn check_snapshot(&self, header: &SnapshotHeader) -> Result<(), Rejection> {
        let region = &header.region;
        let here = self.replicas.get(&region.id);
        let (term, committed) =
            here.map_or((Term(0), LogIndex(0)), |replica| (replica.term(), replica.committed()));
        if header.to.store != self.ctx.options.store {
            return Err(Refusal::Invalid("addressed to another store".into()).into());
        }
        if let Err(reason) = validate::check_snapshot(header, term, committed) {
            return Err(Refusal::Invalid(reason.into()).into());
        }
        // Entries after it may have been acknowledged: the log continues, it does not start again.
        let held = here.is_some_and(|replica| replica.has_entry(header.at));
        // bug replica.install_over_log: never
        if held {
            return Err(Refusal::Invalid("the log here already holds its entry".into()).into());
        }
        let conf_version = region.epoch.conf_version;
        if self.tombstone_of(region.id, header.to.id, conf_version).is_some() {
            return Err(Refusal::RegionNotFound.into());
        }
        if let Some(replica) = here.filter(|replica| replica.peer.id != header.to.id) {
            let (asked, actual) = (header.to.id, replica.peer.id);
            return Err(Refusal::MismatchPeer { asked, actual }.into());
        }
        let all_merged =
            self.overlapping(region).iter().all(|other| self.is_merged_into(other, region));
        // bug replica.install_over_neighbour: `all_merged` is `true`
        match all_merged {
            true => Ok(()),
            false => {
                Err(Busy::Wait { reason: "another replica here owns some of the keys" }.into())
            }
        }
    }

    /// Returns the other regions here that own keys of this one.
    fn overlapping(&self, region: &Region) -> Vec<RegionId> {
        let others = self.replicas.values().map(|replica| &replica.region);
        let others = others.filter(|it| it.id != region.id && it.kind == region.kind);
        others.filter(|it| it.range.overlaps(&region.range)).map(|it| it.id).collect()
    }

    /// Returns whether another region here was merged into the snapshot's region, which holds all
    /// of it.
    fn is_merged_into(&self, other: &RegionId, region: &Region) -> bool {
        let Some(replica) = self.replicas.get(other) else { return false };
        let (source, target) = (&replica.region, region);
        let inside = target.range.contains(&source.range.start)
            && (target.range.end.is_empty()
                || (!source.range.end.is_empty() && source.range.end <= target.range.end));
        let prepared = matches!(
            source.phase, RegionPhase::Merging { target, .. } if target == region.id);
        (inside || replica.is_merge_confirmed())
            && prepared
            && target.epoch.version > source.epoch.version
    }

    /// Installs the received snapshots, except those that must wait.
    pub(super) fn install_snapshots(&mut self) -> Result<()> {
        for (header, ingest) in std::mem::take(&mut self.arrived) {
            let id = header.region.id;
            if self.check_snapshot(&header).is_err() {
                // Dropping the ingest removes its pairs. The leader retries if necessary.
                continue;
            }
            // Records in flight belong before the log's new start, and a tombstone in flight would
            // overwrite the new descriptor.
            let under_way = self.ctx.batches.has_records_of(id)
                || self.replicas.get(&id).is_some_and(|replica| !replica.is_durable());
            if under_way || self.leaving.has_overlap(&header.region) {
                self.arrived.push((header, ingest));
                continue;
            }
            let region = header.region.clone();
            let before = self.replicas.get(&id).map(|replica| replica.region.clone());
            if self.install(header, ingest)? {
                before.iter().for_each(|before| self.keep_orphaned(before, &region));
                self.destroy_merged(&region)?;
            }
        }
        Ok(())
    }

    /// Destroys regions here that the installed one now holds. After the installation, not before:
    /// its log may need them while it is behind their end. After a crash in between, opening
    /// destroys them.
    fn destroy_merged(&mut self, region: &Region) -> Result<()> {
        for id in self.overlapping(region) {
            let Some(replica) = self.replicas.get(&id) else { continue };
            let source = admin::tombstone(&replica.region);
            // The target may have split off part of its keys again.
            self.keep_orphaned(&source, region);
            self.destroy(&source)?;
        }
        Ok(())
    }

    /// Installs a snapshot. Returns whether it did: without room on the device everything stays
    /// unchanged, the store goes on, and the leader retries.
    fn install(&mut self, header: SnapshotHeader, ingest: E::Ingest) -> Result<bool> {
        let SnapshotHeader { region, at, leader_term, from, merges, .. } = header;
        let id = region.id;
        match self.ctx.engine.install(id, at, ingest) {
            // bug replica.stop_on_full_install: never
            Err(Error::NoSpace(_) | Error::Busy(_)) => {
                return Ok(false);
            }
            installed => installed?,
        }
        let before = self.replicas.remove(&id);
        let vote = before.as_ref().map(|replica| replica.vote_in(leader_term)).unwrap_or_default();
        let owned = before.as_ref().map(|replica| (*replica.region).clone());
        let known = owned.as_ref().or_else(|| self.tombstones.get(&id));
        let from_epoch = known.map(|region| region.epoch).unwrap_or_default();
        if let Some(mut replica) = before {
            replica.abandon(&mut self.ctx);
        }
        self.ctx.readers.remove(id);
        self.ctx.batches.drop_piggybacked(id);
        // The sender's term was seen, and the snapshot's entries are committed. A crash before this
        // is durable leaves the older term: opening uses at least the term of the log.
        let hard_state = HardState { term: leader_term, vote, commit: at.0 };
        let start = Start { truncated: at, last: at, applied: at.0, hard_state };
        self.tombstones.remove(&id);
        let replica = Replica::new(&mut self.ctx, region.clone(), &start)?;
        self.note_installed(&region, from_epoch)?;
        let unknown = || CommittedMerges::since(region.epoch.version);
        self.ctx.keep_merges(id, merges.unwrap_or_else(unknown))?;
        self.ctx.batches.push(Record::HardState(id, hard_state));
        self.ctx.out.events.push(match owned {
            Some(_) => Event::RegionChanged(region.clone()),
            None => Event::RegionCreated(region.clone()),
        });
        let mut answer = RaftMessage::new(RaftKind::AppendResponse, leader_term);
        answer.index = at.0;
        answer.commit = at.0;
        replica.send(&mut self.ctx, from, Body::Raft(answer));
        self.replicas.insert(id, replica);
        self.schedule(id);
        Ok(true)
    }
}

// Orphaned ranges: pairs that no region here owns and that may still be needed.
//
// A replica that missed splits continues from a snapshot of its smaller region. The other pairs it
// had may be the last intact copy of values that the split children's replicas lost, and no
// snapshot of these children can be made before they have requested copies here. The pairs are
// outdated, so nothing else reads them. They stay until a replica that owns their keys is created
// here, which replaces them, but at most for [`crate::Options::orphaned_kept_nanos`]. Only memory
// holds the ranges: opening drops the pairs.

/// Ranges of user keys, each with the monotonic nanoseconds at which its pairs are dropped.
#[derive(Default)]
pub(super) struct OrphanedRanges(Vec<(KeyRange, u64)>);

impl OrphanedRanges {
    /// Returns the monotonic nanoseconds at which the next pairs are dropped.
    pub(super) fn drop_at(&self) -> Option<u64> {
        self.0.iter().map(|(_, drop_at)| *drop_at).min()
    }

    /// Returns the ranges as regions, for the search for unowned pairs.
    pub(super) fn parts(&self) -> Vec<Region> {
        self.0.iter().map(|(range, _)| part(range)).collect()
    }
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the user keys with pairs that no region here owns and that are kept.
    pub fn orphaned_ranges(&self) -> Vec<KeyRange> {
        self.orphaned_ranges.0.iter().map(|(range, _)| range.clone()).collect()
    }

    /// Keeps what a replica owned that a snapshot of `region` replaced, except what this region owns.
    pub(super) fn keep_orphaned(&mut self, before: &Region, region: &Region) {
        if before.kind == RegionKind::Data {
            let drop_at = self.ctx.now.monotonic_nanos + self.ctx.options.orphaned_kept_nanos;
            let left = before.range.without(&region.range).into_iter();
            self.orphaned_ranges.0.extend(left.map(|range| (range, drop_at)));
        }
    }

    /// Removes keys that regions here own now, and drops the pairs that were kept long enough.
    pub(super) fn settle_orphaned_ranges(&mut self) -> Result<()> {
        if self.orphaned_ranges.0.is_empty() {
            return Ok(());
        }
        let (mut kept, mut unneeded) = (Vec::new(), Vec::new());
        for (range, drop_at) in std::mem::take(&mut self.orphaned_ranges.0) {
            let here = self.replicas.values().map(|replica| &replica.region);
            let here = here.filter(|region| region.kind == RegionKind::Data);
            let left = here.fold(vec![range], |left, region| {
                left.iter().flat_map(|left| left.without(&region.range)).collect()
            });
            let is_over = self.ctx.now.monotonic_nanos >= drop_at;
            // bug replica.rest_kept_for_ever: let is_over = false;
            // bug replica.rest_dropped: always
            if is_over {
                unneeded.extend(left.iter().map(part));
            } else {
                kept.extend(left.into_iter().map(|left| (left, drop_at)));
            }
        }
        self.orphaned_ranges.0 = kept;
        self.drop_or_wait(unneeded)
    }
}

fn part(range: &KeyRange) -> Region {
    Region { range: range.clone(), ..Region::default() }
}
