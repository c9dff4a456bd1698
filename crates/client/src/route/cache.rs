//! Cache of regions and their leaders. Entries may be stale; stores reject misrouted requests.

use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use stele_types::{KeyRange, Peer, PeerId, PeerRole, Region, RegionId};

/// Maximum number of cached regions; above it the cache is cleared.
const REGIONS_MAX: usize = 1 << 17;

#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub region: Arc<Region>,
    /// Presumed leader, or a peer that may know it.
    pub peer: Peer,
}

#[derive(Debug, Default)]
struct Entries {
    /// Routes by start key. Invariant: no two regions overlap.
    by_start: BTreeMap<Bytes, Route>,
    starts: HashMap<RegionId, Bytes>,
}

#[derive(Debug, Default)]
pub(crate) struct RegionCache {
    entries: RwLock<Entries>,
}

impl RegionCache {
    pub(crate) fn find(&self, key: &[u8]) -> Option<Route> {
        let entries = self.entries.read();
        let below = entries.by_start.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (_, route) = below.last()?;
        route.region.range.contains(key).then(|| route.clone())
    }

    /// Returns the region that holds the keys immediately below `end`; an empty `end` is unbounded.
    pub(crate) fn find_below(&self, end: &[u8]) -> Option<Route> {
        let entries = self.entries.read();
        let bound = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
        let (_, route) = entries.by_start.range::<[u8], _>((Bound::Unbounded, bound)).last()?;
        holds_keys_below(&route.region.range, end).then(|| route.clone())
    }

    /// Caches a region, with its leader if known, and removes the regions it overlaps. Returns
    /// false if the cache holds a newer region of these keys: versions of overlapping regions
    /// increase with time.
    pub(crate) fn install(&self, region: Region, leader: Option<Peer>) -> bool {
        let mut entries = self.entries.write();
        let overlapping = entries.overlapping(&region.range);
        if overlapping.iter().any(|old| is_newer(&old.region, &region)) {
            return false;
        }
        let leader_before = overlapping.iter().find_map(|old| region.peer(old.peer.id).copied());
        let Some(peer) = leader.or(leader_before).or_else(|| first_voter(&region)) else {
            return false;
        };
        for old in overlapping {
            entries.remove(&old.region);
        }
        if entries.by_start.len() >= REGIONS_MAX {
            *entries = Entries::default();
        }
        // The region may be cached under an older range, which it no longer has.
        if let Some(old) = entries.route(region.id) {
            entries.remove(&old.region);
        }
        entries.starts.insert(region.id, region.range.start.clone());
        entries
            .by_start
            .insert(region.range.start.clone(), Route { region: Arc::new(region), peer });
        true
    }

    /// Makes `peer` the presumed leader. Returns false if the cached region has no such peer.
    pub(crate) fn follow(&self, route: &Route, peer: &Peer) -> bool {
        let Some(peer) = route.region.peer(peer.id).filter(|known| known.store == peer.store)
        else {
            return false;
        };
        self.change_peer(route, *peer);
        true
    }

    /// Makes the peer after that of `route` the presumed leader, unless another call has changed it
    /// already.
    pub(crate) fn next_peer(&self, route: &Route) {
        let peers = &route.region.peers;
        let at = peers.iter().position(|peer| peer.id == route.peer.id).unwrap_or(0);
        // At most one round: the region may have been returned without a voter.
        let others = peers.iter().cycle().skip(at + 1).take(peers.len());
        if let Some(next) = others.into_iter().find(|peer| is_voter(peer)) {
            self.change_peer(route, *next);
        }
    }

    fn change_peer(&self, route: &Route, peer: Peer) {
        let mut entries = self.entries.write();
        if let Some(current) = entries.entry_of(route)
            && current.peer.id == route.peer.id
        {
            current.peer = peer;
        }
    }

    /// Removes a region, unless another version has replaced it.
    pub(crate) fn forget(&self, route: &Route) {
        let mut entries = self.entries.write();
        if entries.entry_of(route).is_some() {
            entries.remove(&route.region);
        }
    }
}

impl Entries {
    fn overlapping(&self, range: &KeyRange) -> Vec<Route> {
        let mut found = Vec::new();
        let below =
            self.by_start.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(&range.start[..])));
        found.extend(below.last().map(|(_, route)| route.clone()));
        let from =
            self.by_start.range::<[u8], _>((Bound::Included(&range.start[..]), Bound::Unbounded));
        found.extend(
            from.map(|(_, route)| route)
                .take_while(|route| range.is_below_end(&route.region.range.start))
                .cloned(),
        );
        found.retain(|route| route.region.range.overlaps(range));
        found
    }

    fn route(&self, id: RegionId) -> Option<Route> {
        self.by_start.get(self.starts.get(&id)?).cloned()
    }

    fn entry_of(&mut self, route: &Route) -> Option<&mut Route> {
        let current = self.by_start.get_mut(&route.region.range.start)?;
        let is_same =
            current.region.id == route.region.id && current.region.epoch == route.region.epoch;
        is_same.then_some(current)
    }

    fn remove(&mut self, region: &Region) {
        self.by_start.remove(&region.range.start);
        self.starts.remove(&region.id);
    }
}

