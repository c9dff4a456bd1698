//! Proposal of waiting requests: one Raft proposal for all of them.

use super::Peer;
use super::answer::{Proposal, Purpose};
use super::queue::Request;
use crate::input::{Cas, CasNew, RequestId, Write};
use crate::output::{Busy, Refusal, Timings};
use crate::store::Context;
use bytes::Bytes;
use raft::eraftpb::{Entry, Message, MessageType};
use stele_storage::StorageEngine;
use stele_types::{Command, CommandBuilder, Result, mutant};

/// Entries of the proposal being built.
#[derive(Default)]
pub(super) struct Proposing {
    pub entries: Vec<Entry>,
    pub purposes: Vec<(Option<Purpose>, u64)>,
    /// Whether the last entry changes the region or its leader: later requests wait for the next
    /// proposal.
    pub admin: bool,
    /// Whether the last entry changes the range or the phase.
    pub barrier: bool,
}

impl Proposing {
    /// Adds an entry. Its request was first seen at `seen_nanos`.
    pub fn push(&mut self, entry: Entry, purpose: Option<Purpose>, seen_nanos: u64) {
        self.entries.push(entry);
        self.purposes.push((purpose, seen_nanos));
    }
}

impl<E: StorageEngine> Peer<E> {
    /// Queues a client's request.
    pub fn enqueue(&mut self, ctx: &mut Context<E>, request: Request) {
        ctx.waiting_bytes += request.bytes();
        self.queue.push(request);
    }

    /// Proposes waiting requests, up to the limits.
    pub(super) fn propose_waiting(&mut self, ctx: &mut Context<E>) -> Result<()> {
        if self.queue.is_empty() {
            return Ok(());
        }
        let now = ctx.now.monotonic_nanos;
        self.queue.stamp_arrivals(now);
        if !self.is_leader() {
            self.refuse_waiting(ctx);
            return Ok(());
        }
        // Waits until the first entry of the own term is applied: before that the epoch might still
        // change, and a comparison would miss writes of earlier terms.
        if self.leading != Some(self.term()) || self.is_transferring() {
            return Ok(());
        }
        let mut proposing = Proposing::default();
        let mut bytes = self.proposals.bytes();
        while bytes < ctx.options.uncommitted_bytes_max && !self.is_barred(&proposing) {
            let Some((request, seen)) = self.queue.pop() else { break };
            let held = request.bytes();
            let fresh = bytes - self.proposals.bytes();
            let is_full = !ctx.has_tail_room(fresh) && (fresh > 0 || self.has_tail());
            if is_full && !matches!(request, Request::Admin(_)) {
                ctx.waiting_bytes -= held;
                let reason = "too many bytes of entries are not applied yet";
                ctx.reject(request.id(), Busy::Wait { reason });
                continue;
            }
            match self.propose_one(ctx, request, seen.unwrap_or(now), &mut proposing)? {
                None => {
                    ctx.waiting_bytes -= held;
                    bytes += held;
                }
                Some(request) => {
                    self.queue.push_front(request, seen);
                    break;
                }
            }
        }
        self.propose(ctx, proposing);
        Ok(())
    }

    /// Returns whether proposals must wait. Invariant: nothing is proposed after an entry that
    /// changes the range or the phase, so what is checked against the region now holds when it is
    /// applied.
    fn is_barred(&self, proposing: &Proposing) -> bool {
        let barred = proposing.admin || self.barrier.is_some();
        barred && !stele_types::mutant::active("raftstore.propose_behind_barrier")
    }

    /// Proposes a request or replies to it. Returns the request if it must wait, and with it all
    /// later ones.
    fn propose_one(
        &mut self,
        ctx: &mut Context<E>,
        request: Request,
        seen: u64,
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
        match request {
            Request::Admin(call) => Ok(self.propose_admin(ctx, call, seen, proposing)),
            Request::Write(write) => {
                match self.check_phase() {
                    Ok(()) => self.propose_write(ctx, write, seen, proposing)?,
                    Err(rejection) => ctx.reject(id, rejection),
                }
                Ok(None)
            }
            Request::Cas(cas) => {
                match self.check_phase() {
                    Ok(()) => self.propose_cas(ctx, cas, seen, proposing)?,
                    Err(rejection) => ctx.reject(id, rejection),
                }
                Ok(None)
            }
        }
    }

