//! Reads, and modifications that change nothing: their confirmation and their replies.

use super::Replica;
use super::parts::{LeaderReads, LeaseTerms, ReadOutcome, ReadStep, WaitingRead};
use crate::context::Context;
use crate::input::{Header, Read, RequestId};
use crate::output::{Busy, Done, Refusal};
use crate::reads::ReadPath;
use crate::stages::Timings;
use stele_storage::{Modified, StorageEngine};
use stele_types::LogIndex;

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn read(&mut self, ctx: &mut Context<E>, id: RequestId, read: Read) {
        if !read.replica && !self.is_leader() {
            ctx.reject(id, Refusal::NotLeader { leader: self.leader_hint() });
            return;
        }
        if let Err(refusal) = self.check_readable(&read.header, &ctx.readers) {
            ctx.reject(id, refusal);
            return;
        }
        let Read { header, replica } = read;
        let (arrived_nanos, min_visible) = (ctx.now.monotonic_nanos, LogIndex(0));
        let answer = ReadOutcome::Ready;
        self.reads.push(WaitingRead { id, header, replica, min_visible, arrived_nanos, answer });
    }

    /// Queues the reply to a modification that changes nothing, decided on entries up to
    /// `min_visible`. It is answered when these are visible in the same term: then no other leader
    /// wrote in between.
    pub(super) fn answer_unchanged(
        &mut self,
        ctx: &Context<E>,
        (id, header): (RequestId, Header),
        min_visible: LogIndex,
        result: Modified,
    ) {
        // It needs no entry of its own.
        let timings = Timings { proposed_nanos: ctx.now.monotonic_nanos, ..Timings::default() };
        let answer = ReadOutcome::Unchanged(result, timings);
        let (replica, arrived_nanos) = (false, u64::MAX);
        self.reads.push(WaitingRead { id, header, replica, min_visible, arrived_nanos, answer });
    }

    pub(super) fn confirm_reads(&mut self, ctx: &mut Context<E>) {
        if !self.reads.has_queued() {
            return;
        }
        match self.next_read_step(ctx) {
            ReadStep::Wait => {}
            ReadStep::Confirm(index) => {
                self.reads.confirm_queued(index, ctx.now.monotonic_nanos);
            }
            ReadStep::StartRound => {
                let context = self.start_round(ctx);
                self.group.start_round(context);
            }
        }
    }

    pub(super) fn answer_reads(&mut self, ctx: &mut Context<E>) {
        for (read, waited_since) in self.reads.take_visible(self.visible()) {
            if matches!(read.answer, ReadOutcome::Ready) {
                let path = if waited_since.is_some() { ReadPath::Wait } else { ReadPath::Round };
                ctx.readers.add(path, 1);
                let waited =
                    waited_since.map(|since| ctx.now.monotonic_nanos.saturating_sub(since));
                waited.into_iter().for_each(|nanos| ctx.times.add_read(nanos));
            }
            self.answer_read(ctx, read);
        }
    }

    fn next_read_step(&mut self, ctx: &mut Context<E>) -> ReadStep {
        if self.is_leader() {
            return self.reads.leader_step(&LeaderReads {
                is_serving: self.leadership.is_serving(),
                has_lease: self.has_lease(ctx.now.monotonic_nanos),
                committed: self.committed(),
            });
        }
        let leader = self.leader_hint();
        for read in self.reads.take_for_leader() {
            ctx.reject(read.id, Refusal::NotLeader { leader });
        }
        self.reads.follower_step(self.leader().is_some())
    }

    /// Starts a round with all new reads. The caller must send it in this poll.
    pub(super) fn start_round(&mut self, ctx: &mut Context<E>) -> Vec<u8> {
        let context = ctx.next_read_context();
        self.reads.start_round(context.clone(), ctx.now.monotonic_nanos);
        context
    }

    pub(super) fn on_round_confirmed(&mut self, ctx: &Context<E>, context: &[u8], index: LogIndex) {
        let now = ctx.now.monotonic_nanos;
        if let Some(sent_nanos) = self.reads.confirm_round(context, index, now) {
            self.renew_lease(ctx, sent_nanos);
        }
    }

    fn answer_read(&mut self, ctx: &mut Context<E>, read: WaitingRead) {
        let WaitingRead { id, header, answer, .. } = read;
        match answer {
            ReadOutcome::Unchanged(result, timings) => {
                ctx.done(id, Done::Modified { result, timings })
            }
            ReadOutcome::Sealed(term, paused_nanos) => {
                ctx.done(id, Done::Sealed { term, paused_nanos });
            }
            ReadOutcome::Ready => match self.check_readable(&header, &ctx.readers) {
                Err(rejection) => ctx.reject(id, rejection),
                Ok(()) => ctx.done(id, Done::ReadReady { visible: self.visible() }),
            },
        }
    }

    /// Refuses all waiting reads and modifications that change nothing: leadership is lost.
    pub(super) fn lose_reads(&mut self, ctx: &mut Context<E>) {
        let leader = self.leader_hint();
        for read in self.reads.take_all() {
            ctx.reject(read.id, Refusal::NotLeader { leader });
        }
    }

    /// Refuses reads past their deadline and reads to a leader that does not answer.
    pub(super) fn expire_reads(&mut self, ctx: &mut Context<E>) {
        let now = ctx.now.monotonic_nanos;
        let options = &ctx.options;
        let late_nanos = options.election_ticks_min * options.tick_nanos;
        let refused_nanos = options.device_nanos(2 * options.election_ticks_min);
        let (arrived_before, sent_before) = match self.is_leader() {
            true => (0, 0),
            false => (now.saturating_sub(refused_nanos), now.saturating_sub(late_nanos)),
        };
        for read in self.reads.take_expired(now, arrived_before) {
            ctx.reject(read.id, Busy::ReadIndexNotReady);
        }
        self.reads.requeue_if_late(sent_before);
    }
}

// Leader lease: its renewal by heartbeat rounds.

impl<E: StorageEngine> Replica<E> {
    fn may_hold_lease(&self) -> bool {
        self.lease.may_hold(&LeaseTerms {
            term: self.term(),
            is_serving: self.is_serving(),
            phase: self.region.phase,
            role: self.region.peer(self.peer.id).map(|peer| peer.role),
        })
    }

    /// Returns whether this peer is certainly the latest leader at this moment.
    pub(super) fn has_lease(&self, now_nanos: u64) -> bool {
        self.may_hold_lease() && self.reader.is_leased(now_nanos)
    }

    /// Renews the lease from a quorum-confirmed round sent at `sent_nanos`, unless leases are off.
    pub(super) fn renew_lease(&mut self, ctx: &Context<E>, sent_nanos: u64) {
        // bug replica.leases_stay_on: `ctx.leases` is `true`
        if ctx.leases && self.may_hold_lease() {
            self.reader.renew(sent_nanos + ctx.options.lease_nanos());
        }
    }

    /// Ends the lease; no lease is valid in this term again.
    pub(super) fn end_lease_for_term(&mut self) {
        self.lease.end_for_term(self.term());
        if !self.may_hold_lease() {
            self.reader.end_lease();
        }
    }

    /// Attaches a read index round to the heartbeats of the next tick: their replies renew the
    /// lease.
    pub(super) fn join_heartbeat(&mut self, ctx: &mut Context<E>) {
        if !self.group.is_heartbeat_due() || !self.is_serving() {
            return;
        }
        if self.group.is_sole_voter() {
            self.renew_lease(ctx, ctx.now.monotonic_nanos);
            return;
        }
        let context = self.start_round(ctx);
        self.group.attach_round(context);
    }
}
