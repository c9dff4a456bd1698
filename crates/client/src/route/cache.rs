//! Where regions lie, as far as this client has heard. What it holds may be old: stores tell.

use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use stele_types::{KeyRange, Peer, PeerId, PeerRole, Region, RegionId};

/// More regions than these are not remembered: all are forgotten and looked up again.
const REGIONS_MAX: usize = 1 << 17;

/// Where to send a call.
#[derive(Clone, Debug)]
pub struct Route {
    /// The region.
    pub region: Arc<Region>,
    /// The peer that leads it, or may know who does.
    pub peer: Peer,
}

#[derive(Debug, Default)]
struct Known {
    /// By first key. No two overlap.
    by_start: BTreeMap<Bytes, Route>,
    starts: HashMap<RegionId, Bytes>,
}

/// Regions by their keys.
#[derive(Debug, Default)]
pub struct RegionCache {
    known: RwLock<Known>,
}

impl RegionCache {
    /// The region that holds `key`.
    pub fn find(&self, key: &[u8]) -> Option<Route> {
        let known = self.known.read();
        let below = known.by_start.range::<[u8], _>((Bound::Unbounded, Bound::Included(key)));
        let (_, route) = below.last()?;
        route.region.range.contains(key).then(|| route.clone())
    }

    /// The region that holds the keys right below `end`; an empty `end` is no bound.
    pub fn find_below(&self, end: &[u8]) -> Option<Route> {
        let known = self.known.read();
        let bound = if end.is_empty() { Bound::Unbounded } else { Bound::Excluded(end) };
        let (_, route) = known.by_start.range::<[u8], _>((Bound::Unbounded, bound)).last()?;
        reaches(&route.region.range, end).then(|| route.clone())
    }

    /// Takes a region over, with the peer that leads it if that is known, and forgets those it
    /// overlaps. False if something newer is known of these keys: versions of overlapping regions
    /// grow with time.
    pub fn install(&self, region: Region, leader: Option<Peer>) -> bool {
        let mut known = self.known.write();
        let overlapping = known.overlapping(&region.range);
        if overlapping.iter().any(|old| is_newer(&old.region, &region)) {
            return false;
        }
        let led_before = overlapping.iter().find_map(|old| region.peer(old.peer.id).copied());
        let Some(peer) = leader.or(led_before).or_else(|| first_voter(&region)) else {
            return false;
        };
        for old in overlapping {
            known.remove(&old.region);
        }
        if known.by_start.len() >= REGIONS_MAX {
            *known = Known::default();
        }
        // A region that moved away from keys it once had is known under its new ones only.
        if let Some(old) = known.route(region.id) {
            known.remove(&old.region);
        }
        known.starts.insert(region.id, region.range.start.clone());
        known.by_start.insert(region.range.start.clone(), Route { region: Arc::new(region), peer });
        true
    }

    /// Whether `peer` could be taken for the leader: the region is known to have it.
    pub fn follow(&self, route: &Route, peer: &Peer) -> bool {
        let Some(peer) = route.region.peer(peer.id).filter(|known| known.store == peer.store)
        else {
            return false;
        };
        self.change_peer(route, *peer);
        true
    }

    /// Tries the peer after that of `route` from now on, unless another call has moved on already.
    pub fn next_peer(&self, route: &Route) {
        let peers = &route.region.peers;
        let at = peers.iter().position(|peer| peer.id == route.peer.id).unwrap_or(0);
        // Once around: a region may be told without any voter.
        let others = peers.iter().cycle().skip(at + 1).take(peers.len());
        if let Some(next) = others.into_iter().find(|peer| votes(peer)) {
            self.change_peer(route, *next);
        }
    }

    fn change_peer(&self, route: &Route, peer: Peer) {
        let mut known = self.known.write();
        if let Some(current) = known.same(route)
            && current.peer.id == route.peer.id
        {
            current.peer = peer;
        }
    }

    /// Forgets a region, unless it has been replaced by another version.
    pub fn forget(&self, route: &Route) {
        let mut known = self.known.write();
        if known.same(route).is_some() {
            known.remove(&route.region);
        }
    }
}

impl Known {
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

    /// The entry of that region in that version.
    fn same(&mut self, route: &Route) -> Option<&mut Route> {
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

/// Whether `old` was made after `new`: a later shape of the same keys, or later members of the same
/// region.
fn is_newer(old: &Region, new: &Region) -> bool {
    if stele_types::mutant::active("client.install_older_region") {
        return false;
    }
    let members = old.id == new.id
        && old.epoch.version == new.epoch.version
        && old.epoch.conf_version > new.epoch.conf_version;
    old.epoch.version > new.epoch.version || members
}

/// Whether `range` holds the keys right below `end`.
fn reaches(range: &KeyRange, end: &[u8]) -> bool {
    range.end.is_empty() || (!end.is_empty() && &range.end[..] >= end)
}

fn first_voter(region: &Region) -> Option<Peer> {
    region.peers.iter().find(|peer| votes(peer)).or(region.peers.first()).copied()
}

fn votes(peer: &Peer) -> bool {
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
        assert_eq!(id_of(cache.find(b"z")), None, "half of the parent is another's");
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
        let stranger = Peer { id: PeerId(99), ..third };
        assert!(!cache.follow(&route, &stranger));
        // Late news about the first peer changes nothing: another call has moved on.
        cache.next_peer(&route);
        assert_eq!(cache.find(b"k").unwrap().peer, third);
        cache.next_peer(&cache.find(b"k").unwrap());
        assert_eq!(cache.find(b"k").unwrap().peer, route.region.peers[0]);
        cache.install(region(1, ("", ""), 2), None);
        cache.forget(&route);
        assert!(cache.find(b"k").is_some());
    }
}
