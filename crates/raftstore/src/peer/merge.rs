//! Merge of a region, the source, into its neighbour, the target, on the same stores.
//!
//! 1. A prepare entry in the source's log: after it the source takes no writes, and once it is
//!    applied no reads. When all replicas hold the log up to it, the leader reports that to all of
//!    them.
//! 2. A commit entry in the target's log takes over the source. It is proposed if the target still
//!    has its epoch of the preparation and the local source is prepared and replicated to all its
//!    replicas.
//! 3. Each store applies the commit entry when its source is applied up to the preparation. The
//!    preparation is committed, whatever the source's own leader has reported so far. Then the
//!    source is destroyed.
//!
//! The preparation is rolled back only if the target is known to have another epoch: the target's
//! log decides between the two, once.
//!
//! At open, each region's entries are applied up to its durable commit index, and the source may be
//! behind. So the target's durable commit index stays below the commit entry until that is applied.
//! It then goes into the same batch as the end of the source's log, which checkpoints what is
//! applied.

use super::Peer;
use super::membership::Plan;
use crate::admin::{self, Change};
use crate::messages::Body;
use crate::output::{Busy, Refusal};
use crate::store::{Context, Effect, Pairs};
use std::sync::Arc;
use stele_storage::{EngineView, StorageEngine};
use stele_types::mutant;
use stele_types::{
    EntryRecord, LogIndex, PeerId, Region, RegionEpoch, RegionId, RegionPhase, Result, Term,
    keyspace,
};

/// Bytes of entries read at a time when a log is scanned.
const FETCH_BYTES: usize = 1 << 20;

impl<E: StorageEngine> Peer<E> {
    pub(super) fn plan_prepare_merge(
        &self,
        ctx: &Context<E>,
        target: &Region,
        at: LogIndex,
    ) -> Plan {
        self.check_phase()?;
        let here = region_here(ctx, target.id);
        let Some(here) = here.filter(|here| here.epoch == target.epoch) else {
            return Err(Busy::Wait {
                reason: "the target's replica on this store has another epoch",
            }
            .into());
        };
        let prepared = (at, self.term());
        let region = admin::prepare_merge(&self.region, &here, prepared);
        let region = region.map_err(Refusal::Invalid)?;
        Ok((Change::PrepareMerge { target: target.id, prepared }, vec![region]))
    }

    pub(super) fn plan_rollback_merge(&self, ctx: &Context<E>) -> Plan {
        let region = admin::rollback_merge(&self.region).map_err(Refusal::Invalid)?;
        let RegionPhase::Merging { target, target_epoch, .. } = self.region.phase else {
            return Err(Refusal::Invalid("the region is not merging".to_owned()).into());
        };
        // The applied descriptors: a target that committed the merge has written the source's
        // tombstone.
        let has_merged = descriptor(ctx, self.region.id)
            .is_none_or(|region| region.phase == RegionPhase::Tombstone);
        let decided = descriptor(ctx, target).is_some_and(|now| has_passed(&now, target_epoch));
        if has_merged || !decided && !mutant::active("raftstore.rollback_undecided") {
            return Err(Busy::Wait { reason: "the target may still commit the merge" }.into());
        }
        Ok((Change::RollbackMerge, vec![region]))
    }

    pub(super) fn plan_commit_merge(
        &self,
        ctx: &Context<E>,
        source: &Region,
        prepared: LogIndex,
    ) -> Plan {
        self.check_phase()?;
        if self.group.is_changing_members() {
            return Err(Busy::Wait { reason: "a membership change is in progress" }.into());
        }
        let here = region_here(ctx, source.id);
        let Some(source) = here else {
            return Err(Busy::Wait { reason: "this store has no replica of the source" }.into());
        };
        let RegionPhase::Merging { prepared: at, term, .. } = source.phase else {
            return Err(Busy::Wait {
                reason: "the source's replica on this store is not prepared",
            }
            .into());
        };
        let held = ctx.replicated_sources.get(&source.id) == Some(&(at, term));
        if at != prepared || !held && !mutant::active("raftstore.merge_unheld") {
            return Err(
                Busy::Wait { reason: "a replica of the source lacks part of its log" }.into()
            );
        }
        let (target, gone) =
            admin::commit_merge(&self.region, &source, at).map_err(Refusal::Invalid)?;
        let change = Change::CommitMerge { source: source.id, prepared: (at, term) };
        Ok((change, vec![target, gone]))
    }

