//! Placement of a replica.

use super::View;
use super::load::Loads;
use crate::config::{FREE_BYTES_ENOUGH, FREE_PERCENT_MIN};
use crate::region_info::RegionInfo;
use stele_types::{Peer, StoreId};

/// Cost of a replica besides its bytes: an empty region causes work, too.
const REPLICA_BYTES: u64 = 16 << 20;

/// Returns the weight of a region's replica when stores are compared.
pub fn weight(info: &RegionInfo) -> u64 {
    info.size_bytes + REPLICA_BYTES
}

/// Returns why a store cannot take a replica of a region; `None` if it can. Ignores the members in
/// `leaving`.
pub fn obstacle(
    view: &View<'_>,
    info: &RegionInfo,
    leaving: &[Peer],
    adding: &[StoreId],
    to: StoreId,
) -> Option<&'static str> {
    let Some(store) = view.cluster.store(to) else { return Some("is unknown") };
    if !view.is_serving(to) {
        return Some("takes no replicas");
    }
    if info.region.peer_on(to).is_some() {
        return Some("has a replica");
    }
    let stays = info.region.peers.iter().filter(|peer| !leaving.contains(peer));
    let mut taken = stays.map(|peer| peer.store).chain(adding.iter().copied());
    if taken.any(|other| view.cluster.share_domain(other, to)) {
        return Some("is on a node that has a replica");
    }
    let reserve = (store.capacity_bytes / 100 * FREE_PERCENT_MIN).min(FREE_BYTES_ENOUGH);
    // A capacity of 0 means that it is not known yet.
    if store.capacity_bytes > 0 && store.report.free_bytes < reserve.saturating_add(info.size_bytes)
    {
        return Some("is too full");
    }
    None
}

/// Returns the least loaded store that can take a replica. The error is the reason why there is
/// none.
pub fn target(
    view: &View<'_>,
    loads: &Loads,
    info: &RegionInfo,
    leaving: &[Peer],
    adding: &[StoreId],
) -> Result<StoreId, String> {
    let mut obstacles = Vec::new();
    let mut busy = None;
    for (store, _) in loads.ascending(|load| load.weight) {
        match obstacle(view, info, leaving, adding, store) {
            None if view.operators.receiving(store) < view.cluster.config().snapshots_max => {
                return Ok(store);
            }
            None => busy = Some(store),
            Some(reason) => obstacles.push(format!("store {store} {reason}")),
        }
    }
    match busy {
        Some(store) => Err(format!("store {store} already receives as many replicas as allowed")),
        None if obstacles.is_empty() => Err("no store takes replicas".into()),
        None => Err(format!("no store can take it: {}", summary(obstacles))),
    }
}

fn summary(obstacles: Vec<String>) -> String {
    const SHOWN: usize = 5;
    let more = obstacles.len().saturating_sub(SHOWN);
    let text = obstacles.into_iter().take(SHOWN).collect::<Vec<_>>().join("; ");
    match more {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}
