//! Messages between correct nodes, on correct and faulty networks.

use super::super::TransportOptions;
use super::super::frame::{self, Frame, FrameKind, Frames};
use super::super::hello::{Hello, Lane, MAGIC, Welcome};
use super::common::{
    Book, TIMES, TestNode, append, heartbeat, index_of, message, options, start_of, until,
    until_heard,
};
use super::network::{Proxy, Weather};
use std::sync::Arc;
use std::time::Duration;
use stele_replica::wire::{self, ReceivedRoutes};
use stele_replica::{LeaseTimes, RaftKind};
use stele_types::StoreId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test]
async fn messages_of_all_sizes_arrive_whole_and_in_order() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2, 3]).await;
    let sizes = [0, 1, 100, 2048, 2049, 70_000, 5 << 20, 3, 1 << 20];
    let sent: Vec<_> = (0..300)
        .map(|index| append(1, 2 + index % 2, index, sizes[index as usize % sizes.len()] % 200_000))
        .chain([append(1, 2, 300, 5 << 20), message(1, 3, RaftKind::AppendResponse, 301)])
        .collect();
    // Like a store's loop: from a thread outside the runtime.
    let (transport, parts) = (a.transport.clone(), sent.clone());
    let send = move || parts.chunks(70).for_each(|part| transport.send(part.to_vec()));
    std::thread::spawn(send).join().unwrap();
    until("all messages", || b.seen.count() == sent.len()).await;
    let came = b.seen.messages.lock().clone();
    for store in [2, 3] {
        let of = |all: &[_]| -> Vec<_> {
            let mut all: Vec<stele_replica::PeerMessage> = all.to_vec();
            all.retain(|message| message.to_store == StoreId(store));
            all
        };
        assert!(of(&came) == of(&sent), "to store {store}");
    }
    assert_eq!(a.seen.last_reported(2), Some("reachable"));
    assert_eq!(a.seen.last_reported(3), Some("reachable"));
    assert_eq!(a.counter("connections_out"), 2, "one for each lane, not for each store");
    assert!(a.counter("writes") < sent.len() as u64, "many messages share a write");
}

/// Receives as a node of `version`. Returns the kinds of the frames in which `count` messages came.
async fn kinds_sent_to(version: u8, count: u64) -> Vec<FrameKind> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    book.set(2, &listener.local_addr().unwrap().to_string());
    let send = || a.transport.send((0..count).map(|index| append(1, 2, index, 100)).collect());
    send();
    let (mut held, mut kinds) = (Vec::new(), Vec::new());
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut frames, mut routes) = (Frames::new(1 << 20), ReceivedRoutes::default());
        stream.read_exact(&mut [0; MAGIC.len()]).await.unwrap();
        let hello = next(&mut frames, &mut stream).await;
        let lane = Hello::decode(&hello.body).unwrap().lane;
        let welcome = Welcome { version, ..Welcome::default() }.encode();
        stream.write_all(&frame::whole(FrameKind::Welcome, &welcome)).await.unwrap();
        if lane != Lane::Data {
            held.push(stream);
            continue;
        }
        send();
        let mut messages = 0;
        while messages < count {
            let frame = next(&mut frames, &mut stream).await;
            match frame.kind {
                FrameKind::Alive => continue,
                FrameKind::Message => messages += 1,
                _ => wire::decode_joined(&frame.body, &mut routes, |_| messages += 1).unwrap(),
            }
            kinds.push(frame.kind);
        }
        return kinds;
    }
}

async fn next(frames: &mut Frames, stream: &mut TcpStream) -> Frame {
    loop {
        if let Some(frame) = frames.take().unwrap() {
            return frame;
        }
        let read = stream.read_buf(frames.room());
        let bytes = tokio::time::timeout(Duration::from_secs(10), read).await;
        assert_ne!(bytes.expect("no frame arrives").unwrap(), 0, "the connection ended");
    }
}

