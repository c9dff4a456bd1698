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
//!
//! Records of what each region did on this store, see [`crate::peer`], the decision of a merge: the epochs
//! between which it changed by a snapshot, so that what it did in between was not applied here, and the
//! merges that it committed.
//!
//! ```text
//! installed := (from to)*        from, to := conf_version version        (varints)
//! ```

use super::RaftStore;
use crate::context::Context;
use crate::input::RequestId;
use crate::log::Start;
use crate::messages::{Body, RaftKind, RaftMessage, SnapshotHeader};
use crate::output::{Busy, Done, Event, Refusal, Rejection};
use crate::peer::{Replica, Skipped, snapshot_ranges};
use crate::{CommittedMerges, admin, validate};
use std::collections::BTreeMap;
use stele_storage::{Pages, StorageEngine};
use stele_types::{
    Error, HardState, KeyRange, LogIndex, Record, Region, RegionEpoch, RegionId, RegionKind,
    RegionPhase, Result, Term, keyspace, varint,
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

impl<E: StorageEngine> RaftStore<E> {
    /// Records that a snapshot brought `region`, which was at the epoch `from` here. Invariant: the record
    /// is durable before the hard state of the installation and any entry after it. A crash before that
    /// leaves a log without entries and a commit index below its start, and opening records the epoch of
    /// such a region.
    pub(super) fn note_installed(&mut self, region: &Region, from: RegionEpoch) -> Result<()> {
        // bug replica.install_not_recorded: return Ok(());
        let known = self.ctx.installed.entry(region.id).or_default();
        push(known, Skipped { from, to: region.epoch });
        let pair = (keyspace::installed_key(region.id), encode(known).into());
        self.ctx.journal.put(&mut self.ctx.batches, &[pair])
    }

    /// Records that a region with an empty log was installed as it is now, unless that is recorded.
    pub(super) fn note_installed_at_open(&mut self, region: &Region) -> Result<()> {
        let known = self.ctx.installed.get(&region.id).and_then(|known| known.last());
        match known.is_some_and(|known| known.to == region.epoch) {
            true => Ok(()),
            false => self.note_installed(region, RegionEpoch::default()),
        }
    }
}

impl<E: StorageEngine> Context<E> {
    /// Records a change of a region's version, which took over `source` if there is one. Invariant: the record of
    /// a committed merge is durable no later than a commit index that covers it, so that it is not missed.
    pub(crate) fn note_version(
        &mut self,
        region: RegionId,
        (before, after): (u64, u64),
        source: Option<RegionId>,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        let known = self.merges.get(&region).cloned();
        let mut merges = known.unwrap_or_else(|| CommittedMerges::since(before));
        merges.note(before, after, source);
        self.keep_merges(region, merges)
    }

    pub(crate) fn keep_merges(&mut self, region: RegionId, merges: CommittedMerges) -> Result<()> {
        let mut encoded = Vec::new();
        merges.put(&mut encoded);
        self.merges.insert(region, merges);
        // bug replica.merges_in_memory: return Ok(());
        self.journal.put(&mut self.batches, &[(keyspace::merges_key(region), encoded.into())])
    }
}

const RECORDS_MAX: usize = 16;

/// Adds a record. Of too many the two oldest become one, which covers what is between them too.
fn push(known: &mut Vec<Skipped>, next: Skipped) {
    known.push(next);
    if known.len() > RECORDS_MAX {
        let oldest = known.remove(0);
        known.iter_mut().take(1).for_each(|second| second.from = oldest.from);
    }
}

pub(super) fn read_installed<E: StorageEngine>(ctx: &mut Context<E>) -> Result<()> {
    ctx.installed = read_all(&*ctx.engine, keyspace::installed_keys(), decode)?;
    ctx.merges = read_all(&*ctx.engine, keyspace::merges_keys(), CommittedMerges::decode)?;
    Ok(())
}

fn read_all<E: StorageEngine, T>(
    engine: &E,
    range: KeyRange,
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<BTreeMap<RegionId, T>> {
    let view = engine.view()?;
    let mut found = BTreeMap::new();
    let mut pages = Pages::of_range(&view, range);
    while let Some(page) = pages.next_page()? {
        for pair in &page {
            let region = keyspace::region_of_record_key(&pair.key);
            let Some((region, record)) = region.zip(decode(&pair.value)) else {
                let reason = "malformed record of an installed snapshot, or of committed merges";
                return Err(Error::invalid(reason));
            };
            found.insert(region, record);
        }
    }
    Ok(found)
}

fn encode(known: &[Skipped]) -> Vec<u8> {
    let mut out = Vec::new();
    for epoch in known.iter().flat_map(|skipped| [skipped.from, skipped.to]) {
        varint::put(&mut out, epoch.conf_version);
        varint::put(&mut out, epoch.version);
    }
    out
}

fn decode(mut bytes: &[u8]) -> Option<Vec<Skipped>> {
    let mut out = Vec::new();
    let epoch = |rest: &mut &[u8]| {
        let conf_version = varint::take(rest)?;
        Some(RegionEpoch { conf_version, version: varint::take(rest)? })
    };
    while !bytes.is_empty() {
        out.push(Skipped { from: epoch(&mut bytes)?, to: epoch(&mut bytes)? });
    }
    (!out.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(from: u64, to: u64) -> Skipped {
        let epoch = |version| RegionEpoch { conf_version: 300, version };
        Skipped { from: epoch(from), to: epoch(to) }
    }

    #[test]
    fn records_survive_the_round_trip_and_every_cut_is_refused() {
        let known = [skipped(0, 1 << 40)];
        let bytes = encode(&known);
        assert_eq!(decode(&bytes).as_deref(), Some(&known[..]));
        assert!((0..bytes.len()).all(|cut| decode(&bytes[..cut]).is_none()));
        assert_eq!(decode(&[&bytes[..], b"x"].concat()), None);
    }

    #[test]
    fn the_oldest_of_too_many_records_become_one_that_covers_them() {
        let mut known = Vec::new();
        (0..20).for_each(|at| push(&mut known, skipped(10 * at, 10 * at + 5)));
        assert_eq!(known.len(), RECORDS_MAX);
        assert_eq!((known[0], known[1]), (skipped(0, 45), skipped(50, 55)));
    }
}
