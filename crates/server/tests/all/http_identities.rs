//! Keys and values over HTTP for callers with certificates and tokens, at nodes that lead nothing too.

use crate::common::tls::Certificates;
use crate::common::{LIMIT, config, start};
use bytes::Bytes;
use http_body::Body;
use std::pin::Pin;
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawGetRequest};
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{
    AccessGrant, AccessGrantRequest, AccessRevokeRequest, AdmitRequest,
};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_server::config::Config;
use stele_server::node::Node;
use stele_tls::token_hash;
use tokio::time::sleep;
use tonic::Code;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::transport::Channel;

const PAUSE: Duration = Duration::from_millis(20);
const READ: u32 = 1;
const WRITE: u32 = 2;

/// Node n1 of the cluster `prod`, which takes callers without a certificate.
struct Secured {
    node: Node,
    certificates: Certificates,
    dir: tempfile::TempDir,
}

impl Secured {
    async fn start() -> Self {
        let certificates = Certificates::new();
        ["n1", "n2"].iter().for_each(|name| certificates.node("prod", name));
        ["root", "app", "other"].iter().for_each(|name| certificates.client(name));
        let dir = tempfile::tempdir().unwrap();
        let config = config(&[dir.path().join("a")], &[]);
        let config = Config { client_certificates: "optional".to_owned(), ..config };
        let node = start(certificates.configured("n1", config)).await;
        Self { node, certificates, dir }
    }

    fn of(&self, name: &str) -> Channel {
        self.certificates.channel(name, &self.node.ready.address)
    }

    async fn grant(&self, grant: AccessGrant) {
        let mut control = ControlClient::new(self.of("root"));
        let began = Instant::now();
        let request = AccessGrantRequest { grant: Some(grant), header: None };
        while let Err(status) = control.access_grant(request.clone()).await {
            assert!(began.elapsed() < LIMIT, "{status:?}");
            sleep(PAUSE).await;
        }
    }
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
}

async fn answer(
    channel: &Channel,
    request: Request<tonic::body::Body>,
) -> Response<tonic::body::Body> {
    let mut channel = channel.clone();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    channel.call(request).await.unwrap()
}

async fn next(body: &mut tonic::body::Body) -> Option<Bytes> {
    let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
    frame.unwrap().into_data().ok()
}

async fn ask(channel: &Channel, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = answer(channel, request.body(tonic::body::Body::empty()).unwrap()).await;
    let (parts, mut body) = response.into_parts();
    let mut text = String::new();
    while let Some(data) = next(&mut body).await {
        text += &String::from_utf8_lossy(&data);
    }
    Answer { status: parts.status.as_u16(), headers: parts.headers, text }
}

/// Asks until the status is the wanted one: grants come into force with the reports of a node.
async fn until(channel: &Channel, (method, target): (&str, &str), status: u16) -> Answer {
    let began = Instant::now();
    loop {
        let answer = ask(channel, method, target, &[]).await;
        if answer.status == status {
            return answer;
        }
        assert!(began.elapsed() < LIMIT, "{method} {target}: {} {}", answer.status, answer.text);
        sleep(PAUSE).await;
    }
}

