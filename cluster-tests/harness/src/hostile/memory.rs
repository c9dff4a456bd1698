//! Attacks on the memory of a node: large requests, large answers, answers that their client does not
//! read, and many connections. Each answer must be whole or refused.

use super::calls::BytesCodec;
use crate::client::Session;
use anyhow::{Context as _, Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;
use stele_proto::errorpb;
use stele_proto::kvrpcpb::{
    Context, RawBatchGetRequest, RawCasRequest, RawGetRequest, RawScanRequest,
};
use stele_proto::tikvpb::tikv_client::TikvClient;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codec::CompressionEncoding;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

/// Time limit of an attack.
const LIMIT: Duration = Duration::from_secs(240);
/// Time for which an attacker holds what it has begun.
const HELD: Duration = Duration::from_secs(3);
/// Length of the largest value: the longest that a store accepts, unless the run is short.
const VALUE_BYTES_MAX: usize = 64 << 20;
const SCANNED_BYTES: usize = 1 << 20;
const SWAPPED_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub value_bytes: usize,
    /// Pairs of 1 MiB that a scan requests.
    pub scanned_pairs: usize,
    pub swaps: usize,
    pub connections: usize,
}

impl Size {
    pub(crate) fn new(short: bool) -> Self {
        match short {
            true => Self { value_bytes: 32 << 20, scanned_pairs: 80, swaps: 100, connections: 500 },
            false => Self {
                value_bytes: VALUE_BYTES_MAX,
                scanned_pairs: 256,
                swaps: 300,
                connections: 10_000,
            },
        }
    }
}

pub(crate) async fn load(session: &mut Session, size: Size) -> Result<()> {
    put(session, b"memory/large", size.value_bytes).await?;
    put(session, b"memory/swapped", SWAPPED_BYTES).await?;
    for n in 0..size.scanned_pairs {
        put(session, format!("memory/scan/{n:06}").as_bytes(), SCANNED_BYTES).await?;
    }
    Ok(())
}