    /// Returns whether the local source is applied up to its preparation. If not, queues an effect
    /// that commits the source's log up to it.
    pub(super) fn is_source_ready(
        &self,
        ctx: &mut Context<E>,
        source: RegionId,
        prepared: (LogIndex, Term),
    ) -> bool {
        if mutant::active("raftstore.merge_without_source") {
            return true;
        }
        let progress = ctx.engine.progress(source).filter(|progress| !progress.destroyed);
        if progress.is_none_or(|progress| progress.applied < prepared.0) {
            ctx.effects.push(Effect::CommitSource { source, prepared });
            return false;
        }
        true
    }

    /// Handles an applied commit entry: destroys the source.
    pub(super) fn merge_applied(&mut self, ctx: &mut Context<E>, others: Vec<Region>) {
        // The commit index goes into the batch that ends the source's log.
        ctx.batches.piggyback(self.region.id, self.current_hard_state());
        for region in others {
            ctx.replicated_sources.remove(&region.id);
            ctx.effects.push(Effect::Destroy { region, pairs: Pairs::Owned });
        }
    }

    /// Learns that an entry is committed, if the log holds it.
    pub fn learn_committed(&mut self, entry: (LogIndex, Term)) {
        self.group.learn_committed(entry);
    }

    /// Returns whether the log holds the entry.
    pub fn has_entry(&self, entry: (LogIndex, Term)) -> bool {
        self.group.has_entry(entry)
    }

    /// Handles a report that another store has a tombstone of this region at `version`. If that
    /// version is after the preparation, the target committed the merge.
    pub(super) fn on_merged(
        &mut self,
        ctx: &mut Context<E>,
        prepared: (LogIndex, Term),
        version: u64,
        left: Option<u64>,
    ) {
        self.learn_committed(prepared);
        let RegionPhase::Merging { prepared: at, term, target_epoch, .. } = self.region.phase
        else {
            return;
        };
        if (at, term) == prepared && version > self.region.epoch.version {
            self.merge_confirmed = true;
            // Invariant: only a version after the merge counts. An earlier replica of the target
            // may be on its way here, and needs this replica.
            let merged = self.region.epoch.version.max(target_epoch.version) + 1;
            let is_after =
                |left: u64| left >= merged || mutant::active("raftstore.target_left_early");
            self.target_left |= left.is_some_and(is_after);
            self.destroy_if_merged(ctx);
        }
    }

    pub fn is_merge_confirmed(&self) -> bool {
        self.merge_confirmed
    }

    /// Destroys this source if the target committed the merge and the target's replica here learned
    /// it from a snapshot, or was removed: then no region here needs this replica. A target that is
    /// behind will need it.
    pub fn destroy_if_merged(&mut self, ctx: &mut Context<E>) {
        let RegionPhase::Merging { target, target_epoch, .. } = self.region.phase else { return };
        let left = self.target_left && region_here(ctx, target).is_none();
        let owns = |now: &Region| {
            now.phase != RegionPhase::Tombstone
                && now.epoch.version > self.region.epoch.version
                && now.range.overlaps(&self.region.range)
        };
        let has_ended =
            |now: &Region| owns(now) || self.merge_confirmed && has_passed(now, target_epoch);
        if left || descriptor(ctx, target).as_ref().is_some_and(has_ended) {
            let region = admin::tombstone(&self.region);
            // The target may have split off part of its keys again.
            ctx.effects.push(Effect::Destroy { region, pairs: Pairs::Unclear });
        }
    }

