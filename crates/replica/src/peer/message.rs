//! Messages from and to this peer.

use super::raft_group::Outgoing;
use super::{Replica, find_values};
use crate::context::{Context, StoreRequest};
use crate::log::entry_bytes;
use crate::messages::{Body, PeerMessage, RaftEntry, RaftKind, RaftMessage};
use crate::output::Event;
use crate::validate::{self, PeerState};
use stele_storage::StorageEngine;
use stele_types::{Peer, PeerId};

impl<E: StorageEngine> Replica<E> {
    pub(super) fn send_all(&mut self, ctx: &mut Context<E>, messages: Vec<Outgoing>) {
        for message in messages {
            let (Outgoing::Message(id, _) | Outgoing::Snapshot(id)) = message;
            let Some(to) = self.find_peer(id) else { continue };
            let Outgoing::Message(_, mut message) = message else {
                self.send_snapshot(ctx, to);
                continue;
            };
            self.fit_to_room(ctx, id, &mut message);
            self.state_room(ctx, &mut message);
            let mut rest = Some(message);
            while let Some(mut part) = rest.take() {
                rest = split_append(&mut part, ctx.options.append_message_bytes_max);
                self.send(ctx, to, Body::Raft(part));
            }
        }
    }

    pub(crate) fn send(&self, ctx: &mut Context<E>, to: Peer, body: Body) {
        ctx.out.messages.push(PeerMessage {
            from_store: self.peer.store,
            to_store: to.store,
            region: self.region.id,
            kind: self.region.kind,
            range: self.region.range.clone(),
            epoch: self.region.epoch,
            from: self.peer,
            to,
            body,
        });
    }

    pub(super) fn send_to_others(&self, ctx: &mut Context<E>, body: &Body) {
        self.others().for_each(|peer| self.send(ctx, *peer, body.clone()));
    }

    pub(crate) fn receive(&mut self, ctx: &mut Context<E>, message: PeerMessage) {
        let from = message.from;
        let is_member = self.region.peer(from.id).is_some();
        let older = message.epoch.conf_version < self.region.epoch.conf_version;
        if !is_member && older && message.body != Body::Gone {
            return self.send(ctx, from, Body::Gone);
        }
        match message.body {
            Body::Raft(raft) => self.receive_raft(ctx, from, is_member, raft),
            // Ids are never reused: a peer that a later membership lacks is never a member again.
            // Invariant: the tombstone has the epoch that this replica has applied, not that of the
            // message. What lies in between, a merge perhaps, is not applied here.
            Body::Gone if message.epoch.conf_version > self.region.epoch.conf_version => {
                ctx.note_gone(self.region.id, message.epoch);
                let last = (*self.region).clone();
                // bug replica.gone_epoch_kept: let last = { let mut it = last; it.epoch = message.epoch; it };
                ctx.store_requests.push(StoreRequest::Destroy(last));
            }
            Body::Gone => {}
            Body::Merged { prepared, left, .. } => {
                self.on_merged(ctx, prepared, message.epoch.version, left);
            }
            Body::Members(members) => {
                if message.epoch.conf_version > self.region.epoch.conf_version {
                    self.contacts.note_later_members(&members);
                }
            }
            Body::Prepared { prepared } => self.on_prepared(ctx, from.id, prepared),
            Body::Hibernate { term, last } => self.on_hibernate(ctx, from, term, last),
            Body::WakeUp => {
                self.wake(ctx);
                if older {
                    self.send_commit_index(ctx, from);
                }
            }
            Body::ValueRepairRequest(ref lost) if is_member => {
                let found = find_values(&*ctx.engine, &message, lost);
                if !found.is_empty() {
                    self.send(ctx, from, Body::ValueRepairReply(found));
                }
            }
            Body::ValueRepairReply(pairs) if is_member => self.apply_value_repairs(ctx, pairs),
            Body::RangeRepairRequest(range) if is_member => {
                self.answer_range_repair(ctx, from, &range)
            }
            Body::RangeRepairReply(found) if is_member && message.epoch == self.region.epoch => {
                self.repairs.keep(found);
            }
            Body::ValueRepairRequest(_)
            | Body::ValueRepairReply(_)
            | Body::RangeRepairRequest(_)
            | Body::RangeRepairReply(_) => {}
            // Messages between stores, not between peers.
            Body::EntryRecoveryRequest(_)
            | Body::EntryRecoveryReply(_)
            | Body::MergeQuery(_)
            | Body::MergeAnswer(_) => {}
        }
    }

