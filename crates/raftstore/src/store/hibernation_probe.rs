//! Replicas at rest that were removed while nothing reached them: nobody has a reason to speak to them,
//! and they have none to speak. The store asks for them, for one after the other.

use super::RaftStore;
use crate::messages::Body;
use crate::peer::Peer;
use std::ops::Bound::{Excluded, Unbounded};
use stele_storage::StorageEngine;
use stele_types::{RegionId, mutant};

/// Between two questions, however many regions rest.
const ASK_NANOS: u64 = 1_000_000_000;

/// When and for which replica to ask.
#[derive(Debug, Default)]
pub(super) struct HibernationProbe {
    next_nanos: u64,
    /// The last region asked for.
    last: RegionId,
    rounds: usize,
}

impl<E: StorageEngine> RaftStore<E> {
    /// When to ask at the latest; `None` while every region is awake.
    pub(super) fn asks_for_resting_at(&self) -> Option<u64> {
        (self.peers.len() > self.ticking.len()).then_some(self.hibernation_probe.next_nanos)
    }

    /// Asks whether the next replica at rest is still a member. A question for no value wakes nobody, and
    /// only who knows better answers, in any version of this protocol.
    pub(super) fn probe_hibernating(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if self.asks_for_resting_at().is_none_or(|at| now < at) {
            return;
        }
        self.hibernation_probe.next_nanos = now + ASK_NANOS;
        if mutant::active("raftstore.rests_for_ever") {
            return;
        }
        let rests = |(_, peer): &(&RegionId, &Peer<E>)| peer.may_have_been_removed();
        let behind = (Excluded(self.hibernation_probe.last), Unbounded);
        let next = self.peers.range(behind).find(rests).or_else(|| {
            self.hibernation_probe.rounds += 1;
            self.peers.iter().find(rests)
        });
        let Some((region, peer)) = next else { return };
        self.hibernation_probe.last = *region;
        let question = match mutant::active("raftstore.asking_wakes") {
            true => Body::WakeUp,
            false => Body::ValueRepairRequest(Vec::new()),
        };
        peer.ask(&mut self.ctx, self.hibernation_probe.rounds, question);
    }
}
