//! Conversion of peers, epochs and regions into wire messages.

use bytes::Bytes;
use stele_proto::metapb;
use stele_types::{KeyRange, Peer, Region, RegionEpoch};

/// Converts a peer for clients.
pub fn peer(peer: &Peer) -> metapb::Peer {
    metapb::Peer {
        id: peer.id.0,
        store_id: peer.store.0,
        role: peer.role as i32,
        ..metapb::Peer::default()
    }
}

/// Converts an epoch for clients.
pub fn epoch(epoch: RegionEpoch) -> metapb::RegionEpoch {
    metapb::RegionEpoch { conf_ver: epoch.conf_version, version: epoch.version }
}

/// Converts a region for clients.
pub fn region(region: &Region) -> metapb::Region {
    metapb::Region {
        id: region.id.0,
        start_key: region.range.start.clone(),
        end_key: region.range.end.clone(),
        region_epoch: Some(epoch(region.epoch)),
        peers: region.peers.iter().map(peer).collect(),
        ..metapb::Region::default()
    }
}

/// Returns the part of `range` inside `within`.
pub fn clamp(range: &KeyRange, within: &KeyRange) -> KeyRange {
    let start = (&range.start).max(&within.start).clone();
    let end = match (range.end.is_empty(), within.end.is_empty()) {
        (true, _) => within.end.clone(),
        (_, true) => range.end.clone(),
        _ => Bytes::clone((&range.end).min(&within.end)),
    };
    KeyRange { start, end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamping_knows_that_an_empty_end_is_no_bound() {
        let range = |a: &'static str, b: &'static str| KeyRange::new(a, b);
        assert_eq!(clamp(&range("", ""), &range("b", "d")), range("b", "d"));
        assert_eq!(clamp(&range("c", ""), &range("b", "d")), range("c", "d"));
        assert_eq!(clamp(&range("a", "c"), &range("b", "")), range("b", "c"));
        assert!(clamp(&range("a", "b"), &range("c", "d")).is_empty());
    }
}
