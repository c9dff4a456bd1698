//! Locations of keys, as PD returns them to clients, and lists of regions. Followers forward to the
//! leader.
//!
//! Invariant: epoch and term of a region in an answer were persisted before, and no other node led in a
//! later term when the answer was made. The next leader loads what is persisted and accepts nothing
//! earlier. Therefore no later answer goes back.
//! Tests: `a_new_placement_leader_answers_no_earlier_epoch_and_no_earlier_leader_of_a_region`,
//! `a_former_leader_that_has_not_noticed_answers_nothing`.

use super::forward::leader_calls;
use super::{PlacementService, wire};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_placement::{Cluster, LeaderState, Millis, RegionInfo};
use stele_proto::stele::control::v1 as control;
use stele_proto::stele::control::v1::{ListRegionsRequest, ListRegionsResponse, RegionFilter};
use stele_types::{KeyRange, PeerRole, RegionId, RegionKind, RegionPhase, StoreId, Term};
use tonic::Status;

const SAVE_BYTES_MAX: usize = 256 << 10;
const SAVES_MAX: usize = 1000;

impl PlacementService {
    pub(crate) async fn region_by_key(
        self: &Arc<Self>,
        key: &[u8],
    ) -> Result<Option<RegionInfo>, Status> {
        if self.leads() {
            let found = |state: &LeaderState| state.cluster.regions().by_key(key).cloned();
            return self.answer_regions(found, of_one).await;
        }
        let start_key = Bytes::copy_from_slice(key);
        let request = ListRegionsRequest { start_key, limit: 1, ..Default::default() };
        let (found, _) = self.ask_for_regions(request).await?;
        Ok(found.into_iter().find(|info| info.region.range.contains(key)))
    }

    /// Returns the region that ends where the one that holds `key` begins.
    pub(crate) async fn previous_region(
        self: &Arc<Self>,
        key: &[u8],
    ) -> Result<Option<RegionInfo>, Status> {
        if self.leads() {
            let found = |state: &LeaderState| state.cluster.regions().before_key(key).cloned();
            return self.answer_regions(found, of_one).await;
        }
        let start_key = Bytes::copy_from_slice(key);
        let request = ListRegionsRequest { start_key, previous: true, ..Default::default() };
        let (found, _) = self.ask_for_regions(request).await?;
        Ok(found.into_iter().next())
    }

    pub(crate) async fn region_by_id(
        self: &Arc<Self>,
        id: RegionId,
    ) -> Result<Option<RegionInfo>, Status> {
        let is_data = |info: &RegionInfo| info.region.kind == RegionKind::Data;
        if self.leads() {
            let found = |state: &LeaderState| {
                state.cluster.regions().get(id).filter(|it| is_data(it)).cloned()
            };
            return self.answer_regions(found, of_one).await;
        }
        let request = ListRegionsRequest { region_id: id.0, ..Default::default() };
        let (found, _) = self.ask_for_regions(request).await?;
        Ok(found.into_iter().find(is_data))
    }

    /// Returns the regions that hold keys of `range`, ascending; at most `limit`, or all for 0.
    pub async fn scan_regions(
        self: &Arc<Self>,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<RegionInfo>, Status> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        if self.leads() {
            let scan = |state: &LeaderState| {
                state.cluster.regions().in_range(range).take(limit).cloned().collect::<Vec<_>>()
            };
            let ids = |found: &Vec<RegionInfo>| found.iter().map(|info| info.region.id).collect();
            return self.answer_regions(scan, ids).await;
        }
        let (mut out, mut known): (Vec<RegionInfo>, _) = (Vec::new(), BTreeSet::new());
        let mut next = Some(range.start.clone());
        while let Some(start_key) = next.filter(|_| out.len() < limit) {
            let request = ListRegionsRequest {
                start_key,
                end_key: range.end.clone(),
                limit: u32::try_from(limit - out.len()).unwrap_or(0),
                ..Default::default()
            };
            let (found, continues_at) = self.ask_for_regions(request).await?;
            // Regions may have split between two pages: then the newer one is returned again.
            out.extend(found.into_iter().filter(|info| known.insert(info.region.id)));
            next = continues_at;
        }
        Ok(out)
    }

