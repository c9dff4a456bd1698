//! Proposals in flight and the replies to their clients.

use super::Peer;
use crate::input::RequestId;
use crate::output::{Done, Refusal, Timings, Unknown};
use crate::store::Context;
use std::collections::VecDeque;
use stele_storage::{Pair, StorageEngine};
use stele_types::{LogIndex, Term};

/// Request for which an entry was proposed.
pub(crate) enum Purpose {
    Write(RequestId),
    /// Comparison that held, and the pair that the key held.
    Cas(RequestId, Option<Pair>),
    Admin(RequestId),
}

/// Proposed entry in flight.
pub(crate) struct Proposal {
    pub index: LogIndex,
    pub term: Term,
    pub purpose: Purpose,
    pub bytes: u64,
    /// Monotonic nanoseconds when it was first seen, proposed, durable here and committed; 0 for
    /// not yet.
    pub seen: u64,
    pub proposed: u64,
    pub durable: u64,
    pub committed: u64,
}

/// Proposals in flight, by index.
#[derive(Default)]
pub(crate) struct Proposals {
    waiting: VecDeque<Proposal>,
    bytes: u64,
}

impl Proposals {
    pub fn push(&mut self, proposal: Proposal) {
        self.bytes += proposal.bytes;
        self.waiting.push_back(proposal);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn pop_through(&mut self, index: LogIndex) -> Option<Proposal> {
        self.waiting.front().filter(|proposal| proposal.index <= index)?;
        let proposal = self.waiting.pop_front()?;
        self.bytes -= proposal.bytes;
        Some(proposal)
    }

    fn split_off_above(&mut self, index: LogIndex) -> Vec<Proposal> {
        let keep = self.waiting.partition_point(|proposal| proposal.index <= index);
        let gone: Vec<_> = self.waiting.split_off(keep).into();
        self.bytes -= gone.iter().map(|proposal| proposal.bytes).sum::<u64>();
        gone
    }

    /// Records the time at which entries up to `index` became durable here.
    pub fn note_durable(&mut self, index: LogIndex, now_nanos: u64) {
        let reached = self.waiting.iter_mut().take_while(|proposal| proposal.index <= index);
        for proposal in reached.filter(|proposal| proposal.durable == 0) {
            proposal.durable = now_nanos;
        }
    }

    /// Records the time at which entries up to `index` were committed.
    pub fn note_committed(&mut self, index: LogIndex, now_nanos: u64) {
        let reached = self.waiting.iter_mut().take_while(|proposal| proposal.index <= index);
        for proposal in reached.filter(|proposal| proposal.committed == 0) {
            proposal.committed = now_nanos;
        }
    }
}

impl Proposal {
    fn timings(&self, now_nanos: u64) -> Timings {
        let durable = self.durable.max(self.proposed);
        let committed = self.committed.max(self.proposed);
        Timings {
            queue_nanos: self.proposed.saturating_sub(self.seen),
            append_nanos: durable.saturating_sub(self.proposed),
            replicate_nanos: committed.saturating_sub(durable.min(committed)),
            apply_nanos: now_nanos.saturating_sub(committed),
        }
    }
}

impl Purpose {
    /// Returns the request.
    pub fn id(&self) -> RequestId {
        let (Self::Write(id) | Self::Cas(id, _) | Self::Admin(id)) = self;
        *id
    }
}

impl<E: StorageEngine> Peer<E> {
    /// Answers the proposals up to an applied entry. Invariant: a proposal is done only if the
    /// applied entry has its index *and* its term. A proposal at or below the index that is not the
    /// applied entry was replaced by another leader's: it can never be applied.
    pub(super) fn answer_applied(&mut self, ctx: &mut Context<E>, index: LogIndex, term: Term) {
        while let Some(proposal) = self.proposals.pop_through(index) {
            match (proposal.index, proposal.term) == (index, term) {
                true => self.answer_done(ctx, proposal),
                false => {
                    let leader = self.leader_hint();
                    ctx.reject(proposal.purpose.id(), Refusal::Superseded { leader });
                }
            }
        }
    }

    fn answer_done(&self, ctx: &mut Context<E>, proposal: Proposal) {
        let timings = proposal.timings(ctx.now.monotonic_nanos);
        match proposal.purpose {
            Purpose::Write(id) => {
                let Proposal { index, term, .. } = proposal;
                ctx.done(id, Done::Written { index, term, timings });
            }
            Purpose::Cas(id, previous) => {
                ctx.done(id, Done::Cas { succeeded: true, previous, timings });
            }
            Purpose::Admin(id) => ctx.done(id, Done::Admin { region: (*self.region).clone() }),
        }
    }

    /// Answers the proposals above `committed` after a loss of leadership: a later leader may or may
    /// not commit them. Those up to `committed` are answered when they are applied.
    pub(super) fn lose_proposals(&mut self, ctx: &mut Context<E>, committed: LogIndex) {
        let as_refused = stele_types::mutant::active("raftstore.unknown_as_refused");
        for proposal in self.proposals.split_off_above(committed) {
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
        for proposal in self.proposals.split_off_above(LogIndex(0)) {
            let is_in_log = self.group.has_entry((proposal.index, proposal.term));
            match is_in_log && proposal.index <= committed {
                true => self.answer_done(ctx, proposal),
                false => ctx.unknown(proposal.purpose.id(), Unknown::ReplicaRemoved),
            }
        }
    }
}
