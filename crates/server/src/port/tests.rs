//! Clients and nodes at one port.

use super::{PortOptions, Stats, serve};
use crate::access::Listener;
use crate::memory::NodeMemory;
use crate::transport::tests::common::{self, Book, Seen, heartbeat, until};
use crate::transport::{Boots, Identity, MAGIC, Transport, TransportOptions};
use axum::Router;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use stele_replica::LeaseTimes;
use stele_types::{ClusterId, StoreId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

pub(crate) struct Port {
    pub transport: Transport,
    pub seen: Arc<Seen>,
    pub address: String,
    pub stats: Arc<Stats>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

pub(crate) async fn start(book: &Arc<Book>, store: u64, options: PortOptions) -> Port {
    start_with(book, store, options, (Listener::ONLY, Router::new())).await
}

/// Starts a port that serves `more` besides.
pub(crate) async fn start_with(
    book: &Arc<Book>,
    store: u64,
    options: PortOptions,
    (kind, more): (Listener, Router),
) -> Port {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let grpc = tonic::service::Routes::new(health).into_axum_router();
    let slow = || async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        "done"
    };
    let router: Router = grpc
        .merge(more)
        .route("/status", axum::routing::get(|| async { "hello" }))
        .route("/unlisted", axum::routing::get(|| async { "reached" }))
        .route("/metrics", axum::routing::get(slow));
    let seen = Arc::new(Seen::default());
    let identity = Identity {
        cluster: ClusterId(1),
        address: address.clone(),
        stores: vec![StoreId(store)],
        times: LeaseTimes::default(),
        boots: Arc::new(Boots::new(1)),
    };
    let access = options.access.clone();
    let transport_options = TransportOptions { access, ..common::options() };
    let transport = Transport::start(transport_options, identity, book.clone(), seen.clone());
    book.set(store, &address);
    let (stop, stopped) = watch::channel(false);
    let stats = Arc::new(Stats::default());
    let memory = NodeMemory::new(256 << 20);
    let listeners = vec![(listener, kind)];
    let serving =
        serve(listeners, router, transport.clone(), options, memory, stats.clone(), stopped);
    Port { transport, seen, address, stats, stop, task: tokio::spawn(serving) }
}

pub(crate) fn hasty() -> PortOptions {
    PortOptions { first_bytes_timeout: Duration::from_millis(300), ..PortOptions::default() }
}

async fn client(address: &str) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn browsers_clients_and_nodes_share_the_port() {
    let book = Arc::new(Book::default());
    let a = start(&book, 1, hasty()).await;
    let b = start(&book, 2, hasty()).await;
    assert!(get(&a.address, "/status").await.ends_with("hello"));
    let mut client = client(&a.address).await;
    let answer = client.check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(answer.into_inner().status, 1);
    a.transport.send(vec![heartbeat(1, 2, 5)]);
    until("a node's message", || b.seen.count() == 1).await;
}

#[tokio::test]
async fn a_class_is_refused_on_the_wrong_listener_with_the_setting_of_the_right_one() {
    let book = Arc::new(Book::default());
    let a = start(&book, 1, hasty()).await;
    let with_peers = Listener::Common { has_peer_listener: true, has_admin_listener: false };
    let b = start_with(&book, 2, hasty(), (with_peers, Router::new())).await;
    a.transport.send(vec![heartbeat(1, 2, 5)]);
    until("a refusal", || a.seen.saw_closed("other_listener")).await;
    assert!(a.seen.saw_closed("use that of `peer_listen`, also in `join`"));
    assert_eq!(b.seen.count(), 0);
    assert!(get(&b.address, "/status").await.ends_with("hello"));
    let nodes_only = start_with(&book, 3, hasty(), (Listener::Peer, Router::new())).await;
    let answer = get(&nodes_only.address, "/status").await;
    assert!(answer.contains("421") && answer.contains("use that of `listen`"), "{answer}");
    a.transport.send(vec![heartbeat(1, 3, 5)]);
    until("a node's message", || nodes_only.seen.count() == 1).await;
}

#[tokio::test]
async fn a_route_without_a_class_is_not_reached() {
    let a = start(&Arc::new(Book::default()), 1, hasty()).await;
    let answer = get(&a.address, "/unlisted").await;
    assert!(answer.contains("404") && !answer.contains("reached"), "{answer}");
}

#[tokio::test]
async fn a_node_is_known_by_its_first_bytes_however_slowly_they_come() {
    let a = start(&Arc::new(Book::default()), 1, hasty()).await;
    let mut stream = TcpStream::connect(&a.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in MAGIC {
        stream.write_all(&[byte]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    stream.write_all(b"but no hello").await.unwrap();
    let closed =
        || a.transport.stats().closed().iter().any(|(reason, n)| *reason == "malformed" && *n > 0);
    until("the transport has it", closed).await;
}

#[tokio::test]
async fn a_silent_connection_is_closed_in_time() {
    let a = start(&Arc::new(Book::default()), 1, hasty()).await;
    for first in [&b""[..], b"STELE", b"GET /status HT"] {
        let mut stream = TcpStream::connect(&a.address).await.unwrap();
        stream.write_all(first).await.unwrap();
        let mut sink = Vec::new();
        let end = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut sink)).await;
        assert!(end.is_ok(), "{first:?}");
    }
    assert_eq!(a.stats.silent.load(Relaxed), 2);
}

// Catalogue: 62.
#[tokio::test]
async fn connections_are_bounded_and_places_come_free() {
    let limit = Arc::new(AtomicU64::new(2));
    let few = PortOptions { connections_max: limit.clone(), ..hasty() };
    let a = start(&Arc::new(Book::default()), 1, few).await;
    let first = TcpStream::connect(&a.address).await.unwrap();
    let second = TcpStream::connect(&a.address).await.unwrap();
    until("two", || a.stats.accepted.load(Relaxed) == 2).await;
    let mut third = TcpStream::connect(&a.address).await.unwrap();
    assert!(matches!(third.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    assert_eq!(a.stats.refused.load(Relaxed), 1);
    drop((first, second));
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(get(&a.address, "/status").await.ends_with("hello"));
    limit.store(0, Relaxed);
    let mut refused = TcpStream::connect(&a.address).await.unwrap();
    assert!(matches!(refused.read(&mut [0; 8]).await, Ok(0) | Err(_)), "the limit was lowered");
    limit.store(1, Relaxed);
    until("all are closed", || a.stats.open.load(Relaxed) == 0).await;
    assert!(get(&a.address, "/status").await.ends_with("hello"));
}

#[tokio::test]
async fn a_stop_lets_requests_in_work_end() {
    let a = start(&Arc::new(Book::default()), 1, hasty()).await;
    let address = a.address.clone();
    let request = tokio::spawn(async move { get(&address, "/metrics").await });
    until("the request is in progress", || a.stats.accepted.load(Relaxed) == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    a.stop.send_replace(true);
    assert!(request.await.unwrap().ends_with("done"));
    tokio::time::timeout(Duration::from_secs(2), a.task).await.unwrap().unwrap();
    assert!(TcpStream::connect(&a.address).await.is_err());
}

#[tokio::test]
async fn values_of_many_mib_pass_the_windows() {
    // An HTTP/2 frame is small beside a value: windows must be returned as it is read.
    let a = start(&Arc::new(Book::default()), 1, hasty()).await;
    let mut client = client(&a.address).await;
    let service = "x".repeat(3 << 20);
    let refused = client.check(HealthCheckRequest { service }).await.err().unwrap();
    assert_eq!(refused.code(), tonic::Code::NotFound, "it was read to its end");
}
