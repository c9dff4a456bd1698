//! Control protocol of the fake cluster: the placement group and each node.

use super::{CLUSTER, Service, State, Step};
use bytes::Bytes;
use stele_proto::stele::control::v1::control_server::Control;
use stele_proto::stele::control::v1::*;
use stele_types::{KeyRange, RegionPhase, StoreId};
use tonic::{Request, Response, Status};

type RpcResult<T> = Result<Response<T>, Status>;

pub(super) fn store_info(id: u64, address: &str) -> StoreInfo {
    let stats = StoreStats {
        id,
        capacity: 100 << 30,
        free: 60 << 30,
        used: 1 << 30,
        region_count: 1,
        leader_count: u64::from(id == 1),
        append_p99_nanos: 400_000,
        ..StoreStats::default()
    };
    StoreInfo {
        stats: Some(stats),
        address: address.to_owned(),
        state: StoreState::Up as i32,
        version: "0.1.0".to_owned(),
        heartbeat_age_ms: 120,
        started_at: 1,
        class: Some(23),
        speed_per_second: 2980,
        ..StoreInfo::default()
    }
}

/// Makes the judgement of a store: the last one is eight times slower than the others.
fn store_placement(state: &State, info: &StoreInfo) -> StorePlacement {
    let id = info.stats.unwrap_or_default().id;
    let is_slow = id > 1 && id == state.stores.len() as u64;
    StorePlacement {
        store_id: id,
        address: info.address.clone(),
        state: info.state,
        labels: info.labels.clone(),
        class: if is_slow { 17 } else { 23 },
        data_class: 23,
        speed_per_second: if is_slow { 372 } else { 2980 },
        measured: is_slow,
        wanted_permille: 333,
        held_permille: 334,
        live_bytes: 5 << 20,
        fill_permille: Some(125),
        unreachable: false,
        replicas: 1,
        leaders: u64::from(id == 1),
        load_per_second: 120 * u64::from(id == 1),
        nearly_full: false,
        moving_bytes: 0,
        weight_ppm: 1_000_000,
        serving: true,
    }
}

impl Service {
    /// Locks the state if this node leads the placement group; otherwise refuses.
    fn leader_state(&self) -> Result<std::sync::MutexGuard<'_, State>, Status> {
        let mut state = self.state();
        if state.placement == self.node && state.unsettled > 0 {
            state.unsettled -= 1;
            let mut status = Status::unavailable("the leader is new");
            status.metadata_mut().insert("stele-retry-ms", "20".parse().unwrap());
            return Err(status);
        }
        if state.placement == self.node {
            return Ok(state);
        }
        let mut status = Status::unavailable("not leader");
        // No node leads if the number is none of a node.
        if let Some(leader) = state.nodes.get(state.placement) {
            status.metadata_mut().insert("stele-leader", leader.address.parse().unwrap());
        }
        Err(status)
    }
}

fn accepted(state: &mut State, region_id: u64, what: String) -> OperatorAccepted {
    let id = 100 + state.operators.len() as u64;
    state.operators.push(OperatorInfo {
        id,
        region_id,
        what,
        why: "operator".to_owned(),
        state: OperatorState::Done as i32,
        steps_done: 1,
        steps: 1,
        ..OperatorInfo::default()
    });
    OperatorAccepted { operator_id: id }
}

fn info(state: &State, region: &stele_types::Region) -> RegionInfo {
    let leader = state.leader(region);
    let report = RegionReport {
        region: region.encode(),
        leader_store: leader.map_or(0, |leader| leader.store.0),
        leader_peer: leader.map_or(0, |leader| leader.id.0),
        approximate_bytes: 5 << 20,
        approximate_keys: 1000,
        ..RegionReport::default()
    };
    RegionInfo { report: Some(report), report_age_ms: 80, operator_id: 0 }
}

fn progress(state: &mut State) -> StoreProgress {
    if state.progress.len() > 1 {
        return state.progress.pop_front().unwrap();
    }
    state.progress.front().cloned().unwrap_or_default()
}

#[tonic::async_trait]
impl Control for Service {
    async fn members(&self, _: Request<MembersRequest>) -> RpcResult<MembersResponse> {
        let state = self.state();
        let store = |id: &u64| MemberStore {
            id: *id,
            state: StoreState::Up as i32,
            ..MemberStore::default()
        };
        let member = |(at, node): (usize, &super::Node)| Member {
            address: node.address.clone(),
            stores: node.stores.iter().map(store).collect(),
            leads_placement: at == state.placement,
            client_address: String::new(),
        };
        let members = state.nodes.iter().enumerate().map(member).collect();
        let (cluster_id, members_version) = (CLUSTER, 4);
        Ok(Response::new(MembersResponse { cluster_id, members_version, members }))
    }

