//! Processing of Raft's ready states: records go into the batch, messages out, entries to apply.
//!
//! A leader's entries are sent at once, in parallel with its own disk write. A message that makes a
//! promise (a vote, an acknowledgement, a term) is sent after the promise is durable.

use super::{Held, Peer};
use crate::log::payload_of;
use crate::store::{Context, Note};
use raft::Ready;
use raft::eraftpb::{Entry, HardState as RaftHardState, Message};
use stele_storage::StorageEngine;
use stele_types::{EntryRecord, HardState, LogIndex, Record, Result, Term};

/// Most readies of one peer in one poll; the next poll takes the others.
const READIES_MAX: usize = 8;

impl<E: StorageEngine> Peer<E> {
    /// Proposes, replicates, applies and replies until nothing is left to do without the disk.
    /// Returns whether work remains.
    pub fn work(&mut self, ctx: &mut Context<E>) -> Result<bool> {
        self.timer.start_vote_hold(ctx.now.monotonic_nanos);
        // Entries that waited for another region.
        self.apply_committed(ctx)?;
        self.apply_range_repairs(ctx)?;
        for _ in 0..READIES_MAX {
            self.observe(ctx);
            self.propose_waiting(ctx)?;
            self.serve_reads(ctx);
            if !self.node.has_ready() {
                return Ok(false);
            }
            self.take_ready(ctx)?;
            self.apply_committed(ctx)?;
            self.step_down_if_no_voter();
            if let Some(failure) = self.log().take_failure() {
                return Err(failure);
            }
        }
        self.observe(ctx);
        self.serve_reads(ctx);
        Ok(true)
    }

    fn take_ready(&mut self, ctx: &mut Context<E>) -> Result<()> {
        let mut ready = self.node.ready();
        self.observe(ctx);
        for state in ready.take_read_states() {
            self.on_round_confirmed(ctx, &state.request_ctx, state.index);
        }
        let now = ctx.now.monotonic_nanos;
        self.proposals.note_committed(self.committed(), now);
        let wrote = self.write_records(ctx, &ready);
        let number = ready.number();
        self.durability.last_ready = number;
        if wrote {
            self.durability.noted = number;
            self.durability.note_vote(number, self.written_vote);
            ctx.batches.note(Note {
                region: self.region.id,
                incarnation: self.incarnation,
                number,
            });
        }
        let at_once = ready.take_messages();
        let after_sync = ready.take_persisted_messages();
        self.note_transfer_offer(&at_once);
        self.to_apply.extend(ready.take_committed_entries());
        self.node.advance_append_async(ready);
        // Only durable entries count for the quorum and may be applied.
        if self.is_durable() || stele_types::mutant::active("raftstore.count_unsynced") {
            self.node.on_persist_ready(number);
        }
        // A leader may send before its disk write is done, but only in a durable term: after a
        // crash it could lead the same term again, with other entries.
        let early = stele_types::mutant::active("raftstore.lead_before_sync");
        match self.durability.vote.0 == self.term() || early {
            true => self.send_all(ctx, at_once),
            false => self.send_when_durable(ctx, at_once),
        }
        match stele_types::mutant::active("raftstore.promise_before_sync") {
            true => self.send_all(ctx, after_sync),
            false => self.send_when_durable(ctx, after_sync),
        }
        Ok(())
    }

    /// Adds a ready's entries and hard state to the batch. Returns whether any of them must be
    /// durable.
    fn write_records(&mut self, ctx: &mut Context<E>, ready: &Ready) -> bool {
        let entries = ready.entries();
        self.log_mut().extend(entries);
        self.note_merges(entries);
        let region = self.region.id;
        for entry in entries {
            ctx.batches.push(Record::Entry(entry_record(region, entry)));
        }
        let Some(changed) = ready.hs() else { return !entries.is_empty() };
        let hard_state = self.hard_state(changed);
        let vote = (hard_state.term.0, hard_state.vote);
        if vote == self.written_vote {
            // Only the commit index changed: nothing depends on its durability.
            ctx.batches.piggyback(region, hard_state);
            return !entries.is_empty();
        }
        self.written_vote = vote;
        ctx.batches.push(Record::HardState(region, hard_state));
        true
    }

    /// Returns the hard state to write. Its commit index stays below entries that must not be
    /// applied at open before those of another region.
    fn hard_state(&self, state: &RaftHardState) -> HardState {
        let commit = state.commit.min(self.commit_ceiling());
        HardState { term: Term(state.term), vote: state.vote, commit: LogIndex(commit) }
    }

    /// Returns the hard state as it would be written now.
    pub fn current_hard_state(&self) -> HardState {
        self.hard_state(&self.node.raft.hard_state())
    }

    fn send_when_durable(&mut self, ctx: &mut Context<E>, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        if self.is_durable() {
            return self.send_all(ctx, messages);
        }
        self.durability.held.push_back(Held { after: self.durability.noted, messages });
    }

    /// Handles the durability of a ready's records and of all earlier ones.
    pub fn ready_durable(&mut self, ctx: &mut Context<E>, number: u64) {
        self.durability.reach(number);
        if self.is_durable() {
            self.node.on_persist_ready(self.durability.last_ready);
        } else {
            self.node.on_persist_ready(number);
        }
        let persisted = self.node.raft.raft_log.persisted;
        self.proposals.note_durable(persisted, ctx.now.monotonic_nanos);
        while let Some(held) = self.durability.held.front()
            && held.after <= self.durability.reached
        {
            let messages = self.durability.held.pop_front().map(|held| held.messages);
            self.send_all(ctx, messages.unwrap_or_default());
        }
        if std::mem::take(&mut self.campaigns_first) {
            self.campaign();
        }
    }
}

fn entry_record(region: stele_types::RegionId, entry: &Entry) -> EntryRecord {
    let payload = payload_of(entry).clone();
    EntryRecord {
        region,
        term: Term(entry.term),
        index: LogIndex(entry.index),
        is_command: !payload.is_empty(),
        payload,
    }
}
