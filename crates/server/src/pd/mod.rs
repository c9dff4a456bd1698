//! PD's service as clients use it: members of the cluster, locations of regions and stores. Every
//! node answers; one that does not lead the placement group forwards to the leader.

use crate::access::Rights;
use crate::members::Members;
use crate::placement::PlacementService;
use crate::port::RAW_CALLS_ONLY;
use crate::tasks::next_until;
use crate::transport::BoxFuture;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use stele_placement::RegionInfo;
use stele_proto::keyspacepb::keyspace_server::Keyspace;
use stele_proto::meta_storagepb::meta_storage_server::MetaStorage;
use stele_proto::pdpb::pd_server::Pd;
use stele_proto::pdpb::{Member, PeerStats, Region, ResponseHeader, *};
use stele_proto::stele::control::v1::{Label, ListStoresRequest, StoreInfo, StoreState};
use stele_proto::{keyspacepb, meta_storagepb, metapb};
use stele_types::{ClusterId, KeyRange, RegionId};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub(crate) struct PdService {
    cluster: ClusterId,
    placement: Arc<PlacementService>,
    members: Arc<Members>,
    /// Turns true when the node stops.
    stop: watch::Receiver<bool>,
}

type RpcResult<T> = Result<Response<T>, Status>;
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

const QUERY_REGION: &str = "/pdpb.PD/QueryRegion";

/// Answers that may wait for a slow reader.
const ANSWERS_MAX: usize = 16;

impl PdService {
    pub(crate) fn new(
        cluster: ClusterId,
        placement: Arc<PlacementService>,
        members: Arc<Members>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self { cluster, placement, members, stop }
    }

    fn check(&self, header: Option<&RequestHeader>) -> Result<(), Status> {
        let requested = header.map_or(0, |header| header.cluster_id);
        if requested == 0 || requested == self.cluster.0 {
            return Ok(());
        }
        let text = format!("mismatch cluster id, need {} but got {requested}", self.cluster);
        Err(Status::failed_precondition(text))
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(header(self.cluster))
    }

    /// Returns the answer about a region; without a region the client retries.
    fn region_response(&self, info: Option<RegionInfo>) -> GetRegionResponse {
        let mut response = GetRegionResponse { header: self.header(), ..Default::default() };
        if let Some(info) = info {
            let entry = region_entry(&info);
            response.region = entry.region;
            response.leader = entry.leader;
            response.down_peers = entry.down_peers;
            response.pending_peers = entry.pending_peers;
        }
        response
    }

    async fn query(&self, request: QueryRegionRequest) -> Result<QueryRegionResponse, Status> {
        self.check(request.header.as_ref())?;
        let mut response = QueryRegionResponse { header: self.header(), ..Default::default() };
        let found = &mut response.regions_by_id;
        let mut record = |info: Option<RegionInfo>| {
            let Some(info) = info else { return 0 };
            let id = info.region.id.0;
            let entry = region_entry(&info);
            found.entry(id).or_insert(RegionResponse {
                region: entry.region,
                leader: entry.leader,
                down_peers: entry.down_peers,
                pending_peers: entry.pending_peers,
            });
            id
        };
        for id in &request.ids {
            record(self.placement.region_by_id(RegionId(*id)).await?);
        }
        for key in &request.keys {
            let id = record(self.placement.region_by_key(key).await?);
            response.key_id_map.push(id);
        }
        for key in &request.prev_keys {
            let id = record(self.placement.previous_region(key).await?);
            response.prev_key_id_map.push(id);
        }
        Ok(response)
    }

    async fn stores_of(&self, ids: Vec<u64>) -> Result<Vec<StoreInfo>, Status> {
        let request = ListStoresRequest { ids, ..Default::default() };
        Ok(self.placement.list_stores(request).await?.stores)
    }

    /// Invariant: clients get the address for clients of each node, and no other.
    /// Tests: `clients_get_the_address_of_listen_and_nodes_that_of_peer_listen`.
    fn store_meta(&self, info: &StoreInfo) -> metapb::Store {
        // Before a node's first report only its own list has its address for clients.
        let for_clients = match info.client_address.is_empty() {
            true => self.members.client_address_of(&info.address),
            false => info.client_address.clone(),
        };
        // bug server.clients_sent_to_peers: `for_clients` is `info.address.clone()`
        store_meta(info, for_clients)
    }
}

/// Converts PD's limit: 0 and less mean all.
fn at_most(limit: i32) -> usize {
    usize::try_from(limit).unwrap_or(0)
}

/// Answers each request of a stream in order, until its client ends it, one fails, or `stop` turns true.
fn in_order<Q, A, F>(
    mut requests: Streaming<Q>,
    mut stop: watch::Receiver<bool>,
    answer: impl Fn(Q) -> F + Send + 'static,
) -> Replies<A>
where
    Q: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let (answers, out) = mpsc::channel(ANSWERS_MAX);
    tokio::spawn(async move {
        while let Some(Ok(request)) = next_until(&mut requests, &mut stop).await {
            let result = answer(request).await;
            let failed = result.is_err();
            if answers.send(result).await.is_err() || failed {
                return;
            }
        }
    });
    Box::pin(ReceiverStream::new(out))
}

