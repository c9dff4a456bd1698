//! TiKV's raw key-value service: API V1 with time to live. And Stele's own calls of keys, in the same terms.

mod batch_commands;
mod checks;
mod conditional;
mod copy;
mod errors;
mod follow;
mod gets;
mod groups;
mod modifications;
mod permissions;
#[cfg(test)]
mod permissions_tests;
mod reads;
mod redis;
mod redis_names;
mod redis_steps;
mod streams;
mod wire;
mod writes;

pub(crate) use conditional::ValueDigest;
pub use errors::Failure;
pub(crate) use redis::SEVERAL_REGIONS;

use crate::access::Standing;
use crate::memory::{Held, RequestMemory};
use crate::observe::{Kind, Metrics, Outcome};
use crate::port::{MESSAGE_BYTES_MAX, OWN_CALLS};
use crate::redis::ScanCursors;
use crate::stores::Stores;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::post;
use checks::Target;
use permissions::{Denying, Permitted};
use prost::Message;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_proto::ScanResponse;
use stele_proto::kvrpcpb::*;
use stele_proto::stele::kv::v1::{
    CopyRequest, ExistRequest, ExistResponse, FollowRequest, GetPairRequest, GetPairResponse,
    ModifyInSessionRequest, ModifyRequest, ModifyResponse, PutInSessionRequest, ReadIndexRequest,
    ReadIndexResponse, WriteIfRequest, WriteIfResponse, WriteRequest, WriteResponse,
};
use stele_proto::stele::redis::v1::{
    ClearRequest, ClearResponse, CursorRequest, CursorResponse, ListRequest, ListResponse,
    MembersRequest, MembersResponse, RunRequest, RunResponse, StepRequest, StepResponse,
};
use stele_replica::StageNanos;
use stele_types::{ClusterId, Error, Level, RegionId};
use streams::StreamCall;
use tokio::sync::watch;
use tonic::Status;
use wire::Unread;

type Memory = Arc<RequestMemory>;

#[derive(Clone)]
pub(crate) struct TikvService {
    stores: Arc<Stores>,
    cluster: ClusterId,
    metrics: Arc<Metrics>,
    cursors: Arc<ScanCursors>,
    /// Turns true when the node stops.
    stop: watch::Receiver<bool>,
}

/// Tries of a read of damaged data, and the pause between them: three seconds in total.
const REPAIR_TRIES: u32 = 60;
const REPAIR_PAUSE: Duration = Duration::from_millis(50);

impl TikvService {
    pub(crate) fn new(
        stores: Arc<Stores>,
        cluster: ClusterId,
        metrics: Arc<Metrics>,
        cursors: Arc<ScanCursors>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self { stores, cluster, metrics, cursors, stop }
    }

    pub(crate) fn routes(self) -> Router {
        unary_routes()
            .route("/tikvpb.Tikv/BatchCommands", post(serve_batch_commands))
            .route(FollowRequest::PATH, post(streams::serve::<FollowRequest>))
            .route(CopyRequest::PATH, post(streams::serve::<CopyRequest>))
            .with_state(self)
    }

    async fn timed<T>(
        &self,
        kind: Kind,
        work: impl Future<Output = Result<T, Failure>>,
        stages: impl FnOnce(&T) -> Option<StageNanos>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let result = work.await;
        let stages = result.as_ref().ok().and_then(stages);
        self.note(kind, 1, started, result.as_ref().err(), stages);
        result
    }

    fn note(
        &self,
        kind: Kind,
        count: usize,
        started: Instant,
        failure: Option<&Failure>,
        stages: Option<StageNanos>,
    ) {
        let outcome = failure.map_or(Outcome::Served, outcome);
        self.metrics.requests(kind, count, started.elapsed(), outcome, stages);
    }

