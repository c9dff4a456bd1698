//! Remote calls as values: their requests, and how their responses are read.

use crate::connections::{Connection, Wire};
use crate::delivery::{Departure, Observed};
use crate::stream::COMMAND_BYTES_MAX;
use bytes::Bytes;
use std::future::Future;
use stele_proto::stele::control::v1 as control;
use stele_proto::stele::kv::v1 as kv;
use stele_proto::stele::redis::v1 as redis;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::{ScanResponse, errorpb, kvrpcpb, pdpb};
use tonic::{Response, Status};

/// Maximum length of a request or response: a page of large values.
pub(crate) const MESSAGE_BYTES_MAX: usize = 256 << 20;

pub(crate) trait Call: Clone + Send + Sync + 'static {
    type Response: Send;

    /// Sends the call once. `departure` tells whether it was handed to the connection.
    fn send(
        self,
        connection: &Connection,
        departure: &Departure,
    ) -> impl Future<Output = Result<Self::Response, Status>> + Send;
}

/// Effect of a raw call that arrives twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// No effect.
    Read,
    /// The same effect again.
    Write,
    /// A different effect: the call is never sent again once it may have arrived.
    Once,
    /// The first result, and no effect: the call is a request of a session.
    Recorded,
}

pub(crate) trait RawCall: Call {
    const REPETITION: Repetition;

    fn set_context(&mut self, context: kvrpcpb::Context);

    fn region_error(response: &mut Self::Response) -> Option<errorpb::Error>;

    /// Takes the final error of the response; empty for none.
    fn failure(response: &mut Self::Response) -> String;
}

pub(crate) trait PdCall: Call {
    fn set_cluster(&mut self, cluster: u64);

    fn header(response: &mut Self::Response) -> Option<pdpb::ResponseHeader>;
}

pub(crate) trait ControlCall: Call {
    fn set_cluster(&mut self, cluster: u64);
}

macro_rules! unary {
    ($client:path, $request:expr, $connection:expr, $departure:expr, $method:ident) => {{
        let client = <$client>::new(Observed::new($connection.wire.clone(), $departure))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        { client }.$method($request).await.map(Response::into_inner)
    }};
}

macro_rules! call {
    ($client:path, $request:ty, $response:ty, $method:ident) => {
        impl Call for $request {
            type Response = $response;

            async fn send(
                self,
                connection: &Connection,
                departure: &Departure,
            ) -> Result<Self::Response, Status> {
                unary!($client, self, connection, departure, $method)
            }
        }
    };
}

type TikvClient = stele_proto::tikvpb::tikv_client::TikvClient<Observed<Wire>>;

/// A call that is sent in a batch with others, unless it is long.
macro_rules! command {
    ($request:ident, $response:ident, $method:ident, $command:ident, $bytes:expr) => {
        impl Call for kvrpcpb::$request {
            type Response = kvrpcpb::$response;

            async fn send(
                self,
                connection: &Connection,
                departure: &Departure,
            ) -> Result<Self::Response, Status> {
                let bytes: fn(&kvrpcpb::$request) -> usize = $bytes;
                let bytes = bytes(&self);
                if bytes > COMMAND_BYTES_MAX {
                    return unary!(TikvClient, self, connection, departure, $method);
                }
                match connection.commands().call(Cmd::$command(self), bytes, departure).await? {
                    Done::$command(response) => Ok(response),
                    _ => Err(Status::internal("the response is of another command")),
                }
            }
        }
    };
}

command!(RawGetRequest, RawGetResponse, raw_get, RawGet, |r| r.key.len());
command!(RawPutRequest, RawPutResponse, raw_put, RawPut, |r| r.key.len() + r.value.len());
command!(RawDeleteRequest, RawDeleteResponse, raw_delete, RawDelete, |r| r.key.len());

macro_rules! raw_calls {
    ($($request:ident, $response:ident, $method:ident;)*) => {
        $(call!(TikvClient, kvrpcpb::$request, kvrpcpb::$response, $method);)*
    };
}

