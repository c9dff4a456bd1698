//! Hand-over of leaderships by a node that stops: which voter leads each region next.
//!
//! Invariant: a leadership goes to a voter that has caught up, or stays.
//! Test: `a_region_without_a_caught_up_voter_keeps_its_leader`.

use std::collections::{BTreeMap, BTreeSet};
use stele_replica::RegionReport;
use stele_types::{Peer, PeerId, PeerRole, Region, RegionId, RegionKind, StoreId};

/// Transfer of a leadership to a voter on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Store that leads.
    pub from: StoreId,
    /// Region, as its leader knows it.
    pub region: Region,
    /// Next leader.
    pub to: Peer,
}

/// Leaderships that a node hands over, in rounds.
#[derive(Debug, Default)]
pub struct HandOver {
    own: BTreeSet<StoreId>,
    taken: BTreeMap<StoreId, u64>,
    failed: BTreeSet<(RegionId, PeerId)>,
}

impl HandOver {
    /// Starts the hand-over of a node with these stores.
    pub fn new(own: impl IntoIterator<Item = StoreId>) -> Self {
        Self { own: own.into_iter().collect(), ..Self::default() }
    }

    /// Returns the transfers to begin now, one for each region that the node leads and that has a voter
    /// on another node which has caught up. The leaderships are spread over the stores. Other regions
    /// keep their leader.
    ///
    /// The placement group goes first and alone: its next leader then hears of all others at once.
    pub fn next(&mut self, regions: &[(StoreId, RegionReport)]) -> Vec<Transfer> {
        let mut led: Vec<_> = regions.iter().filter(|(_, report)| report.is_leading).collect();
        led.sort_by_key(|(_, report)| report.region.kind != RegionKind::System);
        let mut out = Vec::new();
        for (from, report) in led {
            let Some(to) = self.target(report) else { continue };
            *self.taken.entry(to.store).or_default() += 1;
            out.push(Transfer { from: *from, region: report.region.clone(), to });
            if report.region.kind == RegionKind::System {
                return out;
            }
        }
        out
    }

    /// Records that a transfer did not succeed: another voter is the next target.
    pub fn note_failed(&mut self, transfer: &Transfer) {
        self.failed.insert((transfer.region.id, transfer.to.id));
    }

    fn target(&self, report: &RegionReport) -> Option<Peer> {
        let lags = |peer: &Peer| {
            report.pending_peers.iter().any(|pending| pending.id == peer.id)
                || report.down_peers.iter().any(|(down, _)| down.id == peer.id)
        };
        let can_lead = |peer: &&Peer| {
            // bug node.hands_over_to_lagging: `!lags(peer)` is `true`
            peer.role == PeerRole::Voter
                && !self.own.contains(&peer.store)
                && !self.failed.contains(&(report.region.id, peer.id))
                && !lags(peer)
        };
        let voters = report.region.peers.iter().filter(can_lead);
        let load = |peer: &&Peer| (self.taken.get(&peer.store).copied(), peer.store);
        voters.min_by_key(load).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_replica::Role;
    use stele_types::{LogIndex, Term};

    /// Report of the leader on store 1 of a region with voters on stores 1 to 3 and a learner on 4.
    fn led(id: u64) -> RegionReport {
        let role = |store| if store == 4 { PeerRole::Learner } else { PeerRole::Voter };
        let peer =
            |store| Peer { id: PeerId(id * 10 + store), store: StoreId(store), role: role(store) };
        let peers: Vec<Peer> = (1..=4).map(peer).collect();
        RegionReport {
            peer: peers[0],
            leader: Some(peers[0]),
            region: Region { id: RegionId(id), peers, ..Region::default() },
            role: Role::Leader,
            is_leading: true,
            term: Term(1),
            last: LogIndex(1),
            committed: LogIndex(1),
            applied: LogIndex(1),
            truncated: LogIndex(0),
            pending_peers: Vec::new(),
            down_peers: Vec::new(),
            leaderless_seconds: 0,
            lacks_room: false,
            hibernating: false,
            traffic: Default::default(),
        }
    }

    fn targets(state: &mut HandOver, reports: &[RegionReport]) -> Vec<(u64, u64)> {
        let reports: Vec<_> = reports.iter().map(|it| (StoreId(1), it.clone())).collect();
        let next = state.next(&reports);
        next.iter().map(|it| (it.region.id.0, it.to.store.0)).collect()
    }

    #[test]
    fn leaderships_are_spread_over_caught_up_voters_of_other_nodes() {
        let mut state = HandOver::new([StoreId(1)]);
        assert_eq!(targets(&mut state, &[led(2), led(3), led(4)]), [(2, 2), (3, 3), (4, 2)]);
        let mut same_node = HandOver::new([StoreId(1), StoreId(2)]);
        assert_eq!(targets(&mut same_node, &[led(2), led(3)]), [(2, 3), (3, 3)]);
        let follower = RegionReport { is_leading: false, ..led(2) };
        assert!(targets(&mut HandOver::new([StoreId(1)]), &[follower]).is_empty());
    }

    #[test]
    fn a_region_without_a_caught_up_voter_keeps_its_leader() {
        let lagging = |stores: &[u64]| {
            let mut report = led(2);
            let peer = |store: &u64| report.region.peers[*store as usize - 1];
            report.pending_peers = stores.iter().map(peer).collect();
            report
        };
        let mut state = HandOver::new([StoreId(1)]);
        assert_eq!(targets(&mut state, &[lagging(&[2])]), [(2, 3)]);
        assert!(targets(&mut state, &[lagging(&[2, 3])]).is_empty(), "the learner does not lead");
        let mut down = led(2);
        down.down_peers = vec![(down.region.peers[1], 9), (down.region.peers[2], 1)];
        assert!(targets(&mut state, &[down]).is_empty());
        let mut alone = led(2);
        alone.region.peers.truncate(1);
        assert!(targets(&mut state, &[alone]).is_empty());
    }

    #[test]
    fn a_voter_that_did_not_take_the_lead_is_not_the_target_again() {
        let mut state = HandOver::new([StoreId(1)]);
        let reports = [(StoreId(1), led(2))];
        for store in [2, 3] {
            let next = state.next(&reports);
            assert_eq!(next[0].to.store, StoreId(store));
            state.note_failed(&next[0]);
        }
        assert!(state.next(&reports).is_empty());
    }

    #[test]
    fn the_placement_group_goes_first_and_alone() {
        let mut system = led(1);
        system.region.kind = RegionKind::System;
        let mut state = HandOver::new([StoreId(1)]);
        assert_eq!(targets(&mut state, &[led(2), system.clone()]), [(1, 2)]);
        // It cannot go: the others do not wait.
        system.region.peers.truncate(1);
        assert_eq!(targets(&mut state, &[led(2), system]), [(2, 3)]);
    }
}
