//! Late messages: reports of a merge's target to a new placement leader, and rejections of lost
//! elections.

use super::Nemesis;
use crate::faults::Fault;
use crate::plan::MS;
use crate::world::World;
use stele_placement::SYSTEM_REGION;
use stele_replica::{Admin, Body, PeerMessage, RaftKind, RaftMessage};
use stele_types::{Region, RegionPhase};

impl Nemesis {
    /// Returns true if a node's messages to the placement group are lost now.
    pub fn is_report_lost(&self, node: u64, now: u64) -> bool {
        self.is_active && self.lost_reports.get(&node).is_some_and(|until| now < *until)
    }
}

impl World {
    /// Moves the placement leadership when a merge is prepared, in half of the cases, and drops the
    /// target's reports for a while. The new leader learns of the source long before the target,
    /// and no other leader handles the merge. Returns true if it did.
    pub(super) fn hide_target(&mut self, source: u64, region: &Region) -> bool {
        let RegionPhase::Merging { target, .. } = region.phase else { return false };
        let faults = self.plan.faults;
        let may = faults.has(Fault::Transfer) || faults.has(Fault::PlacementCut);
        if !may || self.nemesis.prng.coin() {
            return false;
        }
        let (Some(target), Some(group)) = (self.leader_of(target), self.leader_of(SYSTEM_REGION))
        else {
            return false;
        };
        let hidden = self.node_with(target);
        let reader = self.slots.get(&group).and_then(|slot| slot.readers()?.get(SYSTEM_REGION));
        let Some(now) = reader.map(|reader| reader.region()) else { return false };
        let node_of = |world: &Self, store| world.homes.get(store).map(|it| world.node_with(*it));
        let away = [Some(hidden), Some(self.node_with(group)), None];
        let mut candidates =
            now.peers.iter().filter(|peer| !away.contains(&node_of(self, &peer.store)));
        let transfer_target = candidates.next().filter(|_| hidden != self.node_with(source));
        let Some(transfer_target) = transfer_target.map(|peer| peer.id) else { return false };
        let millis = 1_000 + self.nemesis.prng.below(1_500);
        self.trace.note(self.now, hidden, target, || format!("reports are lost for {millis} ms"));
        self.nemesis.lost_reports.insert(hidden, self.now + millis * MS);
        self.order(group, SYSTEM_REGION, Admin::TransferLeader(transfer_target));
        true
    }

    pub(super) fn node_with(&self, number: u64) -> u64 {
        self.slots.get(&number).map_or(0, |slot| slot.node)
    }

    /// Returns a rejected pre-vote of a lost election, to be delivered before a candidate's
    /// request. A receiver in an earlier term stops following its leader.
    pub(crate) fn stale_rejection(&self, from: u64, message: &PeerMessage) -> Option<PeerMessage> {
        let (node, until) = self.nemesis.stale_rejection.filter(|_| self.nemesis.is_active)?;
        let Body::Raft(raft) = &message.body else { return None };
        let asks =
            raft.kind == RaftKind::RequestPreVote && &raft.context[..] != b"CampaignTransfer";
        if !asks || self.node_with(from) != node || self.now >= until {
            return None;
        }
        let mut news = RaftMessage::new(RaftKind::RequestPreVoteResponse, raft.term);
        news.reject = true;
        Some(PeerMessage { body: Body::Raft(news), ..message.clone() })
    }
}
