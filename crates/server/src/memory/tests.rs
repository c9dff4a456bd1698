//! The budget, and bodies that are charged to it.

use super::body::{PlainBody, RequestBody};
use super::layer::WINDOW_BYTES_MIN;
use super::*;
use axum::body::HttpBody;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body::Frame;
use prost::Message;
use std::collections::VecDeque;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use stele_proto::Method;
use stele_proto::kvrpcpb::{RawBatchGetRequest, RawPutRequest};
use tonic::{Code, Status};

const MIB: u64 = 1 << 20;
const PUT: &str = "/tikvpb.Tikv/RawPut";
const BATCH_GET: &str = "/tikvpb.Tikv/RawBatchGet";
const STREAM: &str = "/tikvpb.Tikv/BatchCommands";

fn connection(node: &Arc<NodeMemory>) -> Arc<ConnectionMemory> {
    ConnectionMemory::new(node, 0)
}

fn data(connection: &Arc<ConnectionMemory>) -> Arc<RequestMemory> {
    RequestMemory::new(connection, Class::Data)
}

#[test]
fn requests_share_the_memory_of_their_connection_and_their_node_and_return_it() {
    let node = NodeMemory::new(160 * MIB);
    let (a, b) = (connection(&node), connection(&node));
    let first = data(&a);
    let refused = first.charge(91 * MIB);
    assert_eq!(refused, Err(Exceeded::Request { bytes: 91 * MIB, bytes_max: 90 * MIB }));
    first.charge(90 * MIB).unwrap();
    assert_eq!(data(&a).charge(11 * MIB), Err(Exceeded::Shared), "100 MiB of a connection");
    assert_eq!(data(&b).charge(21 * MIB), Err(Exceeded::Shared), "110 MiB of the node");
    let second = data(&b);
    second.charge(20 * MIB).unwrap();
    assert_eq!(node.stats().used_bytes, 110 * MIB, "what was refused is not counted");
    assert_eq!(node.stats().refused, 3);
    first.release_to(5 * MIB);
    assert_eq!((first.used(), node.stats().used_bytes), (5 * MIB, 25 * MIB));
    drop(first);
    data(&b).charge(80 * MIB).unwrap();
    drop(second);
    assert_eq!(node.stats().used_bytes, 0);
}

#[test]
fn the_connections_of_a_client_share_the_memory_of_one() {
    let node = NodeMemory::new(160 * MIB);
    let of = |name| ConnectionMemory::of_client(&node, 0, Some(name));
    let (a, b, other) = (of("app"), of("app"), of("other"));
    let first = data(&a);
    first.charge(60 * MIB).unwrap();
    assert_eq!(data(&b).charge(41 * MIB), Err(Exceeded::Shared), "100 MiB of a client");
    let second = data(&b);
    second.charge(40 * MIB).unwrap();
    data(&other).charge(10 * MIB).unwrap();
    drop(first);
    second.charge(40 * MIB).unwrap();
    drop((second, a, b));
    assert_eq!(node.stats().used_bytes, 0);
    let again = of("app");
    assert_eq!(node.clients.lock().len(), 2, "those that are connected");
    data(&again).charge(90 * MIB).unwrap();
}

#[test]
fn data_leaves_a_part_of_the_memory_to_placement_and_control() {
    let node = NodeMemory::new(160 * MIB);
    let (a, b) = (connection(&node), connection(&node));
    let requests = [data(&a), data(&b)];
    requests[0].charge(90 * MIB).unwrap();
    requests[1].charge(20 * MIB).unwrap();
    assert_eq!(data(&b).charge(1), Err(Exceeded::Shared));
    let report = RequestMemory::new(&b, Class::System);
    report.charge(10 * MIB).unwrap();
    assert_eq!(report.charge(1), Err(Exceeded::Shared));
}

#[test]
fn a_message_is_kept_while_one_of_its_commands_is_answered() {
    let node = NodeMemory::new(160 * MIB);
    let message = data(&connection(&node));
    message.charge(1000).unwrap();
    let command = RequestMemory::part_of(&message);
    command.charge(10).unwrap();
    drop(message);
    assert_eq!(node.stats().used_bytes, 1010);
    drop(command);
    assert_eq!(node.stats().used_bytes, 0);
}

