//! Reads that no lease on a request thread served, and modifications that change nothing. Both are
//! answered once leadership is confirmed and all entries they depend on are applied. Many share one
//! read index round.
//!
//! Invariant: while a lease holds, no other peer can lead. A lease is counted from the sending of a round
//! that a quorum answered, and whichever peer answered withholds its vote for longer.
//! Tests: `a_leader_with_a_lease_serves_reads_without_the_core`,
//! `a_follower_that_answered_a_leader_withholds_its_vote_also_in_a_later_term`.

use crate::input::{Header, RequestId};
use crate::stages::Timings;
use std::collections::VecDeque;
use stele_storage::Modified;
use stele_types::{LogIndex, PeerRole, RegionPhase, Term};

#[derive(Default)]
pub(crate) struct Reads {
    /// Reads that arrived after the last round started.
    queued: Vec<WaitingRead>,
    /// Unconfirmed rounds, oldest first.
    rounds: VecDeque<ReadIndexRound>,
    confirmed: Vec<Confirmed>,
    /// How many of `confirmed` were not visible when [`Reads::take_visible`] was last called.
    late: usize,
}

pub(crate) struct WaitingRead {
    pub id: RequestId,
    pub header: Header,
    /// Whether a follower may serve it.
    pub replica: bool,
    /// Least entry that must be visible before the read is answered.
    pub min_visible: LogIndex,
    pub arrived_nanos: u64,
    pub answer: ReadOutcome,
}

struct Confirmed {
    index: LogIndex,
    at_nanos: u64,
    read: WaitingRead,
}

impl Confirmed {
    fn new(read: WaitingRead, index: LogIndex, at_nanos: u64) -> Self {
        Self { index: read.min_visible.max(index), at_nanos, read }
    }
}

pub(crate) enum ReadOutcome {
    Ready,
    /// Modification that changes nothing, and its result.
    Unchanged(Modified, Timings),
    /// Seal of a moment by the leader of this term, after a pause of these nanoseconds.
    Sealed(Term, u64),
}

