//! Rest: a region without work sends nothing and costs nothing. Its lease runs out; whoever needs it
//! wakes it. A replica at rest may be removed without hearing of it: its store asks, see
//! [`crate::store`].

use super::Peer;
use crate::messages::{Body, RaftKind};
use crate::store::Context;
use stele_storage::StorageEngine;
use stele_types::{LogIndex, Peer as PeerName, RegionPhase, Term, mutant};

impl<E: StorageEngine> Peer<E> {
    /// Whether it does not tick.
    pub fn is_hibernating(&self) -> bool {
        self.timer.hibernation_probe
    }

    /// Whether it rests and there are others, who may have gone on without it.
    pub fn may_have_been_removed(&self) -> bool {
        self.timer.hibernation_probe && self.region.peers.len() > 1
    }

    /// Ticks again. While it rested nobody had anything to say: only who can't be reached was silent.
    pub fn wake(&mut self, ctx: &mut Context<E>) {
        if std::mem::take(&mut self.timer.hibernation_probe)
            && !mutant::active("raftstore.rest_is_silence")
        {
            let now = ctx.now.monotonic_nanos;
            let since = |peer: &PeerName| ctx.unreachable.get(&peer.store).copied().unwrap_or(now);
            self.heard = self.region.peers.iter().map(|it| (it.id.0, since(it))).collect();
        }
        self.timer.idle_ticks = 0;
    }

    /// A client came. A resting follower can't tell whether its leader lives: it asks.
    pub fn wake_for_client(&mut self, ctx: &mut Context<E>) {
        if self.timer.hibernation_probe
            && let Some(leader) = self.leader()
            && leader.id != self.name.id
        {
            self.send(ctx, leader, Body::WakeUp);
        }
        self.wake(ctx);
    }

    /// Heartbeats keep nobody awake, but one says that the leader is. All else is work.
    pub(super) fn note_message(&mut self, ctx: &mut Context<E>, kind: RaftKind) {
        match kind {
            RaftKind::HeartbeatResponse => {}
            RaftKind::Heartbeat if !self.timer.hibernation_probe => self.leaderless_since = None,
            _ => self.wake(ctx),
        }
    }

    /// A leader whose region had no work for long, and whose followers have all it has, tells them
    /// to rest and rests.
    pub(super) fn hibernate_if_idle(&mut self, ctx: &mut Context<E>) {
        let after = ctx.options.hibernate_after_ticks;
        if after == 0 || self.timer.idle_ticks < after || self.leading != Some(self.term()) {
            return;
        }
        let last = self.last_index();
        let raft = &self.node.raft;
        let mut followers = raft.prs().iter().filter(|(id, _)| **id != raft.id);
        let caught_up = followers.all(|(_, progress)| progress.matched == last);
        if !caught_up || !self.is_idle(last) || self.transfer.is_some() || self.region.is_joint() {
            return;
        }
        let term = Term(self.term());
        for peer in self.region.peers.iter().filter(|peer| peer.id != self.name.id) {
            self.send(ctx, *peer, Body::Hibernate { term, last: LogIndex(last) });
        }
        self.timer.hibernation_probe = true;
    }

    /// Whether nothing is under way here.
    fn is_idle(&self, last: u64) -> bool {
        self.committed() == last
            && self.applied == last
            && self.is_durable()
            && self.queue.is_empty()
            && self.proposals.is_empty()
            && self.reads.is_idle()
            && self.region.phase == RegionPhase::Normal
    }

    /// The leader rests. Whoever lacks something of what it has does not.
    pub(super) fn on_hibernate(
        &mut self,
        ctx: &mut Context<E>,
        from: PeerName,
        term: Term,
        last: LogIndex,
    ) {
        let follows = self.node.raft.leader_id == from.id.0 && self.term() == term.0;
        if follows && self.last_index() == last.0 && self.is_idle(last.0) {
            self.timer.hibernation_probe = true;
        } else if follows {
            self.send(ctx, from, Body::WakeUp);
        }
    }
}
