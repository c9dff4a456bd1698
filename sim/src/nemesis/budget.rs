//! Limits of damage: one disk, and the next only when every region has all its replicas again.
//! Replication tolerates nothing beyond that.

use crate::plan::SECOND;
use crate::world::World;
use std::collections::BTreeMap;
use stele_replica::{ChangeKind, PeerChange, RegionReport};
use stele_types::{LogIndex, Peer, PeerRole, Region, RegionId};

/// Minimum of voters that tolerate the loss of one.
const VOTERS_MIN: usize = 3;
/// Time after a loss in which a leader may still count the lost voter as one that responds: two of its
/// checks of its followers, and a pause.
const UNNOTICED_NANOS: u64 = 2 * SECOND;

/// Returns whether a region has no majority without the lost replicas: of its voters, or, in a joint
/// change, of either configuration.
fn loses_quorum(region: &Region, is_lost: impl Fn(&Peer) -> bool) -> bool {
    let too_few = |leaves: PeerRole| {
        let votes = |it: &&Peer| ![PeerRole::Learner, leaves].contains(&it.role);
        let voters = region.peers.iter().filter(votes);
        let lost = voters.clone().filter(|peer| is_lost(peer)).count();
        lost * 2 >= voters.count()
    };
    too_few(PeerRole::IncomingVoter) || too_few(PeerRole::DemotingVoter)
}

impl World {
    /// Returns true if a store's disk may be damaged now.
    pub(super) fn may_lose(&mut self, number: u64) -> bool {
        let is_sound = |slot: &crate::world::Slot| {
            let is_well = !slot.may_fail_reads() && !slot.may_not_open;
            slot.is_gone || (slot.is_running() && slot.recovery.is_none() && is_well)
        };
        if !self.slots.values().all(is_sound) || !self.slots.contains_key(&number) {
            return false;
        }
        self.regions_are_whole()
    }

    /// Returns true if every region has at least three peers, all voters, and all of them hold all
    /// committed entries and the current descriptor. The remaining peers decide by what they know.
    fn regions_are_whole(&mut self) -> bool {
        let regions = self.reports_by_region();
        regions.values().all(|reports| {
            let committed: Option<LogIndex> = reports.iter().map(|(_, it)| it.committed).max();
            let newest = reports.iter().map(|(_, report)| &report.region);
            let newest = newest.max_by_key(|it| (it.epoch.version, it.epoch.conf_version));
            let (Some(committed), Some(region)) = (committed, newest) else { return false };
            let holds = |peer: &Peer| {
                let here = reports.iter().find(|(_, report)| report.peer.id == peer.id);
                let is_up_to_date =
                    |it: &RegionReport| it.last >= committed && it.region.epoch == region.epoch;
                peer.role == PeerRole::Voter && here.is_some_and(|(_, it)| is_up_to_date(it))
            };
            region.peers.len() >= VOTERS_MIN && region.peers.iter().all(holds)
        })
    }

    /// Counts a disk loss outside the budget: if a region loses its quorum, the cluster need not
    /// settle.
    ///
    /// Invariant: a loss is counted by the newest configuration that a remaining store has, also one that
    /// is stopped, and by one that was ordered before it and may be committed after it. Configurations change
    /// between the damage and its discovery.
    pub(crate) fn spend(&mut self, number: u64) {
        self.lost_at = Some(self.now);
        let reports = self.reports_by_region();
        let remains = |other: u64| {
            let slot = self.slots.get(&other).filter(|_| other != number);
            slot.is_some_and(|slot| !slot.is_gone && !slot.is_copy)
        };
        let changes = &self.checks.changes;
        // State known only to this store is lost with it.
        let mut regions = changes.newest(|other| other == number || remains(other));
        regions.extend(changes.newest(remains));
        let under_way = changes.under_way(&regions);
        let serving = self.serving();
        let is_lost = |region: &Region, peer: &Peer| {
            let home = self.homes.get(&peer.store).copied();
            let runs = home.is_some_and(|home| serving.contains(&home));
            let here = reports.get(&region.id);
            let has = here.is_some_and(|it| it.iter().any(|(_, it)| it.peer.id == peer.id));
            home.is_none() || home == Some(number) || runs && !has
        };
        let mut all = regions.values().chain(&under_way);
        let is_stuck = all.any(|it| loses_quorum(it, |peer| is_lost(it, peer)));
        self.counts.overspent += u64::from(is_stuck);
    }

