//! Durability of a peer's promises: which of its readies are on disk, and the messages that wait
//! for one of them.

use crate::peer::raft_group::Outgoing;
use std::collections::VecDeque;
use stele_types::Term;

/// Term, and the peer voted for in it; 0 for none.
pub(crate) type Vote = (Term, u64);

/// Durable state of a peer's promises. Readies are numbered and become durable in order.
#[derive(Default)]
pub(crate) struct Durability {
    /// Last ready taken from Raft.
    taken: u64,
    /// Last ready with records in a batch.
    noted: u64,
    /// Last ready with durable records.
    reached: u64,
    /// The first records of the log are not durable.
    is_log_start_pending: bool,
    /// Term and vote last passed to the log, durable or not.
    written: Vote,
    /// Durable term and vote, and those in flight with their ready.
    vote: Vote,
    vote_noted: Option<(u64, Vote)>,
    /// Messages with promises that are not durable, each group with its ready.
    held: VecDeque<(u64, Vec<Outgoing>)>,
}

impl Durability {
    /// Returns the state after opening: `vote` is durable, and so is everything else.
    pub(crate) fn new(vote: Vote) -> Self {
        Self { written: vote, vote, ..Self::default() }
    }

    /// Starts a log: its first records are in the batch being filled.
    pub(crate) fn start_log(&mut self) {
        self.is_log_start_pending = true;
    }

    /// Returns whether a term and a vote differ from those last written, and records that they are
    /// written.
    pub(crate) fn must_write(&mut self, vote: Vote) -> bool {
        std::mem::replace(&mut self.written, vote) != vote
    }

    /// Records a ready, and whether it has records in the batch being filled.
    pub(crate) fn note_ready(&mut self, number: u64, has_records: bool) {
        self.taken = number;
        if !has_records {
            return;
        }
        self.noted = number;
        if self.written != self.vote_noted.map_or(self.vote, |(_, noted)| noted) {
            self.vote_noted = Some((number, self.written));
        }
    }

    /// Returns whether every entry and vote is durable.
    pub(crate) fn is_durable(&self) -> bool {
        !self.is_log_start_pending && self.reached >= self.noted
    }

    /// Returns whether a leader may send before its own disk write is done. Invariant: only in a
    /// durable term. After a crash it could lead the same term again, with other entries.
    pub(crate) fn may_send_at_once(&self, term: Term) -> bool {
        // bug replica.lead_before_sync: `self.vote.0 == term` is `true`
        self.vote.0 == term
    }

    /// Returns whether the term and the start of the log are durable.
    pub(crate) fn is_term_durable(&self, term: Term) -> bool {
        !self.is_log_start_pending && self.vote.0 == term
    }

    /// Returns those messages that may leave now, and holds the others. Invariant: a message that
    /// makes a promise leaves after the promise is durable.
    pub(crate) fn release_or_hold(&mut self, messages: Vec<Outgoing>) -> Vec<Outgoing> {
        if self.is_durable() || messages.is_empty() {
            return messages;
        }
        self.held.push_back((self.noted, messages));
        Vec::new()
    }

    /// Records that the records of a ready and of all earlier ones are durable. Returns the last
    /// ready of which nothing is missing on disk, and the messages that waited for it.
    pub(crate) fn note_durable(&mut self, number: u64) -> (u64, Vec<Outgoing>) {
        self.is_log_start_pending = false;
        self.reached = self.reached.max(number);
        if let Some((_, vote)) = self.vote_noted.take_if(|(noted, _)| *noted <= number) {
            self.vote = vote;
        }
        let is_released = |(after, _): &&(u64, Vec<Outgoing>)| *after <= self.reached;
        let count = self.held.iter().take_while(is_released).count();
        let released = self.held.drain(..count).flat_map(|(_, messages)| messages).collect();
        (if self.is_durable() { self.taken } else { number }, released)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::PeerId;

    fn messages(ids: &[u64]) -> Vec<Outgoing> {
        ids.iter().map(|id| Outgoing::Snapshot(PeerId(*id))).collect()
    }

    fn ids(messages: Vec<Outgoing>) -> Vec<u64> {
        let id = |message| match message {
            Outgoing::Snapshot(peer) | Outgoing::Message(peer, _) => peer.0,
        };
        messages.into_iter().map(id).collect()
    }

    #[test]
    fn promises_wait_for_their_ready_and_leave_in_order() {
        let mut durability = Durability::new((Term(1), 0));
        assert_eq!(ids(durability.release_or_hold(messages(&[1]))), [1]);
        durability.note_ready(1, true);
        assert!(ids(durability.release_or_hold(messages(&[2, 3]))).is_empty());
        durability.note_ready(2, true);
        assert!(ids(durability.release_or_hold(messages(&[4]))).is_empty());
        durability.note_ready(3, false);
        // Durable ready, ready that Raft may count, messages that leave.
        let rows: [(u64, u64, &[u64]); 3] = [(0, 0, &[]), (1, 1, &[2, 3]), (2, 3, &[4])];
        for (number, counted, left) in rows {
            let (ready, released) = durability.note_durable(number);
            assert_eq!((ready, &ids(released)[..]), (counted, left), "ready {number}");
        }
        assert!(durability.is_durable());
    }

    #[test]
    fn a_leader_sends_at_once_only_in_a_durable_term() {
        let mut durability = Durability::new((Term(1), 7));
        // Vote taken with a ready, last durable ready, term that is durable then.
        let rows = [((Term(1), 7), 0, 1), ((Term(2), 7), 1, 1), ((Term(2), 7), 2, 2)];
        for (ready, (vote, durable, term)) in (1..).zip(rows) {
            let has_records = durability.must_write(vote);
            durability.note_ready(ready, has_records);
            durability.note_durable(durable);
            let may = [1, 2].map(|term| durability.may_send_at_once(Term(term)));
            assert_eq!(may, [term == 1, term == 2], "ready {ready}");
        }
    }

    #[test]
    fn nothing_is_durable_before_the_start_of_the_log_is() {
        let mut durability = Durability::new((Term(5), 0));
        durability.start_log();
        assert!(!durability.is_durable());
        assert!(ids(durability.release_or_hold(messages(&[1]))).is_empty());
        assert_eq!(ids(durability.note_durable(0).1), [1]);
        assert!(durability.is_durable());
    }
}