    fn receive_raft(
        &mut self,
        ctx: &mut Context<E>,
        from: Peer,
        is_member: bool,
        mut message: RaftMessage,
    ) {
        if !is_member {
            self.contacts.note_unknown(from);
        }
        let state = self.state(is_member);
        if let Err(reason) = validate::check(&message, from.id, &state) {
            slog::debug!(ctx.logger, "refused a message"; "region" => self.region.id.0, "reason" => reason);
            return;
        }
        if !self.may_step(ctx, &message) {
            return;
        }
        self.contacts.note(from.id, ctx.now.monotonic_nanos);
        self.note_message(ctx, message.kind);
        if is_member {
            self.learn_from_refusal(&message);
        }
        if message.kind == RaftKind::TransferLeader {
            self.begin_transfer(ctx, from.id, None);
            return;
        }
        self.note_room(ctx, from.id, &mut message);
        self.drop_without_room(ctx, &mut message);
        if self.is_excess(ctx, &message) {
            // bug replica.full_tails_drop_messages: return;
            let last = self.group.last();
            message.entries.retain(|entry| entry.index <= last);
        }
        for entry in &message.entries {
            ctx.received_bytes += entry.payload.len() as u64;
            ctx.received_tail_bytes += entry_bytes(&entry.payload);
        }
        let is_heartbeat = message.kind == RaftKind::Heartbeat;
        if let Err(error) = self.group.step(message, from.id) {
            slog::debug!(ctx.logger, "raft refused a message"; "region" => self.region.id.0, "error" => %error);
        }
        if is_heartbeat && self.group.leader() == Some(from.id) {
            self.election.note_heartbeat_round();
        }
    }

    /// Returns whether Raft may process a message, by rules that Raft does not check itself.
    fn may_step(&self, ctx: &Context<E>, message: &RaftMessage) -> bool {
        match message.kind {
            // It withholds its vote for as long as any lease that it supported may last, including
            // one from before a restart of the process.
            RaftKind::RequestVote | RaftKind::RequestPreVote => {
                self.election.may_vote(ctx.now.monotonic_nanos)
                    || self.is_transfer_campaign(message)
            }
            // Raft asserts that all entries of a candidate are durable.
            RaftKind::TimeoutNow => self.may_campaign(),
            _ => true,
        }
    }

    /// Returns whether received entries would extend the tail while the tails of the store are at their
    /// limit. They are dropped; Raft sends them again.
    ///
    /// Invariant: every region makes progress while the bytes of unapplied entries are bounded. Entries for a
    /// region without a tail are taken. Entries that replace others are taken: those may never be committed.
    /// Entries are taken while the log ends in an earlier term than the leader's: only an entry of its own
    /// term commits the tail. The rest of the message is processed: its commit index and the acknowledgement
    /// of entries that are here empty the tail.
    /// Tests: `a_region_without_a_tail_takes_entries_while_the_tails_of_others_are_full`,
    /// `a_follower_with_full_tails_learns_from_a_new_leader_what_is_committed`.
    fn is_excess(&self, ctx: &Context<E>, message: &RaftMessage) -> bool {
        let has_room = ctx.has_tail_room(ctx.received_tail_bytes)
            || !self.group.has_tail()
            || self.group.needs_entry_of_term(message);
        !has_room && self.group.is_extended_by(message)
    }

