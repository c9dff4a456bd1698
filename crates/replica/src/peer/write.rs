//! Proposal of waiting requests: one Raft proposal for all of them.

use super::Replica;
use super::parts::{FoundPairs, Proposal, Purpose, Released, Removed, Waiting, found_bytes};
use crate::context::Context;
use crate::input::RequestId;
use crate::log::entry_bytes;
use crate::output::{Busy, Done, Refusal, Rejection, Unknown};
use crate::reads::KeySearch;
use crate::stages::Timings;
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{Error, LogIndex, Result, Term};

/// Bytes of waiting requests that are proposed although entries of their region are being written.
const PROPOSED_AT_ONCE_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Proposing {
    pub payloads: Vec<Bytes>,
    pub purposes: Vec<Option<Purpose>>,
    /// Bytes of the entries, and of their effects for readers.
    bytes: u64,
    /// Bytes of puts for which the devices have room, besides those of the entries.
    room_bytes: u64,
    pub search: KeySearch,
    /// Whether the last entry changes the region or its leader: later requests wait for the next
    /// proposal.
    pub admin: bool,
    /// Whether the last entry changes the range or the phase.
    pub barrier: bool,
}

impl Proposing {
    pub(super) fn push(&mut self, payload: Bytes, purpose: Option<Purpose>) {
        self.bytes += entry_bytes(&payload);
        self.payloads.push(payload);
        self.purposes.push(purpose);
    }
}

