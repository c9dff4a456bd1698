//! The calls of etcd's key-value interface (`etcdserverpb`, version 3) that the load needs.

use bytes::Bytes;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use stele_load::server::unavailable;
use stele_types::{Error, Result};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    range_end: Bytes,
    #[prost(int64, tag = "3")]
    limit: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pairs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

/// Connections to the leader, with which etcd is fastest.
pub(super) struct Etcd {
    channels: Vec<Channel>,
    next: AtomicUsize,
}

impl Etcd {
    pub(super) async fn connect(addresses: &[String], connections: u64) -> Result<Self> {
        let mut reason = Error::Unavailable("no etcd member is given".to_owned());
        for address in addresses {
            let Ok(channel) = dial(address).await.map_err(|error| reason = error) else { continue };
            let path = "/etcdserverpb.Maintenance/Status";
            match call::<_, StatusResponse>(channel, path, Empty {}).await {
                Ok(StatusResponse { header: Some(header), leader })
                    if header.member_id == leader =>
                {
                    let mut channels = Vec::new();
                    for _ in 0..connections {
                        channels.push(dial(address).await?);
                    }
                    return Ok(Self { channels, next: AtomicUsize::new(0) });
                }
                Ok(_) => reason = Error::Unavailable("no etcd member is the leader".to_owned()),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    pub(super) async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        let request = RangeRequest { key, ..RangeRequest::default() };
        let found: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(found.pairs.first().map(|pair| pair.value.len() as u64))
    }

    pub(super) async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        let Empty {} = self.call("/etcdserverpb.KV/Put", PutRequest { key, value }).await?;
        Ok(())
    }

    pub(super) async fn delete(&self, key: Bytes) -> Result<()> {
        let request = DeleteRangeRequest { key };
        let Empty {} = self.call("/etcdserverpb.KV/DeleteRange", request).await?;
        Ok(())
    }

    /// Returns the bytes of at most `limit` pairs from `key` on.
    pub(super) async fn scan(&self, key: Bytes, limit: usize) -> Result<u64> {
        // A range end of one zero byte means the end of the key space.
        let range_end = Bytes::from_static(&[0]);
        let request = RangeRequest { key, range_end, limit: limit as i64 };
        let found: RangeResponse = self.call("/etcdserverpb.KV/Range", request).await?;
        Ok(found.pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum())
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let turn = self.next.fetch_add(1, Relaxed) % self.channels.len().max(1);
        let Some(channel) = self.channels.get(turn) else {
            return Err(unavailable("no connection"));
        };
        call(channel.clone(), path, request).await
    }
}

async fn dial(address: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| Error::invalid(format!("`{address}`: {error}")))?;
    stele_client::connect_channel(endpoint, None)
        .await
        .map_err(|error| unavailable(format!("{address}: {error}")))
}

async fn call<Q, A>(channel: Channel, path: &'static str, request: Q) -> Result<A>
where
    Q: prost::Message + 'static,
    A: prost::Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(256 << 20);
    grpc.ready().await.map_err(unavailable)?;
    let path = PathAndQuery::from_static(path);
    let codec = ProstCodec::<Q, A>::default();
    let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
    answer.map(tonic::Response::into_inner).map_err(unavailable)
}
