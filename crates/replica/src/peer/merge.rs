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
//! The preparation is rolled back only on proof that the target's log refused the merge, see
//! [`super::decision`]. The leader of the source asks for it: the stores of its members, and those of
//! the target's. A target that has not decided can be told to refuse.
//!
//! At open, each region's entries are applied up to its durable commit index, and the source may be
//! behind. So the target's durable commit index stays below the commit entry until that is applied.
//! It then goes into the same batch as the end of the source's log, which checkpoints what is
//! applied.

use super::Replica;
use super::decision::preparation;
use super::members::Plan;
use super::raft_group::RaftGroup;
use super::write::Proposing;
use crate::admin::{self, Change};
use crate::context::{Context, StoreRequest};
use crate::input::{ChangeKind, PeerChange};
use crate::messages::{Body, MergeAnswer, MergeQuery, PeerMessage, Preparation};
use crate::output::{Busy, Refusal};
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_storage::{EngineView, StorageEngine};
use stele_types::{LogIndex, PeerId, Region, RegionId, RegionPhase, StoreId, Term, keyspace};

impl<E: StorageEngine> Replica<E> {
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

    /// Plans the rollback of the preparation. Invariant: it is rolled back only if the target's log
    /// is proven to have refused this preparation. Without a proof it asks for one, also these stores;
    /// `refuse` makes the target's leader refuse the merge, if nothing is decided.
    pub(super) fn plan_rollback_merge(
        &mut self,
        ctx: &mut Context<E>,
        stores: &[StoreId],
        refuse: bool,
    ) -> Plan {
        let here = self.region.clone();
        let region = admin::rollback_merge(&here).map_err(Refusal::Invalid)?;
        let Some(preparation) = preparation(here.id, &here.phase) else {
            return Err(Refusal::Invalid("the region is not merging".to_owned()).into());
        };
        // The applied descriptors: a target that committed the merge has written the source's
        // tombstone.
        let has_merged =
            descriptor(ctx, here.id).is_none_or(|region| region.phase == RegionPhase::Tombstone);
        let answer = merge_answer(ctx, &preparation);
        self.merge.note_answer(&here, self.peer.store, &answer);
        let is_refused = self.merge.is_refused(&here);
        // bug replica.rollback_undecided: let is_refused = true;
        if has_merged || !is_refused {
            if self.merge.is_question_due(&here, refuse, ctx.now.monotonic_nanos) {
                self.ask_for_decision(ctx, MergeQuery { preparation, refuse }, stores);
            }
            return Err(Busy::Wait {
                reason: "the target may still commit the merge: the other stores are asked",
            }
            .into());
        }
        Ok((Change::RollbackMerge, vec![region]))
    }

    /// Asks the stores of the source's members and of the target's for the outcome of the merge, and `more`.
    fn ask_for_decision(&self, ctx: &mut Context<E>, query: MergeQuery, more: &[StoreId]) {
        let own = self.peer.store;
        let target = descriptor(ctx, query.preparation.target);
        let target = target.iter().flat_map(|region| &region.peers).map(|peer| peer.store);
        let source = self.others().map(|peer| peer.store);
        let named = self.merge.target_stores().iter().chain(more).copied();
        let stores: BTreeSet<StoreId> = source.chain(target).chain(named).collect();
        for store in stores.into_iter().filter(|store| *store != own) {
            let body = Body::MergeQuery(query);
            ctx.out.messages.push(PeerMessage::between_stores(own, store, body));
        }
        if query.refuse {
            ctx.store_requests.push(StoreRequest::RefuseMerge(query.preparation));
        }
        self.query_merge_outcome(ctx);
    }

    pub(crate) fn on_merge_answer(&mut self, from: StoreId, answer: &MergeAnswer) {
        self.merge.note_answer(&self.region, from, answer);
    }

