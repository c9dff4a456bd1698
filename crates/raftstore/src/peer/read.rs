//! Reads that no lease on a request thread served, and failed comparisons. Both are answered once
//! leadership is confirmed and all entries they depend on are applied. Many share one read index
//! round.

use super::Peer;
use crate::input::{Header, Read, RequestId};
use crate::output::{Busy, Done, Refusal, Timings};
use crate::store::Context;
use std::collections::VecDeque;
use stele_storage::{Pair, StorageEngine};
use stele_types::LogIndex;

/// Waiting reads of one region.
#[derive(Default)]
pub(super) struct Reads {
    /// Reads that arrived after the last round started.
    queued: Vec<Waiting>,
    /// Unconfirmed rounds, oldest first.
    rounds: VecDeque<ReadIndexRound>,
    /// Confirmed reads, each answered once this entry is applied.
    confirmed: Vec<(LogIndex, Waiting)>,
}

/// Waiting read.
struct Waiting {
    id: RequestId,
    header: Header,
    /// Whether a follower may serve it.
    replica: bool,
    /// Least entry that must be applied before the read is answered.
    min_applied: LogIndex,
    arrived_nanos: u64,
    answer: Answer,
}

enum Answer {
    Ready,
    /// Failed comparison, and the pair that the key held.
    Failed(Option<Pair>, Timings),
}

/// Read index round: heartbeats that confirm leadership (Raft §6.4).
struct ReadIndexRound {
    context: Vec<u8>,
    sent_nanos: u64,
    reads: Vec<Waiting>,
}

impl Reads {
    pub fn is_idle(&self) -> bool {
        self.queued.is_empty()
            && self.confirmed.is_empty()
            && self.rounds.iter().all(|r| r.reads.is_empty())
    }

    fn take_all(&mut self) -> Vec<Waiting> {
        let rounds = self.rounds.drain(..).flat_map(|round| round.reads);
        let confirmed = self.confirmed.drain(..).map(|(_, waiting)| waiting);
        self.queued.drain(..).chain(rounds).chain(confirmed).collect()
    }

    /// Removes and returns reads past their deadline and those that arrived before
    /// `arrived_before`.
    fn take_expired(&mut self, now_nanos: u64, arrived_before: u64) -> Vec<Waiting> {
        let over = |waiting: &mut Waiting| {
            let deadline = waiting.header.deadline_nanos;
            (deadline != 0 && deadline <= now_nanos) || waiting.arrived_nanos < arrived_before
        };
        let mut gone: Vec<Waiting> = self.queued.extract_if(.., over).collect();
        for round in &mut self.rounds {
            gone.extend(round.reads.extract_if(.., over));
        }
        let confirmed = self.confirmed.extract_if(.., |(_, waiting)| over(waiting));
        gone.extend(confirmed.map(|(_, waiting)| waiting));
        gone
    }
}

impl<E: StorageEngine> Peer<E> {
    /// Queues a client's read.
    pub fn read(&mut self, ctx: &mut Context<E>, read: Read) {
        if !read.replica && !self.is_leader() {
            ctx.reject(read.id, Refusal::NotLeader { leader: self.leader_hint() });
            return;
        }
        if let Err(refusal) = self.check_readable(&read.header, &ctx.readers) {
            ctx.reject(read.id, refusal);
            return;
        }
        let Read { id, header, replica } = read;
        let (arrived_nanos, answer) = (ctx.now.monotonic_nanos, Answer::Ready);
        self.reads.queued.push(Waiting {
            id,
            header,
            replica,
            min_applied: LogIndex(0),
            arrived_nanos,
            answer,
        });
    }

    /// Queues the reply to a comparison that failed on entries up to `min_applied`. It is answered
    /// when these are applied in the same term: then no other leader wrote in between.
    pub(super) fn fail_comparison(
        &mut self,
        id: RequestId,
        header: Header,
        min_applied: LogIndex,
        previous: Option<Pair>,
        timings: Timings,
    ) {
        let answer = Answer::Failed(previous, timings);
        let (replica, arrived_nanos) = (false, u64::MAX);
        self.reads.queued.push(Waiting { id, header, replica, min_applied, arrived_nanos, answer });
    }

    /// Confirms the reads that can be confirmed now and answers those that are confirmed and
    /// applied.
    pub(super) fn serve_reads(&mut self, ctx: &mut Context<E>) {
        self.reader.set_behind(self.committed() > self.applied());
        if !self.reads.queued.is_empty() {
            match self.is_leader() {
                true => self.confirm_as_leader(ctx),
                false => self.ask_leader(ctx),
            }
        }
        let applied = self.applied();
        let ready = self.reads.confirmed.extract_if(.., |(index, _)| *index <= applied);
        for (_, waiting) in ready.collect::<Vec<_>>() {
            self.answer_read(ctx, waiting);
        }
    }

