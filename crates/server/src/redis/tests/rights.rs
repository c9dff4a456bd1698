//! Callers: tokens, certificates, and what each may do.

use super::super::connection::Connection;
use super::{Client, Server};
use crate::access::{LiveRules, Principal, Rights, Rules, plain};
use crate::port::PortOptions;
use crate::port::secured_tests::Place;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_placement::{Grant, Grants, Permissions};
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{ClientName, ClusterName, Identity, Protocol, token_hash};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

const NO_AUTH: &str = "-NOAUTH Authentication required.\r\n";
const WRONG_PASS: &str = "-WRONGPASS invalid username-password pair or user is disabled.\r\n";

fn token(name: &str, permissions: Permissions, prefixes: &[&'static str]) -> Grant {
    let prefixes = prefixes.iter().map(|prefix| Bytes::from(*prefix)).collect();
    let token = Some(token_hash(format!("secret of {name}").replace(' ', "-").as_bytes()));
    Grant { name: format!("token:{name}"), permissions, prefixes, token, ..Grant::default() }
}

fn rules(grants: Vec<Grant>) -> Arc<LiveRules> {
    let by_name = grants.into_iter().map(|grant| (grant.name.clone(), grant)).collect();
    Arc::new(LiveRules::new(Rules {
        cluster: ClusterName::new("prod").unwrap(),
        administrators: BTreeSet::new(),
        grants: Arc::new(Grants { version: 1, by_name }),
    }))
}

/// Connects with the rights of a caller over TLS.
async fn connect(server: &Server, caller: Principal, rules: &Arc<LiveRules>) -> Client {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, peer) = listener.accept().await.unwrap();
    let (redis, rights) = (server.redis.clone(), Rights::new(caller, rules.clone()));
    let stop = server.stop.subscribe();
    tokio::spawn(async move {
        let registered = redis.clients.add((Some(peer), None), &rights);
        let client = registered.client().clone();
        let connection = Connection::new(plain(far), rights, redis.clone(), client, stop);
        let _ = connection.serve().await;
    });
    Client::new(near)
}