/// Returns whether `old` is newer than `new`: a later version of the same keys, or later members of
/// the same region.
fn is_newer(old: &Region, new: &Region) -> bool {
    // bug client.install_older_region: return false;
    let members = old.id == new.id
        && old.epoch.version == new.epoch.version
        && old.epoch.conf_version > new.epoch.conf_version;
    old.epoch.version > new.epoch.version || members
}

/// Returns whether `range` holds the keys immediately below `end`.
fn holds_keys_below(range: &KeyRange, end: &[u8]) -> bool {
    range.end.is_empty() || (!end.is_empty() && &range.end[..] >= end)
}

fn first_voter(region: &Region) -> Option<Peer> {
    region.peers.iter().find(|peer| is_voter(peer)).or(region.peers.first()).copied()
}

fn is_voter(peer: &Peer) -> bool {
    peer.id != PeerId(0) && peer.role != PeerRole::Learner
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{RegionEpoch, StoreId};

    fn region(id: u64, range: (&'static str, &'static str), version: u64) -> Region {
        let peer = |n| Peer { id: PeerId(id * 10 + n), store: StoreId(n), role: PeerRole::Voter };
        Region {
            id: RegionId(id),
            range: KeyRange::new(range.0, range.1),
            epoch: RegionEpoch { conf_version: 1, version },
            peers: vec![peer(1), peer(2), peer(3)],
            ..Region::default()
        }
    }

    fn id_of(route: Option<Route>) -> Option<u64> {
        route.map(|route| route.region.id.0)
    }

    #[test]
    fn keys_find_their_regions_from_both_sides() {
        let cache = RegionCache::default();
        assert!(cache.install(region(1, ("", "m"), 1), None));
        assert!(cache.install(region(2, ("t", ""), 1), None));
        assert_eq!(id_of(cache.find(b"")), Some(1));
        assert_eq!(id_of(cache.find(b"m")), None);
        assert_eq!(id_of(cache.find(b"zz")), Some(2));
        assert_eq!(id_of(cache.find_below(b"m")), Some(1));
        assert_eq!(id_of(cache.find_below(b"n")), None);
        assert_eq!(id_of(cache.find_below(b"t")), None);
        assert_eq!(id_of(cache.find_below(b"")), Some(2));
        assert_eq!(id_of(cache.find_below(b"u")), Some(2));
    }

    #[test]
    fn a_split_replaces_its_parent_and_never_the_other_way_round() {
        let cache = RegionCache::default();
        let parent = region(1, ("", ""), 1);
        assert!(cache.install(parent.clone(), None));
        assert!(cache.install(region(2, ("", "m"), 2), None));
        assert_eq!(id_of(cache.find(b"z")), None, "half of the parent belongs to the other region");
        assert!(cache.install(region(1, ("m", ""), 2), None));
        assert!(!cache.install(parent, None));
        assert_eq!((id_of(cache.find(b"a")), id_of(cache.find(b"z"))), (Some(2), Some(1)));
    }

    #[test]
    fn a_region_without_voters_leaves_its_peer_alone() {
        let cache = RegionCache::default();
        let mut learners = region(1, ("", ""), 1);
        learners.peers.iter_mut().for_each(|peer| peer.role = PeerRole::Learner);
        assert!(cache.install(learners, None));
        let route = cache.find(b"k").unwrap();
        cache.next_peer(&route);
        assert_eq!(cache.find(b"k").unwrap().peer, route.peer);
    }

    #[test]
    fn hints_change_the_peer_only_of_the_version_they_were_given_for() {
        let cache = RegionCache::default();
        cache.install(region(1, ("", ""), 1), None);
        let route = cache.find(b"k").unwrap();
        let third = route.region.peers[2];
        assert!(cache.follow(&route, &third));
        assert_eq!(cache.find(b"k").unwrap().peer, third);
        let unknown_peer = Peer { id: PeerId(99), ..third };
        assert!(!cache.follow(&route, &unknown_peer));
        // A late failure of the first peer changes nothing: another call has moved on.
        cache.next_peer(&route);
        assert_eq!(cache.find(b"k").unwrap().peer, third);
        cache.next_peer(&cache.find(b"k").unwrap());
        assert_eq!(cache.find(b"k").unwrap().peer, route.region.peers[0]);
        cache.install(region(1, ("", ""), 2), None);
        cache.forget(&route);
        assert!(cache.find(b"k").is_some());
    }
}