raw_calls! {
    RawBatchGetRequest, RawBatchGetResponse, raw_batch_get;
    RawBatchPutRequest, RawBatchPutResponse, raw_batch_put;
    RawBatchDeleteRequest, RawBatchDeleteResponse, raw_batch_delete;
    RawDeleteRangeRequest, RawDeleteRangeResponse, raw_delete_range;
    RawGetKeyTtlRequest, RawGetKeyTtlResponse, raw_get_key_ttl;
    RawCasRequest, RawCasResponse, raw_compare_and_swap;
    RawChecksumRequest, RawChecksumResponse, raw_checksum;
}

call!(TikvClient, kvrpcpb::RawScanRequest, ScanResponse, raw_scan);
call!(kv::kv_client::KvClient<Observed<Wire>>, kv::ModifyRequest, kv::ModifyResponse, modify);
call!(
    kv::kv_client::KvClient<Observed<Wire>>,
    kv::ModifyInSessionRequest,
    kv::ModifyResponse,
    modify_in_session
);
call!(
    kv::kv_client::KvClient<Observed<Wire>>,
    kv::PutInSessionRequest,
    kv::ModifyResponse,
    put_in_session
);
call!(kv::kv_client::KvClient<Observed<Wire>>, kv::ExistRequest, kv::ExistResponse, exist);
call!(kv::kv_client::KvClient<Observed<Wire>>, kv::WriteRequest, kv::WriteResponse, write);
call!(
    kv::kv_client::KvClient<Observed<Wire>>,
    kv::ReadIndexRequest,
    kv::ReadIndexResponse,
    read_index
);
call!(kv::kv_client::KvClient<Observed<Wire>>, kv::GetPairRequest, kv::GetPairResponse, get_pair);
call!(kv::kv_client::KvClient<Observed<Wire>>, kv::WriteIfRequest, kv::WriteIfResponse, write_if);
call!(
    kv::kv_client::KvClient<Observed<Wire>>,
    kv::FollowRequest,
    tonic::Streaming<kv::FollowResponse>,
    follow
);

/// First response of a copy, and the stream of the others.
pub(crate) struct Copying {
    pub first: kv::CopyResponse,
    pub rest: tonic::Streaming<kv::CopyResponse>,
}

impl Call for kv::CopyRequest {
    type Response = Copying;

    async fn send(self, connection: &Connection, departure: &Departure) -> Result<Copying, Status> {
        type KvClient = kv::kv_client::KvClient<Observed<Wire>>;
        let mut rest = unary!(KvClient, self, connection, departure, copy)?;
        let ended = || Status::unavailable("the stream ended before its first response");
        let first = rest.message().await?.ok_or_else(ended)?;
        Ok(Copying { first, rest })
    }
}

impl RawCall for kv::CopyRequest {
    const REPETITION: Repetition = Repetition::Read;

    fn set_context(&mut self, context: kvrpcpb::Context) {
        self.context = Some(context);
    }

    fn region_error(response: &mut Copying) -> Option<errorpb::Error> {
        response.first.region_error.take()
    }

    fn failure(response: &mut Copying) -> String {
        take(&mut response.first.error)
    }
}

macro_rules! raw_call {
    ($package:ident, $request:ident, $effect:ident, $failure:expr) => {
        impl RawCall for $package::$request {
            const REPETITION: Repetition = Repetition::$effect;

            fn set_context(&mut self, context: kvrpcpb::Context) {
                self.context = Some(context);
            }

            fn region_error(response: &mut Self::Response) -> Option<errorpb::Error> {
                response.region_error.take()
            }

            fn failure(response: &mut Self::Response) -> String {
                let failure: fn(&mut Self::Response) -> String = $failure;
                failure(response)
            }
        }
    };
}

