//! Reads that no lease on an edge thread served, and failed comparisons: both are answered once
//! leadership is confirmed and all they must see is applied. Many share one round.

use super::Peer;
use crate::input::{Header, Read, RequestId};
use crate::output::{Refusal, Reply, Timings};
use crate::store::Context;
use std::collections::VecDeque;
use stele_storage::{Pair, StorageEngine};
use stele_types::LogIndex;

/// Reads of one region.
#[derive(Default)]
pub(super) struct Reads {
    /// Came since the last round began.
    fresh: Vec<Waiting>,
    /// Rounds without an answer, oldest first.
    rounds: VecDeque<Round>,
    /// Confirmed; answered once this entry is applied.
    confirmed: Vec<(u64, Waiting)>,
}

/// A read that waits.
struct Waiting {
    id: RequestId,
    header: Header,
    /// A follower may serve it.
    replica: bool,
    /// An entry it looked at, which must be applied before it is answered.
    looked_at: u64,
    asked_nanos: u64,
    answer: Answer,
}

enum Answer {
    Ready,
    /// A comparison that did not hold, and what the key held.
    Failed(Option<Pair>, Timings),
}

/// Heartbeats that ask whether this peer still leads.
struct Round {
    context: Vec<u8>,
    sent_nanos: u64,
    reads: Vec<Waiting>,
}

impl Reads {
    pub fn is_idle(&self) -> bool {
        self.fresh.is_empty()
            && self.confirmed.is_empty()
            && self.rounds.iter().all(|r| r.reads.is_empty())
    }

    fn take_all(&mut self) -> Vec<Waiting> {
        let rounds = self.rounds.drain(..).flat_map(|round| round.reads);
        let confirmed = self.confirmed.drain(..).map(|(_, waiting)| waiting);
        self.fresh.drain(..).chain(rounds).chain(confirmed).collect()
    }

    /// Takes out reads whose time is over, or that came before `asked_before`.
    fn take_expired(&mut self, now_nanos: u64, asked_before: u64) -> Vec<Waiting> {
        let over = |waiting: &mut Waiting| {
            let deadline = waiting.header.deadline_nanos;
            (deadline != 0 && deadline <= now_nanos) || waiting.asked_nanos < asked_before
        };
        let mut gone: Vec<Waiting> = self.fresh.extract_if(.., over).collect();
        for round in &mut self.rounds {
            gone.extend(round.reads.extract_if(.., over));
        }
        let confirmed = self.confirmed.extract_if(.., |(_, waiting)| over(waiting));
        gone.extend(confirmed.map(|(_, waiting)| waiting));
        gone
    }
}

impl<E: StorageEngine> Peer<E> {
    /// Takes a client's read.
    pub fn read(&mut self, ctx: &mut Context<E>, read: Read) {
        if !read.replica && !self.is_leader() {
            ctx.refuse(read.id, Refusal::NotLeader { leader: self.leader_hint() });
            return;
        }
        if let Err(refusal) = self.check_readable(&read.header, &ctx.readers) {
            ctx.refuse(read.id, refusal);
            return;
        }
        let Read { id, header, replica } = read;
        let (asked_nanos, answer) = (ctx.now.monotonic_nanos, Answer::Ready);
        self.reads.fresh.push(Waiting { id, header, replica, looked_at: 0, asked_nanos, answer });
    }

    /// A comparison failed on what entries up to `looked_at` leave. It is answered when these are
    /// applied, in this very reign: then nobody wrote in between.
    pub(super) fn fail_comparison(
        &mut self,
        id: RequestId,
        header: Header,
        looked_at: u64,
        previous: Option<Pair>,
        timings: Timings,
    ) {
        let answer = Answer::Failed(previous, timings);
        let (replica, asked_nanos) = (false, u64::MAX);
        self.reads.fresh.push(Waiting { id, header, replica, looked_at, asked_nanos, answer });
    }

    /// Confirms what can be confirmed now, and answers what is confirmed and applied.
    pub(super) fn serve_reads(&mut self, ctx: &mut Context<E>) {
        self.reader.set_behind(self.committed() > self.applied);
        if !self.reads.fresh.is_empty() {
            match self.is_leader() {
                true => self.confirm_as_leader(ctx),
                false => self.ask_leader(ctx),
            }
        }
        let applied = self.applied;
        let ready = self.reads.confirmed.extract_if(.., |(index, _)| *index <= applied);
        for (_, waiting) in ready.collect::<Vec<_>>() {
            self.answer_read(ctx, waiting);
        }
    }

