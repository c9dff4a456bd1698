//! Delayed commit indexes: a follower has the entries but does not apply them, until it learns the
//! commit index in another way.

use super::Nemesis;
use crate::plan::MS;
use crate::world::World;
use stele_replica::{
    Body, PeerMessage, RaftKind, RaftMessage, RegionReport, Role, changes_members,
};
use stele_types::{LogIndex, RegionId};

impl Nemesis {
    /// Returns true if a follower's commit index is withheld in a region.
    pub(super) fn withholds(&self, region: RegionId) -> bool {
        self.withheld.keys().any(|(other, ..)| *other == region)
    }

    fn known(&self, way: (RegionId, u64, u64), now: u64) -> Option<LogIndex> {
        self.withheld.get(&way).filter(|(_, until)| now < *until).map(|(index, _)| *index)
    }
}

impl World {
    /// Withholds the commit index from one follower in every region for at least `nanos`.
    pub(crate) fn withhold_everywhere(&mut self, nanos: u64) {
        let reports = self.reports_by_region().into_values().flatten();
        let leading: Vec<_> = reports.filter(|(_, report)| report.role == Role::Leader).collect();
        leading.into_iter().for_each(|(slot, it)| self.withhold_from_one(slot, &it, None, nanos));
    }

    /// Withholds the commit index from one follower, on a store that does not lead `spared`, for
    /// `nanos` and some time after that.
    pub(super) fn withhold_from_one(
        &mut self,
        slot: u64,
        report: &RegionReport,
        spared: Option<RegionId>,
        nanos: u64,
    ) {
        let spared = spared.and_then(|region| self.leader_of(region));
        let region = report.region.id;
        let homes = report.region.peers.iter().filter_map(|peer| self.homes.get(&peer.store));
        let others: Vec<u64> =
            homes.copied().filter(|it| *it != slot && Some(*it) != spared).collect();
        let at = self.nemesis.prng.below(others.len() as u64) as usize;
        let Some(to) = others.get(at).copied() else { return };
        let until = self.now + nanos + (300 + self.nemesis.prng.below(1_500)) * MS;
        let node = self.slots.get(&slot).map_or(0, |slot| slot.node);
        self.trace.note(self.now, node, slot, || {
            format!("withholds the commit index of region {region} from s{to}")
        });
        self.nemesis.withheld.retain(|_, (_, until)| self.now < *until);
        self.nemesis.withheld.insert((region, slot, to), (report.committed, until));
    }

    /// Returns the message to send instead, if the original shows a withheld commit index. A message
    /// with a change of members is sent unchanged: a leader never sends it without the commit index of
    /// the change before, on which elections rely.
    pub(crate) fn withhold(&self, way: (u64, u64), message: &PeerMessage) -> Option<PeerMessage> {
        let Body::Raft(raft) = &message.body else { return None };
        let known = self.nemesis.known((message.region, way.0, way.1), self.now)?;
        let has_commit = matches!(raft.kind, RaftKind::Append | RaftKind::Heartbeat)
            && !raft.entries.iter().any(|entry| changes_members(&entry.payload));
        let raft = RaftMessage { commit: raft.commit.min(known), ..raft.clone() };
        has_commit.then(|| PeerMessage { body: Body::Raft(raft), ..message.clone() })
    }
}