raw_call!(kvrpcpb, RawGetRequest, Read, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawBatchGetRequest, Read, |r| of_pairs(&r.pairs));
raw_call!(kvrpcpb, RawPutRequest, Write, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawBatchPutRequest, Write, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawDeleteRequest, Write, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawBatchDeleteRequest, Write, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawScanRequest, Read, |r| of_pairs(&r.kvs));
raw_call!(kvrpcpb, RawDeleteRangeRequest, Write, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawGetKeyTtlRequest, Read, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawCasRequest, Once, |r| take(&mut r.error));
raw_call!(kvrpcpb, RawChecksumRequest, Read, |r| take(&mut r.error));
raw_call!(kv, ModifyRequest, Once, |r| take(&mut r.error));
raw_call!(kv, ModifyInSessionRequest, Recorded, |r| take(&mut r.error));
raw_call!(kv, PutInSessionRequest, Recorded, |r| match r.refusal() {
    kv::Refusal::Deadline =>
        "the deadline of the call does not allow it by the cluster's time".to_owned(),
    _ => take(&mut r.error),
});
/// Redis commands that may change something.
#[derive(Clone)]
pub(crate) struct RunCommands(pub redis::RunRequest);

/// Redis commands that change nothing.
#[derive(Clone)]
pub(crate) struct ReadCommands(pub redis::RunRequest);

/// Step of a transaction over several regions.
#[derive(Clone)]
pub(crate) struct TransactionStep(pub redis::StepRequest);

macro_rules! redis_call {
    ($name:ident, $response:ident, $method:ident, $effect:ident) => {
        impl Call for $name {
            type Response = redis::$response;

            async fn send(
                self,
                connection: &Connection,
                departure: &Departure,
            ) -> Result<Self::Response, Status> {
                type RedisClient = redis::redis_client::RedisClient<Observed<Wire>>;
                unary!(RedisClient, self.0, connection, departure, $method)
            }
        }

        impl RawCall for $name {
            const REPETITION: Repetition = Repetition::$effect;

            fn set_context(&mut self, context: kvrpcpb::Context) {
                self.0.context = Some(context);
            }

            fn region_error(response: &mut Self::Response) -> Option<errorpb::Error> {
                response.region_error.take()
            }

            fn failure(response: &mut Self::Response) -> String {
                take(&mut response.error)
            }
        }
    };
}

redis_call!(RunCommands, RunResponse, run, Once);
redis_call!(ReadCommands, RunResponse, run, Read);
redis_call!(TransactionStep, StepResponse, step, Once);

macro_rules! redis_calls {
    ($($request:ident, $response:ident, $method:ident;)*) => {$(
        call!(
            redis::redis_client::RedisClient<Observed<Wire>>,
            redis::$request,
            redis::$response,
            $method
        );
    )*};
}

redis_calls! {
    ListRequest, ListResponse, list;
    MembersRequest, MembersResponse, members;
    ClearRequest, ClearResponse, clear;
    CursorRequest, CursorResponse, cursor;
}

raw_call!(redis, ListRequest, Read, |r| take(&mut r.error));
raw_call!(redis, MembersRequest, Read, |r| take(&mut r.error));
raw_call!(redis, ClearRequest, Write, |r| take(&mut r.error));

raw_call!(kv, ExistRequest, Read, |r| take(&mut r.error));
raw_call!(kv, WriteRequest, Write, |r| take(&mut r.error));
raw_call!(kv, ReadIndexRequest, Read, |r| take(&mut r.error));
raw_call!(kv, GetPairRequest, Read, |r| take(&mut r.error));
raw_call!(kv, WriteIfRequest, Once, |r| take(&mut r.error));

fn take(text: &mut String) -> String {
    std::mem::take(text)
}

/// Returns the error of a response of pairs, which is in the first pair.
fn of_pairs(pairs: &[kvrpcpb::KvPair]) -> String {
    let Some(error) = pairs.first().and_then(|pair| pair.error.as_ref()) else {
        return String::new();
    };
    let text = if error.abort.is_empty() { &error.retryable } else { &error.abort };
    if text.is_empty() { "the store gave no reason".to_owned() } else { text.clone() }
}

