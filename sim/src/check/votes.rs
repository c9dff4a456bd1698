//! Who answers a leader's round votes for nobody else as long as that leader may count on the answer,
//! also after a restart, and also if it answered before its replica was there.

use crate::faults::Fault;
use crate::world::World;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_raftstore::{PeerMessage, RaftKind, RaftMessage};
use stele_types::{PeerId, RegionId, StoreId, Term};

/// A round of a leader, as it was sent first.
#[derive(Clone, Copy, Debug)]
struct Round {
    leader: u64,
    term: Term,
    /// By the leader's clock.
    local_nanos: u64,
}

/// What was said.
#[derive(Default)]
pub struct Votes {
    rounds: BTreeMap<Bytes, Round>,
    /// The last round each replica answered.
    answered: BTreeMap<(StoreId, RegionId, PeerId), Round>,
    /// Elections that a leader asked for: it has no lease any more.
    handovers: BTreeSet<(RegionId, Term)>,
}

impl World {
    /// A message leaves a store.
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
                self.checks.votes.handovers.insert((message.region, raft.term));
            }
            RaftKind::RequestVoteResponse if !raft.reject => self.check_granted(message, raft.term),
            _ => {}
        }
    }

    fn check_granted(&mut self, message: &PeerMessage, term: Term) {
        let votes = &self.checks.votes;
        let replica = (message.from_store, message.region, message.from.id);
        let Some(round) = votes.answered.get(&replica).copied() else { return };
        let is_free = votes.handovers.contains(&(message.region, term))
            || self.homes.get(&message.to_store) == Some(&round.leader)
            || self.plan.faults.has(Fault::SkewBeyond);
        let until = round.local_nanos + self.plan.raft.lease_nanos();
        let now = self.local_of(round.leader);
        if !is_free && round.term < term && now < until {
            let (store, _, peer) = replica;
            self.fail(format!(
                "replica {peer} of region {} on store {store} votes for store {} in term {term}, \
                 {} ms before a lease ends that it granted store {} in term {}",
                message.region,
                message.to_store,
                (until - now) / crate::plan::MS,
                round.leader,
                round.term
            ));
        }
    }

    /// What the clock of a store's node shows.
    fn local_of(&self, slot: u64) -> u64 {
        let node = self.slots.get(&slot).and_then(|slot| self.nodes.get(&slot.node));
        node.map_or(0, |node| node.local(self.now))
    }
}