async fn put(session: &mut Session, key: &[u8], value_bytes: usize) -> Result<()> {
    let value = Bytes::from(vec![7; value_bytes]);
    let started = tokio::time::Instant::now();
    while !session.put(key, value.clone()).await.is_done() {
        ensure!(started.elapsed() < LIMIT, "no put of {value_bytes} bytes within {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub(crate) struct Attacker {
    address: String,
    context: Context,
    size: Size,
}

impl Attacker {
    /// Finds the leader: the one that takes a put.
    pub(crate) async fn new(session: &mut Session, size: Size) -> Result<Self> {
        put(session, b"memory/swapped", SWAPPED_BYTES).await?;
        let (address, context) = session.leader(b"memory/large").await?;
        Ok(Self { address, context, size })
    }

    /// Runs every attack; returns the number of requests.
    pub(crate) async fn run_all(&self) -> Result<u64> {
        let mut requests = 0;
        requests += within("batch get", self.batch_get()).await?;
        requests += within("scans", self.scans()).await?;
        requests += within("comparisons", self.comparisons()).await?;
        requests += within("requests without an end", self.without_end(None)).await?;
        let gzip = Some(CompressionEncoding::Gzip);
        requests += within("compressed requests without an end", self.without_end(gzip)).await?;
        requests += within("unread answers", self.unread()).await?;
        requests += within("short elements", self.short_elements()).await?;
        requests += within("connections", self.connections()).await?;
        Ok(requests)
    }

    async fn channel(&self) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address))?;
        Ok(endpoint.connect().await?)
    }

    async fn client(&self) -> Result<TikvClient<Channel>> {
        Ok(TikvClient::new(self.channel().await?).max_decoding_message_size(1 << 30))
    }

    fn context(&self) -> Option<Context> {
        Some(self.context.clone())
    }

    /// One key, 40 times in one request.
    async fn batch_get(&self) -> Result<u64> {
        let keys = vec![Bytes::from_static(b"memory/large"); 40];
        let get = RawBatchGetRequest { context: self.context(), keys, ..Default::default() };
        let answer = self.client().await?.raw_batch_get(get).await?.into_inner();
        check_refused(answer.region_error.as_ref(), answer.pairs.len())?;
        Ok(1)
    }

    /// Eight scans of everything at the same time.
    async fn scans(&self) -> Result<u64> {
        let mut calls = JoinSet::new();
        for _ in 0..8 {
            let (mut client, scan) = (self.client().await?, self.scan());
            calls.spawn(async move { client.raw_scan(scan).await });
        }
        while let Some(answer) = calls.join_next().await {
            let answer = answer??.into_inner();
            match answer.region_error {
                Some(error) => check_refused(Some(&error), answer.kvs.len())?,
                None => ensure!(answer.kvs.len() == self.size.scanned_pairs, "a scan was cut"),
            }
        }
        Ok(8)
    }

    fn scan(&self) -> RawScanRequest {
        RawScanRequest {
            context: self.context(),
            start_key: Bytes::from_static(b"memory/scan/"),
            end_key: Bytes::from_static(b"memory/scan0"),
            limit: u32::MAX,
            ..Default::default()
        }
    }

    /// Failing compare-and-swaps, which return the value of the key.
    async fn comparisons(&self) -> Result<u64> {
        let (mut calls, client) = (JoinSet::new(), self.client().await?);
        for _ in 0..self.size.swaps {
            let mut client = client.clone();
            let swap = RawCasRequest {
                context: self.context(),
                key: Bytes::from_static(b"memory/swapped"),
                value: Bytes::from_static(b"new"),
                previous_value: Bytes::from_static(b"another"),
                ..Default::default()
            };
            calls.spawn(async move { client.raw_compare_and_swap(swap).await });
        }
        while let Some(answer) = calls.join_next().await {
            let answer = answer??.into_inner();
            match answer.region_error {
                Some(error) => check_refused(Some(&error), answer.previous_value.len())?,
                None => ensure!(
                    !answer.succeed && answer.previous_value.len() == SWAPPED_BYTES,
                    "a comparison returned {} bytes",
                    answer.previous_value.len()
                ),
            }
        }
        Ok(self.size.swaps as u64)
    }

    /// Twenty puts of which the client sends all but the end of the stream.
    async fn without_end(&self, encoding: Option<CompressionEncoding>) -> Result<u64> {
        // Field 3: the value. It names no region, so it changes nothing.
        let mut put = BytesMut::with_capacity(self.size.value_bytes + 16);
        put.put_slice(&[0x1a]);
        let mut length = self.size.value_bytes;
        while length >= 0x80 {
            put.put_u8(length as u8 | 0x80);
            length >>= 7;
        }
        put.put_u8(length as u8);
        put.put_bytes(7, self.size.value_bytes);
        let put = put.freeze();
        let mut calls = JoinSet::new();
        for _ in 0..20 {
            let (put, channel) = (put.clone(), self.channel().await?);
            calls.spawn(async move {
                let mut client = Grpc::new(channel);
                if let Some(encoding) = encoding {
                    client = client.send_compressed(encoding);
                }
                client.ready().await?;
                let endless = tokio_stream::StreamExt::chain(
                    tokio_stream::once(put),
                    tokio_stream::pending(),
                );
                let path = PathAndQuery::from_static("/tikvpb.Tikv/RawPut");
                let call = client.streaming(Request::new(endless), path, BytesCodec);
                // Any answer is accepted, or none.
                let _ = tokio::time::timeout(HELD, call).await;
                anyhow::Ok(())
            });
        }
        while let Some(done) = calls.join_next().await {
            done??;
        }
        Ok(20)
    }

    /// Thirty gets of the largest value, of which nothing is read.
    async fn unread(&self) -> Result<u64> {
        let mut unread = Vec::new();
        for _ in 0..30 {
            let endpoint = Endpoint::from_shared(format!("http://{}", self.address))?
                .initial_stream_window_size(65_535)
                .initial_connection_window_size(65_535);
            let mut client = Grpc::new(endpoint.connect().await?);
            client.ready().await?;
            let key = Bytes::from_static(b"memory/large");
            let get = RawGetRequest { context: self.context(), key, ..Default::default() };
            let get = Bytes::from(encoded(&get));
            let path = PathAndQuery::from_static("/tikvpb.Tikv/RawGet");
            let call = client.server_streaming(Request::new(get), path, BytesCodec);
            unread.push(call.await?);
        }
        tokio::time::sleep(HELD).await;
        Ok(unread.len() as u64)
    }

    /// Elements of two bytes each, which need hundreds of bytes in memory.
    async fn short_elements(&self) -> Result<u64> {
        let elements = |tag: u8| Bytes::from([tag, 0].repeat(self.size.value_bytes / 4));
        // `requests` of `BatchCommands`, `keys` of `RawBatchGet`, `pairs` of `RawBatchPut`, `regions` of
        // `Heartbeat`.
        let attacks = [
            ("/tikvpb.Tikv/BatchCommands", elements(0x0a)),
            ("/tikvpb.Tikv/RawBatchGet", elements(0x12)),
            ("/tikvpb.Tikv/RawBatchPut", elements(0x12)),
            ("/stele.control.v1.Control/Heartbeat", elements(0x3a)),
        ];
        let count = attacks.len() as u64;
        for (path, message) in attacks {
            let mut client = Grpc::new(self.channel().await?);
            client.ready().await?;
            let path = PathAndQuery::from_static(path);
            let once = tokio_stream::once(message);
            let call = client.streaming(Request::new(once), path, BytesCodec);
            // Any answer is accepted, or none.
            let _ = tokio::time::timeout(HELD, call).await;
        }
        Ok(count)
    }

    /// Connections that each begin a long message and send a part of it.
    async fn connections(&self) -> Result<u64> {
        let files = raise_file_limit();
        let count = self.size.connections.min(files.saturating_sub(500) / 2);
        let part = begun_message();
        let mut open = Vec::new();
        for _ in 0..count {
            // The node may refuse it.
            let Ok(mut stream) = TcpStream::connect(&self.address).await else { continue };
            let _ = tokio::time::timeout(Duration::from_millis(100), stream.write_all(&part)).await;
            open.push(stream);
        }
        tokio::time::sleep(HELD).await;
        Ok(open.len() as u64)
    }
}