/// Read index round: heartbeats that confirm leadership (Raft §6.4).
struct ReadIndexRound {
    context: Vec<u8>,
    sent_nanos: u64,
    reads: Vec<WaitingRead>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaderReads {
    pub is_serving: bool,
    pub has_lease: bool,
    pub committed: LogIndex,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    Wait,
    /// They are confirmed now, and answered once this entry is visible.
    Confirm(LogIndex),
    /// A round must start with all of them.
    StartRound,
}

impl Reads {
    pub(crate) fn is_idle(&self) -> bool {
        self.queued.is_empty()
            && self.confirmed.is_empty()
            && self.rounds.iter().all(|r| r.reads.is_empty())
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    pub(crate) fn push(&mut self, read: WaitingRead) {
        self.queued.push(read);
    }

    /// Returns the next step of a leader. A new leader may lack entries that earlier terms
    /// committed until its own first entry is visible. Invariant: a read under a lease waits for
    /// all that is committed, because a follower may have served it already.
    pub(crate) fn leader_step(&self, leader: &LeaderReads) -> ReadStep {
        match leader {
            // bug replica.read_before_no_op: `ReadStep::Wait` is `ReadStep::Confirm(LogIndex(0))`
            LeaderReads { is_serving: false, .. } => ReadStep::Wait,
            // bug replica.read_before_no_op: `*committed` is `LogIndex(0)`
            LeaderReads { has_lease: true, committed, .. } => ReadStep::Confirm(*committed),
            _ if self.rounds.is_empty() => ReadStep::StartRound,
            _ => ReadStep::Wait,
        }
    }

    /// Returns the next step of a follower: the leader confirms its reads.
    pub(crate) fn follower_step(&self, is_leader_known: bool) -> ReadStep {
        match is_leader_known && self.rounds.is_empty() && self.has_queued() {
            true => ReadStep::StartRound,
            false => ReadStep::Wait,
        }
    }

    /// Removes and returns the queued reads that only a leader may serve.
    pub(crate) fn take_for_leader(&mut self) -> Vec<WaitingRead> {
        self.queued.extract_if(.., |read| !read.replica).collect()
    }

    /// Confirms all queued reads; they are answered once `index` is visible.
    pub(crate) fn confirm_queued(&mut self, index: LogIndex, now_nanos: u64) {
        let queued = std::mem::take(&mut self.queued).into_iter();
        self.confirmed.extend(queued.map(|read| Confirmed::new(read, index, now_nanos)));
    }

    pub(crate) fn start_round(&mut self, context: Vec<u8>, sent_nanos: u64) {
        let reads = std::mem::take(&mut self.queued);
        self.rounds.push_back(ReadIndexRound { context, sent_nanos, reads });
    }

    /// Confirms a round that a quorum or the leader answered, and all rounds started before it.
    /// Returns the time at which it was sent; `None` if it is not known.
    pub(crate) fn confirm_round(
        &mut self,
        context: &[u8],
        index: LogIndex,
        now_nanos: u64,
    ) -> Option<u64> {
        let at = self.rounds.iter().position(|round| round.context == context)?;
        let mut sent_nanos = None;
        for round in self.rounds.drain(..=at) {
            sent_nanos = Some(round.sent_nanos);
            let reads = round.reads.into_iter();
            self.confirmed.extend(reads.map(|read| Confirmed::new(read, index, now_nanos)));
        }
        sent_nanos
    }

    /// Removes and returns the confirmed reads that may be answered, each with the time of its
    /// confirmation if it has waited for entries since.
    pub(crate) fn take_visible(&mut self, visible: LogIndex) -> Vec<(WaitingRead, Option<u64>)> {
        let (mut ready, mut rest) = (Vec::new(), Vec::new());
        for (place, confirmed) in std::mem::take(&mut self.confirmed).into_iter().enumerate() {
            let Confirmed { index, at_nanos, read } = confirmed;
            match index <= visible {
                true => ready.push((read, (place < self.late).then_some(at_nanos))),
                false => rest.push(Confirmed { index, at_nanos, read }),
            }
        }
        self.late = rest.len();
        self.confirmed = rest;
        ready
    }

    /// Returns the reads of open rounds to the queue after a change of leader: replies to the old
    /// leader's rounds do not arrive or are not valid.
    pub(crate) fn requeue(&mut self) {
        let unanswered = self.rounds.drain(..).flat_map(|round| round.reads);
        self.queued.extend(unanswered);
    }

    /// Returns the reads of open rounds to the queue if the oldest was sent before `sent_before`.
    pub(crate) fn requeue_if_late(&mut self, sent_before: u64) {
        if self.rounds.front().is_some_and(|round| round.sent_nanos < sent_before) {
            self.requeue();
        }
    }

    pub(crate) fn take_all(&mut self) -> Vec<WaitingRead> {
        self.requeue();
        let confirmed = self.confirmed.drain(..).map(|confirmed| confirmed.read);
        self.queued.drain(..).chain(confirmed).collect()
    }

    pub(crate) fn take_expired(&mut self, now_nanos: u64, arrived_before: u64) -> Vec<WaitingRead> {
        let over = |read: &mut WaitingRead| {
            let deadline = read.header.deadline_nanos;
            (deadline != 0 && deadline <= now_nanos) || read.arrived_nanos < arrived_before
        };
        let mut gone: Vec<WaitingRead> = self.queued.extract_if(.., over).collect();
        for round in &mut self.rounds {
            gone.extend(round.reads.extract_if(.., over));
        }
        let confirmed = self.confirmed.extract_if(.., |confirmed| over(&mut confirmed.read));
        gone.extend(confirmed.map(|confirmed| confirmed.read));
        gone
    }
}

// Right of a leader to a lease.
//
// While a lease lasts no other peer can lead, so the leader's own state is the latest. A follower
// that answers a heartbeat round withholds its vote for `election_ticks_min` of its ticks from the
// receipt, which is after the round was sent. So the lease runs from the *sending* of a round that
// a quorum answered, minus one tick (the first may come at once), on a clock that may run slower
// than theirs by the drift bound. Their ticks are as long as this store's: [`crate::LeaseTimes`].

/// Terms in which a peer may hold no lease.
#[derive(Debug, Default)]
pub(crate) struct LeaseRight {
    /// Last term in which a leadership transfer was started.
    transfer_term: Term,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTerms {
    pub term: Term,
    /// Whether this peer leads and has applied an entry of `term`.
    pub is_serving: bool,
    pub phase: RegionPhase,
    /// Role of this peer in the region; `None` if it is not a member.
    pub role: Option<PeerRole>,
}

impl LeaseRight {
    /// Ends the right in a term in which a leadership transfer starts: its target may campaign at
    /// any moment regardless of the followers' vote holds.
    pub(crate) fn end_for_term(&mut self, term: Term) {
        // bug replica.lease_after_transfer: skip
        self.transfer_term = term;
    }

