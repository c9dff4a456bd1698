//! Wrong orders of administrators. They must be refused or do no harm.

use crate::world::World;
use stele_replica::{Admin, ChangeKind, PeerChange};
use stele_types::{LogIndex, Peer, PeerRole, Region};

impl World {
    pub(super) fn mistake(&mut self) {
        let Some((slot, report)) = self.led_region(true) else { return };
        let (region, peers) = (&report.region, &report.region.peers);
        let change =
            |kind, role| move |peer: &Peer| PeerChange { kind, peer: Peer { role, ..*peer } };
        let learners = || peers.iter().map(change(ChangeKind::Add, PeerRole::Learner));
        match self.nemesis.prng.below(6) {
            // No voter would be left.
            0 => self.order(slot, region.id, Admin::ChangePeers(learners().collect())),
            1 => {
                let gone = peers.iter().map(change(ChangeKind::Remove, PeerRole::Learner));
                self.order(slot, region.id, Admin::ChangePeers(gone.collect()));
            }
            // Several changes at once, where enough voters are left if the first one is accepted.
            2 | 3 => {
                if peers.len() < 5 && !region.is_joint() {
                    return;
                }
                for count in [2, 1, 2] {
                    let some = learners().take(count).collect();
                    self.order(slot, region.id, Admin::ChangePeers(some));
                }
            }
            // A target that is no neighbour, or a stale descriptor of one.
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

    /// Returns another region of user data, as some store knows it; preferably a merging one.
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
