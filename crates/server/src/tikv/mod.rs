//! TiKV's raw key-value service: API V1 with time to live. And Stele's own calls of keys, in the same terms.

mod batch_commands;
mod checks;
mod errors;
mod get_groups;
mod modifications;
mod put_groups;
mod reads;
mod unsupported;
mod wire;
mod writes;

pub use errors::Failure;

use crate::memory::{Exceeded, Held, RequestMemory};
use crate::observe::{Kind, Metrics, Outcome, Stages};
use crate::port::MESSAGE_BYTES_MAX;
use crate::stores::Stores;
use axum::Router;
use axum::extract::{Request, State};
use axum::routing::post;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::errorpb;
use stele_proto::kvrpcpb::*;
use stele_proto::stele::kv::v1::{ExistRequest, ExistResponse, ModifyRequest, ModifyResponse};
use stele_replica::Modified;
use stele_types::{ClusterId, RegionId};
use tokio::sync::watch;
use tonic::Status;
use wire::Unread;

/// Memory of one request.
type Memory = Arc<RequestMemory>;

/// Raw key-value service over this node's stores.
#[derive(Clone)]
pub struct TikvService {
    stores: Arc<Stores>,
    cluster: ClusterId,
    metrics: Arc<Metrics>,
    /// Turns true when the node stops.
    stop: watch::Receiver<bool>,
}

/// Tries of a read of damaged data, and the pause between them: three seconds in total.
const REPAIR_TRIES: u32 = 60;
const REPAIR_PAUSE: Duration = Duration::from_millis(50);

impl TikvService {
    /// Creates the service of one cluster's node.
    pub fn new(
        stores: Arc<Stores>,
        cluster: ClusterId,
        metrics: Arc<Metrics>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self { stores, cluster, metrics, stop }
    }

    async fn timed<T>(
        &self,
        kind: Kind,
        count: usize,
        work: impl Future<Output = Result<T, Failure>>,
        stages: impl FnOnce(&T) -> Option<Stages>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let result = work.await;
        let outcome = result.as_ref().err().map_or(Outcome::Served, outcome);
        let stages = result.as_ref().ok().and_then(stages);
        self.metrics.requests(kind, count, started.elapsed(), outcome, stages);
        result
    }

