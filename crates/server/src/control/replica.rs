//! State and checksum of one replica.

use crate::node::size_of;
use crate::store::{Core, Engine, StoreHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::pages::Pages;
use stele_proto::stele::control::v1 as wire;
use stele_raftstore::{
    Admin, AdminCall, Done, Header, Recovery, Refusal, RegionReport, Reply, RequestId, Role,
};
use stele_storage::{LogStore, StateMachine};
use stele_types::{KeyRange, LogIndex, Region, RegionId, Result, StoreId, Term, mutant};
use tonic::Status;

/// Default time for a replica to apply the requested index.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

type View = <Engine as StateMachine>::View;

pub(super) async fn report(store: &StoreHandle, region: RegionId) -> Option<RegionReport> {
    store.with_core(move |core: &mut Core| core.region(region)).await.flatten()
}

/// Computes the checksum of a replica that has applied at least `applied_index`, at exactly the
/// index it returns.
pub(super) async fn checksum(
    store: &Arc<StoreHandle>,
    request: &wire::LocalChecksumRequest,
) -> Result<wire::LocalChecksumResponse, Status> {
    let region = RegionId(request.region_id);
    let limit = match request.timeout_ms {
        0 => TIMEOUT_DEFAULT,
        limit => Duration::from_millis(u64::from(limit)),
    };
    let started = Instant::now();
    let (report, view) = loop {
        let engine = store.engine().clone();
        // Between two iterations of the loop, the view and the applied index match.
        let found =
            store.with_core(move |core: &mut Core| Some((core.region(region)?, engine.view())));
        let Some((report, view)) = found.await.flatten() else {
            return Err(Status::not_found(format!("region {region} is not on this store")));
        };
        if report.applied.0 >= request.applied_index {
            break (report, view.map_err(|error| Status::internal(error.to_string()))?);
        }
        if started.elapsed() > limit {
            let applied = report.applied;
            return Err(Status::deadline_exceeded(format!("applied up to {applied} only")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let ranges = report.region.engine_ranges();
    let totals = tokio::task::spawn_blocking(move || checksum_pairs(&view, ranges)).await;
    let (checksum, pairs, bytes) = totals
        .map_err(|_| Status::unavailable("the server is stopping"))?
        .map_err(|error| Status::data_loss(error.to_string()))?;
    Ok(wire::LocalChecksumResponse {
        store_id: store.id().0,
        peer_id: report.peer.id.0,
        applied_index: report.applied.0,
        conf_version: report.region.epoch.conf_version,
        version: report.region.epoch.version,
        checksum,
        pairs,
        bytes,
    })
}

fn checksum_pairs(view: &View, ranges: Vec<KeyRange>) -> Result<(u64, u64, u64)> {
    let (mut checksum, mut pairs, mut bytes) = (0, 0, 0);
    for range in ranges {
        let mut pages = Pages::of_range(view, range);
        while let Some(page) = pages.next_page()? {
            for pair in &page {
                let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Xz);
                digest.update(&pair.key);
                digest.update(&(pair.value.len() as u64).to_le_bytes());
                digest.update(&pair.value);
                digest.update(&pair.expires_at_s.to_le_bytes());
                checksum ^= digest.finalize();
                pairs += 1;
                bytes += (pair.key.len() + pair.value.len()) as u64;
            }
        }
    }
    Ok((checksum, pairs, bytes))
}

/// Returns the Raft state and size of a replica.
pub(super) async fn detail(store: &StoreHandle, report: &RegionReport) -> wire::ReplicaDetail {
    let role = match report.role {
        Role::Leader => wire::RaftRole::Leader,
        Role::Candidate => wire::RaftRole::Candidate,
        Role::Follower => wire::RaftRole::Follower,
    };
    let reader = store.readers().get(report.region.id);
    let (engine, ranges) = (store.engine().clone(), report.region.engine_ranges());
    // The device may hang, which must hold no thread of the runtime.
    let size = tokio::task::spawn_blocking(move || size_of(&*engine, &ranges)).await;
    let size = size.ok().and_then(Result::ok).unwrap_or_default();
    wire::ReplicaDetail {
        store_id: store.id().0,
        region: report.region.encode(),
        peer_id: report.peer.id.0,
        role: role as i32,
        leader_peer_id: report.leader.map_or(0, |leader| leader.id.0),
        term: report.term.0,
        first_index: report.truncated.next().0,
        last_index: report.last.0,
        committed_index: report.committed.0,
        applied_index: report.applied.0,
        hibernating: report.hibernating,
        lease_nanos: reader
            .map_or(0, |reader| reader.lease_left_nanos(store.clock().monotonic_nanos())),
        approximate_bytes: size.bytes,
        approximate_keys: size.keys,
        last_term: store.engine().term(report.region.id, report.last).unwrap_or_default().0,
        ..wire::ReplicaDetail::default()
    }
}

/// Makes a replica the region's after the loss of a majority.
///
/// Invariant: the placement group has declared the stores lost. Otherwise they could return with a
/// majority of the former members.
pub(super) async fn recover(
    store: &Arc<StoreHandle>,
    request: &wire::RecoverReplicaRequest,
    is_removed: impl Fn(StoreId) -> bool,
) -> Result<Region, Status> {
    let lost: Vec<StoreId> = request.lost_stores.iter().copied().map(StoreId).collect();
    let unknown = lost.iter().find(|store| !is_removed(**store));
    if let Some(store) = unknown.filter(|_| !mutant::active("server.recover_beside_live_stores")) {
        return Err(Status::unavailable(format!(
            "this node does not know that store {store} was declared lost; retry"
        )));
    }
    let last = (LogIndex(request.last_index), Term(request.last_term));
    let recovery = Recovery { lost, last, term: Term(request.term) };
    let header = Header { region: RegionId(request.region_id), ..Header::default() };
    let call = Admin::Recover(recovery);
    match store.admin(AdminCall { id: RequestId::default(), header, call }).await {
        Reply::Done(Done::Admin { region }) => Ok(region),
        Reply::Busy(busy) => Err(Status::unavailable(format!("{busy:?}; retry"))),
        Reply::Refused(Refusal::Invalid(reason)) => Err(Status::failed_precondition(reason)),
        other => Err(Status::failed_precondition(format!("{other:?}"))),
    }
}
