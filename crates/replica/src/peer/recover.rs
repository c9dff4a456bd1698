//! Continuation of a region of which the majority is lost (etcd calls it disaster recovery, TiKV unsafe
//! recovery).
//!
//! Of the replicas that are left, the one with the log furthest ahead receives one entry as if a leader of a new
//! term had sent it. The entry states the members that are left, and the message says that it is
//! committed, with all before it. Both become durable in one batch. When the entry is applied, the
//! members left elect a leader; the others get the entry from it as any other.
//!
//! Invariant: a region goes on alone only after the lost stores were removed: they are not heard again.
//! Tests: `the_replicas_that_are_left_agree_on_the_longest_log_of_them`,
//! `a_replica_goes_on_alone_only_after_the_placement_group_removed_the_lost_stores`.

use super::Replica;
use super::decision::preparation;
use super::room::may_use_reserve;
use crate::admin::{self, Change};
use crate::context::Context;
use crate::input::Recovery;
use crate::messages::{RaftEntry, RaftKind, RaftMessage, Verdict};
use crate::output::{Busy, Event, Refusal, Rejection, Unknown};
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{Error, LogIndex, Region, RegionPhase, Result, Term};

const FETCH_BYTES: usize = 1 << 20;

impl<E: StorageEngine> Replica<E> {
    /// Continues the region without the lost stores. Returns the region as it will be.
    pub(crate) fn recover(
        &mut self,
        ctx: &mut Context<E>,
        recovery: &Recovery,
    ) -> Result<Region, Rejection> {
        let refuse = |reason: String| Rejection::from(Refusal::Invalid(reason));
        self.check_recovery(recovery)?;
        let mut region = self.newest_descriptor(ctx).map_err(|error| refuse(error.to_string()))?;
        if region.phase != RegionPhase::Normal {
            let preparation = preparation(region.id, &region.phase);
            let verdict = preparation.map(|preparation| ctx.merge_verdict(&preparation));
            if verdict != Some(Verdict::Refused) {
                let reason =
                    "the region is being merged: recover the region into which, then repeat";
                return Err(refuse(reason.to_owned()));
            }
            region = admin::rollback_merge(&region).map_err(refuse)?;
        }
        let former = region;
        let region = admin::recover(&former, &recovery.lost).map_err(refuse)?;
        let is_lost = |peer: &&stele_types::Peer| region.peer(peer.id).is_none();
        let Some(sender) = former.peers.iter().find(is_lost).copied() else {
            return Err(refuse("no peer of the region is lost".to_owned()));
        };
        let change = Change::Recover { lost: recovery.lost.clone() };
        let (payload, _) = self.admin_entry(change, std::slice::from_ref(&region))?;
        let (last, last_term) = recovery.last;
        // Invariant: no replica that is left has an entry of this term.
        let term = Term(recovery.term.max(self.term()).0 + 1);
        let mut message = RaftMessage::new(RaftKind::Append, term);
        (message.index, message.log_term) = (last, last_term);
        let payloads = [payload].into_iter().chain(recovery.command.clone());
        let indices = std::iter::successors(Some(last.next()), |index| Some(index.next()));
        let entry = |(payload, index)| RaftEntry { term, index, payload };
        message.entries = payloads.zip(indices).map(entry).collect();
        message.commit = match message.entries.last() {
            // bug replica.recovery_uncommitted: `entry.index` is `last`
            Some(entry) => entry.index,
            None => last,
        };
        self.wake(ctx);
        self.group.step(message, sender.id).map_err(|error| refuse(error.to_string()))?;
        Ok(region)
    }

    fn check_recovery(&self, recovery: &Recovery) -> Result<(), Rejection> {
        if self.is_leader() {
            let reason = "this replica leads the region, which has a majority".to_owned();
            return Err(Refusal::Invalid(reason).into());
        }
        if !self.may_campaign() {
            return Err(Busy::Wait { reason: "entries are in flight to the disk" }.into());
        }
        let last = self.group.last();
        let own = (last, self.group.term_of(last).unwrap_or_default());
        // bug replica.recovery_of_another_log: never
        if own != recovery.last {
            let ((index, term), (own_index, own_term)) = (recovery.last, own);
            return Err(Refusal::Invalid(format!(
                "the log ends with entry {own_index} of term {own_term}, not with {index} of term \
                 {term}: compare the replicas again"
            ))
            .into());
        }
        Ok(())
    }

    fn newest_descriptor(&self, ctx: &Context<E>) -> Result<Region> {
        let mut region = (*self.region).clone();
        let (mut from, last) = (self.applied().next(), self.group.last());
        while from <= last {
            let entries = ctx.engine.entries(region.id, from, last.next(), FETCH_BYTES)?;
            let Some(end) = entries.last().map(|entry| entry.index.next()) else {
                let text = format!("region {}: entry {from} cannot be read", region.id);
                return Err(Error::invalid(text));
            };
            let changes = entries.iter().filter_map(|entry| admin::parse(&entry.payload));
            for (_, regions) in changes {
                region = regions.into_iter().find(|it| it.id == region.id).unwrap_or(region);
            }
            from = end;
        }
        Ok(region)
    }

    /// Starts an election if the last known leader is no longer a member: it was lost.
    pub(super) fn campaign_after_recovery(&mut self) {
        let is_lost = self.group.leader().is_none_or(|leader| self.region.peer(leader).is_none());
        if is_lost {
            self.campaign();
        }
    }
}

// End of a replica that starts again from its durable state.

impl<E: StorageEngine> Replica<E> {
    /// Answers all pending requests: entries for which the device had no room are given up.
    ///
    /// Invariant: what is answered as refused has no effect later. Of a sole voter no other log that
    /// counts holds an entry that is not durable here. With other voters the outcome is unknown.
    /// Test: `a_put_for_which_a_sole_voter_has_no_room_is_refused_and_has_no_effect_later`.
    pub(crate) fn give_up_unwritten(&mut self, ctx: &mut Context<E>) {
        let refusal = Refusal::NotLeader { leader: self.leader_hint() };
        self.refuse_held(ctx, &refusal);
        self.refuse_waiting(ctx, &refusal);
        let (committed, persisted) = (self.committed(), self.group.persisted());
        let is_alone = self.group.is_sole_voter();
        // bug replica.unwritten_as_refused: let is_alone = true;
        for proposal in self.proposals.take_above(LogIndex(0)) {
            let is_in_log = self.has_entry((proposal.index, proposal.term));
            match is_in_log && proposal.index <= committed {
                true => self.answer_done(ctx, proposal),
                false if is_alone && proposal.index > persisted => {
                    ctx.reject(proposal.purpose.id(), Busy::DiskFull);
                }
                false => ctx.unknown(proposal.purpose.id(), Unknown::LeadershipLost),
            }
        }
        if let Some(id) = self.transfers.abandon() {
            ctx.unknown(id, Unknown::TransferTimedOut);
        }
        self.lose_reads(ctx);
        if self.leadership.stop_serving() {
            ctx.out.events.push(Event::LostLeader { region: self.region.id });
        }
    }

    /// Returns whether a batch that found no room may give up an entry of this replica. A sole voter
    /// refuses even deletes rather than leave them undecided.
    pub(crate) fn may_give_up(&self, payload: &Bytes) -> bool {
        !payload.is_empty() && (self.group.is_sole_voter() || !may_use_reserve(payload))
    }
}