async fn within(name: &str, attack: impl Future<Output = Result<u64>>) -> Result<u64> {
    let done = tokio::time::timeout(LIMIT, attack).await;
    done.with_context(|| format!("{name}: no end within {LIMIT:?}"))?.context(name.to_owned())
}

fn encoded(get: &RawGetRequest) -> Vec<u8> {
    let mut pieces = stele_proto::Pieces::default();
    // A short message always has a length of 32 bits.
    let _ = pieces.message(get);
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.take() {
        bytes.extend_from_slice(&piece);
    }
    // Without gRPC's header, which the codec adds.
    bytes.split_off(5.min(bytes.len()))
}

/// Fails unless a request was refused: for its own size or because of others, and as a whole.
fn check_refused(error: Option<&errorpb::Error>, returned: usize) -> Result<()> {
    let error = error.context("a request was served beyond the memory of one")?;
    let is_refusal = error.raft_entry_too_large.is_some() || error.server_is_busy.is_some();
    ensure!(is_refusal && returned == 0, "{error:?} with a part of {returned}");
    Ok(())
}

/// Returns the first bytes of an HTTP/2 connection with a message of 2 MiB that does not end.
fn begun_message() -> Vec<u8> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        out.extend([kind, flags]);
        out.extend(stream.to_be_bytes());
        out.extend(payload);
        out
    };
    // `:method POST` and `:scheme http` from the static table, `:path` as a literal.
    let path = b"/tikvpb.Tikv/RawPut";
    let headers = [&[0x83, 0x86, 0x04, path.len() as u8][..], path].concat();
    let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
    bytes.extend(frame(1, 0x4, 1, &headers));
    let message = [&[0][..], &(2_u32 << 20).to_be_bytes()].concat();
    bytes.extend(frame(0, 0, 1, &message));
    for _ in 0..4 {
        bytes.extend(frame(0, 0, 1, &[7; 15_000]));
    }
    bytes
}

/// Raises the number of files that this process may open; returns it.
pub(crate) fn raise_file_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // It stays as it is if that is refused.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    maximum.or(current).unwrap_or(1 << 20) as usize
}
