//! Where regions and stores are: asked of any node, remembered by the caller.

use crate::call::{GetPrevRegion, GetRegion, PdCall, region_request};
use crate::connections::{Connections, root_cause};
use crate::convert;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use stele_proto::{metapb, pdpb};
use stele_types::limits::USER_KEY_BYTES_MAX;
use stele_types::{Peer, Region, StoreId};
use tonic::{Code, Status};

/// Look-ups are answered from memory: a node that takes longer is passed over.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Metadata of a refusal: where to ask in place of this node.
const LEADER: &str = "stele-leader";
/// And: the same call may succeed after so many milliseconds, at most these.
const RETRY: &str = "stele-retry-ms";
const RETRY_MS_MAX: u64 = 5_000;

/// The directory's nodes and what they said of stores.
pub struct PdRpcClient {
    connections: Arc<Connections>,
    /// `host:port` of nodes.
    addresses: RwLock<Vec<String>>,
    /// Which of them answered last.
    preferred: AtomicUsize,
    /// 0: not known yet.
    cluster: AtomicU64,
    stores: Mutex<HashMap<StoreId, String>>,
}

/// What was said of a region.
pub struct Found {
    /// The region.
    pub region: Region,
    /// Its leader, if the node knows it, else a peer that is not down.
    pub leader: Option<Peer>,
}

impl PdRpcClient {
    /// Asks these nodes from now on.
    pub fn new(connections: Arc<Connections>, addresses: Vec<String>) -> Self {
        Self {
            connections,
            addresses: RwLock::new(addresses),
            preferred: AtomicUsize::new(0),
            cluster: AtomicU64::new(0),
            stores: Mutex::default(),
        }
    }

    /// The cluster's number; 0: no node has answered yet.
    pub fn cluster(&self) -> u64 {
        self.cluster.load(Relaxed)
    }

    /// Nodes to ask, the one that answered last first.
    pub fn addresses(&self) -> Vec<String> {
        let mut addresses = self.addresses.read().clone();
        let first = self.preferred.load(Relaxed) % addresses.len().max(1);
        addresses.rotate_left(first);
        addresses
    }