#[test]
fn few_connections_get_large_windows_and_ten_thousand_a_bounded_sum() {
    let node = NodeMemory::new(256 * MIB);
    let window = || ConnectionMemory::new(&node, 4 << 20);
    let first = window();
    assert_eq!(first.window_bytes(), 2 << 20);
    let mut all: Vec<_> = (0..64).map(|_| window()).collect();
    assert!(all.last().unwrap().window_bytes() >= 4 * WINDOW_BYTES_MIN);
    all.extend((0..10_000).map(|_| window()));
    assert_eq!(all.last().unwrap().window_bytes(), WINDOW_BYTES_MIN, "which HTTP/2 prescribes");
    let bytes = node.stats().window_bytes;
    assert!(bytes < 64 * MIB + 10_000 * u64::from(WINDOW_BYTES_MIN), "{bytes}");
    drop((all, first));
    assert_eq!(node.stats().window_bytes, 0);
    assert_eq!(window().window_bytes(), 2 << 20);
}

#[test]
fn an_answer_is_charged_until_its_last_piece_is_sent() {
    let node = NodeMemory::new(160 * MIB);
    let memory = data(&connection(&node));
    memory.charge(3000).unwrap();
    let held = Arc::new(vec![memory]);
    let piece = Piece::bytes(Bytes::from(vec![7; 3000]), &held);
    drop(held);
    let part = piece.slice(1000..2000);
    drop(piece);
    assert_eq!(node.stats().used_bytes, 3000, "HTTP/2 keeps the whole piece");
    assert_eq!(part, [7; 1000][..]);
    drop(part);
    assert_eq!(node.stats().used_bytes, 0);
}

/// Body of these pieces; it ends after them, or never.
struct Pieces {
    pieces: VecDeque<Bytes>,
    ends: bool,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.pieces.pop_front() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

struct Trial {
    node: Arc<NodeMemory>,
    connection: Arc<ConnectionMemory>,
    arrived: Arc<Arrived>,
}

impl Trial {
    fn new() -> Self {
        let node = NodeMemory::new(160 * MIB);
        let connection = connection(&node);
        let arrived = Arrived::new(&connection, Class::Data, None);
        Self { node, connection, arrived }
    }

    fn body(&self, path: &str, pieces: Vec<Bytes>, ends: bool) -> RequestBody<Pieces> {
        let limits = Limits {
            message_bytes_max: 128 * MIB,
            time_max: Duration::from_millis(200),
            memory_wait: Duration::from_millis(300),
        };
        let (method, body) = (Method::at(path), Pieces { pieces: pieces.into(), ends });
        let (kind, request) = ((method, true, PlainBody::default()), data(&self.connection));
        RequestBody::new(body, kind, self.arrived.clone(), request, limits)
    }

    fn plain(&self, plain: PlainBody, pieces: Vec<Bytes>, ends: bool) -> RequestBody<Pieces> {
        self.body("/v1/kv/a", pieces, ends).with_bounds(plain)
    }
}

async fn read<B: HttpBody<Data = Bytes, Error = axum::BoxError> + Unpin>(
    body: &mut B,
) -> (Vec<u8>, Option<Status>) {
    let mut all = Vec::new();
    loop {
        let next = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        match next {
            Some(Ok(frame)) => all.extend_from_slice(&frame.into_data().unwrap()),
            Some(Err(error)) => return (all, Some(Status::from_error(error))),
            None => return (all, None),
        }
    }
}

fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag], &(message.len() as u32).to_be_bytes()[..], message].concat()
}

fn packed(message: &[u8]) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer.write_all(message).unwrap();
    packer.finish().unwrap()
}

fn put(value_bytes: usize) -> Vec<u8> {
    RawPutRequest { value: vec![7; value_bytes].into(), ..Default::default() }.encode_to_vec()
}

fn pieces(bytes: &[u8], piece_bytes: usize) -> Vec<Bytes> {
    bytes.chunks(piece_bytes).map(Bytes::copy_from_slice).collect()
}

