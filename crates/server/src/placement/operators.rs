//! Operators: those in progress, orders of administrators to start some, and the ids that operators
//! and splits take.

use super::PlacementService;
use super::forward::leader_calls;
use bytes::Bytes;
use std::sync::Arc;
use stele_placement::operator::plan;
use stele_placement::schedule::load::Loads;
use stele_placement::schedule::merge;
use stele_placement::{
    Cluster, ClusterView, Finished, Kind, LeaderState, Millis, NotAdmitted, Operator, OperatorId,
    RegionInfo, Step,
};
use stele_proto::stele::control::v1::{
    CancelOperatorRequest, CancelOperatorResponse, ListOperatorsRequest, ListOperatorsResponse,
    MergeRequest, MoveRequest, OperatorAccepted, OperatorInfo, OperatorState, SplitRequest,
    TransferRequest,
};
use stele_types::{Peer, RegionId, RegionPhase, StoreId, redis_key};
use tonic::Status;

const SPLIT_KEYS_MAX: usize = 64;

leader_calls! {
    /// Lists operators in progress, and on request those that ended lately.
    list_operators, list_operators(ListOperatorsRequest) -> ListOperatorsResponse =
        list_operators_here;
    /// Cancels an operator.
    cancel_operator, cancel_operator(CancelOperatorRequest) -> CancelOperatorResponse =
        cancel_here;
    /// Transfers a region's leadership.
    transfer, transfer(TransferRequest) -> OperatorAccepted = transfer_here;
    /// Moves a replica from one store to another.
    move_replica, r#move(MoveRequest) -> OperatorAccepted = move_here;
    /// Splits a region.
    split, split(SplitRequest) -> OperatorAccepted = split_here;
    /// Merges a region into a neighbour.
    merge, merge(MergeRequest) -> OperatorAccepted = merge_here;
}

const REASON: &str = "ordered";

impl PlacementService {
    async fn list_operators_here(
        self: &Arc<Self>,
        request: ListOperatorsRequest,
    ) -> Result<ListOperatorsResponse, Status> {
        let now = self.now();
        let is_wanted = |operator: &Operator| {
            [0, operator.region.0].contains(&request.region_id)
                && [0, operator.id.0].contains(&request.operator_id)
        };
        self.update_state(|state| {
            state.operators.advance(&state.cluster, now);
            let ended = state.operators.ended().filter(|_| request.ended);
            let ended =
                ended.filter(|ended| is_wanted(&ended.operator)).map(|e| ended_info(e, now));
            let running = state.operators.running().filter(|operator| is_wanted(operator));
            let running = running.map(|operator| running_info(state, operator, now));
            ListOperatorsResponse { operators: ended.chain(running).collect() }
        })
        .await
    }

    async fn cancel_here(
        self: &Arc<Self>,
        request: CancelOperatorRequest,
    ) -> Result<CancelOperatorResponse, Status> {
        let now = self.now();
        let CancelOperatorRequest { operator_id, region_id, .. } = request;
        let found = self.read_state(|state| cancellable(state, operator_id, RegionId(region_id)));
        let (region, is_merge) =
            found.await?.ok_or_else(|| Status::not_found("operator not found"))?;
        let plan = move |cluster: &Cluster, _| {
            let changes = match is_merge {
                true => cluster.plan_cancelled_merge(region).map_err(super::refused)?,
                false => Vec::new(),
            };
            Ok(((), changes))
        };
        let answer = move |(), state: &mut LeaderState| {
            let ended = state.operators.cancel(region, now).then(|| {
                let ended = state.operators.ended().filter(|it| it.operator.region == region);
                ended.last().map(|it| ended_info(it, now))
            });
            CancelOperatorResponse { operator: ended.flatten() }
        };
        self.commit_decision(plan, answer).await
    }

    async fn transfer_here(
        self: &Arc<Self>,
        request: TransferRequest,
    ) -> Result<OperatorAccepted, Status> {
        let store = StoreId(request.to_store);
        let plan = |state: &LeaderState| {
            let info = region(state, request.region_id)?;
            let to = peer_on(info, store)?;
            planned(info, vec![Step::Transfer(to)])
        };
        accepted(self.order(plan).await)
    }

