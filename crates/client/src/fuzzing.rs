//! What reads answers, for fuzz targets.

use crate::convert;
use crate::retry_decision::{Step, react};
use crate::route::RegionCache;
use stele_proto::{errorpb, metapb, pdpb};

/// Takes over what a directory says of regions, asks for their keys, and moves from peer to peer.
pub fn routes(answers: &[pdpb::GetRegionResponse]) {
    let cache = RegionCache::default();
    for answer in answers {
        install(&cache, answer.region.as_ref(), answer.leader.as_ref());
    }
}

fn install(cache: &RegionCache, region: Option<&metapb::Region>, leader: Option<&metapb::Peer>) {
    let Some(region) = region.map(convert::region) else { return };
    cache.install(region.clone(), leader.filter(|leader| leader.id != 0).map(convert::peer));
    for key in [&region.range.start, &region.range.end] {
        cache.find_below(key);
        if let Some(route) = cache.find(key) {
            assert!(route.region.range.contains(key));
            cache.next_peer(&route);
            for peer in &region.peers {
                cache.follow(&route, peer);
            }
            cache.forget(&route);
        }
    }
}

/// Decides what a region error means, and installs the regions it brings.
pub fn region_error(error: &errorpb::Error) {
    let cache = RegionCache::default();
    if let Step::Install(regions) = react(error).step {
        for region in regions {
            cache.install(region, None);
        }
    }
}