    fn propose_write(
        &mut self,
        ctx: &mut Context<E>,
        write: Write,
        seen: u64,
        proposing: &mut Proposing,
    ) -> Result<()> {
        if !write.frees && !is_admitted(ctx, write.id, write.command.len())? {
            return Ok(());
        }
        proposing.push(command_entry(write.command), Some(Purpose::Write(write.id)), seen);
        Ok(())
    }

    fn propose_cas(
        &mut self,
        ctx: &mut Context<E>,
        cas: Cas,
        seen: u64,
        proposing: &mut Proposing,
    ) -> Result<()> {
        let seconds = ctx.now.unix_seconds;
        let found = match self.compare(&ctx.engine, &cas, &proposing.entries, seconds) {
            Ok(found) => found,
            // Nothing was proposed. The engine recorded the damage, and the store requests a copy
            // from another replica.
            Err(error)
                if error.is_damage()
                    && !stele_types::mutant::active("raftstore.stop_on_damaged_value") =>
            {
                let reason = "a damaged value is being fetched from another replica";
                ctx.reject(cas.id, Busy::Wait { reason });
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if !found.holds {
            let min_applied = self.last_index() + proposing.entries.len() as u64;
            let queue_nanos = ctx.now.monotonic_nanos.saturating_sub(seen);
            let timings = Timings { queue_nanos, ..Timings::default() };
            self.fail_comparison(cas.id, cas.header, min_applied, found.previous, timings);
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
            proposing.push(command_entry(command.bytes().clone()), purpose, seen);
        }
        Ok(())
    }

    /// Proposes the entries to Raft in one message.
    pub(super) fn propose(&mut self, ctx: &mut Context<E>, proposing: Proposing) {
        if proposing.entries.is_empty() {
            return;
        }
        let sizes: Vec<u64> = proposing.entries.iter().map(entry_bytes).collect();
        let first = self.last_index() + 1;
        let last = self.last_index() + sizes.len() as u64;
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.node.raft.id;
        message.set_entries(proposing.entries.into());
        let is_accepted = self.node.raft.step(message).is_ok() && self.last_index() == last;
        if is_accepted && proposing.admin {
            self.admin_at = Some(last);
            // Invariant: followers learn of a change of the region as soon as it is committed.
            // Others wait for its effect: new replicas that vote, the other region of a merge.
            self.node.raft.skip_bcast_commit(mutant::active("raftstore.change_told_late"));
            self.barrier = proposing.barrier.then_some(last).or(self.barrier);
        }
        let (term, proposed) = (self.term(), ctx.now.monotonic_nanos);
        let all = (first..).zip(sizes).zip(proposing.purposes);
        for ((index, bytes), (purpose, seen)) in all {
            let Some(purpose) = purpose else { continue };
            match is_accepted {
                true => self.proposals.push(Proposal {
                    index,
                    term,
                    purpose,
                    bytes,
                    seen,
                    proposed,
                    durable: 0,
                    committed: 0,
                }),
                // Raft did not take the entry, so the request had no effect.
                false => ctx.reject(purpose.id(), Refusal::NotLeader { leader: None }),
            }
            if stele_types::mutant::active("raftstore.reply_before_commit") {
                self.answer_applied(ctx, index, term);
            }
        }
    }

    /// Refuses all waiting requests: this peer does not lead.
    fn refuse_waiting(&mut self, ctx: &mut Context<E>) {
        let leader = self.leader_hint();
        while let Some((request, _)) = self.queue.pop() {
            ctx.waiting_bytes -= request.bytes();
            ctx.reject(request.id(), Refusal::NotLeader { leader });
        }
    }

    /// Answers all pending requests: the replica is removed from this store.
    pub fn abandon(&mut self, ctx: &mut Context<E>) {
        while let Some((request, _)) = self.queue.pop() {
            ctx.waiting_bytes -= request.bytes();
            ctx.reject(request.id(), Refusal::RegionNotFound);
        }
        self.abandon_proposals(ctx);
        self.abandon_transfer(ctx);
        self.lose_reads(ctx);
    }

    /// Refuses requests past their deadline.
    pub(super) fn expire_waiting(&mut self, ctx: &mut Context<E>) {
        for request in self.queue.expired(ctx.now.monotonic_nanos) {
            ctx.waiting_bytes -= request.bytes();
            ctx.reject(request.id(), Busy::DeadlinePassed);
        }
    }
}

fn command_entry(payload: Bytes) -> Entry {
    Entry { data: payload, ..Entry::default() }
}

fn entry_bytes(entry: &Entry) -> u64 {
    crate::log::payload_of(entry).len() as u64 + 128
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
