//! What a node states when it has started.

use super::Parts;
use crate::access::Reach;
use crate::stores::Stores;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_types::{ClusterId, PeerRole, Region, RegionKind, StoreId, StoreIdent};

/// Result of a successful start.
#[derive(Clone, Debug)]
pub struct Ready {
    /// Address that clients connect to.
    pub address: String,
    /// Cluster of this node.
    pub cluster: ClusterId,
    /// Stores of this node.
    pub stores: Vec<StoreId>,
    /// Copies of the data regions of this node: of the region that has the fewest, and of the one that
    /// has the most. `None` if the node has none.
    pub copies: Option<(usize, usize)>,
    /// Nodes of the cluster, with this one, as far as they are known.
    pub nodes: usize,
    /// Connections that the node accepts.
    pub reach: Reach,
    /// Duration of the start.
    pub took: Duration,
}

impl Parts {
    /// Describes the node, of which the start began at an instant.
    pub(super) fn ready(&self, idents: &[StoreIdent], started: Instant) -> Ready {
        Ready {
            address: self.addresses.for_clients().to_owned(),
            cluster: self.cluster,
            stores: idents.iter().map(|ident| ident.store).collect(),
            copies: copies(&self.stores),
            nodes: self.members.addresses().len(),
            reach: self.access.reach(),
            took: started.elapsed(),
        }
    }
}

/// Returns the fewest and the most voters of a data region that has a replica here.
fn copies(stores: &Stores) -> Option<(usize, usize)> {
    let regions = stores.all().into_iter().flat_map(|store| store.readers().all());
    let data = regions.filter(|region| region.kind == RegionKind::Data);
    let voters = |region: Arc<Region>| {
        region.peers.iter().filter(|peer| peer.role != PeerRole::Learner).count()
    };
    data.map(voters).fold(None, |range, count| match range {
        None => Some((count, count)),
        Some((least, most)) => Some((count.min(least), count.max(most))),
    })
}