    /// Records a change of members that is ordered. Counts it if it leaves a region no quorum beside a loss
    /// that its leader cannot have noticed. One full store and one lost store at the same moment are more than three voters tolerate.
    pub(crate) fn spend_change(&mut self, region: &Region, changes: &[PeerChange]) {
        let mut after = region.clone();
        for change in changes {
            after.peers.retain(|peer| peer.id != change.peer.id);
            after.peers.extend((change.kind == ChangeKind::Add).then_some(change.peer));
        }
        self.checks.changes.note_ordered(after.clone());
        if self.lost_at.is_none_or(|at| self.now > at + UNNOTICED_NANOS) {
            return;
        }
        let is_stuck = loses_quorum(&after, |peer| !self.homes.contains_key(&peer.store));
        self.counts.overspent += u64::from(is_stuck);
    }

    /// Returns true if every region has a majority of its voters on other running stores, with
    /// replicas. Of regions with all replicas on stopped stores nothing is known: all others must run.
    pub(super) fn is_dispensable(&mut self, number: u64) -> bool {
        let mut others = self.slots.values().filter(|it| it.number != number && !it.is_gone);
        if !others.all(|it| it.is_running()) {
            return false;
        }
        self.reports_by_region().values().all(|reports| {
            let others = || reports.iter().filter(|(slot, _)| *slot != number);
            let newest = |(_, it): &&(u64, RegionReport)| {
                (it.region.epoch.version, it.region.epoch.conf_version)
            };
            // State known only to this store is lost with it.
            let Some((_, RegionReport { region, .. })) = others().max_by_key(newest) else {
                return false;
            };
            let has = |peer: &&Peer| others().any(|(_, it)| it.peer.id == peer.id);
            [PeerRole::IncomingVoter, PeerRole::DemotingVoter].into_iter().all(|leaves| {
                let votes = |it: &&Peer| ![PeerRole::Learner, leaves].contains(&it.role);
                let voters = || region.peers.iter().filter(votes);
                voters().filter(has).count() * 2 > voters().count()
            })
        })
    }

    /// Returns the stores with disks that are still in use and that the operator replaces: damaged
    /// ones, and those with a replacement that is due later.
    pub(crate) fn disks_to_replace(&self) -> Vec<u64> {
        let is_due = |slot: &&crate::world::Slot| {
            (slot.is_damaged || slot.is_to_be_replaced) && !slot.is_gone
        };
        self.slots.values().filter(is_due).map(|slot| slot.number).collect()
    }

    /// Returns the reports of all running stores, by region.
    pub fn reports_by_region(&mut self) -> BTreeMap<RegionId, Vec<(u64, RegionReport)>> {
        let mut regions: BTreeMap<RegionId, Vec<(u64, RegionReport)>> = BTreeMap::new();
        for number in self.serving_homes() {
            let Some(core) = self.slots.get_mut(&number).and_then(|slot| slot.core()) else {
                continue;
            };
            for report in core.regions() {
                regions.entry(report.region.id).or_default().push((number, report));
            }
        }
        regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Mode, Plan};
    use crate::trace::Trace;
    use crate::world::Stop;
    use stele_types::{PeerId, StoreId};

