//! Whose the keys are that no region of a store owns: the store keeps their pairs until it hears.

use crate::placement::PlacementService;
use crate::stores::Stores;
use std::sync::Arc;
use stele_raftstore::Input;

/// Regions asked for at a time; when these are here or their pairs gone, the next are.
const OWNERS_MAX: usize = 256;

/// Tells each store of the regions that have its unclaimed keys. What can't be found out is asked for
/// again after the next report.
pub(crate) async fn find_owners(stores: &Stores, placement: &Arc<PlacementService>) {
    for store in stores.all() {
        let orphaned_ranges =
            store.with_core(|core| core.orphaned_ranges()).await.unwrap_or_default();
        let mut owners = Vec::new();
        for range in &orphaned_ranges {
            match placement.scan_regions(range, OWNERS_MAX).await {
                Ok(found) => owners.extend(found.into_iter().map(|info| info.region)),
                Err(status) => tracing::debug!("orphaned_ranges keys: {}", status.message()),
            }
        }
        if !owners.is_empty() {
            store.input(Input::Owners(owners));
        }
    }
}
