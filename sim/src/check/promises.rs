//! What a message promises is durable where it leaves; a read round has one region; who is told of a
//! commit index can't be ahead of the teller's own reads; and while a lease lasts nobody else leads.

use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_raftstore::{Body, PeerMessage, RaftKind, RaftMessage};
use stele_storage::{Progress, StorageEngine};
use stele_types::{RegionId, Term};

/// What was said.
#[derive(Default)]
pub struct Promises {
    /// The region of each round of reads.
    rounds: BTreeMap<Bytes, RegionId>,
    /// The latest term in which somebody led a region.
    terms: BTreeMap<RegionId, Term>,
}

impl World {
    /// A message leaves a store.
    pub(crate) fn check_message(&mut self, from: u64, message: &PeerMessage) {
        let Body::Raft(raft) = &message.body else { return self.check_found(from, message) };
        let region = message.region;
        self.check_vote(from, message, raft);
        let progress = self.engine(from).and_then(|engine| engine.progress(region));
        let progress = progress.filter(|it| !it.destroyed).unwrap_or_default();
        if let Some(text) = broken(raft, message.to.id.0, &progress) {
            return self.fail(format!(
                "store {from} says in region {region} what its disk may forget: {text}: {raft:?}, \
                 durable is {progress:?}"
            ));
        }
        if raft.kind == RaftKind::HeartbeatResponse && !raft.context.is_empty() {
            self.check_lender(from, region);
        }
        let reads = [RaftKind::Heartbeat, RaftKind::ReadIndex, RaftKind::ReadIndexResponse];
        if !raft.context.is_empty() && reads.contains(&raft.kind) {
            let known = *self.checks.promises.rounds.entry(raft.context.clone()).or_insert(region);
            if known != region {
                let text = format!("a read round of region {known} is one of region {region} too");
                return self.fail(format!("store {from}: {text}"));
            }
        }
        if matches!(raft.kind, RaftKind::Append | RaftKind::Heartbeat) {
            self.check_told(from, region, raft, &progress);
            self.check_elected(from, region, raft.term);
        }
    }

    /// Leases and reads rest on who answers a round: only a replica that is there, or was until now, keeps
    /// what that promises.
    fn check_lender(&mut self, from: u64, region: RegionId) {
        let was_there = self.engine(from).is_none_or(|engine| engine.progress(region).is_some());
        let core = self.slots.get_mut(&from).and_then(|slot| slot.core());
        if !was_there && core.is_some_and(|core| core.region(region).is_none()) {
            self.fail(format!(
                "store {from} takes part in a round of region {region}, and has no replica"
            ));
        }
    }

    /// A follower that is told of a commit index may show it at once: the leader's own leases must
    /// not serve what is behind it.
    fn check_told(&mut self, from: u64, region: RegionId, raft: &RaftMessage, here: &Progress) {
        if raft.commit > here.applied && self.is_leased(from, region, Term(u64::MAX)) {
            self.fail(format!(
                "store {from} tells that {} of region {region} is committed, and serves reads by \
                 its lease with {} applied",
                raft.commit, here.applied
            ));
        }
    }

    /// The first word of a leader: no lease of an earlier term is left anywhere.
    fn check_elected(&mut self, leader: u64, region: RegionId, term: Term) {
        let known = self.checks.promises.terms.entry(region).or_default();
        if term <= *known {
            return;
        }
        *known = term;
        let others: Vec<u64> = self.serving().into_iter().filter(|slot| *slot != leader).collect();
        if let Some(other) = others.into_iter().find(|slot| self.is_leased(*slot, region, term)) {
            return self.fail(format!(
                "store {leader} leads region {region} in term {term} while store {other} holds a \
                 lease of an earlier one"
            ));
        }
        self.elected(leader);
    }

    /// Whether reads are served by a lease of a term before `term`.
    fn is_leased(&self, slot: u64, region: RegionId, term: Term) -> bool {
        let Some(slot) = self.slots.get(&slot) else { return false };
        let Some(node) = self.nodes.get(&slot.node) else { return false };
        let Some(reader) = slot.readers().and_then(|readers| readers.get(region)) else {
            return false;
        };
        reader.leading_term().is_some_and(|leads| Term(leads) < term)
            && reader.lease(node.local(self.now)).is_some()
    }
}

/// What of a message is not durable where it comes from.
fn broken(raft: &RaftMessage, to: u64, durable: &Progress) -> Option<&'static str> {
    let state = durable.hard_state;
    match raft.kind {
        RaftKind::Append | RaftKind::Heartbeat if state.term < raft.term => Some("a leader's term"),
        RaftKind::RequestVote if state.term < raft.term => Some("a candidate's term"),
        RaftKind::RequestVoteResponse if raft.reject => None,
        RaftKind::RequestVoteResponse
            if state.term < raft.term || state.term == raft.term && state.vote != to =>
        {
            Some("a vote")
        }
        // Of an earlier term it may be of entries that the same batch replaced: whoever leads in the
        // later one was elected with them, or by others.
        RaftKind::AppendResponse
            if !raft.reject && raft.term >= state.term && raft.index > durable.persisted.0 =>
        {
            Some("an acknowledgement")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{HardState, LogIndex};

    #[test]
    fn a_message_promises_no_more_than_is_durable() {
        let hard_state = HardState { term: Term(5), vote: 3, commit: LogIndex(0) };
        let persisted = (LogIndex(9), Term(5));
        let durable = Progress { hard_state, persisted, ..Progress::default() };
        let is_broken = |raft: &RaftMessage, to| broken(raft, to, &durable).is_some();
        for kind in [RaftKind::Append, RaftKind::Heartbeat, RaftKind::RequestVote] {
            assert!(!is_broken(&RaftMessage::new(kind, Term(5)), 1));
            assert!(is_broken(&RaftMessage::new(kind, Term(6)), 1));
        }
        let vote = RaftMessage::new(RaftKind::RequestVoteResponse, Term(5));
        assert!(!is_broken(&vote, 3) && is_broken(&vote, 2));
        assert!(!is_broken(&RaftMessage { reject: true, ..vote }, 2));
        let mut answer = RaftMessage::new(RaftKind::AppendResponse, Term(5));
        answer.index = LogIndex(9);
        assert!(!is_broken(&answer, 1));
        answer.index = LogIndex(10);
        assert!(is_broken(&answer, 1));
        answer.term = Term(4);
        assert!(!is_broken(&answer, 1));
    }
}