    async fn list_stores(
        &self,
        request: Request<ListStoresRequest>,
    ) -> RpcResult<ListStoresResponse> {
        let ListStoresRequest { ids, known_here, .. } = request.into_inner();
        let state = if known_here { self.state() } else { self.leader_state()? };
        let is_wanted = |id: &u64| ids.is_empty() || ids.contains(id);
        let stores = state.stores.iter().filter(|(id, _)| is_wanted(id));
        let mut answer = ListStoresResponse {
            cluster_id: CLUSTER,
            stores: stores.map(|(_, info)| info.clone()).collect(),
            known_here,
            ..ListStoresResponse::default()
        };
        if known_here {
            answer.no_leader = "1 of 3 voters of region 1 is up: no quorum".to_owned();
            for (info, age_ms) in answer.stores.iter_mut().zip([0, 16_400, -1]) {
                info.heartbeat_age_ms = age_ms;
            }
        }
        Ok(Response::new(answer))
    }

    async fn list_regions(
        &self,
        request: Request<ListRegionsRequest>,
    ) -> RpcResult<ListRegionsResponse> {
        let request = request.into_inner();
        let state = self.leader_state()?;
        let range = KeyRange::new(request.start_key, request.end_key);
        let wanted = |region: &&stele_types::Region| {
            region.range.overlaps(&range)
                && (request.region_id == 0 || request.region_id == region.id.0)
        };
        let mut found = state.regions.iter().filter(wanted);
        // Two regions per page, so that callers must continue.
        let regions = found.by_ref().take(2).map(|region| info(&state, region)).collect();
        let next_key: Option<Bytes> = found.next().map(|region| region.range.start.clone());
        Ok(Response::new(ListRegionsResponse { regions, next_key }))
    }

    async fn list_operators(
        &self,
        request: Request<ListOperatorsRequest>,
    ) -> RpcResult<ListOperatorsResponse> {
        let id = request.into_inner().operator_id;
        let state = self.leader_state()?;
        let wanted = |operator: &&OperatorInfo| id == 0 || operator.id == id;
        let operators = state.operators.iter().filter(wanted).cloned().collect();
        Ok(Response::new(ListOperatorsResponse { operators }))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> RpcResult<ExplainResponse> {
        let ExplainRequest { region_id, key, .. } = request.into_inner();
        let state = self.leader_state()?;
        let is_wanted = |region: &&stele_types::Region| match region_id {
            0 => region.range.contains(&key),
            id => region.id.0 == id,
        };
        let Some(region) = state.regions.iter().find(is_wanted) else {
            return Err(Status::not_found(format!("there is no region {region_id}")));
        };
        let leader = state.leader(region).map(|leader| leader.store.0);
        let verdict = |info: &StoreInfo| {
            let store = store_placement(&state, info);
            let (role, rule, reason) = match leader == Some(store.store_id) {
                true => (StoreRole::Leader, "leads", "its class 23 is the highest of 2 voters"),
                false => (StoreRole::Replica, "slower", "its class 17 is 6 below that of store 1"),
            };
            let (rule, reason) = (rule.to_owned(), reason.to_owned());
            StoreVerdict { store: Some(store), role: role as i32, rule, reason }
        };
        let stores = state.stores.values().map(verdict).collect();
        Ok(Response::new(ExplainResponse {
            region: Some(info(&state, region)),
            mode: "alor".to_owned(),
            heat: Some(RegionHeat {
                written_bytes: 3 << 19,
                read_bytes: 1 << 10,
                writes: 96,
                reads: 24,
            }),
            stores,
            operator: state.moves.first().cloned(),
        }))
    }

    async fn placement(&self, _: Request<PlacementRequest>) -> RpcResult<PlacementResponse> {
        let state = self.leader_state()?;
        let stores = state.stores.values().map(|info| store_placement(&state, info)).collect();
        let (mode, moves) = ("alor".to_owned(), state.moves.clone());
        let (speed_op_bytes, domain_label) = (16 << 10, String::new());
        Ok(Response::new(PlacementResponse { mode, speed_op_bytes, stores, moves, domain_label }))
    }

    async fn transfer(&self, request: Request<TransferRequest>) -> RpcResult<OperatorAccepted> {
        let TransferRequest { region_id, to_store, .. } = request.into_inner();
        let mut state = self.leader_state()?;
        let region = state.regions.iter().find(|region| region.id.0 == region_id);
        let Some(region) = region else {
            return Err(Status::not_found(format!("there is no region {region_id}")));
        };
        if region.peer_on(StoreId(to_store)).is_none() {
            let text = format!("region {region_id} has no replica on store {to_store}");
            return Err(Status::failed_precondition(text));
        }
        state.leaders.insert(region_id, to_store);
        let what = format!("lead region {region_id} from store {to_store}");
        Ok(Response::new(accepted(&mut state, region_id, what)))
    }

    async fn r#move(&self, request: Request<MoveRequest>) -> RpcResult<OperatorAccepted> {
        let MoveRequest { region_id, from_store, to_store, .. } = request.into_inner();
        let mut state = self.leader_state()?;
        let what =
            format!("move a replica of region {region_id} from store {from_store} to {to_store}");
        Ok(Response::new(accepted(&mut state, region_id, what)))
    }

