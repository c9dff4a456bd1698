//! Choice of the runs with filter and fences pinned in memory: the newest that fit the limit
//! together. Every get asks the filters of the newest tiers; those of the oldest tier only if no
//! newer tier has the key. Of the others the block cache keeps the pages read often.

use super::Shared;
use crate::run::RunParts;
use crate::version::Version;
use std::collections::{BTreeMap, BTreeSet};
use stele_types::RunId;

/// Unpins and pins filters and fences after a change of the runs. Invariant: reads take place
/// outside all locks. A run that cannot be read, or for which earlier versions still take the
/// memory, stays cold until the next call.
pub(super) fn balance(shared: &Shared) {
    let version = shared.tables.read().version.clone();
    let wanted = choose(&version, shared.cache.pinned_bytes_max());
    let unpinned = version.runs().filter(|run| run.is_pinned() && !wanted.contains(&run.id()));
    let unpinned = unpinned.filter_map(|run| Some((run.id(), run.to_cold()?))).collect();
    drop(version);
    replace_parts(shared, &unpinned);
    // The memory of unpinned parts is free once no version refers to them.
    drop(unpinned);
    let version = shared.tables.read().version.clone();
    let cold = version.runs().filter(|run| !run.is_pinned() && wanted.contains(&run.id()));
    let pinned = cold.filter_map(|run| Some((run.id(), run.to_pinned().ok().flatten()?))).collect();
    drop(version);
    replace_parts(shared, &pinned);
}

/// Returns the newest runs that fit `bytes_max` together.
fn choose(version: &Version, bytes_max: u64) -> BTreeSet<RunId> {
    let mut left = bytes_max;
    let mut chosen = BTreeSet::new();
    for run in version.runs() {
        if let Some(rest) = left.checked_sub(run.pinned_bytes()) {
            left = rest;
            chosen.insert(run.id());
        }
    }
    chosen
}

/// Publishes a version in which these runs have other parts.
fn replace_parts(shared: &Shared, parts: &BTreeMap<RunId, RunParts>) {
    if parts.is_empty() {
        return;
    }
    // While the lock is held, nothing commits between reading the version and replacing it.
    let _manifest = shared.manifest.lock();
    let version = shared.tables.read().version.clone();
    let replaced = version.runs().filter_map(|run| Some(run.with_parts(parts.get(&run.id())?)));
    let replaced: Vec<_> = replaced.collect();
    let ids: Vec<RunId> = replaced.iter().map(|run| run.id()).collect();
    shared.publish_version(version.replace(&ids, replaced), None);
}