#[tokio::test]
async fn only_a_token_in_force_authenticates() {
    let server = Server::start().await;
    let rules = rules(vec![token("ci", Permissions::READ_WRITE, &[])]);
    let mut client = connect(&server, Principal::Anonymous, &rules).await;
    let rows = [
        ("SET a 1", NO_AUTH),
        ("PING", NO_AUTH),
        ("HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated"),
        ("AUTH wrong", WRONG_PASS),
        ("SET a 1", NO_AUTH),
        ("AUTH other secret-of-ci", WRONG_PASS),
        ("AUTH default wrong", WRONG_PASS),
        ("AUTH a b c", "-ERR syntax error\r\n"),
        ("AUTH secret-of-ci", "+OK\r\n"),
        ("SET a 1", "+OK\r\n"),
        ("AUTH wrong", WRONG_PASS),
        ("GET a", "$1\r\n1\r\n"),
        ("RESET", "+RESET\r\n"),
        ("GET a", NO_AUTH),
        ("HELLO 3 AUTH ci secret-of-ci", "%7\r\n"),
        ("GET a", "$1\r\n1\r\n"),
        ("AUTH token:ci secret-of-ci", "+OK\r\n"),
        ("CLIENT LIST", "="),
    ];
    for (command, expected) in rows {
        let reply = client.ask(command).await;
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
    assert!(client.ask("CLIENT INFO").await.contains("user=token:ci"));
    rules.change(|rules| rules.grants = Arc::default());
    assert_eq!(client.ask("GET a").await, NO_AUTH, "it was revoked");
}

#[tokio::test]
async fn large_requests_follow_in_the_pipeline_that_authenticates() {
    let server = Server::start().await;
    let rules = rules(vec![token("ci", Permissions::READ_WRITE, &[])]);
    let mut client = connect(&server, Principal::Anonymous, &rules).await;
    let set = format!("SET a {}", "x".repeat(100 << 10));
    assert_eq!(client.ask_all(&["AUTH secret-of-ci", &set]).await, ["+OK\r\n", "+OK\r\n"]);
    let mut client = connect(&server, Principal::Anonymous, &rules).await;
    client.send(&super::pipeline(&[&set])).await;
    assert!(client.rest().await.contains("unauthenticated bulk length"));
}

#[tokio::test]
async fn a_caller_uses_the_keys_and_the_rights_of_its_grant() {
    let server = Server::start().await;
    let reads = token("reads", Permissions::READ, &["a:"]);
    let writes = token("writes", Permissions::WRITE, &["a:"]);
    let rules = rules(vec![reads, writes]);
    let mut client = connect(&server, Principal::Anonymous, &rules).await;
    let rows = [
        ("AUTH secret-of-writes", "+OK"),
        ("SET a:1 x", "+OK"),
        ("SET a:1 x GET", "-NOPERM token:writes lacks the right"),
        ("SET a:1 x NX", "-NOPERM"),
        ("GET a:1", "-NOPERM"),
        ("INCR a:1", "-NOPERM"),
        ("MSET a:1 x b 2", "-NOPERM token:writes lacks the right write of key \"b\""),
        ("DEL a:1 a:2", ":1"),
        ("FLUSHALL", "-NOPERM"),
        ("AUTH secret-of-reads", "+OK"),
        ("GET a:1", "$-1"),
        ("SET a:1 x", "-NOPERM"),
        ("WATCH a:1", "+OK"),
        ("WATCH b", "-NOPERM"),
        ("UNWATCH", "+OK"),
        ("SCAN 0", "-NOPERM"),
        ("HSCAN a:1 0", ":7"),
        ("MULTI", "+OK"),
        ("SET a:1 x", "-NOPERM"),
        ("EXEC", "-EXECABORT"),
    ];
    for (command, expected) in rows {
        let reply = client.ask(command).await;
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
}

#[tokio::test]
async fn a_caller_of_a_prefix_scans_names_of_the_prefix_alone() {
    let server = Server::start().await;
    let rules = rules(vec![token("some", Permissions::READ_WRITE, &["a:"])]);
    let mut client = connect(&server, Principal::Anonymous, &rules).await;
    let rows = [
        ("AUTH secret-of-some", "+OK"),
        ("SCAN 0 MATCH a:*", ":7"),
        ("SCAN 0 COUNT 7 MATCH a:[0-9]* TYPE hash", ":7"),
        ("SCAN 0", "-NOPERM token:some lacks the right read of keys from"),
        ("SCAN 0 MATCH *", "-NOPERM"),
        ("SCAN 0 MATCH a*", "-NOPERM"),
        ("SCAN 0 MATCH a:* MATCH *", "-NOPERM"),
        ("SCAN 0 MATCH [a]:*", "-NOPERM"),
        ("KEYS a:*", ":7"),
        ("KEYS a:1", ":7"),
        ("KEYS a", "-NOPERM"),
        ("KEYS *a:*", "-NOPERM"),
        ("DBSIZE", "-NOPERM"),
        ("RANDOMKEY", "-NOPERM"),
        ("FLUSHDB", "-NOPERM"),
        ("SSCAN a:1 0", ":7"),
        ("SSCAN b 0", "-NOPERM"),
    ];
    for (command, expected) in rows {
        let reply = client.ask(command).await;
        assert!(reply.starts_with(expected), "{command}: {reply}");
    }
}

#[tokio::test]
async fn a_right_that_is_withdrawn_after_multi_is_not_used_by_exec() {
    let server = Server::start().await;
    let name = ClientName::new("app").unwrap();
    let caller = Principal::Known(Identity::Client(name));
    let grant = |permissions| Grant { name: "app".to_owned(), permissions, ..Grant::default() };
    let rules = rules(vec![grant(Permissions::READ_WRITE)]);
    let mut client = connect(&server, caller, &rules).await;
    client.ask_all(&["MULTI", "SET a 1"]).await;
    let by_name = [("app".to_owned(), grant(Permissions::READ))].into();
    rules.change(|rules| rules.grants = Arc::new(Grants { version: 2, by_name }));
    assert!(client.ask("EXEC").await.starts_with("-NOPERM client app lacks the right"));
    assert_eq!(client.ask("GET a").await, "$-1\r\n");
}

#[tokio::test]
async fn a_certificate_without_a_grant_is_refused_with_the_reason() {
    let server = Server::start().await;
    let caller = Principal::Known(Identity::Client(ClientName::new("app").unwrap()));
    let rules = rules(vec![token("ci", Permissions::READ, &[])]);
    let mut client = connect(&server, caller, &rules).await;
    let refused = client.ask("GET a").await;
    assert!(
        refused.starts_with("-NOPERM client app may not call the commands of Redis"),
        "{refused}"
    );
    assert_eq!(client.ask("AUTH secret-of-ci").await, "+OK\r\n", "a token counts instead");
    assert_eq!(client.ask("GET a").await, "$-1\r\n");
}

#[tokio::test]
async fn a_node_with_certificates_serves_clients_over_tls_alone() {
    let place = Place::new();
    let access = place.node("prod", "n1", "required");
    let server = Server::with(PortOptions { access, ..PortOptions::default() }, 64 << 20).await;
    let tls = place.client("app").config(Protocol::Http1);
    let stream = TcpStream::connect(&server.address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = TlsConnector::from(tls).connect(name, stream).await.unwrap();
    stream.write_all(&super::pipeline(&["SET a 1", "GET a", "QUIT"])).await.unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).await.unwrap();
    assert_eq!(replies, "+OK\r\n$1\r\n1\r\n+OK\r\n");
    let mut plain = server.connect().await;
    plain.send(b"PING\r\n").await;
    assert!(!plain.rest().await.contains("PONG"));
}
