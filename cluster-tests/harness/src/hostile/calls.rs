//! Attacks at the protocol level: invalid messages to every method.

use anyhow::Result;
use bytes::{Buf, BufMut, Bytes};
use std::time::Duration;
use stele_types::Prng;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Time limit of a call; some calls stream responses without end.
const LIMIT: Duration = Duration::from_millis(500);
/// Bytes above the limit of any message.
const OVERSIZED_BYTES: usize = 100 << 20;

const METHODS: [&str; 46] = [
    "/tikvpb.Tikv/RawGet",
    "/tikvpb.Tikv/RawBatchGet",
    "/tikvpb.Tikv/RawPut",
    "/tikvpb.Tikv/RawBatchPut",
    "/tikvpb.Tikv/RawDelete",
    "/tikvpb.Tikv/RawBatchDelete",
    "/tikvpb.Tikv/RawScan",
    "/tikvpb.Tikv/RawBatchScan",
    "/tikvpb.Tikv/RawDeleteRange",
    "/tikvpb.Tikv/RawGetKeyTTL",
    "/tikvpb.Tikv/RawCompareAndSwap",
    "/tikvpb.Tikv/RawChecksum",
    "/tikvpb.Tikv/BatchCommands",
    "/tikvpb.Tikv/NoSuchMethod",
    "/pdpb.PD/GetMembers",
    "/pdpb.PD/GetClusterInfo",
    "/pdpb.PD/GetRegion",
    "/pdpb.PD/GetPrevRegion",
    "/pdpb.PD/GetRegionByID",
    "/pdpb.PD/QueryRegion",
    "/pdpb.PD/ScanRegions",
    "/pdpb.PD/BatchScanRegions",
    "/pdpb.PD/GetStore",
    "/pdpb.PD/GetAllStores",
    "/pdpb.PD/Tso",
    "/meta_storagepb.MetaStorage/Get",
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/stele.control.v1.Control/Join",
    "/stele.control.v1.Control/Heartbeat",
    "/stele.control.v1.Control/AllocIds",
    "/stele.control.v1.Control/ListStores",
    "/stele.control.v1.Control/ListRegions",
    "/stele.control.v1.Control/ListOperators",
    "/stele.control.v1.Control/CancelOperator",
    "/stele.control.v1.Control/Transfer",
    "/stele.control.v1.Control/Move",
    "/stele.control.v1.Control/Split",
    "/stele.control.v1.Control/Merge",
    "/stele.control.v1.Control/SetStoreState",
    "/stele.control.v1.Control/GetStoreProgress",
    "/stele.control.v1.Control/Members",
    "/stele.control.v1.Control/LocalChecksum",
    "/stele.control.v1.Control/RegionDetail",
    "/stele.control.v1.Control/GetConfig",
    "/stele.control.v1.Control/SetConfig",
];

/// Sends invalid messages to every method; returns their number. Any response is accepted.
pub(crate) async fn bad_messages(address: &str, prng: &mut Prng) -> Result<u64> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.timeout(LIMIT);
    let channel = endpoint.connect_timeout(LIMIT).connect_lazy();
    let mut calls = JoinSet::new();
    for method in METHODS {
        for message in messages(prng) {
            calls.spawn(call(channel.clone(), method, message));
        }
    }
    // Too large for any method, and above the memory bound if several were buffered.
    let large = Bytes::from(vec![0x0a; OVERSIZED_BYTES]);
    calls.spawn(call(channel, METHODS[2], large));
    Ok(calls.join_all().await.len() as u64)
}

pub(super) fn messages(prng: &mut Prng) -> Vec<Bytes> {
    let noise: Vec<u8> = (0..1 + prng.below(2_000)).map(|_| prng.draw() as u8).collect();
    // Field 2, length-delimited, with a length far beyond the end of the message.
    let claims = vec![0x12, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3];
    // A hundred thousand nested groups.
    let nested = vec![0x0b; 100_000];
    // A varint without an end.
    let endless = vec![0x80; 64];
    // Well-formed fields with random numbers.
    let mut fields = Vec::new();
    for _ in 0..prng.below(40) {
        fields.push(((1 + prng.below(15)) << 3) as u8);
        fields.extend((0..9).map(|_| 0x80 | prng.draw() as u8));
        fields.push(1);
    }
    [noise, claims, nested, endless, fields].into_iter().map(Bytes::from).collect()
}

async fn call(channel: Channel, method: &'static str, message: Bytes) {
    // Any response is accepted, or none.
    let _ = tokio::time::timeout(LIMIT, answers(channel, method, message)).await;
}

pub(super) async fn answers(
    channel: Channel,
    method: &'static str,
    message: Bytes,
) -> Result<(), Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(method);
    let once = tokio_stream::once(message);
    let mut answers = client.streaming(Request::new(once), path, BytesCodec).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

/// Codec that passes bytes through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(item.len());
        out.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
