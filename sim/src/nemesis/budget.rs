//! Limits of damage: one disk, and the next only when every region has all its replicas again.
//! Replication tolerates nothing beyond that.

use crate::world::World;
use std::collections::BTreeMap;
use stele_raftstore::RegionReport;
use stele_types::{LogIndex, PeerRole, RegionId};

/// Minimum of voters that tolerate the loss of one.
const VOTERS_MIN: usize = 3;

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
            let holds = |peer: &stele_types::Peer| {
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
    pub(crate) fn spend(&mut self, number: u64) {
        let regions = self.reports_by_region();
        let is_stuck = regions.values().any(|reports| {
            // State known only to this store is lost with it.
            let stay = reports.iter().filter(|(slot, _)| *slot != number);
            let newest =
                stay.max_by_key(|(_, it)| (it.region.epoch.version, it.region.epoch.conf_version));
            let Some((_, RegionReport { region, .. })) = newest.or(reports.first()) else {
                return false;
            };
            let is_lost = |peer: &stele_types::Peer| {
                let home = self.homes.get(&peer.store).copied();
                let runs = home.is_some_and(|home| self.serving().contains(&home));
                let has = reports.iter().any(|(_, report)| report.peer.id == peer.id);
                home.is_none() || home == Some(number) || runs && !has
            };
            let too_few = |leaves: PeerRole| {
                let votes =
                    |it: &&stele_types::Peer| ![PeerRole::Learner, leaves].contains(&it.role);
                let voters = region.peers.iter().filter(votes);
                let lost = voters.clone().filter(|peer| is_lost(peer)).count();
                lost * 2 >= voters.count()
            };
            too_few(PeerRole::IncomingVoter) || too_few(PeerRole::DemotingVoter)
        });
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
            let has = |peer: &&stele_types::Peer| others().any(|(_, it)| it.peer.id == peer.id);
            [PeerRole::IncomingVoter, PeerRole::DemotingVoter].into_iter().all(|leaves| {
                let votes =
                    |it: &&stele_types::Peer| ![PeerRole::Learner, leaves].contains(&it.role);
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