    /// Returns the regions that hold keys of any of the ranges, each once. `None` if `contain_all`
    /// is set and some key is in no region. Fails with `INVALID_ARGUMENT` on ranges that go
    /// backwards.
    pub async fn batch_scan_regions(
        self: &Arc<Self>,
        ranges: &[KeyRange],
        limit: usize,
        contain_all: bool,
    ) -> Result<Option<Vec<RegionInfo>>, Status> {
        if ranges.iter().any(|range| !range.end.is_empty() && range.start > range.end) {
            return Err(Status::invalid_argument("invalid key range, start key > end key"));
        }
        let mut out: Vec<RegionInfo> = Vec::new();
        let mut seen = BTreeSet::new();
        for range in ranges {
            let left = match limit {
                0 => 0,
                limit if out.len() >= limit => break,
                // The first may be known from the range before.
                limit => limit - out.len() + 1,
            };
            let found = self.scan_regions(range, left).await?;
            let is_cut = left > 0 && found.len() >= left;
            if contain_all && !is_gapless(range, &found, is_cut) {
                return Ok(None);
            }
            out.extend(found.into_iter().filter(|info| seen.insert(info.region.id)));
        }
        if limit > 0 {
            out.truncate(limit);
        }
        Ok(Some(out))
    }

    /// Reads an answer that holds regions. `ids` returns the regions of an answer.
    pub(super) async fn answer_regions<T>(
        self: &Arc<Self>,
        read: impl Fn(&LeaderState) -> T,
        ids: impl Fn(&T) -> Vec<RegionId>,
    ) -> Result<T, Status> {
        for _ in 0..SAVES_MAX {
            let found = |state: &LeaderState| {
                let answer = read(state);
                (state.term, unsaved(state, ids(&answer)), answer)
            };
            let (term, unsaved, answer) = self.read_state(found).await?;
            if unsaved.is_empty() {
                self.confirm(term).await?;
                return Ok(answer);
            }
            self.save_regions(unsaved).await?;
        }
        Err(Status::unavailable("not leader: the regions change faster than they are persisted"))
    }

    /// Fails if another node may lead in a later term.
    async fn confirm(self: &Arc<Self>, term: Term) -> Result<(), Status> {
        // bug server.answers_of_a_former_leader: return Ok(());
        let confirmed = self.system.confirm(term).await;
        confirmed.map_err(|error| Status::unavailable(format!("not leader: {error}")))
    }

    async fn save_regions(self: &Arc<Self>, ids: Vec<RegionId>) -> Result<(), Status> {
        let _saving = self.saving.lock().await;
        // The holder before may have persisted them.
        let ids = self.read_state(|state| unsaved(state, ids)).await?;
        if ids.is_empty() {
            return Ok(());
        }
        let plan = move |cluster: &Cluster, _| Ok(((), cluster.plan_regions(&ids, SAVE_BYTES_MAX)));
        self.commit_decision(plan, |(), _| ()).await
    }

    async fn ask_for_regions(
        self: &Arc<Self>,
        request: ListRegionsRequest,
    ) -> Result<(Vec<RegionInfo>, Option<Bytes>), Status> {
        let answer = self.list_regions(request).await?;
        let reports = answer.regions.iter().filter_map(|info| info.report.as_ref());
        Ok((reports.filter_map(wire::info_of).collect(), answer.next_key))
    }
}

fn of_one(found: &Option<RegionInfo>) -> Vec<RegionId> {
    found.iter().map(|info| info.region.id).collect()
}

/// Returns the regions that must be persisted before they are answered.
fn unsaved(state: &LeaderState, mut ids: Vec<RegionId>) -> Vec<RegionId> {
    ids.retain(|id| !state.cluster.regions().is_saved(*id));
    // bug server.answers_unsaved_regions: ids.clear();
    ids
}

