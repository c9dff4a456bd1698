//! PD protocol of the fake cluster.

use super::{CLUSTER, Service, State, peer, region};
use bytes::Bytes;
use std::pin::Pin;
use stele_proto::metapb;
use stele_proto::pdpb::pd_server::Pd;
use stele_proto::pdpb::*;
use stele_types::Region as Descriptor;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

type RpcResult<T> = Result<Response<T>, Status>;
type Never<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn header() -> Option<ResponseHeader> {
    Some(ResponseHeader { cluster_id: CLUSTER, error: None })
}

fn of_region(state: &State, found: Option<&Descriptor>) -> GetRegionResponse {
    let leader = found.and_then(|found| state.leader(found)).as_ref().map(peer);
    GetRegionResponse {
        header: header(),
        region: found.map(region),
        leader,
        ..GetRegionResponse::default()
    }
}

fn known(state: &State) -> &[Descriptor] {
    state.pd_regions.as_deref().unwrap_or(&state.regions)
}

fn store(state: &State, id: u64) -> Option<metapb::Store> {
    let node = state.nodes.iter().find(|node| node.stores.contains(&id))?;
    Some(metapb::Store { id, address: node.address.clone(), ..metapb::Store::default() })
}

#[tonic::async_trait]
impl Pd for Service {
    type QueryRegionStream = Never<QueryRegionResponse>;
    type TsoStream = Never<TsoResponse>;

    async fn get_members(&self, _: Request<GetMembersRequest>) -> RpcResult<GetMembersResponse> {
        let state = self.state();
        let member = |(at, node): (usize, &super::Node)| Member {
            name: format!("n{}", at + 1),
            member_id: at as u64 + 1,
            peer_urls: vec![format!("http://{}", node.address)],
            client_urls: vec![format!("http://{}", node.address)],
        };
        let members: Vec<Member> = state.nodes.iter().enumerate().map(member).collect();
        let leader = members.get(state.placement).cloned();
        let header = header();
        Ok(Response::new(GetMembersResponse { header, members, leader, etcd_leader: None }))
    }

    async fn get_region(&self, request: Request<GetRegionRequest>) -> RpcResult<GetRegionResponse> {
        let state = self.state();
        let key = request.into_inner().region_key;
        let found = known(&state).iter().find(|region| region.range.contains(&key));
        Ok(Response::new(of_region(&state, found)))
    }

    async fn get_prev_region(
        &self,
        request: Request<GetRegionRequest>,
    ) -> RpcResult<GetRegionResponse> {
        let state = self.state();
        let key = request.into_inner().region_key;
        let at = known(&state).iter().find(|region| region.range.contains(&key));
        let start = at.map(|region| region.range.start.clone()).unwrap_or_default();
        let before = known(&state).iter().find(|r| !start.is_empty() && r.range.end == start);
        Ok(Response::new(of_region(&state, before)))
    }

    async fn get_store(&self, request: Request<GetStoreRequest>) -> RpcResult<GetStoreResponse> {
        let id = request.into_inner().store_id;
        let store = store(&self.state(), id);
        let mut header = header();
        if store.is_none() {
            let message = format!("invalid store ID {id}, not found");
            header.as_mut().unwrap().error =
                Some(Error { r#type: ErrorType::Unknown as i32, message });
        }
        Ok(Response::new(GetStoreResponse { header, store }))
    }

    async fn get_all_stores(
        &self,
        _: Request<GetAllStoresRequest>,
    ) -> RpcResult<GetAllStoresResponse> {
        let state = self.state();
        let ids = state.nodes.iter().flat_map(|node| node.stores.iter());
        let stores = ids.filter_map(|id| store(&state, *id)).collect();
        Ok(Response::new(GetAllStoresResponse { header: header(), stores }))
    }

    async fn get_cluster_info(
        &self,
        _: Request<GetClusterInfoRequest>,
    ) -> RpcResult<GetClusterInfoResponse> {
        Err(Status::unimplemented(""))
    }

    async fn get_region_by_id(
        &self,
        _: Request<GetRegionByIdRequest>,
    ) -> RpcResult<GetRegionResponse> {
        Err(Status::unimplemented(""))
    }

    async fn query_region(
        &self,
        _: Request<Streaming<QueryRegionRequest>>,
    ) -> RpcResult<Self::QueryRegionStream> {
        Err(Status::unimplemented(""))
    }

    async fn scan_regions(&self, _: Request<ScanRegionsRequest>) -> RpcResult<ScanRegionsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn batch_scan_regions(
        &self,
        _: Request<BatchScanRegionsRequest>,
    ) -> RpcResult<BatchScanRegionsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn tso(&self, _: Request<Streaming<TsoRequest>>) -> RpcResult<Self::TsoStream> {
        Err(Status::unimplemented(""))
    }
}

pub(super) fn highest() -> Bytes {
    Bytes::from(vec![u8::MAX; 9000])
}
