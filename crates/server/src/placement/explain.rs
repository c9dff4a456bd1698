//! Reasons of placement: what the schedulers know of each store, and their verdicts.

use super::forward::leader_calls;
use super::stores::{StoreCounts, count};
use super::{PlacementService, lookup, operators, wire};
use std::sync::Arc;
use stele_placement::schedule::explain::{self, Member, Overview, StoreOverview};
use stele_placement::schedule::judge::{Rule, Verdict};
use stele_placement::{
    Cluster, ClusterView, Config, LeaderState, Millis, Rates, RegionInfo, Store, pick_all,
};
use stele_proto::stele::control::v1::{
    ExplainRequest, ExplainResponse, PlacementRequest, PlacementResponse, RegionHeat,
    StorePlacement, StoreRole, StoreVerdict,
};
use stele_types::{RegionId, StoreId};
use tonic::Status;

const PLANNED_MAX: usize = 256;

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
        _: PlacementRequest,
    ) -> Result<PlacementResponse, Status> {
        let now = self.now();
        self.read_state(|state| placement(state, now)).await
    }
}

/// Returns the operations a second by which a store is judged; `None` while its speed is unknown.
pub(super) fn speed_per_second(state: &LeaderState, store: &Store) -> Option<u64> {
    store.report.device.write.per_second(state.cluster.config().speed_op_bytes)
}

fn placement(state: &LeaderState, now: Millis) -> PlacementResponse {
    let view = ClusterView { cluster: &state.cluster, operators: &state.operators, now };
    let overview = explain::overview(&view);
    let running = state.operators.running();
    let running = running.map(|operator| operators::running_info(state, operator, now));
    let planned = pick_all(&view);
    let planned = planned.iter().take(PLANNED_MAX).map(operators::planned_info);
    PlacementResponse {
        mode: mode(&state.cluster),
        speed_op_bytes: state.cluster.config().speed_op_bytes,
        stores: Judged::of(state, &overview).all().collect(),
        moves: running.chain(planned).collect(),
        domain_label: overview.domain_label.unwrap_or_default(),
    }
}

fn explained(
    state: &LeaderState,
    request: &ExplainRequest,
    now: Millis,
) -> Result<ExplainResponse, Status> {
    let info = wanted(state, request)?;
    let view = ClusterView { cluster: &state.cluster, operators: &state.operators, now };
    let Some(explanation) = explain::explain(&view, info.region.id) else {
        return Err(unknown(info.region.id.0));
    };
    let overview = explain::overview(&view);
    let judged = Judged::of(state, &overview);
    let members = explanation.members.iter().map(|member| member_verdict(&judged, info, member));
    let mut stores: Vec<StoreVerdict> = members.collect();
    // The sort keeps the order of the replicas that follow.
    stores.sort_by_key(|verdict| verdict.role != StoreRole::Leader as i32);
    stores.extend(explanation.candidates.iter().map(|verdict| {
        let (role, rule) = (StoreRole::Candidate, &verdict.rule);
        judged.verdict(verdict.store, role, rule, rule.to_string())
    }));
    let running = state.operators.of(info.region.id);
    let running = running.map(|operator| operators::running_info(state, operator, now));
    let planned = || {
        let all = pick_all(&view);
        all.iter().find(|it| it.region == info.region.id).map(operators::planned_info)
    };
    Ok(ExplainResponse {
        region: Some(lookup::region_entry(state, info, now)),
        mode: mode(&state.cluster),
        heat: Some(heat(explanation.rates)),
        stores,
        operator: running.or_else(planned),
    })
}

fn mode(cluster: &Cluster) -> String {
    let setting = Config::setting("placement_mode").ok();
    setting.map_or(String::new(), |setting| setting.text_of(cluster.config().placement_mode))
}

fn heat(rates: Rates) -> RegionHeat {
    let Rates { written_bytes, read_bytes, writes, reads } = rates;
    RegionHeat { written_bytes, read_bytes, writes, reads }
}

fn member_verdict(judged: &Judged<'_>, info: &RegionInfo, member: &Member) -> StoreVerdict {
    let Verdict { store, rule } = &member.leader;
    let leads = info.leader.is_some_and(|leader| leader.store == *store);
    let role = if leads { StoreRole::Leader } else { StoreRole::Replica };
    let moves = member.moves.as_ref().map_or(String::new(), |to| format!("; {to}"));
    judged.verdict(*store, role, rule, format!("{rule}{moves}"))
}

/// Numbers of all stores that are not removed.
struct Judged<'a> {
    state: &'a LeaderState,
    overview: &'a Overview,
    counts: StoreCounts,
    weight_max: u64,
}

impl<'a> Judged<'a> {
    fn of(state: &'a LeaderState, overview: &'a Overview) -> Self {
        let weight_max = overview.stores.iter().map(|store| store.load.weight).max().unwrap_or(0);
        Self { state, overview, counts: count(state), weight_max }
    }

    fn all(&self) -> impl Iterator<Item = StorePlacement> {
        self.overview.stores.iter().map(|store| self.store(store))
    }

    fn store(&self, of: &StoreOverview) -> StorePlacement {
        let load = &of.load;
        let (replicas, leaders) = self.counts.get(&load.store).copied().unwrap_or_default();
        let permille = |permille: u64| u32::try_from(permille).unwrap_or(u32::MAX);
        let mut out = StorePlacement {
            store_id: load.store.0,
            class: of.class.0.into(),
            data_class: self.state.cluster.data_class_of(load.store).0.into(),
            speed_per_second: of.writes_per_second.unwrap_or(0),
            measured: of.is_measured,
            wanted_permille: permille(of.wanted_permille),
            held_permille: permille(of.held_permille),
            fill_permille: of.fill_permille.map(permille),
            unreachable: !load.is_live,
            replicas,
            leaders,
            load_per_second: load.led_ops,
            nearly_full: load.is_nearly_full,
            moving_bytes: load.moving_bytes,
            weight_ppm: ppm(load.weight, self.weight_max),
            serving: load.is_serving,
            ..StorePlacement::default()
        };
        if let Some(store) = self.state.cluster.store(load.store) {
            out.address.clone_from(&store.address);
            out.state = wire::store_state(store.state) as i32;
            out.labels = wire::labels(store);
            out.live_bytes = store.report.live_bytes;
        }
        out
    }

    fn verdict(&self, id: StoreId, role: StoreRole, rule: &Rule, reason: String) -> StoreVerdict {
        let store = self.overview.stores.iter().find(|store| store.load.store == id);
        let store = store.map(|store| self.store(store));
        StoreVerdict { store, role: role as i32, rule: rule.name().to_owned(), reason }
    }
}

/// Returns a part of `whole` in millionths; 0 if `whole` is 0.
fn ppm(part: u64, whole: u64) -> u64 {
    let product = u128::from(part) * 1_000_000;
    product.checked_div(u128::from(whole)).map_or(0, |ppm| u64::try_from(ppm).unwrap_or(u64::MAX))
}

fn unknown(region: u64) -> Status {
    let text = format!("there is no region {region}; `stele ctl regions --system` lists all");
    Status::not_found(text)
}

fn wanted<'a>(state: &'a LeaderState, request: &ExplainRequest) -> Result<&'a RegionInfo, Status> {
    let regions = state.cluster.regions();
    match request.region_id {
        0 => regions
            .by_key(&request.key)
            .ok_or_else(|| Status::not_found("no region is known that holds the key")),
        id => regions.get(RegionId(id)).ok_or_else(|| unknown(id)),
    }
}