/// Returns whether regions, ascending, hold every key of `range`; if `is_cut`, only up to the last
/// of them.
fn is_gapless(range: &KeyRange, regions: &[RegionInfo], is_cut: bool) -> bool {
    let mut covered = &range.start;
    for info in regions {
        if info.region.range.start > *covered {
            return false;
        }
        covered = &info.region.range.end;
        if covered.is_empty() {
            return true;
        }
    }
    is_cut || (!range.end.is_empty() && *covered >= range.end)
}

const PAGE_MAX: usize = 4096;

leader_calls! {
    /// Lists what is known of regions, ascending by key, in pages.
    list_regions, list_regions(ListRegionsRequest) -> ListRegionsResponse = list_regions_here;
}

impl PlacementService {
    async fn list_regions_here(
        self: &Arc<Self>,
        request: ListRegionsRequest,
    ) -> Result<ListRegionsResponse, Status> {
        let now = self.now();
        let ids = |answer: &(ListRegionsResponse, Vec<RegionId>)| answer.1.clone();
        let (response, _) = self.answer_regions(|state| list(state, &request, now), ids).await?;
        Ok(response)
    }
}

fn list(
    state: &LeaderState,
    request: &ListRegionsRequest,
    now: Millis,
) -> (ListRegionsResponse, Vec<RegionId>) {
    let regions = state.cluster.regions();
    let page = |found: Vec<&RegionInfo>, next_key| {
        let ids = found.iter().map(|info| info.region.id).collect();
        let regions = found.into_iter().map(|info| region_entry(state, info, now)).collect();
        (ListRegionsResponse { regions, next_key }, ids)
    };
    let one = |info: Option<&RegionInfo>| page(info.into_iter().collect(), None);
    if request.previous {
        return one(regions.before_key(&request.start_key));
    }
    if request.region_id != 0 {
        return one(regions.get(RegionId(request.region_id)));
    }
    let limit = match request.limit {
        0 => PAGE_MAX,
        limit => PAGE_MAX.min(limit as usize),
    };
    let range = KeyRange::new(request.start_key.clone(), request.end_key.clone());
    let wanted = |info: &&RegionInfo| matches(state, request, info);
    let system = regions.iter().filter(|info| info.region.kind == RegionKind::System);
    let system = system.filter(|_| request.system && request.start_key.is_empty());
    let mut found: Vec<&RegionInfo> =
        system.chain(regions.in_range(&range)).filter(wanted).take(limit + 1).collect();
    let next_key = found.get(limit).map(|info| Bytes::clone(&info.region.range.start));
    found.truncate(limit);
    page(found, next_key)
}

pub(super) fn region_entry(
    state: &LeaderState,
    info: &RegionInfo,
    now: Millis,
) -> control::RegionInfo {
    let age = info.reported.map(|at| i64::try_from(now.since(at)).unwrap_or(i64::MAX));
    let operator = state.operators.of(info.region.id);
    control::RegionInfo {
        report: Some(wire::report(info)),
        report_age_ms: age.unwrap_or(-1),
        operator_id: operator.map_or(0, |operator| operator.id.0),
    }
}

fn matches(state: &LeaderState, request: &ListRegionsRequest, info: &RegionInfo) -> bool {
    let region = &info.region;
    if request.store_id != 0 && region.peer_on(StoreId(request.store_id)).is_none() {
        return false;
    }
    let voters = region.peers.iter().filter(|peer| peer.role != PeerRole::Learner).count();
    let wanted = match region.kind {
        RegionKind::Data => state.cluster.config().replicas(),
        RegionKind::System => 3,
    };
    match RegionFilter::try_from(request.filter).unwrap_or(RegionFilter::All) {
        RegionFilter::All => true,
        RegionFilter::NoLeader => info.leader.is_none(),
        RegionFilter::MissingPeer => voters < wanted,
        RegionFilter::ExtraPeer => region.peers.len() > wanted,
        RegionFilter::DownPeer => !info.down.is_empty(),
        RegionFilter::PendingPeer => !info.pending.is_empty(),
        RegionFilter::Joint => region.is_joint(),
        RegionFilter::Merging => matches!(region.phase, RegionPhase::Merging { .. }),
    }
}
