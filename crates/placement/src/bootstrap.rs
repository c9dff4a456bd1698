//! Bootstrap of a cluster: its first node's stores and its first two regions.

use crate::pairs::{self, PairChange};
use crate::store::Store;
use crate::{FIRST_DATA_REGION, SYSTEM_REGION};
use stele_types::{
    ClusterId, KeyRange, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, RegionKind, StoreId,
};

/// Input of the founding node, which decides it alone.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// Random identity of the cluster, not 0.
    pub cluster: ClusterId,
    /// `host:port` of the node.
    pub address: String,
    /// Capacities of the node's devices, in order; at least one. They become stores 1, 2, ….
    pub capacities_bytes: Vec<u64>,
}

impl Bootstrap {
    /// Returns the numbers of the stores.
    pub fn stores(&self) -> impl Iterator<Item = StoreId> {
        (1..=self.capacities_bytes.len() as u64).map(StoreId)
    }

    /// Returns the first two regions, each with one replica on store 1: the placement group's and
    /// one for all user keys. Their replicas are created before the pairs that describe them are
    /// written. A node that stops between the two writes the same pairs after its restart.
    pub fn regions() -> [Region; 2] {
        let region = |id: RegionId, kind| Region {
            id,
            kind,
            range: KeyRange::all(),
            epoch: RegionEpoch { conf_version: 1, version: 1 },
            peers: vec![Peer { id: PeerId(id.0), store: StoreId(1), role: PeerRole::Voter }],
            ..Region::default()
        };
        [region(SYSTEM_REGION, RegionKind::System), region(FIRST_DATA_REGION, RegionKind::Data)]
    }

    /// Returns the pairs to put into the placement region when it is empty.
    pub fn pairs(&self) -> Vec<PairChange> {
        let mut out = vec![pairs::cluster(self.cluster), pairs::ids(FIRST_DATA_REGION.0)];
        out.extend(Self::regions().iter().map(pairs::region));
        out.push(pairs::members(1));
        for (id, capacity_bytes) in self.stores().zip(&self.capacities_bytes) {
            let (address, capacity_bytes) = (self.address.clone(), *capacity_bytes);
            out.push(pairs::store(&Store { id, address, capacity_bytes, ..Store::default() }));
        }
        out
    }
}
