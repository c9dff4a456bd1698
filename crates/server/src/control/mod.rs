//! Control service: cluster calls go to the placement group, calls about this node are answered
//! here.

mod changes;
mod moment;
mod replica;

pub use super::node::stopped_run::{KeepRun, summary_of};

use crate::access::first_caller;
use crate::config::{Config, LiveConfig, RELOADED, SETTINGS};
use crate::majorities::Majorities;
use crate::members::Members;
use crate::memory::{Arrived, RequestMemory};
use crate::placement::PlacementService;
use crate::store::StoreHandle;
use crate::stores::Stores;
use changes::note;
use std::sync::Arc;
use stele_proto::stele::control::v1::control_server::Control;
use stele_proto::stele::control::v1::*;
use stele_types::{MomentId, RegionId, StoreId};
use tonic::{Request, Response, Status};

pub(crate) struct ControlService {
    config: Arc<LiveConfig>,
    placement: Arc<PlacementService>,
    stores: Arc<Stores>,
    members: Arc<Members>,
    keeper: Arc<dyn KeepRun>,
    majorities: Arc<Majorities>,
}

type RpcResult<T> = Result<Response<T>, Status>;

impl ControlService {
    pub(crate) fn new(
        config: Arc<LiveConfig>,
        placement: Arc<PlacementService>,
        stores: Arc<Stores>,
        members: Arc<Members>,
        keeper: Arc<dyn KeepRun>,
        majorities: Arc<Majorities>,
    ) -> Self {
        Self { config, placement, stores, members, keeper, majorities }
    }

    fn check_cluster(&self, header: Option<RequestHeader>) -> Result<(), Status> {
        let cluster = self.placement.cluster();
        match header.is_some_and(|header| header.cluster_id == cluster.0) {
            true => Ok(()),
            false => {
                let text = format!("this node belongs to cluster {cluster}");
                Err(Status::failed_precondition(text))
            }
        }
    }

    /// Returns the store with this id; for 0, the one that holds the region.
    fn store(&self, store: u64, region: RegionId) -> Result<Arc<StoreHandle>, Status> {
        let found = match store {
            0 => self.stores.holding(region),
            id => self.stores.get(StoreId(id)),
        };
        found.ok_or_else(|| Status::not_found(format!("no store of this node has region {region}")))
    }

    fn known_members(&self) -> MembersResponse {
        MembersResponse {
            cluster_id: self.placement.cluster().0,
            members_version: self.members.version(),
            members: self.members.list(self.placement.leader_address().as_deref()),
        }
    }

    /// Returns the node's own settings; its configuration changes them.
    fn own_settings(&self) -> Vec<ConfigItem> {
        let config = self.config.get();
        let default = Config::default();
        let item = |setting: &crate::config::Setting| ConfigItem {
            key: setting.key.to_owned(),
            value: config.get(setting.key).unwrap_or_default(),
            default_value: default.get(setting.key).unwrap_or_default(),
            meaning: setting.meaning.to_owned(),
            unit: setting.unit.to_owned(),
            ..ConfigItem::default()
        };
        SETTINGS.iter().map(item).collect()
    }
}

fn memory_of<T>(request: &Request<T>) -> Result<Arc<RequestMemory>, Status> {
    let arrived = request.extensions().get::<Arc<Arrived>>();
    arrived
        .map(|arrived| arrived.take())
        .ok_or_else(|| Status::internal("a request without memory"))
}