    fn confirm_as_leader(&mut self, ctx: &mut Context<E>) {
        let early = stele_types::mutant::active("raftstore.read_before_no_op");
        // A new leader may lack entries that earlier terms committed until its own first entry is
        // applied.
        if self.leading.is_none() && !early {
            return;
        }
        if self.has_lease(ctx.now.monotonic_nanos) || (early && self.leading.is_none()) {
            // A follower may have served entries that are committed and not yet applied here.
            let committed = if early { LogIndex(0) } else { self.committed() };
            let queued = std::mem::take(&mut self.reads.queued);
            let all = queued.into_iter().map(|read| (read.min_applied.max(committed), read));
            self.reads.confirmed.extend(all);
        } else if self.reads.rounds.is_empty() {
            let context = self.start_round(ctx);
            self.group.start_round(context);
        }
    }

    fn ask_leader(&mut self, ctx: &mut Context<E>) {
        let leader = self.leader_hint();
        let for_leader = self.reads.queued.extract_if(.., |waiting| !waiting.replica);
        for waiting in for_leader.collect::<Vec<_>>() {
            ctx.reject(waiting.id, Refusal::NotLeader { leader });
        }
        if self.leader().is_some() && self.reads.rounds.is_empty() && !self.reads.queued.is_empty()
        {
            let context = self.start_round(ctx);
            self.group.start_round(context);
        }
    }

    /// Starts a round with all new reads. The caller must send it in this poll.
    pub(super) fn start_round(&mut self, ctx: &mut Context<E>) -> Vec<u8> {
        let context = ctx.next_read_context();
        let reads = std::mem::take(&mut self.reads.queued);
        let sent_nanos = ctx.now.monotonic_nanos;
        self.reads.rounds.push_back(ReadIndexRound { context: context.clone(), sent_nanos, reads });
        context
    }

    /// Confirms a round that a quorum or the leader answered, and all rounds started before it.
    pub(super) fn on_round_confirmed(&mut self, ctx: &Context<E>, context: &[u8], index: LogIndex) {
        let Some(at) = self.reads.rounds.iter().position(|round| round.context == context) else {
            return;
        };
        let mut sent_nanos = 0;
        for round in self.reads.rounds.drain(..=at) {
            sent_nanos = round.sent_nanos;
            let confirmed = round.reads.into_iter().map(|read| (read.min_applied.max(index), read));
            self.reads.confirmed.extend(confirmed);
        }
        self.renew_lease(ctx, sent_nanos);
    }

    fn answer_read(&mut self, ctx: &mut Context<E>, waiting: Waiting) {
        let Waiting { id, header, answer, .. } = waiting;
        match answer {
            Answer::Failed(previous, timings) => {
                ctx.done(id, Done::Cas { succeeded: false, previous, timings });
            }
            Answer::Ready => match self.check_readable(&header, &ctx.readers) {
                Err(rejection) => ctx.reject(id, rejection),
                Ok(()) => {
                    self.traffic.read_ops += 1;
                    ctx.done(id, Done::ReadReady { applied: self.applied() });
                }
            },
        }
    }

    /// Returns the reads of open rounds to the queue after a change of leader: replies to the old
    /// leader's rounds do not arrive or are not valid.
    pub(super) fn requeue_reads(&mut self) {
        let unanswered = self.reads.rounds.drain(..).flat_map(|round| round.reads);
        self.reads.queued.extend(unanswered);
    }

    /// Refuses all waiting reads and failed comparisons: leadership is lost. None of them changed
    /// anything.
    pub(super) fn lose_reads(&mut self, ctx: &mut Context<E>) {
        let leader = self.leader_hint();
        for waiting in self.reads.take_all() {
            ctx.reject(waiting.id, Refusal::NotLeader { leader });
        }
    }

    /// Refuses reads past their deadline and reads to a leader that does not answer.
    pub(super) fn expire_reads(&mut self, ctx: &mut Context<E>) {
        let now = ctx.now.monotonic_nanos;
        let timeout_nanos = ctx.options.election_ticks_min * ctx.options.tick_nanos;
        let (arrived_before, sent_before) = match self.is_leader() {
            true => (0, 0),
            false => (now.saturating_sub(2 * timeout_nanos), now.saturating_sub(timeout_nanos)),
        };
        for waiting in self.reads.take_expired(now, arrived_before) {
            ctx.reject(waiting.id, Busy::ReadIndexNotReady);
        }
        if self.reads.rounds.front().is_some_and(|round| round.sent_nanos < sent_before) {
            self.requeue_reads();
        }
    }
}
