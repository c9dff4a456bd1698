//! Processing of Raft's ready states: records go into the batch, messages out, entries to apply.
//!
//! A leader's entries are sent at once, in parallel with its own disk write. A message that makes a
//! promise (a vote, an acknowledgement, a term) is sent after the promise is durable.

use super::raft_group::{Outgoing, Ready};
use super::{Held, Peer};
use crate::store::{Context, Note};
use stele_storage::StorageEngine;
use stele_types::{EntryRecord, HardState, Record, Result};

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
            let Some(ready) = self.group.take_ready() else { return Ok(false) };
            self.handle_ready(ctx, ready);
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

    fn handle_ready(&mut self, ctx: &mut Context<E>, mut ready: Ready) {
        self.observe(ctx);
        for (context, index) in std::mem::take(&mut ready.rounds) {
            self.on_round_confirmed(ctx, &context, index);
        }
        let now = ctx.now.monotonic_nanos;
        self.proposals.note_committed(self.committed(), now);
        let Ready { number, entries, hard_state, at_once, after_sync, .. } = ready;
        let wrote = self.write_records(ctx, entries, hard_state);
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
        self.note_transfer_offer(&at_once);
        // Only durable entries count for the quorum and may be applied.
        if self.is_durable() || stele_types::mutant::active("raftstore.count_unsynced") {
            self.group.note_durable(number);
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
    }

    /// Adds a ready's entries and hard state to the batch. Returns whether any of them must be
    /// durable.
    fn write_records(
        &mut self,
        ctx: &mut Context<E>,
        entries: Vec<EntryRecord>,
        changed: Option<HardState>,
    ) -> bool {
        self.note_merges(&entries);
        let has_entries = !entries.is_empty();
        entries.into_iter().for_each(|entry| ctx.batches.push(Record::Entry(entry)));
        let Some(changed) = changed else { return has_entries };
        let (region, hard_state) = (self.region.id, self.to_write(changed));
        let vote = (hard_state.term, hard_state.vote);
        if vote == self.written_vote {
            // Only the commit index changed: nothing depends on its durability.
            ctx.batches.piggyback(region, hard_state);
            return has_entries;
        }
        self.written_vote = vote;
        ctx.batches.push(Record::HardState(region, hard_state));
        true
    }

    /// Returns the hard state to write. Its commit index stays below entries that must not be
    /// applied at open before those of another region.
    fn to_write(&self, state: HardState) -> HardState {
        HardState { commit: state.commit.min(self.commit_ceiling()), ..state }
    }

    /// Returns the hard state as it would be written now.
    pub fn current_hard_state(&self) -> HardState {
        self.to_write(self.group.hard_state())
    }

    fn send_when_durable(&mut self, ctx: &mut Context<E>, messages: Vec<Outgoing>) {
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
            self.group.note_durable(self.durability.last_ready);
        } else {
            self.group.note_durable(number);
        }
        let persisted = self.group.persisted();
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