    async fn split(&self, request: Request<SplitRequest>) -> RpcResult<OperatorAccepted> {
        let SplitRequest { region_id, keys, .. } = request.into_inner();
        let mut state = self.leader_state()?;
        for key in keys {
            let key: &'static str = String::from_utf8(key.to_vec()).unwrap().leak();
            let new_id = 1000 + state.regions.len() as u64;
            state.split(key, new_id);
        }
        Ok(Response::new(accepted(&mut state, region_id, format!("split region {region_id}"))))
    }

    async fn merge(&self, request: Request<MergeRequest>) -> RpcResult<OperatorAccepted> {
        let MergeRequest { source_region, target_region, .. } = request.into_inner();
        let mut state = self.leader_state()?;
        let what = format!("merge region {source_region} into {target_region}");
        Ok(Response::new(accepted(&mut state, source_region, what)))
    }

    async fn set_store_state(
        &self,
        request: Request<SetStoreStateRequest>,
    ) -> RpcResult<StoreProgress> {
        let SetStoreStateRequest { store_id, action, .. } = request.into_inner();
        let mut state = self.leader_state()?;
        let Some(store) = state.stores.get_mut(&store_id) else {
            return Err(Status::not_found(format!("there is no store {store_id}")));
        };
        if action == StoreAction::Lost as i32 {
            store.state = StoreState::Removed as i32;
        }
        Ok(Response::new(progress(&mut state)))
    }

    async fn get_store_progress(
        &self,
        _: Request<GetStoreProgressRequest>,
    ) -> RpcResult<StoreProgress> {
        Ok(Response::new(progress(&mut *self.leader_state()?)))
    }

    async fn local_checksum(
        &self,
        request: Request<LocalChecksumRequest>,
    ) -> RpcResult<LocalChecksumResponse> {
        let LocalChecksumRequest { store_id, applied_index, expires_after_s, .. } =
            request.into_inner();
        let mut state = self.state();
        let ahead_s = state.clocks_ahead.get(&store_id).copied().unwrap_or(0);
        let clock_s = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() + ahead_s;
        // The store has removed what expired by its clock; the others have not.
        let expired = if ahead_s > 0 && expires_after_s < clock_s { 1 } else { 0 };
        // A scripted failure stands for a replica that differs.
        let differs = matches!(state.script.pop_front(), Some(Step { .. }));
        Ok(Response::new(LocalChecksumResponse {
            store_id,
            peer_id: 20 + store_id,
            applied_index: applied_index.max(17),
            conf_version: 1,
            version: 1,
            checksum: if differs { 0xbad } else { 0xabcd + expired },
            pairs: 3,
            bytes: 300,
            clock_s,
        }))
    }

    async fn region_detail(
        &self,
        request: Request<RegionDetailRequest>,
    ) -> RpcResult<RegionDetailResponse> {
        let RegionDetailRequest { region_id, store_id, .. } = request.into_inner();
        let state = self.state();
        let region = state.regions.iter().find(|region| region.id.0 == region_id).unwrap();
        let leads = state.leaders.get(&region_id) == Some(&store_id);
        let replica = ReplicaDetail {
            store_id,
            region: region.encode(),
            peer_id: region.peer_on(StoreId(store_id)).unwrap().id.0,
            role: if leads { RaftRole::Leader } else { RaftRole::Follower } as i32,
            term: 6,
            first_index: 6,
            last_index: 17,
            committed_index: 17,
            applied_index: 17,
            approximate_bytes: 5 << 20,
            approximate_keys: 1000,
            last_term: 6,
            ..ReplicaDetail::default()
        };
        Ok(Response::new(RegionDetailResponse { replicas: vec![replica] }))
    }

    async fn recover_replica(
        &self,
        request: Request<RecoverReplicaRequest>,
    ) -> RpcResult<RecoverReplicaResponse> {
        let request = request.into_inner();
        assert_eq!((request.last_index, request.last_term, request.term), (17, 6, 6));
        let mut state = self.state();
        let is_removed = |id: &u64| state.stores[id].state == StoreState::Removed as i32;
        if !request.lost_stores.iter().all(is_removed) || state.unsettled > 0 {
            state.unsettled = state.unsettled.saturating_sub(1);
            return Err(Status::unavailable("this node does not know that the stores are lost"));
        }
        state.leaders.insert(request.region_id, request.store_id);
        let region = state.regions.iter_mut().find(|region| region.id.0 == request.region_id);
        let region = region.unwrap();
        region.peers.retain(|peer| !request.lost_stores.contains(&peer.store.0));
        Ok(Response::new(RecoverReplicaResponse { region: region.encode() }))
    }