pub(super) enum Step {
    /// It was added to the proposal, or answered.
    Settled,
    /// It waits for its key: the pair of the key is being read from the device.
    Held,
    /// It waits for the next proposal, and with it all later requests.
    Later(Box<Waiting>),
}

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn enqueue(&mut self, request: Waiting) {
        self.proposals.push_waiting(request);
    }

    /// Proposes waiting requests, up to the limits. Returns whether some wait for other work of the
    /// loop only.
    pub(super) fn propose_waiting(&mut self, ctx: &mut Context<E>) -> Result<bool> {
        if !self.proposals.has_waiting() && !self.held.has_found() {
            return Ok(false);
        }
        if !self.is_leader() {
            let leader = self.leader_hint();
            self.refuse_waiting(ctx, &Refusal::NotLeader { leader });
            return Ok(false);
        }
        // Waits until the first entry of the own term is applied: before that the epoch might still
        // change, and a comparison would miss writes of earlier terms.
        if !self.is_serving() || self.group.is_transferring() {
            // Its own vote waits for room, and no other peer can lead.
            if self.group.is_sole_voter() && ctx.batches.retry_at().is_some() {
                self.refuse_waiting(ctx, &Busy::DiskFull);
            }
            return Ok(false);
        }
        if self.moments.has_any() && self.is_paused(ctx) {
            return Ok(false);
        }
        // Group commit: what arrives while this region is written shares the next proposal. With
        // commit return, a quorum that is faster than this disk suffices.
        let is_committed = ctx.options.commit_return && self.group.last() <= self.committed();
        let is_written = is_committed || self.group.last() <= self.group.persisted();
        if !is_written && self.proposals.waiting_bytes() < PROPOSED_AT_ONCE_BYTES {
            return Ok(false);
        }
        let mut proposing = Proposing::default();
        let unapplied = self.log().tail_bytes();
        while unapplied + proposing.bytes < ctx.options.uncommitted_bytes_max
            && !self.changes.is_barred(proposing.admin)
        {
            // Invariant: the searches of modifications never hold the loop up for long.
            let is_exhausted = proposing.search.is_exhausted();
            // bug replica.searches_unbounded: let is_exhausted = false;
            if is_exhausted {
                self.propose(ctx, proposing);
                return Ok(true);
            }
            let Some((request, found)) = self.next_request() else { break };
            ctx.found_bytes -= found.as_ref().map_or(0, found_bytes);
            let is_full = !ctx.has_tail_room(proposing.bytes)
                && (proposing.bytes > 0 || self.group.has_tail());
            if is_full && !matches!(request, Waiting::Admin(..)) {
                let reason = "too many bytes of entries are not applied yet";
                ctx.reject(request.id(), Busy::Wait { reason });
                continue;
            }
            match self.propose_one(ctx, request, found, &mut proposing)? {
                Step::Settled | Step::Held => {}
                Step::Later(request) => {
                    self.proposals.unpop_waiting(*request);
                    break;
                }
            }
        }
        self.propose(ctx, proposing);
        Ok(false)
    }

    /// Removes and returns the next request to propose. One of which pairs were looked
    /// up comes first, with the pairs; the requests that waited behind it follow.
    fn next_request(&mut self) -> Option<(Waiting, Option<FoundPairs>)> {
        let Some(Released { request, found, behind }) = self.held.take_found() else {
            return self.proposals.pop_waiting().map(|request| (request, None));
        };
        self.proposals.unpop_all(behind);
        Some((request, Some(found)))
    }

    /// Proposes a request, replies to it or makes it wait. `found` are the pairs that were read for it.
    fn propose_one(
        &mut self,
        ctx: &mut Context<E>,
        request: Waiting,
        found: Option<FoundPairs>,
        proposing: &mut Proposing,
    ) -> Result<Step> {
        let (id, header) = (request.id(), *request.header());
        let deadline = header.deadline_nanos;
        if deadline != 0 && deadline <= ctx.now.monotonic_nanos {
            ctx.reject(id, Busy::DeadlinePassed);
            return Ok(Step::Settled);
        }
        // Invariant: a request that waited is checked again before it is proposed.
        // bug replica.released_unchecked: skip if found.is_some()
        if let Err(refusal) = self.check_version(&header, &ctx.readers) {
            ctx.reject(id, refusal);
            return Ok(Step::Settled);
        }
        let phase = self.check_phase();
        if phase.is_ok()
            && let Some(key) = self.held.key_changed_by(&request)
        {
            self.held.wait_behind(&key, request);
            return Ok(Step::Held);
        }
        match (request, phase) {
            (Waiting::Admin(id, call), _) => {
                let later = self.propose_admin(ctx, id, call, proposing);
                return Ok(later.map_or(Step::Settled, |later| Step::Later(Box::new(later))));
            }
            (_, Err(rejection)) => ctx.reject(id, rejection),
            (Waiting::Write(id, write), Ok(())) => {
                if write.only_deletes
                    || self.is_admitted(ctx, id, write.command.len(), proposing)?
                {
                    proposing.push(write.command, Some(Purpose::Write(id)));
                }
            }
            (Waiting::Modify(id, modify), Ok(())) => {
                return self.propose_modify(ctx, id, modify, found, proposing);
            }
            (Waiting::Run(id, run), Ok(())) => {
                return self.propose_run(ctx, id, run, found, proposing);
            }
        }
        Ok(Step::Settled)
    }

    pub(super) fn propose(&mut self, ctx: &mut Context<E>, proposing: Proposing) {
        if proposing.payloads.is_empty() {
            return;
        }
        let next = self.group.last().next();
        let is_accepted = self.group.propose(proposing.payloads);
        if is_accepted && proposing.admin {
            self.changes.note_proposed(self.group.last(), proposing.barrier);
            // Invariant: followers learn of a change of the region as soon as it is committed.
            // Others wait for its effect: new replicas that vote, the other region of a merge.
            // bug replica.change_told_late: `true` is `false`
            self.group.set_commits_sent_at_once(true);
        }
        let term = self.term();
        let timings = Timings { proposed_nanos: ctx.now.monotonic_nanos, ..Timings::default() };
        let indexes = (next.0..).map(LogIndex);
        for (index, purpose) in indexes.zip(proposing.purposes) {
            let Some(purpose) = purpose else { continue };
            match is_accepted {
                true => self.proposals.push(Proposal { index, term, purpose, timings }),
                // Raft did not take the entry, so the request had no effect.
                false => ctx.reject(purpose.id(), Refusal::NotLeader { leader: None }),
            }
            // bug replica.reply_before_commit: self.answer_applied(ctx, index, term);
        }
    }

    pub(super) fn refuse_waiting<R>(&mut self, ctx: &mut Context<E>, refusal: &R)
    where
        R: Clone + Into<Rejection>,
    {
        while let Some(request) = self.proposals.pop_waiting() {
            ctx.reject(request.id(), refusal.clone());
        }
    }

    /// Answers all pending requests: the replica is removed from this store.
    pub(crate) fn abandon(&mut self, ctx: &mut Context<E>) {
        self.refuse_held(ctx, &Refusal::RegionNotFound);
        self.refuse_waiting(ctx, &Refusal::RegionNotFound);
        self.abandon_proposals(ctx);
        if let Some(id) = self.transfers.abandon() {
            ctx.unknown(id, Unknown::ReplicaRemoved);
        }
        self.lose_reads(ctx);
        self.end_pause(ctx, &Refusal::RegionNotFound);
    }

    pub(super) fn expire_waiting(&mut self, ctx: &mut Context<E>) {
        let now = ctx.now.monotonic_nanos;
        let Removed { mut gone, found_bytes, released } = self.held.take_expired(now);
        ctx.found_bytes -= found_bytes;
        gone.extend(self.proposals.take_expired(now).iter().map(Waiting::id));
        gone.into_iter().for_each(|id| ctx.reject(id, Busy::DeadlinePassed));
        self.proposals.unpop_all(released);
    }

    /// Returns whether the devices here and of a quorum have room for `bytes`; otherwise refuses the
    /// request. The devices are asked once a proposal, for all that waits.
    ///
    /// Invariant: a put that no quorum takes is refused before it is proposed. In the log it would
    /// make all later requests wait, also the deletes that free space.
    /// Test: `puts_that_no_quorum_has_room_for_are_refused_and_deletes_go_on`.
    pub(super) fn is_admitted(
        &self,
        ctx: &mut Context<E>,
        id: RequestId,
        bytes: usize,
        proposing: &mut Proposing,
    ) -> Result<bool> {
        let bytes = bytes as u64;
        if proposing.room_bytes < bytes {
            // Too little room for all may be enough for some.
            let all_bytes = bytes + self.proposals.waiting_bytes();
            let has_room_for_all = all_bytes > bytes && ctx.engine.admit_append(all_bytes);
            // bug replica.no_room_for_some: let has_room_for_all = true;
            let asked_bytes = if has_room_for_all { all_bytes } else { bytes };
            let is_admitted = match ctx.engine.admit(asked_bytes) {
                Ok(()) => !self.is_quorum_full(ctx),
                Err(Error::NoSpace(_)) => false,
                Err(error) => return Err(error),
            };
            if !is_admitted {
                ctx.reject(id, Busy::DiskFull);
                return Ok(false);
            }
            proposing.room_bytes = asked_bytes;
        }
        proposing.room_bytes -= bytes;
        Ok(true)
    }
}