    fn is_transfer_campaign(&self, message: &RaftMessage) -> bool {
        &message.context[..] == b"CampaignTransfer"
    }

    /// Returns whether all entries are durable, as Raft requires of a candidate.
    pub(super) fn may_campaign(&self) -> bool {
        // bug replica.campaign_before_durable: return true;
        self.is_durable() && self.group.persisted() == self.group.last()
    }

    fn state(&self, from_is_member: bool) -> PeerState {
        PeerState {
            receiver: self.peer.id,
            term: self.term(),
            last: self.group.last(),
            persisted: self.group.persisted(),
            leader: self.group.leader(),
            is_leader: self.is_leader(),
            from_is_member,
            pending_reads: self.group.pending_reads(),
        }
    }

    pub(crate) fn store_unreachable(&mut self, ctx: &mut Context<E>, store: stele_types::StoreId) {
        if self.remote_leader_store() == Some(store) {
            self.wake(ctx);
        }
        let Some(peer) = self.region.peer_on(store).copied() else { return };
        if self.is_leader() && peer.id != self.peer.id {
            self.wake(ctx);
            self.group.note_unreachable(peer.id);
            // Invariant: only its end says that a snapshot under way failed. It goes on when the network does; a
            // second one would take its place from the beginning.
            // bug replica.broken_snapshot_begins_again: always
            if !self.snapshots.is_under_way(peer.id) {
                self.group.note_snapshot(peer.id, false);
            }
        }
    }

    /// Destroys this replica if its peer id is `id`. A later change may have added another peer.
    pub(crate) fn destroy_if(&mut self, ctx: &mut Context<E>, id: PeerId) {
        if id == self.peer.id {
            ctx.store_requests.push(StoreRequest::Destroy((*self.region).clone()));
        }
    }

    pub(crate) fn announce(&self, ctx: &mut Context<E>) {
        ctx.out.events.push(Event::RegionCreated((*self.region).clone()));
    }
}

/// Shortens an append to about `bytes_max`, and returns the rest: Raft joins all entries for a
/// follower into one message. The rest starts where the message ends.
fn split_append(message: &mut RaftMessage, bytes_max: u64) -> Option<RaftMessage> {
    let bytes: u64 = message.entries.iter().map(|entry| entry.payload.len() as u64).sum();
    if message.kind != RaftKind::Append || bytes <= bytes_max {
        return None;
    }
    let mut taken = 0;
    let fits = |entry: &&RaftEntry| {
        let first = taken == 0;
        taken += entry.payload.len() as u64 + 1;
        first || taken <= bytes_max
    };
    let count = message.entries.iter().take_while(fits).count();
    let entries = message.entries.split_off(count);
    let last = message.entries.last().map(|last| (last.index, last.term));
    let (index, log_term) = last.filter(|_| !entries.is_empty())?;
    let context = message.context.clone();
    Some(RaftMessage { index, log_term, entries, context, ..*message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use stele_types::{LogIndex, Term};

    #[test]
    fn a_long_append_leaves_in_parts_that_follow_each_other() {
        let mut message = RaftMessage::new(RaftKind::Append, Term(3));
        message.index = LogIndex(10);
        message.log_term = Term(2);
        let payload = Bytes::from(vec![0; 100]);
        message.entries = (11..21)
            .map(|i| RaftEntry { term: Term(3), index: LogIndex(i), payload: payload.clone() })
            .collect();
        let mut parts = vec![message.clone()];
        while let Some(rest) = parts.last_mut().and_then(|last| split_append(last, 350)) {
            parts.push(rest);
        }
        assert_eq!(parts.len(), 4);
        let mut at = (LogIndex(10), Term(2));
        for part in &parts {
            assert_eq!((part.index, part.log_term), at);
            let last = part.entries.last().unwrap();
            at = (last.index, last.term);
        }
        assert_eq!(at.0, LogIndex(20));
        let whole = message.clone();
        assert_eq!((split_append(&mut message, 5000), message), (None, whole));
    }
}