    /// Refuses a merge into this region, if it leads and nothing is decided: proposes an entry that
    /// changes only the epoch. Invariant: a merge is refused by an entry that changes the epoch: after it no commit
    /// of the merge is proposed. A commit needs the epoch of the preparation, and all of the region that a
    /// proposal is derived from is applied.
    /// Test: `a_target_that_has_not_decided_refuses_by_an_entry_when_the_merge_is_abandoned`.
    pub(crate) fn refuse_merge(&mut self, ctx: &mut Context<E>, preparation: &Preparation) {
        self.wake_for_client(ctx);
        let is_blocked = self.group.is_transferring()
            || self.group.is_changing_members()
            || self.changes.is_pending()
            || self.check_phase().is_err()
            || self.region.is_joint()
            || self.is_paused(ctx);
        if !self.is_serving() || is_blocked || self.region.epoch != preparation.target_epoch {
            return;
        }
        let region = admin::refuse_merge(&self.region);
        // A member that stays as it is: any version of the program applies that.
        let same = PeerChange { kind: ChangeKind::Add, peer: self.peer };
        if let Ok((entry, _)) = self.admin_entry(Change::Members(vec![same]), &[region]) {
            let mut proposing = Proposing::default();
            proposing.push(entry, None);
            proposing.admin = true;
            self.propose(ctx, proposing);
        }
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
        // bug replica.merge_unheld: `!held` is `false`
        if at != prepared || !held {
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
        // bug replica.merge_without_source: return true;
        let progress = ctx.engine.progress(source).filter(|progress| !progress.destroyed);
        if progress.is_none_or(|progress| progress.applied < prepared.0) {
            ctx.store_requests.push(StoreRequest::CommitSource { source, prepared });
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
            ctx.store_requests.push(StoreRequest::Destroy(region));
        }
    }

    /// Learns that an entry is committed, if the log holds it.
    pub(crate) fn learn_committed(&mut self, entry: (LogIndex, Term)) {
        self.group.learn_committed(entry);
    }

    pub(crate) fn has_entry(&self, entry: (LogIndex, Term)) -> bool {
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
        if self.merge.on_merged(&self.region, prepared, version, left) {
            self.destroy_if_merged(ctx);
        }
    }

    pub(crate) fn is_merge_confirmed(&self) -> bool {
        self.merge.is_confirmed()
    }

    /// Destroys this source if the merge has ended and no region here needs this replica.
    pub(crate) fn destroy_if_merged(&mut self, ctx: &mut Context<E>) {
        let is_here = |target| region_here(ctx, target).is_some();
        if self.merge.has_ended(&self.region, is_here, |target| descriptor(ctx, target)) {
            ctx.store_requests.push(StoreRequest::Destroy(admin::tombstone(&self.region)));
        }
    }

    /// Asks the other members for the outcome of the merge: a store with a tombstone of the region
    /// reports it.
    pub(crate) fn query_merge_outcome(&self, ctx: &mut Context<E>) {
        self.send_to_others(ctx, &Body::WakeUp);
    }

    /// Queries the outcome if this peer is a merging source. It may be the last replica, or lead
    /// others that have not learned of the merge either.
    pub(super) fn query_outcome_if_merging(&self, ctx: &mut Context<E>) {
        if self.preparation().is_some() {
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
        // The entry is applied here, hence durable here.
        let is_held = |group: &RaftGroup<E>| group.followers().all(|it| it.matched >= prepared.0);
        if self.is_serving() && is_held(&self.group) {
            self.mark_replicated(ctx, prepared);
            self.send_to_others(ctx, &Body::Prepared { prepared });
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
}

pub(crate) fn merge_answer<E: StorageEngine>(
    ctx: &Context<E>,
    preparation: &Preparation,
) -> MergeAnswer {
    let known = descriptor(ctx, preparation.target);
    let peers = known.iter().flat_map(|region| &region.peers);
    MergeAnswer {
        source: preparation.source,
        prepared: preparation.prepared,
        verdict: ctx.merge_verdict(preparation),
        stores: peers.map(|peer| peer.store).collect(),
    }
}

fn region_here<E: StorageEngine>(ctx: &Context<E>, region: RegionId) -> Option<Arc<Region>> {
    ctx.readers.get(region).map(|reader| reader.region())
}

/// Returns a region's descriptor or tombstone on this store; `None` if it cannot be read.
fn descriptor<E: StorageEngine>(ctx: &Context<E>, region: RegionId) -> Option<Region> {
    let pair = ctx.engine.view().ok()?.get(&keyspace::region_key(region)).ok()??;
    Region::decode(&pair.value).ok()
}