// Replies to the clients of proposals.

impl<E: StorageEngine> Replica<E> {
    /// Answers the writes that are committed, before they are applied (BUC-Raft, commit return): no
    /// later leader lacks them, and their apply cannot fail. Administrative changes are answered
    /// when they have taken effect.
    pub(super) fn answer_committed(&mut self, ctx: &mut Context<E>) {
        let committed = self.committed();
        let term_of = |index| self.group.term_of(index);
        for (proposal, is_done) in self.proposals.take_committed(committed, term_of) {
            self.answer_outcome(ctx, proposal, is_done);
        }
    }

    pub(super) fn answer_applied(&mut self, ctx: &mut Context<E>, index: LogIndex, term: Term) {
        for (proposal, is_done) in self.proposals.take_applied(index, term) {
            self.answer_outcome(ctx, proposal, is_done);
        }
    }

    fn answer_outcome(&self, ctx: &mut Context<E>, proposal: Proposal, is_done: bool) {
        match is_done {
            true => self.answer_done(ctx, proposal),
            false => {
                let leader = self.leader_hint();
                ctx.reject(proposal.purpose.id(), Refusal::Superseded { leader });
            }
        }
    }

    pub(super) fn answer_done(&self, ctx: &mut Context<E>, proposal: Proposal) {
        let Proposal { index, term, purpose, timings, .. } = proposal;
        match purpose {
            Purpose::Write(id) => ctx.done(id, Done::Written { index, term, timings }),
            Purpose::Modify(id, result) => ctx.done(id, Done::Modified { result, timings }),
            Purpose::Admin(id) => ctx.done(id, Done::Admin { region: (*self.region).clone() }),
        }
    }

    /// Answers the proposals that are not committed after a loss of leadership: a later leader may
    /// or may not commit them. The others are answered when they are applied.
    pub(super) fn lose_proposals(&mut self, ctx: &mut Context<E>) {
        for proposal in self.proposals.take_above(self.committed()) {
            let id = proposal.purpose.id();
            // bug replica.unknown_as_refused: ctx.reject(id, Refusal::NotLeader { leader: None }); continue;
            ctx.unknown(id, Unknown::LeadershipLost);
        }
    }

    /// Answers all proposals of a replica that leaves this store. A committed one is done: the
    /// replica's successor, here or elsewhere, holds its effect.
    pub(super) fn abandon_proposals(&mut self, ctx: &mut Context<E>) {
        let committed = self.committed();
        for proposal in self.proposals.take_above(LogIndex(0)) {
            let is_in_log = self.has_entry((proposal.index, proposal.term));
            match is_in_log && proposal.index <= committed {
                true => self.answer_done(ctx, proposal),
                false => ctx.unknown(proposal.purpose.id(), Unknown::ReplicaRemoved),
            }
        }
    }
}
