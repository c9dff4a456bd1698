//! The leader's lease: while it lasts nobody else can lead, so its own state is the latest.
//!
//! A follower that answers a round keeps its vote for `election_ticks_min` of its ticks from when
//! it received it, which is after the round was sent. So the lease runs from *sending* the round
//! that a quorum answered, one tick less (the first may come at once), on a clock that may run
//! slower than theirs by the drift bound.

use super::Peer;
use crate::store::Context;
use raft::eraftpb::{Entry, Message, MessageType};
use stele_storage::StorageEngine;
use stele_types::{PeerRole, RegionPhase};

impl<E: StorageEngine> Peer<E> {
    /// Whether a lease may count: this peer leads, knows all of earlier terms, votes, and never
    /// asked another peer to campaign in this term.
    fn may_hold_lease(&self) -> bool {
        let role = self.region.peer(self.name.id).map(|peer| peer.role);
        // What is prepared to be merged may belong to another region at any moment.
        self.is_leader()
            && self.region.phase == RegionPhase::Normal
            && self.leading == Some(self.term())
            && self.transfer_term != self.term()
            && role.is_some_and(|role| role != PeerRole::Learner)
    }

    /// Whether this peer is sure to be the latest leader at this moment.
    pub(super) fn holds_lease(&self, now_nanos: u64) -> bool {
        self.may_hold_lease() && self.reader.is_leased(now_nanos)
    }

    /// A quorum answered a round sent at that time.
    pub(super) fn renew_lease(&mut self, ctx: &Context<E>, sent_nanos: u64) {
        if self.may_hold_lease() {
            self.reader.renew(sent_nanos + ctx.options.lease_nanos());
        }
    }

    /// No lease in this term any more.
    pub(super) fn end_lease_for_good(&mut self) {
        if stele_types::mutant::active("raftstore.lease_after_transfer") {
            return;
        }
        self.transfer_term = self.term();
        self.reader.end_lease();
    }

    /// Whether the next tick sends heartbeats.
    fn is_heartbeat_due(&self) -> bool {
        let raft = &self.node.raft;
        self.is_leader() && raft.heartbeat_elapsed() + 1 >= raft.heartbeat_timeout()
    }

    /// Lets the heartbeats of the coming tick carry a round: their answers renew the lease.
    pub(super) fn join_heartbeat(&mut self, ctx: &mut Context<E>) {
        if !self.is_heartbeat_due() || self.leading != Some(self.term()) {
            return;
        }
        if self.node.raft.prs().is_singleton() {
            self.renew_lease(ctx, ctx.now.monotonic_nanos);
            return;
        }
        let context = self.open_round(ctx);
        let read = Entry { data: context.into(), ..Entry::default() };
        let mut request = Message::default();
        request.set_msg_type(MessageType::MsgReadIndex);
        request.set_entries(vec![read].into());
        let (committed, id) = (self.committed(), self.node.raft.id);
        self.node.raft.read_only.add_request(committed, request, id);
    }
}
