//! Snapshots out: a follower that needs entries which are gone gets the pairs instead, and a voter that
//! has no replica yet, where nobody can be elected without it.

use super::Peer;
use crate::messages::{Body, RaftKind, RaftMessage, SnapshotHeader};
use crate::output::SendSnapshot;
use crate::store::Context;
use raft::SnapshotStatus;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{
    KeyRange, LogIndex, Peer as PeerName, PeerId, PeerRole, Region, Term, keyspace, mutant,
};

/// Longest election times without a leader, and without a word of a voter, before that is offered a
/// snapshot: whoever has a replica was asked for its vote by then.
const OFFER_AFTER: u64 = 3;

/// What a snapshot of a region holds: its descriptor and its pairs, ascending.
pub(crate) fn snapshot_ranges(region: &Region) -> Vec<KeyRange> {
    let key = keyspace::region_key(region.id);
    let mut end = key.to_vec();
    end.push(0);
    std::iter::once(KeyRange::new(key, end)).chain(region.engine_ranges()).collect()
}

impl<E: StorageEngine> Peer<E> {
    /// Hands out a snapshot of what is applied at this moment: at least what Raft had in mind.
    pub(super) fn send_snapshot(&mut self, ctx: &mut Context<E>, to: PeerName) {
        let wait = self.snapshot_waits.get(&to.id.0).copied().unwrap_or_default();
        if ctx.now.monotonic_nanos < wait.until_nanos {
            self.node.report_snapshot(to.id.0, SnapshotStatus::Failure);
            return;
        }
        let snapshot = self.snapshot_for(ctx, to);
        ctx.out.snapshots.extend(snapshot);
    }

    fn snapshot_for(&self, ctx: &Context<E>, to: PeerName) -> Option<SendSnapshot<E>> {
        let term = self.log().term_of(self.applied)?;
        let view = ctx.engine.view().ok()?;
        let ranges = snapshot_ranges(&self.region);
        let size = |range| ctx.engine.range_size(range).unwrap_or_default().bytes;
        let header = SnapshotHeader {
            region: (*self.region).clone(),
            at: (LogIndex(self.applied), Term(term)),
            leader_term: Term(self.term()),
            from: self.name,
            to,
            bytes: ranges.iter().map(size).sum(),
        };
        Some(SendSnapshot { header, to_store: to.store, view: Arc::new(view), ranges })
    }

    /// Without a leader for long, voters that answer nothing are offered what is applied here. A split may
    /// have passed one by, in a snapshot of the region it came from, while the others of the new region were
    /// lost: nobody leads who would bring it there, and a store without a replica does not vote.
    /// Rule: only what is applied, which is committed: a voter that never had a replica promised nothing,
    /// so with that it is one that was late. Who was buried, or has as much, refuses.
    pub(super) fn offer_to_silent_voters(&mut self, ctx: &mut Context<E>) {
        let options = &ctx.options;
        let patience = OFFER_AFTER * options.election_ticks_max * options.tick_nanos;
        let now = ctx.now.monotonic_nanos;
        let is_long = |since: u64| now.saturating_sub(since) >= patience;
        let is_alone = self.leaderless_since.is_some_and(is_long) && self.leader().is_none();
        let offers = is_alone && !self.is_leader() && self.node.raft.promotable();
        if !offers || mutant::active("raftstore.offers_nothing") {
            return;
        }
        let region = self.region.clone();
        for peer in region.peers.iter().filter(|peer| peer.role != PeerRole::Learner) {
            let is_silent = self.heard.get(&peer.id.0).is_none_or(|heard| is_long(*heard));
            let waits = self.snapshot_waits.get(&peer.id.0).is_some_and(|it| now < it.until_nanos);
            let is_reached = !ctx.unreachable.contains_key(&peer.store);
            if peer.id == self.name.id || !is_silent || waits || !is_reached {
                continue;
            }
            let Some(snapshot) = self.snapshot_for(ctx, *peer) else { continue };
            ctx.out.snapshots.push(snapshot);
            // Not twice, until it is known what became of it, and until that had its effect.
            self.snapshot_waits.entry(peer.id.0).or_default().until_nanos = u64::MAX;
        }
    }

    /// Who offers a snapshot of what the log holds heard nothing of what became of an earlier one, and
    /// knows of no other entry to begin with: it would offer it for ever. Rule: an acknowledgement like any
    /// other, of what is durable, in a term that is.
    pub fn acknowledge_held(&self, ctx: &mut Context<E>, header: &SnapshotHeader) {
        let LogIndex(index) = header.at.0;
        let is_held = self.holds(header.at) || index <= self.committed();
        let is_durable = self.is_durable() && index <= self.node.raft.raft_log.persisted;
        let is_meant = header.to.id == self.name.id;
        let is_silent = mutant::active("raftstore.held_snapshot_unanswered");
        if is_held && is_durable && is_meant && !is_silent {
            let mut answer = RaftMessage::new(RaftKind::AppendResponse, Term(self.term()));
            (answer.index, answer.commit) = (header.at.0, LogIndex(self.committed()));
            self.send(ctx, header.from, Body::Raft(answer));
        }
    }

    /// A snapshot arrived at its receiver, or did not: then the next one waits, twice as long each
    /// time.
    pub fn snapshot_sent(&mut self, ctx: &Context<E>, to: PeerId, ok: bool) {
        if ok {
            self.snapshot_waits.remove(&to.0);
            if !self.is_leader() {
                // Its vote comes next.
                self.heard.insert(to.0, ctx.now.monotonic_nanos);
            }
            return self.node.report_snapshot(to.0, SnapshotStatus::Finish);
        }
        let wait = self.snapshot_waits.entry(to.0).or_default();
        wait.failures = (wait.failures + 1).min(FAILURES_MAX);
        let least = ctx.options.election_ticks_min * ctx.options.tick_nanos;
        let pause = least << (wait.failures - 1);
        wait.until_nanos = ctx.now.monotonic_nanos + pause;
        self.node.report_snapshot(to.0, SnapshotStatus::Failure);
    }
}

/// When a snapshot to a peer that did not take the last ones may be tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wait {
    failures: u32,
    until_nanos: u64,
}

/// The longest pause is 2 to the power of one less than this, in least election times.
const FAILURES_MAX: u32 = 5;