#[tonic::async_trait]
impl Pd for PdService {
    async fn get_members(&self, _: Request<GetMembersRequest>) -> RpcResult<GetMembersResponse> {
        let addresses = self.members.client_addresses();
        let members: Vec<Member> = addresses.iter().map(|at| member(at)).collect();
        let leader = self.placement.leader_address();
        let leader = leader.map(|address| member(&self.members.client_address_of(&address)));
        let leader = leader.or_else(|| members.first().cloned());
        Ok(Response::new(GetMembersResponse {
            header: self.header(),
            members,
            etcd_leader: leader.clone(),
            leader,
        }))
    }

    async fn get_cluster_info(
        &self,
        _: Request<GetClusterInfoRequest>,
    ) -> RpcResult<GetClusterInfoResponse> {
        Ok(Response::new(GetClusterInfoResponse {
            header: self.header(),
            service_modes: vec![ServiceMode::PdSvcMode as i32],
            tso_urls: Vec::new(),
        }))
    }

    async fn get_region(&self, request: Request<GetRegionRequest>) -> RpcResult<GetRegionResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let info = self.placement.region_by_key(&request.region_key).await?;
        Ok(Response::new(self.region_response(info)))
    }

    async fn get_prev_region(
        &self,
        request: Request<GetRegionRequest>,
    ) -> RpcResult<GetRegionResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let info = self.placement.previous_region(&request.region_key).await?;
        Ok(Response::new(self.region_response(info)))
    }

    async fn get_region_by_id(
        &self,
        request: Request<GetRegionByIdRequest>,
    ) -> RpcResult<GetRegionResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let info = self.placement.region_by_id(RegionId(request.region_id)).await?;
        Ok(Response::new(self.region_response(info)))
    }

    type QueryRegionStream = Replies<QueryRegionResponse>;

    async fn query_region(
        &self,
        requests: Request<Streaming<QueryRegionRequest>>,
    ) -> RpcResult<Self::QueryRegionStream> {
        let (service, rights) = (self.clone(), requests.extensions().get::<Rights>().cloned());
        let answer = move |request| -> BoxFuture<'static, _> {
            // They may have changed since the stream began.
            let denied = rights.as_ref().and_then(|rights| rights.check(QUERY_REGION).err());
            let service = service.clone();
            Box::pin(async move {
                match denied {
                    Some(denied) => Err(Status::permission_denied(denied.to_string())),
                    None => service.query(request).await,
                }
            })
        };
        Ok(Response::new(in_order(requests.into_inner(), self.stop.clone(), answer)))
    }

    async fn scan_regions(
        &self,
        request: Request<ScanRegionsRequest>,
    ) -> RpcResult<ScanRegionsResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let range = KeyRange { start: request.start_key, end: request.end_key };
        let found = self.placement.scan_regions(&range, at_most(request.limit)).await?;
        let regions: Vec<Region> = found.iter().map(region_entry).collect();
        Ok(Response::new(ScanRegionsResponse {
            header: self.header(),
            region_metas: regions.iter().filter_map(|entry| entry.region.clone()).collect(),
            leaders: regions.iter().map(|entry| entry.leader.unwrap_or_default()).collect(),
            regions,
        }))
    }

    async fn batch_scan_regions(
        &self,
        request: Request<BatchScanRegionsRequest>,
    ) -> RpcResult<BatchScanRegionsResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let range = |range: &stele_proto::pdpb::KeyRange| KeyRange {
            start: range.start_key.clone(),
            end: range.end_key.clone(),
        };
        let ranges: Vec<KeyRange> = request.ranges.iter().map(range).collect();
        let (limit, contain_all) = (at_most(request.limit), request.contain_all_key_range);
        let found = self.placement.batch_scan_regions(&ranges, limit, contain_all).await?;
        let mut header = header(self.cluster);
        if found.is_none() {
            header.error = Some(Error {
                r#type: ErrorType::RegionsNotContainAllKeyRange as i32,
                message: "some keys of the ranges are in no known region".to_owned(),
            });
        }
        let regions = found.iter().flatten().map(region_entry).collect();
        Ok(Response::new(BatchScanRegionsResponse { header: Some(header), regions }))
    }

    async fn get_store(&self, request: Request<GetStoreRequest>) -> RpcResult<GetStoreResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let id = request.store_id;
        let info = self.stores_of(vec![id]).await?.into_iter().next();
        let mut header = header(self.cluster);
        if info.is_none() {
            let message = format!("invalid store ID {id}, not found");
            header.error = Some(Error { r#type: ErrorType::Unknown as i32, message });
        }
        let store = info.map(|info| self.store_meta(&info));
        Ok(Response::new(GetStoreResponse { header: Some(header), store }))
    }

    async fn get_all_stores(
        &self,
        request: Request<GetAllStoresRequest>,
    ) -> RpcResult<GetAllStoresResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let stores = self.stores_of(Vec::new()).await?;
        let stores = stores.iter().map(|info| self.store_meta(info)).collect();
        Ok(Response::new(GetAllStoresResponse { header: self.header(), stores }))
    }

    type TsoStream = Replies<TsoResponse>;

    async fn tso(&self, requests: Request<Streaming<TsoRequest>>) -> RpcResult<Self::TsoStream> {
        // Clients open the stream when they start, and raw ones never use it.
        let refuse = |_: TsoRequest| {
            let text = format!("timestamps are not supported: {RAW_CALLS_ONLY}");
            std::future::ready(Err(Status::unimplemented(text)))
        };
        Ok(Response::new(in_order(requests.into_inner(), self.stop.clone(), refuse)))
    }
}

