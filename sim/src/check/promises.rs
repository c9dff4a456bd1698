//! Checks messages. What a message promises is durable at its sender. A read index round belongs to
//! one region. A leader that announces a commit index serves no older reads by its lease. While a
//! lease is valid there is no other leader.

use crate::faults::Fault;
use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_replica::{Body, Header, PeerMessage, RaftKind, RaftMessage};
use stele_storage::{LogStore, Progress};
use stele_types::{RegionId, Term};

#[derive(Default)]
pub(super) struct Promises {
    rounds: BTreeMap<Bytes, RegionId>,
    /// Latest term with a leader, by region.
    terms: BTreeMap<RegionId, Term>,
}

impl World {
    pub(crate) fn check_message(&mut self, from: u64, message: &PeerMessage) {
        let Body::Raft(raft) = &message.body else {
            return self.check_repair_message(from, message);
        };
        let region = message.region;
        self.check_vote(from, message, raft);
        let progress = self.engine(from).and_then(|engine| engine.progress(region));
        let progress = progress.filter(|it| !it.destroyed).unwrap_or_default();
        if let Some(text) = undurable_promise(raft, message.to.id.0, &progress) {
            return self.fail(format!(
                "store {from} promises in region {region} what is not durable: {text}: {raft:?}, \
                 durable is {progress:?}"
            ));
        }
        if raft.kind == RaftKind::HeartbeatResponse && !raft.context.is_empty() {
            self.check_heartbeat_reply(from, region);
        }
        let reads = [RaftKind::Heartbeat, RaftKind::ReadIndex, RaftKind::ReadIndexResponse];
        if !raft.context.is_empty() && reads.contains(&raft.kind) {
            let known = *self.checks.promises.rounds.entry(raft.context.clone()).or_insert(region);
            if known != region {
                let text =
                    format!("a read index round of region {known} is also one of region {region}");
                return self.fail(format!("store {from}: {text}"));
            }
        }
        if matches!(raft.kind, RaftKind::Append | RaftKind::Heartbeat) {
            self.check_commit_index(from, region, raft, &progress);
            self.check_elected(from, region, raft.term);
        }
    }

    /// Checks a heartbeat response. Leases and reads depend on it, and only a replica that exists,
    /// or existed until now, keeps its promise.
    fn check_heartbeat_reply(&mut self, from: u64, region: RegionId) {
        let was_there = self.engine(from).is_none_or(|engine| engine.progress(region).is_some());
        let core = self.slots.get_mut(&from).and_then(|slot| slot.core());
        if !was_there && core.is_some_and(|core| core.region(region).is_none()) {
            self.fail(format!(
                "store {from} responds to a heartbeat round of region {region}, but has no replica"
            ));
        }
    }

    /// Checks a commit index that a leader announces: a follower may serve it immediately, so the
    /// leader must not serve older reads by its lease.
    fn check_commit_index(
        &mut self,
        from: u64,
        region: RegionId,
        raft: &RaftMessage,
        here: &Progress,
    ) {
        let readers = self.slots.get(&from).and_then(|slot| slot.readers());
        let reader = readers.and_then(|readers| readers.get(region));
        let visible = reader.map_or(here.applied, |reader| reader.visible());
        if raft.commit > visible && self.is_leased(from, region, Term(u64::MAX)) {
            self.fail(format!(
                "store {from} announces commit index {} of region {region}, and reads by its lease \
                 see entries up to {visible}",
                raft.commit
            ));
        }
    }

    /// Checks the first message of a leader: no store holds a lease of an earlier term.
    fn check_elected(&mut self, leader: u64, region: RegionId, term: Term) {
        let known = self.checks.promises.terms.entry(region).or_default();
        if term <= *known {
            return;
        }
        *known = term;
        if !self.plan.raft.leases {
            self.check_no_lease();
        }
        // With leases on, a clock that stops makes reads stale, which the history must show.
        if self.plan.faults.has(Fault::ClockStop) {
            return self.elected(leader);
        }
        let others: Vec<u64> = self.serving().into_iter().filter(|slot| *slot != leader).collect();
        if let Some(other) = others.into_iter().find(|slot| self.is_leased(*slot, region, term)) {
            return self.fail(format!(
                "store {leader} leads region {region} in term {term} while store {other} holds a \
                 lease of an earlier one"
            ));
        }
        self.elected(leader);
    }

    /// Checks that no store has a lease, in a run with leases off.
    fn check_no_lease(&mut self) {
        let regions: Vec<RegionId> = self.checks.promises.terms.keys().copied().collect();
        let leased = |slot: &u64| {
            regions.iter().any(|region| self.is_leased(*slot, *region, Term(u64::MAX)))
        };
        if let Some(slot) = self.serving().into_iter().find(leased) {
            self.fail(format!("store {slot} has a lease, although leases are off"));
        }
    }

    /// Returns true if a store serves reads by a lease of a term before `term`.
    fn is_leased(&self, slot: u64, region: RegionId, term: Term) -> bool {
        let Some(slot) = self.slots.get(&slot) else { return false };
        let Some(node) = self.nodes.get(&slot.node) else { return false };
        let Some(reader) = slot.readers().and_then(|readers| readers.get(region)) else {
            return false;
        };
        reader.leading_term().is_some_and(|leads| Term(leads) < term)
            && reader.permit(&Header::default(), node.local(self.now)).is_some()
    }
}

/// Returns what a message promises that is not durable at its sender.
fn undurable_promise(raft: &RaftMessage, to: u64, durable: &Progress) -> Option<&'static str> {
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
        // In a later term the acknowledged entries may have been replaced in the same batch. The
        // later leader was elected with these entries, or by other voters.
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
        let is_undurable = |raft: &RaftMessage, to| undurable_promise(raft, to, &durable).is_some();
        for kind in [RaftKind::Append, RaftKind::Heartbeat, RaftKind::RequestVote] {
            assert!(!is_undurable(&RaftMessage::new(kind, Term(5)), 1));
            assert!(is_undurable(&RaftMessage::new(kind, Term(6)), 1));
        }
        let vote = RaftMessage::new(RaftKind::RequestVoteResponse, Term(5));
        assert!(!is_undurable(&vote, 3) && is_undurable(&vote, 2));
        assert!(!is_undurable(&RaftMessage { reject: true, ..vote }, 2));
        let mut answer = RaftMessage::new(RaftKind::AppendResponse, Term(5));
        answer.index = LogIndex(9);
        assert!(!is_undurable(&answer, 1));
        answer.index = LogIndex(10);
        assert!(is_undurable(&answer, 1));
        answer.term = Term(4);
        assert!(!is_undurable(&answer, 1));
    }
}
