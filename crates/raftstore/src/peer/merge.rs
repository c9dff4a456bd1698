//! Merging a region, the source, into its neighbour, the target, which lies on the same stores.
//!
//! 1. An entry of the source prepares it: from there on it takes no writes, and where that is applied
//!    no reads. Its leader lets all its replicas know once all of them hold the log up to there.
//! 2. An entry of the target takes the source over. It is proposed where the target has the epoch it
//!    had at the preparation and the local source is prepared and held by all its replicas.
//! 3. Each store applies that entry when its source is applied up to the preparation, which is
//!    committed, whatever the source's own leader said so far. Then the source leaves.
//!
//! The preparation is taken back only where the target is known to have another epoch: the target's
//! log decides between the two, once.
//!
//! At open, each region's entries are applied up to its durable commit index, and the source's may be
//! behind. So the target's stays below the entry that takes the source over until that is applied;
//! it then lies in one batch with the end of the source's log, which checkpoints what is applied.

use super::Peer;
use super::membership::Plan;
use crate::admin::{self, Change};
use crate::messages::Body;
use crate::output::Refusal;
use crate::store::{Context, Effect, Pairs};
use raft::eraftpb::Entry;
use std::sync::Arc;
use stele_storage::{EngineView, StorageEngine};
use stele_types::mutant;
use stele_types::{
    LogIndex, PeerId, Region, RegionEpoch, RegionId, RegionPhase, Result, Term, keyspace,
};

/// Bytes of entries read at a time when a log is looked through.
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
            return Err(Refusal::Busy { reason: "the target's replica here is at another epoch" });
        };
        let prepared = (at, Term(self.term()));
        let region = admin::prepare_merge(&self.region, &here, prepared);
        let region = region.map_err(Refusal::Invalid)?;
        Ok((Change::PrepareMerge { target: target.id, prepared }, vec![region]))
    }

    pub(super) fn plan_rollback_merge(&self, ctx: &Context<E>) -> Plan {
        let region = admin::rollback_merge(&self.region).map_err(Refusal::Invalid)?;
        let RegionPhase::Merging { target, target_epoch, .. } = self.region.phase else {
            return Err(Refusal::Invalid("the region is not merging".to_owned()));
        };
        // The descriptors as applied: a target that took this region over has buried it.
        let taken = descriptor(ctx, self.region.id)
            .is_none_or(|region| region.phase == RegionPhase::Tombstone);
        let decided = descriptor(ctx, target).is_some_and(|now| has_passed(&now, target_epoch));
        if taken || !decided && !mutant::active("raftstore.rollback_undecided") {
            return Err(Refusal::Busy { reason: "the target may still take the region over" });
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
        if self.node.raft.has_pending_conf() {
            return Err(Refusal::Busy { reason: "a change of members is under way" });
        }
        let here = region_here(ctx, source.id);
        let Some(source) = here else {
            return Err(Refusal::Busy { reason: "no replica of the source is here" });
        };
        let RegionPhase::Merging { prepared: at, term, .. } = source.phase else {
            return Err(Refusal::Busy { reason: "the source's replica here is not prepared" });
        };
        let held = ctx.replicated_sources.get(&source.id) == Some(&(at, term));
        if at != prepared || !held && !mutant::active("raftstore.merge_unheld") {
            return Err(Refusal::Busy { reason: "a replica of the source lacks some of its log" });
        }
        let (target, gone) =
            admin::commit_merge(&self.region, &source, at).map_err(Refusal::Invalid)?;
        let change = Change::CommitMerge { source: source.id, prepared: (at, term) };
        Ok((change, vec![target, gone]))
    }

    /// Whether the source here is applied up to its preparation. If not, it is told that it may be.
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

    /// The source's keys are this region's.
    pub(super) fn merge_applied(&mut self, ctx: &mut Context<E>, others: Vec<Region>) {
        // The commit index goes into the batch that ends the source's log.
        ctx.batches.piggyback(self.region.id, self.current_hard_state());
        for region in others {
            ctx.replicated_sources.remove(&region.id);
            ctx.effects.push(Effect::Destroy { region, pairs: Pairs::Owned });
        }
    }

    /// The entry of that index and term is committed, as another store, or the target here, knows. Rule:
    /// only the log that holds this very entry learns of it. It then holds all before it, and as what is
    /// committed stays so for ever, a late word is as good as the first.
    pub fn learn_committed(&mut self, entry: (LogIndex, Term)) {
        if self.holds(entry) || mutant::active("raftstore.commit_of_another_term") {
            let index = entry.0.0.min(self.last_index());
            self.node.raft.raft_log.commit_to(index);
        }
    }

    /// Whether the log holds that entry. Raft takes 0 for the term of what is not there.
    pub fn holds(&self, entry: (LogIndex, Term)) -> bool {
        let (LogIndex(index), Term(term)) = entry;
        term != 0 && self.node.raft.raft_log.match_term(index, term)
    }

    /// Another store has buried this region, at this version: its target took it over if that was
    /// after the preparation.
    pub(super) fn learn_taken(
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
            self.taken = true;
            // Rule: only as of a version after the merge. A replica of the target that came before may
            // be on its way here, and needs this one.
            let merged = self.region.epoch.version.max(target_epoch.version) + 1;
            let is_after =
                |left: u64| left >= merged || mutant::active("raftstore.target_left_early");
            self.target_left |= left.is_some_and(is_after);
            self.destroy_if_merged(ctx);
        }
    }

    pub fn is_taken(&self) -> bool {
        self.taken
    }

    /// The target took this region over, and the target's replica here came to know by a snapshot, or
    /// left: nobody here needs this replica any more. A target that is behind will need it.
    pub fn destroy_if_merged(&mut self, ctx: &mut Context<E>) {
        let RegionPhase::Merging { target, target_epoch, .. } = self.region.phase else { return };
        let left = self.target_left && region_here(ctx, target).is_none();
        let owns = |now: &Region| {
            now.phase != RegionPhase::Tombstone
                && now.epoch.version > self.region.epoch.version
                && now.range.overlaps(&self.region.range)
        };
        let has_ended = |now: &Region| owns(now) || self.taken && has_passed(now, target_epoch);
        if left || descriptor(ctx, target).as_ref().is_some_and(has_ended) {
            let region = admin::tombstone(&self.region);
            // What the target had of it may have been split off again.
            ctx.effects.push(Effect::Destroy { region, pairs: Pairs::Unclear });
        }
    }

    /// Asks the others for a word: a store that has buried the region will say so.
    pub fn query_merge_outcome(&self, ctx: &mut Context<E>) {
        for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
            self.send(ctx, *peer, Body::WakeUp);
        }
    }

    /// Whoever is being merged and hears nothing may be the last one.
    pub(super) fn ask_whether_taken_if_merging(&self, ctx: &mut Context<E>) {
        if self.preparation().is_some() && !self.is_leader() {
            self.query_merge_outcome(ctx);
        }
    }

    /// The leader says that all replicas hold the log up to the preparation.
    pub(super) fn learn_prepared(
        &mut self,
        ctx: &mut Context<E>,
        from: PeerId,
        prepared: (LogIndex, Term),
    ) {
        let known = self.preparation().is_some_and(|(_, known)| known == prepared);
        if known && self.region.peer(from).is_some() {
            self.seal(ctx, prepared);
        }
    }

    /// Once all replicas hold the log up to the preparation, all stores know: whichever has the
    /// target's leader may take the region over.
    pub(super) fn tell_prepared(&mut self, ctx: &mut Context<E>) {
        let Some((_, prepared)) = self.preparation() else { return };
        let raft = &self.node.raft;
        if !self.is_leader() || self.leading != Some(self.term()) {
            return;
        }
        let held = |(id, progress): (&u64, &raft::Progress)| {
            let matched = if *id == raft.id { raft.raft_log.persisted } else { progress.matched };
            matched >= prepared.0.0
        };
        if !raft.prs().iter().all(held) {
            return;
        }
        self.seal(ctx, prepared);
        for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
            self.send(ctx, *peer, Body::Prepared { prepared });
        }
    }

    fn seal(&self, ctx: &mut Context<E>, prepared: (LogIndex, Term)) {
        ctx.replicated_sources.insert(self.region.id, prepared);
    }

    fn preparation(&self) -> Option<(RegionId, (LogIndex, Term))> {
        match self.region.phase {
            RegionPhase::Merging { target, prepared, term, .. } => Some((target, (prepared, term))),
            _ => None,
        }
    }

    /// Notes which entries take a source over, before any commit index covers them.
    pub(super) fn note_merges(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        self.merges_ahead.retain(|index| *index < first.index);
        let merges = entries.iter().filter(|entry| is_commit_merge(crate::log::payload_of(entry)));
        self.merges_ahead.extend(merges.map(|entry| entry.index));
    }

    /// The highest commit index that may be made durable.
    pub(super) fn commit_ceiling(&self) -> u64 {
        if mutant::active("raftstore.merge_commit_early") {
            return u64::MAX;
        }
        let ahead = self.merges_ahead.range(self.applied + 1..).next();
        ahead.map_or(u64::MAX, |index| index - 1)
    }
}

