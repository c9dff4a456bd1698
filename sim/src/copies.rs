//! Which stores hold copies that a region keeps.
//!
//! Invariant: only a voter counts as a copy. The placement group may remove a learner at any time, and
//! with it what only the learner holds: one that no operator needs, or one of a cancelled operator.

use crate::world::World;
use std::collections::BTreeMap;
use stele_types::{Peer, PeerRole, Region, RegionId, StoreId};

/// The voters of all regions, by the newest descriptors.
pub(crate) struct Copies(Vec<(Region, Vec<u64>)>);

impl Copies {
    /// Returns the voters of regions, as slots. A voter that is being demoted does not count.
    fn new(regions: impl IntoIterator<Item = Region>, homes: &BTreeMap<StoreId, u64>) -> Self {
        let stays = |peer: &&Peer| [PeerRole::Voter, PeerRole::IncomingVoter].contains(&peer.role);
        let voters = |region: &Region| -> Vec<u64> {
            let voters = region.peers.iter().filter(stays);
            voters.filter_map(|peer| homes.get(&peer.store).copied()).collect()
        };
        Self(regions.into_iter().map(|region| (region.clone(), voters(&region))).collect())
    }

    /// Returns whether a slot holds a copy of a pair, by its engine key.
    pub(crate) fn counts(&self, slot: u64, key: &[u8]) -> bool {
        let holds = |region: &Region| region.engine_ranges().iter().any(|it| it.contains(key));
        self.0.iter().filter(|(region, _)| holds(region)).all(|(_, voters)| voters.contains(&slot))
    }

    /// Returns whether a slot holds a copy of an entry in a region's log, with its pairs. Splits may have
    /// moved these to other regions.
    pub(crate) fn counts_of_entry(&self, slot: u64, region: RegionId, keys: &[Vec<u8>]) -> bool {
        let mut of_log = self.0.iter().filter(|(it, _)| it.id == region);
        of_log.all(|(_, voters)| voters.contains(&slot))
            && keys.iter().all(|key| self.counts(slot, key))
    }
}

impl World {
    pub(crate) fn copies(&mut self) -> Copies {
        let regions = self.reports_by_region().into_values().filter_map(|reports| {
            let newest = reports.into_iter().map(|(_, report)| report.region);
            newest.max_by_key(|it| (it.epoch.version, it.epoch.conf_version))
        });
        Copies::new(regions, &self.homes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{KeyRange, PeerId, RegionEpoch, RegionKind, RegionPhase, keyspace};

    fn region(id: u64, range: (&str, &str), roles: [PeerRole; 3]) -> Region {
        let peers = (1..).zip(roles).map(|(store, role)| Peer {
            id: PeerId(10 * id + store),
            store: StoreId(store),
            role,
        });
        Region {
            id: RegionId(id),
            kind: RegionKind::Data,
            range: KeyRange::new(range.0.to_owned(), range.1.to_owned()),
            epoch: RegionEpoch { conf_version: 3, version: 2 },
            peers: peers.collect(),
            phase: RegionPhase::Normal,
        }
    }

    #[test]
    fn a_learner_does_not_count_as_a_copy_of_the_keys_that_its_region_has_now() {
        use PeerRole::{DemotingVoter, IncomingVoter, Learner, Voter};
        let homes = (1..=3).map(|store| (StoreId(store), 10 + store)).collect();
        let parent = region(7, ("", "m"), [Voter, Voter, Voter]);
        let child = region(91, ("m", ""), [Voter, Learner, Learner]);
        let copies = Copies::new([parent, child], &homes);
        let key = |text: &str| [&[keyspace::LOCAL + 1], text.as_bytes()].concat();
        let of = |entry: u64, keys: &[&str]| -> Vec<u64> {
            let keys: Vec<Vec<u8>> = keys.iter().map(|it| key(it)).collect();
            let counts = |slot: &u64| copies.counts_of_entry(*slot, RegionId(entry), &keys);
            (11..=13).filter(counts).collect()
        };
        assert_eq!(of(7, &["a"]), [11, 12, 13]);
        // The parent's log has the entry, and the pair is the child's now.
        assert_eq!(of(7, &["a", "n"]), [11]);
        assert_eq!(of(91, &[]), [11]);
        assert!(copies.counts(12, &key("a")) && !copies.counts(12, &key("n")));
        let joint = region(2, ("", ""), [DemotingVoter, IncomingVoter, Voter]);
        let copies = Copies::new([joint], &homes);
        assert!(!copies.counts(11, &key("a")));
        assert!(copies.counts(12, &key("a")) && copies.counts(13, &key("a")));
    }
}
