//! Proposals in flight and the replies to their clients.

use super::Peer;
use crate::input::RequestId;
use crate::output::{Refusal, Reply, Timings};
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
    pub index: u64,
    pub term: u64,
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

    fn pop_through(&mut self, index: u64) -> Option<Proposal> {
        self.waiting.front().filter(|proposal| proposal.index <= index)?;
        let proposal = self.waiting.pop_front()?;
        self.bytes -= proposal.bytes;
        Some(proposal)
    }

    fn split_off_above(&mut self, index: u64) -> Vec<Proposal> {
        let keep = self.waiting.partition_point(|proposal| proposal.index <= index);
        let gone: Vec<_> = self.waiting.split_off(keep).into();
        self.bytes -= gone.iter().map(|proposal| proposal.bytes).sum::<u64>();
        gone
    }

    /// Records the time at which entries up to `index` became durable here.
    pub fn note_durable(&mut self, index: u64, now_nanos: u64) {
        let reached = self.waiting.iter_mut().take_while(|proposal| proposal.index <= index);
        for proposal in reached.filter(|proposal| proposal.durable == 0) {
            proposal.durable = now_nanos;
        }
    }

    /// Records the time at which entries up to `index` were committed.
    pub fn note_committed(&mut self, index: u64, now_nanos: u64) {
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

impl<E: StorageEngine> Peer<E> {
    /// Replies to the proposer of an applied entry. Refuses proposals of lower index, or of the
    /// same index and another term: they are lost.
    pub(super) fn answer_applied(&mut self, ctx: &mut Context<E>, index: u64, term: u64) {
        while let Some(proposal) = self.proposals.pop_through(index) {
            if (proposal.index, proposal.term) != (index, term) {
                lose(ctx, proposal.purpose);
                continue;
            }
            let timings = proposal.timings(ctx.now.monotonic_nanos);
            match proposal.purpose {
                Purpose::Write(id) => {
                    let (index, term) = (LogIndex(index), Term(term));
                    ctx.reply(id, Reply::Written { index, term, timings });
                }
                Purpose::Cas(id, previous) => {
                    ctx.reply(id, Reply::Cas { succeeded: true, previous, timings });
                }
                Purpose::Admin(id) => {
                    ctx.reply(id, Reply::AdminDone { region: (*self.region).clone() });
                }
            }
        }
    }

    /// Refuses proposals above `above` after a loss of leadership. Committed entries will be
    /// applied and answered; the outcome of the others is unknown here.
    pub(super) fn lose_proposals(&mut self, ctx: &mut Context<E>, above: u64) {
        for proposal in self.proposals.split_off_above(above) {
            lose(ctx, proposal.purpose);
        }
    }
}

/// Refuses a proposal of unknown outcome. Clients may retry a write. They may not retry a
/// comparison: the second could fail because the first took effect.
fn lose<E: StorageEngine>(ctx: &mut Context<E>, purpose: Purpose) {
    match purpose {
        Purpose::Write(id) | Purpose::Admin(id) => ctx.refuse(id, Refusal::StaleCommand),
        Purpose::Cas(id, _) => ctx.refuse(id, Refusal::Undetermined),
    }
}
