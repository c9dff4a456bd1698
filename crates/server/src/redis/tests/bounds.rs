//! Bounds: memory, a client that does not read, connections, the stop of a node.

use super::{Server, TIME, pipeline, until};
use crate::memory::Limits;
use crate::port::PortOptions;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Smallest budget of a node: a request has 9 MiB of it, a connection 10, all of them 11.
const MEMORY: u64 = 16 << 20;

fn hasty() -> PortOptions {
    let body = Limits {
        message_bytes_max: 128 << 20,
        time_max: Duration::from_millis(1_500),
        memory_wait: Duration::from_millis(200),
    };
    PortOptions { body, ..PortOptions::default() }
}

#[tokio::test]
async fn a_value_larger_than_the_memory_is_refused_before_it_is_received() {
    let server = Server::with(hasty(), MEMORY).await;
    let mut client = server.connect().await;
    let bytes = 10 << 20;
    client.send(format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${bytes}\r\n").as_bytes()).await;
    let redis = server.redis.clone();
    until("it is refused", move || redis.memory.stats().refused == 1).await;
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..10 {
        client.send(&chunk).await;
        let used = server.redis.memory.stats().used_bytes;
        assert!(used < 1 << 20, "{used} bytes of a refused request are held");
    }
    client.send(b"\r\n").await;
    client.send(&pipeline(&["PING", "GET a"])).await;
    let replies = client.replies(3).await;
    assert!(replies[0].starts_with("-OOM the request and its answer need"), "{replies:?}");
    assert_eq!(replies[1..], ["+PONG\r\n", "$-1\r\n"], "the connection goes on in order");
}

#[tokio::test]
async fn arguments_after_a_refused_one_are_dropped_too() {
    let server = Server::with(hasty(), MEMORY).await;
    let mut client = server.connect().await;
    let large = "x".repeat(9 << 20);
    let refused = format!("MSET a 1 b {large} c 3");
    let replies = client.ask_all(&["MULTI", &refused, "PING", "EXEC", "GET a", "GET c"]).await;
    assert!(replies[1].starts_with("-OOM"), "{:?}", replies[1].get(..60));
    assert!(replies[3].starts_with("-EXECABORT"), "{:?}", replies[3]);
    assert_eq!(replies[4..], ["$-1\r\n", "$-1\r\n"]);
    until("its memory is released", || server.redis.memory.stats().used_bytes == 0).await;
}

#[tokio::test]
async fn a_request_waits_for_memory_that_others_use_and_is_refused_after_that() {
    let server = Server::with(hasty(), MEMORY).await;
    let (mut one, mut other) = (server.connect().await, server.connect().await);
    let value = "x".repeat(6 << 20);
    one.ask_all(&["MULTI", &format!("SET a {value}")]).await;
    let set = format!("SET b {value}");
    let refused = other.ask(&set).await;
    assert!(refused.starts_with("-OOM other requests use the memory"), "{refused}");
    let waiting = async { other.ask(&set).await };
    let releasing = async {
        sleep(Duration::from_millis(50)).await;
        one.ask("DISCARD").await
    };
    let (waited, discarded) = tokio::join!(waiting, releasing);
    assert_eq!((&waited[..], &discarded[..]), ("+OK\r\n", "+OK\r\n"));
}

#[tokio::test]
async fn a_large_request_before_authentication_is_a_protocol_error() {
    let server = Server::start().await;
    for bytes in ["*1048577\r\n", "*1\r\n$99999999999\r\n", "*1\r\n+OK\r\n", "SET \"a\r\n"] {
        let mut client = server.connect().await;
        client.send(b"*1\r\n$4\r\nPING\r\n").await;
        client.send(bytes.as_bytes()).await;
        let rest = client.rest().await;
        assert!(rest.starts_with("+PONG\r\n-ERR Protocol error: "), "{bytes:?}: {rest}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from() {
    let server = Server::with(hasty(), 64 << 20).await;
    let mut client = server.connect().await;
    let value = "x".repeat(1 << 20);
    client.ask(&format!("SET a {value}")).await;
    let (mut sent, gets) = (0, pipeline(&["GET a"; 100]));
    // The kernel holds some MiB of requests and of replies.
    while let Ok(written) = timeout(Duration::from_millis(500), client.stream.write(&gets)).await {
        sent += written.unwrap_or_default();
        assert!(sent < 64 << 20, "{sent} bytes of requests were received");
        let used = server.redis.memory.stats().used_bytes;
        assert!(used < 40 << 20, "{used} bytes are held");
    }
    let executed = server.fake.commands().iter().map(Vec::len).sum::<usize>();
    assert!(executed * 50 < sent, "{executed} of {sent} bytes of requests were executed");
    until("it was closed in time", || server.redis.clients.count() == 0).await;
    until("its memory is released", || server.redis.memory.stats().used_bytes == 0).await;
}

#[tokio::test]
async fn a_pipeline_that_is_sent_before_its_replies_are_read_is_answered() {
    let server = Server::start().await;
    let mut client = server.connect().await;
    let value = "x".repeat(100 << 10);
    client.ask(&format!("SET a {value}")).await;
    let commands = ["GET a"; 400];
    client.send(&pipeline(&commands)).await;
    sleep(Duration::from_millis(50)).await;
    let replies = client.replies(commands.len()).await;
    assert!(replies.iter().all(|reply| reply.len() > 100 << 10));
}

#[tokio::test]
async fn an_unfinished_request_ends_its_connection_in_time() {
    let server = Server::with(hasty(), MEMORY).await;
    let (mut idle, mut slow) = (server.connect().await, server.connect().await);
    slow.send(b"*2\r\n$3\r\nGET\r\n$1\r\n").await;
    assert_eq!(slow.rest().await, "");
    assert_eq!(idle.ask("PING").await, "+PONG\r\n", "an idle one stays");
}

#[tokio::test]
async fn connections_are_bounded_with_those_of_the_other_listeners() {
    let connections_max = Arc::new(AtomicU64::new(2));
    let options = PortOptions { connections_max: connections_max.clone(), ..hasty() };
    let server = Server::with(options, MEMORY).await;
    let (mut one, other) = (server.connect().await, server.connect().await);
    until("two", || server.redis.stats.open.load(Relaxed) == 2).await;
    let mut third = server.connect().await;
    assert_eq!(third.rest().await, "-ERR max number of clients reached\r\n");
    assert_eq!(server.redis.stats.refused.load(Relaxed), 1);
    assert_eq!(one.ask("PING").await, "+PONG\r\n");
    drop(other);
    until("one", || server.redis.stats.open.load(Relaxed) == 1).await;
    assert_eq!(server.connect().await.ask("PING").await, "+PONG\r\n");
}

#[tokio::test]
async fn a_stop_lets_requests_in_progress_end_and_closes_idle_connections() {
    let server = Server::start().await;
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    assert_eq!(idle.ask("PING").await, "+PONG\r\n");
    let gate = Arc::new(Semaphore::new(0));
    *server.fake.gate.lock() = Some(gate.clone());
    busy.send(&pipeline(&["SET a 1", "GET a"])).await;
    let stats = server.redis.clone();
    until("it is in progress", || stats.commands.load(Relaxed) == 3).await;
    server.stop.send_replace(true);
    assert_eq!(idle.rest().await, "");
    gate.add_permits(10);
    assert_eq!(busy.rest().await, "+OK\r\n$1\r\n1\r\n");
    timeout(TIME, server.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(&server.address).await.is_err());
}
