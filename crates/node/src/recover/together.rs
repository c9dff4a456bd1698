//! Directories of one cluster that no node runs, recovered together: what is refused, and the order.

use super::{Offline, Planned, RegionOutcome};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use stele_storage::StorageEngine;
use stele_types::{ClusterId, Error, RegionId, Result, StoreId};

/// Reason why a region was not recovered.
#[derive(Debug)]
pub enum NotRecovered {
    /// The replica that goes on is on this store, of which the directory is not given.
    Elsewhere(StoreId),
    /// Replicas on these stores are neither lost nor known.
    Unseen(Vec<StoreId>),
    /// No replica is left.
    Lost,
    /// The replica did not take the request.
    Failed(Error),
}

/// Fails if directories belong to two clusters.
///
/// Invariant: replicas of two clusters are never compared: their regions and stores have the same
/// numbers.
pub fn check_cluster<'a>(mut dirs: impl Iterator<Item = (&'a Path, ClusterId)>) -> Result<()> {
    let Some((first, cluster)) = dirs.next() else { return Ok(()) };
    // bug node.recover_two_clusters: `dirs.find(|(_, of)| *of != cluster)` is `None`
    let Some((dir, other)) = dirs.find(|(_, of)| *of != cluster) else { return Ok(()) };
    Err(Error::Refused(format!(
        "{} belongs to cluster {cluster}, and {} to cluster {other}: recover one cluster at a time",
        first.display(),
        dir.display()
    )))
}

/// Fails for a lost store that nothing names: a mistake would count a store that runs as the one meant.
/// `known` are the stores of the cluster that the directories name.
pub fn check_lost(
    lost: &BTreeSet<StoreId>,
    known: &BTreeSet<StoreId>,
    cluster: ClusterId,
) -> Result<()> {
    // bug node.unknown_lost_store: `lost.iter().find(|store| !known.contains(store))` is `None`
    let Some(unknown) = lost.iter().find(|store| !known.contains(store)) else { return Ok(()) };
    let known: Vec<String> = known.iter().map(ToString::to_string).collect();
    let stores = if known.len() == 1 { "store" } else { "stores" };
    Err(Error::Refused(format!(
        "there is no store {unknown} in cluster {cluster}: the directories name {stores} {}",
        known.join(", ")
    )))
}

/// Recovers the regions of which the replica that goes on is in one of the directories, by store, and
/// calls `went_on` with the stores of each. One that waits for another region is tried again after
/// that. Returns the regions that were not recovered. `version` is the greatest version of the list of
/// members that is known.
pub fn recover_all<E: StorageEngine>(
    dirs: &mut BTreeMap<StoreId, Offline<E>>,
    planned: &[Planned],
    version: u64,
    mut went_on: impl FnMut(RegionId, &[StoreId]),
) -> BTreeMap<RegionId, NotRecovered> {
    let mut left: Vec<&Planned> = planned.iter().collect();
    let mut failed = BTreeMap::new();
    let mut count = usize::MAX;
    while left.len() < count {
        count = left.len();
        failed.clear();
        left.retain(|it| match recover(dirs, it, version) {
            Ok(stores) => {
                stores.into_iter().for_each(|stores| went_on(it.region.id, &stores));
                false
            }
            Err(reason) => {
                failed.insert(it.region.id, reason);
                true
            }
        });
    }
    failed
}

/// Recovers one region. Returns the stores with which it goes on; `None` if it has a majority.
fn recover<E: StorageEngine>(
    dirs: &mut BTreeMap<StoreId, Offline<E>>,
    planned: &Planned,
    version: u64,
) -> Result<Option<Vec<StoreId>>, NotRecovered> {
    match &planned.verdict {
        RegionOutcome::HasMajority => Ok(None),
        RegionOutcome::GoesOn { source, recovery, .. } => {
            let dir = dirs.get_mut(source).ok_or(NotRecovered::Elsewhere(*source))?;
            let recovered = dir.recover(planned.region.id, recovery, version);
            let region = recovered.map_err(NotRecovered::Failed)?;
            Ok(Some(region.peers.iter().map(|peer| peer.store).collect()))
        }
        RegionOutcome::Unseen(stores) => Err(NotRecovered::Unseen(stores.clone())),
        RegionOutcome::Lost => Err(NotRecovered::Lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_two_clusters_are_refused_with_both_clusters() {
        let check = |clusters: &[u64]| {
            let paths = ["/a", "/b", "/c"].map(Path::new).into_iter();
            check_cluster(paths.zip(clusters.iter().copied().map(ClusterId)))
        };
        assert!(check(&[]).is_ok() && check(&[7]).is_ok() && check(&[7, 7, 7]).is_ok());
        let error = check(&[7, 7, 8]).unwrap_err().to_string();
        assert!(error.contains("/a belongs to cluster 7, and /c to cluster 8"), "{error}");
    }

    #[test]
    fn a_lost_store_that_nothing_names_is_refused_with_the_stores_that_are_known() {
        let known = [1, 2, 3].map(StoreId).into();
        let check = |lost: [u64; 2]| check_lost(&lost.map(StoreId).into(), &known, ClusterId(7));
        assert!(check([1, 2]).is_ok());
        let error = check([1, 777]).unwrap_err().to_string();
        assert!(error.contains("no store 777 in cluster 7"), "{error}");
        assert!(error.contains("stores 1, 2, 3"), "{error}");
    }
}
