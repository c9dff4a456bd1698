//! Stores: their state, and administrative removal.

use super::forward::leader_calls;
use super::{PlacementService, refused, wire};
use std::collections::HashMap;
use std::sync::Arc;
use stele_placement::{DrainGoal, LastHeartbeat, LeaderState, Liveness, Millis, Store, StoreState};
use stele_proto::stele::control::v1::{
    GetStoreProgressRequest, ListStoresRequest, ListStoresResponse, SetStoreStateRequest,
    StoreAction, StoreInfo, StoreProgress, StoreStats,
};
use stele_types::StoreId;
use tonic::Status;

leader_calls! {
    /// Lists stores; removed ones only if they are named.
    list_stores, list_stores(ListStoresRequest) -> ListStoresResponse = list_stores_here;
    /// Drains or removes a store, cancels that, or declares it lost.
    set_store_state, set_store_state(SetStoreStateRequest) -> StoreProgress = set_state_here;
    /// Returns the progress of a store's removal.
    get_store_progress, get_store_progress(GetStoreProgressRequest) -> StoreProgress =
        progress_here;
}

/// Regions and leaders of a store.
pub(super) type StoreCounts = HashMap<StoreId, (u64, u64)>;

impl PlacementService {
    async fn list_stores_here(
        self: &Arc<Self>,
        request: ListStoresRequest,
    ) -> Result<ListStoresResponse, Status> {
        let now = self.now();
        let cluster_id = self.cluster.0;
        self.read_state(|state| {
            let is_wanted = |store: &&Store| match request.ids.is_empty() {
                true => store.state != StoreState::Tombstone,
                false => request.ids.contains(&store.id.0),
            };
            let counts = count(state);
            let stores = state.cluster.stores().filter(is_wanted);
            let stores = stores.map(|store| info(state, &counts, store, now)).collect();
            ListStoresResponse { cluster_id, stores, ..ListStoresResponse::default() }
        })
        .await
    }

    async fn set_state_here(
        self: &Arc<Self>,
        request: SetStoreStateRequest,
    ) -> Result<StoreProgress, Status> {
        let progress = self.set_state_now(request).await;
        self.or_retry_later(progress).await
    }

    async fn set_state_now(
        self: &Arc<Self>,
        request: SetStoreStateRequest,
    ) -> Result<StoreProgress, Status> {
        let store = StoreId(request.store_id);
        let goal = match StoreAction::try_from(request.action) {
            Ok(StoreAction::Drain) => DrainGoal::Drain,
            Ok(StoreAction::Remove) => DrainGoal::Remove,
            Ok(StoreAction::Cancel) => DrainGoal::Cancel,
            Ok(StoreAction::Lost) => DrainGoal::Lost,
            _ => return Err(Status::invalid_argument("unknown store action")),
        };
        self.known_store(store).await?;
        let plan = move |cluster: &stele_placement::Cluster, now| {
            Ok(((), cluster.plan_state(store, goal, now).map_err(refused)?))
        };
        let now = self.now();
        self.commit_decision(plan, move |(), state| noted_progress(state, store, now)).await
    }

    async fn progress_here(
        self: &Arc<Self>,
        request: GetStoreProgressRequest,
    ) -> Result<StoreProgress, Status> {
        let store = StoreId(request.store_id);
        self.known_store(store).await?;
        let now = self.now();
        self.update_state(|state| noted_progress(state, store, now)).await
    }

    async fn known_store(self: &Arc<Self>, store: StoreId) -> Result<(), Status> {
        match self.read_state(|state| state.cluster.store(store).is_some()).await? {
            true => Ok(()),
            false => Err(Status::not_found(format!("there is no store {store}"))),
        }
    }
}

fn noted_progress(state: &mut LeaderState, store: StoreId, now: Millis) -> StoreProgress {
    state.cluster.note_drains(now);
    progress(state, store, now)
}

fn progress(state: &LeaderState, store: StoreId, now: Millis) -> StoreProgress {
    let store_state = state.cluster.store(store).map(|store| store.state).unwrap_or_default();
    let leads = |info: &&stele_placement::RegionInfo| {
        info.leader.is_some_and(|leader| leader.store == store)
    };
    let mut out = StoreProgress {
        store_id: store.0,
        state: wire::store_state(store_state) as i32,
        leaders_left: state.cluster.regions().iter().filter(leads).count() as u64,
        ..StoreProgress::default()
    };
    if let Some(drain) = state.cluster.drain_progress(&state.operators, store, now) {
        out.regions_left = drain.replicas_left;
        out.regions_total = drain.replicas_total;
        out.bytes_left = drain.bytes_left;
        out.bytes_total = drain.bytes_total;
        out.age_ms = drain.age_millis;
        out.bytes_per_second = drain.bytes_per_second;
        out.seconds_left = drain.eta_seconds;
        if let Some(blocker) = drain.blocker {
            out.waits_for = blocker.reason;
            out.waits_for_region = blocker.region.0;
        }
    }
    out
}

pub(super) fn count(state: &LeaderState) -> StoreCounts {
    let mut counts = StoreCounts::new();
    for info in state.cluster.regions().iter() {
        for peer in &info.region.peers {
            counts.entry(peer.store).or_default().0 += 1;
        }
        if let Some(leader) = info.leader {
            counts.entry(leader.store).or_default().1 += 1;
        }
    }
    counts
}

fn info(state: &LeaderState, counts: &StoreCounts, store: &Store, now: Millis) -> StoreInfo {
    let (region_count, leader_count) = counts.get(&store.id).copied().unwrap_or_default();
    let report = &store.report;
    let stats = StoreStats {
        id: store.id.0,
        capacity: store.capacity_bytes,
        free: report.free_bytes,
        used: report.used_bytes,
        region_count,
        leader_count,
        disk_full: report.is_full,
        failed: report.has_failed,
        append_p99_nanos: report.append_p99_nanos,
        append_age_ms: report.append_age_ms,
        live: report.live_bytes,
        usable: report.usable_bytes,
        level: report.level.get(),
        ..StoreStats::default()
    };
    let age = match store.last_heartbeat {
        LastHeartbeat::At(at) => i64::try_from(now.since(at)).unwrap_or(i64::MAX),
        LastHeartbeat::NotSince { .. } => -1,
    };
    let is_member = store.state != StoreState::Tombstone;
    let speed = super::explain::speed_per_second(state, store);
    StoreInfo {
        stats: Some(stats),
        address: store.address.clone(),
        client_address: state.cluster.client_address(store.id).to_owned(),
        admin_address: store.node.admin_address.clone(),
        state: wire::store_state(store.state) as i32,
        labels: wire::labels(store),
        version: store.node.version.clone(),
        heartbeat_age_ms: age,
        down: is_member && state.cluster.liveness(store.id, now) == Liveness::Down,
        started_at: store.node.started_at,
        score: report.used_bytes as f64,
        class: state.cluster.speed(store.id).map(|speed| speed.class.0.into()),
        speed_per_second: speed.unwrap_or(0),
    }
}
