//! Sending of snapshots: to a follower that needs truncated entries, and to a voter without a
//! replica if no leader can be elected without it.

use super::Replica;
use super::raft_group::Follower;
use crate::CommittedMerges;
use crate::context::Context;
use crate::messages::{Body, RaftKind, RaftMessage, SnapshotHeader};
use crate::output::SendSnapshot;
use std::sync::Arc;
use stele_storage::StorageEngine;
use stele_types::{KeyRange, LogIndex, Peer, PeerId, PeerRole, Region, Term, keyspace};

/// Number of longest election timeouts without a leader, and without a message from a voter, after
/// which that voter is offered a snapshot. By then every replica has been sent a vote request.
pub(super) const OFFER_AFTER: u64 = 3;

/// Returns the ranges of a region's snapshot: its descriptor and its pairs, ascending.
pub(crate) fn snapshot_ranges(region: &Region) -> Vec<KeyRange> {
    let descriptor = KeyRange::of_key(keyspace::region_key(region.id));
    std::iter::once(descriptor).chain(region.engine_ranges()).collect()
}

impl<E: StorageEngine> Replica<E> {
    /// Sends a snapshot of the applied state, which is at least as recent as the one that Raft
    /// asked for. Invariant: the view holds exactly the entries up to the header's. A receiver with
    /// later pairs would apply their entries again, and show older values in between.
    pub(super) fn send_snapshot(&mut self, ctx: &mut Context<E>, to: Peer) {
        if !self.snapshots.may_send(to.id, ctx.now.monotonic_nanos) {
            self.group.note_snapshot(to.id, false);
            return;
        }
        match self.snapshot_for(ctx, to) {
            Some(snapshot) => {
                self.snapshots.note_begun(to.id);
                ctx.out.snapshots.push(snapshot);
            }
            None => self.group.note_snapshot(to.id, false),
        }
    }

    fn snapshot_for(&self, ctx: &Context<E>, to: Peer) -> Option<SendSnapshot<E>> {
        let at = self.applied();
        let term = self.group.term_of(at)?;
        let view = ctx.engine.view().ok()?;
        let ranges = snapshot_ranges(&self.region);
        let size = |range| ctx.engine.range_size(range).unwrap_or_default().bytes;
        let header = SnapshotHeader {
            region: (*self.region).clone(),
            at: (at, term),
            leader_term: self.term(),
            from: self.peer,
            to,
            bytes: ranges.iter().map(size).sum(),
            merges: self.merges_to_send(ctx),
        };
        Some(SendSnapshot { header, to_store: to.store, view: Arc::new(view), ranges })
    }

    /// Returns the record of committed merges as of the applied state.
    fn merges_to_send(&self, ctx: &Context<E>) -> Option<CommittedMerges> {
        let version = self.region.epoch.version;
        let known = ctx.merges.get(&self.region.id).cloned();
        let merges = known.unwrap_or_else(|| CommittedMerges::since(version));
        // bug replica.merges_not_sent: `Some(merges)` is `None`
        Some(merges)
    }

    /// Offers a snapshot of the applied state to unresponsive voters if there has been no leader
    /// for long. A voter may lack the replica because it received a snapshot of the parent region
    /// from after the split, while the new region's other replicas were lost: no leader is there to
    /// create it, and a store without a replica does not vote.
    ///
    /// Invariant: the snapshot holds only applied, hence committed, entries. A voter without a
    /// replica has made no promise, so after the snapshot it equals a slow replica. A store with a
    /// tombstone of the peer, or with as many entries, refuses the snapshot.
    pub(super) fn offer_snapshots_if_leaderless(&mut self, ctx: &mut Context<E>) {
        let options = &ctx.options;
        let timeout_nanos = options.device_nanos(OFFER_AFTER * options.election_ticks_max);
        let now = ctx.now.monotonic_nanos;
        let is_long = |since: u64| now.saturating_sub(since) >= timeout_nanos;
        let is_alone = self.leader().is_none()
            && self.contacts.leaderless_nanos(now).is_some_and(|nanos| nanos >= timeout_nanos);
        let offers = is_alone && !self.is_leader() && self.group.is_voter();
        // bug replica.offers_nothing: always
        if !offers {
            return;
        }
        let region = self.region.clone();
        for peer in region.peers.iter().filter(|peer| peer.role != PeerRole::Learner) {
            let is_unresponsive = self.contacts.last(peer.id).is_none_or(is_long);
            let waits = !self.snapshots.may_send(peer.id, now);
            let is_reached = !ctx.unreachable.contains_key(&peer.store);
            if peer.id == self.peer.id || !is_unresponsive || waits || !is_reached {
                continue;
            }
            let Some(snapshot) = self.snapshot_for(ctx, *peer) else { continue };
            ctx.out.snapshots.push(snapshot);
            self.snapshots.note_begun(peer.id);
            self.snapshots.note_offered(peer.id);
        }
    }

