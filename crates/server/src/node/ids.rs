//! Ids for new regions and peers, from the placement leader.

use crate::placement::PlacementService;
use std::sync::Arc;
use stele_types::{Error, Result};

pub(super) struct IdSource(pub Arc<PlacementService>);

impl IdSource {
    /// Reserves `count` ids that were never allocated, and returns the first.
    pub(super) async fn reserve(&self, count: u64) -> Result<u64> {
        let failed = |status: tonic::Status| Error::Busy(status.message().to_owned());
        self.0.alloc_ids(count as u32).await.map_err(failed)
    }
}