    async fn move_here(self: &Arc<Self>, request: MoveRequest) -> Result<OperatorAccepted, Status> {
        let (from, to) = (StoreId(request.from_store), StoreId(request.to_store));
        let now = self.now();
        let plan = |state: &LeaderState| {
            let info = region(state, request.region_id)?;
            let old = peer_on(info, from)?;
            if info.region.peer_on(to).is_some() {
                let text = format!("region {} has a replica on store {to}", info.region.id);
                return Err(Status::failed_precondition(text));
            }
            let view = ClusterView { cluster: &state.cluster, operators: &state.operators, now };
            let next = view.next_leader(&Loads::of(&view), info, &[old]);
            // The members of a region that is prepared for a merge do not change.
            let mut steps = Vec::from_iter(is_merging(info).then_some(Step::AbandonMerge));
            steps.extend(plan::change_members(info, &[to], &[old.id], next));
            planned(info, steps)
        };
        accepted(self.order(plan).await)
    }

    async fn split_here(
        self: &Arc<Self>,
        request: SplitRequest,
    ) -> Result<OperatorAccepted, Status> {
        let plan = |state: &LeaderState| {
            let info = region(state, request.region_id)?;
            // No split parts the pairs of one Redis key or tag.
            let mut keys: Vec<Bytes> = request.keys.iter().map(redis_key::border).collect();
            keys.dedup();
            check_keys(info, &keys)?;
            planned(info, vec![Step::Split { keys, new: Vec::new() }])
        };
        accepted(self.order(plan).await)
    }

    async fn merge_here(
        self: &Arc<Self>,
        request: MergeRequest,
    ) -> Result<OperatorAccepted, Status> {
        let source = RegionId(request.source_region);
        let again = move |cluster: &Cluster, _| Ok(((), cluster.plan_merge_again(source)));
        self.commit_decision(again, |(), _| ()).await?;
        let now = self.now();
        let plan = |state: &LeaderState| {
            let source = region(state, request.source_region)?;
            let target = region(state, request.target_region)?;
            let view = ClusterView { cluster: &state.cluster, operators: &state.operators, now };
            if !merge::are_neighbours(&source.region, &target.region) {
                return Err(Status::failed_precondition(format!(
                    "regions {} and {} are not neighbours",
                    source.region.id, target.region.id
                )));
            }
            let operator = merge::merge(&view, source, target, Kind::Manual, REASON.into());
            operator.ok_or_else(|| Status::internal("a merge without steps"))
        };
        accepted(self.order(plan).await)
    }
}

fn region(state: &LeaderState, id: u64) -> Result<&RegionInfo, Status> {
    let known = state.cluster.regions().get(RegionId(id));
    known.ok_or_else(|| Status::not_found(format!("there is no region {id}")))
}

/// Returns the region of the operator to cancel, and whether that cancels a merge. Without an
/// operator, a region that is prepared to merge: the schedulers have not begun to finish that.
fn cancellable(state: &LeaderState, operator: u64, region: RegionId) -> Option<(RegionId, bool)> {
    let is_requested = |running: &&Operator| match operator {
        0 => running.region == region,
        id => running.id.0 == id,
    };
    if let Some(running) = state.operators.running().find(is_requested) {
        return Some((running.region, running.merges()));
    }
    let info = state.cluster.regions().get(region).filter(|_| operator == 0)?;
    is_merging(info).then_some((region, true))
}

fn is_merging(info: &RegionInfo) -> bool {
    matches!(info.region.phase, RegionPhase::Merging { .. })
}

fn peer_on(info: &RegionInfo, store: StoreId) -> Result<Peer, Status> {
    let none = || format!("region {} has no replica on store {store}", info.region.id);
    info.region.peer_on(store).copied().ok_or_else(|| Status::failed_precondition(none()))
}

fn planned(info: &RegionInfo, steps: Vec<Step>) -> Result<Operator, Status> {
    let operator = plan::operator(info, Kind::Manual, steps, REASON);
    operator.ok_or_else(|| Status::failed_precondition("there is nothing to do"))
}

fn accepted(
    ordered: Result<stele_placement::OperatorId, Status>,
) -> Result<OperatorAccepted, Status> {
    ordered.map(|id| OperatorAccepted { operator_id: id.0 })
}

/// Checks that the keys of a split ascend and lie inside the region, not at its start.
fn check_keys(info: &RegionInfo, keys: &[Bytes]) -> Result<(), Status> {
    let range = &info.region.range;
    let inside = |key: &Bytes| *key > range.start && range.contains(key);
    if keys.len() > SPLIT_KEYS_MAX {
        return Err(Status::invalid_argument(format!("more than {SPLIT_KEYS_MAX} keys")));
    }
    match keys.iter().all(inside) && keys.windows(2).all(|pair| pair[0] < pair[1]) {
        true => Ok(()),
        false => Err(Status::failed_precondition(format!(
            "the keys must ascend and lie inside region {}",
            info.region.id
        ))),
    }
}

