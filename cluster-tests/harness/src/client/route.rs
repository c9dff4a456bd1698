//! Cache of regions and their presumed leaders.

use crate::cluster::channels::Channels;
use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use stele_proto::kvrpcpb::Context;
use stele_proto::{errorpb, metapb, pdpb};

const LOOKUP_LIMIT: Duration = Duration::from_millis(700);
/// Consecutive failures after which the region is looked up again.
const FAILURES_MAX: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub region: metapb::Region,
    /// Index of the presumed leader in the region's peers.
    pub leader: usize,
    failures: u32,
}

impl Route {
    fn new(region: metapb::Region, leader: Option<&metapb::Peer>) -> Self {
        let found =
            leader.and_then(|leader| region.peers.iter().position(|peer| peer.id == leader.id));
        Self { region, leader: found.unwrap_or_default(), failures: 0 }
    }

    pub(crate) fn context(&self, peer: &metapb::Peer, replica_read: bool) -> Context {
        Context {
            region_id: self.region.id,
            region_epoch: self.region.region_epoch,
            peer: Some(*peer),
            replica_read,
            ..Context::default()
        }
    }

    /// Returns whether the region holds all keys from `start` to `end`, exclusive.
    pub(crate) fn covers(&self, start: &[u8], end: &[u8]) -> bool {
        self.region.start_key <= start
            && !end.is_empty()
            && (self.region.end_key.is_empty() || end <= &*self.region.end_key)
    }
}

#[derive(Debug)]
pub(super) struct Routes {
    channels: Arc<Channels>,
    /// Nodes for lookups, the preferred one first.
    nodes: Vec<String>,
    failed_lookups: usize,
    by_start: BTreeMap<Bytes, Route>,
    stores: HashMap<u64, String>,
}

impl Routes {
    pub(super) fn new(channels: Arc<Channels>, nodes: Vec<String>) -> Self {
        Self {
            channels,
            nodes,
            failed_lookups: 0,
            by_start: BTreeMap::new(),
            stores: HashMap::new(),
        }
    }

    pub(super) async fn of(&mut self, key: &[u8]) -> Result<Route> {
        if let Some(route) = self.known(key) {
            return Ok(route.clone());
        }
        let request = pdpb::GetRegionRequest {
            region_key: Bytes::copy_from_slice(key),
            ..Default::default()
        };
        let mut client = self.channels.placement(self.node()?, LOOKUP_LIMIT)?;
        let answer = match client.get_region(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) => {
                self.failed_lookups += 1;
                bail!("get region: {status}");
            }
        };
        let Some(region) = answer.region else {
            self.failed_lookups += 1;
            bail!("get region: not found");
        };
        ensure!(!region.peers.is_empty(), "a region without peers");
        let route = Route::new(region, answer.leader.as_ref());
        self.by_start.insert(route.region.start_key.clone(), route.clone());
        Ok(route)
    }

    pub(super) async fn address(&mut self, store: u64) -> Result<String> {
        if let Some(address) = self.stores.get(&store) {
            return Ok(address.clone());
        }
        let request = pdpb::GetStoreRequest { store_id: store, ..Default::default() };
        let mut client = self.channels.placement(self.node()?, LOOKUP_LIMIT)?;
        let answer = client.get_store(request).await.inspect_err(|_| self.failed_lookups += 1)?;
        let found = answer.into_inner().store.context("no such store")?;
        self.stores.insert(store, found.address.clone());
        Ok(found.address)
    }

    /// Corrects the cache after a region error.
    pub(super) fn learn(&mut self, key: &[u8], error: &errorpb::Error) {
        if let Some(not_leader) = &error.not_leader {
            return match &not_leader.leader {
                Some(leader) => self.set_leader(key, leader.id),
                None => self.try_next_peer(key),
            };
        }
        self.forget(key);
        if let Some(mismatch) = &error.epoch_not_match {
            for region in mismatch.current_regions.iter().filter(|one| !one.peers.is_empty()) {
                self.by_start.insert(region.start_key.clone(), Route::new(region.clone(), None));
            }
        }
    }

    /// Makes the next peer the presumed leader, because this one did not respond.
    pub(super) fn try_next_peer(&mut self, key: &[u8]) {
        let Some(route) = self.known(key) else { return };
        route.leader = (route.leader + 1) % route.region.peers.len().max(1);
        route.failures += 1;
        if route.failures >= FAILURES_MAX {
            self.forget(key);
            self.failed_lookups += 1;
            // A node may have another address since.
            self.stores.clear();
        }
    }

    /// Clears the failures, because the peer responded.
    pub(super) fn succeed(&mut self, key: &[u8]) {
        if let Some(route) = self.known(key) {
            route.failures = 0;
        }
    }

    fn set_leader(&mut self, key: &[u8], peer: u64) {
        let Some(route) = self.known(key) else { return };
        match route.region.peers.iter().position(|one| one.id == peer) {
            Some(at) if at != route.leader => route.leader = at,
            Some(_) => self.try_next_peer(key),
            None => self.forget(key),
        }
    }

    fn forget(&mut self, key: &[u8]) {
        let start = self.known(key).map(|route| route.region.start_key.clone());
        if let Some(start) = start {
            self.by_start.remove(&start);
        }
    }

    fn known(&mut self, key: &[u8]) -> Option<&mut Route> {
        let upto = (std::ops::Bound::Unbounded, std::ops::Bound::Included(key));
        let (_, route) = self.by_start.range_mut::<[u8], _>(upto).next_back()?;
        let end = &route.region.end_key;
        (end.is_empty() || key < &end[..]).then_some(route)
    }

    fn node(&self) -> Result<&str> {
        let at = self.failed_lookups % self.nodes.len().max(1);
        Ok(self.nodes.get(at).context("no node to call")?)
    }
}
