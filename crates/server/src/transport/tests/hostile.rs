//! Bytes that arbitrary clients may send to the port.

use super::super::TransportOptions;
use super::super::frame::{self, FrameKind};
use super::super::hello::{Hello, Lane, MAGIC};
use super::common::{Book, TestNode, append, framed, heartbeat, options, until, until_heard};
use std::sync::Arc;
use std::time::Duration;
use stele_types::{ClusterId, Prng, StoreId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn hello(lane: Lane) -> Vec<u8> {
    let mut hello = Hello::new(lane, ClusterId(1), "client:1");
    hello.from = vec![StoreId(7)];
    hello.wanted = vec![StoreId(1)];
    hello.encode()
}

fn greeting(lane: Lane) -> Vec<u8> {
    [&MAGIC, &frame::whole(FrameKind::Hello, &hello(lane))[..]].concat()
}

/// Sends bytes and waits until the node closes the connection, in any way.
async fn send_and_wait_for_the_end(node: &TestNode, bytes: &[u8]) {
    let mut stream = TcpStream::connect(&node.address).await.unwrap();
    // The node may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut sink = vec![0; 4096];
    let ended = async { while stream.read(&mut sink).await.is_ok_and(|bytes| bytes > 0) {} };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("the node keeps it open");
}

#[tokio::test]
async fn whatever_breaks_the_protocol_is_closed_and_counted() {
    let a = TestNode::start(&Arc::new(Book::default()), &[1]).await;
    let message = |from| framed(&heartbeat(from, 1, 1));
    let long = frame::header(FrameKind::Message, 64 << 20, 0);
    let cases: [(&str, Vec<u8>); 9] = [
        ("other first bytes", b"STELEPR2 and more than that".to_vec()),
        ("no hello", [&MAGIC[..], &frame::whole(FrameKind::Alive, b"")].concat()),
        ("a cut hello", [&MAGIC[..], &frame::whole(FrameKind::Hello, &[1, 1, 0])].concat()),
        ("a long hello", [&MAGIC[..], &frame::header(FrameKind::Hello, 1 << 20, 0)].concat()),
        ("too long for the lane", [&greeting(Lane::Urgent)[..], &long].concat()),
        (
            "no message",
            [&greeting(Lane::Data)[..], &frame::whole(FrameKind::Message, b"x")].concat(),
        ),
        ("a foreign sender", [&greeting(Lane::Data)[..], &message(8)].concat()),
        (
            "a snapshot's chunk",
            [&greeting(Lane::Data)[..], &frame::whole(FrameKind::Chunk, b"")].concat(),
        ),
        ("no offer", [&greeting(Lane::Bulk)[..], &message(7)].concat()),
    ];
    for (number, (what, bytes)) in cases.iter().enumerate() {
        send_and_wait_for_the_end(&a, bytes).await;
        until(what, || a.closed("malformed") == number as u64 + 1).await;
    }
    assert_eq!(a.seen.count(), 0);
    send_and_wait_for_the_end(&a, &[&greeting(Lane::Data)[..], &message(7)].concat()).await;
    assert_eq!(a.seen.count(), 1, "the same from the store of the hello is accepted");
}

#[tokio::test]
async fn a_client_that_sends_nothing_is_closed() {
    let a = TestNode::start(&Arc::new(Book::default()), &[1]).await;
    send_and_wait_for_the_end(&a, &MAGIC).await;
    send_and_wait_for_the_end(&a, &greeting(Lane::Data)).await;
    assert_eq!(a.closed("silent"), 2, "{:?}", a.seen.closed.lock());
}

#[tokio::test]
async fn connections_are_bounded() {
    let book = Arc::new(Book::default());
    let few =
        TransportOptions { incoming_max: 3, silence_max: Duration::from_secs(60), ..options() };
    let a = TestNode::start_with(&book, &[1], 1, few, "127.0.0.1:0").await;
    let mut held = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(&a.address).await.unwrap();
        stream.write_all(&greeting(Lane::Data)).await.unwrap();
        held.push(stream);
    }
    until("refusals", || a.closed("too_many") == 7).await;
    drop(held);
    let b = TestNode::start(&book, &[2]).await;
    until_heard(&b, &a, (2, 1)).await;
}

#[tokio::test]
async fn a_message_for_a_store_that_is_not_here_is_counted_and_dropped() {
    let a = TestNode::start(&Arc::new(Book::default()), &[1]).await;
    let unknown = framed(&heartbeat(7, 5, 1));
    let good = framed(&heartbeat(7, 1, 1));
    let bytes = [&greeting(Lane::Urgent)[..], &unknown, &good].concat();
    send_and_wait_for_the_end(&a, &bytes).await;
    assert_eq!((a.counter("strays_received"), a.seen.count()), (1, 1));
}

/// Replay one: `STELE_SEED=… cargo test -p stele-server garbage_on_the_port`.
#[tokio::test]
async fn garbage_on_the_port_is_closed_without_a_panic() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let seed = std::env::var("STELE_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = seed.map_or(0..200, |seed| seed..seed + 1);
    for seed in seeds {
        let mut chance = Prng::new(seed);
        let lane = [Lane::Urgent, Lane::Data, Lane::Bulk][chance.below(3) as usize];
        let mut bytes = greeting(lane);
        for _ in 0..chance.below(8) {
            bytes.extend(framed(&heartbeat(7, 1, seed)));
        }
        match chance.below(3) {
            0 => bytes.extend((0..chance.below(2000)).map(|_| chance.draw() as u8)),
            1 => {
                let at = chance.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << chance.below(8);
            }
            _ => bytes.truncate(chance.below(bytes.len() as u64) as usize),
        }
        let mut stream = TcpStream::connect(&a.address).await.unwrap();
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut sink = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut sink)).await;
        assert!(end.is_ok(), "seed {seed} keeps a connection open");
        assert!(sink.len() < 1000, "seed {seed}");
    }
    let messages = a.seen.messages.lock().len();
    let b = TestNode::start(&book, &[2]).await;
    until_heard(&b, &a, (2, 1)).await;
    assert!(a.seen.count() > messages);
}

#[tokio::test]
async fn large_frames_of_all_connections_share_one_bound() {
    let book = Arc::new(Book::default());
    let bounded = TransportOptions { received_bytes_max: 1 << 20, ..options() };
    let a = TestNode::start_with(&book, &[1], 1, bounded, "127.0.0.1:0").await;
    let b = TestNode::start(&book, &[2]).await;
    let mut client = TcpStream::connect(&a.address).await.unwrap();
    // It reserves the whole budget, and sends almost nothing of the frame.
    client.write_all(&greeting(Lane::Data)).await.unwrap();
    client.write_all(&frame::header(FrameKind::Message, 1 << 20, 0)).await.unwrap();
    until("the slow client is connected", || a.counter("connections_in") == 1).await;
    client.write_all(&[0]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    until_heard(&b, &a, (2, 1)).await;
    let heard = a.seen.count();
    b.send(append(2, 1, 5, 200 << 10));
    for _ in 0..10 {
        client.write_all(&[0]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(a.counter("waits_for_room"), 1, "the second waits");
    assert_eq!(a.seen.count(), heard, "and only large frames do");
    drop(client);
    until("the budget is released", || a.seen.count() > heard).await;
}
