//! The port of a node with certificates: what each identity gets.

use super::PortOptions;
use super::tests::{Port, hasty, start};
use crate::access::{Access, CallClass, LiveRules, Principal, Rights, Rules, plain};
use crate::config::Config;
use crate::transport::tests::common::{Book, append, heartbeat, message, until};
use crate::transport::{CloseReason, MAGIC, RejectReason};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use stele_node::succession::Refusal;
use stele_placement::{Grant, Grants, Permissions};
use stele_replica::{Body, PeerMessage, RaftKind};
use stele_storage::LostEntry;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{
    Authority, ClientFiles, ClientName, ClientTls, ClusterName, Days, Identity, NodeName,
    NodeRequest, Protocol, ServerCheck, UnixTime,
};
use stele_types::checksum::crc32c;
use stele_types::{LogIndex, RegionId, StoreId, Term};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Certificates of the authority in `dir`, which is created if it has none.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
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
    pub(crate) fn node(&self, cluster: &str, name: &str, clients: &str) -> Access {
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
    pub(crate) fn client(&self, name: &str) -> ClientTls {
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

#[test]
fn a_node_calls_its_own_services_with_the_rights_of_a_node() {
    let own = Place::new().node("prod", "n1", "optional").own_rights();
    assert_eq!(own.node().map(ToString::to_string).as_deref(), Some("n1"));
    let path = "/stele.redis.v1.Redis/Run";
    assert!(own.check("/tikvpb.Tikv/RawGet").is_err(), "without the mark of a client's call");
    let for_client = own.for_request(Some(CallClass::Forwarded));
    assert!(for_client.check(path).is_ok() && for_client.standing().is_none());
    let plain = Access::open(&Config::default()).unwrap().own_rights();
    assert_eq!(plain.principal(), &Principal::Plain);
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
async fn a_client_that_is_granted_nothing_any_more_gets_nothing_on_its_open_connection() {
    let place = Place::new();
    let access = place.node("prod", "n1", "required");
    let port = secured(access.clone()).await;
    let mut stream = connect(&port, &place.client("app"), Protocol::Http1).await.unwrap();
    let mut ask = async || {
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut page = [0; 1024];
        let bytes = stream.read(&mut page).await.unwrap();
        String::from_utf8_lossy(&page[..bytes]).into_owned()
    };
    assert!(ask().await.ends_with("hello"));
    let grant = Grant { permissions: Permissions::READ, ..Grant::default() };
    let grants = Grants { version: 1, by_name: [("other".to_owned(), grant)].into() };
    let rules = access.tls().unwrap().live_rules();
    rules.change(|rules| rules.grants = Arc::new(grants));
    let refused = ask().await;
    assert!(refused.contains("403") && refused.contains("it has no grant"), "{refused}");
    rules.change(|rules| rules.grants = Arc::default());
    assert!(ask().await.ends_with("hello"));
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
async fn encrypted_messages_of_all_sizes_arrive_in_order_whichever_thread_writes_them() {
    let place = Place::new();
    let book = Arc::new(Book::default());
    let node = async |store, access| {
        start(&book, store, PortOptions { access, ..PortOptions::default() }).await
    };
    let a = node(1, place.node("prod", "n1", "required")).await;
    let b = node(2, place.node("prod", "n2", "required")).await;
    let sizes = [1, 70_000, 300, 2_000_000, 20_000, 0];
    let sent: Vec<_> = (0..120).map(|i| append(1, 2, i, sizes[i as usize % sizes.len()])).collect();
    a.transport.send(vec![append(1, 2, 1_000, 10)]);
    until("a connection", || b.seen.count() == 1).await;
    let (transport, messages) = (a.transport.clone(), sent.clone());
    let send = move || messages.into_iter().for_each(|it| transport.send(vec![it]));
    std::thread::spawn(send).join().unwrap();
    until("all messages", || b.seen.count() == 1 + sent.len()).await;
    assert!(b.seen.messages.lock()[1..] == sent);
    // No task of this runtime runs between these lines.
    let before = a.transport.stats().messages_sent.load(Relaxed);
    a.transport.send(vec![append(1, 2, 1_001, 10)]);
    assert_eq!(a.transport.stats().messages_sent.load(Relaxed), before + 1);
    until("a message that its sender wrote", || b.seen.count() == 2 + sent.len()).await;
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
    let administrators = BTreeSet::from([name.clone()]);
    let rules = LiveRules::new(Rules { cluster, administrators, grants: Arc::default() });
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

/// Creates the book of a node that knows these addresses, and that bound stores 1 and 2 to nodes n1 and n2.
fn book_of(addresses: &[(u64, &str)]) -> Arc<Book> {
    let book = Arc::new(Book::default());
    addresses.iter().for_each(|(store, address)| book.set(*store, address));
    let owners = [(StoreId(1), "n1".to_owned()), (StoreId(2), "n2".to_owned())];
    book.owners.lock().extend(owners);
    book
}

fn closed(port: &Port, label: &str) -> u64 {
    let closed = port.transport.stats().closed();
    closed.iter().find(|(known, _)| *known == label).map_or(0, |(_, count)| *count)
}

/// Returns messages of store 1 to store 2 that destroy, overwrite or ask for what replicas hold.
fn attacks() -> Vec<PeerMessage> {
    let with = |body| PeerMessage { body, ..heartbeat(1, 2, 1) };
    let prepared = (LogIndex(9), Term(9));
    let (region, index, term) = (RegionId(2), LogIndex(9), Term(9));
    let lost = LostEntry { region, index, term, bytes: 0, crc: crc32c(b"") };
    vec![
        with(Body::Gone),
        append(1, 2, 5, 100),
        message(1, 2, RaftKind::RequestVote, 5),
        message(1, 2, RaftKind::RequestPreVote, 5),
        with(Body::Merged { prepared, target: RegionId(3), left: Some(1) }),
        with(Body::EntryRecoveryRequest(vec![lost])),
        with(Body::EntryRecoveryReply(vec![(lost, Bytes::new())])),
        heartbeat(1, 2, 5),
    ]
}

#[tokio::test]
async fn a_node_speaks_for_its_own_stores_alone() {
    let place = Place::new();
    let node = async |book: &Arc<Book>, store, name| {
        let access = place.node("prod", name, "required");
        start(book, store, PortOptions { access, ..hasty() }).await
    };
    let at_b = book_of(&[]);
    let b = node(&at_b, 2, "n2").await;
    // Node n3 says that it has store 1, at an address of its own.
    let at_c = book_of(&[(2, &b.address)]);
    let c = node(&at_c, 1, "n3").await;
    for attack in attacks() {
        c.transport.send(vec![attack]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until("the refusal", || closed(&c, "other_node") > 0).await;
    let offer = c.transport.open_snapshot(StoreId(1), StoreId(2), Bytes::from_static(b"x"), false);
    let refused = offer.await.err();
    let is_refused = matches!(refused, Some(CloseReason::Refused(RejectReason::OtherNode, _)));
    assert!(is_refused, "{refused:?}");
    assert_eq!(b.seen.count(), 0, "{:?}", b.seen.messages.lock());
    assert_eq!(c.seen.refused.lock()[0], (StoreId(1), Refusal::OtherNode));
    let stated = at_b.stated.lock().clone();
    assert!(stated.iter().all(|(address, ..)| *address != c.address), "{stated:?}");
    let refusals = b.transport.access().tls().unwrap().refused_nodes();
    assert!(refusals["hello"] > 0);
    // Its own node is heard, until the store is bound to another one.
    let at_a = book_of(&[(2, &b.address)]);
    let a = node(&at_a, 1, "n1").await;
    let is_there = |attack: &PeerMessage| {
        let kind = std::mem::discriminant(&attack.body);
        b.seen.messages.lock().iter().any(|it| std::mem::discriminant(&it.body) == kind)
    };
    for _ in 0..400 {
        a.transport.send(attacks());
        tokio::time::sleep(Duration::from_millis(10)).await;
        if attacks().iter().all(is_there) {
            break;
        }
    }
    let missing: Vec<_> = attacks().into_iter().filter(|attack| !is_there(attack)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    at_b.owners.lock().insert(StoreId(1), "n9".to_owned());
    let (before, ended) = (b.seen.count(), closed(&b, "other_node"));
    a.transport.send(vec![heartbeat(1, 2, 77)]);
    until("the end of the connection", || closed(&b, "other_node") > ended).await;
    assert_eq!(b.seen.count(), before);
}

#[tokio::test]
async fn a_store_that_no_list_has_named_is_heard_once_one_does() {
    let place = Place::new();
    let node = async |book: &Arc<Book>, store, name| {
        let access = place.node("prod", name, "required");
        start(book, store, PortOptions { access, ..hasty() }).await
    };
    let at_b = book_of(&[]);
    at_b.unlisted.lock().extend([StoreId(3), StoreId(4)]);
    let b = node(&at_b, 2, "n2").await;
    let at_c = book_of(&[(2, &b.address)]);
    let c = node(&at_c, 3, "n3").await;
    c.transport.send(vec![heartbeat(3, 2, 5)]);
    until("the refusal", || closed(&c, "not_listed") > 0).await;
    assert_eq!(b.seen.count(), 0);
    at_b.unlisted.lock().remove(&StoreId(3));
    let heard = |store| move |it: &PeerMessage| it.from_store == StoreId(store);
    for index in 0..200 {
        c.transport.send(vec![heartbeat(3, 2, index)]);
        tokio::time::sleep(Duration::from_millis(10)).await;
        if b.seen.messages.lock().iter().any(heard(3)) {
            break;
        }
    }
    assert!(b.seen.messages.lock().iter().any(heard(3)));
    // A further store of the node, beside one that is heard.
    c.transport.add_store(StoreId(4));
    for index in 0..400 {
        c.transport.send(vec![heartbeat(4, 2, index)]);
        tokio::time::sleep(Duration::from_millis(10)).await;
        if index == 50 {
            assert!(!b.seen.messages.lock().iter().any(heard(4)));
            at_b.unlisted.lock().remove(&StoreId(4));
        }
        if b.seen.messages.lock().iter().any(heard(4)) {
            return;
        }
    }
    panic!("the further store is not heard");
}

#[tokio::test]
async fn a_node_at_the_address_of_another_ones_store_gets_nothing_for_it() {
    let place = Place::new();
    let [n1, n2, n3] = ["n1", "n2", "n3"].map(|name| place.node("prod", name, "required"));
    let node = async |book: &Arc<Book>, store, access: &Access| {
        start(book, store, PortOptions { access: access.clone(), ..hasty() }).await
    };
    // Node n3 answers for store 2 at an address that node n1 has of it.
    let c = node(&book_of(&[]), 2, &n3).await;
    let a = node(&book_of(&[(2, &c.address)]), 1, &n1).await;
    a.transport.send(vec![heartbeat(1, 2, 5)]);
    until("the end of the connection", || closed(&a, "other_node") > 0).await;
    let offer = a.transport.open_snapshot(StoreId(1), StoreId(2), Bytes::from_static(b"x"), false);
    let refused = offer.await.err();
    assert!(matches!(refused, Some(CloseReason::NotOwner(StoreId(2)))), "{refused:?}");
    assert_eq!(c.seen.count(), 0);
    // At the address of its own node the store is reached.
    let b = node(&book_of(&[]), 2, &n2).await;
    let d = node(&book_of(&[(2, &b.address)]), 1, &n1).await;
    for _ in 0..400 {
        d.transport.send(vec![heartbeat(1, 2, 5)]);
        tokio::time::sleep(Duration::from_millis(10)).await;
        if b.seen.count() > 0 {
            return;
        }
    }
    panic!("its own node gets nothing");
}