#[tokio::test]
async fn messages_pass_unchanged_however_they_are_cut_and_are_charged_until_they_are_dropped() {
    let (one, two) = (put(1000), put(70_000));
    let bytes = [framed(0, &one), framed(0, b""), framed(0, &two)].concat();
    for piece_bytes in [1, 3, 4, 5, 6, 7, 1000, bytes.len()] {
        let trial = Trial::new();
        let mut body = trial.body(STREAM, pieces(&bytes, piece_bytes), true);
        let (passed, end) = read(&mut body).await;
        assert!(end.is_none() && passed == bytes, "pieces of {piece_bytes}: {end:?}");
        let memory = trial.arrived.take();
        assert_eq!(memory.used(), two.len() as u64, "the last message");
        drop((memory, body));
        assert_eq!(trial.node.stats().used_bytes, 0);
    }
}

#[tokio::test]
async fn a_message_is_charged_when_its_length_arrives_and_its_elements_as_they_arrive() {
    let trial = Trial::new();
    let begun = framed(0, &vec![0; 80 << 20]);
    let mut body = trial.body(PUT, pieces(&begun[..10], 10), false);
    assert!(tokio::time::timeout(Duration::from_millis(50), read(&mut body)).await.is_err());
    assert_eq!(trial.node.stats().used_bytes, 80 * MIB);
    drop(body);
    assert_eq!(trial.node.stats().used_bytes, 0);
    let gets = RawBatchGetRequest { keys: vec![Bytes::new(); 1 << 20], ..Default::default() };
    let gets = framed(0, &gets.encode_to_vec());
    let mut body = trial.body(BATCH_GET, pieces(&gets, 1 << 16), true);
    let (_, end) = read(&mut body).await;
    assert_eq!(end.unwrap().code(), Code::ResourceExhausted, "2 MiB become 96 MiB");
    assert!(matches!(trial.arrived.refusal(), Some(Exceeded::Request { .. })));
}

#[tokio::test]
async fn a_body_without_messages_is_charged_before_it_is_received() {
    let trial = Trial::new();
    let announced = PlainBody::new(128 * MIB, 1, 40 * MIB);
    let mut body = trial.plain(announced, Vec::new(), false);
    assert!(tokio::time::timeout(Duration::from_millis(50), read(&mut body)).await.is_err());
    assert_eq!(trial.node.stats().used_bytes, 40 * MIB);
    drop(body);
    assert_eq!(trial.node.stats().used_bytes, 0);
    // Without an announcement it is charged as it arrives.
    let mut body = trial.plain(PlainBody::new(5 * MIB, 3, 0), pieces(&vec![7; 5 << 20], 999), true);
    let (passed, end) = read(&mut body).await;
    assert!(end.is_none() && passed.len() == 5 << 20, "{end:?}");
    assert_eq!(trial.node.stats().used_bytes, 15 * MIB);
    drop(body);
    for (bytes_max, announced, pieces) in [
        (5 * MIB, 5 * MIB + 1, Vec::new()),
        (5 * MIB, 0, pieces(&vec![7; (5 << 20) + 1], 1000)),
        (128 * MIB, 91 * MIB, Vec::new()),
    ] {
        let trial = Trial::new();
        let mut body = trial.plain(PlainBody::new(bytes_max, 1, announced), pieces, false);
        assert_eq!(read(&mut body).await.1.unwrap().code(), Code::ResourceExhausted);
        assert!(matches!(trial.arrived.refusal(), Some(Exceeded::Request { .. })));
    }
    // It waits for memory that others use.
    let trial = Trial::new();
    let other = data(&trial.connection);
    other.charge(70 * MIB).unwrap();
    let announced = PlainBody::new(128 * MIB, 1, 40 * MIB);
    let mut body = trial.plain(announced, vec![Bytes::from(vec![7; 40 << 20])], true);
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(other);
    };
    let ((passed, end), ()) = tokio::join!(read(&mut body), release);
    assert!(end.is_none() && passed.len() == 40 << 20, "{end:?}");
}

