//! The same replication traffic over the framed transport and over a gRPC stream, on loopback, both
//! ends in this process.
//!
//! Prints one JSON line for each shape of traffic: medians over the rounds, and the ratio of the
//! transport to gRPC. CPU is that of both ends.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use stele_replica::{Body, LeaseTimes, PeerMessage, RaftEntry, RaftKind, RaftMessage};
use stele_server::access::{Rights, plain};
use stele_server::transport::{
    Boots, BoxFuture, Deliver, Identity, Resolve, SnapshotOffer, Transport, TransportOptions,
};
use stele_types::{
    ClusterId, Command, CommandBuilder, Error, KeyRange, LogIndex, Peer, PeerId, PeerRole,
    RegionEpoch, RegionId, RegionKind, StoreId, Term,
};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(2);

/// Traffic that a leader sends before it waits: `messages`, each of `entries` of `bytes`.
struct Shape {
    name: &'static str,
    messages: usize,
    entries: usize,
    bytes: usize,
    /// Messages in flight before an acknowledgement is needed.
    window: usize,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "1 message of 64 x 1 KiB", messages: 1, entries: 64, bytes: 1 << 10, window: 16 },
    Shape { name: "1 message of 8 x 16 KiB", messages: 1, entries: 8, bytes: 16 << 10, window: 16 },
    Shape { name: "64 messages of 1 KiB", messages: 64, entries: 1, bytes: 1 << 10, window: 1024 },
    Shape { name: "1 message of 1 KiB, alone", messages: 1, entries: 1, bytes: 1 << 10, window: 1 },
];

fn append(shape: &Shape, payload: &Bytes, index: u64) -> PeerMessage {
    let mut raft = RaftMessage::new(RaftKind::Append, Term(7));
    raft.index = LogIndex(index);
    let entry = |at| RaftEntry { term: Term(7), index: LogIndex(at), payload: payload.clone() };
    raft.entries = (0..shape.entries as u64).map(|n| entry(index + 1 + n)).collect();
    message(1, 2, raft)
}

fn message(from: u64, to: u64, raft: RaftMessage) -> PeerMessage {
    let peer =
        |store| Peer { id: PeerId(store + 10), store: StoreId(store), role: PeerRole::Voter };
    PeerMessage {
        from_store: StoreId(from),
        to_store: StoreId(to),
        region: RegionId(2),
        kind: RegionKind::Data,
        range: KeyRange::new(&b"user1"[..], &b"user9"[..]),
        epoch: RegionEpoch { conf_version: 5, version: 70 },
        from: peer(from),
        to: peer(to),
        body: Body::Raft(raft),
    }
}

fn acknowledgement(of: &PeerMessage) -> Option<PeerMessage> {
    let Body::Raft(raft) = &of.body else { return None };
    let mut answer = RaftMessage::new(RaftKind::AppendResponse, raft.term);
    answer.index = raft.entries.last()?.index;
    Some(message(of.to_store.0, of.from_store.0, answer))
}

struct Window {
    free: Semaphore,
    acknowledged: AtomicU64,
}

impl Window {
    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Relaxed);
        self.free.add_permits(1);
    }
}

type Send = Arc<dyn Fn(Vec<PeerMessage>) + std::marker::Send + Sync>;

/// Sends for one round; returns entries per second and CPU microseconds per entry.
async fn measure(shape: &Shape, window: &Window, send: &Send) -> (f64, f64) {
    let mut command = CommandBuilder::new();
    command.put(b"\x01user5", &vec![7; shape.bytes], 0).unwrap();
    let payload = command.build().bytes().clone();
    window.free.forget_permits(usize::MAX >> 4);
    window.free.add_permits(shape.window);
    let (begin, mut index) = (Instant::now(), 0);
    let (mut warm, mut start) = (false, (begin, cpu_nanos(), 0));
    while begin.elapsed() < ROUND + ROUND / 4 {
        if !warm && begin.elapsed() > ROUND / 4 {
            warm = true;
            start = (Instant::now(), cpu_nanos(), window.acknowledged.load(Relaxed));
        }
        window.free.acquire_many(shape.messages as u32).await.unwrap().forget();
        let batch = (0..shape.messages).map(|_| {
            index += shape.entries as u64;
            append(shape, &payload, index)
        });
        send(batch.collect());
    }
    let messages = window.acknowledged.load(Relaxed) - start.2;
    let entries = (messages * shape.entries as u64) as f64;
    let results =
        (entries / start.0.elapsed().as_secs_f64(), (cpu_nanos() - start.1) as f64 / 1e3 / entries);
    // All messages return before the next round.
    let all = shape.window as u32;
    window.free.acquire_many(all).await.unwrap().forget();
    results
}

fn cpu_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

// The framed transport.

struct Follower(OnceLock<Transport>);
struct Leader(Arc<Window>);