    /// Returns whether a lease may be valid. A region prepared for a merge may belong to its target
    /// at any moment.
    pub(crate) fn may_hold(&self, state: &LeaseTerms) -> bool {
        state.is_serving
            && state.phase == RegionPhase::Normal
            && self.transfer_term != state.term
            && state.role.is_some_and(|role| role != PeerRole::Learner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(id: u64) -> WaitingRead {
        WaitingRead {
            id: RequestId(id),
            header: Header::default(),
            replica: id.is_multiple_of(2),
            min_visible: LogIndex(0),
            arrived_nanos: id,
            answer: ReadOutcome::Ready,
        }
    }

    fn ids(reads: &[WaitingRead]) -> Vec<u64> {
        reads.iter().map(|read| read.id.0).collect()
    }

    #[test]
    fn a_leader_confirms_under_a_lease_or_by_one_round_at_a_time() {
        use ReadStep::{Confirm, StartRound, Wait};
        // Serving, lease, open round; step.
        let rows = [
            (false, false, false, Wait),
            (false, true, false, Wait),
            (true, true, false, Confirm(LogIndex(9))),
            (true, true, true, Confirm(LogIndex(9))),
            (true, false, false, StartRound),
            (true, false, true, Wait),
        ];
        for (is_serving, has_lease, has_round, step) in rows {
            let mut reads = Reads::default();
            if has_round {
                reads.start_round(vec![1], 5);
            }
            reads.push(read(1));
            let leader = LeaderReads { is_serving, has_lease, committed: LogIndex(9) };
            assert_eq!(reads.leader_step(&leader), step, "{leader:?}, round {has_round}");
        }
    }

    #[test]
    fn a_follower_asks_a_leader_for_the_reads_that_it_may_serve() {
        let mut reads = Reads::default();
        assert_eq!(reads.follower_step(true), ReadStep::Wait, "nothing is queued");
        (1..=4).for_each(|id| reads.push(read(id)));
        assert_eq!(ids(&reads.take_for_leader()), [1, 3]);
        assert_eq!(reads.follower_step(false), ReadStep::Wait);
        assert_eq!(reads.follower_step(true), ReadStep::StartRound);
        reads.start_round(vec![1], 5);
        reads.push(read(6));
        assert_eq!(reads.follower_step(true), ReadStep::Wait, "one round at a time");
        reads.requeue_if_late(5);
        assert_eq!(reads.follower_step(true), ReadStep::Wait, "it was sent at 5");
        reads.requeue_if_late(6);
        assert_eq!(reads.follower_step(true), ReadStep::StartRound);
    }

    #[test]
    fn a_confirmed_round_confirms_all_rounds_before_it_and_none_after() {
        let mut reads = Reads::default();
        for id in 1..=3 {
            reads.push(read(id));
            reads.start_round(vec![id as u8], 10 * id);
        }
        assert_eq!(reads.confirm_round(&[9], LogIndex(7), 40), None);
        assert_eq!(reads.confirm_round(&[2], LogIndex(7), 40), Some(20));
        // Applied entry, reads answered then.
        let rows: [(u64, &[u64]); 3] = [(6, &[]), (7, &[1, 2]), (8, &[])];
        for (applied, answered) in rows {
            let taken = reads.take_visible(LogIndex(applied)).into_iter();
            let (taken, waited): (Vec<_>, Vec<_>) = taken.unzip();
            assert_eq!(ids(&taken), answered, "{applied}");
            assert!(waited.iter().all(|since| *since == Some(40)), "{applied}");
        }
        assert_eq!(ids(&reads.take_all()), [3]);
        assert!(reads.is_idle());
    }

    #[test]
    fn reads_expire_at_their_deadline_or_when_no_leader_answers() {
        let mut reads = Reads::default();
        let with_deadline = |id, deadline_nanos| WaitingRead {
            header: Header { deadline_nanos, ..Header::default() },
            ..read(id)
        };
        reads.push(with_deadline(3, 50));
        reads.start_round(vec![1], 5);
        reads.push(read(4));
        reads.confirm_queued(LogIndex(9), 7);
        reads.push(read(5));
        // Time, earliest arrival that is kept; expired reads.
        let rows: [(u64, u64, &[u64]); 4] =
            [(49, 0, &[]), (50, 0, &[3]), (50, 5, &[4]), (50, 6, &[5])];
        for (now, arrived_before, expired) in rows {
            assert_eq!(ids(&reads.take_expired(now, arrived_before)), expired, "at {now}");
        }
    }

    #[test]
    fn a_lease_needs_a_serving_voter_of_a_normal_region_and_a_term_without_transfer() {
        let (normal, tombstone) = (RegionPhase::Normal, RegionPhase::Tombstone);
        let (voter, learner) = (Some(PeerRole::Voter), Some(PeerRole::Learner));
        // Term, serving, phase, role; whether the lease may be valid after a transfer in term 4.
        let rows = [
            (5, true, normal, voter, true),
            (4, true, normal, voter, false),
            (5, false, normal, voter, false),
            (5, true, tombstone, voter, false),
            (5, true, normal, learner, false),
            (5, true, normal, Some(PeerRole::IncomingVoter), true),
            (5, true, normal, None, false),
        ];
        for (term, is_serving, phase, role, may_hold) in rows {
            let mut right = LeaseRight::default();
            right.end_for_term(Term(4));
            let state = LeaseTerms { term: Term(term), is_serving, phase, role };
            assert_eq!(right.may_hold(&state), may_hold, "{state:?}");
        }
    }
}
