//! PD's service as clients use it: members of the cluster, locations of regions and stores. Every
//! node answers; one that does not lead the placement group forwards to the leader.

mod answers;

use crate::members::Members;
use crate::placement::PlacementService;
use crate::tasks::next_until;
use crate::transport::BoxFuture;
use crate::unsupported::RAW_CALLS_ONLY;
use answers::{header, region_entry, store_meta};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use stele_placement::RegionInfo;
use stele_proto::keyspacepb::{self, keyspace_server::Keyspace};
use stele_proto::meta_storagepb::{self, meta_storage_server::MetaStorage};
use stele_proto::pdpb::pd_server::Pd;
use stele_proto::pdpb::*;
use stele_proto::stele::control::v1::{ListStoresRequest, StoreInfo};
use stele_types::{ClusterId, KeyRange, RegionId};
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// PD service of one node.
#[derive(Clone)]
pub struct PdService {
    cluster: ClusterId,
    placement: Arc<PlacementService>,
    members: Arc<Members>,
    /// Turns true when the node stops.
    stop: watch::Receiver<bool>,
}

type RpcResult<T> = Result<Response<T>, Status>;
type Replies<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Answers that may wait for a slow reader.
const ANSWERS_MAX: usize = 16;

impl PdService {
    /// Creates the service of one cluster's node.
    pub fn new(
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
        let addresses = self.members.addresses();
        let members: Vec<Member> = addresses.iter().map(|at| answers::member(at)).collect();
        let leader = self.placement.leader_address();
        let leader = leader.map(|address| answers::member(&address));
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
        let service = self.clone();
        let answer = move |request| -> BoxFuture<'static, _> {
            let service = service.clone();
            Box::pin(async move { service.query(request).await })
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
        let store = info.as_ref().map(store_meta);
        Ok(Response::new(GetStoreResponse { header: Some(header), store }))
    }

    async fn get_all_stores(
        &self,
        request: Request<GetAllStoresRequest>,
    ) -> RpcResult<GetAllStoresResponse> {
        let request = request.into_inner();
        self.check(request.header.as_ref())?;
        let stores = self.stores_of(Vec::new()).await?;
        let stores = stores.iter().map(store_meta).collect();
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