pub(super) fn not_admitted(reason: NotAdmitted) -> Status {
    match reason {
        NotAdmitted::Unsafe(_) => Status::failed_precondition(reason.to_string()),
        NotAdmitted::Occupied(_) => Status::already_exists(reason.to_string()),
        NotAdmitted::Busy(_) => Status::unavailable(reason.to_string()),
    }
}

pub(super) fn running_info(state: &LeaderState, operator: &Operator, now: Millis) -> OperatorInfo {
    let waits = state.operators.wait_reason(&state.cluster, operator.region, now);
    let detail = waits.or_else(|| operator.refusal.clone()).unwrap_or_default();
    info(operator, OperatorState::Running, detail, now)
}

pub(super) fn planned_info(operator: &Operator) -> OperatorInfo {
    let state = OperatorState::Unspecified;
    OperatorInfo { id: 0, ..info(operator, state, String::new(), operator.created) }
}

fn ended_info(ended: &Finished, now: Millis) -> OperatorInfo {
    let (state, detail) = match &ended.given_up {
        None => (OperatorState::Done, String::new()),
        // The reason is the refusal of the region's leader.
        Some(reason) if ended.operator.refusal.as_ref() == Some(reason) => {
            (OperatorState::Refused, reason.clone())
        }
        Some(reason) => (OperatorState::Cancelled, reason.clone()),
    };
    info(&ended.operator, state, detail, now)
}

fn info(operator: &Operator, state: OperatorState, detail: String, now: Millis) -> OperatorInfo {
    let steps: Vec<String> = operator.steps.iter().map(ToString::to_string).collect();
    OperatorInfo {
        id: operator.id.0,
        region_id: operator.region.0,
        what: steps.join(", "),
        why: format!("{}: {}", operator.kind, operator.reason),
        state: state as i32,
        steps_done: u32::try_from(operator.done).unwrap_or(u32::MAX),
        steps: u32::try_from(operator.steps.len()).unwrap_or(u32::MAX),
        age_ms: now.since(operator.created),
        detail,
    }
}

impl PlacementService {
    /// Reserves `count` ids for regions and peers that were never allocated; returns the first.
    pub async fn alloc_ids(self: &Arc<Self>, count: u32) -> Result<u64, Status> {
        let request = stele_proto::stele::control::v1::AllocIdsRequest { header: None, count };
        Ok(self.alloc_ids_of(request).await?.first)
    }

    pub(super) async fn take_ids(self: &Arc<Self>, count: u64) -> Result<u64, Status> {
        loop {
            if let Some(ids) = self.update_state(|state| state.cluster.take_ids(count)).await? {
                return Ok(ids.start);
            }
            self.reserve_ids(count).await?;
        }
    }

    async fn reserve_ids(self: &Arc<Self>, count: u64) -> Result<(), Status> {
        let plan = move |cluster: &Cluster, _| {
            let changes = cluster.plan_ids(count);
            Ok(((), changes.map_err(|error| Status::invalid_argument(error.to_string()))?))
        };
        self.commit_decision(plan, |(), _| ()).await
    }

    /// Starts an operator ordered by an administrator. `plan` derives it from the state.
    pub(super) async fn order(
        self: &Arc<Self>,
        plan: impl Fn(&LeaderState) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let ordered = self.order_now(plan).await;
        self.or_retry_later(ordered).await
    }

    async fn order_now(
        self: &Arc<Self>,
        plan: impl Fn(&LeaderState) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let wanted = |state: &LeaderState| {
            let operator = plan(state)?;
            let region = state.cluster.regions().get(operator.region);
            Ok::<u64, Status>(operator.ids_wanted(region.map_or(0, |info| info.region.peers.len())))
        };
        let count = self.read_state(wanted).await??;
        if count > self.read_state(|state| state.cluster.ids_reserved()).await? {
            self.reserve_ids(count).await?;
        }
        let now = self.now();
        self.update_state(|state| {
            state.operators.advance(&state.cluster, now);
            let operator = plan(state)?;
            let admitted = state.operators.admit(&mut state.cluster, operator, now);
            admitted.map_err(not_admitted)
        })
        .await?
    }
}