    /// Acknowledges an offered snapshot if the log already holds its entry. Without this the
    /// sender, which has not learned the result of an earlier snapshot and has no earlier entry to
    /// send from, would repeat the offer permanently. Invariant: like any acknowledgement it covers
    /// only durable entries, in a durable term.
    pub(crate) fn acknowledge_held(&self, ctx: &mut Context<E>, header: &SnapshotHeader) {
        let index = header.at.0;
        let is_held = self.has_entry(header.at) || index <= self.committed();
        let is_durable = self.is_durable() && index <= self.group.persisted();
        let is_addressed = header.to.id == self.peer.id;
        // bug replica.held_snapshot_unanswered: never
        if is_held && is_durable && is_addressed {
            let mut answer = RaftMessage::new(RaftKind::AppendResponse, self.term());
            (answer.index, answer.commit) = (index, self.committed());
            self.send(ctx, header.from, Body::Raft(answer));
        }
    }

    pub(crate) fn snapshot_sent(&mut self, ctx: &Context<E>, to: PeerId, ok: bool) {
        let now = ctx.now.monotonic_nanos;
        self.snapshots.note_ended(to);
        if ok {
            self.snapshots.note_received(to);
            if !self.is_leader() {
                // Its vote is expected next.
                self.contacts.note(to, now);
            }
        } else {
            let least_nanos = ctx.options.device_nanos(ctx.options.election_ticks_min);
            self.snapshots.note_failed(to, now, least_nanos);
        }
        // bug replica.lost_snapshot_untold: skip if !ok
        self.group.note_snapshot(to, ok);
    }
}

// Truncation of a replica's log.

/// Least entries, or bytes, that a truncation drops.
const STEP_ENTRIES: u64 = 64;
const STEP_BYTES: u64 = 4 << 20;

impl<E: StorageEngine> Replica<E> {
    /// Truncates entries that a checkpoint covers (without one a crash would lose them), except the
    /// latest entries and those a follower lacks. A follower that lags by too many bytes gets a
    /// snapshot instead, and the entries it pinned request a checkpoint at once. `at_once`: a few
    /// entries are worth a truncation.
    ///
    /// Invariant: nothing above `applied` is truncated. An engine that applies behind a queue of its own
    /// may have a later checkpoint.
    pub(crate) fn truncate_log(&mut self, ctx: &mut Context<E>, at_once: bool) {
        let Some(progress) = ctx.engine.progress(self.region.id) else { return };
        let pin_bytes_max = ctx.options.log_kept.pin_bytes_max;
        let applied = self.applied().0;
        let enough = applied.saturating_sub(self.entries_kept(ctx));
        let within = self.log().index_with_bytes_above(pin_bytes_max).min(applied);
        let mut upto = enough.max(within);
        let needed = self.needed_above(ctx);
        let pins_too_much = self.log().bytes_above(needed) > pin_bytes_max;
        if !pins_too_much {
            upto = upto.min(needed);
        }
        let checkpointed = progress.checkpointed.0;
        let over = self.log().bytes_above(checkpointed) > pin_bytes_max;
        if pins_too_much && over && upto > checkpointed {
            // bug replica.pin_waits: skip
            ctx.out.wants_checkpoint = true;
        }
        upto = upto.min(checkpointed);
        let (from, _) = self.log().truncated();
        let dropped = self.log().bytes_above(from).saturating_sub(self.log().bytes_above(upto));
        let is_worth_it = at_once || upto >= from + STEP_ENTRIES || dropped >= STEP_BYTES;
        if upto <= from || !is_worth_it {
            return;
        }
        let Some(term) = self.log().term_of(upto) else { return };
        self.log_mut().truncate(upto, term);
        ctx.batches.piggyback(self.region.id, self.current_hard_state());
        ctx.batches.piggyback_truncation(self.region.id, LogIndex(upto), Term(term));
    }

    /// Returns how many of the latest entries stay for followers that fall behind later.
    ///
    /// Invariant: while the store is short of space, or if the region has no other replica, no entry
    /// stays that no live follower lacks. A new leader keeps them until it knows what its followers
    /// have.
    /// Test: `a_store_short_of_space_keeps_no_entry_that_no_live_follower_lacks`.
    fn entries_kept(&self, ctx: &Context<E>) -> u64 {
        let is_alone = self.region.peers.len() == 1;
        let knows_followers = !self.is_leader() || self.is_serving();
        let keeps_none = (ctx.space.is_short || is_alone) && knows_followers;
        // bug replica.short_store_keeps_entries: `keeps_none` is `false`
        match keeps_none {
            true => 0,
            false => ctx.options.log_kept.entries,
        }
    }

    /// Returns the index above which followers need entries. Counts followers that can still be
    /// sent entries from the log. A follower that is receiving a snapshot needs the entries after
    /// it, or it would need another snapshot at once. A store that is short of space keeps nothing
    /// for followers that do not answer or have no room.
    fn needed_above(&self, ctx: &Context<E>) -> u64 {
        if !self.is_leader() {
            return u64::MAX;
        }
        let (truncated, _) = self.log().truncated();
        let takes = |it: &Follower| {
            let is_known = it.snapshot.is_some() || self.is_live(ctx, it.id);
            !ctx.space.is_short || is_known && !self.room.is_full(it.id)
        };
        // bug replica.snapshot_pins_nothing: `snapshot.0` is `0`
        let needs = self.group.followers().filter(takes).map(|it| match it.snapshot {
            Some(snapshot) => snapshot.0,
            None => it.matched.0,
        });
        needs.filter(|need| *need > 0 && *need >= truncated).min().unwrap_or(u64::MAX)
    }
}
