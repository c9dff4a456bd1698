//! Numbers for new regions and peers, from whoever leads the placement group.

use crate::placement::PlacementService;
use std::sync::Arc;
use stele_types::{Error, Result};

/// Reserves numbers.
pub(super) struct IdSource(pub Arc<PlacementService>);

impl IdSource {
    /// The first of `count` numbers that nobody else has or had.
    pub async fn reserve(&self, count: u64) -> Result<u64> {
        let failed = |status: tonic::Status| Error::Busy(status.message().to_owned());
        self.0.alloc_ids(count as u32).await.map_err(failed)
    }
}
