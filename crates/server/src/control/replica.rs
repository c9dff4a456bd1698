//! State and checksum of one replica.

use crate::memory::{Charging, Exceeded, RequestMemory, next_page};
use crate::node::size_of;
use crate::store::{Core, Engine, StoreHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::pages::Pages;
use stele_proto::stele::control::v1 as wire;
use stele_raftstore::{RegionReport, Role};
use stele_storage::StateMachine;
use stele_types::{KeyRange, RegionId, Result};
use tonic::Status;

/// Default time for a replica to apply the requested index.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of pairs that are read together.
const PAGE_BYTES_MAX: usize = 4 << 20;

type View = <Engine as StateMachine>::View;

pub(super) async fn report(store: &StoreHandle, region: RegionId) -> Option<RegionReport> {
    store.with_core(move |core: &mut Core| core.region(region)).await.flatten()
}

/// Computes the checksum of a replica that has applied at least `applied_index`, at exactly the
/// index it returns.
pub(super) async fn checksum(
    store: &Arc<StoreHandle>,
    request: &wire::LocalChecksumRequest,
    memory: Arc<RequestMemory>,
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
    let (waiting, charged) = (memory.waiting(), memory.clone());
    let totals = tokio::task::spawn_blocking(move || checksum_pairs(&view, ranges, &charged)).await;
    waiting.ended();
    let (checksum, pairs, bytes) = totals
        .map_err(|_| Status::unavailable("the server is stopping"))?
        .map_err(|error| Status::data_loss(error.to_string()))?
        .map_err(|exceeded| Status::resource_exhausted(exceeded.to_string()))?;
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

fn checksum_pairs(
    view: &View,
    ranges: Vec<KeyRange>,
    memory: &RequestMemory,
) -> Result<Result<(u64, u64, u64), Exceeded>> {
    let (mut checksum, mut pairs, mut bytes) = (0, 0, 0);
    for range in ranges {
        let mut pages = Pages::of_range(view, range);
        pages.bound(usize::MAX, PAGE_BYTES_MAX);
        loop {
            let mut charging = Charging::new(memory);
            let page = match next_page(&mut pages, &mut charging)? {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(exceeded) => return Ok(Err(exceeded)),
            };
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
            drop(page);
            if let Err(exceeded) = charging.settle(0) {
                return Ok(Err(exceeded));
            }
        }
    }
    Ok(Ok((checksum, pairs, bytes)))
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
        ..wire::ReplicaDetail::default()
    }
}