#[tokio::test]
async fn a_message_above_the_limit_is_dropped_to_its_end_before_it_is_refused() {
    let trial = Trial::new();
    let bytes = framed(0, &vec![0; 91 << 20]);
    let mut body = trial.body(PUT, pieces(&bytes, 1 << 20), true);
    let (passed, end) = read(&mut body).await;
    assert!(passed.is_empty());
    assert_eq!(end.unwrap().code(), Code::ResourceExhausted);
    assert!(matches!(trial.arrived.refusal(), Some(Exceeded::Request { .. })));
    assert!(body.is_end_stream() || read(&mut body).await.1.is_none(), "all of it was read");
    assert_eq!(trial.node.stats().used_bytes, 0);
}

#[tokio::test]
async fn a_compressed_message_is_charged_for_what_it_becomes() {
    let trial = Trial::new();
    let message = put(5 << 20);
    let mut body = trial.body(PUT, pieces(&framed(1, &packed(&message)), 1000), true);
    let (passed, end) = read(&mut body).await;
    assert!(end.is_none() && passed == framed(0, &message), "{end:?}");
    let memory = trial.arrived.take();
    assert!((5 * MIB..11 * MIB).contains(&memory.used()), "{}", memory.used());
    drop((memory, body));
    let bomb = packed(&vec![0; 120 << 20]);
    assert!(bomb.len() < 1 << 20);
    let mut body = trial.body(PUT, pieces(&framed(1, &bomb), 1000), true);
    let (passed, end) = read(&mut body).await;
    assert!(passed.is_empty());
    assert_eq!(end.unwrap().code(), Code::ResourceExhausted);
    drop(body);
    assert_eq!(trial.node.stats().used_bytes, 0);
    let trial = Trial::new();
    let mut body = trial.body(PUT, pieces(&framed(1, b"no gzip"), 1000), true);
    assert_eq!(read(&mut body).await.1.unwrap().code(), Code::Internal);
}

#[tokio::test]
async fn a_message_waits_for_memory_that_others_use_and_is_refused_as_busy_in_the_end() {
    let trial = Trial::new();
    let other = data(&trial.connection);
    other.charge(60 * MIB).unwrap();
    let bytes = framed(0, &vec![0; 50 << 20]);
    let mut body = trial.body(PUT, pieces(&bytes, 1 << 20), true);
    let release = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(other);
    };
    let ((passed, end), ()) = tokio::join!(read(&mut body), release);
    assert!(end.is_none() && passed.len() == bytes.len());
    drop((trial.arrived.take(), body));
    let other = data(&trial.connection);
    other.charge(60 * MIB).unwrap();
    let mut body = trial.body(PUT, pieces(&bytes, 1 << 20), true);
    assert_eq!(read(&mut body).await.1.unwrap().code(), Code::ResourceExhausted);
    assert_eq!(trial.arrived.refusal(), Some(Exceeded::Shared));
}

#[tokio::test]
async fn no_message_waits_while_many_connections_use_up_the_windows() {
    let trial = Trial::new();
    let other = data(&trial.connection);
    other.charge(60 * MIB).unwrap();
    let connections: Vec<_> =
        (0..1000).map(|_| ConnectionMemory::new(&trial.node, 4 << 20)).collect();
    let bytes = framed(0, &vec![0; 50 << 20]);
    let mut body = trial.body(PUT, pieces(&bytes, 1 << 20), true);
    let refused = tokio::time::timeout(Duration::from_millis(250), read(&mut body)).await;
    assert_eq!(refused.expect("it waits").1.unwrap().code(), Code::ResourceExhausted);
    assert_eq!(trial.arrived.refusal(), Some(Exceeded::Shared));
    drop(connections);
}

#[tokio::test]
async fn a_body_without_an_end_is_ended_and_a_stream_may_wait_for_its_next_message() {
    let bytes = framed(0, &put(100));
    for (path, part) in [(PUT, bytes.len()), (PUT, 0), (PUT, 50), (STREAM, 50), (STREAM, 3)] {
        let trial = Trial::new();
        let mut body = trial.body(path, pieces(&bytes[..part], 20), false);
        let (_, end) = read(&mut body).await;
        assert_eq!(end.unwrap().code(), Code::DeadlineExceeded, "{path}: {part} bytes");
    }
    let trial = Trial::new();
    let mut body = trial.body(STREAM, pieces(&bytes, 20), false);
    let waits = tokio::time::timeout(Duration::from_millis(600), read(&mut body)).await;
    assert!(waits.is_err(), "between two messages");
}
