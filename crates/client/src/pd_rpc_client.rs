//! Client of the PD protocol: locations of regions and stores, from any node.

use crate::call::{GetPrevRegion, GetRegion, PdCall, region_request};
use crate::connections::{Connections, root_cause};
use crate::delivery::Departure;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;
use stele_proto::{metapb, pdpb};
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{Peer, Region, StoreId, address};
use tonic::{Code, Status};

/// Time limit of a node for a lookup, which it serves from memory; the next node is tried after it.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Metadata key of a refusal: address of the node to call instead.
const LEADER: &str = "stele-leader";
/// Metadata key of a refusal: milliseconds after which the call may succeed, and their maximum.
const RETRY: &str = "stele-retry-ms";
const RETRY_MS_MAX: u64 = 5_000;

pub(crate) struct PdRpcClient {
    connections: Arc<Connections>,
    /// `host:port` of each node.
    addresses: RwLock<Vec<String>>,
    preferred: AtomicUsize,
    /// Cluster ID; 0 while unknown.
    cluster: AtomicU64,
    stores: Mutex<HashMap<StoreId, String>>,
}

pub(crate) struct Found {
    pub region: Region,
    /// Its leader if the node knows it, or else a peer that is not down.
    pub leader: Option<Peer>,
}

impl PdRpcClient {
    pub(crate) fn new(connections: Arc<Connections>, addresses: Vec<String>) -> Self {
        Self {
            connections,
            addresses: RwLock::new(addresses),
            preferred: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            stores: Mutex::default(),
        }
    }

    /// Returns the cluster ID; 0 until a node has responded.
    pub(crate) fn cluster(&self) -> u64 {
        self.cluster.load(Relaxed)
    }

