//! Probe of hibernating replicas: one that was removed while unreachable gets no message and sends
//! none. The store asks for one replica after the other whether it is still a member.

use super::RaftStore;
use crate::messages::Body;
use std::ops::Bound::{Excluded, Unbounded};
use stele_storage::StorageEngine;
use stele_types::{RegionId, mutant};

/// Nanoseconds between two probes, regardless of the number of hibernating regions.
const PROBE_INTERVAL_NANOS: u64 = 1_000_000_000;
/// Replicas that are looked at for one probe: none may have others to be asked.
const LOOKED_AT_MAX: usize = 1_000;

/// Time and position of the next probe.
#[derive(Debug, Default)]
pub(super) struct HibernationProbe {
    next_nanos: u64,
    /// Region looked at last.
    last: RegionId,
    rounds: usize,
}

impl<E: StorageEngine> RaftStore<E> {
    /// Returns the monotonic nanoseconds of the next probe; `None` while every region is awake.
    pub(super) fn probes_at(&self) -> Option<u64> {
        (self.peers.len() > self.ticking.len()).then_some(self.hibernation_probe.next_nanos)
    }

    /// Asks another replica whether the next hibernating replica is still a member. A repair
    /// request for no value wakes no replica, and only a store that knows of the removal answers
    /// it, in any version of this protocol.
    pub(super) fn probe_hibernating(&mut self) {
        let now = self.ctx.now.monotonic_nanos;
        if self.probes_at().is_none_or(|at| now < at) {
            return;
        }
        self.hibernation_probe.next_nanos = now + PROBE_INTERVAL_NANOS;
        if mutant::active("raftstore.rests_for_ever") {
            return;
        }
        let last = self.hibernation_probe.last;
        let after = self.peers.range((Excluded(last), Unbounded));
        let in_turn = after.chain(self.peers.range(..=last)).take(LOOKED_AT_MAX);
        let mut looked_at = last;
        let next = in_turn
            .inspect(|(region, _)| looked_at = **region)
            .find(|(_, peer)| peer.may_have_been_removed());
        self.hibernation_probe.last = looked_at;
        self.hibernation_probe.rounds += usize::from(looked_at <= last);
        let Some((_, peer)) = next else { return };
        let question = match mutant::active("raftstore.asking_wakes") {
            true => Body::WakeUp,
            false => Body::ValueRepairRequest(Vec::new()),
        };
        peer.ask(&mut self.ctx, self.hibernation_probe.rounds, question);
    }
}