#[tokio::test]
async fn messages_share_frames_unless_the_other_node_is_of_an_earlier_version() {
    let kinds = kinds_sent_to(4, 50).await;
    assert!(kinds.len() < 50 && kinds.iter().all(|it| *it == FrameKind::Messages), "{kinds:?}");
    let kinds = kinds_sent_to(3, 50).await;
    assert!(kinds.len() >= 50 && kinds.iter().all(|it| *it == FrameKind::Message), "{kinds:?}");
}

// Catalogue: 8.
#[tokio::test]
async fn another_cluster_is_refused_and_both_logs_say_why() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start_with(&book, &[2], 99, options(), "127.0.0.1:0").await;
    a.send(heartbeat(1, 2, 1));
    until("a refusal", || a.seen.saw_closed("other_cluster")).await;
    assert!(a.seen.saw_closed("this node belongs to cluster 99, not 1"));
    until("the other log", || b.seen.saw_closed("other_cluster")).await;
    assert_eq!(b.seen.count(), 0);
    assert_eq!(a.seen.last_reported(2), Some("unreachable"));
    assert!(book.stated.lock().is_empty(), "nothing is learned from it");
}

#[tokio::test]
async fn a_node_that_dials_states_its_address_and_the_runs_of_its_stores() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1, 4]).await;
    let b = TestNode::start(&book, &[2]).await;
    a.send(heartbeat(1, 2, 1));
    until("the message", || b.seen.count() == 1).await;
    let stated = book.stated.lock().clone();
    for store in [1, 4] {
        let expected = (a.address.clone(), StoreId(store), start_of(store, &[1]));
        assert!(stated.contains(&expected), "{stated:?}");
    }
    let answered = (b.address.clone(), StoreId(2), start_of(2, &[1]));
    until("the answer", || book.stated.lock().contains(&answered)).await;
}

#[tokio::test]
async fn a_node_with_another_tick_is_refused_and_both_logs_state_the_ticks_and_the_remedy_once() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let slower = LeaseTimes { tick_nanos: 100_000_000, ..TIMES };
    let b = TestNode::start_at(&book, &[2], (1, slower), options(), "127.0.0.1:0").await;
    for index in 0..50 {
        a.send(heartbeat(1, 2, index));
        b.send(heartbeat(2, 1, index));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until("refusals", || a.closed("other_tick") > 8 && b.closed("other_tick") > 8).await;
    for (node, other) in [(&a, &b), (&b, &a)] {
        let text = |one: &TestNode, tick| format!("{} has tick_ms = {tick}", one.address);
        let (own, its) = if node.address == a.address { (50, 100) } else { (100, 50) };
        assert!(node.seen.saw_closed(&text(node, own)) && node.seen.saw_closed(&text(other, its)));
        assert!(node.seen.saw_closed("set tick_ms to the same value on every node"));
        assert_eq!(node.seen.count(), 0);
        // Two connections in each direction.
        let logged = node.seen.closed.lock();
        assert_eq!(logged.len(), 4, "{logged:?}");
    }
}

#[tokio::test]
async fn a_store_that_moved_is_refused_at_its_old_address_and_found_at_the_new() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let old = TestNode::start(&book, &[3]).await;
    let new = TestNode::start(&book, &[2]).await;
    book.set(2, &old.address);
    a.send(heartbeat(1, 2, 1));
    until("a refusal", || a.seen.saw_closed("store 2 is not on this node")).await;
    book.set(2, &new.address);
    a.transport.members_changed();
    until_heard(&a, &new, (1, 2)).await;
    assert_eq!(old.seen.count(), 0);
}

#[tokio::test]
async fn a_removed_store_is_no_longer_heard() {
    let (book, others) = (Arc::new(Book::default()), Arc::new(Book::default()));
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&others, &[2]).await;
    book.set(2, &b.address);
    others.removed.lock().insert(StoreId(1));
    a.send(heartbeat(1, 2, 1));
    until("a refusal", || a.closed("store_removed") > 0).await;
    assert_eq!(b.seen.count(), 0);
}