macro_rules! pd_call {
    ($request:ident, $response:ident, $method:ident) => {
        call!(
            stele_proto::pdpb::pd_client::PdClient<Observed<Wire>>,
            pdpb::$request,
            pdpb::$response,
            $method
        );

        impl PdCall for pdpb::$request {
            fn set_cluster(&mut self, cluster_id: u64) {
                let header = pdpb::RequestHeader { cluster_id, ..pdpb::RequestHeader::default() };
                self.header = Some(header);
            }

            fn header(response: &mut Self::Response) -> Option<pdpb::ResponseHeader> {
                response.header.take()
            }
        }
    };
}

pd_call!(GetMembersRequest, GetMembersResponse, get_members);
pd_call!(GetAllStoresRequest, GetAllStoresResponse, get_all_stores);
pd_call!(GetStoreRequest, GetStoreResponse, get_store);

#[derive(Clone)]
pub(crate) struct GetRegion(pub pdpb::GetRegionRequest);

#[derive(Clone)]
pub(crate) struct GetPrevRegion(pub pdpb::GetRegionRequest);

pub(crate) fn region_request(key: Bytes) -> pdpb::GetRegionRequest {
    pdpb::GetRegionRequest { region_key: key, ..pdpb::GetRegionRequest::default() }
}

macro_rules! region_call {
    ($name:ident, $method:ident) => {
        impl Call for $name {
            type Response = pdpb::GetRegionResponse;

            async fn send(
                self,
                connection: &Connection,
                departure: &Departure,
            ) -> Result<Self::Response, Status> {
                unary!(
                    stele_proto::pdpb::pd_client::PdClient<Observed<Wire>>,
                    self.0,
                    connection,
                    departure,
                    $method
                )
            }
        }

        impl PdCall for $name {
            fn set_cluster(&mut self, cluster_id: u64) {
                let header = pdpb::RequestHeader { cluster_id, ..pdpb::RequestHeader::default() };
                self.0.header = Some(header);
            }

            fn header(response: &mut Self::Response) -> Option<pdpb::ResponseHeader> {
                response.header.take()
            }
        }
    };
}

region_call!(GetRegion, get_region);
region_call!(GetPrevRegion, get_prev_region);

macro_rules! control_call {
    ($($request:ident, $response:ident, $method:ident;)*) => {$(
        call!(
            control::control_client::ControlClient<Observed<Wire>>,
            control::$request,
            control::$response,
            $method
        );

        impl ControlCall for control::$request {
            fn set_cluster(&mut self, cluster_id: u64) {
                self.header = Some(control::RequestHeader { cluster_id, forwarded: false });
            }
        }
    )*};
}

control_call! {
    MembersRequest, MembersResponse, members;
    ListStoresRequest, ListStoresResponse, list_stores;
    ListRegionsRequest, ListRegionsResponse, list_regions;
    ListOperatorsRequest, ListOperatorsResponse, list_operators;
    CancelOperatorRequest, CancelOperatorResponse, cancel_operator;
    TransferRequest, OperatorAccepted, transfer;
    MoveRequest, OperatorAccepted, r#move;
    SplitRequest, OperatorAccepted, split;
    MergeRequest, OperatorAccepted, merge;
    SetStoreStateRequest, StoreProgress, set_store_state;
    GetStoreProgressRequest, StoreProgress, get_store_progress;
    ExplainRequest, ExplainResponse, explain;
    PlacementRequest, PlacementResponse, placement;
    AccessListRequest, AccessListResponse, access_list;
    TakeMomentRequest, TakeMomentResponse, take_moment;
    ListEventsRequest, ListEventsResponse, list_events;
    AccessGrantRequest, AccessChangeResponse, access_grant;
    AccessRevokeRequest, AccessChangeResponse, access_revoke;
    FinalizeRequest, FinalizeResponse, finalize;
    LocalChecksumRequest, LocalChecksumResponse, local_checksum;
    RegionDetailRequest, RegionDetailResponse, region_detail;
    RecoverReplicaRequest, RecoverReplicaResponse, recover_replica;
    KeepRunRequest, KeepRunResponse, keep_run;
    GetConfigRequest, GetConfigResponse, get_config;
    SetConfigRequest, SetConfigResponse, set_config;
    AdmitRequest, AdmitResponse, admit;
}