/// Which entries above `applied` take a source over, in a log that was opened.
pub(super) fn merges_above<E: StorageEngine>(
    engine: &E,
    region: RegionId,
    applied: LogIndex,
    last: LogIndex,
) -> Result<std::collections::BTreeSet<u64>> {
    let mut out = std::collections::BTreeSet::new();
    let mut from = applied.next();
    while from <= last {
        let entries = engine.entries(region, from, last.next(), FETCH_BYTES)?;
        let Some(end) = entries.last().map(|entry| entry.index.next()) else { break };
        let merges = entries.iter().filter(|entry| is_commit_merge(&entry.payload));
        out.extend(merges.map(|entry| entry.index.0));
        from = end;
    }
    Ok(out)
}

fn is_commit_merge(payload: &[u8]) -> bool {
    admin::is_admin(payload)
        && matches!(admin::parse(payload), Some((record, _))
            if matches!(record.change, Change::CommitMerge { .. }))
}

/// A region as its replica on this store has applied it.
fn region_here<E: StorageEngine>(ctx: &Context<E>, region: RegionId) -> Option<Arc<Region>> {
    ctx.readers.get(region).map(|reader| reader.region())
}

/// A region's descriptor on this store, or its tombstone. What can't be read says nothing.
fn descriptor<E: StorageEngine>(ctx: &Context<E>, region: RegionId) -> Option<Region> {
    let pair = ctx.engine.view().ok()?.get(&keyspace::region_key(region)).ok()??;
    Region::decode(&pair.value).ok()
}

/// Whether a region had an epoch, and has it no more. A tombstone of that very epoch is of a replica
/// that left by a later change.
fn has_passed(now: &Region, epoch: RegionEpoch) -> bool {
    let reached =
        now.epoch.conf_version >= epoch.conf_version && now.epoch.version >= epoch.version;
    reached && (now.epoch != epoch || now.phase == RegionPhase::Tombstone)
}