    async fn get_config(&self, request: Request<GetConfigRequest>) -> RpcResult<GetConfigResponse> {
        let keys = request.into_inner().keys;
        let state = self.state();
        let wanted = |item: &&ConfigItem| keys.is_empty() || keys.contains(&item.key);
        let items: Vec<ConfigItem> = state.config.iter().filter(wanted).cloned().collect();
        if items.is_empty() {
            return Err(Status::not_found("there is no such setting"));
        }
        Ok(Response::new(GetConfigResponse { items }))
    }

    async fn admit(&self, _: Request<AdmitRequest>) -> RpcResult<AdmitResponse> {
        Err(Status::unimplemented(""))
    }

    async fn keep_run(&self, request: Request<KeepRunRequest>) -> RpcResult<KeepRunResponse> {
        let store = request.into_inner().store_id;
        match self.state().stores.contains_key(&store) {
            true => Ok(Response::new(KeepRunResponse { run: "start 7".to_owned() })),
            false => Err(Status::failed_precondition(format!("there is no store {store}"))),
        }
    }

    async fn describe_run(
        &self,
        request: Request<DescribeRunRequest>,
    ) -> RpcResult<DescribeRunResponse> {
        match self.state().stores.contains_key(&request.into_inner().store_id) {
            true => Ok(Response::new(DescribeRunResponse::default())),
            false => Err(Status::not_found("there is no such store")),
        }
    }

    async fn set_config(&self, request: Request<SetConfigRequest>) -> RpcResult<SetConfigResponse> {
        let SetConfigRequest { key, value, .. } = request.into_inner();
        let mut state = self.state();
        let item = state.config.iter_mut().find(|item| item.key == key);
        let Some(item) = item else { return Err(Status::not_found("there is no such setting")) };
        item.value = value;
        item.source = "set".to_owned();
        Ok(Response::new(SetConfigResponse { item: Some(item.clone()) }))
    }

    async fn cancel_operator(
        &self,
        request: Request<CancelOperatorRequest>,
    ) -> RpcResult<CancelOperatorResponse> {
        let id = request.into_inner().region_id;
        let mut state = self.leader_state()?;
        let is_running = |operator: &&mut OperatorInfo| {
            operator.region_id == id && operator.state == OperatorState::Running as i32
        };
        if let Some(operator) = state.operators.iter_mut().find(is_running) {
            operator.state = OperatorState::Cancelled as i32;
            operator.detail = "cancelled by an administrator".to_owned();
            return Ok(Response::new(CancelOperatorResponse { operator: Some(operator.clone()) }));
        }
        let is_merging = |region: &stele_types::Region| {
            region.id.0 == id && matches!(region.phase, RegionPhase::Merging { .. })
        };
        match state.regions.iter().any(is_merging) {
            true => Ok(Response::new(CancelOperatorResponse { operator: None })),
            false => Err(Status::not_found("the region has no operator")),
        }
    }

    async fn take_moment(&self, _: Request<TakeMomentRequest>) -> RpcResult<TakeMomentResponse> {
        Err(Status::unimplemented(""))
    }

    async fn list_events(&self, _: Request<ListEventsRequest>) -> RpcResult<ListEventsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn pause(&self, _: Request<PauseRequest>) -> RpcResult<PauseResponse> {
        Err(Status::unimplemented(""))
    }

    async fn seal(&self, _: Request<SealRequest>) -> RpcResult<SealResponse> {
        Err(Status::unimplemented(""))
    }

    async fn access_list(&self, _: Request<AccessListRequest>) -> RpcResult<AccessListResponse> {
        Err(Status::unimplemented(""))
    }

    async fn access_grant(
        &self,
        _: Request<AccessGrantRequest>,
    ) -> RpcResult<AccessChangeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn access_revoke(
        &self,
        _: Request<AccessRevokeRequest>,
    ) -> RpcResult<AccessChangeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn finalize(&self, _: Request<FinalizeRequest>) -> RpcResult<FinalizeResponse> {
        Err(Status::unimplemented(""))
    }

    async fn join(&self, _: Request<JoinRequest>) -> RpcResult<JoinResponse> {
        Err(Status::unimplemented(""))
    }

    async fn heartbeat(&self, _: Request<HeartbeatRequest>) -> RpcResult<HeartbeatResponse> {
        Err(Status::unimplemented(""))
    }

    async fn alloc_ids(&self, _: Request<AllocIdsRequest>) -> RpcResult<AllocIdsResponse> {
        Err(Status::unimplemented(""))
    }
}
