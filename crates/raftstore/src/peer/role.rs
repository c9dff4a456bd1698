//! Leadership: changes when this peer becomes or stops being leader, and leadership transfer.

use super::Peer;
use super::raft_group::Outgoing;
use crate::input::RequestId;
use crate::messages::RaftKind;
use crate::output::{Busy, Done, Event, Refusal, Rejection, Unknown};
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{PeerId, Term};

/// Raft state seen by the last [`Peer::observe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    leads: bool,
    term: Term,
    leader: Option<PeerId>,
}

/// Leadership transfer in progress.
pub(super) struct Transfer {
    to: PeerId,
    id: Option<RequestId>,
    /// Whether the target was offered the leadership. Before that it cannot become leader by this
    /// transfer.
    is_offered: bool,
    /// Monotonic nanoseconds after which a peer that no longer leads gives up on the answer.
    until_nanos: u64,
}

impl<E: StorageEngine> Peer<E> {
    /// Compares Raft's state with the last one seen and handles the changes.
    pub(super) fn observe(&mut self, ctx: &mut Context<E>) {
        let (term, leader) = (self.term(), self.group.leader());
        let seen = Seen { leads: self.is_leader(), term, leader };
        if seen == self.seen {
            return;
        }
        let before = std::mem::replace(&mut self.seen, seen);
        let stays_leader = before.leads && seen.leads && before.term == seen.term;
        if before.leads && !stays_leader {
            self.lose_leadership(ctx);
        }
        if seen.leads && !stays_leader {
            let now = ctx.now.monotonic_nanos;
            // Snapshots offered before this term say nothing about what followers need now.
            self.snapshot_waits.clear();
            self.last_contact = self.region.peers.iter().map(|peer| (peer.id, now)).collect();
        }
        if before.leader != leader || before.leads != seen.leads {
            self.requeue_reads();
        }
        self.answer_transfer(ctx);
        if leader.is_none() {
            self.leaderless_since.get_or_insert(ctx.now.monotonic_nanos);
        } else {
            self.leaderless_since = None;
            self.transfer_target = None;
        }
        self.timer.redraw();
        self.publish_leader();
    }

    /// Publishes the leader to request threads.
    pub(super) fn publish_leader(&self) {
        self.reader.set_leader(self.leader(), self.term().0);
    }

    /// Starts serving: the first entry of this peer's own term is applied, so it knows all that was
    /// committed before.
    pub(super) fn start_leading(&mut self, ctx: &mut Context<E>) {
        let term = self.term();
        self.leading = Some(term);
        self.reader.set_leading_term(term.0);
        let region = self.region.id;
        ctx.out.events.push(Event::BecameLeader { region, term });
    }

    fn lose_leadership(&mut self, ctx: &mut Context<E>) {
        self.reader.clear_leadership();
        self.barrier = None;
        self.snapshot_waits.clear();
        self.admin_at = None;
        self.group.set_commits_sent_at_once(false);
        self.lose_proposals(ctx, self.committed());
        self.lose_reads(ctx);
        if let Some(transfer) = &self.transfer {
            self.transfer_target = self.region.peer(transfer.to).copied();
        }
        if self.leading.take().is_some() {
            ctx.out.events.push(Event::LostLeader { region: self.region.id });
        }
    }

    /// Starts a leadership transfer to `to`. From here on no lease is valid in this term: the
    /// target campaigns regardless of the followers' vote holds.
    pub(super) fn begin_transfer(
        &mut self,
        ctx: &mut Context<E>,
        to: PeerId,
        id: Option<RequestId>,
    ) {
        let rejection = match self.region.peer(to) {
            Some(peer) if peer.id == self.name.id => None,
            Some(peer) if peer.role.votes_next() && self.transfer.is_none() => {
                self.end_lease_for_term();
                self.group.transfer_leadership(to);
                let timeout_nanos = ctx.options.transfer_timeout_ticks * ctx.options.tick_nanos;
                let until_nanos = ctx.now.monotonic_nanos + timeout_nanos;
                self.transfer = Some(Transfer { to, id, is_offered: false, until_nanos });
                return;
            }
            Some(peer) if peer.role.votes_next() => {
                let reason = "a leadership transfer is already in progress";
                Some(Rejection::from(Busy::Wait { reason }))
            }
            _ => Some(Refusal::Invalid(format!("peer {to} is not a voter of the region")).into()),
        };
        let Some(id) = id else { return };
        match rejection {
            Some(rejection) => ctx.reject(id, rejection),
            None => ctx.done(id, Done::Admin { region: (*self.region).clone() }),
        }
    }

    /// Answers a leadership transfer once another peer is known to lead. It is done only if the
    /// target leads. Otherwise the offer to the target is of an earlier term and has no effect.
    fn answer_transfer(&mut self, ctx: &mut Context<E>) {
        let leader = self.leader().filter(|leader| leader.id != self.name.id);
        let (Some(leader), false) = (leader, self.is_leader()) else { return };
        let Some(Transfer { to, id: Some(id), .. }) = self.transfer.take() else { return };
        let any = stele_types::mutant::active("raftstore.transfer_done_to_any");
        match leader.id == to || any {
            true => ctx.done(id, Done::Admin { region: (*self.region).clone() }),
            false => ctx.reject(id, Refusal::Superseded { leader: Some(leader) }),
        }
    }

    /// Records that the offer to campaign leaves for the target.
    pub(super) fn note_transfer_offer(&mut self, messages: &[Outgoing]) {
        let Some(transfer) = &mut self.transfer else { return };
        let is_offer = |it: &Outgoing| matches!(it, Outgoing::Message(_, it) if it.kind == RaftKind::TimeoutNow);
        transfer.is_offered |= messages.iter().any(is_offer);
    }

    /// Answers a leadership transfer that did not end in time. If the target was offered the
    /// leadership, it may still campaign, so the outcome is unknown.
    pub(super) fn check_transfer(&mut self, ctx: &mut Context<E>) {
        let now = ctx.now.monotonic_nanos;
        let has_ended = match self.is_leader() {
            true => !self.group.is_transferring(),
            false => self.transfer.as_ref().is_some_and(|it| it.until_nanos <= now),
        };
        if !has_ended {
            return;
        }
        let Some(Transfer { id: Some(id), is_offered, .. }) = self.transfer.take() else { return };
        match is_offered {
            true => ctx.unknown(id, Unknown::TransferTimedOut),
            false => ctx.reject(id, Busy::Wait { reason: "the leadership transfer timed out" }),
        }
    }

    /// Answers a leadership transfer of a replica that leaves this store.
    pub(super) fn abandon_transfer(&mut self, ctx: &mut Context<E>) {
        if let Some(Transfer { id: Some(id), .. }) = self.transfer.take() {
            ctx.unknown(id, Unknown::ReplicaRemoved);
        }
    }

    /// Steps down if this leader is no longer a voter: its log does not count for the quorum.
    pub(super) fn step_down_if_no_voter(&mut self) {
        if self.is_leader() && !self.group.is_voter() {
            self.group.step_down();
        }
    }
}
