//! Proposal of waiting requests: one Raft proposal for all of them.

use super::Peer;
use super::parts::{Proposal, Purpose, Request};
use crate::input::{Cas, CasNew, RequestId};
use crate::output::{Busy, Refusal, Timings, Unknown};
use crate::store::Context;
use bytes::Bytes;
use stele_storage::StorageEngine;
use stele_types::{Command, CommandBuilder, LogIndex, Result, mutant};

/// Bytes of waiting requests that are proposed although entries of their region are being written.
const PROPOSED_AT_ONCE_BYTES: u64 = 1 << 20;

/// Entries of the proposal being built.
#[derive(Default)]
pub(super) struct Proposing {
    pub payloads: Vec<Bytes>,
    pub purposes: Vec<Option<Purpose>>,
    /// Whether the last entry changes the region or its leader: later requests wait for the next
    /// proposal.
    pub admin: bool,
    /// Whether the last entry changes the range or the phase.
    pub barrier: bool,
}

impl Proposing {
    /// Adds an entry.
    pub fn push(&mut self, payload: Bytes, purpose: Option<Purpose>) {
        self.payloads.push(payload);
        self.purposes.push(purpose);
    }
}

impl<E: StorageEngine> Peer<E> {
    /// Queues a client's request.
    pub fn enqueue(&mut self, ctx: &mut Context<E>, request: Request) {
        ctx.waiting_bytes += request.bytes();
        self.proposals.push_waiting(request);
    }

    /// Proposes waiting requests, up to the limits.
    pub(super) fn propose_waiting(&mut self, ctx: &mut Context<E>) -> Result<()> {
        if !self.proposals.has_waiting() {
            return Ok(());
        }
        if !self.is_leader() {
            let leader = self.leader_hint();
            self.refuse_waiting(ctx, &Refusal::NotLeader { leader });
            return Ok(());
        }
        // Waits until the first entry of the own term is applied: before that the epoch might still
        // change, and a comparison would miss writes of earlier terms.
        if !self.is_serving() || self.group.is_transferring() {
            return Ok(());
        }
        // Group commit: what arrives while this region is written shares the next proposal. With
        // commit return, a quorum that is faster than this disk suffices.
        let is_committed = ctx.options.commit_return && self.group.last() <= self.committed();
        let is_written = is_committed || self.group.last() <= self.group.persisted();
        if !is_written && self.proposals.waiting_bytes() < PROPOSED_AT_ONCE_BYTES {
            return Ok(());
        }
        let mut proposing = Proposing::default();
        let unapplied = self.log().tail_bytes();
        let mut bytes = unapplied;
        while bytes < ctx.options.uncommitted_bytes_max && !self.changes.is_barred(proposing.admin)
        {
            let Some(request) = self.proposals.pop_waiting() else { break };
            let held = request.bytes();
            let fresh = bytes - unapplied;
            let is_full = !ctx.has_tail_room(fresh) && (fresh > 0 || self.group.has_tail());
            if is_full && !matches!(request, Request::Admin(_)) {
                ctx.waiting_bytes -= held;
                let reason = "too many bytes of entries are not applied yet";
                ctx.reject(request.id(), Busy::Wait { reason });
                continue;
            }
            if let Some(request) = self.propose_one(ctx, request, &mut proposing)? {
                self.proposals.unpop_waiting(request);
                break;
            }
            ctx.waiting_bytes -= held;
            bytes += held;
        }
        self.propose(ctx, proposing);
        Ok(())
    }

    /// Proposes a request or replies to it. Returns the request if it must wait, and with it all
    /// later ones.
    fn propose_one(
        &mut self,
        ctx: &mut Context<E>,
        request: Request,
        proposing: &mut Proposing,
    ) -> Result<Option<Request>> {
        let (id, header) = (request.id(), *request.header());
        let deadline = header.deadline_nanos;
        if deadline != 0 && deadline <= ctx.now.monotonic_nanos {
            ctx.reject(id, Busy::DeadlinePassed);
            return Ok(None);
        }
        if let Err(refusal) = self.check_version(&header, &ctx.readers) {
            ctx.reject(id, refusal);
            return Ok(None);
        }
        match (request, self.check_phase()) {
            (Request::Admin(call), _) => return Ok(self.propose_admin(ctx, call, proposing)),
            (_, Err(rejection)) => ctx.reject(id, rejection),
            (Request::Write(write), Ok(())) => {
                if write.frees || is_admitted(ctx, id, write.command.len())? {
                    proposing.push(write.command, Some(Purpose::Write(id)));
                }
            }
            (Request::Cas(cas), Ok(())) => self.propose_cas(ctx, cas, proposing)?,
        }
        Ok(None)
    }