    /// Repeats a read of damaged data from the beginning, while other replicas send copies.
    async fn read<Q: Call>(
        &self,
        request: &Q,
        memory: &Memory,
        kind: Kind,
        work: impl AsyncFn(&Target, &Q, &Memory) -> Result<Q::Answer, Failure>,
    ) -> Q::Answer {
        let used_before = memory.used();
        let once = async || work(&self.target(request)?, request, memory).await;
        let repaired = async {
            for _ in 0..REPAIR_TRIES {
                match once().await {
                    Err(Failure::Damaged(_)) => {
                        memory.release_to(used_before);
                        tokio::time::sleep(REPAIR_PAUSE).await;
                    }
                    result => return result,
                }
            }
            once().await
        };
        self.timed(kind, repaired, |_| None).await.unwrap_or_else(Q::failed)
    }

    /// Executes a write, of which the answer states no more than its success.
    async fn write<Q: Call>(
        &self,
        request: &Q,
        memory: &Memory,
        kind: Kind,
        work: impl AsyncFn(&Target, &Q, &Memory) -> Result<StageNanos, Failure>,
    ) -> Q::Answer {
        let written = async { work(&self.target(request)?, request, memory).await };
        let written = self.timed(kind, written, |stages| Some(*stages)).await;
        written.map_or_else(Q::failed, |_| Q::Answer::default())
    }

    async fn change<Q: Call>(
        &self,
        request: &Q,
        memory: &Memory,
        kind: Kind,
        work: impl AsyncFn(&Target, &Q, &Memory) -> Result<(Q::Answer, StageNanos), Failure>,
    ) -> Q::Answer {
        let changed = async { work(&self.target(request)?, request, memory).await };
        let changed = self.timed(kind, changed, |(_, stages)| Some(*stages)).await;
        changed.map_or_else(Q::failed, |(answer, _)| answer)
    }

    async fn modify(&self, request: &ModifyRequest, memory: &Memory) -> ModifyResponse {
        self.change(request, memory, modifications::kind_of(request), modifications::modify).await
    }

    async fn modify_in_session(
        &self,
        request: &ModifyInSessionRequest,
        memory: &Memory,
    ) -> ModifyResponse {
        if let Err(failure) = self.may_use_sessions() {
            return ModifyInSessionRequest::failed(failure);
        }
        let kind = request.modification.as_ref().map_or(Kind::Cas, modifications::kind_of);
        self.change(request, memory, kind, modifications::modify_in_session).await
    }

    async fn put_in_session(
        &self,
        request: &PutInSessionRequest,
        memory: &Memory,
    ) -> ModifyResponse {
        if let Err(failure) = self.may_use_sessions() {
            return PutInSessionRequest::failed(failure);
        }
        self.change(request, memory, Kind::BatchPut, modifications::put_in_session).await
    }

    async fn write_if(&self, request: &WriteIfRequest, memory: &Memory) -> WriteIfResponse {
        self.change(request, memory, Kind::Cas, conditional::write_if).await
    }

    /// `stele.redis.v1.Redis/Run`.
    async fn run_commands(&self, request: &RunRequest, memory: &Memory) -> RunResponse {
        match self.may_use(Level::REDIS, "Redis keys") {
            Ok(()) => self.change(request, memory, Kind::Redis, redis::run).await,
            Err(failure) => RunRequest::failed(failure),
        }
    }

    /// Executes a read of Redis keys.
    async fn read_redis<Q: Call>(
        &self,
        request: &Q,
        memory: &Memory,
        work: impl AsyncFn(&Target, &Q, &Memory) -> Result<Q::Answer, Failure>,
    ) -> Q::Answer {
        match self.may_use(Level::REDIS, "Redis keys") {
            Ok(()) => self.read(request, memory, Kind::Redis, work).await,
            Err(failure) => Q::failed(failure),
        }
    }

    async fn clear_redis(&self, request: &ClearRequest, memory: &Memory) -> ClearResponse {
        match self.may_use(Level::REDIS, "Redis keys") {
            Ok(()) => self.write(request, memory, Kind::Redis, redis_names::clear).await,
            Err(failure) => ClearRequest::failed(failure),
        }
    }

    /// `stele.redis.v1.Redis/Cursor`.
    async fn cursor(&self, request: &CursorRequest, _: &Memory) -> CursorResponse {
        let place = self.cursors.place(request.cursor);
        CursorResponse { place, ..CursorResponse::default() }
    }