/// Implements the service; the listed calls go to the placement group. The audit log has those that change something.
macro_rules! control {
    (
        { $($name:ident($request:ty) -> $response:ty = $method:ident;)* }
        changes { $($change:ident($changing:ty) -> $changed:ty = $by:ident;)* }
    ) => {
        #[tonic::async_trait]
        impl Control for ControlService {
            $(async fn $name(&self, request: Request<$request>) -> RpcResult<$response> {
                Ok(Response::new(self.placement.$method(request.into_inner()).await?))
            })*

            $(async fn $change(&self, request: Request<$changing>) -> RpcResult<$changed> {
                note(&request);
                Ok(Response::new(self.placement.$by(request.into_inner()).await?))
            })*

            async fn members(&self, request: Request<MembersRequest>) -> RpcResult<MembersResponse> {
                let MembersRequest { header, known } = request.into_inner();
                let of = header.map(|header| header.cluster_id);
                // Invariant: addresses are learned from nodes of this cluster only.
                let is_client = first_caller().is_some_and(|caller| caller.is_client());
                if of == Some(self.placement.cluster().0) && !is_client {
                    self.members.learn_list(&known);
                }
                Ok(Response::new(self.placement.members().unwrap_or_else(|| self.known_members())))
            }

            async fn list_stores(
                &self,
                request: Request<ListStoresRequest>,
            ) -> RpcResult<ListStoresResponse> {
                let request = request.into_inner();
                if request.known_here {
                    self.check_cluster(request.header)?;
                    return Ok(Response::new(self.majorities.known_stores(&request.ids)));
                }
                Ok(Response::new(self.placement.list_stores(request).await?))
            }

            async fn local_checksum(
                &self,
                request: Request<LocalChecksumRequest>,
            ) -> RpcResult<LocalChecksumResponse> {
                let memory = memory_of(&request)?;
                let request = request.into_inner();
                let store = self.store(request.store_id, RegionId(request.region_id))?;
                Ok(Response::new(replica::checksum(&store, &request, memory).await?))
            }

            async fn region_detail(
                &self,
                request: Request<RegionDetailRequest>,
            ) -> RpcResult<RegionDetailResponse> {
                let request = request.into_inner();
                let bytes_max = self.config.get().region_bytes_max;
                let mut replicas = Vec::new();
                for store in self.stores.all() {
                    if request.store_id != 0 && store.id().0 != request.store_id {
                        continue;
                    }
                    let report = replica::report(&store, RegionId(request.region_id)).await;
                    if let Some(report) = report {
                        replicas.push(replica::detail(&store, &report, bytes_max).await);
                    }
                }
                Ok(Response::new(RegionDetailResponse { replicas }))
            }

            async fn recover_replica(
                &self,
                request: Request<RecoverReplicaRequest>,
            ) -> RpcResult<RecoverReplicaResponse> {
                note(&request);
                let request = request.into_inner();
                let store = self.store(request.store_id, RegionId(request.region_id))?;
                let is_removed = |store| self.members.is_removed(store);
                let region = replica::recover(&store, &request, is_removed).await?;
                Ok(Response::new(RecoverReplicaResponse { region: region.encode() }))
            }

            async fn keep_run(
                &self,
                request: Request<KeepRunRequest>,
            ) -> RpcResult<KeepRunResponse> {
                note(&request);
                let KeepRunRequest { header, store_id } = request.into_inner();
                self.check_cluster(header)?;
                let kept = self.keeper.clone().keep_run(StoreId(store_id)).await;
                let run = kept.map_err(|error| Status::failed_precondition(error.to_string()))?;
                Ok(Response::new(KeepRunResponse { run: run.to_string() }))
            }

            async fn describe_run(
                &self,
                request: Request<DescribeRunRequest>,
            ) -> RpcResult<DescribeRunResponse> {
                let DescribeRunRequest { header, store_id } = request.into_inner();
                self.check_cluster(header)?;
                let summary = self.keeper.describe_run(StoreId(store_id));
                let summary = summary.map_err(|error| Status::not_found(error.to_string()))?;
                Ok(Response::new(super::node::stopped_run::described(summary)))
            }

            async fn pause(&self, request: Request<PauseRequest>) -> RpcResult<PauseResponse> {
                let PauseRequest { header, moment } = request.into_inner();
                self.check_cluster(header)?;
                Ok(Response::new(moment::pause(&self.stores, MomentId(moment)).await))
            }

            async fn seal(&self, request: Request<SealRequest>) -> RpcResult<SealResponse> {
                let SealRequest { header, moment, regions } = request.into_inner();
                self.check_cluster(header)?;
                Ok(Response::new(moment::seal(&self.stores, MomentId(moment), &regions).await))
            }

            async fn get_config(
                &self,
                request: Request<GetConfigRequest>,
            ) -> RpcResult<GetConfigResponse> {
                let GetConfigRequest { header, keys } = request.into_inner();
                let forwarded = header.is_some_and(|header| header.forwarded);
                let wants_cluster =
                    keys.is_empty() || keys.iter().any(|key| PlacementService::is_setting(key));
                let mut items = Vec::new();
                if wants_cluster {
                    items = self.placement.settings(&keys, forwarded).await?;
                }
                items.extend(self.own_settings());
                items.retain(|item| keys.is_empty() || keys.contains(&item.key));
                Ok(Response::new(GetConfigResponse { items }))
            }

            async fn set_config(
                &self,
                request: Request<SetConfigRequest>,
            ) -> RpcResult<SetConfigResponse> {
                note(&request);
                let SetConfigRequest { header, key, value } = request.into_inner();
                let forwarded = header.is_some_and(|header| header.forwarded);
                if self.config.get().get(&key).is_some() {
                    let next = match RELOADED.contains(&&*key) {
                        true => "send it SIGHUP",
                        false => "restart it",
                    };
                    return Err(Status::failed_precondition(format!(
                        "{key} is a setting of each node: set it in its file and {next}"
                    )));
                }
                let item = self.placement.set_setting(&key, &value, forwarded).await?;
                Ok(Response::new(SetConfigResponse { item: Some(item) }))
            }
        }
    };
}

control! {
    {
        join(JoinRequest) -> JoinResponse = join;
        heartbeat(HeartbeatRequest) -> HeartbeatResponse = heartbeat;
        alloc_ids(AllocIdsRequest) -> AllocIdsResponse = alloc_ids_of;
        list_regions(ListRegionsRequest) -> ListRegionsResponse = list_regions;
        list_operators(ListOperatorsRequest) -> ListOperatorsResponse = list_operators;
        get_store_progress(GetStoreProgressRequest) -> StoreProgress = get_store_progress;
        explain(ExplainRequest) -> ExplainResponse = explain;
        placement(PlacementRequest) -> PlacementResponse = placement;
        access_list(AccessListRequest) -> AccessListResponse = access_list;
        take_moment(TakeMomentRequest) -> TakeMomentResponse = take_moment;
        list_events(ListEventsRequest) -> ListEventsResponse = list_events;
    }
    changes {
        cancel_operator(CancelOperatorRequest) -> CancelOperatorResponse = cancel_operator;
        transfer(TransferRequest) -> OperatorAccepted = transfer;
        r#move(MoveRequest) -> OperatorAccepted = move_replica;
        split(SplitRequest) -> OperatorAccepted = split;
        merge(MergeRequest) -> OperatorAccepted = merge;
        set_store_state(SetStoreStateRequest) -> StoreProgress = set_store_state;
        admit(AdmitRequest) -> AdmitResponse = admit;
        access_grant(AccessGrantRequest) -> AccessChangeResponse = access_grant;
        access_revoke(AccessRevokeRequest) -> AccessChangeResponse = access_revoke;
        finalize(FinalizeRequest) -> FinalizeResponse = finalize;
    }
}
