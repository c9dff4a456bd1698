//! Peers, epochs and regions as messages, and back.

use crate::metapb;
use stele_types::{KeyRange, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId};

impl From<&Peer> for metapb::Peer {
    fn from(peer: &Peer) -> Self {
        Self { id: peer.id.0, store_id: peer.store.0, role: peer.role as i32, ..Self::default() }
    }
}

impl From<&metapb::Peer> for Peer {
    /// An unknown role becomes voter.
    fn from(peer: &metapb::Peer) -> Self {
        let role = u64::try_from(peer.role).ok().and_then(PeerRole::from_number);
        Self { id: PeerId(peer.id), store: StoreId(peer.store_id), role: role.unwrap_or_default() }
    }
}

impl From<RegionEpoch> for metapb::RegionEpoch {
    fn from(epoch: RegionEpoch) -> Self {
        Self { conf_ver: epoch.conf_version, version: epoch.version }
    }
}

impl From<&Region> for metapb::Region {
    fn from(region: &Region) -> Self {
        Self {
            id: region.id.0,
            start_key: region.range.start.clone(),
            end_key: region.range.end.clone(),
            region_epoch: Some(region.epoch.into()),
            peers: region.peers.iter().map(Into::into).collect(),
            ..Self::default()
        }
    }
}

impl From<&metapb::Region> for Region {
    /// What a message does not contain has its default.
    fn from(region: &metapb::Region) -> Self {
        let epoch = region.region_epoch.unwrap_or_default();
        Self {
            id: RegionId(region.id),
            range: KeyRange { start: region.start_key.clone(), end: region.end_key.clone() },
            epoch: RegionEpoch { conf_version: epoch.conf_ver, version: epoch.version },
            peers: region.peers.iter().map(Into::into).collect(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_survives_the_message_and_an_unknown_role_becomes_voter() {
        let peer = |id, role| Peer { id: PeerId(id), store: StoreId(id + 1), role };
        let region = Region {
            id: RegionId(7),
            range: KeyRange::new("a", "c"),
            epoch: RegionEpoch { conf_version: 3, version: 4 },
            peers: vec![peer(1, PeerRole::Voter), peer(2, PeerRole::Learner)],
            ..Region::default()
        };
        let mut message = metapb::Region::from(&region);
        assert_eq!(Region::from(&message), region);
        for unknown in [-1, 99] {
            message.peers[1].role = unknown;
            assert_eq!(Region::from(&message).peers[1].role, PeerRole::Voter);
        }
    }
}