    /// `stele.redis.v1.Redis/Step`.
    async fn run_step(&self, request: &StepRequest, memory: &Memory) -> StepResponse {
        match self.may_use(Level::REDIS, "Redis keys") {
            Ok(()) => self.change(request, memory, Kind::Redis, redis_steps::step).await,
            Err(failure) => StepRequest::failed(failure),
        }
    }

    fn may_use_sessions(&self) -> Result<(), Failure> {
        self.may_use(Level::SESSIONS, "requests of sessions")
    }

    fn may_use(&self, level: Level, what: &str) -> Result<(), Failure> {
        self.stores.may_use(level, what).map_err(|error| match error {
            Error::Busy(reason) => errors::server_is_busy(&reason),
            refused => Failure::Final(refused.to_string()),
        })
    }

    fn target(&self, request: &impl Call) -> Result<Target, Failure> {
        checks::target(&self.stores, request.context())
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

    fn put_failed(&self, failure: Failure) -> RawPutResponse {
        self.note(Kind::Put, 1, Instant::now(), Some(&failure), None);
        RawPutRequest::failed(failure)
    }
}

fn outcome(failure: &Failure) -> Outcome {
    match failure {
        Failure::Region(_) => Outcome::Retry,
        Failure::Invalid(_) | Failure::Final(_) | Failure::Damaged(_) => Outcome::Final,
    }
}

trait Call: Message + Default + Permitted + 'static {
    type Answer: Message + Default + Denying + 'static;
    const PATH: &'static str;

    fn context(&self) -> Option<&Context>;

    fn failed(failure: Failure) -> Self::Answer;

    fn execute(
        &self,
        service: &TikvService,
        memory: &Memory,
    ) -> impl Future<Output = Self::Answer> + Send;
}

/// Defines the unary calls: path, request, answer, and how the service executes them.
macro_rules! unary {
    ($($path:literal: $request:ident -> $answer:ident = $how:ident($($part:expr),*);)*) => {
        $(impl Call for $request {
            type Answer = $answer;
            const PATH: &'static str = $path;

            fn context(&self) -> Option<&Context> {
                self.context.as_ref()
            }

            fn failed(failure: Failure) -> $answer {
                $answer { region_error: Some(failure.into_error()), ..$answer::default() }
            }

            async fn execute(&self, service: &TikvService, memory: &Memory) -> $answer {
                service.$how(self, memory, $($part),*).await
            }
        })*

        fn unary_routes() -> Router<TikvService> {
            Router::new()$(.route($path, post(serve::<$request>)))*
        }
    };
}