#[tokio::test]
async fn a_removed_store_does_not_keep_the_others_of_its_node_from_being_heard() {
    let (book, others) = (Arc::new(Book::default()), Arc::new(Book::default()));
    let a = TestNode::start(&book, &[1, 4]).await;
    let b = TestNode::start(&others, &[2]).await;
    book.set(2, &b.address);
    others.removed.lock().insert(StoreId(1));
    a.send(heartbeat(1, 2, 1));
    until_heard(&a, &b, (4, 2)).await;
    a.send(heartbeat(1, 2, 2));
    until_heard(&a, &b, (4, 2)).await;
    assert!(b.seen.messages.lock().iter().all(|message| message.from_store == StoreId(4)));
    assert_eq!(a.closed("store_removed"), 0);
}

#[tokio::test]
async fn a_node_that_ends_is_noticed_at_once_and_found_when_it_is_back() {
    let book = Arc::new(Book::default());
    let slow = TransportOptions { backoff_max: Duration::from_secs(60), ..options() };
    let a = TestNode::start_with(&book, &[1], 1, slow.clone(), "127.0.0.1:0").await;
    let b = TestNode::start(&book, &[2]).await;
    until_heard(&a, &b, (1, 2)).await;
    let address = b.stop().await;
    until("its end", || a.seen.last_reported(2) == Some("unreachable")).await;
    let b = TestNode::start_with(&book, &[2], 1, options(), &address).await;
    // Its first message reports that it is back, whatever pause is left.
    tokio::time::sleep(Duration::from_millis(300)).await;
    b.send(heartbeat(2, 1, 1));
    until_heard(&a, &b, (1, 2)).await;
    until("its return", || a.seen.last_reported(2) == Some("reachable")).await;
}

// Catalogue: 34.
#[tokio::test]
async fn a_half_open_connection_is_given_up_by_both_sides() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2]).await;
    let proxy = Proxy::start(&b.address).await;
    book.set(2, &proxy.address);
    until_heard(&a, &b, (1, 2)).await;
    proxy.set_all(Weather::Held);
    until("silence", || a.seen.last_reported(2) == Some("unreachable")).await;
    until("silence there", || b.closed("silent") + b.closed("ended") >= 2).await;
    assert!(a.closed("silent") > 0);
    proxy.set_all(Weather::Clear);
    until_heard(&a, &b, (1, 2)).await;
    assert_eq!(a.seen.last_reported(2), Some("reachable"));
}

