//! The remote calls as values: what is sent, and how its answer is read.

use bytes::Bytes;
use std::future::Future;
use stele_proto::stele::control::v1 as control;
use stele_proto::{errorpb, kvrpcpb, pdpb};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Messages of both ways may be as long: a page of large values.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// A unary call that can be sent again.
pub trait Call: Clone + Send + Sync + 'static {
    /// Its answer.
    type Response: Send;

    /// Sends it once.
    fn send(self, channel: Channel) -> impl Future<Output = Result<Self::Response, Status>> + Send;
}

/// What a raw call does when it arrives twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing at all.
    Read,
    /// The same again.
    Write,
    /// Something else: never sent again once it may have arrived.
    Once,
}

/// A call to a region's store.
pub trait RawCall: Call {
    /// What it does.
    const EFFECT: Effect;

    /// Says which region, peer and cluster it is meant for.
    fn address(&mut self, context: kvrpcpb::Context);

    /// Why the region did not serve it.
    fn region_error(response: &mut Self::Response) -> Option<errorpb::Error>;

    /// A final failure; empty: none.
    fn failure(response: &mut Self::Response) -> String;
}

/// A call to the directory of regions and stores.
pub trait PdCall: Call {
    /// Says which cluster it is meant for.
    fn address(&mut self, cluster: u64);

    /// The answer's header.
    fn header(response: &mut Self::Response) -> Option<pdpb::ResponseHeader>;
}

/// A call of the control protocol.
pub trait ControlCall: Call {
    /// Says which cluster it is meant for.
    fn address(&mut self, cluster: u64);
}

macro_rules! call {
    ($client:path, $request:ty, $response:ty, $method:ident) => {
        impl Call for $request {
            type Response = $response;

            async fn send(self, channel: Channel) -> Result<Self::Response, Status> {
                let client = <$client>::new(channel)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(MESSAGE_BYTES_MAX);
                { client }.$method(self).await.map(Response::into_inner)
            }
        }
    };
}

macro_rules! raw_call {
    ($request:ident, $response:ident, $method:ident, $effect:ident, $failure:expr) => {
        call!(
            stele_proto::tikvpb::tikv_client::TikvClient<Channel>,
            kvrpcpb::$request,
            kvrpcpb::$response,
            $method
        );

        impl RawCall for kvrpcpb::$request {
            const EFFECT: Effect = Effect::$effect;

            fn address(&mut self, context: kvrpcpb::Context) {
                self.context = Some(context);
            }

            fn region_error(response: &mut Self::Response) -> Option<errorpb::Error> {
                response.region_error.take()
            }

            fn failure(response: &mut Self::Response) -> String {
                let failure: fn(&mut kvrpcpb::$response) -> String = $failure;
                failure(response)
            }
        }
    };
}

raw_call!(RawGetRequest, RawGetResponse, raw_get, Read, |r| take(&mut r.error));
raw_call!(RawBatchGetRequest, RawBatchGetResponse, raw_batch_get, Read, |r| of_pairs(&r.pairs));
raw_call!(RawPutRequest, RawPutResponse, raw_put, Write, |r| take(&mut r.error));
raw_call!(RawBatchPutRequest, RawBatchPutResponse, raw_batch_put, Write, |r| take(&mut r.error));
raw_call!(RawDeleteRequest, RawDeleteResponse, raw_delete, Write, |r| take(&mut r.error));
raw_call!(RawBatchDeleteRequest, RawBatchDeleteResponse, raw_batch_delete, Write, |r| take(
    &mut r.error
));
raw_call!(RawScanRequest, RawScanResponse, raw_scan, Read, |r| of_pairs(&r.kvs));
raw_call!(RawDeleteRangeRequest, RawDeleteRangeResponse, raw_delete_range, Write, |r| take(
    &mut r.error
));
raw_call!(RawGetKeyTtlRequest, RawGetKeyTtlResponse, raw_get_key_ttl, Read, |r| take(&mut r.error));
raw_call!(RawCasRequest, RawCasResponse, raw_compare_and_swap, Once, |r| take(&mut r.error));
raw_call!(RawChecksumRequest, RawChecksumResponse, raw_checksum, Read, |r| take(&mut r.error));

fn take(text: &mut String) -> String {
    std::mem::take(text)
}

/// Answers made of pairs carry a failure in the first of them.
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
            stele_proto::pdpb::pd_client::PdClient<Channel>,
            pdpb::$request,
            pdpb::$response,
            $method
        );

        impl PdCall for pdpb::$request {
            fn address(&mut self, cluster_id: u64) {
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

/// The region of a key.
#[derive(Clone)]
pub struct GetRegion(pub pdpb::GetRegionRequest);

/// The region before that of a key.
#[derive(Clone)]
pub struct GetPrevRegion(pub pdpb::GetRegionRequest);

/// Asks for the region of `key`.
pub fn region_request(key: Bytes) -> pdpb::GetRegionRequest {
    pdpb::GetRegionRequest { region_key: key, ..pdpb::GetRegionRequest::default() }
}

macro_rules! region_call {
    ($name:ident, $method:ident) => {
        impl Call for $name {
            type Response = pdpb::GetRegionResponse;

            async fn send(self, channel: Channel) -> Result<Self::Response, Status> {
                let mut client = stele_proto::pdpb::pd_client::PdClient::new(channel);
                client.$method(self.0).await.map(Response::into_inner)
            }
        }

        impl PdCall for $name {
            fn address(&mut self, cluster_id: u64) {
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
            control::control_client::ControlClient<Channel>,
            control::$request,
            control::$response,
            $method
        );

        impl ControlCall for control::$request {
            fn address(&mut self, cluster_id: u64) {
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
    LocalChecksumRequest, LocalChecksumResponse, local_checksum;
    RegionDetailRequest, RegionDetailResponse, region_detail;
    GetConfigRequest, GetConfigResponse, get_config;
    SetConfigRequest, SetConfigResponse, set_config;
}
