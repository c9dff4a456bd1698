//! Whole nodes in this process, observed over HTTP.

// Each program that includes this uses a part.
#![allow(dead_code)]

pub(crate) mod http;
pub(crate) mod proxy;
pub(crate) mod tls;

use std::path::PathBuf;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{ListStoresRequest, StoreInfo};
use stele_server::config::Config;
use stele_server::node::Node;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;

pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn config(stores: &[PathBuf], join: &[String]) -> Config {
    Config {
        listen: "127.0.0.1:0".to_owned(),
        stores: stores.to_vec(),
        join: join.to_vec(),
        tick_ms: 20,
        reserved_bytes: 0,
        ..Config::default()
    }
}

pub(crate) fn free_addresses(count: usize) -> Vec<String> {
    let bind = |_| std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ports: Vec<_> = (0..count).map(bind).collect();
    ports.iter().map(|port| port.local_addr().unwrap().to_string()).collect()
}

/// Starts a node; a previous one may still hold its directories or its port for a moment.
pub(crate) async fn start(config: Config) -> Node {
    let started = Instant::now();
    loop {
        match Node::start(config.clone()).await {
            Ok(node) => return node,
            Err(error) => assert!(started.elapsed() < LIMIT, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    let (head, body) = get_with(address, path, "").await;
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body)
}

/// Returns head and body of a GET with these further lines in its head, each with its end.
pub(crate) async fn get_with(address: &str, path: &str, lines: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{lines}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Waits until the reply to a GET is accepted by `wanted`; returns the body.
pub(crate) async fn until(address: &str, path: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
    let started = Instant::now();
    loop {
        let (status, body) = get(address, path).await;
        if wanted(status, &body) {
            return body;
        }
        assert!(started.elapsed() < LIMIT, "{path}: {status} {body}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the stores of the cluster, once the node at `address` answers or knows the leader.
pub(crate) async fn stores(address: &str, wanted: impl Fn(&[StoreInfo]) -> bool) -> Vec<StoreInfo> {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let mut client = ControlClient::new(channel);
    let started = Instant::now();
    loop {
        let answer = client.list_stores(ListStoresRequest::default()).await;
        match answer.map(|answer| answer.into_inner().stores) {
            Ok(stores) if wanted(&stores) => return stores,
            other => assert!(started.elapsed() < LIMIT, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
