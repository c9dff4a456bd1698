//! The port of a node with certificates: what each identity gets.

use super::PortOptions;
use super::tests::{Port, hasty, start};
use crate::access::{Access, Principal, Rights, Rules, plain};
use crate::config::Config;
use crate::transport::MAGIC;
use crate::transport::tests::common::{Book, heartbeat, until};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{
    Authority, ClientFiles, ClientName, ClientTls, ClusterName, Days, Identity, NodeName,
    NodeRequest, Protocol, ServerCheck, UnixTime,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Certificates of the authority in `dir`, which is created if it has none.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let created = Authority::create("test", Days::new(10).unwrap(), UnixTime::now()).unwrap();
        created.write(place.0.path()).unwrap();
        place
    }

    fn dir(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }

    fn authority(&self) -> Authority {
        Authority::open(self.dir(), UnixTime::now()).unwrap()
    }

    /// Creates the certificate of a node; returns its access.
    fn node(&self, cluster: &str, name: &str, clients: &str) -> Access {
        let request = NodeRequest {
            cluster: ClusterName::new(cluster).unwrap(),
            node: NodeName::new(name).unwrap(),
            hosts: vec!["127.0.0.1".to_owned()],
        };
        let days = Days::new(5).unwrap();
        self.authority().node(&request, days, UnixTime::now()).unwrap().write(self.dir()).unwrap();
        let path = |suffix: &str| self.file(&format!("{name}.{suffix}")).display().to_string();
        let config = Config {
            tls_ca: self.file("ca.pem").display().to_string(),
            tls_cert: path("pem"),
            tls_key: path("key"),
            client_certificates: clients.to_owned(),
            administrators: vec!["root".to_owned()],
            ..Config::default()
        };
        Access::open(&config).unwrap()
    }

    /// Creates the certificate of a client; returns what it connects with.
    fn client(&self, name: &str) -> ClientTls {
        let (days, client) = (Days::new(5).unwrap(), ClientName::new(name).unwrap());
        let created = self.authority().client(&client, days, UnixTime::now()).unwrap();
        let written = created.write(self.dir()).unwrap();
        self.open(Some((written.certificate, written.key)))
    }

    fn open(&self, pair: Option<(PathBuf, PathBuf)>) -> ClientTls {
        let files = ClientFiles { authorities: self.file("ca.pem"), pair };
        ClientTls::open(files, ServerCheck::HostName, UnixTime::now()).unwrap()
    }
}

async fn secured(access: Access) -> Port {
    start(&Arc::new(Book::default()), 1, PortOptions { access, ..hasty() }).await
}

async fn connect(
    port: &Port,
    tls: &ClientTls,
    protocol: Protocol,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(&port.address).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(tls.config(protocol)).connect(name, stream).await
}

/// Returns the answer to a request of HTTP/1, or the failure of the connection.
async fn get(port: &Port, tls: &ClientTls, path: &str) -> String {
    let asked = async {
        let mut stream = connect(port, tls, Protocol::Http1).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map(|_| answer)
    };
    asked.await.unwrap_or_else(|error: std::io::Error| error.to_string())
}

#[tokio::test]
async fn an_identity_gets_what_its_class_may_have_and_the_reason_for_the_rest() {
    let place = Place::new();
    let port = secured(place.node("prod", "n1", "optional")).await;
    let (app, root) = (place.client("app"), place.client("root"));
    let (other, anonymous) = (Place::new().client("app"), place.open(None));
    assert!(get(&port, &app, "/status").await.ends_with("hello"));
    let drain = "/stele.control.v1.Control/SetStoreState";
    let refused = get(&port, &app, drain).await;
    assert!(refused.contains("client%20app%20may%20not%20call"), "{refused}");
    let allowed = get(&port, &root, drain).await;
    assert!(!allowed.contains("may%20not%20call"), "{allowed}");
    let refused = get(&port, &anonymous, "/status").await;
    assert!(refused.contains("403") && refused.contains("without a certificate"), "{refused}");
    let refused = get(&port, &other, "/status").await;
    assert!(!refused.contains("hello"), "another authority: {refused}");
}

#[tokio::test]
async fn nodes_of_a_cluster_exchange_messages_and_those_of_another_one_none() {
    let place = Place::new();
    let book = Arc::new(Book::default());
    let node = async |store, access| start(&book, store, PortOptions { access, ..hasty() }).await;
    let a = node(1, place.node("prod", "n1", "required")).await;
    let b = node(2, place.node("prod", "n2", "required")).await;
    a.transport.send(vec![heartbeat(1, 2, 5)]);
    until("a node's message", || b.seen.count() == 1).await;
    let c = node(3, place.node("test", "n3", "required")).await;
    c.transport.send(vec![heartbeat(3, 2, 5)]);
    let is_closed = || c.transport.stats().closed().iter().any(|(_, count)| *count > 0);
    until("the connection of another cluster ends", is_closed).await;
    assert_eq!(b.seen.count(), 1);
}

#[tokio::test]
async fn a_client_is_no_node_of_the_cluster() {
    let place = Place::new();
    let port = secured(place.node("prod", "n1", "required")).await;
    let mut stream = connect(&port, &place.client("app"), Protocol::Node).await.unwrap();
    stream.write_all(&MAGIC).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert_eq!(answer, b"");
    let denied = || port.transport.stats().closed().contains(&("denied", 1));
    until("it is counted", denied).await;
    // Also where the transport is reached in another way.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, _far) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let name = ClientName::new("app").unwrap();
    let cluster = ClusterName::new("prod").unwrap();
    let rules = Rules { cluster, administrators: BTreeSet::from([name.clone()]) };
    let rights = Rights::new(Principal::Known(Identity::Client(name)), Arc::new(rules));
    port.transport.serve(plain(near.unwrap()), rights).await;
    assert!(port.transport.stats().closed().contains(&("denied", 2)));
}

#[tokio::test]
async fn a_client_without_tls_gets_an_alert_and_time_to_read_it() {
    let place = Place::new();
    let port = secured(place.node("prod", "n1", "required")).await;
    let mut stream = TcpStream::connect(&port.address).await.unwrap();
    stream.write_all(b"GET /status HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    // No reset: the port reads on until the client closes.
    read.unwrap().unwrap();
    assert!(answer.starts_with(&[21, 3]), "{answer:?}");
}

#[tokio::test]
async fn a_connection_that_is_silent_after_its_handshake_is_closed_in_time() {
    let place = Place::new();
    let port = secured(place.node("prod", "n1", "optional")).await;
    for (tls, protocol) in
        [(place.client("app"), Protocol::Http2), (place.open(None), Protocol::Http1)]
    {
        let mut stream = connect(&port, &tls, protocol).await.unwrap();
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read(&mut [0; 8])).await;
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "{protocol:?}");
    }
    assert_eq!(port.stats.silent.load(std::sync::atomic::Ordering::Relaxed), 2);
}

#[tokio::test]
async fn silent_handshakes_end_and_take_no_place_from_others() {
    let place = Place::new();
    let port = secured(place.node("prod", "n1", "required")).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(&port.address).await.unwrap());
    }
    let app = place.client("app");
    assert!(get(&port, &app, "/status").await.ends_with("hello"));
    let ended = tokio::time::timeout(Duration::from_secs(2), silent[0].read(&mut [0; 8])).await;
    assert!(matches!(ended, Ok(Ok(0) | Err(_))), "the oldest made room");
}