    fn confirm_as_leader(&mut self, ctx: &mut Context<E>) {
        let early = stele_types::mutant::active("raftstore.read_before_no_op");
        // A new leader may lack what earlier terms committed until its own first entry is applied.
        if self.leading.is_none() && !early {
            return;
        }
        if self.holds_lease(ctx.now.monotonic_nanos) || (early && self.leading.is_none()) {
            // A follower may have shown what is committed and not applied here yet.
            let committed = if early { 0 } else { self.committed() };
            let fresh = std::mem::take(&mut self.reads.fresh);
            let all = fresh.into_iter().map(|read| (read.looked_at.max(committed), read));
            self.reads.confirmed.extend(all);
        } else if self.reads.rounds.is_empty() {
            let context = self.open_round(ctx);
            self.node.read_index(context);
        }
    }

    fn ask_leader(&mut self, ctx: &mut Context<E>) {
        let leader = self.leader_hint();
        let for_leader = self.reads.fresh.extract_if(.., |waiting| !waiting.replica);
        for waiting in for_leader.collect::<Vec<_>>() {
            ctx.refuse(waiting.id, Refusal::NotLeader { leader });
        }
        if self.leader().is_some() && self.reads.rounds.is_empty() && !self.reads.fresh.is_empty() {
            let context = self.open_round(ctx);
            self.node.read_index(context);
        }
    }

    /// Begins a round with all fresh reads; it must be sent in this poll.
    pub(super) fn open_round(&mut self, ctx: &mut Context<E>) -> Vec<u8> {
        let context = ctx.round_context();
        let reads = std::mem::take(&mut self.reads.fresh);
        let sent_nanos = ctx.now.monotonic_nanos;
        self.reads.rounds.push_back(Round { context: context.clone(), sent_nanos, reads });
        context
    }

    /// A quorum confirmed a round, or the leader answered one: it and all before it are confirmed,
    /// as those began earlier.
    pub(super) fn round_answered(&mut self, ctx: &Context<E>, context: &[u8], index: u64) {
        let Some(at) = self.reads.rounds.iter().position(|round| round.context == context) else {
            return;
        };
        let mut sent_nanos = 0;
        for round in self.reads.rounds.drain(..=at) {
            sent_nanos = round.sent_nanos;
            let confirmed = round.reads.into_iter().map(|read| (read.looked_at.max(index), read));
            self.reads.confirmed.extend(confirmed);
        }
        self.renew_lease(ctx, sent_nanos);
    }

    fn answer_read(&mut self, ctx: &mut Context<E>, waiting: Waiting) {
        let Waiting { id, header, answer, .. } = waiting;
        match answer {
            Answer::Failed(previous, timings) => {
                ctx.reply(id, Reply::Cas { succeeded: false, previous, timings });
            }
            Answer::Ready => match self.check_readable(&header, &ctx.readers) {
                Err(refusal) => ctx.refuse(id, refusal),
                Ok(()) => {
                    self.traffic.read_ops += 1;
                    ctx.reply(id, Reply::ReadReady { applied: LogIndex(self.applied) });
                }
            },
        }
    }

    /// Another one leads, or none: rounds to the one before are not answered, or not to be trusted.
    pub(super) fn ask_again(&mut self) {
        let unanswered = self.reads.rounds.drain(..).flat_map(|round| round.reads);
        self.reads.fresh.extend(unanswered);
    }

    /// Leadership is lost: nothing is confirmed any more.
    pub(super) fn lose_reads(&mut self, ctx: &mut Context<E>) {
        for waiting in self.reads.take_all() {
            let refusal = match waiting.answer {
                Answer::Ready => Refusal::NotLeader { leader: self.leader_hint() },
                // Nothing was changed: it may be sent again.
                Answer::Failed(..) => Refusal::StaleCommand,
            };
            ctx.refuse(waiting.id, refusal);
        }
    }

    /// Gives up reads whose time is over, and those to a leader that does not answer.
    pub(super) fn expire_reads(&mut self, ctx: &mut Context<E>) {
        let now = ctx.now.monotonic_nanos;
        let patience = ctx.options.election_ticks_min * ctx.options.tick_nanos;
        let (asked_before, sent_before) = match self.is_leader() {
            true => (0, 0),
            false => (now.saturating_sub(2 * patience), now.saturating_sub(patience)),
        };
        for waiting in self.reads.take_expired(now, asked_before) {
            ctx.refuse(waiting.id, Refusal::ReadIndexNotReady);
        }
        if self.reads.rounds.front().is_some_and(|round| round.sent_nanos < sent_before) {
            self.ask_again();
        }
    }
}