    /// Learns the cluster's number and all its nodes. An error is in words.
    pub async fn refresh(&self) -> Result<(), String> {
        let response = self.ask(pdpb::GetMembersRequest::default()).await?;
        let mut heard: Vec<String> = Vec::new();
        for member in response.leader.iter().chain(&response.members) {
            heard.extend(member.client_urls.first().map(|url| convert::host_port(url)));
        }
        let mut addresses = self.addresses.write();
        for address in heard {
            if !address.is_empty() && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(())
    }

    /// The region that holds `key`.
    pub async fn region(&self, key: Bytes) -> Result<Option<Found>, String> {
        Ok(found(self.ask(GetRegion(region_request(key))).await?))
    }

    /// The region that holds the keys right below `end`; an empty `end` is no bound.
    pub async fn region_below(&self, end: Bytes) -> Result<Option<Found>, String> {
        if end.is_empty() {
            // Above every key a region can begin with.
            return self.region(Bytes::from(vec![u8::MAX; USER_KEY_BYTES_MAX + 1])).await;
        }
        match self.region(end.clone()).await? {
            Some(at) if at.region.range.start == end => {
                Ok(found(self.ask(GetPrevRegion(region_request(end))).await?))
            }
            other => Ok(other),
        }
    }

    /// `host:port` of a store. `Ok(None)`: it is no longer a member.
    pub async fn store(&self, id: StoreId) -> Result<Option<String>, String> {
        if let Some(address) = self.stores.lock().get(&id) {
            return Ok(Some(address.clone()));
        }
        let request = pdpb::GetStoreRequest { store_id: id.0, ..pdpb::GetStoreRequest::default() };
        let asked = self.ask(request).await;
        let Some(store) = asked?.store.filter(is_member) else { return Ok(None) };
        let address = convert::host_port(&store.address);
        self.stores.lock().insert(id, address.clone());
        Ok(Some(address))
    }

    /// Learns where every store is.
    pub async fn refresh_stores(&self) -> Result<(), String> {
        let request = pdpb::GetAllStoresRequest { exclude_tombstone_stores: true, header: None };
        let stores = self.ask(request).await?.stores.into_iter().filter(is_member);
        let known = stores.map(|store| (StoreId(store.id), convert::host_port(&store.address)));
        self.stores.lock().extend(known);
        Ok(())
    }

    /// Forgets where a store is.
    pub fn forget_store(&self, id: StoreId) {
        self.stores.lock().remove(&id);
    }

    /// Asks one node after the other until one answers.
    async fn ask<C: PdCall>(&self, mut call: C) -> Result<C::Response, String> {
        call.address(self.cluster());
        let mut addresses = self.addresses();
        let mut reasons: Vec<String> = Vec::new();
        let mut at = 0;
        // Leaders named on the way join the list, each once.
        while let Some(address) = addresses.get(at).cloned() {
            at += 1;
            match self.ask_one(&address, call.clone()).await {
                Ok(response) => {
                    self.prefer(&address);
                    return Ok(response);
                }
                Err(Refused { why, leader }) => {
                    reasons.push(why);
                    if let Some(leader) = leader.filter(|leader| !addresses.contains(leader)) {
                        addresses.insert(at, leader);
                    }
                }
            }
        }
        Err(reasons.join("; "))
    }

    async fn ask_one<C: PdCall>(&self, address: &str, call: C) -> Result<C::Response, Refused> {
        let connection = self.connections.get(address).await.map_err(Refused::because)?;
        let answer = tokio::time::timeout(ANSWER_WITHIN, call.send(&connection));
        let mut response = match answer.await {
            Ok(Ok(response)) => response,
            Ok(Err(status)) => {
                if is_broken(&status) {
                    self.connections.forget(&connection);
                }
                let why = format!("{address}: {}", status_text(&status));
                return Err(Refused { why, leader: leader_of(&status) });
            }
            Err(_) => {
                self.connections.forget(&connection);
                return Err(Refused::because(format!("{address}: no answer")));
            }
        };
        let header = C::header(&mut response).unwrap_or_default();
        if let Some(error) = header.error.filter(|error| error.r#type != pdpb::ErrorType::Ok as i32)
        {
            // Of a store that is not there: an answer like any other.
            if !error.message.contains("not found") {
                return Err(Refused::because(format!("{address}: {}", error.message)));
            }
        }
        let known = self.cluster.compare_exchange(0, header.cluster_id, Relaxed, Relaxed);
        match known {
            Err(known) if header.cluster_id != 0 && known != header.cluster_id => {
                let theirs = header.cluster_id;
                let why = format!("{address} is of cluster {theirs}, not of {known}");
                Err(Refused::because(why))
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

/// Why a node did not answer, and who might.
struct Refused {
    why: String,
    leader: Option<String>,
}

impl Refused {
    fn because(why: String) -> Self {
        Self { why, leader: None }
    }
}

fn found(response: pdpb::GetRegionResponse) -> Option<Found> {
    let region = convert::region(response.region.as_ref()?);
    let is_down = |peer: &&Peer| {
        let ids = response.down_peers.iter().filter_map(|down| down.peer.as_ref());
        ids.into_iter().any(|down| down.id == peer.id.0)
    };
    let leader = response.leader.as_ref().filter(|leader| leader.id != 0).map(convert::peer);
    let leader = leader.or_else(|| region.peers.iter().find(|peer| !is_down(peer)).copied());
    Some(Found { region, leader })
}

fn is_member(store: &metapb::Store) -> bool {
    store.state != metapb::StoreState::Tombstone as i32
        && store.node_state != metapb::NodeState::Removed as i32
}

/// Whether a status says that the connection is of no more use, not that the call was refused.
pub fn is_broken(status: &Status) -> bool {
    let lost = [Code::Unavailable, Code::Unknown, Code::Cancelled, Code::Internal];
    lost.contains(&status.code())
        && leader_of(status).is_none()
        && retry_after(status).is_none()
        && !is_not_leader(status)
}

/// How long to wait before the same call is made again, if the node said so.
pub fn retry_after(status: &Status) -> Option<Duration> {
    let ms: u64 = status.metadata().get(RETRY)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(ms.min(RETRY_MS_MAX)))
}

/// Whether the node says that another one must be asked.
pub fn is_not_leader(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && (status.message().contains("not leader") || status.message().contains("no leader"))
}

/// The address named in a refusal.
pub fn leader_of(status: &Status) -> Option<String> {
    let address = status.metadata().get(LEADER)?.to_str().ok()?;
    Some(convert::host_port(address)).filter(|address| !address.is_empty())
}

/// A status in words.
pub fn status_text(status: &Status) -> String {
    let source = std::error::Error::source(status).map(root_cause);
    match source.filter(|_| status.message() == "transport error") {
        Some(cause) => cause,
        None if status.message().is_empty() => format!("{:?}", status.code()),
        None => status.message().to_owned(),
    }
}
