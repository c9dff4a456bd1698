//! Which thread writes: the one that sends, or the task of the connection.

use super::super::TransportOptions;
use super::super::hello::Lane;
use super::common::{Book, TestNode, append, index_of, options, until, until_heard};
use super::network::{Proxy, Weather};
use std::sync::Arc;
use std::time::Duration;

/// Returns two nodes, and the proxy through which the first sends to the second. Nothing but messages
/// wakes a task: no keepalive, no silence, no stall.
async fn pair() -> (TestNode, TestNode, Proxy) {
    let book = Arc::new(Book::default());
    let rare = Duration::from_secs(60);
    let quiet = TransportOptions {
        keepalive_interval: rare,
        silence_max: rare,
        stall_max: rare,
        ..options()
    };
    let a = TestNode::start_with(&book, &[1], 1, quiet.clone(), "127.0.0.1:0").await;
    let b = TestNode::start_with(&book, &[2], 1, quiet, "127.0.0.1:0").await;
    let proxy = Proxy::start(&b.address).await;
    book.set(2, &proxy.address);
    until_heard(&a, &b, (1, 2)).await;
    a.send(append(1, 2, 0, 10));
    until("a connection for data", || appends(&b).len() == 1).await;
    (a, b, proxy)
}

fn appends(node: &TestNode) -> Vec<u64> {
    let messages = node.seen.messages.lock();
    messages.iter().filter(|it| super::super::queue::is_data(it)).map(index_of).collect()
}

// The tasks of this runtime run only while the test waits.
#[tokio::test]
async fn a_thread_that_sends_writes_itself_and_wakes_no_task() {
    let (a, b, _proxy) = pair().await;
    let count = || (a.counter("messages_sent"), a.counter("writes"));
    let (messages, writes) = count();
    a.transport.send((1..4).map(|index| append(1, 2, index, 100)).collect());
    assert_eq!(count(), (messages + 3, writes + 1));
    assert_eq!(a.transport.queued_bytes(), 0);
    until("these messages", || appends(&b).len() == 4).await;
    // What is long is left to the task.
    let (messages, writes) = count();
    a.send(append(1, 2, 4, 1 << 20));
    assert_eq!(count(), (messages, writes));
    until("a long message", || appends(&b) == [0, 1, 2, 3, 4]).await;
}

#[tokio::test]
async fn what_a_sender_cannot_write_at_once_is_left_to_the_task() {
    for later in [0, 3] {
        let (a, b, proxy) = pair().await;
        proxy.set(Lane::Data, Weather::HeldThere);
        let mut sent = 1;
        let mut send = || {
            a.send(append(1, 2, sent, 50_000));
            sent += 1;
        };
        while a.transport.queued_bytes() == 0 {
            send();
        }
        // The task waits for the socket.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let writes = a.counter("writes");
        (0..later).for_each(|_| send());
        assert_eq!(a.counter("writes"), writes, "a sender does not go on with a write of the task");
        proxy.set(Lane::Data, Weather::Clear);
        until("all messages", || appends(&b).len() as u64 == sent).await;
        assert!(appends(&b).into_iter().eq(0..sent), "in order");
        assert_eq!(a.transport.queued_bytes(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_threads_that_send_at_once_arrive_once_and_in_the_order_of_each() {
    const EACH: u64 = 2_000;
    let (a, b, _proxy) = pair().await;
    let threads = (0..3).map(|thread| {
        let transport = a.transport.clone();
        std::thread::spawn(move || {
            for i in 1..=EACH {
                transport.send(vec![append(1, 2, thread * 1_000_000 + i, 200)]);
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    until("all messages", || appends(&b).len() as u64 == 1 + 3 * EACH).await;
    let came = appends(&b);
    for thread in 0..3 {
        let of = came.iter().skip(1).filter(|index| *index / 1_000_000 == thread);
        assert!(of.map(|index| index % 1_000_000).eq(1..=EACH), "thread {thread}");
    }
}
