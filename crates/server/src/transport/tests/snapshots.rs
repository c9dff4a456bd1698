//! Snapshots: received completely or not at all.

use super::super::frame::{self, Kind};
use super::super::hello::{self, Hello, Lane, MAGIC};
use super::super::{Cut, SnapshotOffer};
use super::common::{Book, TestNode, until};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stele_types::checksum::crc32c;
use stele_types::{ClusterId, StoreId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

type Taken = Arc<Mutex<Vec<Result<Vec<Bytes>, String>>>>;

/// Accepts every snapshot; the receiver gets its pieces, or the reason of the failure.
fn take_all(node: &TestNode) -> Taken {
    let taken = Taken::default();
    let ends = taken.clone();
    *node.seen.on_snapshot.lock() = Some(Box::new(move |offer: SnapshotOffer| {
        let ends = ends.clone();
        Box::pin(async move {
            let mut receiver = offer.accept().await.unwrap();
            let mut pieces = Vec::new();
            let end = loop {
                match receiver.next().await {
                    Ok(Some(piece)) => pieces.push(piece),
                    Ok(None) => break Ok(pieces),
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

#[tokio::test]
async fn pieces_arrive_as_they_were_sent_and_the_sender_learns_of_it() {
    let (a, b) = pair().await;
    let taken = take_all(&b);
    let pieces: Vec<Bytes> = [1usize, 0, 70_000, 1 << 20, (3 << 20) + 5, 2]
        .iter()
        .map(|bytes| Bytes::from(vec![*bytes as u8; *bytes]))
        .collect();
    let mut sender = a.transport.open_snapshot(FROM, TO, b"header").await.unwrap();
    for piece in &pieces {
        sender.send(piece.clone()).await.unwrap();
    }
    sender.finish().await.unwrap();
    assert!(taken.lock().pop() == Some(Ok(pieces)));
    assert_eq!((a.counter("snapshots_sent"), b.counter("snapshots_received")), (1, 1));
}

#[tokio::test]
async fn a_refusal_arrives_with_its_reason() {
    let (a, b) = pair().await;
    let error = a.transport.open_snapshot(FROM, TO, b"").await.err().unwrap();
    assert_eq!(error.to_string(), "snapshot declined: not wanted");
    let dropped = Box::new(|offer| {
        let dropping = async move { drop::<SnapshotOffer>(offer) };
        Box::pin(dropping) as super::super::BoxFuture<'static, ()>
    });
    *b.seen.on_snapshot.lock() = Some(dropped);
    assert!(a.transport.open_snapshot(FROM, TO, b"").await.is_err(), "no answer is a refusal");
    assert!(a.transport.open_snapshot(FROM, StoreId(5), b"").await.is_err());
}

#[tokio::test]
async fn a_receiver_that_fails_stops_the_sender() {
    let (a, b) = pair().await;
    *b.seen.on_snapshot.lock() = Some(Box::new(|offer: SnapshotOffer| {
        Box::pin(async move {
            let mut receiver = offer.accept().await.unwrap();
            receiver.next().await.unwrap();
            receiver.done(Err("disk full".to_owned())).await;
        })
    }));
    let mut sender = a.transport.open_snapshot(FROM, TO, b"").await.unwrap();
    let error = loop {
        if let Err(error) = sender.send(Bytes::from(vec![0; 1 << 20])).await {
            break error;
        }
    };
    assert_eq!(error.to_string(), "snapshot declined: disk full");
}

#[tokio::test]
async fn a_snapshot_that_is_not_ended_is_not_taken() {
    let (a, b) = pair().await;
    let taken = take_all(&b);
    let mut sender = a.transport.open_snapshot(FROM, TO, b"").await.unwrap();
    sender.send(Bytes::from_static(b"piece")).await.unwrap();
    drop(sender);
    until("the end", || taken.lock().len() == 1).await;
    assert!(taken.lock().pop() == Some(Err("ended".to_owned())));

    *b.seen.on_snapshot.lock() = Some(Box::new(|offer: SnapshotOffer| {
        Box::pin(async move { offer.accept().await.unwrap().done(Ok(())).await })
    }));
    let sender = a.transport.open_snapshot(FROM, TO, b"").await.unwrap();
    let error = sender.finish().await.err().unwrap();
    assert!(error.to_string().contains("the snapshot is incomplete"), "{error}");
}

// Catalogue: 36.
#[tokio::test]
async fn a_cut_ends_a_snapshot() {
    let (a, b) = pair().await;
    let taken = take_all(&b);
    for cut in [Cut::Out, Cut::In] {
        let mut sender = a.transport.open_snapshot(FROM, TO, b"").await.unwrap();
        a.cut(2, cut);
        let failed = async { while sender.send(Bytes::from_static(b"piece")).await.is_ok() {} };
        tokio::time::timeout(Duration::from_secs(5), failed).await.unwrap();
        drop(sender);
        a.cut(2, Cut::Nothing);
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
            let mut receiver = offer.accept().await.unwrap();
            let _open = gate.acquire().await.unwrap();
            let mut next = receiver.next().await;
            while matches!(next, Ok(Some(_))) {
                next = receiver.next().await;
            }
            let end = next.map(|_| ()).map_err(|reason| reason.to_string());
            receiver.done(end).await;
        })
    }));
    let mut sender = a.transport.open_snapshot(FROM, TO, b"").await.unwrap();
    let mut sent = 0;
    let stuck = async {
        while sent < 200 {
            sender.send(Bytes::from(vec![1; 1 << 20])).await.unwrap();
            sent += 1;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(1), stuck).await;
    assert!(waited.is_err() && sent < 100, "{sent} MiB went to a receiver that accepts none");
    // The interrupted piece invalidates this snapshot; the receiver never gets its end.
    drop(sender);
    let mut sender = a.transport.open_snapshot(FROM, TO, b"").await.unwrap();
    sender.send(Bytes::from_static(b"piece")).await.unwrap();
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        gate.add_permits(1);
    };
    let (finished, ()) = tokio::join!(sender.finish(), late);
    finished.unwrap();
}

/// Sends the sender's frames without [`SnapshotSender`], and returns the receiver's reply.
async fn send_frames(node: &TestNode, frames: &[Bytes]) -> Kind {
    let mut hello = Hello::new(Lane::Bulk, ClusterId(1), "by-hand:1");
    hello.from = vec![FROM];
    hello.wanted = vec![TO];
    let offer = frame::whole(Kind::Offer, &hello::offer(TO, FROM, b""));
    let greeting = [&MAGIC[..], &frame::whole(Kind::Hello, &hello.encode()), &offer].concat();
    let mut stream = TcpStream::connect(&node.address).await.unwrap();
    stream.write_all(&greeting).await.unwrap();
    for frame in frames {
        let _ = stream.write_all(frame).await;
    }
    let mut answers = frame::Frames::new(1 << 20);
    let mut last = Kind::Welcome;
    while stream.read_buf(answers.room()).await.is_ok_and(|bytes| bytes > 0) {
        while let Some(frame) = answers.take().unwrap() {
            last = frame.kind;
        }
    }
    last
}

fn chunk(number: u64, content: &[u8]) -> Bytes {
    frame::whole(Kind::Chunk, &[&number.to_le_bytes()[..], &[1], content].concat())
}

fn end(chunks: u64, bytes: u64, crc: u32) -> Bytes {
    let body = [&chunks.to_le_bytes()[..], &bytes.to_le_bytes(), &crc.to_le_bytes()].concat();
    frame::whole(Kind::End, &body)
}

// Catalogue: 58.
#[tokio::test]
async fn what_does_not_add_up_is_refused_as_a_whole() {
    let (_a, b) = pair().await;
    let taken = take_all(&b);
    let (one, two) = (chunk(0, b"ab"), chunk(1, b"c"));
    let checksum = crc32c(b"abc");
    let good = [one.clone(), two.clone(), end(2, 3, checksum)];
    assert_eq!(send_frames(&b, &good).await, Kind::Done);
    assert!(taken.lock().pop().unwrap().is_ok());
    let bad: [(&str, Vec<Bytes>); 8] = [
        ("a gap", vec![one.clone(), chunk(2, b"c"), end(2, 3, checksum)]),
        ("a repetition", vec![one.clone(), one.clone(), end(2, 4, crc32c(b"abab"))]),
        ("another order", vec![two.clone(), one.clone(), end(2, 3, checksum)]),
        ("a chunk too few", vec![one.clone(), end(2, 3, checksum)]),
        ("another length", vec![one.clone(), two.clone(), end(2, 4, checksum)]),
        ("another checksum", vec![one.clone(), two.clone(), end(2, 3, checksum + 1)]),
        (
            "an unended piece",
            vec![
                frame::whole(Kind::Chunk, &[&0u64.to_le_bytes()[..], &[0], b"abc"].concat()),
                end(1, 3, checksum),
            ],
        ),
        ("a message", vec![one.clone(), frame::whole(Kind::Message, b"abc"), end(2, 3, checksum)]),
    ];
    for (what, frames) in bad {
        assert_ne!(send_frames(&b, &frames).await, Kind::Done, "{what}");
        until(what, || taken.lock().len() == 1).await;
        assert!(taken.lock().pop() == Some(Err("malformed".to_owned())), "{what}");
    }
    assert_eq!(b.counter("snapshots_received"), 1);
}

#[tokio::test]
async fn snapshots_on_their_way_in_are_bounded() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let few = super::super::Options { snapshots_in_max: 2, ..super::common::options() };
    let b = TestNode::start_with(&book, &[2], 1, few, "127.0.0.1:0").await;
    take_all(&b);
    let open = || a.transport.open_snapshot(FROM, TO, b"");
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
