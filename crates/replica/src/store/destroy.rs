//! Creation and removal of replicas. The tombstone and the end of the log of a removed replica
//! become durable in one batch, then its pairs are dropped. Opening drops what a crash leaves of
//! them: pairs that no region here owns.

use super::RaftStore;
use crate::context::StoreRequest;
use crate::log::Start;
use crate::messages::PeerMessage;
use crate::output::Event;
use crate::peer::Replica;
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{
    Error, HardState, KeyRange, LogIndex, Mark, Record, Region, RegionId, RegionKind, RegionPhase,
    Result, Term, keyspace,
};

/// Removed replicas with pairs that are not dropped yet.
#[derive(Default)]
pub(super) struct Leaving {
    /// Tombstone waits for the next batch.
    next: Vec<Region>,
    /// Tombstone is in the batch in flight.
    under_way: Vec<Region>,
    /// Tombstone is durable; the device had no room for dropping the pairs.
    waiting: Vec<Region>,
    retry_at_nanos: u64,
}

impl Leaving {
    pub(super) fn handed_out(&mut self) {
        self.under_way.append(&mut self.next);
    }

    /// Returns the monotonic nanoseconds at which dropping is tried again.
    pub(super) fn retry_at(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.retry_at_nanos)
    }

    /// Returns whether a replica of the region, or one with some of its keys, is being removed.
    pub(super) fn has_overlap(&self, region: &Region) -> bool {
        let has_overlap = |left: &Region| {
            let keys = left.kind == region.kind && left.range.overlaps(&region.range);
            left.id == region.id || keys
        };
        self.next.iter().chain(&self.under_way).chain(&self.waiting).any(has_overlap)
    }
}

impl<E: StorageEngine> RaftStore<E> {
    pub(super) fn run_store_requests(&mut self) -> Result<()> {
        while let Some(request) = self.ctx.store_requests.pop() {
            match request {
                StoreRequest::Create { region, after, campaign } => {
                    self.create(region, after, campaign)?;
                }
                StoreRequest::Destroy(region) => self.destroy(&region)?,
                StoreRequest::AskElsewhere(region) => self.ask_elsewhere(region),
                StoreRequest::Schedule(region) => self.schedule(region),
                StoreRequest::RefuseMerge(preparation) => self.refuse_merge(&preparation),
                StoreRequest::CommitSource { source, prepared } => {
                    if let Some(replica) = self.replicas.get_mut(&source) {
                        replica.learn_committed(prepared);
                    }
                    self.schedule(source);
                }
            }
        }
        Ok(())
    }

    /// Creates the replica of a split child, if it has one on this store.
    ///
    /// Invariant: a split creates no replica that was removed from here. The child may have come by a
    /// snapshot and left before the replica of its parent here applies the split. Created again, it
    /// would have forgotten its votes and its log.
    /// Test: `a_split_brings_no_removed_child_back`.
    fn create(&mut self, region: Region, after: (LogIndex, Term), campaign: bool) -> Result<()> {
        let id = region.id;
        let Some(here) = region.peer_on(self.ctx.options.store).copied() else { return Ok(()) };
        if self.replicas.contains_key(&id) {
            return Ok(());
        }
        let removed = self.tombstone_of(id, here.id, region.epoch.conf_version).cloned();
        // bug replica.split_over_tombstone: never
        if let Some(tombstone) = removed {
            return self.bury_again(region, tombstone);
        }
        self.tombstones.remove(&id);
        let start = match self.ctx.engine.progress(id).filter(|known| !known.destroyed) {
            // Its log is durable, its descriptor was lost in a crash.
            Some(known) => Start::of(&known),
            None => Start::after(after.0, after.1),
        };
        let first_records = super::open::first_records(&region);
        let mut replica = Replica::new(&mut self.ctx, region, &start)?;
        if start.last == after {
            first_records.into_iter().for_each(|record| self.ctx.batches.push(record));
            replica.start_new_log(&mut self.ctx, campaign);
        }
        replica.announce(&mut self.ctx);
        self.replicas.insert(id, replica);
        self.schedule(id);
        self.deliver_early_vote(id);
        Ok(())
    }

