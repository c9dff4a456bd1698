//! Leadership: changes when this peer becomes or stops being leader, and leadership transfer.

use super::Peer;
use crate::input::RequestId;
use crate::output::{Event, Refusal, Reply};
use crate::store::Context;
use raft::INVALID_ID;
use stele_storage::StorageEngine;
use stele_types::PeerId;

/// Raft state seen by the last [`Peer::observe`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    leads: bool,
    term: u64,
    leader: u64,
}

/// Leadership transfer in progress.
pub(super) struct Transfer {
    to: PeerId,
    id: Option<RequestId>,
}

impl<E: StorageEngine> Peer<E> {
    /// Compares Raft's state with the last one seen and handles the changes.
    pub(super) fn observe(&mut self, ctx: &mut Context<E>) {
        let (term, leader) = (self.term(), self.node.raft.leader_id);
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
            self.last_contact = self.region.peers.iter().map(|peer| (peer.id.0, now)).collect();
        }
        if before.leader != leader || before.leads != seen.leads {
            self.requeue_reads();
        }
        if leader == INVALID_ID {
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
        self.reader.set_leader(self.leader(), self.term());
    }

    /// Starts serving: the first entry of this peer's own term is applied, so it knows all that was
    /// committed before.
    pub(super) fn start_leading(&mut self, ctx: &mut Context<E>) {
        let term = self.term();
        self.leading = Some(term);
        self.reader.set_leading_term(term);
        let region = self.region.id;
        ctx.out.events.push(Event::BecameLeader { region, term: stele_types::Term(term) });
    }

    fn lose_leadership(&mut self, ctx: &mut Context<E>) {
        self.reader.clear_leadership();
        self.barrier = None;
        self.snapshot_waits.clear();
        self.admin_at = None;
        self.node.raft.skip_bcast_commit(true);
        self.lose_proposals(ctx, self.committed());
        self.lose_reads(ctx);
        if let Some(Transfer { to, id }) = self.transfer.take() {
            self.transfer_target = self.region.peer(to).copied();
            let region = (*self.region).clone();
            id.into_iter()
                .for_each(|id| ctx.reply(id, Reply::AdminDone { region: region.clone() }));
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
        let refusal = match self.region.peer(to) {
            Some(peer) if peer.id == self.name.id => None,
            Some(peer) if peer.role.votes_next() && self.transfer.is_none() => {
                self.end_lease_for_term();
                self.node.transfer_leader(to.0);
                self.transfer = Some(Transfer { to, id });
                return;
            }
            Some(peer) if peer.role.votes_next() => {
                Some(Refusal::Busy { reason: "a leadership transfer is already in progress" })
            }
            _ => Some(Refusal::Invalid(format!("peer {to} is not a voter of the region"))),
        };
        let Some(id) = id else { return };
        match refusal {
            Some(refusal) => ctx.refuse(id, refusal),
            None => ctx.reply(id, Reply::AdminDone { region: (*self.region).clone() }),
        }
    }

    /// Fails a leadership transfer that Raft aborted; this peer stays leader.
    pub(super) fn check_transfer(&mut self, ctx: &mut Context<E>) {
        if self.node.raft.lead_transferee.is_some() || !self.is_leader() {
            return;
        }
        if let Some(Transfer { id: Some(id), .. }) = self.transfer.take() {
            ctx.refuse(id, Refusal::Busy { reason: "the leadership transfer timed out" });
        }
    }

    /// Returns whether Raft would drop proposals because of a leadership transfer.
    pub(super) fn is_transferring(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Steps down if this leader is no longer a voter: its log does not count for the quorum.
    pub(super) fn step_down_if_no_voter(&mut self) {
        if self.is_leader() && !self.node.raft.promotable() {
            let term = self.term();
            self.node.raft.become_follower(term, INVALID_ID);
        }
    }
}