fn grant(name: &str, permissions: u32) -> AccessGrant {
    let prefixes = vec![Bytes::from("a/")];
    AccessGrant { name: name.to_owned(), permissions, prefixes, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_over_http_uses_the_keys_and_the_rights_of_its_grant() {
    let secured = Secured::start().await;
    let (root, app, other) = (secured.of("root"), secured.of("app"), secured.of("other"));
    until(&root, ("PUT", "/v1/kv/a/1"), 204).await;
    assert_eq!(ask(&app, "PUT", "/v1/kv/b/1", &[]).await.status, 204, "there is no grant");
    secured.grant(grant("app", READ)).await;
    until(&app, ("PUT", "/v1/kv/a/1"), 403).await;
    let rows = [
        ("GET", "/v1/kv/a/1", 200, 403),
        ("HEAD", "/v1/kv/a/1", 200, 403),
        ("GET", "/v1/kv?prefix=a/", 200, 403),
        ("PUT", "/v1/kv/a/1", 403, 204),
        ("DELETE", "/v1/kv/a/2", 403, 204),
        ("POST", "/v1/kv/a/1?increment=1", 403, 403),
        // Beyond the prefix.
        ("GET", "/v1/kv/b/1", 403, 403),
        ("PUT", "/v1/kv/b/1", 403, 403),
        ("GET", "/v1/kv?prefix=b/", 403, 403),
        ("GET", "/v1/kv", 403, 403),
        ("GET", "/v1/kv?start=a/", 403, 403),
        ("GET", "/v1/watch", 403, 403),
    ];
    for (method, target, reads, _) in rows {
        let answer = ask(&app, method, target, &[]).await;
        assert_eq!(answer.status, reads, "{method} {target}: {}", answer.text);
        if reads == 403 {
            assert!(answer.text.contains("\"forbidden\""), "{}", answer.text);
            assert!(answer.text.contains("client app lacks the right"), "{}", answer.text);
        }
    }
    secured.grant(grant("app", WRITE)).await;
    until(&app, ("PUT", "/v1/kv/a/1"), 204).await;
    for (method, target, _, writes) in rows {
        let answer = ask(&app, method, target, &[]).await;
        assert_eq!(answer.status, writes, "{method} {target}: {}", answer.text);
    }
    let condition = ask(&app, "PUT", "/v1/kv/a/1", &[("if-match", "*")]).await;
    assert_eq!(condition.status, 403, "it tells something of what was there");
    let refused = ask(&other, "GET", "/v1/kv/a/1", &[]).await;
    assert_eq!(refused.status, 403, "it has no grant");
    assert_eq!(ask(&root, "GET", "/v1/kv/b/1", &[]).await.status, 200);
    secured.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_over_http_has_the_rights_of_its_token() {
    let secured = Secured::start().await;
    let root = secured.of("root");
    until(&root, ("PUT", "/v1/kv/a/1"), 204).await;
    let token_hash = Bytes::copy_from_slice(&token_hash(b"secret"));
    secured.grant(AccessGrant { token_hash, ..grant("token:ci", READ) }).await;
    let anonymous = secured.certificates.anonymous(&secured.node.ready.address);
    let began = Instant::now();
    loop {
        let answer =
            ask(&anonymous, "GET", "/v1/kv/a/1", &[("authorization", "Bearer secret")]).await;
        if answer.status == 200 {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{}", answer.text);
        sleep(PAUSE).await;
    }
    for headers in
        [&[][..], &[("authorization", "Bearer wrong")], &[("authorization", "Basic secret")]]
    {
        let refused = ask(&anonymous, "GET", "/v1/kv/a/1", headers).await;
        assert_eq!(refused.status, 401, "{}", refused.text);
        assert!(refused.text.contains("\"unauthenticated\""), "{}", refused.text);
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
    }
    let put = ask(&anonymous, "PUT", "/v1/kv/a/1", &[("authorization", "Bearer secret")]).await;
    assert_eq!(put.status, 403);
    secured.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_back_ends_a_watch_over_http() {
    let secured = Secured::start().await;
    let (root, app) = (secured.of("root"), secured.of("app"));
    until(&root, ("PUT", "/v1/kv/a/1"), 204).await;
    secured.grant(grant("app", READ)).await;
    // That of others keeps access on.
    secured.grant(grant("other", READ)).await;
    until(&app, ("PUT", "/v1/kv/a/1"), 403).await;
    let request = Request::get("/v1/watch?prefix=a/").body(tonic::body::Body::empty()).unwrap();
    let mut events = answer(&app, request).await.into_body();
    let mut text = String::new();
    let mut control = ControlClient::new(secured.of("root"));
    while !text.contains("\"2\"") {
        text += &String::from_utf8_lossy(&next(&mut events).await.unwrap());
        let put = Request::put("/v1/kv/a/2");
        let put = put.body(tonic::body::Body::new("2".to_owned())).unwrap();
        assert_eq!(answer(&root, put).await.status(), 204);
    }
    let revoke = AccessRevokeRequest { name: "app".to_owned(), ..Default::default() };
    control.access_revoke(revoke).await.unwrap();
    let mut last = String::new();
    while let Some(data) = next(&mut events).await {
        last += &String::from_utf8_lossy(&data);
    }
    assert!(last.contains("event: error") && last.contains("\"forbidden\""), "{last}");
    secured.node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leads_nothing_serves_clients_and_marks_its_calls() {
    let secured = Secured::start().await;
    let root = secured.of("root");
    until(&root, ("PUT", "/v1/kv/a/1"), 204).await;
    let mut control = ControlClient::new(root);
    let admit = AdmitRequest { node: "n2".to_owned(), valid_s: 60, ..Default::default() };
    control.admit(admit).await.unwrap();
    let join = std::slice::from_ref(&secured.node.ready.address);
    let config = config(&[secured.dir.path().join("b")], join);
    let second = start(secured.certificates.configured("n2", config)).await;
    let root = secured.certificates.channel("root", &second.ready.address);
    for (method, target, status) in [
        ("PUT", "/v1/kv/a/9", 204),
        ("GET", "/v1/kv/a/9", 200),
        ("POST", "/v1/kv/n?increment=4", 200),
        ("GET", "/v1/kv?prefix=a/", 200),
        ("DELETE", "/v1/kv/a/9", 204),
    ] {
        let answer = until(&root, (method, target), status).await;
        assert_eq!(answer.status, status);
    }
    let tagged = ask(&root, "PUT", "/v1/kv/a/9", &[("if-none-match", "*")]).await;
    assert_eq!(tagged.status, 204, "{}", tagged.text);
    // The mark is of no use to a client.
    let get = RawGetRequest {
        context: Some(Context::default()),
        key: Bytes::from("a/1"),
        ..Default::default()
    };
    let marked = || {
        let mut request = tonic::Request::new(get.clone());
        request.metadata_mut().insert("stele-for-client", "1".parse().unwrap());
        request
    };
    for name in ["app", "root"] {
        let refused = TikvClient::new(secured.of(name)).raw_get(marked()).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{name}: {refused:?}");
    }
    let answered = TikvClient::new(secured.of("n2")).raw_get(marked()).await;
    assert!(answered.is_ok(), "{answered:?}");
    let refused = ask(&secured.of("n2"), "GET", "/v1/kv/a/1", &[("stele-for-client", "1")]).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    second.stop().await;
    secured.node.stop().await;
}