    pub(super) fn destroy(&mut self, last_known: &Region) -> Result<()> {
        let id = last_known.id;
        let Some(mut replica) = self.replicas.remove(&id) else { return Ok(()) };
        self.ctx.readers.remove(id);
        replica.abandon(&mut self.ctx);
        self.dirty.remove(id);
        self.ticking.remove(&id);
        self.report_changes.note(id);
        let mut tombstone = last_known.clone();
        tombstone.phase = RegionPhase::Tombstone;
        if tombstone.peer(replica.peer.id).is_none() {
            // The peer that was here: no message for it, or for an earlier one, creates it again.
            tombstone.peers.retain(|other| other.store != replica.peer.store);
            tombstone.peers.push(replica.peer);
        }
        let descriptor = (keyspace::region_key(id), tombstone.encode());
        // bug replica.destroy_without_tombstone: skip
        self.ctx.journal.put(&mut self.ctx.batches, &[descriptor])?;
        let applied = HardState { commit: replica.applied(), ..replica.current_hard_state() };
        // bug replica.destroy_without_tombstone: skip
        self.ctx.batches.push_end(id, applied);
        self.tombstones.insert(id, tombstone);
        self.leaving.next.push(last_known.clone());
        self.ctx.out.events.push(Event::RegionDestroyed(id));
        Ok(())
    }

    /// Restores the tombstone that a split overwrote with the descriptor of a child that was removed
    /// from here, and drops what the parent held of it.
    fn bury_again(&mut self, child: Region, tombstone: Region) -> Result<()> {
        let descriptor = (keyspace::region_key(child.id), tombstone.encode());
        self.ctx.journal.put(&mut self.ctx.batches, &[descriptor])?;
        self.ctx.batches.push(Record::Mark(child.id, Mark::Destroy));
        self.leaving.next.push(child);
        Ok(())
    }

    pub(super) fn drop_left(&mut self) -> Result<()> {
        let left = std::mem::take(&mut self.leaving.under_way);
        self.drop_or_wait(left)
    }

    /// Retries drops that found no room, when due.
    pub(super) fn drop_waiting(&mut self) -> Result<()> {
        if self.leaving.retry_at().is_none_or(|at| self.ctx.now.monotonic_nanos < at) {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.leaving.waiting);
        self.drop_or_wait(waiting)
    }

    /// Drops the pairs of regions. On a full device a failed drop is retried later, and until then
    /// no other replica takes these keys.
    pub(super) fn drop_or_wait(&mut self, left: Vec<Region>) -> Result<()> {
        match self.drop_unowned(&left) {
            // bug replica.stop_on_full_drop: never
            Err(Error::NoSpace(_) | Error::Busy(_)) => {
                let options = &self.ctx.options;
                self.leaving.retry_at_nanos =
                    self.ctx.now.monotonic_nanos + options.device_nanos(1);
                self.leaving.waiting.extend(left);
                Ok(())
            }
            dropped => dropped,
        }
    }

    /// Drops the pairs of regions, except those that another region here owns or that are in an
    /// orphaned range.
    fn drop_unowned(&self, left: &[Region]) -> Result<()> {
        if left.is_empty() {
            return Ok(());
        }
        let orphaned_ranges = self.orphaned_ranges.parts();
        let owners = self.replicas.values().map(|replica| &*replica.region).chain(&orphaned_ranges);
        let owners: Vec<&Region> = owners.collect();
        let gaps = left.iter().flat_map(|region| {
            let gaps = gaps(region.kind, &region.range, &owners).into_iter();
            gaps.flat_map(|gap| Region { range: gap, ..region.clone() }.engine_ranges())
        });
        let ranges = disjoint(gaps);
        if ranges.is_empty() { Ok(()) } else { self.ctx.engine.drop_ranges(&ranges) }
    }

    /// Destroys the replica here if the message is for a newer peer that has replaced it. Returns
    /// whether it did.
    pub(super) fn replace_stale(&mut self, message: &PeerMessage) -> Result<bool> {
        let Some(replica) = self.replicas.get(&message.region) else { return Ok(false) };
        let newer = message.to.id > replica.peer.id
            && message.epoch.conf_version > replica.region.epoch.conf_version;
        if newer {
            let region = (*replica.region).clone();
            self.destroy(&region)?;
        }
        Ok(newer)
    }

    /// Returns the tombstone that covers a peer: one of the same or a later peer of this store, or
    /// one of a membership in which this store no longer has a peer.
    pub(super) fn tombstone_of(
        &self,
        region: RegionId,
        peer: stele_types::PeerId,
        conf_version: u64,
    ) -> Option<&Region> {
        let tombstone = self.tombstones.get(&region)?;
        let is_covered = match tombstone.peer_on(self.ctx.options.store) {
            Some(former) => former.id >= peer,
            None => conf_version <= tombstone.epoch.conf_version,
        };
        is_covered.then_some(tombstone)
    }
}

