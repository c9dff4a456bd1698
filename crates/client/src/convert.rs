//! Conversion between messages and the types of `stele-types`.

use stele_proto::metapb;
use stele_types::{
    KeyRange, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId, address,
};

/// Converts a peer. An unknown role becomes voter.
pub fn peer(peer: &metapb::Peer) -> Peer {
    let role = u64::try_from(peer.role).ok().and_then(PeerRole::from_number);
    Peer { id: PeerId(peer.id), store: StoreId(peer.store_id), role: role.unwrap_or_default() }
}

/// Converts a peer to its message.
pub fn peer_out(peer: &Peer) -> metapb::Peer {
    metapb::Peer {
        id: peer.id.0,
        store_id: peer.store.0,
        role: peer.role as i32,
        ..metapb::Peer::default()
    }
}

/// Converts an epoch to its message.
pub fn epoch_out(epoch: RegionEpoch) -> metapb::RegionEpoch {
    metapb::RegionEpoch { conf_ver: epoch.conf_version, version: epoch.version }
}

/// Converts a region.
pub fn region(region: &metapb::Region) -> Region {
    let epoch = region.region_epoch.unwrap_or_default();
    Region {
        id: RegionId(region.id),
        range: KeyRange { start: region.start_key.clone(), end: region.end_key.clone() },
        epoch: RegionEpoch { conf_version: epoch.conf_ver, version: epoch.version },
        peers: region.peers.iter().map(peer).collect(),
        ..Region::default()
    }
}

/// Returns the part of `range` within `within`.
pub fn clamp(range: &KeyRange, within: &KeyRange) -> KeyRange {
    let start = (&range.start).max(&within.start).clone();
    let end = match (range.end.is_empty(), within.end.is_empty()) {
        (true, _) => &within.end,
        (_, true) => &range.end,
        _ => (&range.end).min(&within.end),
    };
    KeyRange { start, end: end.clone() }
}

/// Returns the `host:port` that a node states for itself or for another one; `None` if it is none that
/// can be connected to.
pub fn host_port(address: &str) -> Option<String> {
    address::to_connect(address).ok().map(str::to_owned)
}
