//! Replies to the clients of proposals.

use super::Peer;
use super::parts::{Proposal, Purpose};
use crate::output::{Done, Refusal, Unknown};
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Term, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Answers the writes that are committed, before they are applied (BUC-Raft, commit return): no
    /// later leader lacks them, and their apply cannot fail. Administrative changes are answered
    /// when they have taken effect.
    pub(super) fn answer_committed(&mut self, ctx: &mut Context<E>) {
        let committed = self.committed();
        let term_of = |index| self.group.term_of(index);
        for (proposal, is_done) in self.proposals.take_committed(committed, term_of) {
            self.answer_outcome(ctx, proposal, is_done);
        }
    }

    /// Answers the proposals up to an applied entry.
    pub(super) fn answer_applied(&mut self, ctx: &mut Context<E>, index: LogIndex, term: Term) {
        for (proposal, is_done) in self.proposals.take_applied(index, term) {
            self.answer_outcome(ctx, proposal, is_done);
        }
    }

    fn answer_outcome(&self, ctx: &mut Context<E>, proposal: Proposal, is_done: bool) {
        match is_done {
            true => self.answer_done(ctx, proposal),
            false => {
                let leader = self.leader_hint();
                ctx.reject(proposal.purpose.id(), Refusal::Superseded { leader });
            }
        }
    }

    pub(super) fn answer_done(&self, ctx: &mut Context<E>, proposal: Proposal) {
        let Proposal { index, term, purpose, timings, .. } = proposal;
        let timings = timings.ordered();
        match purpose {
            Purpose::Write(id) => ctx.done(id, Done::Written { index, term, timings }),
            Purpose::Modify(id, result) => ctx.done(id, Done::Modified { result, timings }),
            Purpose::Admin(id) => ctx.done(id, Done::Admin { region: (*self.region).clone() }),
        }
    }

    /// Answers the proposals that are not committed after a loss of leadership: a later leader may
    /// or may not commit them. The others are answered when they are applied.
    pub(super) fn lose_proposals(&mut self, ctx: &mut Context<E>) {
        let as_refused = mutant::active("raftstore.unknown_as_refused");
        for proposal in self.proposals.take_above(self.committed()) {
            let id = proposal.purpose.id();
            match as_refused {
                true => ctx.reject(id, Refusal::NotLeader { leader: None }),
                false => ctx.unknown(id, Unknown::LeadershipLost),
            }
        }
    }

    /// Answers all proposals of a replica that leaves this store. A committed one is done: the
    /// replica's successor, here or elsewhere, holds its effect.
    pub(super) fn abandon_proposals(&mut self, ctx: &mut Context<E>) {
        let committed = self.committed();
        for proposal in self.proposals.take_above(LogIndex(0)) {
            let is_in_log = self.has_entry((proposal.index, proposal.term));
            match is_in_log && proposal.index <= committed {
                true => self.answer_done(ctx, proposal),
                false => ctx.unknown(proposal.purpose.id(), Unknown::ReplicaRemoved),
            }
        }
    }
}
