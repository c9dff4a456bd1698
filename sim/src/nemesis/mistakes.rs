//! Orders that nobody in his right mind gives. They are refused, or do no harm.

use crate::world::World;
use stele_raftstore::{Admin, ChangeKind, PeerChange};
use stele_types::{LogIndex, Peer, PeerRole, Region};

impl World {
    pub(super) fn mistake(&mut self) {
        let Some((slot, report)) = self.led_region(true) else { return };
        let (region, peers) = (&report.region, &report.region.peers);
        let change =
            |kind, role| move |peer: &Peer| PeerChange { kind, peer: Peer { role, ..*peer } };
        let learners = || peers.iter().map(change(ChangeKind::Add, PeerRole::Learner));
        match self.nemesis.prng.below(6) {
            // Nobody is left to vote.
            0 => self.order(slot, region.id, Admin::ChangePeers(learners().collect())),
            1 => {
                let gone = peers.iter().map(change(ChangeKind::Remove, PeerRole::Learner));
                self.order(slot, region.id, Admin::ChangePeers(gone.collect()));
            }
            // One change on top of another, where enough voters are left if the first is taken.
            2 | 3 => {
                if peers.len() < 5 && !region.is_joint() {
                    return;
                }
                for count in [2, 1, 2] {
                    let some = learners().take(count).collect();
                    self.order(slot, region.id, Admin::ChangePeers(some));
                }
            }
            // With whom it shares no border, or as that was before.
            4 => {
                if let Some(target) = self.another(region, false) {
                    self.order(slot, region.id, Admin::PrepareMerge { target });
                }
            }
            _ => {
                if let Some(source) = self.another(region, true) {
                    let prepared_index = match source.phase {
                        stele_types::RegionPhase::Merging { prepared, .. } => prepared,
                        _ => LogIndex(report.last.0.saturating_sub(1)),
                    };
                    let call = Admin::CommitMerge { source, prepared_index };
                    self.order(slot, region.id, call);
                }
            }
        }
    }

    /// Another region of user data, as some store knows it; one about to be merged, if there is one.
    fn another(&mut self, region: &Region, merging: bool) -> Option<Region> {
        let reports = self.reports_by_region().into_values().flatten();
        let others = reports.map(|(_, report)| report.region);
        let mut others: Vec<Region> =
            others.filter(|it| it.id != region.id && it.kind == region.kind).collect();
        let is_merging = |it: &Region| matches!(it.phase, stele_types::RegionPhase::Merging { .. });
        if merging && others.iter().any(is_merging) {
            others.retain(is_merging);
        }
        let at = self.nemesis.prng.below(others.len() as u64) as usize;
        (!others.is_empty()).then(|| others.swap_remove(at))
    }
}