    fn propose_cas(
        &mut self,
        ctx: &mut Context<E>,
        cas: Cas,
        proposing: &mut Proposing,
    ) -> Result<()> {
        let seconds = ctx.now.unix_seconds;
        let found = match self.compare(&ctx.engine, &cas, &proposing.payloads, seconds) {
            Ok(found) => found,
            // Nothing was proposed. The engine recorded the damage, and the store requests a copy
            // from another replica.
            Err(error)
                if error.is_damage() && !mutant::active("raftstore.stop_on_damaged_value") =>
            {
                let reason = "a damaged value is being fetched from another replica";
                ctx.reject(cas.id, Busy::Wait { reason });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if !found.holds {
            let min_visible = LogIndex(self.group.last().0 + proposing.payloads.len() as u64);
            self.fail_comparison(ctx, cas, min_visible, found.previous);
            return Ok(());
        }
        let command = match cas_command(&cas) {
            Ok(command) => command,
            Err(error) => {
                ctx.reject(cas.id, Refusal::Invalid(error.to_string()));
                return Ok(());
            }
        };
        let frees = cas.new == CasNew::Delete;
        if frees || is_admitted(ctx, cas.id, command.bytes().len())? {
            let purpose = Some(Purpose::Cas(cas.id, found.previous));
            proposing.push(command.bytes().clone(), purpose);
        }
        Ok(())
    }

    /// Proposes the entries to Raft in one message.
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
            self.group.set_commits_sent_at_once(!mutant::active("raftstore.change_told_late"));
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
            if mutant::active("raftstore.reply_before_commit") {
                self.answer_applied(ctx, index, term);
            }
        }
    }

    /// Refuses all waiting requests.
    fn refuse_waiting(&mut self, ctx: &mut Context<E>, refusal: &Refusal) {
        while let Some(request) = self.proposals.pop_waiting() {
            ctx.waiting_bytes -= request.bytes();
            ctx.reject(request.id(), refusal.clone());
        }
    }

    /// Answers all pending requests: the replica is removed from this store.
    pub fn abandon(&mut self, ctx: &mut Context<E>) {
        self.refuse_waiting(ctx, &Refusal::RegionNotFound);
        self.abandon_proposals(ctx);
        if let Some(id) = self.transfers.abandon() {
            ctx.unknown(id, Unknown::ReplicaRemoved);
        }
        self.lose_reads(ctx);
    }

    /// Refuses requests past their deadline.
    pub(super) fn expire_waiting(&mut self, ctx: &mut Context<E>) {
        for request in self.proposals.take_expired(ctx.now.monotonic_nanos) {
            ctx.waiting_bytes -= request.bytes();
            ctx.reject(request.id(), Busy::DeadlinePassed);
        }
    }
}

/// Returns whether the device has room for `bytes`; otherwise refuses the request.
fn is_admitted<E: StorageEngine>(
    ctx: &mut Context<E>,
    id: RequestId,
    bytes: usize,
) -> Result<bool> {
    match ctx.engine.admit(bytes as u64) {
        Ok(()) => Ok(true),
        Err(stele_types::Error::NoSpace(_)) => {
            ctx.reject(id, Busy::DiskFull);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn cas_command(cas: &Cas) -> Result<Command> {
    let mut builder = CommandBuilder::new();
    match &cas.new {
        CasNew::Put { value, expires_at_s } => builder.put(&cas.key, value, *expires_at_s)?,
        CasNew::Delete => builder.delete(&cas.key)?,
    };
    Ok(builder.build())
}
