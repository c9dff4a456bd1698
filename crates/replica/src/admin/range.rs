//! Key range of a region, as pure functions from its descriptors to the next ones.
//!
//! After a split the region keeps the keys before the first split key: its log and its followers
//! stay unchanged, and the new regions take the inserts at the end of ascending keys.

use super::PARTS_MAX;
use super::members::check_normal_phase;
use crate::input::NewRegion;
use bytes::Bytes;
use std::collections::BTreeSet;
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{KeyRange, LogIndex, Peer, Region, RegionKind, RegionPhase, Term, redis_key};

/// Returns the region, then the new ones, in key order. The `version` of all grows by the number of
/// new regions: of two descriptors that claim a key, the one with the greater version is valid.
pub(crate) fn split(
    region: &Region,
    keys: &[Bytes],
    new: &[NewRegion],
) -> Result<Vec<Region>, String> {
    check_range_may_change(region)?;
    if keys.is_empty() || keys.len() > PARTS_MAX || keys.len() != new.len() {
        return Err(format!("{} split keys for {} new regions", keys.len(), new.len()));
    }
    check_keys(region, keys)?;
    check_ids(region, new)?;
    let mut parent = region.clone();
    // bug replica.split_keeps_version: skip
    parent.epoch.version += keys.len() as u64;
    let ends = keys.iter().skip(1).cloned().chain([region.range.end.clone()]);
    let children = keys.iter().zip(ends).zip(new).map(|((start, end), ids)| {
        let place = |(peer, id): (&Peer, _)| Peer { id, ..*peer };
        Region {
            id: ids.region,
            range: KeyRange { start: start.clone(), end },
            peers: region.peers.iter().zip(ids.peers.iter().copied()).map(place).collect(),
            ..parent.clone()
        }
    });
    let children: Vec<_> = children.collect();
    parent.range.end = keys.first().cloned().unwrap_or_default();
    Ok([vec![parent], children].concat())
}

/// Checks the keys of a split.
///
/// Invariant: no boundary of regions is made inside the keys of one Redis name or tag: one region has them all.
/// Test: `a_split_inside_a_redis_key_is_refused`.
fn check_keys(region: &Region, keys: &[Bytes]) -> Result<(), String> {
    let mut before = &region.range.start;
    for key in keys {
        let inside = region.range.contains(key) && key > before;
        if !inside || key.len() > USER_KEY_BYTES_MAX {
            return Err("split keys must ascend strictly inside the region".to_owned());
        }
        // bug replica.redis_key_parted: never
        if redis_key::border(key) != *key {
            return Err("a split key lies inside the pairs of one Redis key or tag".to_owned());
        }
        before = key;
    }
    Ok(())
}

fn check_ids(region: &Region, new: &[NewRegion]) -> Result<(), String> {
    let mut regions = BTreeSet::from([region.id]);
    let mut peers: BTreeSet<_> = region.peers.iter().map(|peer| peer.id).collect();
    for ids in new {
        if ids.peers.len() != region.peers.len() {
            return Err(format!("{} peers named, {} needed", ids.peers.len(), region.peers.len()));
        }
        let is_new = ids.region.0 != 0 && regions.insert(ids.region);
        if !is_new || !ids.peers.iter().all(|peer| peer.0 != 0 && peers.insert(*peer)) {
            return Err("the ids of a new region and its peers must be new".to_owned());
        }
    }
    Ok(())
}

/// Returns the source, prepared for the merge into its neighbour by the entry of this index and
/// term. Adds one to `version`: requests for the old one are refused and retried.
pub(crate) fn prepare_merge(
    source: &Region,
    target: &Region,
    at: (LogIndex, Term),
) -> Result<Region, String> {
    check_range_may_change(source)?;
    check_neighbours(source, target)?;
    let mut out = source.clone();
    let ((prepared, term), target_epoch) = (at, target.epoch);
    out.phase = RegionPhase::Merging { target: target.id, prepared, term, target_epoch };
    out.epoch.version += 1;
    Ok(out)
}

/// Returns the target with the source's keys, and the source's tombstone. The version becomes one
/// more than the greater of both, so that it supersedes either. The target must have its epoch of
/// the preparation: once its log holds another change, it no longer takes over the source, and the
/// source may be rolled back.
pub(crate) fn commit_merge(
    target: &Region,
    source: &Region,
    prepared: LogIndex,
) -> Result<(Region, Region), String> {
    let as_prepared = matches!(source.phase, RegionPhase::Merging { target: id, prepared: at, .. }
        if (id, at) == (target.id, prepared));
    if !as_prepared {
        return Err(format!(
            "region {} is not prepared for this merge at entry {prepared}",
            source.id
        ));
    }
    let same_epoch = matches!(source.phase, RegionPhase::Merging { target_epoch, .. }
        if target_epoch == target.epoch);
    // bug replica.merge_into_changed_target: never
    if !same_epoch {
        return Err(format!("region {} has changed since the preparation", target.id));
    }
    check_neighbours(source, target)?;
    let mut out = target.clone();
    match precedes(source, target) {
        true => out.range.start = source.range.start.clone(),
        false => out.range.end = source.range.end.clone(),
    }
    // bug replica.merge_keeps_version: skip
    out.epoch.version = source.epoch.version.max(target.epoch.version) + 1;
    Ok((out, tombstone(source)))
}

/// Returns the region in normal operation. Adds one to `version`, so that a late commit of the
/// merge is refused.
pub(crate) fn rollback_merge(region: &Region) -> Result<Region, String> {
    if !matches!(region.phase, RegionPhase::Merging { .. }) {
        return Err("the region is not merging".to_owned());
    }
    let mut out = region.clone();
    out.phase = RegionPhase::Normal;
    out.epoch.version += 1;
    Ok(out)
}

/// Returns the region that refused a merge into it. Adds one to `conf_version` and nothing to
/// `version`: a commit adds to `version`, so an epoch with this one and a later membership is proof that
/// there was none.
pub(crate) fn refuse_merge(target: &Region) -> Region {
    let mut out = target.clone();
    // bug replica.refusal_keeps_epoch: skip
    out.epoch.conf_version += 1;
    out
}

/// Returns the tombstone of a region removed from a store: its peers are never created again.
pub(crate) fn tombstone(region: &Region) -> Region {
    let mut out = region.clone();
    out.phase = RegionPhase::Tombstone;
    out.epoch.version += 1;
    out
}

fn check_range_may_change(region: &Region) -> Result<(), String> {
    check_normal_phase(region)?;
    if region.kind == RegionKind::System {
        return Err("the placement group's region cannot be split or merged".to_owned());
    }
    if region.is_joint() {
        return Err(
            "membership is between two configurations: leave the joint one first".to_owned()
        );
    }
    Ok(())
}

/// Checks that both regions hold user data, are adjacent and are on the same stores.
fn check_neighbours(source: &Region, target: &Region) -> Result<(), String> {
    check_range_may_change(target)?;
    let beside = precedes(source, target) || precedes(target, source);
    // bug replica.merge_not_adjacent: `!beside` is `false`
    if source.id == target.id || !beside {
        return Err(format!("regions {} and {} are not adjacent", source.id, target.id));
    }
    let stores = |region: &Region| -> BTreeSet<_> {
        region.peers.iter().map(|peer| (peer.store, peer.role as u8)).collect()
    };
    if stores(source) != stores(target) {
        return Err(format!("regions {} and {} are on different stores", source.id, target.id));
    }
    Ok(())
}

fn precedes(left: &Region, right: &Region) -> bool {
    !left.range.end.is_empty() && left.range.end == right.range.start
}

#[cfg(test)]
mod tests;