#[tonic::async_trait]
impl MetaStorage for PdService {
    /// Returns an empty answer: nothing is stored. Without it clients retry for five seconds.
    async fn get(
        &self,
        _: Request<meta_storagepb::GetRequest>,
    ) -> RpcResult<meta_storagepb::GetResponse> {
        let header =
            meta_storagepb::ResponseHeader { cluster_id: self.cluster.0, ..Default::default() };
        let header = Some(header);
        Ok(Response::new(meta_storagepb::GetResponse { header, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl Keyspace for PdService {
    /// Returns the default key space, the only one.
    async fn load_keyspace(
        &self,
        request: Request<keyspacepb::LoadKeyspaceRequest>,
    ) -> RpcResult<keyspacepb::LoadKeyspaceResponse> {
        let name = request.into_inner().name;
        if name != "DEFAULT" && !name.is_empty() {
            return Err(Status::not_found(format!("key space `{name}` does not exist")));
        }
        let keyspace = keyspacepb::KeyspaceMeta { name, ..Default::default() };
        Ok(Response::new(keyspacepb::LoadKeyspaceResponse {
            header: self.header(),
            keyspace: Some(keyspace),
        }))
    }
}

/// Version that stores report: clients derive features from TiKV's releases.
const TIKV_VERSION: &str = "8.5.0";

fn header(cluster: ClusterId) -> ResponseHeader {
    ResponseHeader { cluster_id: cluster.0, error: None }
}

/// Converts a node to a member of PD. Its id is derived from its address: ids must differ and not
/// be 0.
fn member(address: &str) -> Member {
    let url = format!("http://{address}");
    let id = stele_types::checksum::crc32c(address.as_bytes());
    Member {
        name: address.to_owned(),
        member_id: u64::from(id) | 1 << 32,
        peer_urls: vec![url.clone()],
        client_urls: vec![url],
    }
}

fn region_entry(info: &RegionInfo) -> Region {
    let peer_of = |id| info.region.peer(id).map(Into::into);
    Region {
        region: Some((&info.region).into()),
        leader: info.leader.as_ref().map(Into::into),
        down_peers: info
            .down
            .iter()
            .map(|down| PeerStats { peer: peer_of(down.peer), down_seconds: down.seconds })
            .collect(),
        pending_peers: info.pending.iter().filter_map(|id| peer_of(*id)).collect(),
    }
}

fn store_label(label: &Label) -> metapb::StoreLabel {
    metapb::StoreLabel { key: label.key.clone(), value: label.value.clone() }
}

fn store_meta(info: &StoreInfo, for_clients: String) -> metapb::Store {
    let stats = info.stats.as_ref();
    // A store without an id gets 0; clients need only its address.
    let id = stats.map_or(0, |stats| stats.id);
    let state = StoreState::try_from(info.state).unwrap_or(StoreState::Unspecified);
    let (state, node_state) = match state {
        StoreState::Removed => (metapb::StoreState::Tombstone, metapb::NodeState::Removed),
        StoreState::Removing => (metapb::StoreState::Offline, metapb::NodeState::Removing),
        StoreState::Preparing => (metapb::StoreState::Up, metapb::NodeState::Preparing),
        _ => (metapb::StoreState::Up, metapb::NodeState::Serving),
    };
    metapb::Store {
        id,
        address: for_clients.clone(),
        peer_address: info.address.clone(),
        status_address: for_clients,
        state: state as i32,
        node_state: node_state as i32,
        labels: info.labels.iter().map(store_label).collect(),
        version: TIKV_VERSION.to_owned(),
        start_timestamp: info.started_at as i64,
        ..metapb::Store::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_a_store_are_in_the_answers_of_pd() {
        let label = |key: &str, value: &str| Label { key: key.to_owned(), value: value.to_owned() };
        let labels = vec![label("zone", "z1"), label("rack", "r7")];
        let info = StoreInfo { address: "a:1".to_owned(), labels, ..StoreInfo::default() };
        let found = store_meta(&info, "a:1".to_owned()).labels;
        let found: Vec<_> = found.iter().map(|it| (it.key.as_str(), it.value.as_str())).collect();
        assert_eq!(found, [("zone", "z1"), ("rack", "r7")]);
    }
}
