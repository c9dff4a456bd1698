//! Owners of orphaned ranges: a store keeps the pairs until it learns which regions own the keys.

use crate::placement::PlacementService;
use crate::stores::Stores;
use std::sync::Arc;
use stele_raftstore::Input;

/// Regions requested at a time; the next follow when these are here or their pairs are gone.
const OWNERS_MAX: usize = 256;

/// Sends each store the regions that own its orphaned ranges. A failed lookup is repeated after the
/// next report.
pub(crate) async fn find_owners(stores: &Stores, placement: &Arc<PlacementService>) {
    for store in stores.all() {
        let orphaned_ranges =
            store.with_core(|core| core.orphaned_ranges()).await.unwrap_or_default();
        let mut owners = Vec::new();
        for range in &orphaned_ranges {
            match placement.scan_regions(range, OWNERS_MAX).await {
                Ok(found) => owners.extend(found.into_iter().map(|info| info.region)),
                Err(status) => tracing::debug!("orphaned ranges: {}", status.message()),
            }
        }
        if !owners.is_empty() {
            store.input(Input::Owners(owners));
        }
    }
}