    /// Returns the nodes to call; the one that responded last comes first.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let mut addresses = self.addresses.read().clone();
        let first = self.preferred.load(Relaxed) % addresses.len().max(1);
        addresses.rotate_left(first);
        addresses
    }

    /// Fetches the cluster ID and all nodes. The error is a text.
    pub(crate) async fn refresh(&self) -> Result<(), String> {
        let response = self.call(pdpb::GetMembersRequest::default()).await?;
        let mut received: Vec<String> = Vec::new();
        for member in response.leader.iter().chain(&response.members) {
            received.extend(member.client_urls.iter().find_map(|url| host_port(url)));
        }
        let mut addresses = self.addresses.write();
        for address in received {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(())
    }

    pub(crate) async fn region(&self, key: Bytes) -> Result<Option<Found>, String> {
        Ok(found(self.call(GetRegion(region_request(key))).await?))
    }

    /// Returns the region that holds the keys immediately below `end`; an empty `end` is unbounded.
    pub(crate) async fn region_below(&self, end: Bytes) -> Result<Option<Found>, String> {
        if end.is_empty() {
            // A key above any start key of a region.
            return self.region(Bytes::from(vec![u8::MAX; USER_KEY_BYTES_MAX + 1])).await;
        }
        match self.region(end.clone()).await? {
            Some(at) if at.region.range.start == end => {
                Ok(found(self.call(GetPrevRegion(region_request(end))).await?))
            }
            other => Ok(other),
        }
    }

    /// Returns `host:port` of a store; `Ok(None)` if it is no longer a member.
    pub(crate) async fn store(&self, id: StoreId) -> Result<Option<String>, String> {
        if let Some(address) = self.stores.lock().get(&id) {
            return Ok(Some(address.clone()));
        }
        let request = pdpb::GetStoreRequest { store_id: id.0, ..pdpb::GetStoreRequest::default() };
        let response = self.call(request).await;
        let Some(store) = response?.store.filter(is_member) else { return Ok(None) };
        let address = host_port(&store.address).ok_or_else(|| {
            format!("store {id} has no address to connect to: `{}`", store.address)
        })?;
        self.stores.lock().insert(id, address.clone());
        Ok(Some(address))
    }

    pub(crate) async fn refresh_stores(&self) -> Result<(), String> {
        let request = pdpb::GetAllStoresRequest { exclude_tombstone_stores: true, header: None };
        let stores = self.call(request).await?.stores.into_iter().filter(is_member);
        let known =
            stores.filter_map(|store| Some((StoreId(store.id), host_port(&store.address)?)));
        self.stores.lock().extend(known);
        Ok(())
    }

    /// Returns the stores of which the address is known, ascending.
    pub(crate) fn known_stores(&self) -> Vec<StoreId> {
        let mut stores: Vec<StoreId> = self.stores.lock().keys().copied().collect();
        stores.sort_unstable();
        stores
    }

    pub(crate) fn forget_store(&self, id: StoreId) {
        self.stores.lock().remove(&id);
    }

    async fn call<C: PdCall>(&self, mut call: C) -> Result<C::Response, String> {
        call.set_cluster(self.cluster());
        let mut addresses = self.addresses();
        let mut reasons: Vec<String> = Vec::new();
        let mut at = 0;
        // A leader that a node names is added to the list, at most once.
        while let Some(address) = addresses.get(at).cloned() {
            at += 1;
            match self.call_node(&address, call.clone()).await {
                Ok(response) => {
                    self.prefer(&address);
                    return Ok(response);
                }
                Err(Refused { reason, leader }) => {
                    reasons.push(reason);
                    if let Some(leader) = leader.filter(|leader| !addresses.contains(leader)) {
                        addresses.insert(at, leader);
                    }
                }
            }
        }
        Err(reasons.join("; "))
    }

    async fn call_node<C: PdCall>(&self, address: &str, call: C) -> Result<C::Response, Refused> {
        let connection = self.connections.get(address).await.map_err(Refused::without_leader)?;
        let departure = Departure::default();
        let answer = tokio::time::timeout(LOOKUP_TIMEOUT, call.send(&connection, &departure));
        let mut response = match answer.await {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => {
                if is_broken(&status) {
                    self.connections.forget(&connection);
                }
                let reason = format!("{address}: {}", status_text(&status));
                return Err(Refused { reason, leader: leader_of(&status) });
            }
            Err(_) => {
                self.connections.forget(&connection);
                return Err(Refused::without_leader(format!("{address}: no response")));
            }
        };
        let header = C::header(&mut response).unwrap_or_default();
        if let Some(error) = header.error.filter(|error| error.r#type != pdpb::ErrorType::Ok as i32)
        {
            // "Not found" for a store is a valid response.
            if !error.message.contains("not found") {
                return Err(Refused::without_leader(format!("{address}: {}", error.message)));
            }
        }
        let known = self.cluster.compare_exchange(0, header.cluster_id, Relaxed, Relaxed);
        match known {
            Err(known) if header.cluster_id != 0 && known != header.cluster_id => {
                let theirs = header.cluster_id;
                let reason = format!("{address} belongs to cluster {theirs}, not {known}");
                Err(Refused::without_leader(reason))
            }
            _ => Ok(response),
        }
    }

    fn prefer(&self, address: &str) {
        let addresses = self.addresses.read();
        if let Some(at) = addresses.iter().position(|known| known == address) {
            self.preferred.store(at, Relaxed);
        }
    }
}

struct Refused {
    reason: String,
    leader: Option<String>,
}

impl Refused {
    fn without_leader(reason: String) -> Self {
        Self { reason, leader: None }
    }
}

fn found(response: pdpb::GetRegionResponse) -> Option<Found> {
    let region = Region::from(response.region.as_ref()?);
    let is_down = |peer: &&Peer| {
        let ids = response.down_peers.iter().filter_map(|down| down.peer.as_ref());
        ids.into_iter().any(|down| down.id == peer.id.0)
    };
    let leader = response.leader.as_ref().filter(|leader| leader.id != 0).map(Into::into);
    let leader = leader.or_else(|| region.peers.iter().find(|peer| !is_down(peer)).copied());
    Some(Found { region, leader })
}

fn is_member(store: &metapb::Store) -> bool {
    store.state != metapb::StoreState::Tombstone as i32
        && store.node_state != metapb::NodeState::Removed as i32
}

/// Returns whether a status means that the connection failed, not that the node refused the call.
pub(crate) fn is_broken(status: &Status) -> bool {
    let connection_codes = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
    connection_codes.contains(&status.code())
        && leader_of(status).is_none()
        && retry_after(status).is_none()
        && !is_not_leader(status)
}

/// Returns the time to wait before the same call is made again, if the node set one.
pub(crate) fn retry_after(status: &Status) -> Option<Duration> {
    let ms: u64 = status.metadata().get(RETRY)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(ms.min(RETRY_MS_MAX)))
}

/// Returns whether the node refused the call because it is not the leader.
pub(crate) fn is_not_leader(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && (status.message().contains("not leader") || status.message().contains("no leader"))
}

pub(crate) fn leader_of(status: &Status) -> Option<String> {
    let address = status.metadata().get(LEADER)?.to_str().ok()?;
    host_port(address)
}

/// Returns the `host:port` that a node states for itself or for another one; `None` if it is none that
/// can be connected to.
fn host_port(address: &str) -> Option<String> {
    address::to_connect(address).ok().map(str::to_owned)
}

pub(crate) fn status_text(status: &Status) -> String {
    let source = std::error::Error::source(status).map(root_cause);
    match source.filter(|_| status.message() == "transport error") {
        Some(cause) => cause,
        None if status.message().is_empty() => format!("{:?}", status.code()),
        None => status.message().to_owned(),
    }
}
