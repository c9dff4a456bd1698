//! Consumers of untrusted responses, for fuzz targets.

use crate::retry_decision::{Step, decide_retry};
use crate::route::RegionCache;
use crate::watch::Token;
use std::fmt::Write;
use stele_proto::{errorpb, metapb, pdpb};
use stele_types::Region;
use stele_types::checksum::crc32c;

/// Caches the regions that PD returns, finds their keys, and moves from peer to peer.
pub fn routes(answers: &[pdpb::GetRegionResponse]) {
    let cache = RegionCache::default();
    for answer in answers {
        install(&cache, answer.region.as_ref(), answer.leader.as_ref());
    }
}

fn install(cache: &RegionCache, region: Option<&metapb::Region>, leader: Option<&metapb::Peer>) {
    let Some(region) = region.map(Region::from) else { return };
    cache.install(region.clone(), leader.filter(|leader| leader.id != 0).map(Into::into));
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

/// Decides how to retry after a region error, and caches the regions it carries.
pub fn region_error(error: &errorpb::Error) {
    let cache = RegionCache::default();
    if let Step::Install(regions) = decide_retry(error).step {
        for region in regions {
            cache.install(region, None);
        }
    }
}

/// Reads the token of a watch with this body and its checksum. What is read is written alike.
pub fn watch_token(body: &[u8]) {
    let mut text = "watch1.".to_owned();
    for byte in body.iter().chain(&crc32c(body).to_le_bytes()) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    if let Ok(token) = text.parse::<Token>() {
        assert_eq!(token.to_string().parse::<Token>().ok().as_ref(), Some(&token));
    }
}