/// Returns the union of the ranges as disjoint ranges, ascending: several replicas may have left
/// the same keys.
fn disjoint(ranges: impl Iterator<Item = KeyRange>) -> Vec<KeyRange> {
    let mut disjoint: Vec<KeyRange> = Vec::new();
    for range in ranges {
        let new = disjoint.iter().fold(vec![range], |new, taken| {
            new.iter().flat_map(|part| part.without(taken)).collect()
        });
        disjoint.extend(new);
    }
    disjoint.sort_by(|a, b| a.start.cmp(&b.start));
    disjoint
}

fn gaps(kind: RegionKind, range: &KeyRange, owners: &[&Region]) -> Vec<KeyRange> {
    let mut owned: Vec<&KeyRange> =
        owners.iter().filter(|region| region.kind == kind).map(|region| &region.range).collect();
    owned.retain(|other| other.overlaps(range));
    owned.sort_by(|a, b| a.start.cmp(&b.start));
    let mut out = Vec::new();
    let mut start = range.start.clone();
    for other in owned {
        if start < other.start {
            out.push(KeyRange::new(start.clone(), other.start.clone()));
        }
        if other.end.is_empty() {
            return out;
        }
        start = start.max(other.end.clone());
    }
    let rest = KeyRange::new(start, range.end.clone());
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// Returns the ranges, ascending, with pairs that none of these regions owns, or with records of
/// orphaned ranges that earlier versions wrote. Includes ranges that cannot be read: they must be
/// emptied too.
pub(super) fn unowned<E: StorageEngine>(engine: &E, live: &[Region]) -> Result<Vec<KeyRange>> {
    let owners: Vec<&Region> = live.iter().collect();
    let view = engine.view()?;
    let mut out = Vec::new();
    let data = gaps(RegionKind::Data, &KeyRange::all(), &owners);
    let system = gaps(RegionKind::System, &KeyRange::all(), &owners);
    let all = [(RegionKind::Data, data), (RegionKind::System, system)];
    let all = all.into_iter().flat_map(|(kind, gaps)| gaps.into_iter().map(move |gap| (kind, gap)));
    let ranges =
        all.flat_map(|(kind, range)| Region { kind, range, ..Region::default() }.engine_ranges());
    let mut gaps: Vec<KeyRange> = ranges.collect();
    gaps.sort_by(|a, b| a.start.cmp(&b.start));
    let former = Some(keyspace::former_orphaned_range_keys());
    // bug replica.former_records_kept: let former = None;
    for range in former.into_iter().chain(gaps) {
        let any = ScanOptions { keys_only: true, ..ScanOptions::new(range.clone(), 1) };
        let holds_any = match view.scan(&any) {
            Ok(found) => !found.is_empty(),
            // bug replica.lost_gap_refused: never
            Err(error) if error.is_damage() => true,
            Err(error) => return Err(error),
        };
        if holds_any {
            out.push(range);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: &'static str, end: &'static str) -> Region {
        Region { range: KeyRange::new(start, end), ..Region::default() }
    }

    #[test]
    fn keys_that_several_replicas_left_are_dropped_once() {
        let range = KeyRange::new;
        let left = [range("f", "h"), range("b", "d"), range("a", "c"), range("c", "g")];
        let found = disjoint(left.into_iter());
        let expected = [("a", "b"), ("b", "d"), ("d", "f"), ("f", "h")];
        assert_eq!(found, expected.map(|(start, end)| range(start, end)));
    }

    #[test]
    fn gaps_are_what_no_region_owns() {
        let (a, b) = (region("b", "d"), region("f", ""));
        let found = gaps(RegionKind::Data, &KeyRange::all(), &[&b, &a]);
        assert_eq!(found, [KeyRange::new("", "b"), KeyRange::new("d", "f")]);
        let found = gaps(RegionKind::Data, &KeyRange::new("c", "e"), &[&a, &b]);
        assert_eq!(found, [KeyRange::new("d", "e")]);
        assert_eq!(gaps(RegionKind::System, &KeyRange::all(), &[&a]), [KeyRange::all()]);
        assert!(gaps(RegionKind::Data, &KeyRange::new("c", "d"), &[&a]).is_empty());
    }
}