    /// Repeats a read of damaged data from the beginning, while other replicas send copies.
    async fn read<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        kind: Kind,
        memory: &RequestMemory,
        work: impl Fn() -> F,
    ) -> Result<T, Failure> {
        let used_before = memory.used();
        let repaired = async {
            for _ in 0..REPAIR_TRIES {
                match work().await {
                    Err(Failure::Damaged(_)) => {
                        memory.release_to(used_before);
                        tokio::time::sleep(REPAIR_PAUSE).await;
                    }
                    result => return result,
                }
            }
            work().await
        };
        self.timed(kind, 1, repaired, |_| None).await
    }

    /// Executes `count` writes as one.
    async fn write(
        &self,
        kind: Kind,
        count: usize,
        work: impl Future<Output = Result<Stages, Failure>>,
    ) -> Option<errorpb::Error> {
        let result = self.timed(kind, count, work, |stages| Some(*stages)).await;
        result.err().map(Failure::into_error)
    }

    /// Refuses requests for another cluster: serving them would mix up their client's data.
    fn check_cluster(&self, context: Option<&Context>) -> Result<(), Box<Status>> {
        let requested = context.map_or(0, |context| context.cluster_id);
        if requested == 0 || requested == self.cluster.0 {
            return Ok(());
        }
        let text = format!("mismatch cluster id, need {} but got {requested}", self.cluster);
        Err(Box::new(Status::invalid_argument(text)))
    }

    async fn get(&self, request: RawGetRequest, memory: &Memory) -> RawGetResponse {
        let mut response = RawGetResponse::default();
        match self.read(Kind::Get, memory, || reads::get(&self.stores, &request, memory)).await {
            Ok(Some(value)) => response.value = value,
            Ok(None) => response.not_found = true,
            Err(failure) => response.region_error = Some(failure.into_error()),
        }
        response
    }

    async fn batch_get(&self, request: RawBatchGetRequest, memory: &Memory) -> RawBatchGetResponse {
        let found = self
            .read(Kind::BatchGet, memory, || reads::batch_get(&self.stores, &request, memory))
            .await;
        let (region_error, pairs) = pairs(found);
        RawBatchGetResponse { region_error, pairs }
    }

    async fn scan(&self, request: RawScanRequest, memory: &Memory) -> RawScanResponse {
        let found =
            self.read(Kind::Scan, memory, || reads::scan(&self.stores, &request, memory)).await;
        let (region_error, kvs) = pairs(found);
        RawScanResponse { region_error, kvs }
    }

    async fn batch_scan(
        &self,
        request: RawBatchScanRequest,
        memory: &Memory,
    ) -> RawBatchScanResponse {
        let found = self
            .read(Kind::BatchScan, memory, || reads::batch_scan(&self.stores, &request, memory))
            .await;
        let (region_error, kvs) = pairs(found);
        RawBatchScanResponse { region_error, kvs }
    }

    async fn put(&self, request: RawPutRequest, memory: &Memory) -> RawPutResponse {
        let done = writes::put(&self.stores, &request, memory);
        let region_error = self.write(Kind::Put, 1, done).await;
        RawPutResponse { region_error, ..RawPutResponse::default() }
    }

    /// Returns the answer to a put that was not proposed.
    fn put_failed(&self, failure: Failure) -> RawPutResponse {
        let outcome = outcome(&failure);
        self.metrics.requests(Kind::Put, 1, Duration::ZERO, outcome, None);
        RawPutResponse { region_error: Some(failure.into_error()), ..RawPutResponse::default() }
    }

    async fn batch_put(&self, request: RawBatchPutRequest, memory: &Memory) -> RawBatchPutResponse {
        let done = writes::batch_put(&self.stores, &request, memory);
        let region_error = self.write(Kind::BatchPut, 1, done).await;
        RawBatchPutResponse { region_error, ..RawBatchPutResponse::default() }
    }

    async fn delete(&self, request: RawDeleteRequest, memory: &Memory) -> RawDeleteResponse {
        let done = writes::delete(&self.stores, &request, memory);
        let region_error = self.write(Kind::Delete, 1, done).await;
        RawDeleteResponse { region_error, ..RawDeleteResponse::default() }
    }

    async fn batch_delete(
        &self,
        request: RawBatchDeleteRequest,
        memory: &Memory,
    ) -> RawBatchDeleteResponse {
        let done = writes::batch_delete(&self.stores, &request, memory);
        let region_error = self.write(Kind::BatchDelete, 1, done).await;
        RawBatchDeleteResponse { region_error, ..RawBatchDeleteResponse::default() }
    }

    async fn delete_range(
        &self,
        request: RawDeleteRangeRequest,
        memory: &Memory,
    ) -> RawDeleteRangeResponse {
        let done = writes::delete_range(&self.stores, &request, memory);
        let region_error = self.write(Kind::DeleteRange, 1, done).await;
        RawDeleteRangeResponse { region_error, ..RawDeleteRangeResponse::default() }
    }

    async fn ttl(&self, request: RawGetKeyTtlRequest, memory: &Memory) -> RawGetKeyTtlResponse {
        let mut response = RawGetKeyTtlResponse::default();
        match self.read(Kind::Ttl, memory, || reads::ttl(&self.stores, &request, memory)).await {
            Ok(Some(ttl)) => response.ttl = ttl,
            Ok(None) => response.not_found = true,
            Err(failure) => response.region_error = Some(failure.into_error()),
        }
        response
    }

    async fn compare_and_swap(&self, request: RawCasRequest, memory: &Memory) -> RawCasResponse {
        let mut response = RawCasResponse::default();
        let swap = modifications::compare_and_swap(&self.stores, &request, memory);
        match self.timed(Kind::Cas, 1, swap, |decided| Some(decided.stages)).await {
            Ok(decided) => {
                let (succeeded, previous) = match decided.result {
                    Modified::Replaced { previous } => (true, previous),
                    Modified::Unchanged { previous } => (false, previous),
                    // A comparison has no other result.
                    Modified::Updated { .. } | Modified::Unfit(_) => (false, None),
                };
                response.succeed = succeeded;
                response.previous_not_exist = previous.is_none();
                response.previous_value = previous.map(|pair| pair.value).unwrap_or_default();
            }
            Err(failure) => response.region_error = Some(failure.into_error()),
        }
        response
    }

    async fn modify(&self, request: ModifyRequest, memory: &Memory) -> ModifyResponse {
        let kind = modifications::kind_of(&request);
        let decided = modifications::modify(&self.stores, &request, memory);
        match self.timed(kind, 1, decided, |decided| Some(decided.stages)).await {
            Ok(decided) => modifications::answer(&request, decided.result),
            Err(failure) => {
                let region_error = Some(failure.into_error());
                ModifyResponse { region_error, ..ModifyResponse::default() }
            }
        }
    }

    async fn exist(&self, request: ExistRequest, memory: &Memory) -> ExistResponse {
        let mut response = ExistResponse::default();
        match self.read(Kind::Exist, memory, || reads::exist(&self.stores, &request, memory)).await
        {
            Ok(keys) => response.keys = keys,
            Err(failure) => response.region_error = Some(failure.into_error()),
        }
        response
    }

    async fn checksum(&self, request: RawChecksumRequest, memory: &Memory) -> RawChecksumResponse {
        let mut response = RawChecksumResponse::default();
        match self
            .read(Kind::Checksum, memory, || reads::checksum(&self.stores, &request, memory))
            .await
        {
            Ok((checksum, pairs, bytes)) => {
                (response.checksum, response.total_kvs) = (checksum, pairs);
                response.total_bytes = bytes;
            }
            Err(failure) => response.region_error = Some(failure.into_error()),
        }
        response
    }
}