impl Deliver for Follower {
    fn messages(&self, messages: &mut Vec<(PeerMessage, u64)>) {
        let answers = messages.drain(..).map(|(message, _)| acknowledgement(&message).unwrap());
        self.0.get().unwrap().send(answers.collect());
    }
    fn reachable(&self, _: StoreId) {}
    fn unreachable(&self, _: StoreId) {}
    fn dropped(&self, _: StoreId) {}
    fn snapshot(&self, _: SnapshotOffer) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    fn task_failed(&self, task: &str, error: Error) {
        eprintln!("{task}: {error}");
        std::process::exit(1);
    }
}

impl Deliver for Leader {
    fn messages(&self, messages: &mut Vec<(PeerMessage, u64)>) {
        messages.drain(..).for_each(|_| self.0.acknowledge());
    }
    fn reachable(&self, _: StoreId) {}
    fn unreachable(&self, _: StoreId) {}
    fn dropped(&self, _: StoreId) {}
    fn snapshot(&self, _: SnapshotOffer) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
    fn task_failed(&self, task: &str, error: Error) {
        eprintln!("{task}: {error}");
        std::process::exit(1);
    }
}

struct Book([String; 2]);

impl Resolve for Book {
    fn address(&self, store: StoreId) -> Option<String> {
        self.0.get(store.0 as usize - 1).cloned()
    }
}

async fn framed(window: Arc<Window>) -> Send {
    let listeners = [
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let book = listeners.each_ref().map(|it| it.local_addr().unwrap().to_string());
    let follower = Arc::new(Follower(OnceLock::new()));
    let delivers: [Arc<dyn Deliver>; 2] = [Arc::new(Leader(window)), follower.clone()];
    let mut transports = Vec::new();
    for (number, (listener, deliver)) in listeners.into_iter().zip(delivers).enumerate() {
        let identity = Identity {
            cluster: ClusterId(1),
            address: book[number].clone(),
            stores: vec![StoreId(number as u64 + 1)],
            times: LeaseTimes::default(),
            boots: Arc::new(Boots::new(1)),
        };
        let resolve = Arc::new(Book(book.clone()));
        let transport = Transport::start(TransportOptions::default(), identity, resolve, deliver);
        transports.push(transport.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let transport = transport.clone();
                tokio::spawn(
                    async move { transport.serve(plain(stream), Rights::of_plain()).await },
                );
            }
        });
    }
    assert!(follower.0.set(transports.pop().unwrap()).is_ok());
    let leader = transports.pop().unwrap();
    Arc::new(move |messages| leader.send(messages))
}

// The same over gRPC: many messages in one, like TiKV's stores.