unary! {
    "/tikvpb.Tikv/RawGet": RawGetRequest -> RawGetResponse = read(Kind::Get, gets::get);
    "/tikvpb.Tikv/RawBatchGet": RawBatchGetRequest -> RawBatchGetResponse
        = read(Kind::BatchGet, gets::batch_get);
    "/tikvpb.Tikv/RawPut": RawPutRequest -> RawPutResponse = write(Kind::Put, writes::put);
    "/tikvpb.Tikv/RawBatchPut": RawBatchPutRequest -> RawBatchPutResponse
        = write(Kind::BatchPut, writes::batch_put);
    "/tikvpb.Tikv/RawDelete": RawDeleteRequest -> RawDeleteResponse
        = write(Kind::Delete, writes::delete);
    "/tikvpb.Tikv/RawBatchDelete": RawBatchDeleteRequest -> RawBatchDeleteResponse
        = write(Kind::BatchDelete, writes::batch_delete);
    "/tikvpb.Tikv/RawScan": RawScanRequest -> ScanResponse = read(Kind::Scan, reads::scan);
    "/tikvpb.Tikv/RawBatchScan": RawBatchScanRequest -> ScanResponse
        = read(Kind::BatchScan, reads::batch_scan);
    "/tikvpb.Tikv/RawDeleteRange": RawDeleteRangeRequest -> RawDeleteRangeResponse
        = write(Kind::DeleteRange, writes::delete_range);
    "/tikvpb.Tikv/RawGetKeyTTL": RawGetKeyTtlRequest -> RawGetKeyTtlResponse
        = read(Kind::Ttl, gets::ttl);
    "/tikvpb.Tikv/RawCompareAndSwap": RawCasRequest -> RawCasResponse
        = change(Kind::Cas, modifications::compare_and_swap);
    "/tikvpb.Tikv/RawChecksum": RawChecksumRequest -> RawChecksumResponse
        = read(Kind::Checksum, reads::checksum);
    "/stele.kv.v1.Kv/Modify": ModifyRequest -> ModifyResponse = modify();
    "/stele.kv.v1.Kv/ModifyInSession": ModifyInSessionRequest -> ModifyResponse = modify_in_session();
    "/stele.kv.v1.Kv/PutInSession": PutInSessionRequest -> ModifyResponse = put_in_session();
    "/stele.kv.v1.Kv/Exist": ExistRequest -> ExistResponse = read(Kind::Exist, gets::exist);
    "/stele.kv.v1.Kv/Write": WriteRequest -> WriteResponse
        = write(Kind::Write, writes::write);
    "/stele.kv.v1.Kv/ReadIndex": ReadIndexRequest -> ReadIndexResponse
        = read(Kind::ReadIndex, reads::read_index);
    "/stele.kv.v1.Kv/GetPair": GetPairRequest -> GetPairResponse = read(Kind::Get, gets::get_pair);
    "/stele.kv.v1.Kv/WriteIf": WriteIfRequest -> WriteIfResponse = write_if();
    "/stele.redis.v1.Redis/Run": RunRequest -> RunResponse = run_commands();
    "/stele.redis.v1.Redis/List": ListRequest -> ListResponse = read_redis(redis_names::list);
    "/stele.redis.v1.Redis/Members": MembersRequest -> MembersResponse
        = read_redis(redis_names::members);
    "/stele.redis.v1.Redis/Clear": ClearRequest -> ClearResponse = clear_redis();
    "/stele.redis.v1.Redis/Cursor": CursorRequest -> CursorResponse = cursor();
    "/stele.redis.v1.Redis/Step": StepRequest -> StepResponse = run_step();
}

/// Returns why a call is not executed for its caller.
fn denied(call: &impl Call, standing: Option<&Standing>) -> Option<Failure> {
    // bug server.calls_unpermitted: return None;
    call.permitted(standing?).err()
}

/// Returns the answer to a call that is not executed for its caller.
fn denial<Q: Call>(failure: Failure) -> Q::Answer {
    match failure {
        Failure::Final(reason) => Q::Answer::denied(reason),
        other => Q::failed(other),
    }
}

async fn serve<Q: Call>(State(service): State<TikvService>, request: Request) -> Response {
    let rights = match wire::rights(&request) {
        Ok(rights) => rights,
        Err(status) => return status.into_http(),
    };
    let held = match wire::message::<Q>(request, MESSAGE_BYTES_MAX).await {
        Ok((request, memory)) => {
            if let Err(status) = service.check_cluster(request.context()) {
                return status.into_http();
            }
            let denied = denied(&request, rights.standing().as_deref());
            if denied.is_some() {
                rights.note_ungranted();
            }
            let message = match denied {
                None => request.execute(&service, &memory).await,
                // Clients of Stele's own calls take it for final.
                Some(failure) if Q::PATH.starts_with(OWN_CALLS) => {
                    let text = failure.into_error().message;
                    return Status::permission_denied(text).into_http();
                }
                Some(failure) => denial::<Q>(failure),
            };
            Held { message, memory: vec![memory] }
        }
        Err(Unread::Exceeded(exceeded)) => {
            let message = Q::failed(Failure::exceeded(exceeded, RegionId(0)));
            Held { message, memory: Vec::new() }
        }
        Err(Unread::Status(status)) => return status.into_http(),
    };
    wire::answer(tokio_stream::once(Ok(held)))
}

async fn serve_batch_commands(State(service): State<TikvService>, request: Request) -> Response {
    let rights = wire::rights(&request);
    let messages = wire::messages(request, MESSAGE_BYTES_MAX);
    match rights.and_then(|rights| Ok((rights, messages?))) {
        Ok((rights, (requests, arrived))) => {
            wire::answer(batch_commands::serve(service, requests, arrived, rights))
        }
        Err(status) => status.into_http(),
    }
}
