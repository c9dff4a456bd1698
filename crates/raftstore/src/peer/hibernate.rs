//! Hibernation: an idle region sends no messages and stops its ticks. Its lease runs out; a request
//! wakes it. A hibernating replica may be removed without learning of it: its store probes for
//! that, see [`crate::store`].

use super::Peer;
use super::parts::Reaction;
use crate::messages::{Body, RaftKind};
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Peer as PeerName, RegionPhase, Term, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Returns whether ticks are stopped.
    pub fn is_hibernating(&self) -> bool {
        self.hibernation.is_active()
    }

    /// Returns whether it hibernates and is not the only member: the others may have removed it.
    pub fn may_have_been_removed(&self) -> bool {
        self.is_hibernating() && self.region.peers.len() > 1
    }

    /// Resumes ticks. Silence during hibernation is not a failure: only peers on unreachable stores
    /// count as unresponsive.
    pub fn wake(&mut self, ctx: &mut Context<E>) {
        if self.hibernation.end() && !mutant::active("raftstore.rest_is_silence") {
            let now = ctx.now.monotonic_nanos;
            let since = |peer: &PeerName| ctx.unreachable.get(&peer.store).copied().unwrap_or(now);
            self.contacts.restart(&self.region.peers, since);
        }
    }

    /// Wakes the replica for a client. A hibernating follower cannot know whether its leader
    /// still runs, so it also wakes the leader.
    pub fn wake_for_client(&mut self, ctx: &mut Context<E>) {
        if self.is_hibernating()
            && let Some(leader) = self.leader()
            && leader.id != self.name.id
        {
            self.send(ctx, leader, Body::WakeUp);
        }
        self.wake(ctx);
    }

    /// Updates the idle state for a message.
    pub(super) fn note_message(&mut self, ctx: &mut Context<E>, kind: RaftKind) {
        match self.hibernation.reaction(kind) {
            Reaction::None => {}
            Reaction::HasLeader => self.contacts.set_has_leader(true, ctx.now.monotonic_nanos),
            Reaction::Wake => self.wake(ctx),
        }
    }

    /// Hibernates the region if this peer leads, nothing happened for `hibernate_after_ticks` and
    /// all followers have the whole log. Sends the followers the request to hibernate.
    pub(super) fn hibernate_if_idle(&mut self, ctx: &mut Context<E>) {
        if !self.hibernation.is_due(ctx.options.hibernate_after_ticks) || !self.is_serving() {
            return;
        }
        let last = self.group.last();
        let caught_up = self.group.followers().all(|it| it.matched == last);
        if !caught_up
            || !self.is_idle(last)
            || self.transfers.is_pending()
            || self.region.is_joint()
        {
            return;
        }
        let term = self.term();
        self.send_to_others(ctx, &Body::Hibernate { term, last });
        self.hibernation.start();
    }

    /// Returns whether everything up to `last` is committed, applied and durable and nothing is
    /// pending.
    fn is_idle(&self, last: LogIndex) -> bool {
        self.committed() == last
            && self.applied() == last
            && self.is_durable()
            && self.proposals.is_idle()
            && self.held.is_empty()
            && self.reads.is_idle()
            && self.region.phase == RegionPhase::Normal
    }

    /// Hibernates with its leader if the log ends at `last` and nothing is pending. Otherwise wakes
    /// the leader.
    pub(super) fn on_hibernate(
        &mut self,
        ctx: &mut Context<E>,
        from: PeerName,
        term: Term,
        last: LogIndex,
    ) {
        let follows = self.group.leader() == Some(from.id) && self.term() == term;
        if follows && self.group.last() == last && self.is_idle(last) {
            self.hibernation.start();
        } else if follows {
            self.send(ctx, from, Body::WakeUp);
        }
    }
}
