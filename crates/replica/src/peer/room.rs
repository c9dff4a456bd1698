//! Followers without room: which received entries the device here takes, and how the leader treats
//! followers that have none.
//!
//! A follower refuses entries that would use the reserve of its device, and states so in its answer to
//! the append. The leader then sends it appends without puts, which ask for room, and at least two a
//! second. Heartbeats, votes, deletes and changes of the region go on.
//!
//! Puts that are in the log already may need the vote of a full follower for their quorum: all that
//! follow, also the deletes, wait for them. The leader names such appends, and the follower takes them.
//! Meanwhile the leader proposes no puts.

use super::Replica;
use crate::admin;
use crate::context::Context;
use crate::messages::{Body, RaftKind, RaftMessage};
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{Command, Op, PeerId, RegionKind};

/// Context of the answer to an append by a follower that has no room.
const FULL: &[u8] = b"full";
/// Context of an append without which there is no quorum.
const NEEDED: &[u8] = b"needed";
/// Room without which a follower states that it has none.
const LEAST_ROOM_BYTES: u64 = 4 << 10;
/// Election timeouts without a message after which a follower does not count as live.
const LIVE_TIMEOUTS: u64 = 10;

/// Returns whether an entry frees space or changes the region: it may use the reserve.
pub(crate) fn may_use_reserve(payload: &Bytes) -> bool {
    if admin::is_admin(payload) {
        return true;
    }
    let mut only_deletes = true;
    Command::each_op_of(payload, |op| only_deletes &= !matches!(op, Op::Put { .. }));
    only_deletes
}

impl<E: StorageEngine> Replica<E> {
    /// Drops received entries for which the device has no room, from the first such entry on.
    ///
    /// Invariant: an acknowledged append is durable, and a refused one is never acknowledged. Only
    /// the end of the message is dropped: what is left continues the log, and Raft acknowledges no
    /// more than that.
    /// Test: `a_follower_takes_no_entry_into_its_reserve_and_the_quorum_goes_on`.
    pub(super) fn drop_without_room(&mut self, ctx: &Context<E>, message: &mut RaftMessage) {
        if message.kind != RaftKind::Append || message.term < self.term() {
            return;
        }
        let is_needed = &message.context[..] == NEEDED;
        message.context = Bytes::new();
        if self.region.kind == RegionKind::System {
            return;
        }
        let under_way = ctx.received_bytes + ctx.batches.entry_bytes();
        if message.entries.is_empty() {
            let refused = self.room.refused_bytes();
            if ctx.engine.admit_append(under_way + refused) {
                self.room.set_refused_bytes(0);
            }
            return;
        }
        let (mut bytes, mut refused) = (under_way, None);
        for (at, entry) in message.entries.iter().enumerate() {
            if entry.index <= self.committed() || self.has_entry((entry.index, entry.term)) {
                continue;
            }
            bytes += entry.payload.len() as u64;
            if !ctx.engine.admit_append(bytes) && !may_use_reserve(&entry.payload) {
                refused = Some((at, entry.payload.len() as u64));
                break;
            }
        }
        self.room.set_refused_bytes(refused.map_or(0, |(_, bytes)| bytes.max(1)));
        // bug replica.follower_uses_reserve: never
        if let Some((at, _)) = refused.filter(|_| !is_needed) {
            message.entries.truncate(at);
        }
    }

    pub(super) fn state_room(&self, ctx: &Context<E>, message: &mut RaftMessage) {
        if message.kind != RaftKind::AppendResponse || self.region.kind == RegionKind::System {
            return;
        }
        let has_least = || ctx.engine.admit_append(ctx.batches.entry_bytes() + LEAST_ROOM_BYTES);
        if self.room.refused_bytes() > 0 || !has_least() {
            message.context = Bytes::from_static(FULL);
        }
    }

    pub(super) fn note_room(&mut self, ctx: &Context<E>, from: PeerId, message: &mut RaftMessage) {
        if message.kind == RaftKind::AppendResponse && message.term == self.term() {
            let is_full = &message.context[..] == FULL;
            message.context = Bytes::new();
            self.room.note_answer(from, is_full, ctx.now.monotonic_nanos);
        }
    }

    /// Makes an append fit a follower without room: marks it if there is no quorum without the
    /// follower, otherwise takes the puts from it. Without entries it asks where the log of the
    /// follower ends, and for its room.
    pub(super) fn fit_to_room(&self, ctx: &Context<E>, to: PeerId, message: &mut RaftMessage) {
        if message.kind != RaftKind::Append || !self.room.is_full(to) {
            return;
        }
        if self.is_quorum_full(ctx) {
            message.context = Bytes::from_static(NEEDED);
            return;
        }
        if !message.entries.first().is_none_or(|entry| may_use_reserve(&entry.payload)) {
            message.entries.clear();
        }
    }

    /// Returns whether puts of this region cannot be committed because followers have no room.
    pub(super) fn is_quorum_full(&self, ctx: &Context<E>) -> bool {
        let responds = |id| id == self.peer.id || self.is_live(ctx, id);
        self.room.is_quorum_full(&self.region, responds)
    }

    /// Returns whether a follower was heard from lately, or hibernates.
    pub(super) fn is_live(&self, ctx: &Context<E>, id: PeerId) -> bool {
        let is_cut_off =
            self.region.peer(id).is_none_or(|peer| ctx.unreachable.contains_key(&peer.store));
        let timeout_nanos = ctx.options.device_nanos(ctx.options.election_ticks_max);
        let is_recent =
            |at: u64| ctx.now.monotonic_nanos.saturating_sub(at) < LIVE_TIMEOUTS * timeout_nanos;
        !is_cut_off && (self.is_hibernating() || self.contacts.last(id).is_some_and(is_recent))
    }

    pub(super) fn ask_for_room(&mut self, ctx: &mut Context<E>) {
        if !self.is_leader() {
            return;
        }
        for id in self.room.take_questions(ctx.now.monotonic_nanos) {
            let Some(follower) = self.group.follower(id) else {
                self.room.note_answer(id, false, 0);
                continue;
            };
            let Some(to) = self.find_peer(id) else { continue };
            let Some(log_term) = self.group.term_of(follower.matched) else { continue };
            let mut question = RaftMessage::new(RaftKind::Append, self.term());
            (question.index, question.log_term) = (follower.matched, log_term);
            question.commit = self.committed().min(follower.matched);
            self.send(ctx, to, Body::Raft(question));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::CommandBuilder;

    #[test]
    fn only_entries_without_a_put_may_use_the_reserve() {
        let mut builder = CommandBuilder::new();
        builder.delete(b"a").unwrap();
        builder.delete_range(b"b", b"c").unwrap();
        assert!(may_use_reserve(&Bytes::new()));
        assert!(may_use_reserve(builder.build().bytes()));
        let mut builder = CommandBuilder::new();
        builder.delete(b"a").unwrap();
        builder.put(b"b", b"", 0).unwrap();
        assert!(!may_use_reserve(builder.build().bytes()));
    }
}