// Catalogue: 35.
#[tokio::test]
async fn heartbeats_pass_while_data_is_stuck_and_memory_stays_bounded() {
    let book = Arc::new(Book::default());
    let queue_bytes = 8 << 20;
    let bounded = TransportOptions { data_queue_bytes_max: queue_bytes, ..options() };
    let a = TestNode::start_with(&book, &[1], 1, bounded, "127.0.0.1:0").await;
    let b = TestNode::start(&book, &[2]).await;
    let proxy = Proxy::start(&b.address).await;
    book.set(2, &proxy.address);
    until_heard(&a, &b, (1, 2)).await;
    proxy.set(Lane::Data, Weather::Slow(64));
    for index in 0..600 {
        a.send(append(1, 2, index, 100_000));
        assert!(a.transport.queued_bytes() <= queue_bytes + (4 << 20));
    }
    assert!(a.counter("dropped_full") > 0);
    assert_eq!(a.seen.reported.lock().iter().filter(|report| report.0 == "dropped").count(), 1);
    for index in 0..20 {
        a.send(heartbeat(1, 2, 1_000_000 + index));
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let heard = || {
        let messages = b.seen.messages.lock();
        messages.iter().filter(|message| index_of(message) >= 1_000_000).count()
    };
    until("all heartbeats", || heard() == 20).await;
    assert_eq!(a.closed("silent"), 0, "slow is not disconnected");
}

// Catalogue: 62.
#[tokio::test]
async fn a_connection_that_takes_nothing_is_closed_in_the_end() {
    let book = Arc::new(Book::default());
    // On a busy machine, a silence would close it first, and nothing would be left to send.
    let silence_max = Duration::from_secs(60);
    let hasty =
        TransportOptions { stall_max: Duration::from_millis(300), silence_max, ..options() };
    let a = TestNode::start_with(&book, &[1], 1, hasty, "127.0.0.1:0").await;
    let b = TestNode::start(&book, &[2]).await;
    let proxy = Proxy::start(&b.address).await;
    book.set(2, &proxy.address);
    until_heard(&a, &b, (1, 2)).await;
    proxy.set(Lane::Data, Weather::Slow(0));
    a.transport.send((0..400).map(|index| append(1, 2, index, 100_000)).collect());
    until("a stall", || a.closed("stalled") + a.closed("ended") + a.closed("io") > 0).await;
    until("the report", || a.seen.reported.lock().iter().any(|report| report.0 == "dropped")).await;
    assert_eq!(a.seen.last_reported(2), Some("dropped"), "the node itself is reachable");
}

// Catalogue: 33.
#[tokio::test]
async fn damaged_bytes_are_never_delivered() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2]).await;
    let proxy = Proxy::start(&b.address).await;
    book.set(2, &proxy.address);
    until_heard(&a, &b, (1, 2)).await;
    proxy.set(Lane::Data, Weather::Damaged(1009));
    for index in 0..200 {
        a.send(append(1, 2, index, 10_000));
    }
    until("damage", || b.closed("malformed") > 0).await;
    proxy.set(Lane::Data, Weather::Clear);
    let arrived = || {
        a.send(append(1, 2, 500, 10));
        b.seen.messages.lock().iter().any(|message| index_of(message) == 500)
    };
    until("the next connection", arrived).await;
    let messages = b.seen.messages.lock();
    let appends = messages.iter().filter(|message| super::super::queue::is_data(message));
    for message in appends {
        let index = index_of(message);
        let bytes = if index == 500 { 10 } else { 10_000 };
        assert!(*message == append(1, 2, index, bytes), "message {index}");
    }
}

#[tokio::test]
async fn a_cut_loses_one_way_or_both_until_it_is_lifted() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2]).await;
    let (to_a, to_b) = (Proxy::start(&a.address).await, Proxy::start(&b.address).await);
    book.set(1, &to_a.address);
    book.set(2, &to_b.address);
    until_heard(&a, &b, (1, 2)).await;
    until_heard(&b, &a, (2, 1)).await;
    let (there, back) = (Weather::HeldThere, Weather::HeldBack);
    // On the connections of `a`, and on those of `b`.
    for (of_a, of_b) in [(there, back), (back, there), (Weather::Held, Weather::Held)] {
        to_b.set_all(of_a);
        to_a.set_all(of_b);
        until("the cut is noticed here", || a.seen.last_reported(2) == Some("unreachable")).await;
        until("the cut is noticed there", || b.seen.last_reported(1) == Some("unreachable")).await;
        let (before_a, before_b) = (a.seen.count(), b.seen.count());
        a.send(heartbeat(1, 2, 1));
        b.send(heartbeat(2, 1, 1));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!((a.seen.count(), b.seen.count()), (before_a, before_b));
        to_b.set_all(Weather::Clear);
        to_a.set_all(Weather::Clear);
        until_heard(&a, &b, (1, 2)).await;
        until_heard(&b, &a, (2, 1)).await;
    }
}

#[tokio::test]
async fn an_unknown_store_is_unreachable() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    a.send(heartbeat(1, 9, 1));
    assert_eq!(a.seen.last_reported(9), Some("unreachable"));
    assert_eq!(a.counter("dropped_unknown"), 1);
}

#[tokio::test]
async fn after_shutdown_nothing_runs() {
    let book = Arc::new(Book::default());
    let a = TestNode::start(&book, &[1]).await;
    let b = TestNode::start(&book, &[2]).await;
    until_heard(&a, &b, (1, 2)).await;
    a.transport.shutdown().await;
    until("its end is noticed", || b.closed("ended") + b.closed("io") >= 2).await;
}
