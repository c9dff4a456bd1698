//! Client requests: those that wait to be proposed, in order of arrival, and the proposals in
//! flight, in order of their entries.

use crate::input::{AdminCall, Header, Modify, RequestId, Run, Write};
use crate::stages::Timings;
use bytes::Bytes;
use std::collections::VecDeque;
use stele_storage::Modified;
use stele_types::{LogIndex, Term};

pub(crate) enum Waiting {
    Write(RequestId, Write),
    Modify(RequestId, Modify),
    Run(RequestId, Run),
    Admin(RequestId, AdminCall),
}

impl Waiting {
    pub(crate) fn id(&self) -> RequestId {
        let (Self::Write(id, _) | Self::Modify(id, _) | Self::Run(id, _) | Self::Admin(id, _)) =
            self;
        *id
    }

    /// Returns the keys that it holds while its pairs are read.
    pub(crate) fn keys(&self) -> &[Bytes] {
        match self {
            Self::Modify(_, modify) => std::slice::from_ref(&modify.key),
            Self::Run(_, run) => run.program.keys(),
            Self::Write(..) | Self::Admin(..) => &[],
        }
    }

    pub(crate) fn header(&self) -> &Header {
        match self {
            Self::Write(_, write) => &write.header,
            Self::Modify(_, modify) => &modify.header,
            Self::Run(_, run) => &run.header,
            Self::Admin(_, call) => &call.header,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        const OVERHEAD_BYTES: usize = 128;
        let payload = match self {
            Self::Write(_, write) => write.command.len(),
            Self::Modify(_, modify) => modify.bytes(),
            Self::Run(_, run) => run.program.bytes(),
            Self::Admin(..) => 0,
        };
        (payload + OVERHEAD_BYTES) as u64
    }

    pub(crate) fn is_over(&self, now_nanos: u64) -> bool {
        let deadline = self.header().deadline_nanos;
        deadline != 0 && deadline <= now_nanos
    }
}

pub(crate) enum Purpose {
    Write(RequestId),
    Modify(RequestId, Modified),
    Admin(RequestId),
}

impl Purpose {
    pub(crate) fn id(&self) -> RequestId {
        let (Self::Write(id) | Self::Modify(id, _) | Self::Admin(id)) = self;
        *id
    }
}

pub(crate) struct Proposal {
    pub index: LogIndex,
    pub term: Term,
    pub purpose: Purpose,
    /// Times of its stages; 0 for those that it has not reached.
    pub timings: Timings,
}

/// Waiting requests, of which the store counts the bytes, and proposals in flight.
#[derive(Default)]
pub(crate) struct Proposals {
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    in_flight: VecDeque<Proposal>,
    /// Writes that are done, until their times are taken when they are applied.
    done: VecDeque<(LogIndex, Timings)>,
}

impl Proposals {
    /// Returns whether no request waits and no proposal is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.is_empty()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    pub(crate) fn push_waiting(&mut self, request: Waiting) {
        self.waiting_bytes += request.bytes();
        self.waiting.push_back(request);
    }

    pub(crate) fn pop_waiting(&mut self) -> Option<Waiting> {
        let request = self.waiting.pop_front()?;
        self.waiting_bytes -= request.bytes();
        Some(request)
    }

    pub(crate) fn unpop_waiting(&mut self, request: Waiting) {
        self.waiting_bytes += request.bytes();
        self.waiting.push_front(request);
    }

    pub(crate) fn unpop_all(&mut self, requests: Vec<Waiting>) {
        requests.into_iter().rev().for_each(|request| self.unpop_waiting(request));
    }

    pub(crate) fn take_expired(&mut self, now_nanos: u64) -> Vec<Waiting> {
        if !self.waiting.iter().any(|request| request.is_over(now_nanos)) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (gone, kept): (Vec<_>, Vec<_>) = all.partition(|request| request.is_over(now_nanos));
        self.waiting_bytes = kept.iter().map(Waiting::bytes).sum();
        self.waiting = kept.into();
        gone
    }

    /// Adds a proposal; its entry follows those of all others.
    pub(crate) fn push(&mut self, proposal: Proposal) {
        self.in_flight.push_back(proposal);
    }