    /// Counts the loss of store 4. It and store 1 have a configuration of three voters, store 6 one
    /// with these roles, and none of them runs.
    fn overspent(roles: [PeerRole; 3]) -> u64 {
        let mut plan = Plan::draw(1, Mode::Safety);
        (plan.nodes, plan.stores_per_node) = (3, 2);
        let mut world = World::new(plan, Trace::new(false, false));
        (1..=3).for_each(|node| world.stop_node(node, Stop::Power));
        world.checks.changes = Default::default();
        world.homes = (1..=6).map(|number| (StoreId(number), number)).collect();
        let with = |conf_version: u64, roles: [PeerRole; 3]| {
            let peers = [1, 4, 6].into_iter().zip(roles);
            let peer = |(number, role)| Peer { id: PeerId(number), store: StoreId(number), role };
            let mut region = Region { id: RegionId(2), ..Region::default() };
            (region.epoch.conf_version, region.peers) = (conf_version, peers.map(peer).collect());
            region
        };
        let (older, newer) = (with(6, [PeerRole::Voter; 3]), with(7, roles));
        for (number, known) in [(1, &older), (4, &older), (6, &newer)] {
            world.checks.changes.note(number, known);
        }
        world.spend(4);
        world.counts.overspent
    }

    #[test]
    fn a_lost_disk_is_counted_by_the_newest_configuration_that_a_stopped_store_has() {
        use PeerRole::{DemotingVoter, Learner, Voter};
        assert_eq!(overspent([Voter, Voter, Voter]), 0);
        assert_eq!(overspent([Learner, Voter, Voter]), 1);
        assert_eq!(overspent([Voter, Learner, Voter]), 0);
        assert_eq!(overspent([DemotingVoter, Voter, Voter]), 1);
    }

    #[test]
    fn a_lost_disk_is_counted_by_a_change_that_was_ordered_before_and_may_be_committed_after() {
        let loses = |epoch_moves: bool| {
            let mut plan = Plan::draw(1, Mode::Safety);
            (plan.nodes, plan.stores_per_node) = (3, 2);
            let mut world = World::new(plan, Trace::new(false, false));
            (1..=3).for_each(|node| world.stop_node(node, Stop::Power));
            world.checks.changes = Default::default();
            let peer = |number, role| Peer { id: PeerId(number), store: StoreId(number), role };
            let peers = [1, 4, 6].map(|number| peer(number, PeerRole::Voter)).to_vec();
            let mut region = Region { id: RegionId(2), peers, ..Region::default() };
            world.homes = [1, 4, 6].map(|number| (StoreId(number), number)).into();
            let demoted = [PeerChange { kind: ChangeKind::Add, peer: peer(6, PeerRole::Learner) }];
            world.spend_change(&region, &demoted);
            region.epoch.conf_version += u64::from(epoch_moves);
            world.checks.changes.note(1, &region);
            world.checks.changes.note(4, &region);
            world.spend(4);
            world.counts.overspent
        };
        assert_eq!(loses(false), 1, "one voter of two is left");
        assert_eq!(loses(true), 0, "the change did not follow this version");
    }

    #[test]
    fn a_change_that_takes_a_quorum_is_counted_only_right_after_a_loss() {
        let mut world = World::new(Plan::draw(1, Mode::Safety), Trace::new(false, false));
        let peer = |number, role| Peer { id: PeerId(number), store: StoreId(number), role };
        let peers = [1, 4, 6].map(|number| peer(number, PeerRole::Voter)).to_vec();
        let region = Region { id: RegionId(2), peers, ..Region::default() };
        let changes = [PeerChange { kind: ChangeKind::Add, peer: peer(6, PeerRole::Learner) }];
        world.homes = [(StoreId(1), 1), (StoreId(6), 6)].into();
        world.spend_change(&region, &changes);
        assert_eq!(world.counts.overspent, 0, "nothing was lost");
        world.lost_at = Some(SECOND);
        for (now, expected) in [(4 * SECOND, 0), (2 * SECOND, 1)] {
            world.now = now;
            world.spend_change(&region, &changes);
            assert_eq!(world.counts.overspent, expected, "{now}");
        }
        world.homes.insert(StoreId(4), 4);
        world.spend_change(&region, &changes);
        assert_eq!(world.counts.overspent, 1, "two voters of two are left");
    }
}
