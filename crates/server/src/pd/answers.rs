//! Regions, stores and members as PD messages.

use stele_placement::RegionInfo;
use stele_proto::metapb;
use stele_proto::pdpb::{Member, PeerStats, Region, ResponseHeader};
use stele_proto::stele::control::v1::{Label, StoreInfo, StoreState};
use stele_types::ClusterId;

/// Version that stores report: clients derive features from TiKV's releases.
const TIKV_VERSION: &str = "8.5.0";

pub(super) fn header(cluster: ClusterId) -> ResponseHeader {
    ResponseHeader { cluster_id: cluster.0, error: None }
}

/// Converts a node to a member of PD. Its id is derived from its address: ids must differ and not
/// be 0.
pub(super) fn member(address: &str) -> Member {
    let url = format!("http://{address}");
    let id = stele_types::checksum::crc32c(address.as_bytes());
    Member {
        name: address.to_owned(),
        member_id: u64::from(id) | 1 << 32,
        peer_urls: vec![url.clone()],
        client_urls: vec![url],
    }
}

pub(super) fn region_entry(info: &RegionInfo) -> Region {
    let peer_of = |id| info.region.peer(id).map(Into::into);
    Region {
        region: Some((&info.region).into()),
        leader: info.leader.as_ref().map(Into::into),
        down_peers: info
            .down
            .iter()
            .map(|down| PeerStats { peer: peer_of(down.peer), down_seconds: down.seconds })
            .collect(),
        pending_peers: info.pending.iter().filter_map(|id| peer_of(*id)).collect(),
    }
}

fn store_label(label: &Label) -> metapb::StoreLabel {
    metapb::StoreLabel { key: label.key.clone(), value: label.value.clone() }
}

pub(super) fn store_meta(info: &StoreInfo) -> metapb::Store {
    let stats = info.stats.as_ref();
    // A store without an id gets 0; clients need only its address.
    let id = stats.map_or(0, |stats| stats.id);
    let state = StoreState::try_from(info.state).unwrap_or(StoreState::Unspecified);
    let (state, node_state) = match state {
        StoreState::Removed => (metapb::StoreState::Tombstone, metapb::NodeState::Removed),
        StoreState::Removing => (metapb::StoreState::Offline, metapb::NodeState::Removing),
        StoreState::Preparing => (metapb::StoreState::Up, metapb::NodeState::Preparing),
        _ => (metapb::StoreState::Up, metapb::NodeState::Serving),
    };
    metapb::Store {
        id,
        address: info.address.clone(),
        peer_address: info.address.clone(),
        status_address: info.address.clone(),
        state: state as i32,
        node_state: node_state as i32,
        labels: info.labels.iter().map(store_label).collect(),
        version: TIKV_VERSION.to_owned(),
        start_timestamp: info.started_at as i64,
        ..metapb::Store::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_a_store_are_in_the_answers_of_pd() {
        let label = |key: &str, value: &str| Label { key: key.to_owned(), value: value.to_owned() };
        let labels = vec![label("zone", "z1"), label("rack", "r7")];
        let info = StoreInfo { address: "a:1".to_owned(), labels, ..StoreInfo::default() };
        let found = store_meta(&info).labels;
        let found: Vec<_> = found.iter().map(|it| (it.key.as_str(), it.value.as_str())).collect();
        assert_eq!(found, [("zone", "z1"), ("rack", "r7")]);
    }
}
