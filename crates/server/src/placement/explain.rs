//! Reasons of placement: what the schedulers know of each store, and their verdicts.

use super::forward::leader_calls;
use super::stores::{Counts, count};
use super::{PlacementService, operators, regions, wire};
use std::sync::Arc;
use stele_placement::{
    Config, LeaderState, Liveness, Millis, Rates, RegionInfo, Store, StoreState,
};
use stele_proto::stele::control::v1::{
    ExplainRequest, ExplainResponse, PlacementRequest, PlacementResponse, RegionHeat,
    StorePlacement, StoreRole, StoreVerdict,
};
use stele_types::RegionId;
use tonic::Status;

leader_calls! {
    /// Explains why the leader and the replicas of a region are where they are.
    explain, explain(ExplainRequest) -> ExplainResponse = explain_here;
    /// Returns the stores as placement judges them, and the moves under way and planned.
    placement, placement(PlacementRequest) -> PlacementResponse = placement_here;
}

impl PlacementService {
    async fn explain_here(
        self: &Arc<Self>,
        request: ExplainRequest,
    ) -> Result<ExplainResponse, Status> {
        let now = self.now();
        let explained = self.read_state(|state| explained(state, &request, now)).await?;
        self.or_retry_later(explained).await
    }

    async fn placement_here(
        self: &Arc<Self>,
        request: PlacementRequest,
    ) -> Result<PlacementResponse, Status> {
        drop(request);
        let now = self.now();
        self.read_state(|state| placement(state, now)).await
    }
}

fn placement(state: &LeaderState, now: Millis) -> PlacementResponse {
    let counts = count(state);
    PlacementResponse {
        mode: mode(state.cluster.config()),
        speed_op_bytes: state.cluster.config().speed_op_bytes,
        stores: members(state).map(|store| judged(state, &counts, store, now)).collect(),
        moves: state
            .operators
            .running()
            .map(|operator| operators::running_info(state, operator, now))
            .collect(),
    }
}

/// Returns the operations a second by which a store is judged; `None` while its speed is unknown.
pub(super) fn speed_per_second(state: &LeaderState, store: &Store) -> Option<u64> {
    store.report.device.write.per_second(state.cluster.config().speed_op_bytes)
}

/// Returns the value of the setting `placement_mode`.
fn mode(config: &Config) -> String {
    let setting = Config::setting("placement_mode").ok();
    setting.map_or(String::new(), |setting| setting.text_of(config.placement_mode))
}

fn heat(info: &RegionInfo, now: Millis) -> RegionHeat {
    let Rates { written_bytes, read_bytes, writes, reads } = info.heat.at(now);
    RegionHeat { written_bytes, read_bytes, writes, reads }
}

fn members(state: &LeaderState) -> impl Iterator<Item = &Store> {
    state.cluster.stores().filter(|store| store.state != StoreState::Tombstone)
}

fn judged(state: &LeaderState, counts: &Counts, store: &Store, now: Millis) -> StorePlacement {
    let (replicas, leaders) = counts.get(&store.id).copied().unwrap_or_default();
    StorePlacement {
        store_id: store.id.0,
        address: store.address.clone(),
        state: wire::store_state(store.state) as i32,
        labels: wire::labels(store),
        class: state.cluster.class_of(store.id).0.into(),
        data_class: state.cluster.data_class_of(store.id).0.into(),
        speed_per_second: speed_per_second(state, store).unwrap_or(0),
        measured: store.report.device.writes > 0,
        replicas,
        leaders,
        nearly_full: state.cluster.is_nearly_full(store.id),
        serving: store.state == StoreState::Up
            && state.cluster.liveness(store.id, now) == Liveness::Live,
        ..StorePlacement::default()
    }
}

fn explained(
    state: &LeaderState,
    request: &ExplainRequest,
    now: Millis,
) -> Result<ExplainResponse, Status> {
    let info = wanted(state, request)?;
    let counts = count(state);
    let verdict = |store: &Store| {
        let role = role(info, store);
        let store = Some(judged(state, &counts, store, now));
        StoreVerdict { store, role: role as i32, ..StoreVerdict::default() }
    };
    let operator = state.operators.of(info.region.id);
    Ok(ExplainResponse {
        region: Some(regions::entry(state, info, now)),
        mode: mode(state.cluster.config()),
        heat: Some(heat(info, now)),
        stores: members(state).map(verdict).collect(),
        operator: operator.map(|operator| operators::running_info(state, operator, now)),
    })
}

fn wanted<'a>(
    state: &'a LeaderState,
    request: &ExplainRequest,
) -> Result<&'a RegionInfo, Status> {
    let regions = state.cluster.regions();
    match request.region_id {
        0 => regions
            .by_key(&request.key)
            .ok_or_else(|| Status::not_found("no region is known that holds the key")),
        id => regions.get(RegionId(id)).ok_or_else(|| {
            Status::not_found(format!(
                "there is no region {id}; `stele ctl regions --system` lists all"
            ))
        }),
    }
}

fn role(info: &RegionInfo, store: &Store) -> StoreRole {
    match info.region.peer_on(store.id) {
        Some(peer) if info.leader.is_some_and(|leader| leader.id == peer.id) => StoreRole::Leader,
        Some(_) => StoreRole::Replica,
        None => StoreRole::Candidate,
    }
}
