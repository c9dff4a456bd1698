//! Leadership: changes when this peer becomes or stops being leader, and leadership transfer.

use super::Peer;
use super::parts::{Seen, TransferEnd};
use crate::input::RequestId;
use crate::output::{Busy, Done, Event, Refusal, Unknown};
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::PeerId;

impl<E: StorageEngine> Peer<E> {
    /// Compares Raft's state with the last one seen and handles the changes.
    pub(super) fn observe(&mut self, ctx: &mut Context<E>) {
        let leader = self.group.leader();
        let seen = Seen { leads: self.is_leader(), term: self.term(), leader };
        let Some(transition) = self.leadership.observe(seen) else { return };
        let now = ctx.now.monotonic_nanos;
        if transition.is_lost {
            self.lose_leadership(ctx);
        }
        if transition.is_won {
            self.snapshots.clear();
            self.room.forget_followers();
            self.contacts.restart(&self.region.peers, |_| now);
        }
        if transition.is_leader_changed {
            self.reads.requeue();
        }
        self.answer_transfer(ctx);
        self.contacts.set_has_leader(leader.is_some(), now);
        if leader.is_some() {
            self.transfers.note_has_leader();
        }
        self.election.redraw();
        self.publish_leader();
    }

    /// Publishes the leader to request threads.
    pub(super) fn publish_leader(&self) {
        self.reader.set_leader(self.leader(), self.term().0);
    }

    /// Starts serving: the first entry of this peer's own term is applied.
    pub(super) fn start_leading(&mut self, ctx: &mut Context<E>) {
        let (region, term) = (self.region.id, self.term());
        self.leadership.start_serving(term);
        self.reader.set_leading_term(term.0);
        ctx.out.events.push(Event::BecameLeader { region, term });
    }

    fn lose_leadership(&mut self, ctx: &mut Context<E>) {
        self.reader.clear_leadership();
        self.snapshots.clear();
        self.changes.clear();
        self.group.set_commits_sent_at_once(false);
        self.lose_proposals(ctx);
        self.lose_reads(ctx);
        self.transfers.note_leadership_lost(&self.region);
        self.refuse_held(ctx, &Refusal::NotLeader { leader: self.leader_hint() });
        if self.leadership.stop_serving() {
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
        let timeout_nanos = ctx.options.transfer_timeout_ticks * ctx.options.tick_nanos;
        let until_nanos = ctx.now.monotonic_nanos + timeout_nanos;
        match self.transfers.begin((&self.region, self.name.id), to, id, until_nanos) {
            Ok(true) => {
                self.end_lease_for_term();
                self.group.transfer_leadership(to);
            }
            Ok(false) => id.into_iter().for_each(|id| self.done(ctx, id)),
            Err(rejection) => id.into_iter().for_each(|id| ctx.reject(id, rejection.clone())),
        }
    }

    /// Answers a leadership transfer once another peer is known to lead.
    fn answer_transfer(&mut self, ctx: &mut Context<E>) {
        if let Some(leader) = self.leader().filter(|it| it.id != self.name.id && !self.is_leader())
        {
            let ended = self.transfers.end_with_leader(leader.id);
            self.answer_transfer_end(ctx, ended);
        }
    }

    /// Answers a leadership transfer that did not end in time.
    pub(super) fn check_transfer(&mut self, ctx: &mut Context<E>) {
        let is_given_up = !self.group.is_transferring();
        let now = ctx.now.monotonic_nanos;
        let ended = self.transfers.end_late(self.is_leader(), is_given_up, now);
        self.answer_transfer_end(ctx, ended);
    }

    fn answer_transfer_end(&self, ctx: &mut Context<E>, end: Option<(RequestId, TransferEnd)>) {
        let Some((id, end)) = end else { return };
        match end {
            TransferEnd::Done => self.done(ctx, id),
            TransferEnd::Superseded => {
                ctx.reject(id, Refusal::Superseded { leader: self.leader() })
            }
            TransferEnd::Unknown => ctx.unknown(id, Unknown::TransferTimedOut),
            TransferEnd::TimedOut => {
                ctx.reject(id, Busy::Wait { reason: "the leadership transfer timed out" });
            }
        }
    }

    /// Answers a request to change the region that was executed.
    pub(super) fn done(&self, ctx: &mut Context<E>, id: RequestId) {
        ctx.done(id, Done::Admin { region: (*self.region).clone() });
    }

    /// Steps down if this leader is no longer a voter: its log does not count for the quorum.
    pub(super) fn step_down_if_no_voter(&mut self) {
        if self.is_leader() && !self.group.is_voter() {
            self.group.step_down();
        }
    }
}