fn outcome(failure: &Failure) -> Outcome {
    match failure {
        Failure::Region(_) => Outcome::Retry,
        Failure::Invalid(_) | Failure::Final(_) | Failure::Damaged(_) => Outcome::Final,
    }
}

fn pairs(result: Result<Vec<KvPair>, Failure>) -> (Option<errorpb::Error>, Vec<KvPair>) {
    match result {
        Ok(pairs) => (None, pairs),
        Err(failure) => (Some(failure.into_error()), Vec::new()),
    }
}

/// Answer that can state that its request was not executed.
trait Refuse: Default {
    /// Returns the answer to a request without memory.
    fn refused(exceeded: Exceeded) -> Self;
}

macro_rules! refuse {
    ($($answer:ty)*) => {$(
        impl Refuse for $answer {
            fn refused(exceeded: Exceeded) -> Self {
                let failure = Failure::exceeded(exceeded, RegionId(0));
                let region_error = Some(failure.into_error());
                Self { region_error, ..Self::default() }
            }
        }
    )*};
}

refuse! {
    RawGetResponse RawBatchGetResponse RawPutResponse RawBatchPutResponse RawDeleteResponse
    RawBatchDeleteResponse RawScanResponse RawBatchScanResponse RawDeleteRangeResponse
    RawGetKeyTtlResponse RawCasResponse RawChecksumResponse ModifyResponse ExistResponse
}

/// Defines the unary calls: each checks the cluster and answers in its own type.
macro_rules! unary {
    ($($path:literal: $request:ty = $method:ident;)*) => {
        /// Returns the routes that the node's port serves.
        pub fn routes(self) -> Router {
            Router::new()
                $(.route($path, post(
                    async |State(service): State<Self>, request: Request| {
                        let read = wire::message::<$request>(request, MESSAGE_BYTES_MAX).await;
                        let held = match read {
                            Ok((request, memory)) => {
                                if let Err(status) =
                                    service.check_cluster(request.context.as_ref())
                                {
                                    return status.into_http();
                                }
                                let message = service.$method(request, &memory).await;
                                Held { message, memory: vec![memory] }
                            }
                            Err(Unread::Exceeded(exceeded)) => {
                                Held { message: Refuse::refused(exceeded), memory: Vec::new() }
                            }
                            Err(Unread::Status(status)) => return status.into_http(),
                        };
                        wire::answer(tokio_stream::once(Ok(held)))
                    },
                )))*
                .route("/tikvpb.Tikv/BatchCommands", post(
                    async |State(service): State<Self>, request: Request| {
                        match wire::messages(request, MESSAGE_BYTES_MAX) {
                            Ok((requests, arrived)) => {
                                wire::answer(batch_commands::serve(service, requests, arrived))
                            }
                            Err(status) => status.into_http(),
                        }
                    },
                ))
                .with_state(self)
        }
    };
}

impl TikvService {
    unary! {
        "/tikvpb.Tikv/RawGet": RawGetRequest = get;
        "/tikvpb.Tikv/RawBatchGet": RawBatchGetRequest = batch_get;
        "/tikvpb.Tikv/RawPut": RawPutRequest = put;
        "/tikvpb.Tikv/RawBatchPut": RawBatchPutRequest = batch_put;
        "/tikvpb.Tikv/RawDelete": RawDeleteRequest = delete;
        "/tikvpb.Tikv/RawBatchDelete": RawBatchDeleteRequest = batch_delete;
        "/tikvpb.Tikv/RawScan": RawScanRequest = scan;
        "/tikvpb.Tikv/RawBatchScan": RawBatchScanRequest = batch_scan;
        "/tikvpb.Tikv/RawDeleteRange": RawDeleteRangeRequest = delete_range;
        "/tikvpb.Tikv/RawGetKeyTTL": RawGetKeyTtlRequest = ttl;
        "/tikvpb.Tikv/RawCompareAndSwap": RawCasRequest = compare_and_swap;
        "/tikvpb.Tikv/RawChecksum": RawChecksumRequest = checksum;
        "/stele.kv.v1.Kv/Modify": ModifyRequest = modify;
        "/stele.kv.v1.Kv/Exist": ExistRequest = exist;
    }
}