#[derive(Clone, PartialEq, prost::Message)]
struct PbBatch {
    #[prost(message, repeated, tag = "1")]
    messages: Vec<PbMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PbMessage {
    #[prost(uint64, repeated, tag = "1")]
    numbers: Vec<u64>,
    #[prost(bytes = "bytes", tag = "2")]
    start: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    end: Bytes,
    #[prost(message, repeated, tag = "4")]
    entries: Vec<PbEntry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PbEntry {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(bytes = "bytes", tag = "3")]
    payload: Bytes,
}

fn to_proto(message: PeerMessage) -> PbMessage {
    let Body::Raft(raft) = message.body else { return PbMessage::default() };
    let entry = |it: RaftEntry| PbEntry { term: it.term.0, index: it.index.0, payload: it.payload };
    PbMessage {
        numbers: vec![
            message.from_store.0,
            message.to_store.0,
            message.region.0,
            message.epoch.conf_version,
            message.epoch.version,
            message.from.id.0,
            message.to.id.0,
            raft.kind as u64,
            raft.term.0,
            raft.log_term.0,
            raft.index.0,
            raft.commit.0,
        ],
        start: message.range.start,
        end: message.range.end,
        entries: raft.entries.into_iter().map(entry).collect(),
    }
}

fn from_proto(message: PbMessage) -> Option<PeerMessage> {
    let number = |at: usize| message.numbers.get(at).copied();
    let kind = RaftKind::from_number(u8::try_from(number(7)?).ok()?)?;
    let mut raft = RaftMessage::new(kind, Term(number(8)?));
    raft.index = LogIndex(number(10)?);
    let (from, to) = (number(0)?, number(1)?);
    for entry in message.entries {
        // Like the transport's decoder.
        Command::parse(entry.payload.clone()).ok()?;
        let (term, index) = (Term(entry.term), LogIndex(entry.index));
        raft.entries.push(RaftEntry { term, index, payload: entry.payload });
    }
    Some(self::message(from, to, raft))
}

/// Joins waiting messages into one of at most about 1 MiB.
fn joined(mut waiting: mpsc::Receiver<PeerMessage>) -> ReceiverStream<PbBatch> {
    let (out, batches) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut block = Vec::new();
        while waiting.recv_many(&mut block, 512).await > 0 {
            let mut batch = PbBatch::default();
            let mut bytes = 0;
            for message in block.drain(..) {
                let message = to_proto(message);
                bytes += message.entries.iter().map(|it| it.payload.len()).sum::<usize>();
                batch.messages.push(message);
                if bytes > 1 << 20 {
                    let full = std::mem::take(&mut batch);
                    bytes = 0;
                    if out.send(full).await.is_err() {
                        return;
                    }
                }
            }
            if out.send(batch).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(batches)
}

#[derive(Clone)]
struct Replication;

impl tonic::server::NamedService for Replication {
    const NAME: &'static str = "bench.Replication";
}

type Answers =
    Pin<Box<dyn tokio_stream::Stream<Item = Result<PbBatch, Status>> + std::marker::Send>>;

impl tonic::server::StreamingService<PbBatch> for Replication {
    type Response = PbBatch;
    type ResponseStream = Answers;
    type Future =
        Pin<Box<dyn Future<Output = Result<Response<Answers>, Status>> + std::marker::Send>>;

    fn call(&mut self, request: Request<Streaming<PbBatch>>) -> Self::Future {
        let mut incoming = request.into_inner();
        let (answer, answers) = mpsc::channel(4096);
        tokio::spawn(async move {
            while let Some(Ok(batch)) = incoming.next().await {
                for message in batch.messages {
                    let message = from_proto(message).unwrap();
                    if answer.send(acknowledgement(&message).unwrap()).await.is_err() {
                        return;
                    }
                }
            }
        });
        let answers: Answers = Box::pin(joined(answers).map(Ok));
        Box::pin(async move { Ok(Response::new(answers)) })
    }
}

impl tower::Service<tonic::codegen::http::Request<tonic::body::Body>> for Replication {
    type Response = tonic::codegen::http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future =
        Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + std::marker::Send>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::codegen::http::Request<tonic::body::Body>) -> Self::Future {
        let codec = ProstCodec::<PbBatch, PbBatch>::default();
        let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(64 << 20);
        let service = self.clone();
        Box::pin(async move { Ok(grpc.streaming(service, request).await) })
    }
}

async fn grpc(window: Arc<Window>) -> Send {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let server = tonic::transport::Server::builder()
        .initial_stream_window_size(16 << 20)
        .initial_connection_window_size(32 << 20)
        .max_frame_size(1 << 20)
        .add_service(Replication);
    tokio::spawn(server.serve_with_incoming(incoming));
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .tcp_nodelay(true)
        .initial_stream_window_size(16 << 20)
        .initial_connection_window_size(32 << 20)
        .connect()
        .await
        .unwrap();
    let (sender, queued) = mpsc::channel(4096);
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(64 << 20);
    client.ready().await.unwrap();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static("/bench.Replication/Stream");
    let codec = ProstCodec::<PbBatch, PbBatch>::default();
    let answers = client.streaming(Request::new(joined(queued)), path, codec).await.unwrap();
    let mut answers = answers.into_inner();
    tokio::spawn(async move {
        while let Some(Ok(batch)) = answers.next().await {
            for message in batch.messages {
                assert!(from_proto(message).is_some());
                window.acknowledge();
            }
        }
    });
    Arc::new(move |messages| {
        messages.into_iter().for_each(|message| sender.try_send(message).unwrap());
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[tokio::main]
pub(crate) async fn run() {
    let window = || Arc::new(Window { free: Semaphore::new(0), acknowledged: AtomicU64::new(0) });
    let windows = [window(), window()];
    let sends = [framed(windows[0].clone()).await, grpc(windows[1].clone()).await];
    for shape in &SHAPES {
        let mut figures: [(Vec<f64>, Vec<f64>); 2] = Default::default();
        for _ in 0..ROUNDS {
            for (side, send) in sends.iter().enumerate() {
                let (per_second, cpu) = measure(shape, &windows[side], send).await;
                figures[side].0.push(per_second);
                figures[side].1.push(cpu);
            }
        }
        let [(framed, framed_cpu), (grpc, grpc_cpu)] =
            figures.map(|(per_second, cpu)| (median(per_second), median(cpu)));
        let mib = |per_second: f64| per_second * shape.bytes as f64 / f64::from(1 << 20);
        println!(
            "{{\"shape\":\"{}\",\"rounds\":{ROUNDS},\
             \"transport_entries_per_second\":{framed:.0},\"transport_mib_per_second\":{:.0},\
             \"transport_cpu_us_per_entry\":{framed_cpu:.2},\
             \"grpc_entries_per_second\":{grpc:.0},\"grpc_mib_per_second\":{:.0},\
             \"grpc_cpu_us_per_entry\":{grpc_cpu:.2},\
             \"throughput_ratio\":{:.2},\"cpu_ratio\":{:.2}}}",
            shape.name,
            mib(framed),
            mib(grpc),
            framed / grpc,
            grpc_cpu / framed_cpu,
        );
    }
}
