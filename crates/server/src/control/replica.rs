//! State and checksum of one replica.

use crate::memory::{Charging, Exceeded, RequestMemory, next_page};
use crate::node::{oversized_group, size_of};
use crate::store::{Core, StoreHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1 as wire;
use stele_replica::{Admin, AdminCall, Done, Header, Recovery, Refusal, RegionReport, Reply, Role};
use stele_storage::{EngineView, FoundPair, LogStore, Pages, PairSink, StateMachine};
use stele_types::{KeyRange, LogIndex, Region, RegionId, Result, StoreId, Term, is_expired};
use tonic::Status;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const PAGE_BYTES_MAX: usize = 4 << 20;

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
    // Read after the view: every pair that the store has removed from it expired before.
    let clock_s = store.clock().unix_seconds();
    let ranges = report.region.engine_ranges();
    let after_s = request.expires_after_s;
    let (waiting, charged) = (memory.waiting(), memory.clone());
    let checksum = move || checksum_pairs(&view, ranges, after_s, &charged);
    let totals = tokio::task::spawn_blocking(checksum).await;
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
        clock_s,
    })
}

/// Returns checksum, pairs and bytes of the pairs that expire after `after_s` or never.
///
/// Invariant: one digest runs over all pairs in their order. The sum of one digest for each pair would not
/// change when two keys exchange their values.
fn checksum_pairs(
    view: &impl EngineView,
    ranges: Vec<KeyRange>,
    after_s: u64,
    memory: &RequestMemory,
) -> Result<Result<(u64, u64, u64), Exceeded>> {
    let digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Xz);
    let mut sum = Sum { digest, after_s, pairs: 0, bytes: 0 };
    for range in ranges {
        let mut pages = Pages::of_range(view, range);
        pages.bound(usize::MAX, PAGE_BYTES_MAX);
        loop {
            let mut charging = Charging::new(memory);
            match next_page(&mut pages, &mut charging, &mut sum)? {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(exceeded) => return Ok(Err(exceeded)),
            }
            if let Err(exceeded) = charging.settle(0) {
                return Ok(Err(exceeded));
            }
        }
    }
    Ok(Ok((sum.digest.finalize(), sum.pairs, sum.bytes)))
}

/// Digest over the pairs that expire after `after_s` or never, with their number and bytes.
struct Sum {
    digest: crc_fast::Digest,
    after_s: u64,
    pairs: u64,
    bytes: u64,
}

impl PairSink for Sum {
    fn take(&mut self, pair: FoundPair<'_>) {
        let (key, value) = (&pair.key[..], &pair.value[..]);
        // bug server.checksum_of_expired_pairs: never
        if is_expired(pair.expires_at_s, self.after_s) {
            return;
        }
        self.digest.update(&(key.len() as u64).to_le_bytes());
        self.digest.update(key);
        self.digest.update(&(value.len() as u64).to_le_bytes());
        self.digest.update(value);
        self.digest.update(&pair.expires_at_s.to_le_bytes());
        self.pairs += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

/// Returns the state of a replica. `bytes_max`: size above which the node splits regions.
pub(super) async fn detail(
    store: &StoreHandle,
    report: &RegionReport,
    bytes_max: u64,
) -> wire::ReplicaDetail {
    let role = match report.role {
        Role::Leader => wire::RaftRole::Leader,
        Role::Candidate => wire::RaftRole::Candidate,
        Role::Follower => wire::RaftRole::Follower,
    };
    let reader = store.readers().get(report.region.id);
    let (engine, region) = (store.engine().clone(), report.region.clone());
    let leads = report.role == Role::Leader;
    // The device may hang, which must hold no thread of the runtime.
    let measured = tokio::task::spawn_blocking(move || -> Result<_> {
        let size = size_of(&*engine, &region.engine_ranges())?;
        let group = leads.then(|| oversized_group(&*engine, &region, bytes_max)).transpose()?;
        Ok((size, group.flatten()))
    });
    let (size, group) = measured.await.ok().and_then(Result::ok).unwrap_or_default();
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
        oversized_group: group.map(|it| wire::RedisGroup {
            database: it.group.database.into(),
            text: it.group.text,
            is_tag: it.group.is_tag,
            approximate_bytes: it.bytes,
            region_bytes_max: bytes_max,
        }),
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
    // bug server.recover_beside_live_stores: `unknown` is `None`
    if let Some(store) = unknown {
        return Err(Status::unavailable(format!(
            "this node does not know that store {store} was declared lost; retry"
        )));
    }
    let last = (LogIndex(request.last_index), Term(request.last_term));
    let recovery = Recovery { lost, last, term: Term(request.term), command: None };
    let header = Header { region: RegionId(request.region_id), ..Header::default() };
    let call = Admin::Recover(recovery);
    match store.submit(AdminCall { header, call }, None).await {
        Reply::Done(Done::Admin { region }) => Ok(region),
        Reply::Busy(busy) => Err(Status::unavailable(format!("{busy:?}; retry"))),
        Reply::Refused(Refusal::Invalid(reason)) => Err(Status::failed_precondition(reason)),
        other => Err(Status::failed_precondition(format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Class, ConnectionMemory, NodeMemory};
    use bytes::Bytes;
    use stele_storage::{CachedGet, Pair, ScanOptions};

    struct Pairs(Vec<Pair>);

    impl EngineView for Pairs {
        fn get(&self, _: &[u8]) -> Result<Option<Pair>> {
            Ok(None)
        }

        fn get_cached(&self, _: &[u8]) -> Result<CachedGet> {
            Ok(CachedGet::Ready(None))
        }

        fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
            let inside = self.0.iter().filter(|pair| options.range.contains(&pair.key));
            Ok(inside.take(options.limit).cloned().collect())
        }
    }

    fn checksum(pairs: &[(&'static str, &'static str, u64)], after_s: u64) -> (u64, u64, u64) {
        let pair = |(key, value, expires_at_s): &(&'static str, &'static str, u64)| Pair {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(value.as_bytes()),
            expires_at_s: *expires_at_s,
        };
        let view = Pairs(pairs.iter().map(pair).collect());
        let connection = ConnectionMemory::new(&NodeMemory::new(0), 0);
        let memory = RequestMemory::new(&connection, Class::Data);
        checksum_pairs(&view, vec![KeyRange::all()], after_s, &memory).unwrap().unwrap()
    }

    #[test]
    fn a_replica_that_has_removed_expired_pairs_has_the_checksum_of_one_that_has_not() {
        let kept = [("a", "1", 0), ("b", "2", 100), ("c", "3", 101), ("d", "4", 99)];
        let removed = [("a", "1", 0), ("c", "3", 101)];
        assert_eq!(checksum(&kept, 100), checksum(&removed, 100));
        assert_eq!(checksum(&kept, 100), (checksum(&removed, 100).0, 2, 4));
        assert_ne!(checksum(&kept, 0).0, checksum(&removed, 0).0);
        assert_eq!(checksum(&kept, 0).1, 4, "0 leaves out none");
    }

    #[test]
    fn values_exchanged_between_keys_change_the_checksum() {
        let right = checksum(&[("a", "1111", 0), ("b", "2222", 0)], 0);
        let wrong = checksum(&[("a", "2222", 0), ("b", "1111", 0)], 0);
        assert_eq!((right.1, right.2), (wrong.1, wrong.2));
        assert_ne!(right.0, wrong.0);
        // Lengths keep the end of a pair apart from the beginning of the next.
        assert_ne!(checksum(&[("ab", "", 0)], 0).0, checksum(&[("a", "b", 0)], 0).0);
    }
}
