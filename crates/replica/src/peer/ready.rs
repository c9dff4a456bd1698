//! Processing of Raft's ready states: records go into the batch, messages out, entries to apply.
//!
//! A leader's entries are sent at once, in parallel with its own disk write. A message that makes a
//! promise (a vote, an acknowledgement, a term) is sent after the promise is durable.

use super::Replica;
use super::raft_group::{Outgoing, Ready};
use crate::context::Context;
use crate::pipeline::ReadyInBatch;
use stele_storage::StorageEngine;
use stele_types::{EntryRecord, HardState, Record, Result};

/// Most readies of one peer in one poll; the next poll takes the others.
const READIES_MAX: usize = 8;

impl<E: StorageEngine> Replica<E> {
    /// Proposes, replicates and replies until nothing is left to do without the disk. What can be applied
    /// is added to [`Context::runs`]: after it [`Replica::run_applied`] replies and publishes. Returns
    /// whether work remains.
    pub(crate) fn work(&mut self, ctx: &mut Context<E>) -> Result<bool> {
        self.election.start_vote_hold(ctx.now.monotonic_nanos);
        // Entries that waited for another region.
        let mut waits = self.apply_committed(ctx)?;
        self.apply_range_repairs(ctx)?;
        if self.moments.has_any() {
            self.end_late_pause(ctx);
        }
        for _ in 0..READIES_MAX {
            self.observe(ctx);
            if self.moments.has_any() {
                self.confirm_seals(ctx);
            }
            let has_more = self.propose_waiting(ctx)?;
            self.confirm_reads(ctx);
            let Some(ready) = self.group.take_ready() else {
                let begins_to_serve = !self.has_run(ctx) && self.publish(ctx);
                return Ok(begins_to_serve || has_more || waits);
            };
            self.handle_ready(ctx, ready);
            waits = self.apply_committed(ctx)?;
            self.step_down_if_no_voter();
            if let Some(failure) = self.log().take_failure() {
                return Err(failure);
            }
        }
        self.observe(ctx);
        self.confirm_reads(ctx);
        if !self.has_run(ctx) {
            self.publish(ctx);
        }
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
        let has_records = self.write_records(ctx, entries, hard_state);
        self.durability.note_ready(number, has_records);
        if has_records {
            let (region, incarnation) = (self.region.id, self.incarnation);
            ctx.batches.note_ready(ReadyInBatch { region, incarnation, number });
        }
        if at_once.iter().any(Outgoing::is_leadership_offer) {
            self.transfers.note_offered();
        }
        // Only durable entries count for the quorum and may be applied.
        // bug replica.count_unsynced: always
        if self.is_durable() {
            self.group.note_durable(number);
        }
        let at_once = match self.durability.may_send_at_once(self.term()) {
            true => at_once,
            false => self.durability.release_or_hold(at_once),
        };
        self.send_all(ctx, at_once);
        self.send_or_hold(ctx, after_sync);
    }

    /// Sends messages of a follower or candidate. Invariant: what promises entries or a vote leaves
    /// after these are durable. What promises only the term leaves once that is: the answers to
    /// heartbeats and read index rounds do not wait for this disk.
    fn send_or_hold(&mut self, ctx: &mut Context<E>, messages: Vec<Outgoing>) {
        let is_term_durable = self.durability.is_term_durable(self.term());
        let is_free = |message: &Outgoing| is_term_durable && message.promises_only_the_term();
        let (free, promises): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_free);
        self.send_all(ctx, free);
        // bug replica.promise_before_sync: `self.durability.release_or_hold(promises)` is `promises`
        let promises = self.durability.release_or_hold(promises);
        self.send_all(ctx, promises);
    }

    /// Adds a ready's entries and hard state to the batch. Returns whether any of them must be
    /// durable.
    fn write_records(
        &mut self,
        ctx: &mut Context<E>,
        entries: Vec<EntryRecord>,
        changed: Option<HardState>,
    ) -> bool {
        self.merge.note_entries(&entries);
        let has_entries = !entries.is_empty();
        entries.into_iter().for_each(|entry| ctx.batches.push(Record::Entry(entry)));
        let Some(changed) = changed else { return has_entries };
        let (region, hard_state) = (self.region.id, self.to_write(changed));
        if !self.durability.must_write((hard_state.term, hard_state.vote)) {
            // Only the commit index changed: nothing depends on its durability.
            ctx.batches.piggyback(region, hard_state);
            return has_entries;
        }
        ctx.batches.push(Record::HardState(region, hard_state));
        true
    }

    /// Returns the hard state to write. Its commit index stays below entries that must not be
    /// applied at open before those of another region.
    fn to_write(&self, state: HardState) -> HardState {
        HardState { commit: state.commit.min(self.merge.commit_ceiling(self.applied())), ..state }
    }

    pub(crate) fn current_hard_state(&self) -> HardState {
        self.to_write(self.group.hard_state())
    }

    /// Handles the durability of a ready's records and of all earlier ones. Their batch was handed out
    /// at `began_nanos`.
    pub(crate) fn ready_durable(&mut self, ctx: &mut Context<E>, number: u64, began_nanos: u64) {
        let (ready, released) = self.durability.note_durable(number);
        self.group.note_durable(ready);
        let times = (began_nanos, ctx.now.monotonic_nanos);
        self.proposals.note_durable(self.group.persisted(), times);
        self.send_all(ctx, released);
        if self.election.take_campaigns_first() {
            self.campaign();
        }
    }
}
