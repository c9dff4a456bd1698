//! Snapshots: received completely or not at all.

use super::super::frame::{self, FrameKind};
use super::super::hello::{Hello, Lane, MAGIC, Offer, RESUMABLE};
use super::super::snapshot_stream::CHUNK_BYTES_MAX;
use super::super::{CloseReason, SnapshotOffer, SnapshotSender, TransportOptions};
use super::common::{Book, TestNode, options, until};
use super::network::{Proxy, Weather};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stele_node::snapshot::Position;
use stele_types::checksum::crc32c;
use stele_types::{ClusterId, StoreId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

type Taken = Arc<Mutex<Vec<Result<Vec<Bytes>, String>>>>;

fn nothing() -> Position {
    Position::default()
}

/// Accepts every snapshot; the receiver gets its chunks, or the reason of the failure.
fn take_all(node: &TestNode) -> Taken {
    let taken = Taken::default();
    let ends = taken.clone();
    *node.seen.on_snapshot.lock() = Some(Box::new(move |offer: SnapshotOffer| {
        let ends = ends.clone();
        Box::pin(async move {
            let mut receiver = offer.accept(nothing()).await.unwrap();
            let mut chunks = Vec::new();
            let end = loop {
                match receiver.next().await {
                    Ok(Some(chunk)) => chunks.push(chunk),
                    Ok(None) => break Ok(chunks),
                    Err(reason) => break Err(reason.label().to_owned()),
                }
            };
            receiver.done(end.as_ref().map(|_| ()).map_err(Clone::clone)).await;
            ends.lock().push(end);
        })
    }));
    taken
}

async fn pair() -> (TestNode, TestNode) {
    let book = Arc::new(Book::default());
    (TestNode::start(&book, &[1]).await, TestNode::start(&book, &[2]).await)
}

const TO: StoreId = StoreId(2);
const FROM: StoreId = StoreId(1);

async fn open(node: &TestNode, to: StoreId) -> Result<SnapshotSender, CloseReason> {
    node.transport.open_snapshot(FROM, to, Bytes::from_static(b"header"), false).await
}

fn chunk_of(bytes: usize) -> Vec<Bytes> {
    vec![Bytes::from(vec![1; bytes])]
}

#[tokio::test]
async fn chunks_arrive_as_they_were_sent_and_the_sender_learns_of_it() {
    let (a, b) = pair().await;
    let taken = take_all(&b);
    let chunks: Vec<Bytes> = [1usize, 0, 70_000, 1 << 20, (3 << 20) + 5, 2]
        .iter()
        .map(|bytes| Bytes::from(vec![*bytes as u8; *bytes]))
        .collect();
    let mut sender = open(&a, TO).await.unwrap();
    for chunk in &chunks {
        let half = chunk.len() / 2;
        sender.send(vec![chunk.slice(..half), chunk.slice(half..)]).await.unwrap();
    }
    sender.finish().await.unwrap();
    assert!(taken.lock().pop() == Some(Ok(chunks)));
    assert_eq!((a.counter("snapshots_sent"), b.counter("snapshots_received")), (1, 1));
}

#[tokio::test]
async fn a_snapshot_that_broke_off_goes_on_after_what_the_receiver_has() {
    let (a, b) = pair().await;
    type Parts = Arc<Mutex<(Position, Vec<Bytes>)>>;
    let parts = Parts::default();
    let kept = parts.clone();
    *b.seen.on_snapshot.lock() = Some(Box::new(move |offer: SnapshotOffer| {
        let kept = kept.clone();
        Box::pin(async move {
            let (has, mut chunks) = match offer.resumes() {
                true => kept.lock().clone(),
                false => Default::default(),
            };
            let mut receiver = offer.accept(has).await.unwrap();
            let end = loop {
                let next = receiver.next().await;
                match next {
                    Ok(Some(chunk)) => chunks.push(chunk),
                    Ok(None) => break Ok(()),
                    Err(reason) => break Err(reason.to_string()),
                }
                *kept.lock() = (receiver.position(), chunks.clone());
            };
            receiver.done(end).await;
        })
    }));
    let offer = |resumes| {
        let header = Bytes::from_static(b"header");
        a.transport.open_snapshot(FROM, TO, header, resumes)
    };
    let mut first = offer(false).await.unwrap();
    assert_eq!((first.position(), first.is_resumable()), (nothing(), true));
    let mut positions = Vec::new();
    for text in ["one", "two"] {
        first.send(vec![Bytes::from_static(text.as_bytes())]).await.unwrap();
        positions.push(first.position());
    }
    until("two chunks", || parts.lock().1.len() == 2).await;
    drop(first);
    let mut second = offer(true).await.unwrap();
    assert_eq!(second.position(), positions[1]);
    second.send(vec![Bytes::from_static(b"three")]).await.unwrap();
    second.finish().await.unwrap();
    assert_eq!(parts.lock().1, ["one", "two", "three"]);
    // A sender that cannot go on begins again.
    let third = offer(false).await.unwrap();
    assert_eq!(third.position(), nothing());
    // The totals are those of the whole snapshot.
    drop(third);
    parts.lock().0 = positions[0];
    let mut wrong = offer(true).await.unwrap();
    assert_eq!(wrong.position(), positions[0]);
    wrong.send(vec![Bytes::from_static(b"two")]).await.unwrap();
    assert_eq!(wrong.position(), positions[1]);
}

#[tokio::test]
async fn a_refusal_arrives_with_its_reason() {
    let (a, b) = pair().await;
    let error = open(&a, TO).await.err().unwrap();
    assert_eq!(error.to_string(), "snapshot declined: not wanted");
    let dropped = Box::new(|offer| {
        let dropping = async move { drop::<SnapshotOffer>(offer) };
        Box::pin(dropping) as super::super::BoxFuture<'static, ()>
    });
    *b.seen.on_snapshot.lock() = Some(dropped);
    assert!(open(&a, TO).await.is_err(), "no answer is a refusal");
    assert!(open(&a, StoreId(5)).await.is_err());
}

#[tokio::test]
async fn a_receiver_that_fails_stops_the_sender() {
    let (a, b) = pair().await;
    *b.seen.on_snapshot.lock() = Some(Box::new(|offer: SnapshotOffer| {
        Box::pin(async move {
            let mut receiver = offer.accept(nothing()).await.unwrap();
            receiver.next().await.unwrap();
            receiver.done(Err("disk full".to_owned())).await;
        })
    }));
    let mut sender = open(&a, TO).await.unwrap();
    let error = loop {
        if let Err(error) = sender.send(chunk_of(1 << 20)).await {
            break error;
        }
    };
    assert_eq!(error.to_string(), "snapshot declined: disk full");
}

#[tokio::test]
async fn a_snapshot_that_is_not_ended_is_not_taken() {
    let (a, b) = pair().await;
    let taken = take_all(&b);
    let mut sender = open(&a, TO).await.unwrap();
    sender.send(chunk_of(5)).await.unwrap();
    drop(sender);
    until("the end", || taken.lock().len() == 1).await;
    assert!(taken.lock().pop() == Some(Err("ended".to_owned())));

    *b.seen.on_snapshot.lock() = Some(Box::new(|offer: SnapshotOffer| {
        Box::pin(async move { offer.accept(nothing()).await.unwrap().done(Ok(())).await })
    }));
    let sender = open(&a, TO).await.unwrap();
    let error = sender.finish().await.err().unwrap();
    assert!(error.to_string().contains("the snapshot is incomplete"), "{error}");
}

// Catalogue: 36.
#[tokio::test]
async fn a_cut_ends_a_snapshot() {
    let book = Arc::new(Book::default());
    let hasty = || TransportOptions { stall_max: Duration::from_millis(500), ..options() };
    let a = TestNode::start_with(&book, &[1], 1, hasty(), "127.0.0.1:0").await;
    let b = TestNode::start_with(&book, &[2], 1, hasty(), "127.0.0.1:0").await;
    let proxy = Proxy::start(&b.address).await;
    book.set(2, &proxy.address);
    let taken = take_all(&b);
    for cut in [Weather::HeldThere, Weather::HeldBack] {
        let mut sender = open(&a, TO).await.unwrap();
        proxy.set_all(cut);
        let failed = async { while sender.send(chunk_of(5)).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(5), failed).await.unwrap();
        drop(sender);
        proxy.set_all(Weather::Clear);
    }
    until("both ends", || taken.lock().len() == 2).await;
    assert!(taken.lock().iter().all(Result::is_err));
}

#[tokio::test]
async fn a_receiver_sets_the_pace_and_may_be_busy_for_longer_than_silence_is_suffered() {
    let (a, b) = pair().await;
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let inner = gate.clone();
    *b.seen.on_snapshot.lock() = Some(Box::new(move |offer: SnapshotOffer| {
        let gate = inner.clone();
        Box::pin(async move {
            let mut receiver = offer.accept(nothing()).await.unwrap();
            let _open = gate.acquire().await.unwrap();
            let mut next = receiver.next().await;
            while matches!(next, Ok(Some(_))) {
                next = receiver.next().await;
            }
            let end = next.map(|_| ()).map_err(|reason| reason.to_string());
            receiver.done(end).await;
        })
    }));
    let mut sender = open(&a, TO).await.unwrap();
    let mut sent = 0;
    let stuck = async {
        while sent < 200 {
            sender.send(chunk_of(1 << 20)).await.unwrap();
            sent += 1;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(1), stuck).await;
    assert!(waited.is_err() && sent < 100, "{sent} MiB went to a receiver that accepts none");
    // The interrupted chunk invalidates this snapshot; the receiver never gets its end.
    drop(sender);
    let mut sender = open(&a, TO).await.unwrap();
    sender.send(chunk_of(5)).await.unwrap();
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.add_permits(1);
    };
    let (finished, ()) = tokio::join!(sender.finish(), late);
    finished.unwrap();
}

/// Sends the sender's frames in a version of the protocol without [`SnapshotSender`], and returns the
/// receiver's reply.
async fn send_frames(node: &TestNode, version: u8, frames: &[Bytes]) -> FrameKind {
    let mut hello = Hello::new(Lane::Bulk, ClusterId(1), "by-hand:1");
    hello.versions = (1, version);
    hello.from = vec![FROM];
    hello.wanted = vec![TO];
    let offer = Offer { to: TO, from: FROM, resumes: false, header: Bytes::new() };
    let offer = frame::whole(FrameKind::Offer, &offer.encode(version));
    let greeting = [&MAGIC[..], &frame::whole(FrameKind::Hello, &hello.encode()), &offer].concat();
    let mut stream = TcpStream::connect(&node.address).await.unwrap();
    stream.write_all(&greeting).await.unwrap();
    for frame in frames {
        let _ = stream.write_all(frame).await;
    }
    let mut answers = frame::Frames::new(1 << 20);
    let mut last = FrameKind::Welcome;
    while stream.read_buf(answers.room()).await.is_ok_and(|bytes| bytes > 0) {
        while let Some(frame) = answers.take().unwrap() {
            last = frame.kind;
        }
    }
    last
}

fn chunk(number: u64, content: &[u8]) -> Bytes {
    frame::whole(FrameKind::Chunk, &[&number.to_le_bytes()[..], content].concat())
}

fn end(chunks: u64, bytes: u64, crc: u32) -> Bytes {
    let body = [&chunks.to_le_bytes()[..], &bytes.to_le_bytes(), &crc.to_le_bytes()].concat();
    frame::whole(FrameKind::End, &body)
}

// Catalogue: 58.
#[tokio::test]
async fn what_does_not_add_up_is_refused_as_a_whole() {
    let (_a, b) = pair().await;
    let taken = take_all(&b);
    let (one, two) = (chunk(0, b"ab"), chunk(1, b"c"));
    let checksum = crc32c(b"abc");
    let good = [one.clone(), two.clone(), end(2, 3, checksum)];
    assert_eq!(send_frames(&b, RESUMABLE, &good).await, FrameKind::Done);
    assert!(taken.lock().pop().unwrap().is_ok());
    let bad: [(&str, Vec<Bytes>); 7] = [
        ("a gap", vec![one.clone(), chunk(2, b"c"), end(2, 3, checksum)]),
        ("a repetition", vec![one.clone(), one.clone(), end(2, 4, crc32c(b"abab"))]),
        ("another order", vec![two.clone(), one.clone(), end(2, 3, checksum)]),
        ("a chunk too few", vec![one.clone(), end(2, 3, checksum)]),
        ("another length", vec![one.clone(), two.clone(), end(2, 4, checksum)]),
        ("another checksum", vec![one.clone(), two.clone(), end(2, 3, checksum + 1)]),
        (
            "a message",
            vec![one.clone(), frame::whole(FrameKind::Message, b"abc"), end(2, 3, checksum)],
        ),
    ];
    for (what, frames) in bad {
        assert_ne!(send_frames(&b, RESUMABLE, &frames).await, FrameKind::Done, "{what}");
        until(what, || taken.lock().len() == 1).await;
        assert!(taken.lock().pop() == Some(Err("malformed".to_owned())), "{what}");
    }
    assert_eq!(b.counter("snapshots_received"), 1);
}

#[tokio::test]
async fn a_node_of_version_1_sends_pieces_and_gets_chunks_that_are_pieces() {
    let book = Arc::new(Book::default());
    let (a, b) = (TestNode::start(&book, &[1]).await, TestNode::start(&book, &[2]).await);
    let taken = take_all(&b);
    let piece = |number: u64, last: u8, content: &[u8]| {
        frame::whole(FrameKind::Chunk, &[&number.to_le_bytes()[..], &[last], content].concat())
    };
    // It cuts a piece into chunks; the last one of each is marked.
    let frames =
        [piece(0, 0, b"a"), piece(1, 1, b"b"), piece(2, 1, b"c"), end(3, 3, crc32c(b"abc"))];
    assert_eq!(send_frames(&b, 1, &frames).await, FrameKind::Done);
    assert!(taken.lock().pop() == Some(Ok(["a", "b", "c"].map(Bytes::from).to_vec())));
    let too_long = piece(0, 1, &vec![0; CHUNK_BYTES_MAX + 1]);
    assert_ne!(send_frames(&b, 1, &[too_long]).await, FrameKind::Done);
    until("its end", || taken.lock().len() == 1).await;

    // A receiver of version 1, by hand.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    book.set(9, &listener.local_addr().unwrap().to_string());
    let receiver = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut magic = [0; MAGIC.len()];
        stream.read_exact(&mut magic).await.unwrap();
        let (mut frames, mut found) = (frame::Frames::new(4 << 20), Vec::new());
        loop {
            while let Some(frame) = frames.take().unwrap() {
                let answer = match frame.kind {
                    FrameKind::Hello => frame::whole(FrameKind::Welcome, &[1]),
                    FrameKind::Offer => frame::whole(FrameKind::Accepted, b""),
                    FrameKind::End => frame::whole(FrameKind::Done, b""),
                    _ => Bytes::new(),
                };
                stream.write_all(&answer).await.unwrap();
                found.push(frame);
            }
            if stream.read_buf(frames.room()).await.unwrap() == 0 {
                return found;
            }
        }
    });
    let mut sender = open(&a, StoreId(9)).await.unwrap();
    assert!(!sender.is_resumable());
    sender
        .send(vec![Bytes::from(vec![1; CHUNK_BYTES_MAX]), Bytes::from_static(b"x")])
        .await
        .unwrap();
    sender.finish().await.unwrap();
    let found = receiver.await.unwrap();
    let kinds: Vec<FrameKind> = found.iter().map(|frame| frame.kind).collect();
    assert_eq!(
        kinds,
        [FrameKind::Hello, FrameKind::Offer, FrameKind::Chunk, FrameKind::Chunk, FrameKind::End]
    );
    assert!(found[1].body.ends_with(b"\x09\x01header"), "the offer has no flag");
    assert_eq!(found[2].body.len(), 9 + CHUNK_BYTES_MAX);
    assert_eq!(&found[3].body[..], b"\x01\0\0\0\0\0\0\0\x01x");
}

#[tokio::test]
async fn snapshots_on_their_way_in_are_bounded() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let few = super::super::TransportOptions { snapshots_in_max: 2, ..super::common::options() };
    let b = TestNode::start_with(&book, &[2], 1, few, "127.0.0.1:0").await;
    take_all(&b);
    let open = || open(&a, TO);
    let (first, _second) = (open().await.unwrap(), open().await.unwrap());
    assert_eq!(open().await.err().unwrap().label(), "declined");
    first.finish().await.unwrap();
    for _ in 0..100 {
        if open().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a released place is not given out again");
}
