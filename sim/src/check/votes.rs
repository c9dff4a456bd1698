//! Checks vote holds: a replica that answered a leader's heartbeat round grants no other candidate
//! a vote while the leader's lease may rely on the answer. That includes restarts, and answers
//! given before the replica was created.

use crate::faults::Fault;
use crate::world::World;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_replica::{PeerMessage, RaftKind, RaftMessage};
use stele_types::{PeerId, RegionId, StoreId, Term};

/// Heartbeat round, as first sent.
#[derive(Clone, Copy, Debug)]
struct Round {
    leader: u64,
    term: Term,
    local_nanos: u64,
}

#[derive(Default)]
pub(super) struct Votes {
    rounds: BTreeMap<Bytes, Round>,
    answered: BTreeMap<(StoreId, RegionId, PeerId), Round>,
    /// Elections started by a leadership transfer: the old leader has no lease.
    transfers: BTreeSet<(RegionId, Term)>,
}

impl World {
    pub(super) fn check_vote(&mut self, from: u64, message: &PeerMessage, raft: &RaftMessage) {
        let replica = (message.from_store, message.region, message.from.id);
        match raft.kind {
            RaftKind::Heartbeat if !raft.context.is_empty() => {
                let local_nanos = self.local_of(from);
                let round = Round { leader: from, term: raft.term, local_nanos };
                self.checks.votes.rounds.entry(raft.context.clone()).or_insert(round);
            }
            RaftKind::HeartbeatResponse => {
                let votes = &mut self.checks.votes;
                if let Some(round) = votes.rounds.get(&raft.context) {
                    votes.answered.insert(replica, *round);
                }
            }
            RaftKind::RequestVote if &raft.context[..] == b"CampaignTransfer" => {
                self.checks.votes.transfers.insert((message.region, raft.term));
            }
            RaftKind::RequestVoteResponse if !raft.reject => self.check_granted(message, raft.term),
            _ => {}
        }
    }

    fn check_granted(&mut self, message: &PeerMessage, term: Term) {
        let votes = &self.checks.votes;
        let replica = (message.from_store, message.region, message.from.id);
        let Some(round) = votes.answered.get(&replica).copied() else { return };
        let is_free = votes.transfers.contains(&(message.region, term))
            || self.homes.get(&message.to_store) == Some(&round.leader)
            || self.plan.faults.has(Fault::SkewBeyond)
            || self.plan.faults.has(Fault::ClockStop);
        let until = round.local_nanos + self.plan.raft.lease_nanos();
        let now = self.local_of(round.leader);
        if !is_free && round.term < term && now < until {
            let (store, _, peer) = replica;
            self.fail(format!(
                "replica {peer} of region {} on store {store} votes for store {} in term {term}, \
                 {} ms before the lease ends that it granted to store {} in term {}",
                message.region,
                message.to_store,
                (until - now) / crate::plan::MS,
                round.leader,
                round.term
            ));
        }
    }

    fn local_of(&self, slot: u64) -> u64 {
        let node = self.slots.get(&slot).and_then(|slot| self.nodes.get(&slot.node));
        node.map_or(0, |node| node.local(self.now))
    }
}