    /// Removes the proposals up to an applied entry, each with whether it is that entry. Invariant:
    /// a proposal is done only if the applied entry has its index *and* its term. One at or below
    /// the index that is not the applied entry was replaced by another leader's: it can never be
    /// applied.
    /// Test: `committed_writes_are_answered_by_the_entry_of_the_log_and_changes_wait_for_apply`.
    pub(crate) fn take_applied(&mut self, index: LogIndex, term: Term) -> Vec<(Proposal, bool)> {
        let reached = self.in_flight.partition_point(|proposal| proposal.index <= index);
        let taken: Vec<_> = self.in_flight.drain(..reached).collect();
        let with_outcome = |proposal: Proposal| {
            let is_done = (proposal.index, proposal.term) == (index, term);
            (proposal, is_done)
        };
        let taken: Vec<_> = taken.into_iter().map(with_outcome).collect();
        self.keep_times(&taken);
        taken
    }

    /// Removes and returns the times of the writes up to an applied entry.
    pub(crate) fn take_times(&mut self, index: LogIndex) -> impl Iterator<Item = Timings> {
        let reached = self.done.partition_point(|(done, _)| *done <= index);
        self.done.drain(..reached).map(|(_, timings)| timings)
    }

    fn keep_times(&mut self, outcomes: &[(Proposal, bool)]) {
        let is_write = |proposal: &Proposal| !matches!(proposal.purpose, Purpose::Admin(_));
        let done = outcomes.iter().filter(|(proposal, done)| *done && is_write(proposal));
        self.done.extend(done.map(|(proposal, _)| (proposal.index, proposal.timings)));
    }

    /// Removes the writes up to a committed entry, each with whether the log holds its entry.
    /// Administrative changes stay.
    ///
    /// Invariant: the log is read after the entries that a later leader sent are in it, and the term
    /// counts like the index. A committed entry of another term has replaced the proposal.
    pub(crate) fn take_committed(
        &mut self,
        committed: LogIndex,
        term_of: impl Fn(LogIndex) -> Option<Term>,
    ) -> Vec<(Proposal, bool)> {
        let reached = self.in_flight.partition_point(|proposal| proposal.index <= committed);
        let is_admin = |proposal: &Proposal| {
            // bug replica.admin_answered_at_commit: `matches!(proposal.purpose, Purpose::Admin(_))` is `false`
            matches!(proposal.purpose, Purpose::Admin(_))
        };
        let reached = self.in_flight.drain(..reached);
        let (kept, taken): (Vec<_>, Vec<_>) = reached.partition(is_admin);
        for proposal in kept.into_iter().rev() {
            self.in_flight.push_front(proposal);
        }
        let with_outcome = |proposal: Proposal| {
            let is_done = term_of(proposal.index) == Some(proposal.term);
            // bug replica.answered_by_index: let is_done = true;
            (proposal, is_done)
        };
        let taken: Vec<_> = taken.into_iter().map(with_outcome).collect();
        self.keep_times(&taken);
        taken
    }

    pub(crate) fn take_above(&mut self, index: LogIndex) -> Vec<Proposal> {
        let keep = self.in_flight.partition_point(|proposal| proposal.index <= index);
        self.in_flight.split_off(keep).into()
    }

    pub(crate) fn note_durable(&mut self, index: LogIndex, (began_nanos, now_nanos): (u64, u64)) {
        self.note(index, |timings| &mut timings.append_began_nanos, began_nanos);
        self.note(index, |timings| &mut timings.durable_nanos, now_nanos);
    }

    pub(crate) fn note_committed(&mut self, index: LogIndex, now_nanos: u64) {
        self.note(index, |timings| &mut timings.committed_nanos, now_nanos);
    }