    /// Asks the other members for the outcome of the merge: a store with a tombstone of the region
    /// reports it.
    pub fn query_merge_outcome(&self, ctx: &mut Context<E>) {
        for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
            self.send(ctx, *peer, Body::WakeUp);
        }
    }

    /// Queries the outcome if this peer is a merging source and not leader: it may be the last
    /// replica.
    pub(super) fn query_outcome_if_merging(&self, ctx: &mut Context<E>) {
        if self.preparation().is_some() && !self.is_leader() {
            self.query_merge_outcome(ctx);
        }
    }

    /// Handles the leader's report that all replicas hold the log up to the preparation.
    pub(super) fn on_prepared(
        &mut self,
        ctx: &mut Context<E>,
        from: PeerId,
        prepared: (LogIndex, Term),
    ) {
        let known = self.preparation().is_some_and(|(_, known)| known == prepared);
        if known && self.region.peer(from).is_some() {
            self.mark_replicated(ctx, prepared);
        }
    }

    /// Reports to all stores that every replica holds the log up to the preparation, once that is
    /// so: any of them may have the target's leader, which then may commit the merge.
    pub(super) fn announce_prepared(&mut self, ctx: &mut Context<E>) {
        let Some((_, prepared)) = self.preparation() else { return };
        if !self.is_leader() || self.leading != Some(self.term()) {
            return;
        }
        // The entry is applied here, hence durable here.
        if !self.group.followers().all(|it| it.matched >= prepared.0) {
            return;
        }
        self.mark_replicated(ctx, prepared);
        for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
            self.send(ctx, *peer, Body::Prepared { prepared });
        }
    }

    fn mark_replicated(&self, ctx: &mut Context<E>, prepared: (LogIndex, Term)) {
        ctx.replicated_sources.insert(self.region.id, prepared);
    }

    fn preparation(&self) -> Option<(RegionId, (LogIndex, Term))> {
        match self.region.phase {
            RegionPhase::Merging { target, prepared, term, .. } => Some((target, (prepared, term))),
            _ => None,
        }
    }

    /// Records the commit-merge entries before any commit index covers them.
    pub(super) fn note_merges(&mut self, entries: &[EntryRecord]) {
        let Some(first) = entries.first() else { return };
        self.unapplied_merges.retain(|index| *index < first.index);
        let merges = entries.iter().filter(|entry| is_commit_merge(&entry.payload));
        self.unapplied_merges.extend(merges.map(|entry| entry.index));
    }

    /// Returns the highest commit index that may be made durable.
    pub(super) fn commit_ceiling(&self) -> LogIndex {
        if mutant::active("raftstore.merge_commit_early") {
            return LogIndex(u64::MAX);
        }
        let next_merge = self.unapplied_merges.range(self.applied().next()..).next();
        LogIndex(next_merge.map_or(u64::MAX, |index| index.0 - 1))
    }
}

/// Returns the commit-merge entries above `applied` in a log that was opened.
pub(super) fn merges_above<E: StorageEngine>(
    engine: &E,
    region: RegionId,
    applied: LogIndex,
    last: LogIndex,
) -> Result<std::collections::BTreeSet<LogIndex>> {
    let mut out = std::collections::BTreeSet::new();
    let mut from = applied.next();
    while from <= last {
        let entries = engine.entries(region, from, last.next(), FETCH_BYTES)?;
        let Some(end) = entries.last().map(|entry| entry.index.next()) else { break };
        let merges = entries.iter().filter(|entry| is_commit_merge(&entry.payload));
        out.extend(merges.map(|entry| entry.index));
        from = end;
    }
    Ok(out)
}

fn is_commit_merge(payload: &[u8]) -> bool {
    admin::is_admin(payload)
        && matches!(admin::parse(payload), Some((record, _))
            if matches!(record.change, Change::CommitMerge { .. }))
}

/// Returns a region as applied by its replica on this store.
fn region_here<E: StorageEngine>(ctx: &Context<E>, region: RegionId) -> Option<Arc<Region>> {
    ctx.readers.get(region).map(|reader| reader.region())
}

/// Returns a region's descriptor or tombstone on this store; `None` if it cannot be read.
fn descriptor<E: StorageEngine>(ctx: &Context<E>, region: RegionId) -> Option<Region> {
    let pair = ctx.engine.view().ok()?.get(&keyspace::region_key(region)).ok()??;
    Region::decode(&pair.value).ok()
}

/// Returns whether a region has reached an epoch and moved past it. A tombstone of that same epoch
/// is of a replica removed by a later change.
fn has_passed(now: &Region, epoch: RegionEpoch) -> bool {
    let reached =
        now.epoch.conf_version >= epoch.conf_version && now.epoch.version >= epoch.version;
    reached && (now.epoch != epoch || now.phase == RegionPhase::Tombstone)
}
