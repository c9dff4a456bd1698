//! Status reports of a store's regions.

use super::RaftStore;
use crate::output::RegionReport;
use stele_storage::StorageEngine;
use stele_types::RegionId;

impl<E: StorageEngine> RaftStore<E> {
    /// Reports every region here.
    pub fn regions(&mut self) -> Vec<RegionReport> {
        let ctx = &self.ctx;
        self.peers.values_mut().map(|peer| peer.report(ctx)).collect()
    }

    /// Reports one region here.
    pub fn region(&mut self, region: RegionId) -> Option<RegionReport> {
        let ctx = &self.ctx;
        self.peers.get_mut(&region).map(|peer| peer.report(ctx))
    }
}