    fn note(&mut self, index: LogIndex, stage: fn(&mut Timings) -> &mut u64, now_nanos: u64) {
        let done = self.done.partition_point(|(done, _)| *done <= index);
        let in_flight = self.in_flight.partition_point(|proposal| proposal.index <= index);
        let done = self.done.range_mut(..done).rev().map(|(_, timings)| timings);
        let in_flight = self.in_flight.range_mut(..in_flight).rev().map(|it| &mut it.timings);
        // Stages are reached in log order: before a write that had reached it, all had. Thousands of
        // writes that are done may wait for a slow disk.
        in_flight.map(stage).take_while(|at| **at == 0).for_each(|at| *at = now_nanos);
        done.map(stage).take_while(|at| **at == 0).for_each(|at| *at = now_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::Admin;

    /// Proposals of term 3 at indexes 5 to 8.
    fn in_flight() -> Proposals {
        let mut proposals = Proposals::default();
        for index in 5..=8 {
            let (index, term, timings) = (LogIndex(index), Term(3), Timings::default());
            let purpose = Purpose::Write(RequestId(index.0));
            proposals.push(Proposal { index, term, purpose, timings });
        }
        proposals
    }

    #[test]
    fn an_applied_entry_answers_its_proposal_and_all_before_it() {
        // Applied entry; answered proposals, each with whether it is done; proposals left in flight.
        let rows = [
            ((4, 3), &[][..], 4),
            ((5, 3), &[(5, true)], 3),
            ((5, 4), &[(5, false)], 3),
            ((7, 3), &[(5, false), (6, false), (7, true)], 1),
        ];
        for ((index, term), answered, left) in rows {
            let mut proposals = in_flight();
            let taken = proposals.take_applied(LogIndex(index), Term(term));
            let taken: Vec<_> = taken.iter().map(|(it, done)| (it.purpose.id().0, *done)).collect();
            assert_eq!(
                (&taken[..], proposals.in_flight.len()),
                (answered, left),
                "{index}, {term}"
            );
        }
        let mut proposals = in_flight();
        let gone = proposals.take_above(LogIndex(6));
        assert_eq!((gone.len(), gone[0].index, proposals.in_flight.len()), (2, LogIndex(7), 2));
    }

    #[test]
    fn committed_writes_are_answered_by_the_entry_of_the_log_and_changes_wait_for_apply() {
        let mut proposals = in_flight();
        proposals.in_flight[1].purpose = Purpose::Admin(RequestId(6));
        // A later leader replaced entry 7.
        let term_of = |index: LogIndex| Some(Term(if index.0 < 7 { 3 } else { 4 }));
        let taken = proposals.take_committed(LogIndex(7), term_of);
        let taken: Vec<_> = taken.iter().map(|(it, done)| (it.purpose.id().0, *done)).collect();
        assert_eq!(taken, [(5, true), (7, false)]);
        assert!(proposals.take_committed(LogIndex(7), term_of).is_empty());
        let applied = proposals.take_applied(LogIndex(6), Term(3));
        assert_eq!((applied.len(), applied[0].1, proposals.in_flight.len()), (1, true, 1));
    }

    #[test]
    fn a_stage_is_recorded_once_for_all_entries_that_reached_it() {
        let mut proposals = in_flight();
        proposals.note_durable(LogIndex(5), (50, 100));
        proposals.note_committed(LogIndex(6), 200);
        proposals.note_durable(LogIndex(8), (250, 300));
        let taken = proposals.take_applied(LogIndex(8), Term(3));
        let times =
            taken.iter().map(|(it, _)| (it.timings.durable_nanos, it.timings.committed_nanos));
        assert_eq!(times.collect::<Vec<_>>(), [(100, 200), (300, 200), (300, 0), (300, 0)]);
    }

    #[test]
    fn requests_expire_at_their_deadline_and_the_others_keep_their_order() {
        let mut proposals = Proposals::default();
        for (id, deadline_nanos) in [(1, 0), (2, 10), (3, 20), (4, 10)] {
            let header = Header { deadline_nanos, ..Header::default() };
            let call = AdminCall { header, call: Admin::Wake };
            proposals.push_waiting(Waiting::Admin(RequestId(id), call));
        }
        let rows: [(u64, &[u64]); 3] = [(9, &[]), (10, &[2, 4]), (15, &[])];
        for (now, expired) in rows {
            let gone: Vec<_> = proposals.take_expired(now).iter().map(|it| it.id().0).collect();
            assert_eq!(gone, expired, "at {now}");
        }
        let mut left = std::iter::from_fn(|| proposals.pop_waiting()).map(|it| it.id().0);
        assert_eq!((left.next(), left.next(), left.next()), (Some(1), Some(3), None));
    }
}
